"""Hooks that show a pass what enters and leaves modules, where it asks for that; they are gone when the pass ends."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from whence.engine.outputs import is_floating, with_first_changed

if TYPE_CHECKING:
    from whence.engine.flow import Flow


@contextmanager
def watched(root: nn.Module, flow: Flow) -> Iterator[None]:
    """For the length of the block this pass sees modules' inputs and outputs; those of other threads do not."""
    handles = []
    explained = flow.leaves.place
    entered = explained.path if explained.side == "input" else None

    def ours() -> bool:
        return threading.get_ident() == flow.thread and not flow.suspended

    def watch(path: str, module: nn.Module) -> None:
        def enter(module: nn.Module, args: Any, kwargs: Any = None) -> Any:  # None: another thread, half-way through
            return _entering(flow, path, module, args, kwargs) if ours() else None

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            return _leaving(flow, path, module, output) if ours() and output is not None else None

        if flow.captures.enters or path == entered:
            handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave))

    try:
        for path, module in _concerned(root, flow):
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
    path = flow.leaves.place.path
    return [(path, root.get_submodule(path))]


def _entering(flow: Flow, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """The arguments to go on with: the first tensor shown to the captures, leaves where they are explained."""

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
    return flow.leaves.output(flow, path, module, output)


def _captured(flow: Flow, kind: Literal["input", "output"], path: str, tensor: Tensor) -> Tensor:
    flow.is_live(tensor)  # marks what came out of ops that the mode never saw
    return flow.captures.visit(kind, path, tensor)
