"""The model's modules during a pass: which one runs, what enters and leaves them, and its tensors by name.

Which module runs is read off the call stack. Hooks show a pass what enters and leaves modules, where it asks for that;
they are gone when the pass ends.

Names of tensors: a tensor by itself has none; fields of named tuples, dataclasses and ModelOutputs and keys of dicts
are their own names, places in tuples are numbers, and what lies deeper is joined by dots ("1.0"). Recurrent layers'
outputs have the names of PyTorch's documentation, and what a module gets has the names of its parameters.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from whence.util.tree import rebuilt

if TYPE_CHECKING:
    from whence.engine.flow import Flow

_NAMES: dict[type[nn.Module], dict[str, str]] = {
    nn.LSTM: {"0": "output", "1.0": "h_n", "1.1": "c_n"},
    nn.GRU: {"0": "output", "1": "h_n"},
    nn.RNN: {"0": "output", "1": "h_n"},
    nn.LSTMCell: {"0": "h", "1": "c"},
    nn.MultiheadAttention: {"0": "output", "1": "weights"},
}
HELD = ("mask", "position", "token_type_ids", "labels")  # in the names of arguments that are not explained unasked
_CALL = nn.Module._wrapped_call_impl.__code__  # what `module(...)` runs


# ---- which one runs ----


@dataclass(eq=False)
class Running:
    """The modules of a model by their paths; of a module with several names, the first."""

    root: nn.Module | None
    bottom: FrameType | None = None  # where the pass began: what called it is none of the model's
    _paths: dict[int, str] | None = None  # by module, made when somebody asks

    def path(self) -> str:
        """The path of the innermost module that is being called; "" outside of all."""
        if self._paths is None:
            named = () if self.root is None else self.root.named_modules()
            self._paths = {id(m): path for path, m in named if not isinstance(m, torch.jit.ScriptModule)}
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self.bottom:
            if frame.f_code is _CALL:
                path = self._paths.get(id(frame.f_locals["self"]))
                if path is not None:
                    return path
            frame = frame.f_back
        return ""


# ---- what enters and leaves ----


@contextmanager
def watched(root: nn.Module, flow: Flow, within: str = "") -> Iterator[None]:
    """For the length of the block this pass sees modules' inputs and outputs; those of other threads do not.

    `within` is the one module that runs, where it is not all of them.
    """
    handles = []
    layers: Container[str] = () if flow.plan.layers is None else flow.plan.layers.paths
    explained = flow.leaves.place
    entered = explained.path if explained.side == "input" else None

    def ours() -> bool:
        return threading.get_ident() == flow.thread and not flow.suspended

    def watch(path: str, module: nn.Module) -> None:
        def enter(module: nn.Module, args: Any, kwargs: Any = None) -> Any:  # None: another thread, half-way through
            return _entering(flow, path, module, args, kwargs) if ours() else None

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            return _leaving(flow, path, module, output) if ours() and output is not None else None

        if flow.captures.enters or path == entered or path in layers:
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave))

    try:
        for path, module in _concerned(root, flow):
            if within and path != within and not path.startswith(f"{within}."):
                continue
            if not isinstance(module, torch.jit.ScriptModule):
                watch(path, module)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _concerned(root: nn.Module, flow: Flow) -> Iterable[tuple[str, nn.Module]]:
    """All modules where values are read or detached on the way, else the one whose output or input is explained."""
    if flow.captures.active or flow.plan.detach_at is not None:
        return root.named_modules()
    paths = [flow.leaves.place.path] if flow.leaves.place.path else []
    layers = [] if flow.plan.layers is None else [p for p in flow.plan.layers.paths if p not in paths]
    return [(path, root.get_submodule(path)) for path in (*paths, *layers)]


def _entering(flow: Flow, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """The arguments to go on with: the first tensor shown to the captures, leaves where they are explained."""

    if flow.layers is not None:
        args, kwargs = flow.layers.enter(flow, path, module, args, kwargs)

    def show(tensor: Tensor) -> Tensor:
        return _captured(flow, "input", path, tensor)

    if flow.captures.enters:
        if any(is_floating(a) for a in args):
            args = with_first_changed(args, show)
        else:
            kwargs = with_first_changed(dict(kwargs), show)
    return flow.leaves.arguments(flow, path, module, args, kwargs)


def _leaving(flow: Flow, path: str, module: nn.Module, output: Any) -> Any:
    """What the model goes on with: edited by captures, detached where the plan says so, a leaf where explained."""
    if flow.captures.active:
        output = with_first_changed(output, lambda t: _captured(flow, "output", path, t))
    detach_at = flow.plan.detach_at
    if detach_at is not None and detach_at(path):
        output = with_first_changed(output, lambda t: flow.detach_here(path, t))
    output = flow.leaves.output(flow, path, module, output)
    return output if flow.layers is None else flow.layers.leave(flow, path, output)


def _captured(flow: Flow, kind: Literal["input", "output"], path: str, tensor: Tensor) -> Tensor:
    flow.is_live(tensor)  # marks what came out of ops that the mode never saw
    return flow.captures.visit(kind, path, tensor)


# ---- tensors by name ----


def floating(output: Any, module: nn.Module | None = None) -> list[tuple[str, Tensor, int]]:
    """Each floating tensor of a module's output once: its name, itself, and the dimension of its rows."""
    names = next((names for kind, names in _NAMES.items() if isinstance(module, kind)), {})
    tensors: list[tuple[str, Tensor, int]] = []
    for name, tensor in _inside(output, ""):
        if not any(tensor is other for _, other, _ in tensors):
            tensors.append((names.get(name, name), tensor, _rows_of(module, name, tensor)))
    return tensors


