"""Integrated gradients: along the straight line, along any path, averaged over baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from whence.errors import ParameterError, warn
from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.integrated.adaptive import Goal, State
from whence.methods.integrated.chords import Pieces
from whence.methods.integrated.doubling import Doubled
from whence.methods.integrated.paths import (
    Paths,
    Starts,
    curve,
    from_baselines,
    noisy,
    parted,
    polyline,
    slopes,
    straight,
    without_velocity,
)
from whence.methods.integrated.refinement import refined
from whence.registry import Bounds
from whence.subject import Subject, baselines
from whence.subject.at_baseline import mean_score
from whence.subject.noise import deviations, uniform
from whence.subject.record import Measured
from whence.util.keys import input_of
from whence.util.progress import bar
from whence.util.quadrature import fixed

Slopes = Callable[[Subject, Paths, Tensor, Tensor, Tensor], Iterator[tuple[Tensor, Tensor, Tensor]]]
Quadrature = Literal["adaptive", "right", "left", "midpoint", "trapezoid", "gauss_legendre"]
Steps = Annotated[int | None, Bounds(low=1)]
Tolerance = Annotated[float, Bounds(low=0, open_low=True)]
MaxSteps = Annotated[int, Bounds(low=8)]
_STEPS = 50


@method(
    "integrated_gradients",
    paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365",
    order=40,
    aliases=("ig",),
    reference=True,
    several=True,
    complete=True,
    integral=True,
)
def integrated_gradients(
    subject: Subject,
    *,
    rule: Quadrature = "adaptive",
    steps: Steps = None,
    tolerance: Tolerance = 0.01,
    max_steps: MaxSteps = 512,
    multiply_by_inputs: bool = True,
) -> Answer:
    """The gradient averaged from the baseline to the input, times their difference, φ = (x−x') ⊙ ∫₀¹ ∇f(x'+α(x−x')) dα.

    `rule="adaptive"` refines each row until its completeness gap and its estimated error are within the tolerance, and
    says which rows it could not bring there in `max_steps`. The other rules take `steps`, which alone means
    Gauss–Legendre. With a list of baselines the answer is the mean over them. `multiply_by_inputs=False` gives the
    averaged gradient itself, by Gauss–Legendre if no other rule is named.
    """
    if not multiply_by_inputs:
        return replace(on_grid(subject, without_velocity(from_baselines(subject)), rule, steps), sums=False)
    return integral(subject, from_baselines(subject), rule, steps, tolerance, max_steps)


@method(
    "path_integrated_gradients",
    paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365",
    order=40,
    aliases=("path_ig",),
    complete=True,
    integral=True,
)
def path_integrated_gradients(
    subject: Subject,
    *,
    path: Any = None,
    rule: Quadrature = "adaptive",
    steps: Steps = None,
    tolerance: Tolerance = 0.01,
    max_steps: MaxSteps = 512,
) -> Answer:
    """The gradient integrated along a path γ from a baseline to the input, φ_i = ∫₀¹ ∂f/∂γ_i · dγ_i/dα dα.

    `path` is a list of way-points that ends with the input, or a function of α in torch ops with γ(1) = x; each value
    is like the input (ids: like their embeddings), or a dict or tuple by input. Its start is the baseline. Every path
    is complete; all but the straight one treat symmetric inputs unequally.
    """
    if path is not None and subject.baselines:
        raise ParameterError("A path has its own start, but baseline= was given too.\n  Leave one of them out.")
    if path is None:
        given = subject.baselines or baselines.default(subject, {"integral": True})
        start = given[0].resolve(subject).values(subject)
        paths = straight([(start, subject.pinned().values)], [1.0])
    else:
        paths = curve(subject, path) if callable(path) else polyline(subject, path)
    return integral(subject, paths, rule, steps, tolerance, max_steps)


@method(
    "expected_gradients",
    paper="Erion et al. 2021, arXiv:1906.10670",
    order=40,
    aliases=("eg", "gradient_shap", "grad_shap"),
    reference=True,
    several=True,
    complete=True,
    integral=True,
)
def expected_gradients(
    subject: Subject,
    *,
    samples: Annotated[int, Bounds(low=1)] = 100,
    noise: Any = 0.0,
    relative: bool = True,
    multiply_by_inputs: bool = True,
) -> Answer:
    """Integrated gradients averaged over baselines, at random points, φ = E[(x−x') ⊙ ∇f(x'+α(x−x'))].

    Each sample takes a baseline of the list (all of them in turn, in a random order) and a point α, one from each of
    `samples` equal parts of the line, by the row's seed. With `noise`, as in smoothgrad, each sample's x has Gaussian
    noise, as in GradientSHAP. `multiply_by_inputs=False` leaves (x−x') out.
    """
    deviation, count = deviations(subject.pinned(), noise, relative), len(subject.baselines)
    noised = any(bool(one.any()) for one in deviation.values())
    paths = noisy(subject, deviation) if noised else from_baselines(subject)
    draws = uniform(subject, 2 * samples + count)  # (rows, draws)
    order = draws[:, 2 * samples :].argsort(1)
    which = order.repeat(1, -(-samples // count))[:, :samples]
    alpha = (draws[:, :samples].argsort(1) + draws[:, samples : 2 * samples]) / samples
    weight = torch.full((samples,), 1 / samples, dtype=torch.float64, device="cpu")
    which = which + count * torch.arange(samples, device="cpu") if noised else which
    answer = _at_points(subject, paths if multiply_by_inputs else without_velocity(paths), which, alpha, weight)
    return replace(answer, sums=multiply_by_inputs)


# ---- integrals ----


def integral(subject: Subject, paths: Paths, rule: str, steps: int | None, tolerance: float, max_steps: int) -> Answer:
    if rule == "adaptive" and steps is None:
        return _adaptive(subject, paths, tolerance, max_steps)
    return on_grid(subject, paths, rule, steps)


def on_grid(subject: Subject, paths: Paths, rule: str, steps: int | None, slopes: Slopes = slopes) -> Answer:
    """By a rule of fixed points, Gauss–Legendre's if it is the adaptive one."""
    nodes, weights = fixed("gauss_legendre" if rule == "adaptive" else rule, steps or _STEPS)
    count = len(paths.weights)
    alpha = torch.from_numpy(nodes).repeat(count).expand(subject.rows, -1)
    which = torch.arange(count, device="cpu").repeat_interleave(len(nodes)).expand(subject.rows, -1)
    weight = torch.cat([torch.from_numpy(weights) * w for w in paths.weights])
    return _at_points(subject, paths, which, alpha, weight, slopes)


def _at_points(
    subject: Subject, paths: Paths, which: Tensor, alpha: Tensor, weight: Tensor, slopes: Slopes = slopes
) -> Answer:
    """The weighted sum of slopes at given points (rows, points) of each row."""
    wide, paths, k = _one_target_per_row(subject, paths)
    points = alpha.shape[1]
    rows = torch.arange(wide.rows, device="cpu").repeat_interleave(points)
    which, alpha = (t.repeat_interleave(k, 0).reshape(-1) for t in (which, alpha))
    total: Tensor | None = None
    with bar(len(rows), subject.progress, subject.method) as count:
        for items, _, some in slopes(wide, paths, rows, which, alpha):
            total = some.new_zeros(wide.rows, some.shape[1]) if total is None else total
            total.index_add_(0, rows[items].to(some.device), some * weight[items % points].to(some)[:, None])
            count(len(items))
    assert total is not None
    start = None if subject.baselines else _start(wide, paths).view(subject.rows, k)  # a path has its own
    per_row = {"gradient_evaluations": [k * points] * subject.rows}
    return Answer(_by_value(subject, total, k), start_score=start, per_row=per_row)


def _adaptive(subject: Subject, paths: Paths, tolerance: float, max_steps: int) -> Answer:
    if max_steps < 2 * len(paths.weights):
        raise ParameterError(
            f"max_steps={max_steps} is too few for {len(paths.weights)} paths, of which each needs two points.\n"
            f"  Give at least {2 * len(paths.weights)}."
        )
    wide, paths, k = _one_target_per_row(subject, paths)
    eps = max(torch.finfo(value.dtype).eps for value in wide.values.values())
    goal = Goal(tolerance, eps, max_steps, _per_unit(wide))
    starts: Starts = {}
    states = refined(wide, paths, goal, starts)
    rows = [states[row * k : row * k + k] for row in range(subject.rows)]
    assert subject.measured.score is not None
    start = torch.tensor([[state.before for state in row] for row in rows], dtype=torch.float64, device="cpu")
    reached = [max(goal.reached(state.gap, state.error) for state in row) for row in rows]
    _warn(subject, rows, reached, goal)
    start = start.to(subject.measured.score)
    return Answer(
        _by_value(subject, torch.stack([state.total for state in states]), k),
        baseline_score=start,
        start_score=start,
        per_row={
            "gradient_evaluations": [sum(state.evaluations for state in row) for row in rows],
            "tolerance_reached": reached,
            "converged": [one <= tolerance for one in reached],
            **_at_baselines(subject, starts, k),
        },
        overall={"scheme": " and ".join(sorted({state.scheme for state in states})), "tolerance": tolerance},
    )


def _at_baselines(subject: Subject, starts: Starts, k: int) -> dict[str, list[Any]]:
    """What a classifier says at the baselines, which the paths' first points have shown."""
    if not subject.baselines or not starts or subject.measured.score is None:
        return {}
    count = len(subject.baselines)
    logits = [torch.stack([starts[row * k, path] for row in range(subject.rows)]) for path in range(count)]
    return mean_score(subject, [Measured(subject.measured.score, logits=one) for one in logits])[1]


# ---- one target per row ----


def _one_target_per_row(subject: Subject, paths: Paths) -> tuple[Subject, Paths, int]:
    """Rows repeated so that each has one target: targets need different points."""
    pinned = subject.pinned()
    assert subject.measured.score is not None
    k = subject.measured.score.shape[1]
    if k == 1:
        return pinned, paths, 1
    wide = pinned.take(torch.arange(subject.rows, device="cpu").repeat_interleave(k))
    assert isinstance(pinned.target, Tensor)
    wide = replace(wide, target=pinned.target.reshape(subject.rows * k, 1, -1))
    return wide, Paths(paths.weights, lambda rows, which, alpha: paths.at(rows // k, which, alpha)), k


def _by_value(subject: Subject, total: Tensor, k: int) -> dict[str, Tensor]:
    parts = parted(total, subject.pinned().values)
    return {key: part.unflatten(0, (subject.rows, k)) for key, part in parts.items()}


def _per_unit(subject: Subject) -> Callable[[Tensor], Tensor] | None:
    """Sums over the hidden dimensions of ids: (n, all values) to (n, units)."""
    if "ids" not in subject.roles.values():
        return None
    sizes = [value[0].numel() for value in subject.values.values()]
    ids = [subject.roles.get(input_of(key)) == "ids" for key in subject.values]
    hidden = [value.shape[-1] if token else 1 for token, value in zip(ids, subject.values.values(), strict=True)]

    def summed(vectors: Tensor) -> Tensor:
        parts = vectors.split(sizes, 1)
        return torch.cat([part.unflatten(1, (-1, h)).sum(2) for part, h in zip(parts, hidden, strict=True)], 1)

    return summed


def _start(subject: Subject, paths: Paths) -> Tensor:
    """The score where a path begins."""
    rows = torch.arange(subject.rows, device="cpu")
    alpha = torch.zeros(subject.rows, dtype=torch.float64, device="cpu")
    there = subject.valued(paths.at(rows, torch.zeros_like(rows), alpha)[0])
    return there.run(gradient=False).score[:, 0].detach()


# ---- what is said ----


def _warn(subject: Subject, rows: list[list[State | Doubled | Pieces]], reached: list[float], goal: Goal) -> None:
    """Name the rows that did not come within the tolerance, by what may help them."""
    failed: dict[str, list[int]] = {}
    for row, one in enumerate(reached):
        if not one <= goal.tolerance:
            failed.setdefault(_advice(any(state.unbounded for state in rows[row]), goal), []).append(row)
    for advice, which in failed.items():
        warn(
            f"{subject.method}: {{rows}} did not reach the tolerance of {goal.tolerance:.2g}; "
            f"the worst is at {{worst}}. {advice}",
            [subject.row_numbers[row] for row in which],
            worst=max(reached[row] for row in which),
        )


def _advice(unbounded: bool, goal: Goal) -> str:
    if unbounded:
        return (
            "The score still moves where the path leaves the baseline, as it does when a normalisation divides by the "
            'size of an input that starts at 0: choose another baseline, such as "pad" or "mean" for ids.'
        )
    if goal.reach > goal.tolerance:
        return "The model's precision allows no better: use float32 or float64."
    return (
        f"Raise max_steps (it is {goal.max_steps}), allow a larger tolerance, or choose a baseline nearer to the input."
    )
