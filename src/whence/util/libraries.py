"""Libraries that only some calls need: imported there, or an error that says what is wrong with them."""

from __future__ import annotations

import importlib
from typing import Any

from whence.errors import ParameterError


def imported(name: str, what: str, install: str) -> Any:
    """A module by its name; `what` needs it, and `install` is what pip installs it by."""
    top = name.partition(".")[0]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (top, name):  # it is there, and what it needs is not
            raise _broken(top, what, error) from error
        raise ParameterError(f"{what} {top}, which is not installed.\n  pip install {install}") from None
    except Exception as error:  # whatever its own code raises
        raise _broken(top, what, error) from error


def _broken(top: str, what: str, error: Exception) -> ParameterError:
    told = (str(error).strip().splitlines() or [""])[0]
    return ParameterError(
        f"{what} {top}, which is installed, but cannot be imported: {type(error).__name__}: {told}\n"
        f"  Install it anew, with versions that fit each other: python -c 'import {top}' shows where it fails."
    )
