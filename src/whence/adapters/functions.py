"""Requests of models that are wrapped with a function of the user's, which makes tensors of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.adapters.requests import Request, per_row
from whence.errors import InputError, WhenceError

if TYPE_CHECKING:
    from whence.adapters.wrapped import Wrapped


def function_requests(wrapped: Wrapped, inputs: Any, target: Any, batch_size: int | None, whole: bool) -> list[Request]:
    """All rows at once; row by row where the function can also describe a row."""
    if hasattr(wrapped.processor, "describe"):
        return _row_by_row(wrapped, inputs, target)
    rows = _listed(inputs)
    tensors = _read(wrapped.processor, rows)
    known = {} if wrapped.names is None else _named(wrapped.names, rows, tensors)
    return [Request(wrapped.model, tensors, wrapped.target(target), list(range(_count(tensors))), **known)]


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


def _listed(inputs: Any) -> Any:
    """A list of rows; a batch stays as it is."""
    batch = isinstance(inputs, list | Tensor | Mapping) or hasattr(inputs, "__array__") or hasattr(inputs, "iloc")
    return inputs if batch and not hasattr(inputs, "convert") else [inputs]  # a PIL image is one row, and an array


def _read(function: Callable[[Any], Any], rows: Any) -> Any:
    """The tensors that the user's function makes of a list of rows."""
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


# ---- names of positions ----


def _named(function: Callable[[Any], Any], rows: Any, tensors: Any) -> dict[str, Any]:
    """What a request knows of its rows by the names that the user's function gives their features or tokens."""
    given = [function(row) for row in rows]
    if isinstance(tensors, Tensor):
        names, real = _padded(given, tensors)
        return {"facts": {"units": names, "special": (~real).tolist()}, "real": real}
    parts = tensors if isinstance(tensors, Mapping) else {str(n): part for n, part in enumerate(tensors)}
    if not all(isinstance(own, Mapping) and set(own) <= set(parts) for own in given):
        raise InputError(
            f"names= gave {type(given[0]).__name__} for a row, but the model takes several inputs.\n"
            f"  Return a dict from some of {', '.join(parts)} to the names of their positions."
        )
    both = {name: _padded([own[name] for own in given], parts[name]) for name in given[0]}
    return {
        "units": {name: names for name, (names, _) in both.items()},
        "real": {name: real for name, (_, real) in both.items()},
    }


def _padded(given: list[Any], tensor: Tensor) -> tuple[list[list[str]], Tensor]:
    """The names of all positions, (rows, length), and which of them are no padding."""
    length = tensor.shape[1] if tensor.dim() == 2 else -1
    for own in given:
        listed = isinstance(own, list | tuple) and all(isinstance(name, str) for name in own)
        if not listed or len(own) > length:
            told = f"{len(own)} names" if listed else repr(own)
            raise InputError(
                f"names= gave {told} for a row of an input of the shape {tuple(tensor.shape)}.\n"
                "  Return a list of strings, one for each feature or token of an input (rows, length), without padding."
            )
    real = torch.tensor([[place < len(own) for place in range(length)] for own in given], device="cpu")
    return [[*own, *["[PAD]"] * (length - len(own))] for own in given], real
