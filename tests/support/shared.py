"""The shared folder's files."""

from __future__ import annotations

from pathlib import Path

import pytest


def present(path: Path) -> Path:
    """The path, or a visible skip."""
    if not path.exists():
        pytest.skip(f"{path.parent.name}/{path.name} is not here (set WHENCE_ORACLES or WHENCE_DATA)")
    return path
