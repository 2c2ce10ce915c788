"""The scope of one explanation: everything that it could disturb is as it was when it closes, however it closes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_CONTAINERS = (list, dict, set)


@contextmanager
def scope(root: nn.Module | None) -> Iterator[None]:
    """Eval mode, gradients on, inference mode and autocast off; then model, flags and random states restored."""
    with ExitStack() as stack:
        stack.enter_context(_random_states_kept())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in _devices():
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if root is not None:
            stack.enter_context(_left_as_found(root))
        yield


def _devices() -> set[str]:
    accelerator = torch.accelerator.current_accelerator()
    return {"cpu"} if accelerator is None else {"cpu", accelerator.type}


@contextmanager
def _random_states_kept() -> Iterator[None]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


# ---- the model ----

_lock = threading.Lock()
_held: dict[nn.Module, tuple[_Snapshot, int]] = {}  # several threads may hold one module: the last one restores


@contextmanager
def _left_as_found(root: nn.Module) -> Iterator[None]:
    modules = list(root.modules())
    with _lock:
        for module in modules:
            snapshot, count = _held.get(module) or (_Snapshot(module), 0)
            _held[module] = (snapshot, count + 1)
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
                    snapshot.restore(module)


class _Snapshot:
    """A module's attributes, the contents of its lists and dicts (buffers and hooks among them), buffers' values."""

    def __init__(self, module: nn.Module) -> None:
        self.training = module.training
        self.opaque = isinstance(module, torch.jit.ScriptModule)
        if self.opaque:
            return
        self.attributes = dict(module.__dict__)
        self.contents = [(c, c.copy()) for c in self.attributes.values() if isinstance(c, _CONTAINERS)]
        self.buffers = [(b, b.detach().clone()) for b in module._buffers.values() if b is not None]

    def restore(self, module: nn.Module) -> None:
        if self.opaque:
            module.training = self.training
            return
        now = module.__dict__
        for key in [key for key in now if key not in self.attributes]:
            del now[key]
        for key, value in self.attributes.items():
            if key not in now or now[key] is not value:
                now[key] = value
        for container, content in self.contents:
            _refill(container, content)
        for buffer, value in self.buffers:
            _rewrite(buffer, value)


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, list):
        if len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
            container[:] = content
    elif isinstance(container, dict):
        same = len(container) == len(content) and all(container.get(k) is v for k, v in content.items())
        if not same:
            container.clear()
            container.update(content)
    elif container != content:
        container.clear()
        container.update(content)


def _rewrite(buffer: Tensor, value: Tensor) -> None:
    """Put a buffer's value back if the model wrote to it; a write of live values has also tied it to a graph."""
    if buffer.grad_fn is not None:
        buffer.detach_()
    if not torch.equal(buffer, value):
        with torch.inference_mode(buffer.is_inference()), torch.no_grad():
            buffer.copy_(value)
