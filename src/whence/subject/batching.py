"""Many evaluations in few passes, each of as many rows as the model, the target and the memory allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from whence.engine.blame import out_of_memory
from whence.subject.subject import Subject

T = TypeVar("T")
Segment = tuple[int, int, int]  # of a chain: its number, the first point, how many
_FEW_ROWS, _FEW_BYTES = 512, 48 << 20  # a pass takes at least so many rows if their activations need no more bytes
_LINKS, _LINK_BYTES = 12, 5 << 28  # the same for points that need their neighbours, of which every cut costs one
_MANY_ROWS, _MANY_BYTES = 4096, 8 << 20  # and for rows so small that calls cost more than what they work on


def in_batches(
    subject: Subject, rows: Tensor, work: Callable[[Tensor, Tensor], T], *, cost: float = 1.0
) -> Iterator[tuple[Tensor, T]]:
    """Call `work(rows, items)` for items that each belong to a row, in order and in batches; yields items and results.

    Where a row's score depends on its position in the batch, every pass has all rows, and the item −1 is a filler. A
    pass takes about the memory of a forward and a backward pass of the user's batch, `cost` being the memory of one
    item relative to a row, and a few megabytes at least; when memory runs out, the batches are halved.
    """
    in_position = not rows_are_independent(subject)
    queue = deque(
        _in_position(subject, rows)
        if in_position
        else _packed(subject, rows, torch.arange(len(rows), device="cpu"), cost)
    )
    while queue:
        run, items = queue.popleft()
        try:
            result = work(run, items)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(run) < 2 or in_position:
                raise
            subject.record.max_rows = len(run) // 2
            rest = torch.cat([items, *(more for _, more in queue)])
            queue = deque(_packed(subject, rows, rest, cost))
            continue
        yield items, result


def in_chains(
    subject: Subject, lengths: Sequence[int], work: Callable[[Sequence[Segment]], T], *, cost: float = 1.0
) -> Iterator[tuple[Sequence[Segment], T]]:
    """Call `work(segments)` for chains of so many points, of which neighbours must be in one pass.

    A chain that does not fit goes on in the next pass with the point where it was cut; a pass has two rows at least.
    Otherwise as `in_batches` for independent rows. Yields the segments of each pass, and the result.
    """
    most = rows_per_pass(subject, cost, _LINKS, _LINK_BYTES)
    queue = deque(_cut([(chain, 0, points) for chain, points in enumerate(lengths)], most))
    while queue:
        segments = queue.popleft()
        try:
            result = work(segments)
        except (RuntimeError, MemoryError) as error:
            points = sum(points for _, _, points in segments)
            if not out_of_memory(error) or points < 4:
                raise
            subject.record.max_rows = points // 2
            queue = deque(_cut([*segments, *(one for some in queue for one in some)], points // 2))
            continue
        yield segments, result


def _cut(segments: Sequence[Segment], most: int) -> list[list[Segment]]:
    """Passes of about the same size, none larger than `most` (or 2)."""
    total = sum(points for _, _, points in segments)
    size = max(2, min(most, -(-total // max(1, -(-total // max(most, 1)))) + 1))
    passes: list[list[Segment]] = []
    room = 0
    for chain, first, points in segments:
        end = first + points
        while first < end - 1:
            if room < 2:
                passes.append([])
                room = size
            some = min(room, end - first)
            passes[-1].append((chain, first, some))
            room -= some
            first += some - 1
    return passes


def values_of(items: Tensor, values: Tensor, filler: float) -> Tensor:
    """The value of each item, and `filler` for the item −1."""
    return torch.where(items < 0, values.new_tensor(filler), values[items.clamp(min=0)])


def _packed(subject: Subject, rows: Tensor, items: Tensor, cost: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of as many items as fit, whatever their rows."""
    for some in items.split(rows_per_pass(subject, cost)):
        yield rows[some], some


def _in_position(subject: Subject, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of all rows, each with its next item."""
    waiting: list[deque[int]] = [deque() for _ in range(subject.rows)]
    for item, row in enumerate(rows.tolist()):
        waiting[row].append(item)
    for _ in range(max(map(len, waiting))):
        items = torch.tensor([one.popleft() if one else -1 for one in waiting], device="cpu")
        yield torch.arange(subject.rows, device="cpu"), items


def rows_per_pass(subject: Subject, cost: float, *limits: int) -> int:
    """How many items go into one pass, `cost` being the memory of one relative to a row."""
    if subject.batch_size is not None:
        most = subject.batch_size
    else:
        most = max(int(subject.total_rows / cost), _few(subject, cost, *limits))
    if subject.memory is not None:
        from whence.subject.memory import most_rows

        most = most_rows(subject, most)
    return max(1, min(most, subject.record.max_rows or most))


def _few(subject: Subject, cost: float, *limits: int) -> int:
    """The items that go into one pass however few rows the user gave."""
    limits, size = (_FEW_ROWS, _FEW_BYTES, *limits), max(subject.record.bytes_per_row, 1)
    few = max(min(rows, int(room // size)) for rows, room in zip(limits[::2], limits[1::2], strict=True))
    # small rows are as many whatever they cost: beyond a processor's cache a larger pass takes longer per row
    return max(int(few / cost), min(_MANY_ROWS, int(_MANY_BYTES // size)))


def shortest_pass(subject: Subject) -> int:
    """How many points `in_chains` puts into a pass at least, if there are so many; the same for any rows."""
    most = subject.batch_size or _few(subject, 1.0, _LINKS, _LINK_BYTES)
    return max(2, min(most, subject.record.max_rows or most))


def rows_are_independent(subject: Subject) -> bool:
    """Whether a row has the same score at another position, in a batch of another size.

    A target function may close over one entry per row, a fixed input may belong to the rows in a way that cannot be
    seen, and a function given as the model may hold something per row. One pass finds out: its rows are moved on by one
    position, and the first comes twice.
    """
    fixed = [value for name, value in subject.inputs.items() if subject.input_roles.get(name, "fixed") == "fixed"]
    plain = isinstance(subject.model, nn.Module) and not (callable(subject.target) or _takes_statistics(subject.model))
    if plain and all(_is_plainly_per_row(value, subject.rows) for value in fixed):
        return True
    record = subject.record
    if record.independent is None:
        score = subject.measured.score
        score = subject.pinned().run(gradient=False).score if score is None else score
        order = torch.tensor([0, *range(subject.rows)][: subject.batch_size], device="cpu")
        record.independent = _has_scores(subject.take(order), score[order.to(score.device)])
    return record.independent


def _takes_statistics(model: nn.Module) -> bool:
    """Whether a batch norm has no statistics of its own, and takes those of the rows that it gets."""
    return any(isinstance(module, _BatchNorm) and module.running_mean is None for module in model.modules())


def _is_plainly_per_row(value: Any, rows: int) -> bool:
    """Whether an input clearly has one entry per row, or nothing to do with the rows."""
    if isinstance(value, Tensor):
        return value.dim() > 0 and len(value) == rows and rows not in value.shape[1:]
    return value is None or isinstance(value, str | int | float)


def _has_scores(moved: Subject, expected: Tensor) -> bool:
    try:
        done = moved.run(gradient=False)
    except Exception:  # whatever the model or the target raises for another number of rows
        return False
    near = 0.05 if torch.finfo(done.held.dtype).bits < 32 else 1e-3
    return bool(((done.score - expected).abs() <= near * (expected.abs() + 0.01 * expected.abs().max())).all())
