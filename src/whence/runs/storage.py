"""Where a run's files are: a folder, or a prefix of an object store. Each file is put in place whole, or not at all."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.errors import FileError, ParameterError
from whence.util.libraries import imported

_UNFINISHED = re.compile(r"\..+-\d+-[0-9a-f]{8}\.tmp")  # the names that `_put` gives


@dataclass(frozen=True)
class Storage:
    """A folder by its address; names of files are relative to it."""

    address: str  # an absolute path, or a URL

    @property
    def local(self) -> bool:
        return is_local(self.address)

    def path(self, name: str) -> str:
        return f"{self.address.rstrip('/')}/{name}" if name else self.address

    def exists(self, name: str) -> bool:
        with _told(self.path(name), "read"):
            fs, path = opened(self.path(name))
            return bool(fs.exists(path))

    def read(self, name: str) -> bytes | None:
        """A file's bytes; None where there is no such file."""
        with _told(self.path(name), "read"):
            fs, path = opened(self.path(name))
            try:
                return fs.cat_file(path)
            except FileNotFoundError:
                return None

    def put(self, name: str, content: bytes) -> None:
        """Write a file: under another name, synced, and renamed; on an object store, one request for the final key."""
        with _told(self.path(name), "write"):
            if self.local:
                _put(Path(self.path(name)), content)
            else:
                fs, path = opened(self.path(name))
                fs.pipe_file(path, content)

    def names(self, folder: str) -> set[str]:
        """The names of the files in a folder, unfinished ones too."""
        with _told(self.path(folder), "read"):
            fs, path = opened(self.path(folder))
            fs.invalidate_cache()
            try:
                return {entry["name"].rsplit("/", 1)[-1] for entry in fs.ls(path, detail=True)}
            except FileNotFoundError:
                return set()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with _told(self.path(name), "remove"):
            fs, path = opened(self.path(name))
            if fs.exists(path):
                fs.rm_file(path)

    def clean(self, folder: str) -> None:
        """Remove what an interrupted process left unfinished."""
        if self.local:
            for name in self.names(folder):
                if _UNFINISHED.fullmatch(name):
                    self.remove(f"{folder}/{name}")


def storage_of(place: str | os.PathLike[str]) -> Storage:
    """The storage at a path or a URL."""
    address = os.fspath(place) if isinstance(place, str | os.PathLike) else None
    if not isinstance(address, str) or not address:
        raise ParameterError(f"{place!r} is not the folder of a run.\n  Give a path, or a URL such as s3://bucket/run.")
    return Storage(os.path.abspath(os.path.expanduser(address)) if is_local(address) else address.rstrip("/"))


def is_local(address: str) -> bool:
    return "://" not in address


def opened(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path there."""
    fsspec = library("fsspec")
    try:
        return fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:  # no such protocol, or its package is missing
        raise FileError(f"{address!r} cannot be opened: {error}\n  Install what its protocol needs.") from None


def library(name: str) -> Any:
    """fsspec or pyarrow (or a module of it), or an error that says how to install it."""
    return imported(name, "Data-set runs need", "'whence[run]'")


@contextmanager
def _told(path: str, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(
            f"cannot {what} {path}: {error.strerror or error}.\n"
            "  What was finished before is kept: see to it, and run again with the same call."
        ) from None
    except Exception as error:
        if type(error).__module__.partition(".")[0] in ("botocore", "aiobotocore", "aiohttp", "fsspec", "pyarrow"):
            raise FileError(f"cannot {what} {path}: {error}.\n  Run again with the same call.") from None
        raise


def _put(place: Path, content: bytes) -> None:
    """Write, sync, rename, and sync the folder that has the name."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{place.name}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, place)
    finally:
        beside.unlink(missing_ok=True)
    _sync(place.parent)


def _sync(folder: Path) -> None:
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:  # not every system opens folders
        return
    try:
        os.fsync(number)
    except OSError:
        pass
    finally:
        os.close(number)
