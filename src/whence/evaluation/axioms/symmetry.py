"""What two features get that play the same part."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from whence.evaluation.axioms.asker import Asker, NotMeasured
from whence.evaluation.axioms.functions import ORDER, Symmetric
from whence.evaluation.axioms.points import Points, Probe, together
from whence.evaluation.axioms.registry import axiom, share, size, worst
from whence.evaluation.axioms.table import Finding

_PAIRS = 3  # in each row


@axiom("symmetry", order=40, short="symmetric", paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365")
def symmetry(ask: Asker) -> Finding:
    """Two features that may be swapped, equal in the input and equal in the baseline, get the same.

    Where the model is not symmetric by itself, f(x) + f(x with both swapped) is. The number is the difference, as a
    share of the row's largest attribution.
    """
    points, first, second, order = pairs(ask.probe)
    function, note = symmetrised(ask.probe, order, points, ask.seed)
    extra = {ORDER: order}
    answer = ask.aligned(ask(points, function, extra))
    one, two = answer.of(first), answer.of(second)
    apart = (one - two).abs().amax(1)
    return worst(
        ask, share(apart, size(answer.phi)), points,
        lambda p: f"units {ask.probe.place(int(first[p]))} and {ask.probe.place(int(second[p]))} "
        f"get {_told(one[p])} and {_told(two[p])}",
        note=note,
    )  # fmt: skip


def pairs(probe: Probe) -> tuple[Points, Tensor, Tensor, Tensor]:
    """Rows in which two units are made equal, these units, and the order that swaps them."""
    found, ends = [], []
    for row in range(len(probe.rows)):
        chosen = probe.chosen(row)
        x, x0 = probe.rows.x[row], probe.rows.baseline[row]
        for i, j in list(pairwise(chosen))[:_PAIRS]:
            same, same0 = x.clone(), x0.clone()
            same[j], same0[j] = x[i], x0[i]
            found.append(Points(same[None], same0[None], torch.tensor([row], device=x.device)))
            ends.append((i, j))
    if not found:
        raise NotMeasured("there is one feature only")
    points = together(found)
    first, second = torch.tensor(ends, device=points.x.device).unbind(1)
    order = torch.arange(probe.rows.x.shape[1], device=points.x.device).repeat(len(points), 1)
    at = torch.arange(len(points), device=points.x.device)
    order[at, first], order[at, second] = second, first
    return points, first, second, order


def symmetrised(probe: Probe, order: Tensor, points: Points, seed: int) -> tuple[nn.Module, str]:
    """The score, if swapping changes it nowhere that was tried; else the sum over both orders."""
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(points.x.shape, generator=draw, dtype=torch.float64, device="cpu").to(points.x)
    moved = Points(points.x + noise, points.baseline, points.row)
    swapped = Points(moved.x.gather(1, order[..., None].expand_as(moved.x)), points.baseline, points.row)
    one, two = probe.f(moved), probe.f(swapped)
    if bool(((one - two).abs() <= 1e-9 * one.abs().amax()).all()):
        return probe.score, "the model is symmetric by itself"
    return Symmetric(probe.score, probe.name, probe.swapped), "of f(x) + f(x with both swapped)"


def _told(values: Tensor) -> str:
    return f"{float(values[0]):.4g}" if len(values) == 1 else f"{float(values.sum()):.4g} in sum"
