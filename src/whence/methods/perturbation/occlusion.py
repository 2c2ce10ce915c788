"""What the score loses when something is taken away: windows that slide over the input, or one unit at a time.

What is taken away gets its reference value; each element of a unit gets the unit's whole score.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from whence.errors import InputError, ParameterError, did_you_mean
from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.perturbation.coalitions import Coalitions, Players, listed, players
from whence.subject import Subject
from whence.subject.masks import real_units
from whence.subject.units import apart, block_numbers, channel_axis, explained_inputs, position_axes, shape_of
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
    "permutation",
    paper="Breiman 2001, doi:10.1023/A:1010933404324",
    order=120,
    aliases=("feature_permutation", "permutation_importance"),
    propagates=False,
    reference=True,
    at=False,
    permutes=True,
)
def permutation(subject: Subject, *, units: Any = "auto", function: Any = None) -> Answer:
    """What the score loses when a unit has other rows' values, φᵢ = f(x) − f(x with unit i permuted in the batch).

    Each unit has a random order of its own, by the seed; or `function(x, mask)` gives an input with the unit at the
    mask permuted. It needs at least two rows, and a row's values depend on the others.
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
def occlusion(
    subject: Subject,
    *,
    window: Any = None,
    stride: Any = None,
    edge: Literal["inside", "cut"] = "inside",
    units: Any = "auto",
) -> Answer:
    """What the score loses without a window of the input, f(x) − f(x with the window at the baseline), slid over it.

    A place that several windows cover gets the mean of their scores. `window` and `stride` are a number or one per
    axis, the last axes of the input; channels go together. For several inputs they may be a dict by input name, or a
    tuple of tuples. The default window is a quarter of each side of an image or signal, and one token or feature; the
    default stride is half a window. The last window ends where the input does ("inside"), or keeps to the stride and
    is cut off there ("cut"). `units` names what to remove instead of windows, as in leave_one_out.
    """
    if not (isinstance(units, str) and units == "auto"):
        if window is not None or stride is not None:
            raise ParameterError(
                "occlusion: units= and window= both say what is removed together.\n  Leave one of them out."
            )
        return _one_by_one(subject, units)
    pinned = subject.pinned()
    names = explained_inputs(pinned)
    windows = _per_input("window", window, names)
    strides = _per_input("stride", stride, names, alike=_is_nested(window))
    axes = {name: _axes(pinned, name, windows[name]) for name in names}
    numbers = apart({name: block_numbers(shape_of(pinned, name), axes[name]) for name in names})
    game = players(subject, numbers=numbers)
    sliding = _Sliding(pinned, axes, windows, strides, edge == "cut")
    lengths = torch.cat([_lengths(game, name, axes[name]) for name in names], 1)  # (rows, axes)
    groups = game.grouped(lambda *key: _slid(sliding, *key), by=lengths)
    played = game.play(groups, in_order=True)
    means = [_means(g.coalitions, v[:, :1] - v) for g, v in zip(groups, played.scores, strict=True)]
    return game.answer(played, means, besides=1)


def _one_by_one(subject: Subject, units: Any) -> Answer:
    game = players(subject, units)
    played = game.play(game.grouped(_each), in_order=True)
    return game.answer(played, [scores[:, :1] - scores[:, 1:-1] for scores in played.scores], besides=1)


def _each(n: int) -> Coalitions:
    """Everybody, then all but each player, then nobody."""

    def at(which: Tensor) -> Tensor:
        kept = torch.arange(1, n + 1, device="cpu") != which[:, None]
        return kept & (which <= n)[:, None]

    return Coalitions(n + 2, at, n + 1)


def _means(windows: Coalitions, lost: Tensor) -> Tensor:
    """For each player, the mean of what was lost (rows, windows, k) without the windows that hold it: (rows, n, k)."""
    rows, _, k = lost.shape
    columns = lost.movedim(1, 0).flatten(1)  # (windows, rows · k)
    total, times = torch.zeros((), device="cpu"), torch.zeros((), device="cpu")
    for which in torch.arange(1, windows.count - 1, device="cpu").split(_CHUNK):
        out = (~windows.at(which)).double()  # (windows, n)
        total, times = total + out.T @ columns[which], times + out.sum(0)[:, None]
    return (total / times).unflatten(1, (rows, k)).movedim(1, 0)


# ---- windows ----


@dataclass(frozen=True, eq=False)
class _Sliding:
    """What slides over each input, along which of its axes."""

    subject: Subject
    axes: Mapping[str, Sequence[int]]
    windows: Mapping[str, Any]
    strides: Mapping[str, Any]
    cut: bool  # the last window keeps to the stride


def _is_nested(given: Any) -> bool:
    return isinstance(given, tuple | list) and any(isinstance(one, tuple | list) for one in given)


