"""The scope of one explanation: everything that it could disturb is as it was when it closes, however it closes.

Several explanations may run at once, in threads of their own, of one model too: the first in takes it down and sets it
to eval mode, the last out puts it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.engine import global_state
from whence.engine.inplace import SILENT_WRITES, draws, written_by
from whence.engine.ops import Spelling, spelling
from whence.engine.snapshot import Search, Snapshot

_held: dict[nn.Module, tuple[Snapshot, int]] = {}  # and by how many scopes
_own = threading.local()  # `scopes`: those of this thread, the innermost last
_memory: dict[int, list[tuple[Tensor, Snapshot]]] = {}  # whose memory it is, once somebody asks


@dataclass(eq=False)
class _Scope:
    modules: list[nn.Module]
    flags: global_state.Flags  # of this thread, at the beginning of every pass
    begun: bool = False  # whether there was a pass yet


@contextmanager
def scope(*roots: nn.Module | None) -> Iterator[None]:
    """Eval mode, gradients on, inference mode, autocast and compilation off; then everything as it was."""
    with ExitStack() as stack:
        stack.enter_context(global_state.kept())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if not torch.is_grad_enabled():
            stack.enter_context(torch.enable_grad())
        for device in global_state.devices():
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        flags = global_state.own_flags()
        stack.enter_context(_left_as_found([root for root in roots if root is not None], flags))
        yield


_each_pass: ContextVar[Callable[[], None] | None] = ContextVar("each_pass", default=None)


@contextmanager
def each_pass(call: Callable[[], None]) -> Iterator[None]:
    """Inside of the block, `call` runs before every pass of a model: it counts them, and stops the work by raising."""
    token = _each_pass.set(call)
    try:
        yield
    finally:
        _each_pass.reset(token)


def begin_pass() -> None:
    """Before every pass of a model, explained or plain."""
    call = _each_pass.get()
    if call is not None:
        call()


def rewind() -> None:
    """Before a pass in this scope: the model and the random states as they were at its beginning."""
    begin_pass()
    scopes: list[_Scope] = getattr(_own, "scopes", [])
    if not scopes or not scopes[-1].begun:  # the first one finds all as it was
        for inner in scopes[-1:]:
            inner.begun = True
        return
    global_state.rewind(scopes[-1].flags)
    with global_state.lock:
        for module in scopes[-1].modules:
            snapshot, count = _held[module]
            if count == 1:
                snapshot.restore(module, done=False)


def remember(written: Tensor) -> None:
    """Keep the value of a parameter or buffer whose memory is about to be written to."""
    if written.layout != torch.strided or written.is_meta:
        return
    with global_state.lock:
        if not _memory:
            _find_memory()
        for memory, snapshot in _memory.get(written.untyped_storage().data_ptr(), ()):  # several may be views of one
            snapshot.written.setdefault(id(memory), (memory, memory.clone()))


def observe(spelled: Spelling, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterable[Tensor]:
    """Before a call of the model's: keep what it writes to, which is given back, and note whether it draws numbers."""
    written: Iterable[Tensor] = ()
    if spelled.writes or "out" in kwargs or spelled.name in SILENT_WRITES:
        written = list(written_by(spelled.name, args, kwargs))
        for tensor in written:
            remember(tensor)
    if spelled.lends and args and isinstance(args[0], Tensor):
        remember(args[0])  # NumPy may write to it
    if spelled.may_draw and draws(spelled.name, args, kwargs):
        global_state.draws()
    return written


class Watch(TorchFunctionMode):
    """For a model that runs by itself: keeps what it writes to, and ignores everything else."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        observe(spelling(func), args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _find_memory() -> None:
    for snapshot, _ in _held.values():
        for memory in snapshot.memory():
            if memory.layout == torch.strided and not memory.is_meta:
                _memory.setdefault(memory.untyped_storage().data_ptr(), []).append((memory, snapshot))


@contextmanager
def _left_as_found(roots: list[nn.Module], flags: global_state.Flags) -> Iterator[None]:
    modules = list(dict.fromkeys(module for root in roots for module in root.modules()))
    with global_state.lock:
        search = Search(modules)
        for module in modules:
            snapshot, count = _held.get(module) or (Snapshot(module, search), 0)
            _held[module] = (snapshot, count + 1)
            if snapshot.opaque:
                global_state.draws()  # what scripted code does cannot be seen
        _memory.clear()
    if not hasattr(_own, "scopes"):
        _own.scopes = []
    _own.scopes.append(_Scope(modules, flags))
    try:
        yield
    finally:
        _own.scopes.pop()
        with global_state.lock:
            for module in modules:
                snapshot, count = _held.pop(module)
                if count > 1:
                    _held[module] = (snapshot, count - 1)
                else:
                    snapshot.restore(module)
            _memory.clear()
