"""The two autograd nodes that let a rule replace the backward of an op, and rules that work in the forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import (
    REBUILT,
    Back,
    Call,
    CallsNeeded,
    Gradients,
    Rule,
    derivative,
    find_rule,
    version_of,
)
from whence.engine.inplace import out_of_place
from whence.engine.ops import GROUP
from whence.engine.trackers import Op, store
from whence.errors import RuleError
from whence.util.tree import flatten, swapped, tensors_in, unflatten

_MAKER = "maker"  # on a ruled op's output: its call


@dataclass(frozen=True, eq=False)
class Ahead:
    """A rule that does its work in the forward pass and keeps what the way back needs, not the op itself."""

    prepare: Callable[[Call], Back]
    when: Callable[[Call], bool] | None = None  # which ops it is for; the others are plain
    loose: bool = True  # with `when`: it is only for ops with constants that the data chose
    secant: bool = False  # Δy/Δx, for which RevealCancel may stand

    @property
    def __name__(self) -> str:
        return self.prepare.__name__

    def __call__(self, call: Call, m: Any) -> Gradients:
        return self.prepare(call)(m)


def rule_name(rule: Rule) -> str:
    return getattr(rule, "__name__", type(rule).__name__)


@dataclass(slots=True)
class Signal:
    """What the nodes of one forward pass propagate now; shared by all of them.

    It is empty except while the engine propagates, so a model that differentiates inside itself gets true derivatives.
    """

    rules: Mapping[str, Rule] = field(default_factory=dict)


def run_with_rule(signal: Signal, op: Op, call: Call, rule: Rule | None = None) -> Any:
    """Run an op such that its backward asks the signal for a rule; the result has the function's own form.

    A `rule` that can be prepared is prepared, and then no other table will do on the way back. x.relu_() runs as
    x.copy_(rule(x.clone())), so that autograd keeps views and their bases right.
    """
    target: Tensor | None = op.target
    if target is None:
        result = _run(signal, call, op.live, rule)
        if isinstance(result, Tensor):
            store.put(result, _MAKER, call)
        return result
    copy = target.clone()
    maker: Call | None = store.get(target, _MAKER)
    if maker is not None and not maker.kept and tuple(map(version_of, maker.outputs)) == maker.made:
        maker.kept = (copy.detach(),)  # it may ask for its output when that has been overwritten
    call.args, call.kwargs = swapped(call.args, {id(target): copy}), swapped(call.kwargs, {id(target): copy})
    call.function = out_of_place(call.function)
    target.copy_(_run(signal, call, [copy if t is target else t for t in op.live], rule))
    return target


def only_views(op: Op) -> bool:
    """Whether this op hands on its input's own memory: a node of ours would break the tie between the two."""
    if GROUP.get(op.family) != "view":
        return False
    inputs = {id(t): t.detach() for t in op.live}
    with torch.no_grad():
        result = op.func(*swapped(op.args, inputs), **op.kwargs) if op.family != "write" else None
    memory = {t.untyped_storage().data_ptr() for t in op.live}
    return any(t.untyped_storage().data_ptr() in memory for t in tensors_in(result))


def _run(signal: Signal, call: Call, live: Sequence[Tensor], rule: Rule | None) -> Any:
    node = _Prepared if isinstance(rule, Ahead) else _Ruled
    flat = node.apply(signal, call, rule, *live)
    return unflatten(call.form, iter(flat))


_APPLY = torch.autograd.Function.__dict__["apply"].__func__
# torch's own `apply`, whatever `custom_functions` makes of it while a pass runs
untold = FunctionType(_APPLY.__code__, _APPLY.__globals__, _APPLY.__name__, _APPLY.__defaults__, _APPLY.__closure__)


class Node(torch.autograd.Function):
    """A node of the engine's own, of which no pass has to be told (see `custom_functions`)."""

    apply = classmethod(untold)


