"""From a model's output and a target to one score per row and target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from whence.errors import ModelError, TargetError

Output = Literal["logit", "probability", "log_probability"]
# None: each row's prediction; a tensor (rows, k, depth): k full indices into each row's output; a callable
Target = Tensor | Callable[[Any], Tensor] | None

Last = Callable[[int], Tensor | None]  # each row's last real position in an output of this length

_LOGITS = ("logits", "logits_per_image", "prediction_logits", "start_logits", "last_hidden_state")


def find_logits(output: Any) -> Tensor:
    """The tensor of scores in whatever a model returns: a tensor, tuple, dict, dataclass or ModelOutput.

    By name: one of the usual names, or else the only floating tensor, losses aside. In order: the first floating one.
    """
    return _logits(output)[0]


def choice(output: Any) -> str | None:
    """Which of several floating tensors the scores were read from, for the receipt; None where there was one."""
    found, key, others = _logits(output)
    if not others:
        return None
    kind = "output" if isinstance(output, Tensor) else type(output).__name__
    return f"{key} {tuple(found.shape)} of the {kind}; not read: {', '.join(others)}"


def _logits(output: Any) -> tuple[Tensor, str, list[str]]:
    """The tensor of scores, where it stands, and the other floating tensors."""
    if isinstance(output, Tensor):
        named, floats = None, {"": output} if _holds_scores(output) else {}
    else:
        named = _by_name(output)
        items = named if named is not None else dict(enumerate(output)) if _in_order(output) else {}
        floats = {repr(k): item for k, item in items.items() if _holds_scores(item) and "loss" not in str(k)}
    if not floats:
        raise ModelError(
            f"The model returned {described(output)}, in which no tensor of scores was found.\n"
            "  Return a floating tensor (rows, classes), or give target= a function from the output to one score per "
            "row."
        )
    known = [repr(key) for key in _LOGITS if repr(key) in floats] if named is not None else []
    if named is not None and not known and len(floats) > 1:
        first = next(iter(floats))
        raise ModelError(
            f"The model returned {described(output)}: any of {', '.join(floats)} may be the scores.\n"
            f"  Say which with a function, such as target=lambda out: out{_at(output, first)}[:, 0], "
            "or explain a function around the model that returns one tensor."
        )
    key = next(iter(known or floats))
    return floats[key], key, [other for other in floats if other != key]


def _holds_scores(item: Any) -> bool:
    return isinstance(item, Tensor) and item.is_floating_point() and item.dim() > 0


def _in_order(output: Any) -> bool:
    return isinstance(output, Sequence) and not isinstance(output, str | bytes)


def _by_name(output: Any) -> Mapping[str, Any] | None:
    """What a model returned by name, or None."""
    if hasattr(output, "_asdict"):  # a named tuple
        return dict(output._asdict())
    if isinstance(output, Mapping):
        return output
    if is_dataclass(output) and not isinstance(output, type):
        return {f.name: getattr(output, f.name, None) for f in fields(output)}
    return vars(output) if isinstance(output, SimpleNamespace) else None


def _at(output: Any, key: str) -> str:
    """How one writes it: out["heads"] or out.heads."""
    return f"[{key}]".replace("'", '"') if isinstance(output, Mapping) else f".{key.strip(chr(39))}"


def described(output: Any) -> str:
    """What a model returned, in words."""
    if isinstance(output, Tensor):
        return f"a {output.dtype} tensor of shape {tuple(output.shape)}"
    named = _by_name(output)
    if named is None and not _in_order(output):
        return type(output).__name__
    items = named if named is not None else dict(enumerate(output))
    told = [f"{key!r} {_kind(item)}" for key, item in list(items.items())[:12]]
    return f"{type(output).__name__} of {', '.join(told) + (', …' if len(items) > 12 else '') or 'nothing'}"


def _kind(item: Any) -> str:
    return f"{tuple(item.shape)}" if _holds_scores(item) else f"({type(item).__name__})"


@dataclass(frozen=True, eq=False)
class Indices:
    """Several full indices into each row's output, (rows, k, depth): how adapters ask for every token of a text."""

    index: Tensor


