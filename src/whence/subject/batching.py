"""Many evaluations in few passes: as many rows at once as the model, the target and the memory allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from whence.engine.blame import out_of_memory
from whence.subject.subject import Subject

T = TypeVar("T")
_SMALL, _FEW = 8 << 20, 64  # so many rows go into one pass at least, as long as their activations have so few bytes


def batches(
    subject: Subject, rows: Tensor, work: Callable[[Tensor, Tensor], T], *, cost: float = 1.0
) -> Iterator[tuple[Tensor, T]]:
    """Do `work(rows, items)` for items that each stand in a row of the subject, in order and as many at once as fit.

    Where rows must keep their places, every pass has all of them, and an item −1 only fills its place. A pass takes
    about the memory of a forward+backward of the user's batch, `cost` being one item's share of that against a row's,
    and a few megabytes at least; out of memory, passes are halved.
    """
    bound = not _free(subject)
    queue = deque(
        _in_place(subject, rows) if bound else _packed(subject, rows, torch.arange(len(rows), device="cpu"), cost)
    )
    while queue:
        run, items = queue.popleft()
        try:
            found = work(run, items)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(run) < 2 or bound:
                raise
            subject.record.max_rows = len(run) // 2
            rest = torch.cat([items, *(more for _, more in queue)])
            queue = deque(_packed(subject, rows, rest, cost))
            continue
        yield items, found


def of(values: Tensor, items: Tensor, otherwise: float) -> Tensor:
    """The values of items, and something else for those that only fill a place."""
    return torch.where(items < 0, values.new_tensor(otherwise), values[items.clamp(min=0)])


def _packed(subject: Subject, rows: Tensor, items: Tensor, cost: float) -> Iterator[tuple[Tensor, Tensor]]:
    for some in items.split(_most(subject, cost)):
        yield rows[some], some


def _in_place(subject: Subject, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    waiting: list[deque[int]] = [deque() for _ in range(subject.rows)]
    for item, row in enumerate(rows.tolist()):
        waiting[row].append(item)
    for _ in range(max(map(len, waiting))):
        items = torch.tensor([one.popleft() if one else -1 for one in waiting], device="cpu")
        yield torch.arange(subject.rows, device="cpu"), items


def _most(subject: Subject, cost: float) -> int:
    if subject.batch_size is not None:
        most = subject.batch_size
    else:
        few = min(_FEW, int(_SMALL // max(subject.record.bytes_per_row, 1)))
        most = int(max(subject.total_rows, few) / cost)
    return max(1, min(most, subject.record.max_rows or most))


def _free(subject: Subject) -> bool:
    """Whether a row has the same score in another place, among another number of rows.

    A target function may close over one entry per row, and a held input may go with the rows in a way that cannot be
    seen, or a function as model may hold some; it shows when the rows move on by one place and the first comes twice.
    """
    held = [value for name, value in subject.inputs.items() if subject.input_roles.get(name, "fixed") == "fixed"]
    plain = isinstance(subject.model, nn.Module) and not callable(subject.target)
    if plain and all(_goes_with_rows(value, subject.rows) for value in held):
        return True
    record = subject.record
    if record.independent is None:
        score = subject.measured.score
        score = subject.pinned().run(gradient=False).score if score is None else score
        order = torch.tensor([0, *range(subject.rows)][: subject.batch_size], device="cpu")
        record.independent = _scores_alike(subject.take(order), score[order.to(score.device)])
    return record.independent


def _goes_with_rows(value: Any, rows: int) -> bool:
    """Whether an input plainly has one entry per row, or nothing to do with them."""
    if isinstance(value, Tensor):
        return value.dim() > 0 and len(value) == rows and rows not in value.shape[1:]
    return value is None or isinstance(value, str | int | float)


def _scores_alike(moved: Subject, expected: Tensor) -> bool:
    try:
        found = moved.run(gradient=False).score
    except Exception:  # whatever the model or the target says to another number of rows
        return False
    near = 0.05 if torch.finfo(expected.dtype).bits < 32 else 1e-3
    return bool(((found - expected).abs() <= near * (expected.abs() + 0.01 * expected.abs().max())).all())
