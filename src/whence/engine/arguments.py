"""A call's arguments in one form, whatever way they were spelled: by position as far as the function's schema allows.

`torch.mul(u, other=p)`, `torch.mul(input=u, other=p)` and `u.mul(x2=p)` are `mul(u, p)`. Whoever looks at a call after
this reads positions, and by name only what a function takes by name alone (`alpha`, `out`, `scale`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

# other names that torch takes for an argument of a built-in function
_ALIASES = {
    **dict.fromkeys(("input", "x", "a", "x1"), ("self", "input")),
    "x2": ("other",),
    "axis": ("dim",),
    "keepdims": ("keepdim",),
}


@dataclass(frozen=True, slots=True)
class _Parameter:
    name: str
    by_name: bool = False  # by name alone
    needed: bool = False
    default: Any = None


@dataclass(frozen=True, slots=True)
class _Placing:
    """Where each argument goes: keywords to take by position or defaults in their stead, and keywords by new name."""

    by_position: tuple[tuple[str | None, Any], ...]
    by_name: tuple[tuple[str, str], ...]  # (as given, as the schema has it)

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        more = (default if name is None else kwargs[name] for name, default in self.by_position)
        return (*args, *more), {name: kwargs[given] for given, name in self.by_name}


_PLACINGS: dict[Any, _Placing | None] = {}


def placed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The same call by position; a call that no schema is known for stays as it is."""
    form = (func, len(args), *kwargs)
    try:
        placing = _PLACINGS[form]
    except KeyError:
        placing = _PLACINGS[form] = _find(func, len(args), tuple(kwargs))
    return (args, kwargs) if placing is None else placing(args, kwargs)


def _find(func: Any, count: int, given: Sequence[str]) -> _Placing | None:
    if getattr(func, "__name__", "") == "to" and count > 1:
        return None  # x.to("cpu", non_blocking=True): what stands second says what comes third
    placings = [p for schema in _schemas(func) if (p := _place(schema, count, given)) is not None]
    return min(placings, key=lambda p: sum(name is None for name, _ in p.by_position), default=None)


def _place(schema: Sequence[_Parameter], count: int, given: Sequence[str]) -> _Placing | None:
    """How a call of so many positions and these keywords goes by one schema; None if it does not."""
    ordered = [p for p in schema if not p.by_name]
    if count > len(ordered):
        return None
    known = {p.name for p in schema[count:]} | {p.name for p in schema if p.by_name}
    meant: dict[str, str] = {}  # the schema's name → the one that was given
    for name in given:
        own = name if name in known or name == "out" else next((o for o in _ALIASES.get(name, ()) if o in known), None)
        if own is None or own in meant:
            return None
        meant[own] = name
    if any(p.needed and p.name not in meant for p in (*ordered[count:], *(p for p in schema if p.by_name))):
        return None
    last = max((n for n, p in enumerate(ordered) if p.name in meant), default=count - 1)
    by_position = tuple((meant.get(p.name), p.default) for p in ordered[count : last + 1])
    taken = {p.name for p in ordered}
    return _Placing(by_position, tuple((given, own) for own, given in meant.items() if own not in taken))


def _schemas(func: Any) -> Iterable[Sequence[_Parameter]]:
    if inspect.isfunction(func):
        return _of_python(func)
    schema = getattr(func, "_schema", None)
    if schema is not None:  # torch.ops.<namespace>.<name>.<overload>
        return [_of_torch(schema)]
    name = getattr(func, "_qualified_op_name", None) or f"aten::{getattr(func, '__name__', '')}"
    return map(_of_torch, torch._C._jit_get_schemas_for_operator(name))


def _of_python(func: Callable[..., Any]) -> Iterable[Sequence[_Parameter]]:
    parameters = inspect.signature(func).parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return []
    schema: list[_Parameter] = []
    for p in parameters:  # from `out` on everything goes by name, as built-in functions have it
        by_name = p.kind == p.KEYWORD_ONLY or p.name == "out" or any(q.by_name for q in schema)
        needed = p.default is p.empty
        schema.append(_Parameter(p.name, by_name, needed, None if needed else p.default))
    return [schema]


def _of_torch(schema: Any) -> Sequence[_Parameter]:
    return [
        _Parameter(a.name, a.kwarg_only, not a.has_default_value() and not a.is_out, a.default_value)
        for a in schema.arguments
    ]
