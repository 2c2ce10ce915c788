"""Limits of a process, for tests of what happens where the disk is full."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator


def limited(count: int) -> None:
    """No file of this process may grow beyond so many bytes, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, count))


@contextlib.contextmanager
def full_disk(count: int) -> Iterator[None]:
    """The same for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
