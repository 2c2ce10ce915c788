"""The modules that a function can reach: what it closes over, names, binds or defaults to."""

from __future__ import annotations

import functools
import types
from collections import deque
from typing import Any

from torch import Tensor, nn


def modules_behind(value: Any) -> dict[str, nn.Module]:
    """The modules that a function or an object can reach, by name, without those inside of others."""
    modules: dict[str, nn.Module] = {}
    seen: set[int] = set()
    queue: deque[tuple[str, Any, int]] = deque([("model", value, 0)])
    while queue:
        name, item, depth = queue.popleft()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if type(item) is not type and issubclass(type(item), nn.Module):
            modules[name if name not in modules else f"{name}_{len(modules)}"] = item
        elif depth < 6:
            try:
                parts = _parts(item)
            except Exception:  # a proxy, or a property that raises
                parts = {}
            queue.extend((key, part, depth + 1) for key, part in parts.items())
    inside = {id(child) for module in modules.values() for child in module.modules() if child is not module}
    return {name: module for name, module in modules.items() if id(module) not in inside}


def _parts(value: Any) -> dict[str, Any]:
    """What an object of the user holds; libraries, classes and plain data are not searched."""
    if isinstance(value, functools.partial):
        return {"function": value.func, **{str(i): a for i, a in enumerate(value.args)}, **value.keywords}
    if isinstance(value, dict):
        return {str(key): item for key, item in value.items()} if len(value) < 10_000 else {}
    if isinstance(value, list | tuple | set | frozenset | deque):
        return {str(i): item for i, item in enumerate(value)} if len(value) < 1000 else {}
    if isinstance(value, types.MethodType):
        return {"self": value.__self__, "function": value.__func__}
    if isinstance(value, types.FunctionType):
        return _closed_over(value)
    plain = value is None or isinstance(value, str | bytes | int | float | complex | Tensor | type | types.ModuleType)
    if plain or type(value).__module__.partition(".")[0] in ("torch", "numpy", "builtins"):
        return {}
    slots = [kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__]
    names = [name for given in slots for name in ([given] if isinstance(given, str) else given)]
    own = {name: getattr(value, name) for name in names if hasattr(value, name)}
    shared = {
        name: part for name, part in vars(type(value)).items() if isinstance(part, nn.Module) or name == "__call__"
    }
    return {**shared, **own, **getattr(value, "__dict__", {})}


def _closed_over(function: types.FunctionType) -> dict[str, Any]:
    if function.__module__ and function.__module__.partition(".")[0] in ("torch", "transformers", "numpy"):
        return {}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    held = {name: cell.cell_contents for name, cell in cells if _filled(cell)}
    names = _names_in(function.__code__)
    held |= {name: function.__globals__[name] for name in names if name in function.__globals__}
    held |= {str(i): item for i, item in enumerate(function.__defaults__ or ())}
    return {**held, **(function.__kwdefaults__ or {}), **function.__dict__}


def _names_in(code: types.CodeType) -> set[str]:
    """The names that a function uses, in comprehensions and functions inside it too."""
    inner = (_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (an empty cell raises)
    except ValueError:
        return False
    return True
