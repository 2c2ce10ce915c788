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
def scope(root: nn.Module | None) -> Iterator[None]:
    """Eval mode, gradients on, inference mode, autocast and compilation off; then everything as it was."""
    with ExitStack() as stack:
        stack.enter_context(_process_state_kept())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in _devices():
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if "torch._dynamo" in sys.modules:  # a compiled part would trace through the engine
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if root is not None:
            stack.enter_context(_left_as_found(root))
        yield


def rewind(root: nn.Module | None) -> None:
    """Before another pass of one explanation: the model and the random states as they were at its beginning."""
    with _lock:
        if _process.holders == 1:
            _process.restore()
            _forget_writes()
        for module in root.modules() if root is not None else ():
            snapshot, count = _held.get(module, (None, 0))
            if snapshot is not None and count == 1:
                snapshot.restore(module, training=False)


def _devices() -> set[str]:
    accelerator = torch.accelerator.current_accelerator()
    return {"cpu"} if accelerator is None else {"cpu", accelerator.type}


# ---- the process ----


class _Process:
    """Random states and the default dtype; the first thread in saves them, the last one out puts them back."""

    holders = 0
    states: tuple[Any, ...] = ()

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
            _process.save()
        _process.holders += 1
    try:
        yield
    finally:
        with _lock:
            _process.holders -= 1
            if _process.holders == 0:
                _process.restore()


# ---- the model ----

_held: dict[nn.Module, tuple[_Snapshot, int]] = {}  # several threads may hold one module: the last one restores


@contextmanager
def _left_as_found(root: nn.Module) -> Iterator[None]:
    modules = list(root.modules())
    with _lock:
        fresh = {module: _Snapshot(module) for module in modules if module not in _held}
        for module in modules:
            snapshot, count = _held.get(module) or (fresh[module], 0)
            _held[module] = (snapshot, count + 1)
            if module.training:
                module.training = False
    try:
        yield
    finally:
        with _lock:
            _forget_writes()
            for module in modules:
                snapshot, count = _held.pop(module)
                if count > 1:
                    _held[module] = (snapshot, count - 1)
                else:
                    snapshot.restore(module)


_written: dict[int, tuple[Tensor, Tensor]] = {}  # parameters that a forward pass wrote to, and their values before


def remember(parameter: Tensor) -> None:
    """Keep a parameter's value, because an op is about to write to it."""
    with _lock:
        _written.setdefault(id(parameter), (parameter, parameter.detach().clone()))


def _forget_writes() -> None:
    for parameter, value in _written.values():
        parameter.data.copy_(value)
    _written.clear()


class _Snapshot:
    """A module's attributes, the contents of its lists and dicts (buffers and hooks among them), and its tensors.

    Buffers and tensor attributes are kept by value. Of parameters, which are large, the memory and the gradient are
    kept; the value of one that is written to is kept by `remember`, before the first write.
    """

    def __init__(self, module: nn.Module) -> None:
        self.training = module.training
        self.opaque = isinstance(module, torch.jit.ScriptModule)
        if self.opaque:
            return
        self.attributes = dict(module.__dict__)
        self.contents = [(c, _listed(c)) for c in self.attributes.values() if isinstance(c, _CONTAINERS)]
        tensors = [t for t in self.attributes.values() if isinstance(t, Tensor)]
        tensors += [t for t in module._buffers.values() if t is not None]
        self.tensors = [(t, t.detach().clone(), _version(t)) for t in tensors]
        self.parameters = [(p, p.detach(), p.grad) for p in module._parameters.values() if p is not None]

    def restore(self, module: nn.Module, training: bool = True) -> None:
        if self.opaque:
            if training:
                module.training = self.training
            return
        now = module.__dict__
        for key in [key for key in now if key not in self.attributes]:
            del now[key]
        for key, value in self.attributes.items():
            if (key not in now or now[key] is not value) and (training or key != "training"):
                now[key] = value
        for container, content in self.contents:
            _refill(container, content)
        for tensor, value, version in self.tensors:
            _rewrite(tensor, value, version)
        for parameter, memory, grad in self.parameters:
            if parameter.data_ptr() != memory.data_ptr():
                parameter.data = memory
            if parameter.grad is not grad:
                parameter.grad = grad


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


def _equal(a: Tensor, b: Tensor) -> bool:
    """Bit for bit but for NaN, which equals itself here."""
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def _rewrite(tensor: Tensor, value: Tensor, version: int) -> None:
    """Put a tensor's value back if the model wrote to it; a write of live values has also tied it to a graph."""
    tensor.__dict__.pop("_whence", None)
    if tensor.grad_fn is not None and tensor._base is None:
        tensor.detach_()
    plain = tensor.layout == torch.strided and not tensor.is_meta
    changed = _version(tensor) != version or (plain and not _equal(tensor, value))  # batch norm writes unversioned
    if changed and tensor.shape == value.shape:
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.data.copy_(value) if plain else tensor.copy_(value)
