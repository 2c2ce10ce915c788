"""Programs run by tests."""

from __future__ import annotations


def limited(count: int) -> None:
    """No file of this process may grow beyond so many bytes, as on a full disk."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (count, count))