def _per_input(what: str, given: Any, names: Sequence[str], alike: bool = False) -> dict[str, Any]:
    """What was given for each input; `alike` takes a tuple for one part per input."""
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                raise ParameterError(
                    f"occlusion: {what}= names {name!r}, which is not an explained input. "
                    f"{did_you_mean(str(name), names)}"
                )
        return {name: given.get(name) for name in names}
    if _is_nested(given) or (alike and isinstance(given, tuple | list)):
        if len(given) != len(names):
            raise ParameterError(
                f"occlusion: {what}={given!r} has {len(given)} parts, but {len(names)} inputs are explained.\n"
                "  Give one for each, or a dict by input name."
            )
        return dict(zip(names, given, strict=True))
    return dict.fromkeys(names, given)


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


def _slid(sliding: _Sliding, *lengths: int) -> Coalitions:
    """Everybody, then all but those in each window, then nobody; windows of one input do not reach into another."""
    parts: list[_Windows] = []
    first, left = 0, list(lengths)
    for name, over in sliding.axes.items():
        own, left = left[: len(over)], left[len(over) :]
        parts.append(_over(sliding, name, own, first))
        first = parts[-1].players.stop
    count = 2 + sum(len(part.begin) for part in parts)

    def at(which: Tensor) -> Tensor:
        kept = (which < count - 1)[:, None].repeat(1, first)
        before = 1  # the first coalition is everybody
        for part in parts:
            here = (which >= before) & (which < before + len(part.begin))
            kept[here, part.players] = ~part.hold(which[here] - before)
            before += len(part.begin)
        return kept

    few = count * first <= _FEW
    return listed(at(torch.arange(count, device="cpu")), count - 1) if few else Coalitions(count, at, count - 1)


def _over(sliding: _Sliding, name: str, lengths: list[int], first: int) -> _Windows:
    """The windows over one input whose positions these are, along each axis."""
    axes = sliding.axes[name]
    given = zip(_sides("window", sliding.windows[name], axes), lengths, strict=True)
    sides = [_side(sliding.subject, name, side, length) for side, length in given]
    steps = [_step(*pair) for pair in zip(_sides("stride", sliding.strides[name], axes), sides, strict=True)]
    starts = []
    for n, side, step in zip(lengths, sides, steps, strict=True):
        last = -(-(n - side) // step) * step if sliding.cut else n - side
        starts.append([*range(0, n - side, step), last])
    begin = _product(starts)
    end = begin + torch.tensor(sides, dtype=torch.long, device="cpu")
    return _Windows(first, lengths, begin, torch.minimum(end, torch.tensor(lengths, dtype=torch.long, device="cpu")))


def _product(axes: Iterable[Sequence[int]]) -> Tensor:
    """All combinations of one number from each axis, (m, axes), in the order of memory."""
    numbers = [torch.tensor(axis, dtype=torch.long, device="cpu") for axis in axes]
    if not numbers:
        return torch.zeros(1, 0, dtype=torch.long, device="cpu")
    return torch.stack(torch.meshgrid(*numbers, indexing="ij"), -1).flatten(0, -2)


def _lengths(game: Players, name: str, axes: Sequence[int]) -> Tensor:
    """How many positions there are along each axis, without padding: (1 or rows, axes)."""
    shape = shape_of(game.subject, name)
    real = None if game.subject.whole else real_units(game.subject, name, shape)
    lengths = torch.tensor([[shape[axis] for axis in axes]], dtype=torch.long, device="cpu").view(1, len(axes))
    if real is not None and 1 in axes:
        lengths = lengths.repeat(len(real), 1)
        lengths[:, list(axes).index(1)] = real.sum(1).cpu()
    return lengths.expand(len(game.score), -1)


def _sides(what: str, given: Any, axes: Sequence[int]) -> list[Any]:
    """What was given for each axis, or None."""
    sides = list(given) if isinstance(given, tuple | list) else [given] * len(axes)
    whole = all(is_whole(s) and int(s) > 0 for s in sides)
    if len(sides) != len(axes) or not (whole or given is None):
        raise not_allowed(what, given, f"a whole number, at least 1, or a tuple of {len(axes)} of them", "occlusion")
    return sides


def _side(subject: Subject, name: str, side: Any, length: int) -> int:
    if side is None:
        return max(1, length // 4) if channel_axis(subject, name) == 1 else 1
    if side > length:
        raise InputError(
            f"occlusion: the window {side} is larger than the input {name!r}, which has {length} positions in a row.\n"
            f"  Give a window of at most {length}."
        )
    return int(side)


def _step(stride: Any, side: int) -> int:
    if stride is not None and stride > side:
        raise ParameterError(
            f"occlusion: the stride {stride} is larger than the window {side}, so some positions would never be "
            f"covered.\n  Give a stride of at most {side}."
        )
    return int(stride or max(1, side // 2))
