"""The plan of a run: which rows of which file are which shard. It is the same for every executor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from whence.errors import FileError, InputError
from whence.runs.sources import Source, surveyed
from whence.runs.storage import Storage

FILE = "plan.jsonl"
SHARD_ROWS = 256


@dataclass(frozen=True)
class Shard:
    """Some rows of one file."""

    shard: int
    file: str
    kind: str
    row: int  # the number of its first row among all rows of the run
    first: int  # the same in its file
    rows: int
    offset: int = 0  # where that row begins, in lines of text
    line: int = 1

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def name(self) -> str:
        return f"part-{self.shard:05d}"

    @property
    def part(self) -> str:
        return f"out/{self.name}.parquet"

    @property
    def maps(self) -> str:
        return f"out/{self.name}.safetensors"

    @property
    def errors(self) -> str:
        return f"errors/{self.name}.jsonl"


def planned(files: Iterable[tuple[str, str]], shard_rows: int) -> tuple[list[Source], list[Shard]]:
    """The files with what is in them, and their shards."""
    sources: list[Source] = []
    shards: list[Shard] = []
    row = 0
    for path, kind in files:
        source, marks = surveyed(path, kind, shard_rows)
        for mark in marks:
            count = min(shard_rows, source.rows - mark.first)
            shards.append(Shard(len(shards), path, kind, row + mark.first, mark.first, count, mark.offset, mark.line))
        row += source.rows
        sources.append(source)
    if not shards:
        raise InputError(f"{sources[0].path!r} has no row.\n  Give data with at least one.")
    return sources, shards


def write(storage: Storage, shards: Iterable[Shard]) -> None:
    content = "".join(f"{json.dumps(shard.plain())}\n" for shard in shards).encode()
    if storage.read(FILE) != content:
        storage.put(FILE, content)


def read(storage: Storage) -> Iterator[Shard]:
    """The shards of a run that was begun."""
    content = storage.read(FILE)
    if content is None:
        raise FileError(f"{storage.path(FILE)} is missing.\n  Run again with the same call.")
    try:
        for line in content.splitlines():
            yield Shard(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise FileError(f"{storage.path(FILE)} is damaged: {error}.\n  Run again with the same call.") from None
