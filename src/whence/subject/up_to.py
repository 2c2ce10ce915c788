"""A model up to one of its modules: what that module gives, after which nothing has to run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from whence.engine.outputs import floating
from whence.engine.places import Place
from whence.errors import InputError


class _Reached(BaseException):
    """Leaves the model at the module; no model catches it by `except Exception`."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


@dataclass(frozen=True, eq=False)
class UpTo:
    """A function of the model's inputs that gives a module's output; its hook lives for the call only."""

    model: Callable[..., Any]
    root: nn.Module
    place: Place
    leaves: bool = True  # False: run to the end, and give how often the module ran

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls, thread, wanted = 0, threading.get_ident(), self.place.call or 1

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal calls
            if threading.get_ident() != thread:
                return
            calls += 1
            if self.leaves and calls == wanted:
                raise _Reached(output)

        handle = self.module.register_forward_hook(leave)
        try:
            self.model(*args, **kwargs)
        except _Reached as reached:
            return reached.output
        finally:
            handle.remove()
        if self.leaves:
            raise self._not_met(calls)
        return calls

    @property
    def module(self) -> nn.Module:
        return self.root.get_submodule(self.place.path)

    def counting(self) -> UpTo:
        """The function that says how often the module runs."""
        return replace(self, leaves=False)

    def check(self, calls: int) -> None:
        """An error if it was not said which of several calls is meant, or the call does not happen."""
        if calls < (self.place.call or 1):
            raise self._not_met(calls)
        if self.place.call is None and calls > 1:
            path = self.place.path
            raise InputError(
                f"The module {path!r} runs {calls} times in one forward pass.\n"
                f'  Say which call is meant: "{path}@1" to "{path}@{calls}".'
            )

    def _not_met(self, calls: int) -> InputError:
        return InputError(
            f"{str(self.place)!r}: the module {self.place.path!r} ran {calls} times in this forward pass.\n"
            "  Name a module that runs, and a call that happens (the first one is @1)."
        )

    def tensors(self, output: Any) -> dict[str, Tensor]:
        """The floating tensors of the module's output by name, rows first."""
        parts = floating(output, self.module)
        if not parts:
            raise InputError(f"The module {self.place.path!r} gives no floating tensor.\n  Name another one.")
        return {name: tensor.movedim(axis, 0) if axis else tensor for name, tensor, axis in parts}
