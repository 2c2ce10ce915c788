"""From a target and a model's output to the explained scores: read the target, resolve it to indices, pick scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from whence.errors import ModelError, TargetError, warn
from whence.subject.logits import describe, find_logits

Output = Literal["logit", "probability", "log_probability"]
# None: each row's prediction; a tensor (rows, k, depth): k full indices into each row's output; a callable
Target = Tensor | Callable[[Any], Tensor] | None

Last = Callable[[int], Tensor | None]  # each row's last real position in an output of this length


# ---- read the target, before the model runs ----


@dataclass(frozen=True, eq=False)
class Indices:
    """Several full indices into each row's output, (rows, k, depth): how adapters ask for every token of a text."""

    index: Tensor


def read_target(target: Any, rows: int) -> Any:
    """A target in its one form, checked: indices become a LongTensor (rows, k, depth)."""
    if isinstance(target, Indices):
        return target.index
    if target is None or callable(target):
        return target
    if isinstance(target, str):
        raise TargetError(
            f"target={target!r} is a label name, but this model has no labels.\n"
            "  Give the index of the class, or wrap the model with its processor (whence.load, whence.wrap)."
        )
    if isinstance(target, tuple):
        return _one_index(target).expand(rows, -1).unsqueeze(1)  # (rows, 1, depth)
    if isinstance(target, list) and target and all(isinstance(item, tuple) for item in target):
        return _for_rows(_index_per_row(target), rows).unsqueeze(1)
    if type(target) is int:
        return torch.full((rows, 1, 1), target, dtype=torch.long, device="cpu")
    index = _whole_numbers(target, "target")
    if index.dim() == 0:
        return index.expand(rows)[:, None, None]
    index = _for_rows(index, rows)
    if index.dim() > 2:
        raise TargetError(
            f"target has the shape {tuple(index.shape)}.\n"
            "  Give an int, one class per row (rows,), or several per row (rows, k)."
        )
    return index.reshape(rows, -1, 1)


def several(target: Any) -> bool:
    """Whether a target, as the user gave it, asks for several scores per row (a 2-D tensor or nested list)."""
    if isinstance(target, Indices):
        return True
    if target is None or callable(target) or isinstance(target, tuple | int):
        return False
    if isinstance(target, list) and target and isinstance(target[0], tuple):
        return False
    return np.ndim(target) == 2


def _one_index(target: tuple[Any, ...]) -> Tensor:
    """A tuple, one index into the output of every row: (1, depth)."""
    if any(np.ndim(item) for item in target):
        raise TargetError(
            f"target={target!r} is a tuple of lists.\n"
            "  A tuple is one index into a row's output; give a list of such tuples, one per row."
        )
    return _whole_numbers([list(target)], "a tuple target")


def _index_per_row(target: list[tuple[Any, ...]]) -> Tensor:
    """A list of tuples, one index into the output of each row: (rows, depth)."""
    if len({len(item) for item in target}) > 1:
        raise TargetError(f"target={target!r} mixes tuples of different lengths.\n  Give one full index per row.")
    return _whole_numbers([list(item) for item in target], "a list of tuples")


