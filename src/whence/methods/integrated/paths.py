"""Paths from baselines to the input, and the model's gradients along them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import derivative
from whence.errors import ParameterError
from whence.rules.chords import chords
from whence.subject import Subject
from whence.subject.batching import Segment, in_batches, in_chains, values_of
from whence.subject.noise import normal
from whence.util.keys import input_of, inputs_of

Values = dict[str, Tensor]
Starts = dict[tuple[int, int], Tensor]  # by row and path: a classifier's logits where the path begins
At = Callable[[Tensor, Tensor, Tensor], tuple[Values, Values]]


@dataclass(frozen=True, eq=False)
class Paths:
    """Weighted paths for each row; `at(rows, which, alpha)` are the points there and their velocity."""

    weights: tuple[float, ...]
    at: At


def straight(ends: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]], weights: Sequence[float]) -> Paths:
    """Straight lines, each from one value to another, by explained value."""
    keys = list(ends[0][0])

    def points_at(rows: Tensor, which: Tensor, alpha: Tensor) -> tuple[Values, Values]:
        values, velocity = {}, {}
        for key in keys:
            start, end = (_picked([pair[side][key] for pair in ends], rows, which) for side in (0, 1))
            values[key] = torch.lerp(start, end, _shaped(alpha, end))  # exactly the end at 1
            velocity[key] = end - start
        return values, velocity

    return Paths(tuple(weights), points_at)


def from_baselines(subject: Subject) -> Paths:
    """Straight lines from each of the subject's baselines to its values, all of the same weight."""
    ends = [(baseline.values(subject), subject.pinned().values) for baseline in subject.baselines]
    return straight(ends, [1 / len(ends)] * len(ends))


