"""Whether attributions jump where the score does not."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from whence.evaluation.answers.explanations import Ranker
from whence.evaluation.axioms.asker import Asker
from whence.evaluation.axioms.points import Points, Probe
from whence.evaluation.axioms.registry import axiom, share, size, worst
from whence.evaluation.axioms.table import Finding

_STEPS, _SUSPECTS = 8, 2
_HALVINGS, _MORE = 12, 16  # of every suspected step, and of those that still look like a jump


@dataclass(frozen=True, eq=False)
class Walks:
    """Straight lines from one input to another of the same row: what is held is the row's."""

    start: Tensor  # (walks, units, depth)
    end: Tensor
    row: Tensor  # (walks,)
    kind: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.row)

    def at(self, probe: Probe, which: Tensor, t: Tensor) -> Points:
        """The points at t of these walks."""
        a, b, row = self.start[which], self.end[which], self.row[which]
        return Points(torch.lerp(a, b, t.view(-1, 1, 1).to(a)), probe.rows.baseline[row], row)


@axiom("continuity", order=50, short="continuous", paper="Shrikumar, Greenside & Kundaje 2017, arXiv:1704.02685")
def continuity(ask: Asker) -> Finding:
    """Attributions do not jump where the score is continuous.

    On lines from the baseline to the row, between rows, between random points and across ties of two units, the steps
    with the largest changes of φ are halved up to 28 times, each time into the half that changes more. The number is
    what is left of the change, as a share of the largest φ on the line. Where no line met a kink of the score, at which
    the gradient jumps, none could have told: "not refuted".
    """
    walks = ask.probe.once("walks", lambda: lines(ask.probe, ask.seed))
    found = _walked(ask, walks)
    if found.verdict == "no":
        return found
    plain = Ranker("gradient", "gradient", {})
    met = ask.probe.once("kinks", lambda: _kinks(Asker(ask.probe, plain, ask.seed, ask.tolerance), walks))
    if met:
        return found
    return Finding(found.number, "not refuted", found.witness, "no line that was tried met a kink of the score")


def _kinks(ask: Asker, walks: Walks) -> bool:
    """Whether the gradient jumps on these lines."""
    try:
        return _walked(ask, walks).verdict == "no"
    except Exception:  # a score without a gradient
        return False


def _walked(ask: Asker, walks: Walks) -> Finding:
    probe, device = ask.probe, walks.row.device
    grid = torch.linspace(0.0, 1.0, _STEPS + 1, dtype=torch.float64, device=device)
    every = torch.arange(len(walks), device=device)
    phi = ask(walks.at(probe, every.repeat_interleave(len(grid)), grid.repeat(len(walks)))).phi
    phi = phi.unflatten(0, (len(walks), len(grid)))  # (walks, points, units, depth)
    scale = phi.abs().flatten(1).amax(1)
    scale = torch.maximum(scale, 1e-6 * scale.amax())  # what is nothing beside the rest does not jump
    change = (phi[:, 1:] - phi[:, :-1]).abs().flatten(2).amax(2)  # (walks, steps)
    step = change.topk(_SUSPECTS, 1).indices.flatten()
    walk = every.repeat_interleave(_SUSPECTS)
    low, high, at_low, at_high = grid[step], grid[step + 1], phi[walk, step], phi[walk, step + 1]
    for halving in range(_HALVINGS + _MORE):
        enough = ask.tolerance / 10 if halving < _HALVINGS else ask.tolerance
        left = (share(size(at_high - at_low), scale[walk]) > enough).nonzero().flatten()
        if not len(left):
            break
        middle = (low[left] + high[left]) / 2
        there = ask(walks.at(probe, walk[left], middle)).phi
        first = size(there - at_low[left]) > size(at_high[left] - there)
        low[left[~first]], high[left[first]] = middle[~first], middle[first]
        at_low[left[~first]], at_high[left[first]] = there[~first], there[first]
    jump, points = size(at_high - at_low), walks.at(probe, walk, high)
    moved = (probe.f(points) - probe.f(walks.at(probe, walk, low))).abs()
    return worst(
        ask, share(jump, scale[walk]), points,
        lambda p: f"{walks.kind[int(walk[p])]}, φ moves by {jump[p]:.3g} while the score moves by {moved[p]:.1g}",
    )  # fmt: skip


def lines(probe: Probe, seed: int) -> Walks:
    """From the baseline to each row, from row to row, between two random points, and across ties."""
    rows = probe.rows
    found: list[tuple[Tensor, Tensor, int, str]] = []
    after = rows.x.flatten(1).double().sum(1).argsort()  # whatever the order in which the rows were given
    following = dict(zip(after.tolist(), after.roll(-1).tolist(), strict=True))
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn((2, *rows.x.shape[1:]), generator=draw, dtype=torch.float64, device="cpu").to(rows.x)
    for row in range(len(rows)):
        x, x0 = rows.x[row], rows.baseline[row]
        spread = (x - x0).abs().max() if not torch.equal(x, x0) else x.new_ones(())
        real = 1 if probe.real is None else probe.real[row].to(x)[:, None]
        found.append((x0 + 0.03 * (x - x0), x, row, "from the baseline"))
        other = rows.x[following[row]]
        if not torch.equal(other, x):
            found.append((x, other, row, f"towards row {probe.numbers[following[row]]}"))
        found.append((x + spread * noise[0] * real, x + spread * noise[1] * real, row, "between random points"))
        for i, j in list(pairwise(probe.chosen(row)))[:1]:
            for edge, side in ((x.amax(0), 1), (x.amin(0), -1)):  # they are equal just beyond everything else
                high, low = x.clone(), x.clone()
                high[i], high[j] = edge + side * spread / 2, edge - side * spread / 3
                low[i], low[j] = high[j], high[i]
                found.append((high, low, row, f"across a tie of units {probe.place(i)} and {probe.place(j)}"))
    starts, ends, numbers, kinds = zip(*found, strict=True)
    row_of = torch.tensor(numbers, device=rows.x.device)
    return Walks(torch.stack(starts), torch.stack(ends), row_of, tuple(kinds))
