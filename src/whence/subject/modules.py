"""Modules of a model by the paths that users write."""

from __future__ import annotations

from typing import Any

from torch import nn

from whence.engine.places import is_mark
from whence.errors import InputError, did_you_mean


def canonical(root: nn.Module | None, at: Any, word: str = "at") -> str:
    """The path as the engine names it (a module may have several names), with the number of the call."""
    if not isinstance(at, str):
        raise InputError(f'{word}={at!r} is not a module path.\n  Give a string, such as {word}="encoder.layer.0".')
    if root is None:
        raise InputError(
            f"{word}={at!r} names a module, but the model is a plain function.\n  Give the nn.Module itself."
        )
    path, mark, call = at.partition("@")
    if mark and not is_mark(call):
        raise InputError(
            f'{word}={at!r}: after @ comes the number of the call, from 1, or "input" for what enters the module '
            f'("path@2@input": what enters it in its second call).'
        )
    modules = dict(root.named_modules(remove_duplicate=False))
    if not path or path not in modules:
        raise InputError(
            f"{word}={at!r} is not a module of the model. {did_you_mean(path, [name for name in modules if name])}"
        )
    first = next(name for name, module in root.named_modules() if module is modules[path])
    return first + mark + call