def entering(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Tensor, int]]:
    """The same for what a module gets, by its parameters' names; masks, positions and labels are left out."""
    tensors: list[tuple[str, Tensor, int]] = []
    for parameter, argument in (*zip(_parameters(module, len(args)), args, strict=True), *kwargs.items()):
        for name, tensor in _inside(argument, parameter):
            held = any(word in parameter for word in HELD)
            if not held and not any(tensor is other for _, other, _ in tensors):
                tensors.append((name, tensor, _rows_of_argument(module, name, tensor)))
    return tensors


def _parameters(module: nn.Module, count: int) -> list[str]:
    """What the first so many arguments of a module are called; by number, where its signature does not say."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, p in inspect.signature(module.forward).parameters.items() if p.kind in by_place]
    return [*names[:count], *map(str, range(len(names), count))]


def _rows_of_argument(module: nn.Module, name: str, tensor: Tensor) -> int:
    if tensor.dim() < 3 or not isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return 0
    return int(name.startswith("hx") or not module.batch_first)


def _rows_of(module: nn.Module | None, name: str, tensor: Tensor) -> int:
    """The first dimension, but for recurrent layers' states (layers, rows, hidden) and sequences that go first."""
    if isinstance(module, nn.MultiheadAttention):
        return int(name == "0" and not module.batch_first and tensor.dim() == 3)
    if not isinstance(module, nn.RNNBase) or tensor.dim() < 3:
        return 0
    return int(name != "0" or not module.batch_first)


def _inside(output: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield name, output
        return
    for key, item in _items(output):
        yield from _inside(item, f"{name}.{key}" if name else key)


def _items(output: Any) -> list[tuple[str, Any]]:
    if isinstance(output, Mapping):
        return [(str(key), item) for key, item in output.items()]
    if isinstance(output, tuple | list):
        return [(str(key), item) for key, item in zip(getattr(output, "_fields", range(len(output))), output)]  # noqa: B905
    if is_dataclass(output) and not isinstance(output, type):
        return [(field.name, getattr(output, field.name)) for field in fields(output)]
    return []


def with_first_changed(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A module's output with its first floating tensor changed; one that holds none is left as it is."""
    if isinstance(output, Tensor):
        return change(output) if output.is_floating_point() else output
    if isinstance(output, MutableMapping):
        first = next((key for key, item in output.items() if is_floating(item)), None)
        if first is not None:
            output[first] = change(output[first])
        return output
    if isinstance(output, tuple | list):
        place = next((i for i, item in enumerate(output) if is_floating(item)), None)
        return rebuilt(type(output), [change(item) if i == place else item for i, item in enumerate(output)])
    return output


def is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
