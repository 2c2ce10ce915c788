"""The user's data as one dict per row: tensors, texts, images, data sets and loaders, or rows as dicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from whence.adapters import arrays
from whence.adapters.tensors import unwrap
from whence.adapters.wrapped import Wrapped
from whence.errors import InputError, WhenceError

KNOWN = ("label", "mask", "rationale")  # what a row may come with


def listed(model: Any, data: Any, extra: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The user's data as one dict per row: its input, and what came with it."""
    rows = [dict(row) for row in _rows(model, data)]
    if not rows:
        raise InputError("The data set is empty.\n  Give at least one row.")
    return _with(rows, extra)


def is_stream(data: Any) -> bool:
    """Whether rows come one after the other, once: a generator, a loader, anything that nobody can count or index."""
    if isinstance(data, Mapping) and "inputs" in data:
        data = data["inputs"]
    if isinstance(data, DataLoader | Iterator):
        return True
    return isinstance(data, Iterable) and not hasattr(data, "__len__") and not hasattr(data, "__getitem__")


def streamed(data: Any, extra: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a stream, each as `listed` would give it, as they are asked for."""
    if isinstance(data, Mapping):
        _check_entries(data)
        extra = {**extra, **{name: data[f"{name}s"] for name in KNOWN if data.get(f"{name}s") is not None}}
        data = data["inputs"]
    beside = {name: iter(_per_row(name, given)) for name, given in extra.items() if given is not None}
    rows = (
        (row for batch in data for row in _of_loader(batch))
        if isinstance(data, DataLoader)
        else map(_row, data, count())
    )
    for place, row in enumerate(rows):
        for name, values in beside.items():
            row[name] = next(values, _NONE)
            if row[name] is _NONE:
                raise InputError(f"{name}s= has {place} entries, but there are more rows.\n  Give one per row.")
        yield row
    for name, values in beside.items():
        if next(values, _NONE) is not _NONE:
            raise InputError(f"{name}s= has more entries than there are rows.\n  Give one per row.")


_NONE = object()


def _per_row(name: str, given: Any) -> Iterable[Any]:
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise InputError(f"{name}s= is {type(given).__name__}.\n  Give one per row.")
    return given


def _check_entries(data: Mapping[str, Any]) -> None:
    stray = set(data) - {"inputs", *(f"{name}s" for name in KNOWN)}
    if stray:
        raise InputError(
            f"data has an entry {sorted(stray)[0]!r}.\n  Known: inputs, {', '.join(f'{name}s' for name in KNOWN)}."
        )


def _with(rows: list[dict[str, Any]], extra: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows, each with its label, mask and rationale."""
    for name, given in extra.items():
        if given is None:
            continue
        values = list(_per_row(name, given))
        if len(values) != len(rows):
            raise InputError(
                f"{name}s= has {len(values)} entries, but there are {len(rows)} rows.\n  Give one per row."
            )
        rows = [{**row, name: value} for row, value in zip(rows, values, strict=True)]
    return rows


def _rows(model: Any, data: Any) -> Iterable[dict[str, Any]]:
    if arrays.is_numbers(data) and not isinstance(model, Wrapped):
        data = arrays.one(data, None if model is None else unwrap(model)[1])
    if isinstance(data, Tensor):
        if data.dim() < 2 and not isinstance(model, Wrapped):
            raise InputError(f"data is a tensor of the shape {tuple(data.shape)}.\n  The first dimension is rows.")
        return [{"inputs": data[i : i + 1]} for i in range(len(data))]
    if isinstance(data, Mapping) and "inputs" in data:
        rows = _rows(model, data["inputs"])
        _check_entries(data)
        return _with(list(rows), {name: data.get(f"{name}s") for name in KNOWN})
    if isinstance(data, Mapping):
        return _of_batch(data)
    if isinstance(data, tuple) and data and all(isinstance(part, Tensor) for part in data):
        return [{"inputs": tuple(part[i : i + 1] for part in data)} for i in range(len(data[0]))]
    if isinstance(data, str):
        data = [data]
    if isinstance(data, DataLoader):
        return [row for batch in data for row in _of_loader(batch)]
    if not isinstance(data, Iterable) and hasattr(data, "__getitem__") and hasattr(data, "__len__"):  # a Dataset
        data = [data[i] for i in range(len(data))]
    if not isinstance(data, Iterable):
        raise InputError(
            f"data is {type(data).__name__}.\n"
            "  Give tensors, texts or images, or rows as dicts: {'inputs': …, 'label': …, 'mask': …, 'rationale': …}."
        )
    own = isinstance(model, Wrapped) and model.task == "function"
    return [_row(item, i, own) for i, item in enumerate(data)]


def _of_loader(batch: Any) -> list[dict[str, Any]]:
    """A batch of a data loader: tensors, or tensors with their labels."""
    if isinstance(batch, list | tuple) and len(batch) == 2 and isinstance(batch[1], Tensor) and batch[1].dim() == 1:
        whole = not batch[1].is_floating_point()
        if whole and isinstance(batch[0], Tensor) and len(batch[0]) == len(batch[1]):
            labels = batch[1].tolist()
            return [{"inputs": batch[0][i : i + 1], "label": labels[i]} for i in range(len(labels))]
    if isinstance(batch, Mapping):
        tensors = {name: value for name, value in batch.items() if name not in ("label", "labels")}
        labels = batch.get("labels", batch.get("label"))
        found = _of_batch(tensors)
        return found if labels is None else [{**row, "label": int(n)} for row, n in zip(found, labels, strict=True)]
    return list(_rows(None, tuple(batch) if isinstance(batch, list) else batch))


def _of_batch(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A batch by keyword, as a Hugging Face model takes it."""
    sizes = {len(v) for v in data.values() if isinstance(v, Tensor) and v.dim()}
    if len(sizes) != 1:
        raise InputError(
            f"data is a dict of tensors with {sorted(sizes)} rows.\n"
            "  Give tensors of as many rows, or {'inputs': …, 'labels': …}."
        )
    (rows,) = sizes
    return [
        {"inputs": {k: v[i : i + 1] if isinstance(v, Tensor) and v.dim() else v for k, v in data.items()}}
        for i in range(rows)
    ]


def _row(item: Any, place: int, own: bool = False) -> dict[str, Any]:
    """An item with what is known of it; those that a function of the user's reads (`own`) stay as they are."""
    with_axis = dict if own else _with_axis
    if isinstance(item, Mapping) and {"inputs", "text", "image"} & set(item):
        found = dict(item)
        for name in ("text", "image"):
            if name in found:
                found["inputs"] = found.pop(name)
        stray = set(found) - {"inputs", *KNOWN}
        if stray:
            raise InputError(
                f"Row {place} has an entry {sorted(map(str, stray))[0]!r}.\n  Known: inputs (or text, image), "
                f"{', '.join(KNOWN)}."
            )
        return with_axis(found)
    if isinstance(item, tuple) and len(item) == 2 and not (isinstance(item[0], str) and isinstance(item[1], str)):
        number = item[1]
        if isinstance(number, int | np.integer) or (isinstance(number, Tensor) and number.dim() == 0):
            return with_axis({"inputs": item[0], "label": number})
    return with_axis({"inputs": item})


def _with_axis(row: dict[str, Any]) -> dict[str, Any]:
    """A row's own tensors have no axis of rows."""
    given = row["inputs"]
    if isinstance(given, Tensor):
        return {**row, "inputs": given[None]}
    if isinstance(given, tuple) and given and all(isinstance(part, Tensor) for part in given):
        return {**row, "inputs": tuple(part[None] for part in given)}
    if isinstance(given, Mapping):
        return {**row, "inputs": {k: v[None] if isinstance(v, Tensor) else v for k, v in given.items()}}
    return row


def named(given: Any, noun: str, error: type[WhenceError], functions: bool = False) -> dict[str, Any]:
    """Methods or metrics: names, or a dict from any name to parameters; a function stays one, where it may be one."""
    if not isinstance(given, Iterable):
        raise error(f"{noun}s={given!r} names none.\n  Give a list of names, or a dict: see whence.{noun}s.")
    names = [given] if isinstance(given, str) else list(given)
    if not names:
        raise error(f"There is no {noun} to evaluate.\n  Give some: see whence.{noun}s.")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise error(f"The {noun} {twice!r} is listed twice.\n  Give a dict to have it with other parameters.")
    found = dict(given) if isinstance(given, Mapping) else dict.fromkeys(names)
    for name, params in found.items():
        if params is not None and not isinstance(params, Mapping) and not (functions and callable(params)):
            raise error(
                f"The {noun} {name!r} has the parameters {params!r}.\n"
                f'  Give a dict of them ({{"{noun}": …}} names another {noun}), or None.'
            )
    return {name: params if callable(params) else dict(params or {}) for name, params in found.items()}
