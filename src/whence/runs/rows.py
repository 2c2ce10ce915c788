"""From a row of a file to what `explain` takes: texts, pairs, images, numbers; its label and its id."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.adapters.wrapped import Wrapped
from whence.errors import InputError
from whence.runs.storage import is_local

_PAIRS = (("text", "second"), ("question", "context"))
_TOLD = 60  # letters of a value in a message
_BESIDE = ("label", "id", "mask", "rationale", "digest")  # entries that are not explained


@dataclass(frozen=True, eq=False)
class Row:
    """One row that can be explained."""

    place: int  # in its shard
    inputs: Any
    group: tuple[Any, ...]  # rows of one group fit into one batch
    length: int  # rows of like length go together
    label: Any = None
    id: str | None = None
    image: str | None = None
    beside: Mapping[str, Any] | None = None  # what metrics may need


def kind_of(model: Any) -> str:
    """What a model reads: "text", "image", "image and text", "numbers"; "any" where a function of the user's does."""
    if not isinstance(model, Wrapped):
        return "numbers"
    if model.task == "function":
        return "any"
    task = model.entry
    return ("image and text" if task.reads_pairs else "image") if task.reads_images else "text"


def read(
    row: Mapping[str, Any], place: int, kind: str, columns: Mapping[str, str], folder: str, entries: Sequence[str] = ()
) -> Row:
    """A row as the model takes it; entries by other names are renamed as `columns` says.

    `entries` are those of the data's first row: features go to the model in their order, whatever the order here.
    """
    missing = next((column for column in columns.values() if column not in row), None)
    if missing is not None:
        raise InputError(f"The row has no entry {missing!r}, but {_listed(row)}.")
    row, first = _renamed(row, columns), _renamed(dict.fromkeys(entries), columns)
    if kind == "numbers" and first and "inputs" not in {*row, *first}:
        row = _ordered(row, first)
    inputs, group, length, image = _READERS[kind](row, folder)
    label, own = row.get("label"), row.get("id")
    beside = {name: row[name] for name in ("mask", "rationale") if row.get(name) not in (None, "")}
    return Row(place, inputs, group, length, None if label == "" else label, None if own is None else str(own), image,
               beside)  # fmt: skip


def _renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The entries by their usual names, in their places: what is the label by another name is no feature as well."""
    usual: dict[str, list[str]] = {}
    for name, column in columns.items():
        usual.setdefault(column, []).append(name)
    names = {own: usual.get(own, [own] if own not in columns else []) for own in row}
    return {name: row[own] for own, known in names.items() for name in known}


def _ordered(row: Mapping[str, Any], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Features by their names, in the order of the first row."""
    mine, first = ({name: None for name in names if name not in _BESIDE} for names in (row, entries))
    if mine.keys() != first.keys():
        raise InputError(
            f"The row has the features {_listed(mine)}, but the first row has {_listed(first)}.\n"
            "  Give every row the same ones."
        )
    return {**{name: row[name] for name in first}, **{name: row[name] for name in row if name in _BESIDE}}


def _listed(row: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, row)) or "nothing"


def _missing(row: Mapping[str, Any], name: str) -> InputError:
    return InputError(
        f"The row has no entry {name!r}, but {_listed(row)}.\n"
        f"  Name the entry with columns={{{name!r}: …}} (--columns {name}=…)."
    )


def _text(row: Mapping[str, Any], folder: str) -> Any:
    first, second = next((pair for pair in _PAIRS if pair[0] in row), _PAIRS[0])
    if first not in row:
        raise _missing(row, "text")
    parts = [row[first]] if row.get(second) is None else [row[first], row[second]]
    for part in parts:
        if not isinstance(part, str):
            raise InputError(f"The row's text is {type(part).__name__}.\n  Give a string.")
    return (parts[0] if len(parts) == 1 else tuple(parts)), (len(parts),), sum(map(len, parts)), None


def _image(row: Mapping[str, Any], folder: str) -> Any:
    if row.get("image") is None:
        raise _missing(row, "image")
    given, path = _opened(row["image"], folder)
    return given, (), 0, path


