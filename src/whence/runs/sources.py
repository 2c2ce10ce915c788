"""The files that a run reads: which they are, what is in them, and where their shards begin."""

from __future__ import annotations

import codecs
import csv
import glob
import hashlib
import json
import os
import re
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from whence.errors import FileError, InputError
from whence.runs.storage import is_local, library, opened

KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".arrow": "arrow"}
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
SPOOL = "data"  # the folder of a run for rows that were in no file
SPOOLED = re.compile(r"rows-\d{5,}-[0-9a-f]{16}\.parquet")  # and its files
_PLAN = "plan.jsonl"
LONGEST = 1 << 26  # bytes of one record of a CSV file: a quotation mark that nobody closes reads to the end
_STEP = 1 << 20


@dataclass(frozen=True)
class Source:
    """One file of rows."""

    path: str
    kind: str
    size: int
    digest: str  # of its bytes: their SHA-256, or an object store's own ETag
    rows: int

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Mark:
    """Where a shard begins in a file: its first row there, and for lines of text the byte and the line."""

    first: int
    offset: int = 0
    line: int = 1


def found(data: str, out: str = "") -> list[tuple[str, str]]:
    """The files that a path, a folder, a glob or a URL names, each with its kind, in order.

    What runs wrote into the folder, this one in `out` and others, is no data.
    """
    if is_local(data):
        data = os.path.abspath(os.path.expanduser(data))
        if os.path.isdir(data):
            names = _without_runs(_in_folder(data), data, out)
        elif os.path.exists(data):
            names = [data]
        else:
            names = sorted(filter(os.path.isfile, glob.glob(data, recursive=True)))
            names = _without_runs(names, os.path.dirname(data.partition("*")[0]) if "**" in data else None, out)
    else:
        names = _remote(data, out)
    if not names:
        raise FileError(f"There is no data at {data!r}.\n  Give a file, a folder, or a glob such as 'rows/*.jsonl'.")
    return [(name, kind_of(name)) for name in names]


def kind_of(name: str) -> str:
    kind = KINDS.get(os.path.splitext(name)[1].lower())
    if kind is None:
        raise InputError(
            f"{name!r} is not a file of rows that can be read as a stream.\n  Give {', '.join(sorted(KINDS))}."
        )
    return kind


def _in_folder(folder: str) -> list[str]:
    """A data set of Hugging Face's as save_to_disk wrote it, or all files of rows in a folder and its subfolders."""
    if os.path.exists(os.path.join(folder, "dataset_dict.json")):
        splits = json.loads(_text(os.path.join(folder, "dataset_dict.json"))).get("splits", [])
        raise InputError(
            f"{folder!r} holds several data sets ({', '.join(map(str, splits))}).\n  Give the folder of one of them."
        )
    state = os.path.join(folder, "state.json")
    if os.path.exists(state):
        told = json.loads(_text(state))
        if told.get("_indices_files") or told.get("_indices_data_files"):
            raise InputError(
                f"{folder!r} is a selection of rows of another data set.\n"
                "  Call flatten_indices() before save_to_disk()."
            )
        return [os.path.join(folder, one["filename"]) for one in told.get("_data_files", [])]
    names = [os.path.join(at, name) for at, _, files in os.walk(folder) for name in files]
    return sorted(name for name in names if _is_rows(name))


def _without_runs(names: list[str], root: str | None, out: str, there: Container[str] | None = None) -> list[str]:
    """Files that no run wrote which lies in the folder `root`; `there` is what exists, if that is known."""

    @cache
    def is_run(folder: str) -> bool:
        own = [f"{folder}/{name}" for name in ("manifest.json", _PLAN)]
        return folder == out or all(os.path.exists(name) if there is None else name in there for name in own)

    def is_written(name: str) -> bool:
        folder, base = os.path.split(name)
        whole, part = os.path.split(folder)
        inner = part in ("out", "errors") or (part == SPOOL and SPOOLED.fullmatch(base) is not None)
        return (base == _PLAN and is_run(folder)) or (
            inner and root is not None and f"{whole}/".startswith(f"{root.rstrip('/')}/") and is_run(whole)
        )

    return [name for name in names if not is_written(name)]


def _is_rows(name: str) -> bool:
    base = os.path.basename(name)
    return not base.startswith((".", "_")) and os.path.splitext(base)[1].lower() in KINDS


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path!r} cannot be read: {error}.") from None


def _remote(data: str, out: str) -> list[str]:
    fs, path = opened(data)
    try:
        if any(mark in path for mark in "*?["):
            names = sorted(fs.glob(path))
        elif fs.isdir(path):
            every = fs.find(path)
            names = sorted(name for name in every if _is_rows(name))
            own = "" if is_local(out) else opened(out)[1]
            names = _without_runs(names, fs._strip_protocol(path), own, set(every))
        else:
            names = [path] if fs.exists(path) else []
    except Exception as error:  # each store has errors of its own
        raise FileError(f"{data!r} cannot be read: {error}") from None
    return [fs.unstrip_protocol(name) for name in names]