def _whole_numbers(value: Any, what: str) -> Tensor:
    try:
        index = torch.as_tensor(np.asarray(value) if isinstance(value, list) else value, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        index = torch.tensor(0.0, device="cpu")
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool or not index.numel():
        raise TargetError(
            f"{what} must hold whole numbers, but it is {value!r}.\n"
            "  Give an int, a list or 1-D tensor with one per row, a tuple (an index into one row's output), "
            "a 2-D tensor (rows, k), or a function."
        )
    return index.long().detach().cpu()


def _for_rows(index: Tensor, rows: int) -> Tensor:
    """One entry per row; a single one is for all of them."""
    if len(index) not in (1, rows):
        raise TargetError(
            f"target has {len(index)} entries, but there are {rows} rows.\n"
            "  Give one per row, or a single one for all rows."
        )
    return index.expand(rows, *index.shape[1:])


# ---- all scores of the output, as logits or probabilities ----


class OneForAll(ModelError):
    """The model gives one score for all rows together."""


def scores(
    output: Any, target: Target, space: Output, rows: int, real: Tensor | None = None, *, reads: bool = False
) -> Tensor:
    """The tensor that holds the explained scores, as logits or probabilities; for a function, its scores (rows, 1).

    `reads` is for methods that need no derivative: whole numbers are scores, too.
    """
    if callable(target):
        return _called(target, output, rows)
    logits = find_logits(_as_floating(output, reads))
    if len(logits) == 1 < rows:
        raise (OneForAll if reads else ModelError)(
            f"The model gives one score for all {rows} rows ({describe(output)}), but this needs one score per row.\n"
            "  Return a score for each row, or choose a method that removes units from all rows at once "
            "(leave_one_out, occlusion, shapley, kernel_shap, lime), without batch_size=."
        )
    if len(logits) != rows:
        raise ModelError(
            f"The model's output has {len(logits)} rows for {rows} rows of input.\n"
            "  Rows are the first dimension of every explained input and of the output. Where a model takes one input "
            "packed (the patches of all images one under another), give a module around it that takes rows and packs "
            "them, or target= a function from the output to one score per row."
        )
    spans = [output.get(key) for key in ("start_logits", "end_logits")] if isinstance(output, Mapping) else []
    if real is not None and any(logits is span for span in spans) and real.shape == logits.shape:
        logits = logits.masked_fill(~real, torch.finfo(logits.dtype).min)  # classes are positions: never padding
    return logits if space == "logit" else _probabilities(logits, log=space == "log_probability")


def _as_floating(output: Any, reads: bool) -> Any:
    """A single number as a tensor of one entry; where no derivative is needed, whole numbers as floating ones."""
    if isinstance(output, Real):
        return torch.tensor([float(output)], dtype=torch.float64, device="cpu")
    if not isinstance(output, Tensor):
        return output
    if reads and not (output.is_floating_point() or output.is_complex()):
        output = output.double()
    return output.reshape(1) if output.dim() == 0 else output


def _called(target: Callable[[Any], Any], output: Any, rows: int) -> Tensor:
    """What a target function returns, checked: (rows, 1)."""
    score = target(output)
    if not isinstance(score, Tensor) or not score.is_floating_point():
        raise TargetError(
            f"The target function returned {type(score).__name__}.\n"
            "  It must return a floating-point tensor with one score per row."
        )
    if score.numel() != rows or score.dim() > 2:
        raise TargetError(
            f"The target function returned the shape {tuple(score.shape)} for {rows} rows.\n"
            "  It must return one score per row: a tensor of shape (rows,)."
        )
    return score.reshape(rows, 1)


def _probabilities(logits: Tensor, log: bool) -> Tensor:
    axis, logits = _class_axis(logits), _wide(logits)
    if logits.dim() == 1 or logits.shape[axis] == 1:  # one logit: a binary classifier
        return torch.nn.functional.logsigmoid(logits) if log else logits.sigmoid()
    return logits.log_softmax(axis) if log else logits.softmax(axis)


def _class_axis(logits: Tensor) -> int:
    return 1 if logits.dim() in (2, 4, 5) else -1  # classes come first in dense outputs, last in sequences


# ---- the explained scores among them ----


def pick(outputs: Tensor, target: Target, last: Last) -> tuple[Tensor, Tensor | None]:
    """The explained scores (rows, k) among all outputs, and the indices (rows, k, depth) they were read at."""
    if callable(target):
        return _wide(outputs), None
    if isinstance(target, Tensor) and len(outputs) == 1:
        outputs = outputs.expand(len(target), *outputs.shape[1:])  # one reference row for all
    index = resolve(target, outputs.detach(), last)
    if outputs.dim() == 2:
        return _wide(outputs.gather(1, index[..., 0])), index
    strides = [int(np.prod(outputs.shape[axis + 1 :])) for axis in range(1, outputs.dim())]
    flat = (index * torch.tensor(strides, dtype=torch.long, device=index.device)).sum(-1)  # (rows, k)
    return _wide(outputs.reshape(len(outputs), -1).gather(1, flat)), index


def _wide(scores: Tensor) -> Tensor:
    """In float32 at least: differences of scores are too coarse in half precision."""
    narrow = scores.is_floating_point() and torch.finfo(scores.dtype).bits < 32
    return scores.float() if narrow else scores


def resolve(target: Target, outputs: Tensor, last: Last) -> Tensor:
    """Full indices (rows, k, depth) into each row's output. `last` gives each row's last real position, where known."""
    if target is None:
        return _prediction(outputs)
    assert isinstance(target, Tensor)
    index, sizes = target if target.device == outputs.device else target.to(outputs.device), outputs.shape[1:]
    if index.is_inference():  # made under a caller's inference_mode: autograd could not keep it
        index = index.clone()
    if index.shape[-1] != len(sizes) and not (len(sizes) == 0 and bool((index == 0).all())):
        raise TargetError(
            f"The target has {_count(index.shape[-1], 'index', 'indices')} per row, but the output is "
            f"{tuple(outputs.shape)}: one row's score needs {_count(len(sizes), 'index', 'indices')}.\n"
            f"  Give a tuple of {len(sizes)}, such as target={tuple(0 for _ in sizes)}, "
            "or a function from the output to one score per row."
        )
    if not sizes:
        return index.new_zeros(len(outputs), 1, 0)
    index = _from_the_end(index, sizes, last) if len(sizes) > 1 else index
    for axis, size in enumerate(sizes):
        low, high = index[..., axis].aminmax()
        if low < 0 or high >= size:
            wrong = (index[..., axis] < 0) | (index[..., axis] >= size)
            row, k = wrong.nonzero()[0].tolist()
            raise TargetError(
                f"target {int(target[row, k, axis])} of row {row} is out of range: "
                f"the output {tuple(outputs.shape)} has {size} entries there (0 to {size - 1}).\n"
                "  Give one of these, or leave target out for each row's prediction."
            )
    return index


def _prediction(outputs: Tensor) -> Tensor:
    if outputs.dim() == 1:
        return torch.zeros(len(outputs), 1, 0, dtype=torch.long, device=outputs.device)
    if outputs.dim() == 2:
        return outputs.argmax(1)[:, None, None]
    raise TargetError(
        f"The output has the shape {tuple(outputs.shape)}, so there is no single predicted class per row.\n"
        f"  Give target= a tuple of {outputs.dim() - 1} indices (position, class, …), one tuple per row, "
        "or a function from the output to one score per row."
    )


def _from_the_end(index: Tensor, sizes: torch.Size, last: Last) -> Tensor:
    """Negative indices of a tuple count from the end: −1 is the last position, or the last real one."""
    index, last_position = index.clone(), last(sizes[0])
    for axis, size in enumerate(sizes):
        end = last_position[:, None] + 1 if axis == 0 and last_position is not None else size
        index[..., axis] = torch.where(index[..., axis] < 0, index[..., axis] + end, index[..., axis])
    return index


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


# ---- their probabilities ----


def probability(outputs: Tensor, index: Tensor, space: Output) -> Tensor | None:
    """The probability (rows, k) of the explained classes; None where an output has no classes to choose from."""
    axis = _class_axis(outputs)
    if outputs.dim() < 2 or outputs.shape[axis] < 2:
        return None
    if outputs.dim() == 2:
        return _among(outputs.double(), space).expand(len(index), -1).gather(1, index[..., 0])
    axis %= outputs.dim()
    positions = [index[..., i] for i in range(index.shape[-1]) if i != axis - 1]
    rows = torch.arange(len(outputs), device=outputs.device)[:, None].expand(index.shape[:2])
    classes = outputs.movedim(axis, -1)[(rows, *positions)].double()  # (rows, k, classes)
    return _among(classes, space).gather(-1, index[..., axis - 1, None]).squeeze(-1)


def _among(classes: Tensor, space: Output) -> Tensor:
    """The probabilities of all classes (…, classes), of which these are the scores."""
    if space == "logit":
        return distribution(classes)
    return classes.exp() if space == "log_probability" else classes


def distribution(classes: Tensor) -> Tensor:
    """The softmax of scores (…, classes), or the scores themselves where they are probabilities already."""
    return classes if sums_to_one(classes) else classes.softmax(-1)


def sums_to_one(classes: Tensor) -> bool:
    """Whether scores (…, classes) are probabilities: two or more, none below 0, and 1 in all."""
    return classes.shape[-1] > 1 and bool((classes >= 0).all()) and bool(((classes.sum(-1) - 1).abs() < 1e-3).all())


def warn_of_probabilities(method: str, output: Any, target: Target, space: Output, rows: int) -> None:
    """Warn where a softmax is taken of what is one already."""
    if space == "logit":
        return
    given = scores(output, target, "logit", rows).detach()
    if given.dim() == 2 and sums_to_one(given):
        warn(
            f"{method}: the model's outputs are probabilities already (none is below 0, and those of a row add up to "
            f"1), and output={space!r} takes the softmax of them. To explain the model's own probabilities leave "
            "output= out; for their logarithm give target= a function."
        )