def noisy(subject: Subject, deviation: Mapping[str, Tensor]) -> Paths:
    """Straight lines from each baseline to the values with noise; `which` is a draw's number times the baselines'."""
    pinned, count = subject.pinned(), len(subject.baselines)
    starts = [baseline.values(subject) for baseline in subject.baselines]

    def points_at(rows: Tensor, which: Tensor, alpha: Tensor) -> tuple[Values, Values]:
        values, velocity = {}, {}
        for key, x in pinned.values.items():
            end = x.index_select(0, rows.to(x.device))
            for draw in (which // count).unique().tolist():
                here = (which // count == draw).nonzero().flatten()
                some, at = pinned.take(rows[here]), here.to(x.device)
                noise = normal(some, key, some.values[key], draw)
                end[at] = end[at] + noise * deviation[key].index_select(0, rows[here].to(x.device))
            start = _picked([one[key] for one in starts], rows, which % count)
            values[key] = torch.lerp(start, end, _shaped(alpha, end))
            velocity[key] = end - start
        return values, velocity

    return Paths((1 / count,) * count, points_at)


def without_velocity(paths: Paths) -> Paths:
    """The same points with a velocity of 1, such that slopes are gradients."""

    def at(rows: Tensor, which: Tensor, alpha: Tensor) -> tuple[Values, Values]:
        values, _ = paths.at(rows, which, alpha)
        return values, {key: torch.ones_like(value) for key, value in values.items()}

    return Paths(paths.weights, at)


def _picked(values: list[Tensor], rows: Tensor, which: Tensor) -> Tensor:
    if len(values) == 1:
        return values[0].index_select(0, rows.to(values[0].device))
    return torch.stack([values[j][i] for i, j in zip(rows.tolist(), which.tolist(), strict=True)])


def _shaped(alpha: Tensor, like: Tensor) -> Tensor:
    return alpha.to(like).view(-1, *[1] * (like.dim() - 1))


def polyline(subject: Subject, points: Any) -> Paths:
    """Straight lines from way-point to way-point, the last of which is the input."""
    if not isinstance(points, list | tuple | Tensor) or len(points) < 2:
        raise ParameterError(
            f"path={_short(points)} is not a path.\n"
            "  Give a function, or at least two way-points that end with the input."
        )
    values = [_values(subject, point, f"Way-point {i}") for i, point in enumerate(points)]
    _check_end(subject, values[-1])
    return straight(list(pairwise(values)), [1.0] * (len(values) - 1))


def curve(subject: Subject, function: Callable[[Tensor], Any]) -> Paths:
    """The path γ(α) that a function gives, and its speed dγ/dα by automatic differentiation."""
    keys = list(subject.pinned().values)
    first = next(iter(subject.pinned().values.values()))
    dtype = torch.promote_types(first.dtype, torch.float32)

    @functools.lru_cache(maxsize=256)
    def at(alpha: float) -> tuple[Values, Values]:
        def flat(point: Tensor) -> tuple[Tensor, ...]:
            values = _values(subject, function(point), f"path({alpha:g})")
            return tuple(values[key] for key in keys)

        point = torch.tensor(alpha, dtype=dtype, device=first.device)
        with torch.enable_grad():
            values, speed = torch.autograd.functional.jvp(flat, point, torch.ones_like(point))
        return dict(zip(keys, values, strict=True)), dict(zip(keys, speed, strict=True))

    start, middle, end = (at(alpha)[0] for alpha in (0.0, 0.5, 1.0))
    _check_end(subject, end)
    moves = any(not torch.equal(start[key], end[key]) or not torch.equal(start[key], middle[key]) for key in keys)
    if moves and not any(bool(at(a)[1][key].any()) for key in keys for a in (0.25, 0.5, 0.75)):
        raise ParameterError(
            "path moves, but its derivative by α is 0: it does not compute with the tensor that it is given.\n"
            "  Write it with torch ops on α, or give way-points."
        )

    def points_at(rows: Tensor, which: Tensor, alpha: Tensor) -> tuple[Values, Values]:
        points = [at(a) for a in alpha.tolist()]
        sides = []
        for side in (0, 1):
            chosen = zip(rows.tolist(), points, strict=True)
            by_key = [{key: point[side][key][row] for key in keys} for row, point in chosen]
            sides.append({key: torch.stack([one[key] for one in by_key]) for key in keys})
        return sides[0], sides[1]

    return Paths((1.0,), points_at)


def _values(subject: Subject, given: Any, what: str) -> Values:
    """A point of a path by explained value, for this subject's rows."""
    names = inputs_of(subject.pinned().values)
    if isinstance(given, tuple) and len(given) == len(names):
        given = dict(zip(names, given, strict=True))
    by_key = {}
    for key, x in subject.pinned().values.items():
        name = input_of(key)
        value = given.get(name) if isinstance(given, Mapping) else given
        whole = (subject.total_rows, *x.shape[1:])
        if not isinstance(value, Tensor) or tuple(value.shape) not in (whole, x.shape[1:], (1, *x.shape[1:])):
            raise ParameterError(
                f"{what} of the path has {_short(value)} for {name!r}.\n"
                f"  Give a tensor of the shape {whole}, or one row of it; a dict or tuple for several inputs."
            )
        if not bool(torch.isfinite(value).all()):
            raise ParameterError(f"{what} of the path holds numbers that are not finite.")
        value = value.to(x)
        per_row = tuple(value.shape) == whole
        by_key[key] = value[list(subject.row_numbers)] if per_row else value.expand_as(x)
    return by_key


def _check_end(subject: Subject, end: Values) -> None:
    for key, x in subject.pinned().values.items():
        apart = (end[key] - x).abs().amax()
        if float(apart) > 1e-4 * max(float(x.abs().amax()), 1e-30):
            raise ParameterError(
                f"The path does not end at the input: {key!r} is off by up to {float(apart):.3g}.\n"
                "  Its last way-point, or its value at α = 1, must be the input itself."
            )


def _short(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:60]


# ---- derivatives ----


def slopes(
    subject: Subject, paths: Paths, rows: Tensor, which: Tensor, alpha: Tensor, starts: Starts | None = None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For some points at a time: which, their scores, and dγ/dα ⊙ ∇f, all explained values in one vector."""

    def work(run: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        there_alpha = values_of(items, alpha, 1)
        values, velocity = paths.at(run, values_of(items, which, 0), there_alpha)
        there = subject.take(run).valued(values)
        gradients = (there.run_again() if subject.record.backwards else there.run({"*": derivative})).pull()
        assert there.measured.score is not None
        if starts is not None:
            _note_starts(starts, there, run, values_of(items, which, 0), there_alpha)
        return there.measured.score[:, 0], joined({key: m[:, 0] * velocity[key] for key, m in gradients.items()})

    for items, (score, some) in in_batches(subject, rows, work, cost=0.85):
        if bool((items < 0).any()):
            real = (items >= 0).nonzero()[:, 0]
            items, score, some = items[real], score[real.to(score.device)], some[real.to(some.device)]
        yield items, score, some


def _note_starts(starts: Starts, there: Subject, rows: Tensor, which: Tensor, alpha: Tensor) -> None:
    logits = there.measured.logits
    if logits is not None:
        begin = (alpha == 0).nonzero()[:, 0]
        keys = zip(rows[begin].tolist(), which[begin].tolist(), strict=True)
        starts.update(zip(keys, logits[begin.to(logits.device)], strict=True))


def contributions(
    subject: Subject, paths: Paths, chains: Sequence[tuple[int, int, Sequence[float]]], starts: Starts
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Along each chain (row, path, α), each piece's contributions, all explained values in one vector, and the scores.

    A chain may come in several parts, in order, of which each begins with the point that the one before ended with.
    """

    def work(segments: Sequence[Segment]) -> tuple[Tensor, Tensor]:
        there = [(*chains[chain][:2], chains[chain][2][first : first + points]) for chain, first, points in segments]
        points = torch.tensor([len(alphas) for *_, alphas in there], device="cpu")
        rows, which = (torch.tensor([one[i] for one in there], device="cpu").repeat_interleave(points) for i in (0, 1))
        alpha = torch.tensor([a for *_, alphas in there for a in alphas], dtype=torch.float64, device="cpu")
        values, _ = paths.at(rows, which, alpha)
        some = subject.take(rows).valued(values)
        slope = some.run(chords(len(rows)), ahead=True).pull()
        assert some.measured.score is not None
        _note_starts(starts, some, rows, which, alpha)
        steps = {key: value.diff(dim=0) for key, value in values.items()}
        return some.measured.score[:, 0], joined({key: m[:-1, 0] * steps[key] for key, m in slope.items()})

    for segments, (score, parts) in in_chains(subject, [len(alphas) for *_, alphas in chains], work):
        at = 0
        for chain, _, points in segments:
            yield chain, parts[at : at + points - 1], score[at : at + points]
            at += points


def joined(values: Mapping[str, Tensor]) -> Tensor:
    """One vector per row of all explained values, in at least single precision."""
    flat = [value.reshape(len(value), -1) for value in values.values()]
    whole = torch.cat(flat, 1) if len(flat) > 1 else flat[0]
    return whole.to(torch.promote_types(whole.dtype, torch.float32))


def parted(whole: Tensor, like: Mapping[str, Tensor]) -> Values:
    """The reverse of `joined`."""
    sizes = [value[0].numel() for value in like.values()]
    parts = whole.split(sizes, 1)
    return {key: part.reshape(-1, *like[key].shape[1:]).to(like[key]) for key, part in zip(like, parts, strict=True)}
