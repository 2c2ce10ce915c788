"""Bare models and tensors to a Subject: which inputs are explained, which are held, what is wrong with them."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from whence.adapters import arrays
from whence.errors import InputError, ModelError, did_you_mean
from whence.subject import Role, Subject

_HELD = ("mask", "position", "token_type_ids", "labels")


def adapt(
    model: Any, inputs: Any, *, method: str, wrt: Any = None, at: str | None = None, names: Any = None
) -> Subject:
    """The subject of a bare model and tensors, or of what becomes tensors: arrays, DataFrames, lists of rows."""
    function, root = unwrap(model)
    inputs, columns = arrays.tensors(inputs, root)
    named, form = _named(inputs)
    if form == "dict":
        named, whole = arrays.fitted(function, named)
        function = whole or function
    roles = _roles(named, form) if wrt is None else _chosen(named, wrt)
    rows = _rows(named, roles)
    for name, role in roles.items():
        _check(name, named[name], role, rows)
    underneath = roles
    if at is not None:
        at = _canonical(root, at)
        roles = {}
    wanted = tuple(roles) if wrt is not None else ()
    places = tuple(range(rows))
    found = Subject(function, root, named, form, roles, rows, method, at=at, wanted=wanted, batch=rows, places=places)
    goes = frozenset(n for n, v in named.items() if isinstance(v, Tensor) and v.dim() > 0 and len(v) == rows)
    return replace(found, underneath=underneath, goes=goes, names=arrays.named_features(names, columns, named))


def unwrap(model: Any) -> tuple[Callable[..., Any], nn.Module | None]:
    """What to call, and the module behind it whose state is to be kept; compiled and parallel wrappers are opened."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            break
    if not callable(model):
        raise ModelError(
            f"The model is {type(model).__name__}, which cannot be called.\n"
            "  Give an nn.Module, or a function from tensors to scores."
        )
    root = _root(model)
    lazy = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)
    if root is not None and any(isinstance(t, lazy) for t in (*root.parameters(), *root.buffers())):
        raise ModelError("The model has lazy parameters without a shape yet.\n  Run it once on an input first.")
    return model, root


def _root(model: Any) -> nn.Module | None:
    """The module whose state is to be kept; behind a function, whatever modules it can be seen to hold."""
    if isinstance(model, nn.Module):
        return model
    held = modules_behind(model)
    if len(held) < 2:
        return next(iter(held.values()), None)
    group = nn.Module()
    for name, module in held.items():
        group._modules[name.replace(".", "_")] = module
    return group


def modules_behind(value: Any) -> dict[str, nn.Module]:
    """The modules that a function closes over, names, binds or defaults to, and what it holds, by some name."""
    found: dict[str, nn.Module] = {}
    seen: set[int] = set()
    queue: deque[tuple[str, Any, int]] = deque([("model", value, 0)])
    while queue:
        name, item, depth = queue.popleft()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if type(item) is not type and issubclass(type(item), nn.Module):
            found[name if name not in found else f"{name}_{len(found)}"] = item
        elif depth < 6:
            try:
                parts = _parts(item)
            except Exception:  # a proxy, a property that raises: none of our business
                parts = {}
            queue.extend((key, part, depth + 1) for key, part in parts.items())
    inside = {id(child) for module in found.values() for child in module.modules() if child is not module}
    return {name: module for name, module in found.items() if id(module) not in inside}


def _parts(value: Any) -> dict[str, Any]:
    """What an object of the user's holds; libraries, classes and plain data are not searched."""
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
    found = {name: cell.cell_contents for name, cell in cells if _filled(cell)}
    names = _names_in(function.__code__)
    found |= {name: function.__globals__[name] for name in names if name in function.__globals__}
    found |= {str(i): item for i, item in enumerate(function.__defaults__ or ())}
    return {**found, **(function.__kwdefaults__ or {}), **function.__dict__}


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


def _named(inputs: Any) -> tuple[dict[str, Any], Any]:
    if isinstance(inputs, Tensor):
        return {"input": inputs}, "tensor"
    if isinstance(inputs, Mapping):
        return {str(name): value for name, value in inputs.items()}, "dict"
    if isinstance(inputs, tuple | list) and any(isinstance(item, Tensor) for item in inputs):
        return {str(i): item for i, item in enumerate(inputs)}, "tuple"
    if isinstance(inputs, str) or (isinstance(inputs, list) and inputs and isinstance(inputs[0], str)):
        raise InputError(
            "The input is text, and a bare model knows no tokenizer.\n"
            "  Give its tensors (a dict of input_ids, attention_mask, …), or wrap the model with its processor."
        )
    raise InputError(
        f"The input is {type(inputs).__name__}.\n"
        "  Give a tensor whose first dimension is rows, an array, a DataFrame, a tuple of them, or a dict by keyword."
    )