class _Ruled(Node):
    """The op runs on detached inputs, in a graph of its own: `vjp` needs no second run, and no rule reaches past it."""

    @staticmethod
    def forward(ctx: Any, signal: Signal, call: Call, rule: Any, *live: Tensor) -> Any:
        rebuilt = call.family in REBUILT
        with torch.set_grad_enabled(not rebuilt):
            inputs = tuple((t.detach().clone() if call.copies else t.detach()).requires_grad_() for t in live)
            swap = {id(t): inner for t, inner in zip(live, inputs, strict=True)}
            call.args, call.kwargs = swapped(call.args, swap), swapped(call.kwargs, swap)
            result = call.function(*call.args, **call.kwargs)
        outputs: list[Tensor] = []
        call.form = flatten(result, outputs)
        call.inputs, call.outputs = inputs, tuple(outputs)
        call.kept = tuple(y.detach().clone() for y in outputs) if call.copies else ()
        call.versions, call.made = tuple(map(version_of, (*inputs, *call.loose))), tuple(map(version_of, outputs))
        ctx.signal, ctx.call = signal, call
        ctx.set_materialize_grads(len(outputs) > 1)
        given = tuple(y.detach() for y in outputs)
        fixed = [not (y.is_floating_point() if rebuilt else y.requires_grad) for y in outputs]
        ctx.mark_non_differentiable(*(g for g, constant in zip(given, fixed, strict=True) if constant))
        return given

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Any:
        call: Call = ctx.call
        if torch.is_grad_enabled():  # create_graph=True: a rule has no derivative, and a constant would be wrong
            raise RuleError(
                f"The model differentiates {call} twice, but a rule can be differentiated only once.\n"
                "  Use a method without a rule for this op, such as gradient."
            )
        if signals[0] is None:  # nothing comes, and nothing is handed on
            return (None,) * (3 + len(call.inputs))
        rule = call.rule_in(ctx.signal.rules) or derivative
        given = rule(call, signals[0] if len(signals) == 1 else signals)
        _check_given(call, [x.shape for x in call.inputs], rule, given)
        gradients = (given,) if isinstance(given, Tensor) else tuple(given)
        return (None, None, None, *gradients)


class _Prepared(Node):
    """The op runs without a graph, and its rule keeps what it wants."""

    @staticmethod
    def forward(ctx: Any, signal: Signal, call: Call, rule: Any, *live: Tensor) -> Any:
        with torch.no_grad():
            inputs = tuple(t.detach().clone() if call.copies else t.detach() for t in live)
            swap = {id(t): inner for t, inner in zip(live, inputs, strict=True)}
            call.args, call.kwargs = swapped(call.args, swap), swapped(call.kwargs, swap)
            outputs: list[Tensor] = []
            call.form = flatten(call.function(*call.args, **call.kwargs), outputs)
            call.inputs, call.outputs = inputs, tuple(outputs)
            call.versions = tuple(map(version_of, (*inputs, *call.loose)))
            ctx.back = rule.prepare(call)
        ctx.signal, ctx.rule, ctx.family, ctx.name, ctx.title = signal, rule, call.family, call.name, str(call)
        ctx.shapes = [x.shape for x in inputs]
        ctx.set_materialize_grads(len(outputs) > 1)
        given = tuple(y.detach() for y in outputs)
        ctx.mark_non_differentiable(*(g for g in given if not (g.is_floating_point() or g.is_complex())))
        return given

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Any:
        if find_rule(ctx.signal.rules, ctx.family, ctx.name) is not ctx.rule or torch.is_grad_enabled():
            raise CallsNeeded
        if signals[0] is None:
            return (None,) * (3 + len(ctx.shapes))
        given = ctx.back(signals[0] if len(signals) == 1 else signals)
        _check_given(ctx.title, ctx.shapes, ctx.rule, given)
        return (None, None, None, *((given,) if isinstance(given, Tensor) else tuple(given)))


def _check_given(title: Any, wanted: Sequence[torch.Size], rule: Rule | None, given: Any) -> None:
    """A rule gives one tensor per live input, each of that input's shape, or None for zero."""
    if isinstance(given, Tensor) and len(wanted) == 1 and given.shape == wanted[0]:
        return
    parts = [given] if isinstance(given, Tensor) else list(given) if isinstance(given, list | tuple) else [given]
    fits = len(parts) == len(wanted) and all(
        p is None or (isinstance(p, Tensor) and p.shape == shape) for p, shape in zip(parts, wanted, strict=False)
    )
    if not fits or given is None:
        got = [tuple(p.shape) if isinstance(p, Tensor) else p for p in parts]
        raise RuleError(
            f"The rule {rule_name(rule or derivative)!r} for {title} returned {got}, "
            f"but the live inputs have the shapes {[tuple(shape) for shape in wanted]}.\n"
            "  A rule returns one tensor per live input, each of that input's shape (or None for zero)."
        )
