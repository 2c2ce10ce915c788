"""Which module of the model runs now: read off the call stack, so that nothing has to be hooked on for it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType

import torch
from torch import nn

_CALL = nn.Module._wrapped_call_impl.__code__  # what `module(...)` runs


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
