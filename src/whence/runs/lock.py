"""One driver per folder: a second one is refused while the first one lives."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from whence.errors import FileError
from whence.runs.storage import Storage

FILE = ".lock"


@contextmanager
def locked(storage: Storage) -> Iterator[None]:
    """Hold the folder; the lock goes with the process, however it ends.

    An object store has no such locks. Two drivers there write the same bytes under the same keys, shard by shard.
    """
    if not storage.local:
        yield
        return
    path = Path(storage.path(FILE))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise FileError(
            f"cannot write {storage.address}: {error.strerror}.\n  Give a folder that can be written."
        ) from None
    try:
        _take(number, storage)
        yield
    finally:
        os.close(number)


def _take(number: int, storage: Storage) -> None:
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileError(
            f"Another run is writing {storage.address}{_holder(number)}.\n"
            "  Wait until it is done, or give another folder."
        ) from None
    except OSError:  # nor on this disk
        return
    os.ftruncate(number, 0)
    os.write(number, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())


def _holder(number: int) -> str:
    try:
        told = json.loads(os.pread(number, 4096, 0))
        return f" (process {told['pid']} on {told['host']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
