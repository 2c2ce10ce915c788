"""Requests of models that are wrapped with a function of the user's, which makes tensors of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from whence.adapters.requests import Request, per_row
from whence.errors import InputError, WhenceError

if TYPE_CHECKING:
    from whence.adapters.wrapped import Wrapped


def function_requests(wrapped: Wrapped, inputs: Any, target: Any, batch_size: int | None, whole: bool) -> list[Request]:
    """All rows at once; row by row where the function can also describe a row."""
    if hasattr(wrapped.processor, "describe"):
        return _row_by_row(wrapped, inputs, target)
    tensors = _read(wrapped.processor, inputs)
    return [Request(wrapped.model, tensors, wrapped.target(target), list(range(_count(tensors))))]


def _row_by_row(wrapped: Wrapped, inputs: Any, target: Any) -> list[Request]:
    """One request per row, so that nothing is padded; `describe` names the units of a row."""
    rows = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    targets = per_row(wrapped.target(target), len(rows))
    tensors = [
        {name: tensor.to(wrapped.device) for name, tensor in wrapped.processor(row, number).items()}
        for number, row in enumerate(rows)
    ]
    if not rows:
        raise InputError("There is nothing to explain: the list of texts or molecules is empty.\n  Give at least one.")
    return [
        Request(wrapped.model, tensors[number], targets[number], [number], **wrapped.processor.describe(row))
        for number, row in enumerate(rows)
    ]


def _read(function: Callable[[Any], Any], inputs: Any) -> Any:
    """The tensors that the user's function makes of a list of rows; a batch is given as it is."""
    batch = isinstance(inputs, list | Tensor | Mapping) or hasattr(inputs, "__array__") or hasattr(inputs, "iloc")
    rows = inputs if batch and not hasattr(inputs, "convert") else [inputs]  # a PIL image is one row, and an array
    try:
        tensors = function(rows)
    except WhenceError:
        raise
    except Exception as error:
        raise InputError(
            f"The function that reads the inputs raised {type(error).__name__}: {error}\n"
            f"  It gets a list of rows (here {len(rows)}) and returns the model's tensors for all of them."
        ) from error
    if isinstance(rows, list) and _count(tensors) != len(rows):
        raise InputError(
            f"The function that reads the inputs made {_count(tensors)} rows of {len(rows)}.\n"
            "  It gets a list of rows and returns the model's tensors, one row for each of them."
        )
    return tensors


def _count(tensors: Any) -> int:
    """The number of rows in what the function returned."""
    if isinstance(tensors, Tensor):
        parts = [tensors]
    else:
        parts = list(tensors.values() if isinstance(tensors, Mapping) else tensors)
    first = next((part for part in parts if isinstance(part, Tensor) and part.dim()), None)
    if first is None:
        raise InputError(
            f"The function that reads the inputs returned {type(tensors).__name__} without a tensor.\n"
            "  It returns a tensor, a tuple of tensors or a dict of keyword tensors, rows first."
        )
    return len(first)
