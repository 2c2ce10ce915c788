"""Whether attributions jump where the score does not."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.evaluation.axioms.asker import Asker
from whence.evaluation.axioms.points import Points
from whence.evaluation.axioms.registry import axiom, share, size, worst
from whence.evaluation.axioms.table import Finding

_STEPS, _HALVINGS, _SUSPECTS = 16, 12, 2


@axiom("continuity", order=50, short="continuous", paper="Shrikumar, Greenside & Kundaje 2017, arXiv:1704.02685")
def continuity(ask: Asker) -> Finding:
    """Attributions do not jump where the score is continuous.

    On the line from the baseline to the input the steps with the largest changes of φ are halved up to twelve times,
    each time into the half that changes more. The number is what is left of the change, as a share of the row's
    largest φ.
    """
    rows = len(ask.probe.rows)
    numbers = ask.probe.rows.row
    grid = torch.linspace(0.03, 1.0, _STEPS + 1, dtype=torch.float64, device=numbers.device)
    phi = ask(_on_line(ask, grid.repeat(rows), numbers.repeat_interleave(len(grid)))).phi
    phi = phi.unflatten(0, (rows, len(grid)))  # (rows, points, units, depth)
    scale = phi.abs().flatten(1).amax(1)
    change = (phi[:, 1:] - phi[:, :-1]).abs().flatten(2).amax(2)  # (rows, steps)
    step = change.topk(min(_SUSPECTS, _STEPS), 1).indices  # (rows, suspects)
    row = numbers.repeat_interleave(step.shape[1])
    step = step.flatten()
    low, high, at_low, at_high = grid[step], grid[step + 1], phi[row, step], phi[row, step + 1]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        there = ask(_on_line(ask, middle, row)).phi
        first = (size(there - at_low) > size(at_high - there)).view(-1, *[1] * (there.dim() - 1))
        low, high = torch.where(first.flatten(), low, middle), torch.where(first.flatten(), middle, high)
        at_low, at_high = torch.where(first, at_low, there), torch.where(first, there, at_high)
        if bool((share(size(at_high - at_low), scale[row]) <= ask.tolerance / 10).all()):
            break
    left, points = size(at_high - at_low), _on_line(ask, high, row)
    moved = (ask.probe.f(points) - ask.probe.f(_on_line(ask, low, row))).abs()
    return worst(
        ask, share(left, scale[row]), points,
        lambda p: f"φ moves by {left[p]:.3g} while the score moves by {moved[p]:.1g}",
    )  # fmt: skip


def _on_line(ask: Asker, t: Tensor, row: Tensor) -> Points:
    """Points x' + t·(x − x') of these rows."""
    x, x0 = ask.probe.rows.x[row], ask.probe.rows.baseline[row]
    return Points(x0 + t.view(-1, 1, 1).to(x) * (x - x0), x0, row)
