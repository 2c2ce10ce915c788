"""The rows of a shard, read as a stream: a row that cannot be read is an error in its place, and the others follow."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from whence.errors import FileError, InputError, WhenceError
from whence.runs.plan import Shard
from whence.runs.sources import header, reading, records
from whence.runs.storage import is_local, library

Read = tuple[int, dict[str, Any] | WhenceError]  # its line (of text) or number (of a table) in the file, and the row
_BATCH = 256  # rows that are decoded at a time


class Reader:
    """Reads shards; of a file that is read on, what comes before the shard is not read again."""

    def __init__(self) -> None:
        self._path, self._next = "", 0
        self._batches: Iterator[Any] = iter(())
        self._rest: Any = None  # what is left of the batch that was read last
        self._open = ExitStack()

    def __call__(self, shard: Shard) -> Iterator[Read]:
        """Each row of the shard; as many as the plan says, or an error."""
        count = 0
        for read in _lines(shard) if shard.kind in ("jsonl", "csv") else self._table(shard):
            yield read
            count += 1
        if count != shard.rows:
            raise FileError(
                f"{shard.file!r} has changed: it had {shard.rows} rows from {shard.first} on, and now has {count}.\n"
                "  Run over the data that the run began with, or give another out=."
            )

    def close(self) -> None:
        self._open.close()
        self._path = ""

    def _table(self, shard: Shard) -> Iterator[Read]:
        if shard.file != self._path or shard.first < self._next:
            self.close()
            self._batches, self._path = self._opened(shard), shard.file
        end = shard.first + shard.rows
        while self._next < end:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            if batch is None:
                return
            skipped = min(max(shard.first - self._next, 0), batch.num_rows)
            taken = batch.slice(skipped, end - self._next - skipped)
            for row in _rows(taken):
                skipped += 1
                yield self._next + skipped, row
            self._next += skipped
            self._rest = batch.slice(skipped) if skipped < batch.num_rows else None

    def _opened(self, shard: Shard) -> Iterator[Any]:
        """The batches of a table, from the row group on in which the shard begins."""
        arrow = library("pyarrow")
        self._rest, self._next, start = None, 0, 0
        try:
            file = self._open.enter_context(reading(shard.file))
            if shard.kind == "parquet":
                whole = library("pyarrow.parquet").ParquetFile(file)
                groups = [whole.metadata.row_group(i).num_rows for i in range(whole.num_row_groups)]
                while groups and self._next + groups[start] <= shard.first:
                    self._next, start = self._next + groups[start], start + 1
                return _caught(whole.iter_batches(_BATCH, row_groups=range(start, len(groups))), shard)
            if is_local(shard.file):
                file = self._open.enter_context(arrow.memory_map(shard.file))
            return _caught(arrow.ipc.open_stream(file), shard)
        except (arrow.ArrowInvalid, OSError) as error:
            raise FileError(f"{shard.file!r} cannot be read: {error}.") from None


def _caught(batches: Any, shard: Shard) -> Iterator[Any]:
    try:
        yield from batches
    except (library("pyarrow").ArrowInvalid, OSError) as error:
        raise FileError(f"{shard.file!r} cannot be read: {error}.") from None


def _rows(batch: Any) -> Iterator[dict[str, Any] | WhenceError]:
    """The rows of a batch; other programs write tables whose texts are not in UTF-8."""
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for place in range(batch.num_rows):
            try:
                yield batch.slice(place, 1).to_pylist()[0]
            except UnicodeDecodeError:
                yield InputError("The row holds text that is not in UTF-8.")


def _lines(shard: Shard) -> Iterator[Read]:
    with reading(shard.file) as file:
        names: list[str] = []
        if shard.kind == "csv":
            names = header(next(records(file, "csv", shard.file, 0, 1))[2], shard.file)
        found = records(file, shard.kind, shard.file, shard.offset, shard.line)
        for _, (_, line, content) in zip(range(shard.rows), found, strict=False):
            try:
                yield line, _fields(names, content) if shard.kind == "csv" else _object(content)
            except WhenceError as error:
                yield line, error


def _object(line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError("The line is not text in UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"The line is not JSON: {error}.") from None
    if b"\\ud" in line.lower():
        _check_text(row)
    if isinstance(row, str):  # as in a list of texts
        return {"text": row}
    if not isinstance(row, Mapping):
        raise InputError(f'The line is not a JSON object, but {type(row).__name__}.\n  Write {{"text": "…"}}.')
    return dict(row)


def _check_text(row: Any) -> None:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("The line holds half of a surrogate pair, which is no text.") from None


def _fields(names: list[str], fields: list[str]) -> dict[str, Any]:
    if len(fields) != len(names):
        raise InputError(f"The record has {len(fields)} fields, but the table has {len(names)} columns.")
    try:
        return {name: _decoded(field) for name, field in zip(names, fields, strict=True)}
    except UnicodeDecodeError:
        raise InputError("The record is not text in UTF-8.") from None


def _decoded(field: str) -> str:
    return field.encode("latin-1").decode("utf-8")
