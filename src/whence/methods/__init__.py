"""The methods: a file per family, a folder where a family has machinery.

A method maps a Subject to an `Answer`, or just to its values, one tensor (rows, k, …) per explained value. Modules in
this folder are found by themselves; `order=` at a method's decorator says where it is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from whence.methods.answer import Answer, as_answer
from whence.registry import Registry
from whence.subject import Subject

Method = Callable[..., Answer | dict[str, Tensor]]
methods: Registry[Method] = Registry("method", package=__name__)
method = methods.register


def answer_of(name: str, subject: Subject, params: Mapping[str, Any]) -> Answer:
    """What a method answers for a subject whose baseline is resolved."""
    return as_answer(methods[name].function(subject, **params))


def sensitivity(name: str, params: Mapping[str, Any]) -> bool:
    """Whether a method measures slopes and not shares of the score; one that wraps another does what that one does."""
    inner = params.get("of", name)
    return all(bool(methods[one].facts.get("slope")) for one in {name, inner} if one in methods)
