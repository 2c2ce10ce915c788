"""What the score loses when something is taken away: windows that slide over the input, or one unit at a time.

What is taken away gets its reference value; each element of a unit gets the unit's whole score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError, ParameterError
from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.perturbation.coalitions import Coalitions, Players, counted, listed, players
from whence.subject import Subject
from whence.subject.masks import real_units
from whence.subject.units import block_numbers, channel_axis, explained_inputs, position_axes, shape_of
from whence.util.checks import is_whole, not_allowed

_CHUNK = 1024  # windows at a time
_FEW = 1 << 22  # bytes of coalitions that are kept: they are read twice


@method(
    "leave_one_out",
    paper="Li, Monroe & Jurafsky 2016, arXiv:1612.08220",
    order=120,
    aliases=("loo", "ablation", "feature_ablation"),
    propagates=False,
    reference=True,
)
def leave_one_out(subject: Subject, *, units: Any = "auto") -> Answer:
    """What the score loses without a unit, φᵢ = f(x) − f(x with unit i at the baseline), n + 1 evaluations per row.

    Every element of a unit gets the unit's score.
    """
    return _one_by_one(subject, units)


@method(
    "occlusion",
    paper="Zeiler & Fergus 2014, arXiv:1311.2901",
    order=120,
    aliases=("sliding_window",),
    propagates=False,
    reference=True,
)
def occlusion(subject: Subject, *, window: Any = None, stride: Any = None, units: Any = "auto") -> Answer:
    """What the score loses without a window of the input, f(x) − f(x with the window at the baseline), slid over it.

    A place that several windows cover gets the mean of their scores. `window` and `stride` are a number or one per
    axis, the last axes of the input; channels go together. The default window is a quarter of each side of an image
    or signal, and one token or feature; the default stride is half a window; the last window ends where the input
    does. `units` names what to remove instead of windows, as in leave_one_out.
    """
    if not (isinstance(units, str) and units == "auto"):
        if window is not None or stride is not None:
            raise ParameterError(
                "occlusion: units= and window= both say what is removed together.\n  Leave one of them out."
            )
        return _one_by_one(subject, units)
    pinned = subject.pinned()
    axes = {name: _axes(pinned, name, window) for name in explained_inputs(pinned)}
    game = players(subject, numbers={name: block_numbers(shape_of(pinned, name), axes[name]) for name in axes})
    windows = [_slid(game, row, axes, window, stride) for row in range(pinned.rows)]
    scores = game.evaluate(windows)
    values = game.spread([_means(row, score[:1] - score) for row, score in zip(windows, scores, strict=True)])
    return Answer(values, per_row=counted(scores))


def _one_by_one(subject: Subject, units: Any) -> Answer:
    game = players(subject, units)
    scores = game.evaluate([_each(n) for n in game.counts])
    return Answer(game.spread([row[:1] - row[1:] for row in scores]), per_row=counted(scores))


def _each(n: int) -> Coalitions:
    """Everything, then all but each player."""
    return Coalitions(n + 1, lambda which: torch.arange(1, n + 1, device="cpu") != which[:, None])


def _means(windows: Coalitions, lost: Tensor) -> Tensor:
    """For each player, the mean of what was lost (windows, k) without the windows that hold it: (n, k)."""
    total, times = torch.zeros((), device=lost.device), torch.zeros((), device=lost.device)
    for which in torch.arange(1, windows.count, device="cpu").split(_CHUNK):
        out = (~windows.at(which)).double()  # (windows, n)
        total, times = total + out.T @ lost[which], times + out.sum(0)[:, None]
    return total / times


# ---- windows ----


def _axes(subject: Subject, name: str, window: Any) -> list[int]:
    """The axes over which windows slide: where places are, or the last ones for a tuple."""
    if not isinstance(window, tuple | list):
        return position_axes(subject, name)
    shape = shape_of(subject, name)
    every = [axis for axis in range(1, len(shape)) if axis == 1 or channel_axis(subject, name) != 2]
    if not 1 <= len(window) <= len(every):
        raise ParameterError(
            f"occlusion: window={window!r} has {len(window)} sides, but the input {name!r} {tuple(shape)} has "
            f"{len(every)} to slide along.\n  Give one number, or one for each of the last axes."
        )
    return every[-len(window) :]


@dataclass(frozen=True, eq=False)
class _Windows:
    """Windows over one input's players, which fill a grid: where each window begins and ends, (windows, axes)."""

    first: int  # player of this input
    lengths: list[int]  # of the grid
    begin: Tensor
    end: Tensor

    @property
    def players(self) -> slice:
        return slice(self.first, self.first + math.prod(self.lengths))

    def hold(self, which: Tensor) -> Tensor:
        """Whether each of these windows holds each player, bool (m, n)."""
        begin, end = self.begin[which], self.end[which]
        inside = torch.ones(len(which), 1, dtype=torch.bool, device="cpu")
        for axis, length in enumerate(self.lengths):
            place = torch.arange(length, device="cpu")
            along = (place >= begin[:, axis, None]) & (place < end[:, axis, None])
            inside = (inside[:, :, None] & along[:, None]).flatten(1)
        return inside


