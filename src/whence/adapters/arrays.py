"""Arrays, DataFrames and lists as tensors; batches that hold more than the model takes; names of features."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whence.errors import InputError

_LABELS = ("y", "label", "labels", "target", "targets")  # what a batch may hold besides the model's inputs


def is_frame(value: Any) -> bool:
    """Whether this is a DataFrame of pandas, or like one."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy") and not isinstance(value, Tensor)


def is_numbers(value: Any) -> bool:
    """Whether this is an array, a DataFrame, or a list of rows of numbers."""
    return isinstance(value, np.ndarray) or is_frame(value) or _is_rows(value)


def tensors(inputs: Any, root: nn.Module | None) -> tuple[Any, dict[str, tuple[str, ...]]]:
    """The inputs with tensors for arrays, DataFrames and lists of rows; features are named by a DataFrame's columns."""
    if isinstance(inputs, Mapping):
        made = {str(name): one(value, root) if is_numbers(value) else value for name, value in inputs.items()}
        return made, {str(name): columns(value) for name, value in inputs.items() if is_frame(value)}
    if isinstance(inputs, tuple) and any(map(is_numbers, inputs)):
        made_parts = tuple(one(value, root) if is_numbers(value) else value for value in inputs)
        return made_parts, {str(i): columns(value) for i, value in enumerate(inputs) if is_frame(value)}
    if is_numbers(inputs):
        return one(inputs, root), {"input": columns(inputs)} if is_frame(inputs) else {}
    if isinstance(inputs, list) and inputs and all(_is_number(item) for item in inputs):
        raise InputError(
            f"The input is a flat list of {len(inputs)} numbers, which may be one row or as many rows.\n"
            "  Give a list of rows: [[1.0, 2.0], …]."
        )
    if hasattr(inputs, "to_frame") and hasattr(inputs, "to_numpy"):
        raise InputError("The input is a Series, which may be a row or a column.\n  Give a DataFrame: frame.iloc[[0]].")
    return inputs, {}


def one(value: Any, root: nn.Module | None) -> Tensor:
    """A tensor of the numbers, on the model's device; floating ones in the dtype of its weights."""
    array = _of_frame(value) if is_frame(value) else _of_rows(value) if isinstance(value, list | tuple) else value
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"The input is an array of {array.dtype}, which torch cannot hold.\n"
            "  Give floating numbers or integers: array.astype(float)."
        )
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    weights = None if root is None else next((p for p in root.parameters() if p.is_floating_point()), None)
    tensor = torch.from_numpy(np.array(array, order="C"))  # a copy: the array stays the user's
    if weights is None:
        return tensor
    return tensor.to(weights.device, weights.dtype if tensor.is_floating_point() else None)


def baseline(given: Any, root: nn.Module | None) -> Any:
    """A baseline with tensors for its arrays and DataFrames; a list is several baselines."""
    if isinstance(given, np.ndarray) or is_frame(given):
        return one(given, root)
    if isinstance(given, Mapping):
        return {name: baseline(value, root) for name, value in given.items()}
    return type(given)(baseline(item, root) for item in given) if type(given) in (list, tuple) else given


def columns(frame: Any) -> tuple[str, ...]:
    return tuple(str(name) for name in frame.columns)


def _of_frame(frame: Any) -> np.ndarray[Any, Any]:
    """A DataFrame's numbers as floating numbers: its integers are features, not ids."""
    parts = [np.asarray(frame[name]) for name in frame.columns]
    for name, part in zip(frame.columns, parts, strict=True):
        if part.dtype.kind not in "fiub":
            raise InputError(
                f"The column {name!r} holds {part.dtype}, not numbers.\n"
                "  Encode it as numbers, as the model was trained on, or drop it."
            )
    if not parts:
        raise InputError("The DataFrame has no columns.\n  Give at least one.")
    floats = [part.dtype for part in parts if part.dtype.kind == "f"]
    return np.stack(parts, 1).astype(np.result_type(*floats) if floats else np.float64)


def _of_rows(rows: Sequence[Any]) -> np.ndarray[Any, Any]:
    try:
        return np.array([np.asarray(row) for row in rows])
    except ValueError:
        raise InputError("The rows of the list have different lengths.\n  Give as many numbers in each.") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)


def _is_rows(value: Any) -> bool:
    """A list of rows, each an array or a list of numbers, of lists of numbers …"""
    if not isinstance(value, list) or not value:
        return False

    def row(item: Any) -> bool:
        if isinstance(item, np.ndarray):
            return item.dtype.kind in "fiub"
        return isinstance(item, list) and bool(item) and all(_is_number(part) or row(part) for part in item)

    return all(map(row, value))


# ---- batches ----


def fitted(model: Any, named: Mapping[str, Any]) -> tuple[dict[str, Any], Callable[..., Any] | None]:
    """A batch as the model takes it: without labels that it does not take, or as one argument `batch`."""
    takes = _parameters(model)
    if takes is None:
        return dict(named), None
    inside = {name: value for name, value in named.items() if name in takes}
    beside = [name for name in named if name not in takes]
    if inside and beside and all(name in _LABELS for name in beside):
        return inside, None
    if not inside and len(takes) == 1 and "batch" in takes:
        return dict(named), lambda **batch: model(batch)
    return dict(named), None


def _parameters(model: Any) -> list[str] | None:
    """The names of a model's parameters, or None where it takes any."""
    try:
        parameters = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]


# ---- names of features ----


def named_features(
    names: Any, given: Mapping[str, tuple[str, ...]], inputs: Mapping[str, Any]
) -> dict[str, tuple[str, ...]]:
    """The names of each input's features: those given as names=, over a DataFrame's columns."""
    if not isinstance(names, Mapping):
        floats = [name for name, value in inputs.items() if isinstance(value, Tensor) and value.is_floating_point()]
        names = {(floats or list(inputs))[0]: names}
    features = dict(given)
    for name, words in names.items():
        if str(name) not in inputs:
            raise InputError(
                f"names= is for {name!r}, which is not an input.\n  The inputs are {', '.join(map(repr, inputs))}."
            )
        words = list(words) if isinstance(words, Iterable) else [words]
        if isinstance(names[name], str) or not all(isinstance(word, str) for word in words):
            raise InputError("names= holds something other than strings.\n  Give one name for each feature.")
        shape = tuple(getattr(inputs[str(name)], "shape", ()))
        if len(shape) != 2 or shape[1] != len(words):
            raise InputError(
                f"names= has {len(words)} names, but the input {str(name)!r} has the shape {shape}.\n"
                "  Give one for each feature of an input (rows, features)."
            )
        features[str(name)] = tuple(words)
    return features