@contextmanager
def reading(path: str) -> Iterator[Any]:
    """A file, opened for its bytes."""
    try:
        if is_local(path):
            with open(path, "rb") as file:
                yield file
        else:
            fs, inner = opened(path)
            with fs.open(inner, "rb") as file:
                yield file
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise FileError(f"{path!r} cannot be read: {error.strerror or error}.") from None


def surveyed(path: str, kind: str, shard_rows: int) -> tuple[Source, list[Mark]]:
    """A file's size, digest and number of rows, and where each shard of it begins; lines are read once, as a stream."""
    marks, rows, digest = (_by_record if kind in ("jsonl", "csv") else _by_rows)(path, kind, shard_rows)
    with reading(path) as file:
        size = file.seek(0, os.SEEK_END)
    return Source(path, kind, size, digest, rows), marks


def _by_rows(path: str, kind: str, shard_rows: int) -> tuple[list[Mark], int, str]:
    rows = row_count(path, kind)
    return [Mark(first) for first in range(0, rows, shard_rows)], rows, digest_of(path)


def row_count(path: str, kind: str) -> int:
    """The rows of a Parquet or an Arrow file, by what it says itself."""
    arrow = library("pyarrow")
    try:
        with reading(path) as file:
            if kind == "parquet":
                table = library("pyarrow.parquet").ParquetFile(file)
                rows, names = table.metadata.num_rows, table.schema_arrow.names
            else:
                table = arrow.ipc.open_stream(file)
                rows, names = sum(batch.num_rows for batch in table), table.schema.names
    except (arrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{path!r} is not a readable {kind} file: {_first(error)}") from None
    _check_names(names, path, "Rename or drop all but one: which of them is meant cannot be told.")
    return int(rows)


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def digest_of(path: str) -> str:
    """What a file's content is known by: an object store's ETag, or the SHA-256 of its bytes."""
    if not is_local(path):
        fs, inner = opened(path)
        tag = fs.info(inner).get("ETag")
        if tag:
            return f"etag:{str(tag).strip(chr(34))}"
    digest = hashlib.sha256()
    with reading(path) as file:
        while part := file.read(_STEP):
            digest.update(part)
    return f"sha256:{digest.hexdigest()}"


# ---- lines of text ----


def _by_record(path: str, kind: str, shard_rows: int) -> tuple[list[Mark], int, str]:
    marks: list[Mark] = []
    rows, digest = 0, hashlib.sha256()
    named = kind != "csv"  # whether the columns have their names
    with reading(path) as file:
        head = file.read(4)
        if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise InputError(f"{path!r} is text in UTF-16.\n  Save it as UTF-8.")
        file.seek(0)
        for offset, line, fields in records(file, kind, path, 0, 1, digest):
            if not named:
                named = bool(header(fields, path))
                continue
            if rows % shard_rows == 0:
                marks.append(Mark(rows, offset, line))
            rows += 1
    return marks, rows, f"sha256:{digest.hexdigest()}"


def header(fields: list[str], path: str) -> list[str]:
    """The names of a CSV file's columns, which its first record gives."""
    try:
        names = [field.encode("latin-1").decode("utf-8") for field in fields]
    except UnicodeDecodeError:
        raise InputError(f"The names of the columns of {path!r} are not text in UTF-8.\n  Save it as UTF-8.") from None
    _check_names(names, path, "Its first line must name the columns, each once.")
    return names


def _check_names(names: list[str], path: str, way: str) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path!r} has several columns named {twice!r}.\n  {way}")


def records(
    file: Any, kind: str, path: str, offset: int, line: int, digest: Any = None
) -> Iterator[tuple[int, int, Any]]:
    """The records of a file from a byte on: (its byte, its line, a line of JSON or the fields of a CSV record).

    Empty lines are no records. Fields are read as Latin-1, so that their bytes are still known.
    """
    file.seek(offset)
    if kind == "jsonl":
        for text in file:
            if digest is not None:
                digest.update(text)
            if text.strip():
                yield offset, line, text
            offset, line = offset + len(text), line + 1
        return
    at = [offset, line]  # where the record ends that was read last

    def lines() -> Iterator[str]:
        for text in file:
            if digest is not None:
                digest.update(text)
            first = at[0] == 0
            at[0] += len(text)
            at[1] += 1
            yield (text.removeprefix(codecs.BOM_UTF8) if first else text).decode("latin-1")

    before = csv.field_size_limit(LONGEST)
    try:
        start, first = at
        for fields in csv.reader(lines()):
            if fields:
                yield start, first, fields
            start, first = at
    except csv.Error as error:
        raise InputError(
            f"The record in line {first} of {path!r} cannot be read: {error}.\n"
            "  A quotation mark may not be closed: save the file again as CSV."
        ) from None
    finally:
        csv.field_size_limit(before)