def _slid(game: Players, row: int, axes: dict[str, list[int]], window: Any, stride: Any) -> Coalitions:
    """All players, then all but those in each window; windows of one input do not reach into another."""
    parts: list[_Windows] = []
    first = 0
    for name, over in axes.items():
        lengths = _lengths(game, name, row, over)
        sides = [_side(game, name, row, *pair) for pair in zip(_sides("window", window, over), lengths, strict=True)]
        steps = [_step(*pair) for pair in zip(_sides("stride", stride, over), sides, strict=True)]
        starts = [[*range(0, n - s, t), n - s] for n, s, t in zip(lengths, sides, steps, strict=True)]
        begin = _product(starts)
        end = begin + torch.tensor(sides, dtype=torch.long, device="cpu")
        parts.append(_Windows(first, lengths, begin, end))
        first = parts[-1].players.stop

    def at(which: Tensor) -> Tensor:
        kept = torch.ones(len(which), game.counts[row], dtype=torch.bool, device="cpu")
        before = 1  # the first coalition is everybody
        for part in parts:
            here = (which >= before) & (which < before + len(part.begin))
            kept[here, part.players] = ~part.hold(which[here] - before)
            before += len(part.begin)
        return kept

    count = 1 + sum(len(part.begin) for part in parts)
    few = count * game.counts[row] * len(game.counts) <= _FEW
    return listed(at(torch.arange(count, device="cpu"))) if few else Coalitions(count, at)


def _product(axes: Iterable[Sequence[int]]) -> Tensor:
    """All combinations of one number from each axis, (m, axes), in the order of memory."""
    numbers = [torch.tensor(axis, dtype=torch.long, device="cpu") for axis in axes]
    if not numbers:
        return torch.zeros(1, 0, dtype=torch.long, device="cpu")
    return torch.stack(torch.meshgrid(*numbers, indexing="ij"), -1).flatten(0, -2)


def _lengths(game: Players, name: str, row: int, axes: Sequence[int]) -> list[int]:
    """How many positions there are along each axis, without padding."""
    shape = shape_of(game.subject, name)
    real = real_units(game.subject, name, shape)
    return [shape[axis] if real is None or axis != 1 else int(real[row].sum()) for axis in axes]


def _sides(what: str, given: Any, axes: Sequence[int]) -> list[Any]:
    """What was given for each axis, or None."""
    sides = list(given) if isinstance(given, tuple | list) else [given] * len(axes)
    whole = all(is_whole(s) and int(s) > 0 for s in sides)
    if len(sides) != len(axes) or not (whole or given is None):
        raise not_allowed(what, given, f"a whole number, at least 1, or a tuple of {len(axes)} of them", "occlusion")
    return sides


def _side(game: Players, name: str, row: int, side: Any, length: int) -> int:
    if side is None:
        return max(1, length // 4) if channel_axis(game.subject, name) == 1 else 1
    if side > length:
        raise InputError(
            f"occlusion: the window {side} is larger than the input {name!r}, which has {length} positions in row "
            f"{row}.\n  Give a window of at most {length}."
        )
    return int(side)


def _step(stride: Any, side: int) -> int:
    if stride is not None and stride > side:
        raise ParameterError(
            f"occlusion: the stride {stride} is larger than the window {side}, so some positions would never be "
            f"covered.\n  Give a stride of at most {side}."
        )
    return int(stride or max(1, side // 2))
