"""One op of a forward pass as a rule sees it, and how an op's rule is looked up in a table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.ops import FAMILIES, GROUP
from whence.errors import RuleError
from whence.util.tree import flatten, swapped

Gradients = Tensor | Sequence[Tensor | None]
Rule = Callable[["Call", Any], Gradients]
Back = Callable[[Any], Gradients]  # from an output's signal to its inputs'


# ops that keep their inputs only, and are run again where their derivative is asked for: an attention's maps are large
REBUILT = frozenset({"scaled_dot_product_attention"})


class Overwritten(RuleError):
    """A rule wants a value that the model has overwritten: the pass must be run again with copies."""


class CallsNeeded(Exception):
    """Something other than the pass's own rules is asked of an op that kept nothing for it."""


@dataclass(eq=False, slots=True)
class Call:
    """An op that was called on live tensors: `x` its live inputs, `y` its output, `vjp` its own derivative."""

    family: str
    name: str
    path: str
    function: Callable[..., Any]
    args: Any  # with the live inputs in place
    kwargs: Any
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    kept: tuple[Tensor, ...] = ()  # the outputs' values, where the model overwrites them later
    versions: tuple[int, ...] = ()
    made: tuple[int, ...] = ()  # the outputs' versions
    loose: tuple[Tensor, ...] = ()  # constants among the arguments that are not parameters
    form: Any = None  # of the result
    copies: bool = False  # work on copies of the inputs, which the model overwrites later
    reference: Any = None  # the same op's entry in a recorded reference pass
    row_axes: tuple[Any, ...] = ()  # where the rows are in each live input
    row_axis: Any = None  # and in the output
    origins: tuple[Any, ...] = ()  # what each live input was made of
    note: Any = None  # its page in the account of a relevance pass
    site: Any = None  # of a fused attention, where a listener is told of sites
    lose: Callable[[float], None] | None = None  # records what a rule could not hand on

    @property
    def x(self) -> tuple[Tensor, ...]:
        """The live inputs, detached."""
        self.check()
        return tuple(t.detach() for t in self.inputs)

    def check(self) -> None:
        """Inputs and constants must be what they were."""
        self.guard()()

    def guard(self) -> Callable[[], None]:
        """The same check for a rule that keeps the inputs and not the call."""
        title, held, versions = str(self), (*self.inputs, *self.loose), self.versions

        def check() -> None:
            if versions and tuple(map(version_of, held)) != versions:
                raise Overwritten(f"The input of {title} was overwritten in place after the call.")

        return check

    @property
    def y(self) -> Tensor:
        """The (first) output, detached."""
        return self.ys[0]

    @property
    def ys(self) -> tuple[Tensor, ...]:
        """All outputs, detached."""
        if self.kept:
            return self.kept
        if self.made and tuple(map(version_of, self.outputs)) != self.made:
            raise Overwritten(f"The output of {self} was overwritten in place after the call.")
        return tuple(y.detach() for y in self.outputs)

    @property
    def reference_x(self) -> tuple[Tensor, ...]:
        """The live inputs of the same op in the reference pass; one row may stand for all."""
        if self.reference is None:
            raise RuleError(f"The rule for {self} asks for a reference, but this pass has none.")
        return tuple(self.reference.values)

    @property
    def reference_y(self) -> Tensor:
        """The (first) output of the same op in the reference pass."""
        with torch.no_grad():
            outputs: list[Tensor] = []
            entry = self.reference
            flatten(self.function(*entry.args, **(entry.kwargs or {})), outputs)
        return outputs[0]

    def value_at(self, point: Sequence[Tensor]) -> Tensor:
        """The (first) output at other inputs."""
        swap = {id(x): new for x, new in zip(self.inputs, point, strict=True)}
        outputs: list[Tensor] = []
        with torch.no_grad():
            flatten(self.function(*swapped(self.args, swap), **swapped(self.kwargs, swap)), outputs)
        return outputs[0]

    def derivative_at(self, point: Sequence[Tensor], m: Any) -> tuple[Tensor | None, ...]:
        """What the op's derivative at other inputs makes of the signal m."""
        self.check()
        with torch.enable_grad():
            inputs = tuple(
                t.detach().expand_as(x).clone().requires_grad_() for t, x in zip(point, self.inputs, strict=True)
            )
            swap = {id(x): new for x, new in zip(self.inputs, inputs, strict=True)}
            outputs: list[Tensor] = []
            flatten(self.function(*swapped(self.args, swap), **swapped(self.kwargs, swap)), outputs)
        try:
            return _pulled(outputs, inputs, m)
        except RuntimeError as error:
            if "is not implemented" not in str(error):
                raise
            return (None,) * len(inputs)  # an op that torch cannot differentiate

    def moved(self, point: Sequence[Tensor]) -> Call:
        """The same op at other inputs, without anything of these."""
        swap = {id(x): new for x, new in zip(self.inputs, point, strict=True)}
        args, kwargs = swapped(self.args, swap), swapped(self.kwargs, swap)
        there = Call(self.family, self.name, self.path, self.function, args, kwargs, tuple(point), loose=self.loose)
        there.versions = tuple(map(version_of, (*there.inputs, *there.loose)))
        return there

    def vjp(self, m: Any, wanted: Sequence[Any] | None = None) -> tuple[Tensor | None, ...]:
        """What the op's own derivative makes of the signal m: one tensor per live input, or per one that is wanted."""
        if self.family == "batch_norm" and isinstance(m, Tensor):
            m = m.contiguous()  # see inplace.in_rows
        if self.family in REBUILT or not self.inputs[0].requires_grad:
            return self.derivative_at(self.x, m)  # x, which says so if the model has overwritten it
        if wanted is None or all(wanted):
            return _pulled(self.outputs, self.inputs, m)
        found = iter(_pulled(self.outputs, [x for x, want in zip(self.inputs, wanted, strict=True) if want], m))
        return tuple(next(found) if want else None for want in wanted)

    def rule_in(self, rules: Mapping[str, Rule]) -> Rule | None:
        return find_rule(rules, self.family, self.name)

    def __str__(self) -> str:
        return f"{self.family!r} (met in {self.path or 'the model itself'})"


