"""Conductance and internal influence: integrated gradients seen from inside the model.

As the input moves on a straight line from its baseline, x'+α(x−x'), a module's values y move along a curve.
Conductance is the integral of the gradient by y along that curve, so it is integrated gradients at the module with a
path of its own; internal influence is the mean of that gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import derivative
from whence.engine.captures import Site
from whence.engine.leaves import AT
from whence.engine.places import Place, place
from whence.errors import BaselineError, InputError, ParameterError
from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.integrated.integrated_gradients import MaxSteps, Quadrature, Steps, Tolerance, integral, on_grid
from whence.methods.integrated.paths import Paths, Values, from_baselines, joined, without_velocity
from whence.subject import Subject
from whence.subject.baselines import is_inside
from whence.subject.batching import in_batches, values_of
from whence.subject.inside import one_call
from whence.subject.modules import canonical
from whence.subject.neurons import Neuron, selected
from whence.subject.passes import IN_PLACE, Pass
from whence.subject.record import Measured
from whence.subject.up_to import UpTo

_EXPAND = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})  # fused: differentiable once only


@method(
    "conductance",
    paper="Dhamdhere, Sundararajan & Yan 2019, arXiv:1805.12233",
    order=41,
    aliases=("layer_conductance",),
    reference=True,
    several=True,
    complete=True,
    integral=True,
)
def conductance(
    subject: Subject,
    *,
    through: Any = None,
    rule: Quadrature = "adaptive",
    steps: Steps = None,
    tolerance: Tolerance = 0.01,
    max_steps: MaxSteps = 512,
) -> Answer:
    """How much of the score's change passes a module's units (`at=`), φ_j = ∫₀¹ ∂f/∂y_j · dy_j/dα dα at x'+α(x−x').

    At the inputs themselves this is integrated gradients. `through=whence.neuron("path", index)` explains the inputs
    by what passes that unit alone, φ_i = (x_i−x'_i) ∫₀¹ ∂f/∂y_j · ∂y_j/∂x_i dα, whose sum is the unit's conductance;
    units that a slice selects are added up. `rule`, `steps`, `tolerance` and `max_steps` are those of
    integrated_gradients; with `through`, "adaptive" is Gauss–Legendre.
    """
    if through is None:
        return integral(subject, _paths(subject), rule, steps, tolerance, max_steps)
    unit, where = _unit(subject, through)
    answer = on_grid(subject, from_baselines(subject), rule, steps, partial(_slopes_through, unit=unit, where=where))
    return replace(answer, sums=False)


@method(
    "internal_influence",
    paper="Leino et al. 2018, arXiv:1802.03788",
    order=41,
    reference=True,
    several=True,
    integral=True,
    slope=True,
)
def internal_influence(subject: Subject, *, rule: Quadrature = "gauss_legendre", steps: Steps = None) -> Answer:
    """The mean gradient by a module's values (`at=`) from the baseline to the input, φ = ∫₀¹ ∂f/∂y(x'+α(x−x')) dα.

    Without `at` it is the mean gradient by the inputs. "adaptive" is Gauss–Legendre: nothing says when a mean of
    gradients is good enough.
    """
    return on_grid(subject, without_velocity(_paths(subject)), rule, steps)


# ---- the curve of a module's values ----


def _paths(subject: Subject) -> Paths:
    """Where the explained values are as the inputs move from the baselines."""
    if subject.at is None:
        return from_baselines(subject)
    if any(is_inside(name) for baseline in subject.baselines for name in baseline.by_input):
        raise BaselineError(
            f"{subject.method} moves the inputs, but the baseline has values for {subject.at!r}.\n"
            "  Give a baseline of the inputs."
        )
    inner, reader = _up_to(subject)
    lines = from_baselines(inner)

    def at(rows: Tensor, which: Tensor, alpha: Tensor) -> tuple[Values, Values]:
        points, velocity = lines.at(rows, which, alpha)
        there = inner.take(rows).valued(points)
        done = there.run(expand=_EXPAND)
        found = dict(reader.found)
        return {key: y.detach() for key, y in found.items()}, _Speed(partial(_pushed, reader, done, found, velocity))

    return Paths(lines.weights, at)


@dataclass(eq=False)
class _Reader:
    """A target that keeps what a module gives, in the graph; the score itself is of no interest."""

    up_to: UpTo
    keys: frozenset[str]  # of the module's explained values
    found: Values = field(default_factory=dict)

    def __call__(self, output: Any) -> Tensor:
        parts = self.up_to.tensors(output)
        named = {AT if len(parts) == 1 else f"{AT}.{name}": tensor for name, tensor in parts.items()}
        self.found = {key: tensor for key, tensor in named.items() if key in self.keys}
        return torch.stack([tensor.flatten(1).sum(1) for tensor in self.found.values()]).sum(0)


def _up_to(subject: Subject) -> tuple[Subject, _Reader]:
    """The subject whose inputs are explained and whose model ends at the module."""
    assert subject.at is not None
    assert subject.root is not None
    model = UpTo(subject.model, subject.root, place(subject.at))
    reader = _Reader(model, frozenset(subject.pinned().values))
    inner = replace(
        subject, model=model, target=reader, at=None, roles=subject.input_roles, values={}, measured=Measured()
    )
    return inner, reader


class _Speed(dict[str, Tensor]):
    """dy/dα by key, found when somebody asks: secants need none."""

    def __init__(self, find: Callable[[], Values]) -> None:
        super().__init__()
        self._find: Callable[[], Values] | None = find

    def __missing__(self, key: str) -> Tensor:
        if self._find is not None:
            self.update(self._find())
            self._find = None
            return self[key]
        raise KeyError(key)


def _pushed(reader: _Reader, done: Pass, found: Values, velocity: Mapping[str, Tensor]) -> Values:
    """The derivative of what the module gives in the direction of the velocity, by differentiating twice.

    u ↦ uᵀJ is linear, and so is its product with the velocity v: the derivative of uᵀJv by u is Jv.
    """
    signals = {key: torch.zeros_like(y).requires_grad_() for key, y in found.items()}
    leaves = list(done.leaves.items())
    try:
        with torch.enable_grad():
            total = torch.stack([(found[key] * u).sum() for key, u in signals.items()]).sum()
            back = torch.autograd.grad(total, [leaf for _, leaf in leaves], create_graph=True, allow_unused=True)
            along = [(m * velocity[key]).sum() for (key, _), m in zip(leaves, back, strict=True) if m is not None]
            sent = [one for one in along if one.requires_grad]
            if not sent:
                return {key: torch.zeros_like(y) for key, y in found.items()}
            pushed = torch.autograd.grad(torch.stack(sent).sum(), list(signals.values()), allow_unused=True)
    except RuntimeError as error:
        if done.plan.copies or IN_PLACE not in str(error):
            raise
        anew = done.subject.run(expand=_EXPAND, copies=True)  # written for inference
        return _pushed(reader, anew, dict(reader.found), velocity)
    parts = zip(found.items(), pushed, strict=True)
    return {key: torch.zeros_like(y) if push is None else push for (key, y), push in parts}


# ---- through one unit ----


def _unit(subject: Subject, through: Any) -> tuple[Neuron, Place]:
    if not isinstance(through, Neuron) or callable(through.index):
        raise ParameterError(
            f"{subject.method}: through={through!r} names no unit.\n"
            '  Give whence.neuron("path", index) with an int, a slice or a tuple of them.'
        )
    if subject.at is not None:
        raise ParameterError(
            f"{subject.method}: through= explains the inputs, but at={subject.at!r} names a module.\n"
            "  Leave one of them out."
        )
    return through, place(canonical(subject.root, through.path, "through"))


def _slopes_through(
    subject: Subject, paths: Paths, rows: Tensor, which: Tensor, alpha: Tensor, *, unit: Neuron, where: Place
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For some points at a time: which, their scores, and dx/dα ⊙ Σ_j ∂f/∂y_j · ∂y_j/∂x over the chosen units j."""

    def work(run: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        values, velocity = paths.at(run, values_of(items, which, 0), values_of(items, alpha, 1))
        there = subject.take(run).valued(values)
        gradients = _gradient_through(there, unit, where)
        assert there.measured.score is not None
        return there.measured.score[:, 0], joined({key: m * velocity[key] for key, m in gradients.items()})

    for items, (score, found) in in_batches(subject, rows, work, cost=0.85):
        real = (items >= 0).nonzero()[:, 0]
        yield items[real], score[real.to(score.device)], found[real.to(found.device)]


def _gradient_through(subject: Subject, unit: Neuron, where: Place, copies: bool = False) -> Values:
    """The score's gradient by the explained values, as far as it passes the chosen units."""
    met: dict[Site, Tensor] = {}

    def keep(site: Site, tensor: Tensor) -> Tensor | None:
        if site.kind != where.side or site.path != where.path:
            return None
        met[site] = tensor
        return tensor.clone()  # which the model may overwrite

    done = subject.run({"*": derivative}, edit=keep, copies=copies)
    y = met[one_call(where, list(met))]
    if len(y) != subject.rows:
        raise InputError(
            f"through={str(where)!r}: its values are {tuple(y.shape)}, but their first dimension must be the "
            f"{subject.rows} rows.\n  Name a module that keeps the rows first."
        )
    keys, leaves = list(done.leaves), list(done.leaves.values())
    nothing = {key: torch.zeros_like(leaf) for key, leaf in done.leaves.items()}
    if not y.requires_grad or not done.score.requires_grad:
        return nothing
    try:
        (signal,) = done.flow.pull(done.score, torch.ones_like(done.score), [y], again=True)
        if signal is None:
            return nothing
        back = done.flow.pull(y, selected(unit, signal), leaves)
    except RuntimeError as error:
        if copies or IN_PLACE not in str(error):
            raise
        return _gradient_through(subject, unit, where, copies=True)
    subject.record.backwards += 1
    return {key: nothing[key] if m is None else m for key, m in zip(keys, back, strict=True)}