def read_target(target: Any, rows: int) -> Any:
    """Check a target's form before the model runs; indices become a LongTensor (rows, k, depth)."""
    if isinstance(target, Indices):
        return target.index
    if target is None or callable(target):
        return target
    if isinstance(target, str):
        raise TargetError(
            f"target={target!r} is a label name, and this model has no labels.\n"
            "  Give the class's index, or wrap the model with its processor (whence.load, whence.wrap)."
        )
    if isinstance(target, tuple):
        if any(np.ndim(item) for item in target):
            raise TargetError(
                f"target={target!r} is a tuple of lists.\n"
                "  A tuple is one index into a row's output; give a list of such tuples, one per row."
            )
        return _indices([list(target)], "a tuple target").expand(rows, -1).unsqueeze(1)  # (rows, 1, depth)
    if isinstance(target, list) and target and all(isinstance(item, tuple) for item in target):
        if len({len(item) for item in target}) > 1:
            raise TargetError(f"target={target!r} mixes tuples of different lengths.\n  Give one full index per row.")
        return _for_rows(_indices([list(item) for item in target], "a list of tuples"), rows).unsqueeze(1)
    index = _indices(target, "target")
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
    if target is None or callable(target) or isinstance(target, tuple):
        return False
    if isinstance(target, list) and target and isinstance(target[0], tuple):
        return False
    return np.ndim(target) == 2