def _opened(given: Any, folder: str) -> tuple[Any, str | None]:
    """An image as a path or opened, and its path."""
    if isinstance(given, Mapping):  # as Hugging Face's data sets keep images
        given = given.get("bytes") if given.get("bytes") is not None else given.get("path")
    if isinstance(given, bytes):
        return _decoded(given), None
    if not isinstance(given, str):
        raise InputError(f"The row's image is {type(given).__name__}.\n  Give a path or the bytes of an image file.")
    path = given if not is_local(given) or os.path.isabs(given) else os.path.join(folder, given)
    if is_local(path):
        return path, path
    from whence.runs.sources import reading

    with reading(path) as file:
        return _decoded(file.read()), path


def _decoded(content: bytes) -> Any:
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(content))
        image.load()
    except (OSError, ValueError, SyntaxError):
        raise InputError("The row's image cannot be decoded.") from None
    return image


def _image_and_text(row: Mapping[str, Any], folder: str) -> Any:
    image, _, _, path = _image(row, folder)
    text, group, length, _ = _text({name: row[name] for name in row if name != "second"}, folder)
    return (image, text), group, length, path


def _numbers(row: Mapping[str, Any], folder: str) -> Any:
    """The entry "inputs", or all entries as features."""
    if "inputs" in row:
        given = row["inputs"]
        if isinstance(given, Mapping):
            arrays = {name: _array(part, name) for name, part in given.items()}
            return arrays, tuple((name, part.shape) for name, part in arrays.items()), 0, None
        array = _array(given, "inputs")
        return array, (array.shape,), 0, None
    features = {name: value for name, value in row.items() if name not in _BESIDE}
    if not features:
        raise _missing(row, "inputs")
    return np.array([_number(value, name) for name, value in features.items()]), (tuple(features),), 0, None


def _array(given: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        array = np.array(given)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        raise InputError(f"The row's entry {name!r} is not a list of numbers, nor lists of one length of them.")
    return array


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"The row's feature {name!r} is {_short(value)}, which is no number.\n"
            '  Give tensors as {"inputs": …}, of several inputs {"inputs": {name: …}}.'
        ) from None


def _short(value: Any) -> str:
    told = repr(value)
    return told if len(told) <= _TOLD else f"{told[:_TOLD]}…"


def _any(row: Mapping[str, Any], folder: str) -> Any:
    if "text" in row or "question" in row:
        return _text(row, folder)
    if "image" in row:
        return _image(row, folder)
    if "inputs" in row:
        return row["inputs"], (), 0, None
    return {name: value for name, value in row.items() if name not in _BESIDE}, (), 0, None


_READERS = {"text": _text, "image": _image, "image and text": _image_and_text, "numbers": _numbers, "any": _any}


def cut(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """Batches of rows that fit together, of like length; the same ones for the same rows."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return [
        some[start : start + size]
        for group in groups.values()
        for some in [sorted(group, key=lambda row: row.length)]
        for start in range(0, len(some), size)
    ]


def together(rows: Sequence[Row], kind: str) -> tuple[Any, dict[str, Any]]:
    """A batch as `explain` takes it, and the options that it brings."""
    given = [row.inputs for row in rows]
    if kind != "numbers":
        return given, {}
    if isinstance(given[0], Mapping):
        return {name: np.stack([row[name] for row in given]) for name in given[0]}, {}
    names = rows[0].group[0]
    features = bool(names) and isinstance(names[0], str)
    return np.stack(given), {"names": list(names)} if features else {}


def label_of(label: Any, model: Any) -> str | None:
    """A label by its name; a number is the number of a class."""
    number = class_of(label)
    names = model.labels if isinstance(model, Wrapped) else {}
    if number is None:
        return None if label is None else str(label)
    return names.get(number, str(number))


def classes_of(names: Iterable[str], model: Any) -> dict[str, int]:
    """Those of some names that are classes of the model, with their numbers; without names of its own, numbers are."""
    own = model.labels if isinstance(model, Wrapped) else {}
    numbers = {name: number for number, name in own.items()}
    found = {name: numbers.get(name) if own else class_of(name) for name in names}
    return {name: number for name, number in sorted(found.items()) if number is not None}


def class_of(label: Any) -> int | None:
    """A label as the number of a class, where it is one."""
    try:
        number = float(label)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if math.isfinite(number) and number == int(number) else None
