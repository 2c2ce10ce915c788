"""A method's answers at many points at once, in units of the probe."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from whence.api import explain
from whence.errors import WhenceWarning
from whence.evaluation.axioms.functions import IDLE
from whence.evaluation.axioms.points import Points, Probe
from whence.methods import methods


class NotMeasured(Exception):
    """Why a property cannot be measured here."""


@dataclass(frozen=True, eq=False)
class Answer:
    """Attributions (points, units, depth) and, where idle inputs were given, theirs (points, idle)."""

    phi: Tensor
    idle: Tensor | None
    sum: Tensor  # (points,): over everything

    def of(self, unit: Tensor) -> Tensor:
        """The attribution (points, depth) of one unit per point."""
        return self.phi[torch.arange(len(self.phi), device=self.phi.device), unit]


@dataclass(frozen=True, eq=False)
class Asker:
    """One method, its parameters and the seed."""

    probe: Probe
    method: str
    params: Mapping[str, Any]
    seed: int
    tolerance: float
    known: dict[str, Answer] = field(default_factory=dict)

    def rows(self) -> Answer:
        """The method's attributions of the score at the rows themselves, asked for once."""
        if "rows" not in self.known:
            self.known["rows"] = self(self.probe.rows)
        return self.known["rows"]

    def __call__(
        self, points: Points, function: nn.Module | None = None, extra: Mapping[str, Tensor] | None = None,
        idle: Tensor | None = None,
    ) -> Answer:  # fmt: skip
        """The method's attributions of a function (the score itself, if none is given) at these points."""
        function, extra = self.probe.score if function is None else function, extra or {}
        found = []
        for part in self._parts(points):
            own = {name: value[part] for name, value in extra.items()}
            found.append(self._ask(points[part], function, own, None if idle is None else idle[part]))
        order = torch.cat(self._parts(points)).argsort()
        sides = [a.idle for a in found if a.idle is not None]
        return Answer(
            torch.cat([a.phi for a in found])[order],
            torch.cat(sides)[order] if sides else None,
            torch.cat([a.sum for a in found])[order],
        )

    def aligned(self, answer: Answer) -> Answer:
        """The answer, if it speaks of the input's own units."""
        if answer.phi.shape[1] != self.probe.rows.x.shape[1]:
            raise NotMeasured(
                f"its {answer.phi.shape[1]} values belong to patches or positions, but this property is about features"
            )
        return answer

    def _parts(self, points: Points) -> list[Tensor]:
        """Numbers of points that can be asked about together: a background is one baseline for all."""
        every = torch.arange(len(points), device=points.row.device)
        if not methods[self.method].facts.get("background"):
            return list(every.split(self.probe.chunk))
        _, kind = points.baseline.flatten(1).unique(dim=0, return_inverse=True)
        return [part for k in kind.unique() for part in every[kind == k].split(self.probe.chunk)]

    def _ask(self, points: Points, function: nn.Module, extra: Mapping[str, Tensor], idle: Tensor | None) -> Answer:
        name, background = self.probe.name, methods[self.method].facts.get("background")
        x0 = self.probe.tensor(points.baseline)
        baseline = {name: x0[:1] if background else x0}
        inputs, wrt = self.probe.inputs(points, extra), [name]
        if idle is not None:
            baseline[IDLE], inputs[IDLE], wrt = torch.zeros_like(idle[:1] if background else idle), idle, [name, IDLE]
        if methods[self.method].facts.get("needs") == "attention":
            baseline = {}  # it looks at none
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)  # numbers say here what warnings say elsewhere
            a = explain(
                function, inputs, method=self.method, target=0, baseline=baseline or None, wrt=wrt, seed=self.seed,
                progress=False, **self._units(), **self.params,
            )  # fmt: skip
        found = {name: a.values} if a.one_input else a.by_name()
        if name not in found:
            raise NotMeasured(f"it gives no value to {name!r}")
        phi = self.probe.units(found[name].detach().double())
        if not bool(torch.isfinite(phi).all()):
            raise NotMeasured("it gives values that are not finite")
        beside = found[IDLE].detach().double().flatten(1) if idle is not None and IDLE in found else None
        if idle is not None and beside is None:
            raise NotMeasured("it gives no value to inputs beside the tokens")
        return Answer(phi, beside, self._sum(phi))

    def _units(self) -> dict[str, Any]:
        """Methods that remove things remove what counts as a unit here."""
        deep = self.probe.kind == "plain" and len(self.probe.shape) > 1
        takes = "units" in methods[self.method].parameters and "units" not in self.params
        return {"units": "elements"} if deep and takes else {}

    def _sum(self, phi: Tensor) -> Tensor:
        """Over everything; a value that a method wrote at each element of a unit counts once."""
        facts = methods[self.method].facts
        written = not facts.get("propagates", True) and not facts.get("complete")
        once = written and phi.shape[2] > 1 and bool((phi == phi[..., :1]).all())
        return (phi[..., 0] if once else phi.sum(2)).sum(1)