def _role(value: Any) -> Role:
    if not isinstance(value, Tensor) or value.is_complex():
        return "fixed"
    if value.layout != torch.strided or value.is_meta or value.is_quantized or value.is_nested:
        return "fixed"
    return "value" if value.is_floating_point() else "ids" if value.dtype != torch.bool else "fixed"


def _roles(named: Mapping[str, Any], form: str) -> dict[str, Role]:
    """A tensor; a tuple's floating tensors; a dict's floating tensors and ids, but for masks, positions and labels."""
    held = _HELD if form == "dict" else ()
    roles: dict[str, Role] = {
        name: role
        for name, value in named.items()
        if (role := _role(value)) != "fixed" and not any(word in name for word in held)
    }
    if form == "tuple" and "value" in roles.values():
        roles = {name: role for name, role in roles.items() if role == "value"}
    if len(roles) > 1:  # scalars, and integers that do not go with the rows, are no inputs to explain
        first = next((name for name, role in roles.items() if role == "value" and named[name].dim()), next(iter(roles)))
        rows = len(named[first]) if named[first].dim() else 0
        roles = {
            name: role
            for name, role in roles.items()
            if named[name].dim() and (role == "value" or len(named[name]) == rows)
        }
    if not roles:
        kinds = ", ".join(f"{name!r} ({_kind(value)})" for name, value in named.items())
        raise InputError(
            f"There is nothing to explain among the inputs: {kinds or 'there are none'}.\n"
            "  Give a dense floating tensor or token ids, or name the input to explain with wrt=."
        )
    return roles


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    layout = "" if value.layout == torch.strided else f", {value.layout}"
    return f"{value.dtype}{layout}".replace("torch.", "")


def _chosen(named: Mapping[str, Any], wrt: Any) -> dict[str, Role]:
    names = [str(name) for name in (wrt if isinstance(wrt, list | tuple | set) else [wrt])]
    for name in names:
        if name not in named:
            raise InputError(f"wrt={wrt!r} names no input. {did_you_mean(name, named)}")
        if _role(named[name]) == "fixed":
            raise InputError(f"wrt={name!r} is no tensor of floating numbers or ids.\n  Name one that is.")
    if not names:
        raise InputError("wrt is empty.\n  Name at least one input, or leave it out.")
    return {name: _role(named[name]) for name in named if name in names}


def _rows(named: Mapping[str, Any], roles: Mapping[str, Role]) -> int:
    first = next(iter(roles))
    if named[first].dim() == 0:
        raise InputError(f"The input {first!r} has no dimensions.\n  The first dimension is rows: give x[None].")
    return len(named[first])


def _check(name: str, value: Tensor, role: Role, rows: int) -> None:
    if value.dim() == 0 or len(value) != rows:
        raise InputError(
            f"The input {name!r} has the shape {tuple(value.shape)}, and the others have {rows} rows.\n"
            "  The first dimension of every explained input is rows; hold the others fixed with wrt=."
        )
    if value.numel() == 0:
        raise InputError(
            f"The input {name!r} is empty: its shape is {tuple(value.shape)}.\n  Give at least one row and one unit."
        )
    if role == "value" and not bool(torch.isfinite(value).all()):
        bad = [int(i) for i in (~torch.isfinite(value)).nonzero()[0]]
        raise InputError(
            f"The input {name!r} holds {float(value[tuple(bad)])} at {bad}.\n  Clean or drop this row first."
        )


def _canonical(root: nn.Module | None, at: Any) -> str:
    """The path as the engine names it (a module may have several names), with the number of the call."""
    if not isinstance(at, str):
        raise InputError(f'at={at!r} is no module path.\n  Give a string, such as at="encoder.layer.0".')
    if root is None:
        raise InputError(f"at={at!r} names a module, and the model is a plain function.\n  Give the nn.Module itself.")
    path, mark, call = at.partition("@")
    if mark and not (call.isascii() and call.isdigit() and int(call) > 0):
        raise InputError(f"at={at!r}: after @ comes the number of the call, from 1.")
    modules = dict(root.named_modules(remove_duplicate=False))
    if not path or path not in modules:
        raise InputError(f"at={at!r} names no module. {did_you_mean(path, [name for name in modules if name])}")
    first = next(name for name, module in root.named_modules() if module is modules[path])
    return first + mark + call
