"""The methods: a file per family, a folder where a family has machinery.

A method maps a Subject to an `Answer`, or just to its values, one tensor (rows, k, …) per explained value. Modules in
this folder are found by themselves; `order=` at a method's decorator says where it is listed.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from whence.methods.answer import Answer
from whence.registry import Entry, Registry

Method = Callable[..., Answer | dict[str, Tensor]]
methods: Registry[Method] = Registry("method", package=__name__)
method = methods.register


def sensitivity(entry: Entry[Method], inner: str) -> bool:
    """Whether a method that wraps another measures slopes and not shares of the score: if that one does."""
    return bool(entry.facts.get("slope")) and (inner not in methods or bool(methods[inner].facts.get("slope")))
