"""Rows that are in no file of their own, written down as Parquet before a run: iterables, and folders of images."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, time
from decimal import Decimal
from itertools import islice
from typing import Any

from whence.errors import InputError
from whence.runs.sources import IMAGES, SPOOL, digest_of
from whence.runs.storage import Storage, library

_ROWS = 4096  # of one file: they are held in memory until it is written


def is_images(folder: str) -> bool:
    """Whether a folder has images, and no file of rows."""
    return os.path.isdir(folder) and any(_images(folder))


def _images(folder: str) -> Iterator[str]:
    for at, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in IMAGES:
                yield os.path.join(at, name)


def images(folder: str) -> Iterator[dict[str, Any]]:
    """A row for each image; the folder that it is in, if it is not the outermost, names its class."""
    for path in _images(folder):
        inner = os.path.relpath(os.path.dirname(path), folder)
        label = None if inner == "." else inner.replace(os.sep, "/")
        yield {"image": path, "label": label, "digest": digest_of(path)}


def spooled(storage: Storage, rows: Iterable[Any]) -> list[tuple[str, str]]:
    """The rows as Parquet files of the run, named by what is in them; a file that is already there is not written.

    The rows of a run that goes on are therefore compared with those it began with: other rows have other names.
    """
    arrow, parquet = library("pyarrow"), library("pyarrow.parquet")
    stream, count = iter(rows), 0
    found: list[tuple[str, str]] = []
    there = storage.names(SPOOL)
    while some := [_row(item, count + i) for i, item in enumerate(islice(stream, _ROWS))]:
        names = list(dict.fromkeys(name for row in some for name in row))
        try:
            table = arrow.Table.from_pylist([{n: row.get(n) for n in names} for row in some])
        except UnicodeEncodeError:
            raise InputError(
                f"Row {count + _unwritable(some)} holds half of a surrogate pair, which cannot be written as UTF-8.\n"
                "  Decode it with errors='replace', or leave the row out."
            ) from None
        except (arrow.ArrowInvalid, arrow.ArrowTypeError, OverflowError) as error:
            raise InputError(
                f"The rows {count} to {count + len(some) - 1} cannot be written as a table: {str(error).strip()}\n"
                "  Give rows whose entries of one name are of one kind."
            ) from None
        out = io.BytesIO()
        parquet.write_table(table, out, compression="zstd", write_page_checksum=True)
        digest = hashlib.sha256(out.getvalue()).hexdigest()[:16]
        name = f"rows-{len(found):05d}-{digest}.parquet"
        if name not in there:
            storage.put(f"{SPOOL}/{name}", out.getvalue())
        found.append((storage.path(f"{SPOOL}/{name}"), "parquet"))
        count += len(some)
    if not found:
        raise InputError("The data set is empty.\n  Give at least one row.")
    return found


def _unwritable(rows: Sequence[Mapping[str, Any]]) -> int:
    """The place of the first row with half of a surrogate pair."""
    for place, row in enumerate(rows):
        try:
            "".join(_texts(row)).encode()
        except UnicodeEncodeError:
            return place
    raise AssertionError("some row has text that cannot be written")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for item in [*value, *value.values()] if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _row(item: Any, number: int) -> dict[str, Any]:
    """A row of any kind as a dict of what Parquet can hold."""
    if isinstance(item, Mapping):
        return {str(key): _plain(value, number) for key, value in item.items()}
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, tuple) and len(item) == 2 and all(isinstance(part, str) for part in item):
        return {"text": item[0], "second": item[1]}
    if isinstance(item, tuple) and len(item) == 2:
        label = item[1].tolist() if hasattr(item[1], "tolist") else item[1]
        if isinstance(label, int):
            return {**_row(item[0], number), "label": label}
    if hasattr(item, "save") and hasattr(item, "convert"):  # a PIL image
        return {"image": _plain(item, number)}
    if isinstance(item, os.PathLike):
        return {"image": os.path.abspath(item)}
    return {"inputs": _plain(item, number)}


def _plain(value: Any, number: int) -> Any:
    if hasattr(value, "save") and hasattr(value, "convert"):
        out = io.BytesIO()
        value.save(out, "PNG")
        return out.getvalue()
    if hasattr(value, "tolist"):  # a tensor or an array
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(item, number) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, number) for item in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, str | bytes | int | float | bool | date | time | Decimal):
        return value
    raise InputError(f"Row {number} holds {type(value).__name__}, which cannot be written down.\n  Give plain values.")