def version_of(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _pulled(outputs: Sequence[Tensor], inputs: Sequence[Tensor], m: Any) -> tuple[Tensor | None, ...]:
    signals = [m] if isinstance(m, Tensor) else list(m)
    pairs = [(y, s) for y, s in zip(outputs, signals, strict=True) if y.requires_grad]
    if not pairs or not inputs:
        return (None,) * len(inputs)
    return torch.autograd.grad(
        [y for y, _ in pairs], inputs, [s for _, s in pairs], retain_graph=True, allow_unused=True
    )


def find_rule(rules: Mapping[str, Rule], family: str, name: str = "") -> Rule | None:
    """By family, by spelling, by group, then what "*" says of everything else but views, which are autograd's."""
    rule = None
    for key in keys(family, name):
        if key in rules:
            rule = rules[key]
            break
    return rule or (rules.get("*") if GROUP.get(family) != "view" else None)


@functools.lru_cache(maxsize=4096)
def keys(family: str, name: str) -> tuple[str, ...]:
    """What an op's rule may be given under, narrowest first; a family's or group's name is never a spelling."""
    spelling = [] if name in GROUP or name in FAMILIES else [name]
    return (family, *spelling, *([GROUP[family]] if family in GROUP else []))


def merged(rules: Mapping[str, Rule], own: Mapping[str, Rule]) -> dict[str, Rule]:
    """A user's own rules over a method's: a group, or "*", of the user's also replaces the method's families."""
    kept = {key: rule for key, rule in rules.items() if "*" not in own and (key not in GROUP or GROUP[key] not in own)}
    return {**kept, **own}


def derivative(call: Call, m: Any) -> Gradients:
    """The rule of plain autograd."""
    return call.vjp(m)
