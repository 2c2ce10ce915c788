"""Tensors in nested lists, tuples and dicts: the arguments of a call, the result of an op, the output of a module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor of a nested structure, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def swapped(value: Any, swap: Mapping[int, Tensor]) -> Any:
    """A call's arguments with other tensors in place of those whose `id` is in `swap`."""
    if isinstance(value, Tensor):
        return swap.get(id(value), value)
    if isinstance(value, dict):
        return {key: swapped(item, swap) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(swapped(item, swap) for item in value)
    return value


def flatten(value: Any, tensors: list[Tensor]) -> Any:
    """Collect the tensors of a result; what comes back is its form, with the class in each tensor's place."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return Tensor
    if isinstance(value, tuple | list):
        return (type(value), [flatten(item, tensors) for item in value])
    return ("constant", value)


def unflatten(form: Any, tensors: Iterator[Tensor]) -> Any:
    """The result of this form, with these tensors in it."""
    if form is Tensor:
        return next(tensors)
    kind, parts = form
    return parts if kind == "constant" else rebuilt(kind, [unflatten(part, tensors) for part in parts])


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The structure with each of its tensors changed, in the form that it had: dataclasses and mappings too."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, MutableMapping):
        whole = dict(value) if type(value) is dict else value
        for key, item in list(value.items()):
            new = mapped(item, change)
            if new is not item:
                whole[key] = new
        return whole
    if isinstance(value, tuple | list):
        items = [mapped(item, change) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        return rebuilt(type(value), items)
    if is_dataclass(value) and not isinstance(value, type):
        other: Any = copy.copy(value)
        for field in fields(value):
            object.__setattr__(other, field.name, mapped(getattr(value, field.name), change))
        return other
    return value


def rebuilt(kind: Any, items: list[Any]) -> Any:
    """A list, a tuple or a named tuple of these items."""
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