def _indices(value: Any, what: str) -> Tensor:
    try:
        index = torch.as_tensor(np.asarray(value) if isinstance(value, list) else value, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        index = torch.tensor(0.0, device="cpu")
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool or not index.numel():
        raise TargetError(
            f"{what} must hold whole numbers, and is {value!r}.\n"
            "  Give an int, a list or 1-D tensor with one per row, a tuple (an index into one row's output), "
            "a 2-D tensor (rows, k), or a function."
        )
    return index.long().detach().cpu()


def _for_rows(index: Tensor, rows: int) -> Tensor:
    """One entry per row; a single one is for all of them."""
    if len(index) not in (1, rows):
        raise TargetError(
            f"target has {len(index)} entries, and there are {rows} rows.\n  Give one per row, or a single one for all."
        )
    return index.expand(rows, *index.shape[1:])


def resolve(target: Target, logits: Tensor, last: Last) -> Tensor:
    """Full indices (rows, k, depth) into each row's output. `last` gives each row's last real position, where known."""
    rows, inner = len(logits), logits.shape[1:]
    if target is None:
        return _prediction(logits)
    assert isinstance(target, Tensor)
    index = target.to(logits.device)
    if index.shape[-1] != len(inner) and not (len(inner) == 0 and bool((index == 0).all())):
        raise TargetError(
            f"The target has {_count(index.shape[-1], 'index', 'indices')} per row, and the output is "
            f"{tuple(logits.shape)}: one row's score needs {_count(len(inner), 'index', 'indices')}.\n"
            f"  Give a tuple of {len(inner)}, such as target={tuple(0 for _ in inner)}, "
            "or a function from the output to one score per row."
        )
    if not inner:
        return index.new_zeros(rows, 1, 0)
    if len(inner) > 1:  # in a tuple, -1 is the last position, and the last real one where there is padding
        index = index.clone()
        end_of_row = last(inner[0])
        for axis, size in enumerate(inner):
            end = end_of_row[:, None] + 1 if axis == 0 and end_of_row is not None else size
            index[..., axis] = torch.where(index[..., axis] < 0, index[..., axis] + end, index[..., axis])
    for axis, size in enumerate(inner):
        wrong = (index[..., axis] < 0) | (index[..., axis] >= size)
        if bool(wrong.any()):
            row, k = wrong.nonzero()[0].tolist()
            raise TargetError(
                f"target {int(target[row, k, axis])} of row {row} is out of range: "
                f"the output {tuple(logits.shape)} has {size} entries there (0 to {size - 1}).\n"
                "  Give one of these, or leave target out for each row's prediction."
            )
    return index


def _prediction(logits: Tensor) -> Tensor:
    if logits.dim() == 1:
        return torch.zeros(len(logits), 1, 0, dtype=torch.long, device=logits.device)
    if logits.dim() == 2:
        return logits.argmax(1)[:, None, None]
    raise TargetError(
        f"The output has the shape {tuple(logits.shape)}, so there is no one predicted class per row.\n"
        f"  Give target= a tuple of {logits.dim() - 1} indices (position, class, …), one tuple per row, "
        "or a function from the output to one score per row."
    )


def scores(output: Any, target: Target, space: Output, rows: int, real: Tensor | None = None) -> Tensor:
    """The tensor that holds the explained scores, in the wanted space; for a function, its scores (rows, 1)."""
    if callable(target):
        return _called(target, output, rows)
    logits = find_logits(output)
    if len(logits) != rows:
        raise ModelError(
            f"The model's output has {len(logits)} rows for {rows} rows of input.\n"
            "  Rows are the first dimension of every explained input and of the output. Where a model takes one input "
            "packed (the patches of all images one under another), give a module around it that takes rows and packs "
            "them, or target= a function from the output to one score per row."
        )
    spans = [output.get(key) for key in ("start_logits", "end_logits")] if isinstance(output, Mapping) else []
    if real is not None and any(logits is span for span in spans) and real.shape == logits.shape:
        logits = logits.masked_fill(~real, torch.finfo(logits.dtype).min)  # its classes are positions: no padding
    return logits if space == "logit" else _probabilities(logits, log=space == "log_probability")


def pick(held: Tensor, target: Target, last: Last) -> tuple[Tensor, Tensor | None]:
    """The explained scores (rows, k), and the indices (rows, k, depth) they were read at."""
    if callable(target):
        return held, None
    if isinstance(target, Tensor) and len(held) == 1:
        held = held.expand(len(target), *held.shape[1:])  # one reference row for all
    index = resolve(target, held.detach(), last)
    strides = [int(np.prod(held.shape[axis + 1 :])) for axis in range(1, held.dim())]
    flat = (index * torch.tensor(strides, dtype=torch.long, device=index.device)).sum(-1)  # (rows, k)
    return held.reshape(len(held), -1).gather(1, flat), index


def probability(held: Tensor, index: Tensor, space: Output) -> Tensor | None:
    """The probability (rows, k) of the classes that were read; None where an output has no classes to choose from."""
    axis = _class_axis(held)
    if held.dim() < 2 or held.shape[axis] < 2:
        return None
    axis %= held.dim()
    places = [index[..., i] for i in range(index.shape[-1]) if i != axis - 1]
    rows = torch.arange(len(held), device=held.device)[:, None].expand(index.shape[:2])
    classes = held.movedim(axis, -1)[(rows, *places)].double()  # (rows, k, classes)
    if space == "log_probability":
        classes = classes.exp()
    elif space == "logit":
        classes = distribution(classes)
    return classes.gather(-1, index[..., axis - 1, None]).squeeze(-1)


def distribution(classes: Tensor) -> Tensor:
    """The softmax of scores (…, classes), or what the model already gives as probabilities."""
    given = bool((classes >= 0).all()) and bool(((classes.sum(-1) - 1).abs() < 1e-3).all())
    return classes if given else classes.softmax(-1)


def _class_axis(logits: Tensor) -> int:
    return 1 if logits.dim() in (2, 4, 5) else -1  # classes come first in dense outputs, last in sequences


def _probabilities(logits: Tensor, log: bool) -> Tensor:
    axis = _class_axis(logits)
    if logits.dim() == 1 or logits.shape[axis] == 1:  # one logit: a binary classifier
        return torch.nn.functional.logsigmoid(logits) if log else logits.sigmoid()
    return logits.log_softmax(axis) if log else logits.softmax(axis)


def _called(target: Callable[[Any], Any], output: Any, rows: int) -> Tensor:
    given = target(output)
    if not isinstance(given, Tensor) or not given.is_floating_point():
        raise TargetError(
            f"The target function gave {type(given).__name__}.\n  It must give a floating tensor of one score per row."
        )
    if given.numel() != rows or given.dim() > 2:
        raise TargetError(
            f"The target function gave the shape {tuple(given.shape)} for {rows} rows.\n"
            "  It must give one score per row: a tensor of shape (rows,)."
        )
    return given.reshape(rows, 1)


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
