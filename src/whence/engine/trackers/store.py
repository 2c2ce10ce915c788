"""What a pass notes on the model's tensors: one attribute, a dict with an entry for each fact.

Facts live on the tensor object, so that they go when it goes. A tensor that outlives its pass (a buffer that the model
wrote to) is cleared when the explanation closes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_ATTRIBUTE = "_whence"


def get(tensor: Tensor, fact: str, default: Any = None) -> Any:
    """What is noted on a tensor under this name."""
    notes = getattr(tensor, _ATTRIBUTE, None)
    return default if notes is None else notes.get(fact, default)


def put(tensor: Tensor, fact: str, value: Any) -> None:
    """Note something on a tensor."""
    notes = getattr(tensor, _ATTRIBUTE, None)
    if notes is None:
        setattr(tensor, _ATTRIBUTE, {fact: value})
    else:
        notes[fact] = value


def drop(tensor: Tensor, fact: str) -> None:
    """Forget one fact about a tensor, if it is known."""
    notes = getattr(tensor, _ATTRIBUTE, None)
    if notes is not None:
        notes.pop(fact, None)


def copy(old: Tensor, new: Tensor, fact: str) -> None:
    """Note on one tensor what is noted on another."""
    put(new, fact, get(old, fact))


def all_of(tensor: Tensor) -> dict[str, Any]:
    """All that is noted on a tensor."""
    return dict(getattr(tensor, _ATTRIBUTE, None) or {})


def put_all(tensor: Tensor, notes: Mapping[str, Any]) -> None:
    """Note several facts on a tensor."""
    for fact, value in notes.items():
        put(tensor, fact, value)


def clear(tensor: Tensor) -> None:
    """Forget everything about a tensor."""
    if tensor.__dict__:
        tensor.__dict__.pop(_ATTRIBUTE, None)
