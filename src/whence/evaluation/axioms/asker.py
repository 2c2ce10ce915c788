"""A method's answers at many points at once, in units of the probe."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from whence.api import explain
from whence.engine.custom_functions import suspended
from whence.engine.scope import scope
from whence.errors import WhenceWarning
from whence.evaluation.answers.explanations import Ranker
from whence.evaluation.axioms.functions import IDLE, Bound
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
    """One method with its parameters, or a function of the user's, and the seed."""

    probe: Probe
    line: Ranker
    seed: int
    tolerance: float
    known: dict[str, Answer] = field(default_factory=dict)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What the registry knows of the method."""
        return {} if self.line.function is not None else methods[self.line.method].facts

    @property
    def takes_idle(self) -> bool:
        """Whether inputs can be added: a function of the user's gets one tensor, and only a vector can be longer."""
        return self.line.function is None or (self.probe.kind == "plain" and len(self.probe.shape) == 1)

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
        parts = self._parts(points, extra)
        found = []
        for part in parts:
            own = {name: value[part] for name, value in extra.items()}
            beside = None if idle is None else idle[part]
            values = (self._called if self.line.function is not None else self._explained)(
                points[part], function, own, beside
            )
            found.append(self._answer(values, beside))
        order = torch.cat(parts).argsort()
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

    def _parts(self, points: Points, extra: Mapping[str, Tensor]) -> list[Tensor]:
        """Numbers of points that can be asked about together.

        A background is one baseline for all. A function of the user's may call its model with any number of rows, so
        that whatever is held must be the same for all of them.
        """
        every = torch.arange(len(points), device=points.row.device)
        if self.line.function is not None:
            held = torch.cat([points.row[:, None], *(value.flatten(1) for value in extra.values())], 1)
        elif self.facts.get("background"):
            held = points.baseline.flatten(1)
        else:
            return list(every.split(self.probe.chunk))
        _, kind = held.unique(dim=0, return_inverse=True)
        return [part for k in kind.unique() for part in every[kind == k].split(self.probe.chunk)]

    def _answer(self, values: Mapping[str, Tensor], idle: Tensor | None) -> Answer:
        if self.probe.name not in values:
            raise NotMeasured(f"it gives no value to {self.probe.name!r}")
        phi = self.probe.units(values[self.probe.name].detach().double())
        if not bool(torch.isfinite(phi).all()):
            raise NotMeasured("it gives values that are not finite")
        beside = values[IDLE].detach().double().flatten(1) if idle is not None and IDLE in values else None
        if idle is not None and beside is None:
            raise NotMeasured("it gives no value to inputs beside the tokens")
        return Answer(phi, beside, self._sum(phi))

    def _explained(
        self, points: Points, function: nn.Module, extra: Mapping[str, Tensor], idle: Tensor | None
    ) -> Mapping[str, Tensor]:
        """A registered method's values, by input."""
        name, background = self.probe.name, self.facts.get("background")
        x0 = self.probe.tensor(points.baseline)
        baseline = {name: x0[:1] if background else x0}
        inputs, wrt = self.probe.inputs(points, extra), [name]
        if idle is not None:
            baseline[IDLE], inputs[IDLE], wrt = torch.zeros_like(idle[:1] if background else idle), idle, [name, IDLE]
        params = dict(self.line.params or {})
        if params.get("path") is not None:
            params["path"] = _between(params["path"], {key: inputs[key] for key in wrt}, baseline)
        if self.facts.get("needs") == "attention" or params.get("path") is not None:
            baseline = {}  # it looks at none, or starts at it already
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)  # numbers say here what warnings say elsewhere
            a = explain(
                function, inputs, method=self.line.method, target=0, baseline=baseline or None, wrt=wrt,
                seed=self.seed, progress=False, **self._units(), **params,
            )  # fmt: skip
        a = a if a.image_size is None else a.to_image_size()
        return {name: a.values} if a.one_input else a.by_name()

    def _called(
        self, points: Points, function: nn.Module, extra: Mapping[str, Tensor], idle: Tensor | None
    ) -> Mapping[str, Tensor]:
        """What a function of the user's gives, by input."""
        if idle is not None and not self.takes_idle:
            raise NotMeasured("it is a function of one tensor, and nothing can be put beside these")
        held = {key: value for key, value in self.probe.inputs(points[:1], {k: v[:1] for k, v in extra.items()}).items()
                if key != self.probe.name}  # fmt: skip
        x, x0 = self.probe.tensor(points.x), self.probe.tensor(points.baseline)
        width = x.shape[1] if x.dim() > 1 else 0
        if idle is not None:
            x, x0 = torch.cat([x, idle], 1), torch.cat([x0, torch.zeros_like(idle)], 1)
        model = Bound(function, self.probe.name, held, width if idle is not None else None)
        own = self.line.function
        assert own is not None
        more = {"baseline": x0} if "baseline" in inspect.signature(own).parameters else {}
        with suspended(), scope(model):
            values = own(model, x, torch.zeros(len(x), dtype=torch.long, device=x.device), **more)
        values = torch.as_tensor(values, device=x.device).detach()
        if values.shape != x.shape:
            raise NotMeasured(f"it gave values of shape {tuple(values.shape)} for inputs of shape {tuple(x.shape)}")
        if idle is None:
            return {self.probe.name: values}
        return {self.probe.name: values[:, :width], IDLE: values[:, width:]}

    def _units(self) -> dict[str, Any]:
        """Methods that remove things remove what counts as a unit here."""
        deep = self.probe.kind == "plain" and len(self.probe.shape) > 1
        takes = "units" in methods[self.line.method].parameters and "units" not in (self.line.params or {})
        return {"units": "elements"} if deep and takes else {}

    def _sum(self, phi: Tensor) -> Tensor:
        """Over everything; a value that a method wrote at each element of a unit counts once."""
        written = not self.facts.get("propagates", True) and not self.facts.get("complete")
        once = written and phi.shape[2] > 1 and bool((phi == phi[..., :1]).all())
        return (phi[..., 0] if once else phi.sum(2)).sum(1)


def _between(path: Callable[..., Tensor], x: Mapping[str, Tensor], x0: Mapping[str, Tensor]) -> Callable[..., Any]:
    """The path between these points, as a function of α alone, by input."""
    return lambda alpha: {key: path(alpha, x[key], x0[key]) for key in x}
