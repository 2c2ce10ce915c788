"""A model up to one of its modules: what that module gives or gets, after which nothing has to run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.engine import blame
from whence.engine.custom_functions import suspended
from whence.engine.modules import entering, floating
from whence.engine.places import Place
from whence.engine.scope import rewind
from whence.errors import InputError, WhenceError
from whence.subject.passes import plain_output

if TYPE_CHECKING:
    from whence.subject.subject import Subject


class _Reached(BaseException):
    """Leaves the model at the module; no model catches it by `except Exception`."""

    def __init__(self, owner: object, output: Any) -> None:
        super().__init__()
        self.owner, self.output = owner, output


@dataclass(frozen=True, eq=False)
class Arguments:
    """What enters a module."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def alone(self) -> Any:
        """The one argument that there is, or all of them."""
        given = (*self.args, *self.kwargs.values())
        return given[0] if len(given) == 1 else given


@dataclass(frozen=True, eq=False)
class UpTo:
    """A function of the model's inputs that gives a module's output or input; its hook lives for the call only."""

    model: Callable[..., Any]
    root: nn.Module
    place: Place
    first: bool = False  # of what is there, the first floating tensor, rows first
    leaves: bool = True  # False: run to the end, and give how often the module ran

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls, thread, wanted = 0, threading.get_ident(), self.place.call or 1

        def leave(there: Any) -> None:
            nonlocal calls
            if threading.get_ident() != thread:
                return
            calls += 1
            if self.leaves and calls == wanted:
                raise _Reached(self, there)

        def enters(module: nn.Module, args: Any, kwargs: Any) -> None:
            leave(Arguments(args, kwargs))

        if self.place.side == "input":
            handle = self.module.register_forward_pre_hook(enters, with_kwargs=True)
        else:
            handle = self.module.register_forward_hook(lambda module, args, output: leave(output))
        try:
            self.model(*args, **kwargs)
        except _Reached as reached:
            if reached.owner is not self:  # a model up to one module, inside of which another one was asked for
                raise
            return next(iter(self.tensors(reached.output).values())) if self.first else reached.output
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
            raise InputError(
                f"The module {self.place.path!r} runs {calls} times in one forward pass.\n"
                f"  Say which call is meant: {self.place.calls(calls)}."
            )

    def _not_met(self, calls: int) -> InputError:
        return InputError(
            f"{str(self.place)!r}: the module {self.place.path!r} ran {calls} times in this forward pass.\n"
            "  Name a module that runs, and a call that happens (the first one is @1)."
        )

    def tensors(self, output: Any) -> dict[str, Tensor]:
        """The floating tensors there by name, rows first."""
        if isinstance(output, Arguments):
            parts, does = entering(self.module, output.args, output.kwargs), "gets"
        else:
            parts, does = floating(output, self.module), "gives"
        if not parts:
            raise InputError(f"The module {self.place.path!r} {does} no floating tensor.\n  Name another one.")
        return {name: tensor.movedim(axis, 0) if axis else tensor for name, tensor, axis in parts}


def run_alone(subject: Subject) -> Any:
    """The model's output in a plain run without a graph."""
    rewind()
    try:
        with torch.no_grad():
            return plain_output(subject)
    except Exception as error:
        if isinstance(error, WhenceError) or blame.out_of_memory(error):
            raise
        raise blame.of_model(error, subject.model, subject.inputs, subject.root) from error


def check_calls(subject: Subject, model: UpTo) -> None:
    """Before the first pass of a model up to a module: whether it runs, and whether it is said which call is meant."""
    with suspended():
        model.check(run_alone(replace(subject, model=model.counting())))
