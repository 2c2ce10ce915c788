"""Which module of the model runs now: read off the call stack, so that nothing has to be hooked on for it."""

from __future__ import annotations

import sys
from types import FrameType

import torch
from torch import nn

_CALL = nn.Module._wrapped_call_impl.__code__  # type: ignore[attr-defined]  # what `module(...)` runs


class Paths:
    """The modules of a model by their paths; of a module with several names, the first."""

    def __init__(self, root: nn.Module | None) -> None:
        self._root = root
        self._by_module: dict[int, str] | None = None  # made when somebody asks
        self._bottom: FrameType | None = None

    def begin(self) -> None:
        """What the caller's caller calls from now on is the pass; what called it is not."""
        self._bottom = sys._getframe(2)

    def end(self) -> None:
        self._bottom = None  # a frame keeps everything alive that it knows

    def running(self) -> str:
        """The path of the innermost module that is being called; "" outside of all."""
        if self._by_module is None:
            named = () if self._root is None else self._root.named_modules()
            self._by_module = {id(m): path for path, m in named if not isinstance(m, torch.jit.ScriptModule)}
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame is not self._bottom:
            if frame.f_code is _CALL:
                path = self._by_module.get(id(frame.f_locals["self"]))
                if path is not None:
                    return path
            frame = frame.f_back
        return ""
