"""The scope of one explanation: everything that it could disturb is as it was when it closes, however it closes."""

from __future__ import annotations

import random
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_CONTAINERS = (list, dict, set, deque)
_lock = threading.RLock()


@contextmanager
def scope(*roots: nn.Module | None) -> Iterator[None]:
    """Eval mode, gradients on, inference mode, autocast and compilation off; then everything as it was."""
    with ExitStack() as stack:
        stack.enter_context(_process_state_kept())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in _devices():
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(_left_as_found([root for root in roots if root is not None]))
        yield


def rewind(root: nn.Module | None) -> None:
    """Before another pass of one explanation: the model and the random states as they were at its beginning."""
    with _lock:
        if _process.holders == 1:
            _process.restore()
        for module in root.modules() if root is not None else ():
            snapshot, count = _held.get(module, (None, 0))
            if snapshot is not None and count == 1:
                snapshot.restore(module, training=False)


def remember(written: Tensor) -> None:
    """Keep the value of a parameter or buffer whose memory an op is about to write to."""
    if written.layout != torch.strided or written.is_meta:
        return
    owners = _memory.get(written.untyped_storage().data_ptr(), ())
    for tensor, snapshot in list(owners):  # several may be views of one memory
        with _lock:
            snapshot.written.setdefault(id(tensor), (tensor, tensor.detach().clone()))


def _devices() -> set[str]:
    accelerator = torch.accelerator.current_accelerator()
    return {"cpu"} if accelerator is None else {"cpu", accelerator.type}


# ---- the process ----


class _Process:
    """Random states, the default dtype and the stance to compiled code: the first in saves, the last out restores."""

    holders = 0
    states: tuple[Any, ...] = ()
    stance: Any = None

    def enter(self) -> None:
        self.save()
        if "torch._dynamo" in sys.modules:  # a compiled part would trace through the engine
            self.stance = torch.compiler.set_stance("force_eager")
            self.stance.__enter__()

    def leave(self) -> None:
        self.restore()
        if self.stance is not None:
            self.stance.__exit__(None, None, None)
            self.stance = None

    def save(self) -> None:
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        self.states = random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda, torch.get_default_dtype()

    def restore(self) -> None:
        python, numpy, state, cuda, dtype = self.states
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(state)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        if torch.get_default_dtype() != dtype:
            torch.set_default_dtype(dtype)


_process = _Process()


@contextmanager
def _process_state_kept() -> Iterator[None]:
    with _lock:
        if _process.holders == 0:
            _process.enter()
        _process.holders += 1
    try:
        yield
    finally:
        with _lock:
            _process.holders -= 1
            if _process.holders == 0:
                _process.leave()


# ---- the model ----

_LARGE = 2**16  # buffers of more entries are kept when they are written to, not before
_held: dict[nn.Module, tuple[_Snapshot, int]] = {}  # several threads may hold one module: the last one restores
_memory: dict[int, list[tuple[Tensor, _Snapshot]]] = {}  # whose memory it is


@contextmanager
def _left_as_found(roots: list[nn.Module]) -> Iterator[None]:
    modules = list(dict.fromkeys(module for root in roots for module in root.modules()))
    with _lock:
        fresh = {module: _Snapshot(module) for module in modules if module not in _held}
        for module in modules:
            snapshot, count = _held.get(module) or (fresh[module], 0)
            _held[module] = (snapshot, count + 1)
            for pointer, tensor in snapshot.memory if count == 0 else ():
                _memory.setdefault(pointer, []).append((tensor, snapshot))
            if module.training:
                module.training = False
    try:
        yield
    finally:
        with _lock:
            for module in modules:
                snapshot, count = _held.pop(module)
                if count > 1:
                    _held[module] = (snapshot, count - 1)
                else:
                    for pointer, _ in snapshot.memory:
                        rest = [owner for owner in _memory.pop(pointer, []) if owner[1] is not snapshot]
                        if rest:
                            _memory[pointer] = rest
                    snapshot.restore(module)


class _Snapshot:
    """A module's attributes, the contents of its lists and dicts (buffers and hooks among them), and its tensors.

    Small tensors are kept by value. Of parameters and large buffers the memory is known, and the value is kept by
    `remember` before the first write; a parameter's gradient is kept as the object it is.
    """

    def __init__(self, module: nn.Module) -> None:
        self.training = module.training
        self.opaque = isinstance(module, torch.jit.ScriptModule)
        self.written: dict[int, tuple[Tensor, Tensor]] = {}
        self.memory: list[tuple[int, Tensor]] = []
        if self.opaque:
            return
        self.attributes = dict(module.__dict__)
        self.contents: list[tuple[Any, list[Any] | None]] = []
        tensors: dict[int, Tensor] = {}
        for value in self.attributes.values():
            _collect(value, self.contents, tensors, 3)
        self.tensors = [
            (t, t.detach().clone() if t.numel() <= _LARGE else t.detach(), _version(t))
            for t in tensors.values()
            if not isinstance(t, nn.Parameter)
        ]
        self.parameters = [(p, p.detach(), p.grad) for p in tensors.values() if isinstance(p, nn.Parameter)]
        for t in tensors.values():
            if t.layout == torch.strided and not t.is_meta:
                self.memory.append((t.untyped_storage().data_ptr(), t))

    def restore(self, module: nn.Module, training: bool = True) -> None:
        if self.opaque:
            if training:
                module.training = self.training
            return
        now = module.__dict__
        if now.keys() != self.attributes.keys():
            for key in [key for key in now if key not in self.attributes]:
                del now[key]
        for key, value in self.attributes.items():
            if (key not in now or now[key] is not value) and (training or key != "training"):
                now[key] = value
        for container, content in self.contents:
            if content is not None or container:
                _refill(container, content or [])
        for tensor, value, version in self.tensors:
            _rewrite(tensor, value, version)
        for parameter, memory, grad in self.parameters:
            if parameter.data_ptr() != memory.data_ptr():
                parameter.data = memory
            if parameter.grad is not grad:
                parameter.grad = grad
        for tensor, value in self.written.values():
            tensor.data.copy_(value)
        self.written.clear()


def _collect(value: Any, contents: list[Any], tensors: dict[int, Tensor], depth: int) -> None:
    """Every tensor, list and dict that an attribute holds; modules keep their own."""
    if isinstance(value, Tensor):
        tensors[id(value)] = value
    elif depth and isinstance(value, (*_CONTAINERS, tuple)):
        if not isinstance(value, tuple):
            contents.append((value, _listed(value) if value else None))
        for item in value.values() if isinstance(value, dict) else value:
            if not isinstance(item, nn.Module):
                _collect(item, contents, tensors, depth - 1)


def _listed(container: Any) -> list[Any]:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _refill(container: Any, content: list[Any]) -> None:
    now = _listed(container)
    if len(now) == len(content) and all(_identical(a, b) for a, b in zip(now, content, strict=True)):
        return
    container.clear()
    container.update(content) if isinstance(container, dict | set) else container.extend(content)


def _identical(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) == 2:
        return a[0] is b[0] and a[1] is b[1]
    return a is b


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _rewrite(tensor: Tensor, value: Tensor, version: int) -> None:
    """Put a tensor's value back if the model wrote to it; a write of live values has also tied it to a graph."""
    tensor.__dict__.pop("_whence", None)
    if tensor.grad_fn is not None and tensor._base is None:
        tensor.detach_()
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        tensor.data = value
    elif _version(tensor) != version and tensor.numel() <= _LARGE:
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.data.copy_(value) if tensor.layout == torch.strided else tensor.copy_(value)
