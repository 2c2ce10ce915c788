"""One file form for results: safetensors for numbers, JSON in its header for the rest. Nothing is ever unpickled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from torch import Tensor

from whence.errors import FileError
from whence.results.attribution import Attribution
from whence.results.forms import by_name
from whence.util.files import put

_FORM = "whence.attribution.1"
_TENSORS = "tensor"  # {"tensor": name} stands for a tensor in the JSON
_RENAMED = {"positive": "raising"}  # in files of older versions, which also have what is left of the values


def save(attribution: Attribution, path: str | PathLike[str]) -> None:
    """Write an attribution."""
    from safetensors.torch import save as bytes_of

    tensors: dict[str, Tensor] = {}
    content = {name: packed(getattr(attribution, name), name, tensors) for name in attribution.__dataclass_fields__}
    put(path, bytes_of(tensors, {"form": _FORM, "content": json.dumps(content)}))


def load(path: str | PathLike[str]) -> Attribution:
    """Read an attribution; raise FileError for any other file."""
    from safetensors import SafetensorError, safe_open

    if Path(path).is_dir():
        raise FileError(f"{fspath(path)!r} is a folder.\n  Give a file that save() wrote.")
    try:
        with safe_open(fspath(path), "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except FileNotFoundError:
        raise FileError(f"There is no file {fspath(path)!r}.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise FileError(
            f"{fspath(path)!r} is not a readable safetensors file: {error}.\n  It may be cut short or of another kind."
        ) from None
    if metadata.get("form") != _FORM:
        raise FileError(
            f"{fspath(path)!r} is not an attribution that this version can read (form {metadata.get('form')!r}).\n"
            "  Give a file that save() wrote."
        )
    try:
        content = {_RENAMED.get(name, name): value for name, value in json.loads(metadata["content"]).items()}
        content.pop("negative", None)
        a = Attribution(**{name: unpacked(value, tensors) for name, value in content.items()})
        for name, fits in _FITS.items():
            if not fits(getattr(a, name), len(a)):
                raise ValueError(f"{name!r} has another form")
        if a.baseline_value is not None and a.baseline_value.shape != a.output_value.shape:
            raise ValueError("'baseline_value' has another shape than 'output_value'")
        if not _of_one_length(a):
            raise ValueError("its units, spans, words and segments are not of one length")
        repr(a[0])  # reads every field by row
        return a
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise FileError(f"{fspath(path)!r} is damaged: {error}.\n  Save it again.") from None


# ---- what a field looks like ----


def _tensors(value: Any, rows: int) -> bool:
    """One number per unit and row: a tensor, or several by name or in order."""
    parts = by_name(value, value).values()
    return bool(parts) and all(isinstance(part, Tensor) and part.dim() > 0 and len(part) == rows for part in parts)


def _numbers(value: Any, rows: int) -> bool:
    return isinstance(value, Tensor) and value.dim() in (1, 2)


def _rows(value: Any, rows: int) -> bool:
    return value is None or (isinstance(value, list) and len(value) == rows)


def _lists(value: Any, rows: int) -> bool:
    if isinstance(value, Mapping):  # of several inputs
        return all(_lists(own, rows) for own in value.values())
    return _rows(value, rows) and all(isinstance(row, list) for row in value or ())


def _spans(value: Any, rows: int) -> bool:
    return _lists(value, rows) and all(
        isinstance(span, tuple) and len(span) == 2 and all(isinstance(end, int) for end in span)
        for row in value or ()
        for span in row
    )


def _texts(value: Any, rows: int) -> bool:
    return _rows(value, rows) and all(isinstance(text, str | tuple) for text in value or ())


def _target(value: Any, rows: int) -> bool:
    return isinstance(value, str) or (isinstance(value, Tensor | list) and len(value) == rows)


def _named(value: Any, rows: int) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _receipt(value: Any, rows: int) -> bool:
    """The entries that views read, where there are any; files of older versions have fewer."""
    if not _named(value, rows):
        return False
    items = {name: value.get(name) or [] for name in ("unruled", "unseen", "warnings", "converged", "relevance")}
    lists = all(isinstance(item, list) for item in items.values()) and isinstance(value.get("per_row", []), list)
    keys = {"unruled": "op", "unseen": "node"}
    return lists and all(
        isinstance(entry, Mapping) and key in entry for name, key in keys.items() for entry in items[name]
    )


def _name(value: Any, rows: int) -> bool:
    return isinstance(value, str)


_FITS: dict[str, Callable[[Any, int], bool]] = {
    "values": _tensors, "output_value": _numbers, "target": _target, "units": _lists, "spans": _spans,
    "special": _lists, "words": _lists, "segments": _lists, "text": _texts, "labels": _rows, "messages": _rows,
    "answer": _rows, "method": _name,
    "params": _named, "receipt": _receipt, "kept": _named,
}  # fmt: skip


def _of_one_length(a: Attribution) -> bool:
    """Whether the lists about a row's units have one entry for each unit."""
    lists = [getattr(a, name) for name in ("units", "spans", "special", "words", "segments")]
    given = [[len(row) for row in rows] for rows in lists if isinstance(rows, list)]
    return all(lengths == given[0] for lengths in given)


# ---- fields as JSON ----


def packed(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON can hold it; its tensors are put aside by name."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {_TENSORS: name}
    if isinstance(value, Mapping):
        return {"dict": [[key, packed(item, f"{name}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, tuple | list):
        return {type(value).__name__: [packed(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise FileError(f"{name} holds {type(value).__name__}, which cannot be saved.\n  Drop it before saving.")


def unpacked(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """And back."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == _TENSORS:
        return tensors[content]
    if kind == "dict":
        return {key: unpacked(item, tensors) for key, item in content}
    items = [unpacked(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
