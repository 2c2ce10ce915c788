"""From bare models and tensors to a Subject: which inputs are explained, which are held fixed, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whence.adapters import arrays
from whence.adapters.reachable import modules_behind
from whence.engine.modules import HELD
from whence.errors import InputError, ModelError, did_you_mean
from whence.subject import Role, Subject
from whence.subject.modules import canonical
from whence.util.stats import all_finite

_LAZY = (nn.parameter.UninitializedParameter, nn.parameter.UninitializedBuffer)


def adapt(
    model: Any, inputs: Any, *, method: str, wrt: Any = None, at: str | None = None, names: Any = None,
    flags: bool = False,
) -> Subject:  # fmt: skip
    """The subject of a bare model and tensors, or of what becomes tensors: arrays, DataFrames, lists of rows.

    `flags` lets booleans be explained as values, where nothing else can be or `wrt` names them.
    """
    function, root = unwrap(model)
    inputs, columns = (inputs, {}) if isinstance(inputs, Tensor) else arrays.tensors(inputs, root)
    named, form = _named(inputs)
    if form == "dict":
        named, whole = arrays.fitted(function, named)
        function = whole or function
    roles = _roles(named, form, flags) if wrt is None else _chosen(named, wrt, flags)
    empty = tuple(name for name in roles if named[name].numel() == 0)
    if len(empty) < len(roles):
        roles = {name: role for name, role in roles.items() if name not in empty}
    rows = _rows(named, roles)
    for name, role in roles.items():
        _check(name, named[name], role, rows)
    underneath = roles
    if at is not None:
        at = canonical(root, at)
        roles = {}
    return Subject(
        function, root, named, form, roles, rows, method,
        at=at,
        wrt=tuple(roles) if wrt is not None else (),
        empty=empty,
        total_rows=rows,
        row_numbers=tuple(range(rows)),
        input_roles=underneath,
        per_row_inputs=frozenset(n for n, v in named.items() if isinstance(v, Tensor) and v.dim() and len(v) == rows),
        feature_names=columns if names is None else arrays.named_features(names, columns, named),
    )  # fmt: skip


def unwrap(model: Any) -> tuple[Callable[..., Any], nn.Module | None]:
    """The function to call and the module whose state is restored; compiled and parallel wrappers are opened."""
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
    if root is not None and any(_is_lazy(module) for module in root.modules()):
        raise ModelError("The model has lazy parameters without a shape yet.\n  Run it once on an input first.")
    return model, root


def _is_lazy(module: nn.Module) -> bool:
    """Whether a module has parameters or buffers that wait for a shape."""
    tensors = (*module._parameters.values(), *module._buffers.values())
    return any(isinstance(tensor, _LAZY) for tensor in tensors)


def _root(model: Any) -> nn.Module | None:
    """The module whose state is restored; for a function, the modules that it can reach."""
    if isinstance(model, nn.Module):
        return model
    held = modules_behind(model)
    if len(held) < 2:
        return next(iter(held.values()), None)
    group = nn.Module()
    for name, module in held.items():
        group._modules[name.replace(".", "_")] = module
    return group


def _named(inputs: Any) -> tuple[dict[str, Any], Any]:
    if isinstance(inputs, Tensor):
        return {"input": inputs}, "tensor"
    if isinstance(inputs, Mapping):
        return {str(name): value for name, value in inputs.items()}, "dict"
    if isinstance(inputs, tuple | list) and any(isinstance(item, Tensor) for item in inputs):
        return {str(i): item for i, item in enumerate(inputs)}, "tuple"
    if isinstance(inputs, str) or (isinstance(inputs, list) and inputs and isinstance(inputs[0], str)):
        raise InputError(
            "The input is text, but a bare model has no tokenizer.\n"
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


def _is_flags(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.bool and value.layout == torch.strided


def _roles(named: Mapping[str, Any], form: str, flags: bool = False) -> dict[str, Role]:
    """A tensor; a tuple's floating tensors; a dict's floating tensors and ids, but for masks, positions and labels."""
    held = HELD if form == "dict" else ()
    roles: dict[str, Role] = {
        name: role
        for name, value in named.items()
        if (role := _role(value)) != "fixed" and not any(word in name for word in held)
    }
    if form == "tuple" and "value" in roles.values():
        roles = {name: role for name, role in roles.items() if role == "value"}
    if len(roles) > 1:  # neither scalars nor integers without rows are explained
        first = next((name for name, role in roles.items() if role == "value" and named[name].dim()), next(iter(roles)))
        rows = len(named[first]) if named[first].dim() else 0
        roles = {
            name: role
            for name, role in roles.items()
            if named[name].dim() and (role == "value" or len(named[name]) == rows)
        }
    if not roles and flags:
        roles = {n: "value" for n, v in named.items() if _is_flags(v) and not any(word in n for word in held)}
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


def _chosen(named: Mapping[str, Any], wrt: Any, flags: bool = False) -> dict[str, Role]:
    names = [str(name) for name in (wrt if isinstance(wrt, list | tuple | set) else [wrt])]
    for name in names:
        if name not in named:
            raise InputError(f"wrt={wrt!r} is not an input. {did_you_mean(name, named)}")
        if _role(named[name]) == "fixed" and not (flags and _is_flags(named[name])):
            raise InputError(f"wrt={name!r} is not a tensor of floating numbers or ids.\n  Name one that is.")
    if not names:
        raise InputError("wrt is empty.\n  Name at least one input, or leave it out.")
    return {name: "value" if _is_flags(named[name]) else _role(named[name]) for name in named if name in names}


def _rows(named: Mapping[str, Any], roles: Mapping[str, Role]) -> int:
    first = next(iter(roles))
    if named[first].dim() == 0:
        raise InputError(f"The input {first!r} has no dimensions.\n  The first dimension is rows: give x[None].")
    return len(named[first])


def _check(name: str, value: Tensor, role: Role, rows: int) -> None:
    if value.dim() == 0 or len(value) != rows:
        raise InputError(
            f"The input {name!r} has the shape {tuple(value.shape)}, but the others have {rows} rows.\n"
            "  The first dimension of every explained input is rows; hold the others fixed with wrt=."
        )
    if value.numel() == 0:
        raise InputError(
            f"The input {name!r} is empty: its shape is {tuple(value.shape)}.\n  Give at least one row and one unit."
        )
    if role == "value" and not all_finite(value):
        bad = [int(i) for i in (~torch.isfinite(value)).nonzero()[0]]
        raise InputError(
            f"The input {name!r} holds {float(value[tuple(bad)])} at {bad}.\n  Clean or drop this row first."
        )
