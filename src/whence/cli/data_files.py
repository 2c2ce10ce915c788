"""Files of rows: plain text, CSV and JSON lines, up to a size limit."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

from whence.errors import InputError

_MOST = 1 << 30  # bytes of a file or a pipe: a device may never end
_STEP = 1 << 20


def text_of(path: Path | None, way_out: str) -> str:
    """The whole text of a file, or of standard input."""
    name = "Standard input" if path is None else repr(str(path))
    if path is None:
        source = getattr(sys.stdin, "buffer", None)
        whole = sys.stdin.read().encode() if source is None else _bytes(source, name)
    else:
        with path.open("rb") as file:
            whole = _bytes(file, name)
    try:
        return whole.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise InputError(f"{name} is not text in UTF-8.\n  {way_out}") from None


def _bytes(source: BinaryIO, name: str) -> bytes:
    """All bytes, unless they cannot be text or exceed the limit: a device may give zeros for ever."""
    parts, count = [], 0
    while part := source.read(_STEP):
        parts.append(part)
        count += len(part)
        if b"\0" in part:
            raise InputError(f"{name} is not text in UTF-8: it has zero bytes.\n  Give another file.")
        if count > _MOST:
            raise InputError(f"{name} has more than {_MOST >> 30} GB of text.\n  Split it.")
    return b"".join(parts)


def table_of(text: str, path: Path) -> list[dict[str, Any]]:
    """The rows of a CSV table as dicts by column; fields may have any length."""
    before = csv.field_size_limit(max(len(text), 1))
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InputError(f"{str(path)!r} is not a CSV table: {error}.\n  Save it again as CSV.") from None
    finally:
        csv.field_size_limit(before)
    for number, row in enumerate(rows, 1):
        if None in row:
            raise InputError(
                f"Row {number} of {str(path)!r} has more fields than the table has columns.\n"
                "  Put fields with commas in quotation marks, and name all columns in the first line."
            )
    return rows


def objects_of(text: str, path: Path) -> list[dict[str, Any]]:
    """The JSON objects of a file, one per line."""
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        row = _parsed(line)
        if not isinstance(row, dict):
            raise InputError(
                f'Line {number} of {str(path)!r} is not a JSON object.\n  Give one per line: {{"text": "…"}}.'
            )
        rows.append(row)
    return rows


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # ValueError: a number of thousands of digits, too
        return None
