"""The form in which users see results, and the one inside of the package.

Users see one explained input as its tensor, several as a tuple or a dict, as the inputs were given. Inside, there is a
dict by name: the only input is named "", the inputs of a tuple are named "0", "1", …
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def names(values: Any) -> list[str]:
    """The names of the explained inputs."""
    if isinstance(values, Mapping):
        return list(values)
    return [str(i) for i in range(len(values))] if isinstance(values, tuple | list) else [""]


def by_name(field: Any, values: Any) -> dict[str, Any]:
    """A field by input: it has the form of `values`, or is one and the same for every input."""
    if isinstance(field, Mapping):
        return {name: field.get(name) for name in names(values)}
    several = type(field) is type(values) and isinstance(values, tuple | list)
    return dict(zip(names(values), field, strict=True)) if several else dict.fromkeys(names(values), field)


def in_form(named: Mapping[str, Any], values: Any) -> Any:
    """What is known by name, in the form of `values`."""
    if isinstance(values, Mapping):
        return dict(named)
    return tuple(named.values()) if isinstance(values, tuple | list) else next(iter(named.values()))


def each(function: Callable[..., Any], values: Any, *fields: Any) -> Any:
    """A function of each input's part of some fields, in the form of `values`."""
    parts = [by_name(field, values) for field in fields]
    return in_form({name: function(*(part[name] for part in parts)) for name in names(values)}, values)


def tensors(field: Any) -> Iterator[Any]:
    """Every tensor of a field, in whatever form; ids that enter two embeddings have two."""
    if isinstance(field, Mapping | tuple | list):
        for part in field.values() if isinstance(field, Mapping) else field:
            yield from tensors(part)
    else:
        yield field


def embeddings(raw: Any) -> tuple[Tensor, ...]:
    """The tensors of one input: one, or one for each embedding that its ids enter."""
    return raw if isinstance(raw, tuple) else (raw,)
