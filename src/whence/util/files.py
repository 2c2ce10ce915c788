"""Files are written whole or not at all."""

from __future__ import annotations

import csv
import io
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from whence.errors import FileError, ParameterError


def put(path: str | PathLike[str], content: bytes | str) -> None:
    """Write a temporary file and rename it. A link's target is replaced, not the link; an old file's mode is kept."""
    beside = None
    try:
        place = Path(os.path.realpath(path))
        mode = _mode(place)
        beside = place.with_name(f".whence-{secrets.token_hex(6)}")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            beside.chmod(mode)
        os.replace(beside, place)
    except (OSError, ValueError) as error:  # ValueError: a name with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise FileError(
            f"cannot write {fspath(path)}: {reason}.\n  Give a file in a folder that exists and has room."
        ) from None
    finally:
        if beside is not None:
            beside.unlink(missing_ok=True)


def _mode(place: Path) -> int | None:
    """The mode of the file that is replaced, which must be writable; None where there is none."""
    if not place.exists():
        return None
    if not place.is_file():
        raise OSError(0, "it exists and is not a regular file")
    if not os.access(place, os.W_OK):
        raise OSError(0, "it exists and may not be written")
    return place.stat().st_mode & 0o7777


Place = str | PathLike[str] | None  # a file to write to, or none


def written(text: str, path: Place) -> str:
    """The text; written to a file too, if there is one."""
    if path is not None:
        put(path, text)
    return text


def page_written(page: str, path: Place) -> str:
    """A page; written to a file too, if there is one: not under a name that was meant as its title."""
    if path is not None and Path(path).suffix.lower() not in (".html", ".htm"):
        raise ParameterError(
            f"to_html({fspath(path)!r}) writes a page, but this name does not end in .html.\n"
            "  Give such a name; a page's title is to_html(title=…), and save(path) writes other forms."
        )
    return written(page, path)


def csv_text(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """A table as CSV; texts that a spreadsheet would take for formulas begin with an apostrophe."""
    return "".join(_line([_cell(cell) for cell in line]) for line in (head, *lines))


def _line(cells: Sequence[Any]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(cells)  # so that cells with either of the two are quoted
    return out.getvalue().removesuffix("\r\n") + "\n"


_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]|[\t\r\n]")  # how a cell begins that spreadsheets work out
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)")


def _cell(cell: Any) -> Any:
    """Numbers stay numbers; all else is text."""
    if cell is None or isinstance(cell, bool | int | float):
        return cell
    text = str(cell)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text
