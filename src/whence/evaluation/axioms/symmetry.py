"""What two features get that play the same part."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from whence.evaluation.axioms.asker import Asker, NotMeasured
from whence.evaluation.axioms.functions import ORDER, Symmetric
from whence.evaluation.axioms.points import Points, Probe, together
from whence.evaluation.axioms.registry import axiom, share, size, worst
from whence.evaluation.axioms.table import Finding

_PAIRS = 3  # of each row, among neighbours in what is looked at
_DRAWS = 12  # points at which a pair is swapped
_EQUAL = 1e-9  # of the score, and coarser in coarser numbers


@dataclass(frozen=True, eq=False)
class Pairs:
    """Two units of each of some rows, (pairs,) each, and the order that swaps them, (pairs, units)."""

    row: Tensor
    first: Tensor
    second: Tensor
    order: Tensor

    def __getitem__(self, which: Tensor) -> Pairs:
        return Pairs(self.row[which], self.first[which], self.second[which], self.order[which])

    def __len__(self) -> int:
        return len(self.row)


@axiom("symmetry", order=40, short="symmetric", paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365")
def symmetry(ask: Asker) -> Finding:
    """Two features that may be swapped, equal in the input and equal in the baseline, get the same.

    A pair may be swapped if f gives the same at twelve points when it is, extreme values among them. Such pairs are
    measured on f itself, at ties above and below everything else too, where a kink would show; the others on
    f(x) + f(x with both swapped). The number is the difference, as a share of the row's largest attribution.
    """
    pairs = ask.probe.once("pairs", lambda: candidates(ask.probe))
    own = ask.probe.once("symmetric pairs", lambda: may_swap(ask.probe, pairs, ask.seed))
    found = []
    if bool(own.any()):
        found.append(_measured(ask, pairs[own], True))
    if not bool(own.all()):
        found.append(_measured(ask, pairs[~own], False))
    count = int(own.sum())
    note = "the model is symmetric by itself" if count == len(pairs) else "of f(x) + f(x with both swapped)"
    if 0 < count < len(pairs):
        note = f"{count} of {len(pairs)} pairs by themselves, the others {note}"
    worse = max(found, key=lambda finding: finding.number or 0.0)
    return Finding(worse.number, worse.verdict, worse.witness, note)


def _measured(ask: Asker, pairs: Pairs, own: bool) -> Finding:
    probe = ask.probe
    points, numbers = ties(probe, pairs, ask.seed, own)
    pairs = pairs[numbers]
    function = None if own else Symmetric(probe.score, probe.name, probe.swapped)
    answer = ask.aligned(ask(points, function, None if own else {ORDER: pairs.order}))
    one, two, largest = answer.of(pairs.first), answer.of(pairs.second), size(answer.phi)
    usual = torch.maximum(size(ask.rows().phi).amax(), largest.amax())
    rounding = 100 * torch.finfo(probe.rows.x.dtype).eps * usual  # all that there is where the function is flat
    return worst(
        ask, share((one - two).abs().amax(1), largest.clamp(min=rounding)), points,
        lambda p: f"units {probe.place(int(pairs.first[p]))} and {probe.place(int(pairs.second[p]))} "
        f"get {_told(one[p])} and {_told(two[p])}",
    )  # fmt: skip


def candidates(probe: Probe) -> Pairs:
    """The pairs that are looked at: of the chosen units those next to each other, and each with the unit beside it."""
    ends: list[tuple[int, int, int]] = []
    for number in range(len(probe.rows)):
        chosen = probe.chosen(number)
        there = set(range(probe.rows.x.shape[1])) if probe.real is None else set(
            probe.real[number].nonzero().flatten().tolist())  # fmt: skip
        near = [*list(pairwise(chosen))[:_PAIRS], *((i, i + 1) for i in chosen[:_PAIRS] if i + 1 in there)]
        ends += [(number, i, j) for i, j in dict.fromkeys(near)]
    if not ends:
        raise NotMeasured("there is one feature only")
    row, first, second = torch.tensor(ends, device=probe.rows.x.device).unbind(1)
    order = torch.arange(probe.rows.x.shape[1], device=row.device).repeat(len(row), 1)
    at = torch.arange(len(row), device=row.device)
    order[at, first], order[at, second] = second, first
    return Pairs(row, first, second, order)


def may_swap(probe: Probe, pairs: Pairs, seed: int) -> Tensor:
    """Whether swapping a pair changes the score at none of the points that are tried, (pairs,).

    In a third of them only the pair moves, in a third everything does, and in the rest the pair lies above, below, or
    on both sides of everything else: a maximum hears of its largest only.
    """
    rows, count = probe.rows, _DRAWS
    noise = _noise(probe, (count, 2), seed)  # (draws, 2: around and of the pair, units, depth)
    spread = _spread(probe)[pairs.row].view(-1, 1, 1)
    one, two = [], []
    for draw in range(count):
        around, own = noise[draw]
        wide = spread * (4 if draw % 2 else 1)
        x = rows.x[pairs.row] + (wide * around if draw >= count // 3 else 0)
        a = _of(rows.x[pairs.row] + wide * own, pairs.first)
        b = _of(rows.x[pairs.row] + wide * own, pairs.second)
        if draw >= 2 * count // 3:
            sides = ((1, -1), (-1, 1), (1, 1), (-1, -1))[draw % 4]
            a, b = (_beyond(x, side, wide[:, 0] * (0.2 + part.abs())) for side, part in zip(sides, (a, b), strict=True))
        x = _put(x, pairs, a, b)
        one.append(x)
        two.append(x.gather(1, pairs.order[..., None].expand_as(x)))
    row = pairs.row.repeat(count)
    base = rows.baseline[row]
    before, after = (probe.f(Points(torch.cat(xs), base, row)).view(count, -1) for xs in (one, two))
    scale = torch.maximum(before.abs(), after.abs())
    near = max(_EQUAL, 100 * torch.finfo(rows.x.dtype).eps)
    fine = torch.isfinite(before) & torch.isfinite(after)
    equal: Tensor = ((before - after).abs() <= near * (scale + scale.median(0).values)) | ~fine
    return equal.all(0) & fine.any(0)


def ties(probe: Probe, pairs: Pairs, seed: int, own: bool) -> tuple[Points, Tensor]:
    """Points in which the two units of a pair are equal, and the pair that each is about.

    In the row itself and in random surroundings; for pairs of f's own also above and below everything else.
    """
    rows, row = probe.rows, pairs.row
    around, more = _noise(probe, (2,), seed + 1)
    spread = _spread(probe)[row].view(-1, 1, 1)
    x0 = _put(rows.baseline[row], pairs, *[_of(rows.baseline[row], pairs.first)] * 2)
    moved = rows.x[row] + spread * around
    found = [_put(x, pairs, *[_of(x, pairs.first)] * 2) for x in (rows.x[row], moved)]
    if own:
        far = spread[:, 0] * (0.2 + _of(more.expand_as(moved), pairs.first).abs())
        for x in (rows.x[row], moved):
            found += [_put(x, pairs, *[_beyond(x, side, far)] * 2) for side in (1, -1)]
    numbers = torch.arange(len(pairs), device=row.device).repeat(len(found))
    return together([Points(x, x0, row) for x in found]), numbers


def _noise(probe: Probe, shape: tuple[int, ...], seed: int) -> Tensor:
    """Random numbers for every unit, the same for all rows; padding stays as it is."""
    draw = torch.Generator().manual_seed(seed)
    whole = (*shape, *probe.rows.x.shape[1:])
    return torch.randn(whole, generator=draw, dtype=torch.float64, device="cpu").to(probe.rows.x)


def _spread(probe: Probe) -> Tensor:
    """How large a row's numbers are, (rows,)."""
    largest = torch.maximum(probe.rows.x.abs(), probe.rows.baseline.abs()).flatten(1).amax(1)
    return torch.where(largest > 0, largest, 1.0)


def _of(x: Tensor, unit: Tensor) -> Tensor:
    return x[torch.arange(len(x), device=x.device), unit]


def _put(x: Tensor, pairs: Pairs, first: Tensor, second: Tensor) -> Tensor:
    x, at = x.clone(), torch.arange(len(x), device=x.device)
    x[at, pairs.first], x[at, pairs.second] = first, second
    return x


def _beyond(x: Tensor, side: int, far: Tensor) -> Tensor:
    """Values above (1) or below (−1) all of a point's, (points, depth)."""
    return x.amax(1) + far if side > 0 else x.amin(1) - far


def _told(values: Tensor) -> str:
    return f"{float(values[0]):.4g}" if len(values) == 1 else f"{float(values.sum()):.4g} in sum"
