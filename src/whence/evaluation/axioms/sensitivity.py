"""What a feature that matters gets, and what one that does not."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.evaluation.axioms.asker import Asker, NotMeasured
from whence.evaluation.axioms.functions import Deaf, Idle
from whence.evaluation.axioms.points import Points, Probe, together
from whence.evaluation.axioms.registry import axiom, share, size, worst
from whence.evaluation.axioms.table import Finding

_NOTHING = 1e-6  # of the largest attribution counts as 0
_CHANGE = 1e-4  # of the largest score counts as another prediction
_DRAWS = 16


@axiom("sensitivity_a", order=10, short="sensitivity a", paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365")
def sensitivity_a(ask: Asker) -> Finding:
    """Where input and baseline differ in one feature only and the scores differ, that feature gets something.

    The number is the largest change of the score, as a share of the largest seen, whose feature got 0.
    """
    points, unit = one_apart(ask.probe)
    after, before = ask.probe.f(points), ask.probe.f(ask.probe.at_baseline(points))
    change = (after - before).abs()
    matters = change > _CHANGE * torch.maximum(after.abs(), before.abs()).amax()
    if not bool(matters.any()):
        raise NotMeasured("no single feature changed the score between baseline and input")
    answer = ask.aligned(ask(points))
    own = answer.of(unit).abs().amax(1)
    missed = matters & (own <= _NOTHING * size(answer.phi).amax())
    violation = torch.where(missed, change / change.amax(), 0.0)
    return worst(
        ask, violation, points, lambda p: f"the score moves by {change[p]:.3g}, the attribution is {own[p]:.3g}",
        unit=unit, tolerance=0.0, note=f"{int(missed.sum())} of {int(matters.sum())} changes got 0",
    )  # fmt: skip


def one_apart(probe: Probe) -> tuple[Points, Tensor]:
    """Inputs that differ from their baselines in one unit: one unit of x set into x', and one of x' into x."""
    found, units = [], []
    for row in range(len(probe.rows)):
        x, x0 = probe.rows.x[row], probe.rows.baseline[row]
        for unit in probe.chosen(row):
            if torch.equal(x[unit], x0[unit]):
                continue
            near, far = x0.clone(), x.clone()
            near[unit], far[unit] = x[unit], x0[unit]
            which = torch.tensor([row, row], device=x.device)
            found.append(Points(torch.stack([near, x]), torch.stack([x0, far]), which))
            units += [unit, unit]
    if not found:
        raise NotMeasured("the input is the baseline")
    return together(found), torch.tensor(units, device=probe.rows.x.device)


@axiom("sensitivity_b", order=10, short="sensitivity b", paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365")
def sensitivity_b(ask: Asker) -> Finding:
    """A feature on which the score does not depend gets 0 (specificity, dummy).

    Features are added that the model never looks at or weighs by 0, and some of the model's own are multiplied by 0
    before it sees them; those of its own that never changed its score, whatever was put there, count too. The number is
    the largest such attribution, as a share of the row's.
    """
    found = [_idle(ask, how) for how in ("never looked at", "weighed by 0") if ask.takes_idle]
    found += [*_deaf(ask), *_own(ask)]
    if not found:
        raise NotMeasured("it is a function of one tensor, and its values are not of features")
    return max(found, key=lambda finding: finding.number or 0.0)


@axiom("sensitivity_b_cancelling", order=10, short="b, cancelling")
def sensitivity_b_cancelling(ask: Asker) -> Finding:
    """The same for features that are used, in parts which cancel: relu(d) − relu(d)."""
    return _idle(ask, "in parts that cancel")


def _idle(ask: Asker, how: str) -> Finding:
    points, draw = ask.probe.rows, torch.Generator().manual_seed(ask.seed)
    size_of = torch.randn(3, generator=draw, dtype=torch.float64, device="cpu").abs().add(0.5)
    idle = size_of.to(points.x).expand(len(points), 3)
    answer = ask(points, Idle(ask.probe.score, how), idle=idle.contiguous())
    assert answer.idle is not None
    got = size(answer.idle)
    return worst(
        ask, share(got, torch.maximum(got, size(answer.phi))), points,
        lambda p: f"an input {how} gets {got[p]:.3g}",
    )  # fmt: skip


def _deaf(ask: Asker) -> list[Finding]:
    """Features of the model's own that it is kept from hearing."""
    points = ask.probe.rows
    if ask.rows().phi.shape[1] != points.x.shape[1]:
        return []  # its values are of patches or positions
    units = ask.probe.chosen(0)
    return [_unheard(ask, unit) for unit in sorted({units[0], units[len(units) // 2]})]


def _unheard(ask: Asker, unit: int) -> Finding:
    points = ask.probe.rows
    heard = torch.ones_like(points.x[:1])
    heard[:, unit] = 0
    answer = ask.aligned(ask(points, Deaf(ask.probe.score, ask.probe.name, ask.probe.tensor(heard))))
    got = answer.phi[:, unit].abs().amax(1)
    return worst(
        ask, share(got, size(answer.phi)), points, lambda p: f"a feature multiplied by 0 gets {got[p]:.3g}",
        unit=torch.full((len(points),), unit, device=points.x.device),
    )  # fmt: skip


def _own(ask: Asker) -> list[Finding]:
    """The model's own features without effect."""
    idle = ask.probe.once("independent", lambda: independent(ask.probe, ask.seed))
    if not idle:
        return []
    points = ask.probe.rows
    answer = ask.aligned(ask.rows())
    got = answer.phi.abs().amax(2)  # (points, units)
    unit = torch.tensor(idle, device=got.device)[got[:, idle].argmax(1)]
    own = got[torch.arange(len(points), device=got.device), unit]
    said = "a feature that never changed the score gets"
    return [worst(ask, share(own, size(answer.phi)), points, lambda p: f"{said} {own[p]:.3g}", unit=unit)]


def independent(probe: Probe, seed: int) -> list[int]:
    """Units whose value never changed the score, by random values in random surroundings: no gradient is asked."""
    if probe.real is not None:
        return []
    rows, draw = probe.rows, torch.Generator().manual_seed(seed)
    spread = torch.maximum(rows.x.abs(), rows.baseline.abs()).amax() * 2 + 1
    units = sorted({unit for row in range(len(rows)) for unit in probe.chosen(row)})
    found = []
    for unit in units:
        shape = (_DRAWS, *rows.x.shape[1:])
        noise = torch.randn(shape, generator=draw, dtype=torch.float64, device="cpu").to(rows.x) * spread
        draws = torch.arange(_DRAWS, device=rows.x.device)
        at = draws % len(rows)
        first = rows.x[at] + noise * (draws % 2).view(-1, 1, 1).to(noise)  # half in the user's own rows
        second = first.clone()
        second[:, unit] = noise[:, unit].roll(1, 0) + rows.x[at, unit]
        one, two = (probe.f(Points(x, x, at)) for x in (first, second))
        if torch.equal(one, two):
            found.append(unit)
    return found
