"""A result file: one line of JSON per finished chunk of rows, so that an interrupted evaluation goes on.

The first line says what the evaluation is about, and each line has a check sum. One evaluation writes at a time.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from whence.errors import FileError, warn

VERSION = 2  # 1: without check sums, and without the model's code and settings in the header
_START = b'{"whence"'
_PLAINLY = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)  # wait for no pipe, change no line end
_LONGEST = 1 << 28  # bytes of a header; a file without one is not read to its end


class Journal:
    """The finished chunks of one evaluation, in a file if there is a path; `fits` says which lines are of it.

    `chunks` are those which the file had and nobody took yet.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, header: Mapping[str, Any], fits: Callable[[Any], bool]
    ) -> None:
        if path is not None and not isinstance(path, str | os.PathLike):
            raise FileError(f"resume={path!r} is not a file name.\n  Give a path.")
        self.path = None if path is None else Path(path)
        self.chunks: dict[int, Any] = {}
        self.fits, self._file = fits, -1
        if self.path is None:
            return
        try:
            self._file = self._opened()
            self._begin(json.loads(json.dumps(header)))
        except OSError as error:
            self.close()
            raise self._failed(error, "read or write") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let others write."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def add(self, number: int, told: Mapping[str, Any]) -> Any:
        """Keep a chunk's results in the file; they are given back as the file has them."""
        line = json.loads(json.dumps({"chunk": number, **told}))
        if self.path is not None:
            self._write(line)
        return line

    def taken(self, number: int, content: str | None) -> Any:
        """A chunk's results out of the file, or None; of a stream's, only if its rows are the same as then."""
        found = self.chunks.pop(number, None)
        if found is not None and found.get("content") != content:
            raise FileError(
                f"{str(self.path)!r} has results of other rows for chunk {number} of the stream.\n"
                "  Give the stream that it began with, or another name."
            )
        return found

    # ---- the file ----

    def _opened(self) -> int:
        """The file, made if need be, which nobody else has."""
        assert self.path is not None
        try:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | _PLAINLY, 0o666)
        except (IsADirectoryError, NotADirectoryError, FileNotFoundError, ValueError):  # ValueError: a NUL in the name
            raise self._no_place() from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise self._no_place()
            if not _locked(file):
                raise FileError(
                    f"Another evaluation is writing {str(self.path)!r}.\n  Wait until it is done, or give another name."
                )
        except BaseException:
            os.close(file)
            raise
        return file

    def _begin(self, header: dict[str, Any]) -> None:
        """Read what is there; what was cut short at the end goes."""
        with open(self._file, "rb", closefd=False) as file:
            first = file.readline(_LONGEST)
            if not first or _torn(first):
                os.ftruncate(self._file, 0)
                self._write({"whence": header})
                return
            old = self._header(first, header)
            good, lines = file.tell(), file.read().splitlines(keepends=True)
        bad = []
        for number, line in enumerate(lines, 2):
            found = _read(line, checked=not old)
            if found == {"whence": header}:
                continue
            if found is not None and self.fits(found):
                self.chunks.setdefault(found["chunk"], found)
            elif number == len(lines) + 1 and not line.endswith(b"\n"):
                break  # an evaluation was interrupted as it wrote
            else:
                bad.append(number)
            good += len(line)
        os.ftruncate(self._file, good)
        os.lseek(self._file, good, os.SEEK_SET)
        if bad:
            warn(
                f"{str(self.path)!r} is damaged: {_listed(bad)} cannot be read, or has another check sum than it was "
                "written with. What stood there is evaluated again."
            )

    def _header(self, line: bytes, header: dict[str, Any]) -> bool:
        """Check that the file is of this evaluation; whether it is of the version before."""
        found = _read(line, checked=False) if line.startswith(_START) else None
        first = None if found is None else found.get("whence")
        if not isinstance(first, dict) or not line.endswith(b"\n"):
            raise FileError(
                f"{str(self.path)!r} is not a result file of an evaluation.\n  Give another name, or remove it."
            )
        old = first.get("version") == 1
        if not old and first.get("version") != header["version"]:
            raise FileError(
                f"{str(self.path)!r} is of version {first.get('version')!r}, which this Whence does not know.\n"
                "  Give another name."
            )
        if not old and _read(line, checked=True) is None:
            raise FileError(f"{str(self.path)!r} is damaged: its first line has another check sum.\n  Remove it.")
        for name in header:
            if first.get(name) != header[name] and not (old and name in ("version", "model")):
                raise FileError(
                    f"{str(self.path)!r} belongs to an evaluation with other {name}.\n"
                    "  Give another name, or the same call as then."
                )
        if old:
            warn(
                f"{str(self.path)!r} was written by an earlier version, which did not note code and settings of the "
                "model: they are taken to be the same, and so is what methods and metrics mean."
            )
        return old

    def _write(self, line: Mapping[str, Any]) -> None:
        """Add a line, or nothing of it."""
        text = json.dumps(line)
        whole = f'{text[:-1]}, "check": "{_check(text)}"}}\n'.encode()
        start = os.lseek(self._file, 0, os.SEEK_END)
        try:
            rest = memoryview(whole)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError as error:
            os.ftruncate(self._file, start)
            raise self._failed(error, "write") from None

    def _failed(self, error: OSError, what: str) -> FileError:
        return FileError(
            f"cannot {what} the result file {str(self.path)!r}: {error.strerror or error}.\n"
            "  What was finished before is kept there: see to it, and evaluate again with the same call."
        )

    def _no_place(self) -> FileError:
        return FileError(
            f"{str(self.path)!r} is not a place for a result file.\n  Give a file in a folder that exists."
        )


def _locked(file: int) -> bool:
    """Whether nobody else has the file; it is ours until it is closed, however this process ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # nor on this disk
        return True
    return True


def _check(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(line: bytes, checked: bool) -> dict[str, Any] | None:
    """A line, without its check sum; None where it is none, or its check sum is wrong (or missing, if `checked`)."""
    try:
        found = json.loads(line.decode())
    except (UnicodeDecodeError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not line.endswith(b"\n"):
        return None
    check = found.pop("check", None)
    if check is None:
        return None if checked else found
    return found if check == _check(json.dumps(found)) else None


def _torn(line: bytes) -> bool:
    """Whether this is the beginning of a header, whose evaluation was interrupted before it found anything."""
    try:
        return line.startswith(_START) and not line.endswith(b"\n") and not json.loads(line)
    except (ValueError, RecursionError):
        return True


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if numbers[5:] else "")
    return f"line {shown}" if len(numbers) == 1 else f"each of the lines {shown}"
