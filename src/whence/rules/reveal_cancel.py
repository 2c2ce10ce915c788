"""Positive and negative parts of what changed: every Δx as Δx⁺ + Δx⁻, each with a signal of its own on the way back.

A tensor's parts are two more tensors of the graph, kept on it. Linear maps make them, Δy± = ½(Δy ± |W||Δx|); sums,
scalings, averages and views carry them; RevealCancel's elementwise functions take one pair to another. An op that
knows nothing of parts uses the tensor itself, whose signal goes to both, so that nothing is ever lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Call
from whence.engine.inplace import out_of_place
from whence.engine.nodes import Node
from whence.engine.ops import GROUP
from whence.engine.tape import Tape
from whence.engine.trackers import NOT_RUN, Op, Tracker, store
from whence.rules.rescale import STEEP, replaced_where, too_close
from whence.util.tree import swapped, tensors_in

_PARTIAL = STEEP | {"sqrt", "rsqrt", "reciprocal", "log1p", "tan"}  # not defined at every x' + Δx⁺
_PARTS, _BORN = "parts", "born"


@dataclass(frozen=True, eq=False)
class Pair:
    """What a tensor's change is made of; `dense` if a dense layer made it, and not a convolution."""

    plus: Tensor
    minus: Tensor
    dense: bool = True

    def map(self, function: Callable[[Tensor], Tensor]) -> Pair:
        return Pair(function(self.plus), function(self.minus), self.dense)


def split(x: Tensor, before: Tensor) -> Pair:
    """By the sign of the whole: positive or negative, and a half each where nothing changed or there is no sign."""
    step = x - before
    sign: Any = 0.0 if step.is_complex() else step.detach().sign()
    return Pair(step * ((1 + sign) / 2), step * ((1 - sign) / 2))


def parts_of(x: Tensor, before: Tensor) -> Pair:
    """The parts that are known of a tensor, or else its split."""
    pair, version = store.get(x, _PARTS, (None, -1))
    return pair if pair is not None and version == x._version else split(x, before)


# ---- which ops are asked ----


class Parts(Tracker):
    """Which ops of a recorded pass have to give parts: those from which the score's, or RevealCancel's, are made.

    In the recording every op is noted by number; in the replay those that are asked give their parts.
    """

    def __init__(self, tape: Tape, reveal: str = "") -> None:
        self.tape, self.reveal = tape, reveal  # "" (Rescale), "all", or "dense" for what follows dense layers
        self.asked: set[int] = set()
        self._kinds: list[str] = []
        self._parents: list[tuple[int, ...]] = []
        self._played = -1  # the number of the op that is being replayed
        self._pairs: list[Pair] = []  # the parts of its inputs

    def before(self, op: Op) -> None:
        if self.tape.replays:
            self._played += 1
            op.wants_call |= self._played in self.asked
            return
        self._kinds.append(self.kind(op.family))
        self._parents.append(tuple(_born(t) for t in op.live))
        op.keeps_values |= bool(self._kinds[-1])

    def run(self, op: Op) -> Any:
        """An elementwise op by RevealCancel, in place or not, where a secant would be its rule."""
        if self._played not in self.asked or op.call is None:
            return NOT_RUN
        pairs = [parts_of(t, before) for t, before in zip(op.live, op.entry.values, strict=True)]
        if not self.reveals(op.family, op.rule, pairs):
            self._pairs = [] if op.ruled else pairs
            return NOT_RUN
        if op.target is not None:
            op.call.function = out_of_place(op.call.function)
        y, parts = revealed(op.call, op.live[0], pairs[0])
        result = y if op.target is None else op.target.copy_(y)
        attach(result, parts)
        return result

    def follow(self, op: Op) -> None:
        pairs, self._pairs = self._pairs, []
        if pairs and op.call is not None:
            carry(op.call, op.live, pairs, op.result)
        if self.tape.replays:
            return
        if self._kinds[-1] == "makes":
            self.tape.record_result(op.result)
        for tensor in op.results:
            store.put(tensor, _BORN, (len(self._kinds) - 1, tensor._version))

    def kind(self, family: str) -> str:
        if family in _MAKERS:
            return "makes"
        if family in _CARRIERS:
            return "carries"
        everywhere = GROUP.get(family) == "elementwise" and family not in _PARTIAL
        return "reveals" if self.reveal and everywhere else ""

    def reveals(self, family: str, rule: Any, pairs: Collection[Pair]) -> bool:
        """Whether an op takes one pair to another by RevealCancel."""
        if any(pair.plus.is_complex() for pair in pairs):
            return False
        fits = self.kind(family) == "reveals" and getattr(rule, "secant", False) and len(pairs) == 1
        return fits and (self.reveal == "all" or all(pair.dense for pair in pairs))

    def settle(self, held: Tensor) -> None:
        """The recording is over, and this tensor holds the scores: find who is asked, and let go of other values."""
        stack = [_born(held), *(n for n, kind in enumerate(self._kinds) if kind == "reveals")]
        while stack:
            op = stack.pop()
            if op < 0 or op in self.asked or not self._kinds[op]:
                continue
            self.asked.add(op)
            if self._kinds[op] != "makes":
                stack.extend(self._parents[op])
        self.tape.trim(self.asked)


def _born(tensor: Tensor) -> int:
    op, version = store.get(tensor, _BORN, (-1, -1))
    return op if version == tensor._version else -1


# ---- ops that carry parts ----


def carry(call: Call, live: Sequence[Tensor], pairs: Sequence[Pair], result: Any) -> None:
    """Give a result the parts that come of its inputs'."""
    if any(t.is_complex() for t in (*live, *tensors_in(result))):
        return
    function = _CARRIERS.get(call.family) or _MAKERS.get(call.family)
    if function is not None:
        attach(result, function(call, live, pairs, result))


def attach(result: Any, parts: Any) -> None:
    if isinstance(result, Tensor) and isinstance(parts, Pair):
        store.put(result, _PARTS, (parts, result._version))
    elif isinstance(result, tuple | list) and isinstance(parts, list):
        for tensor, pair in zip(result, parts, strict=True):
            attach(tensor, pair)


def _linear(call: Call, live: Sequence[Tensor], pairs: Sequence[Pair], result: Tensor) -> Pair | None:
    """Δy± = ½(Δy ± |W||Δx|)."""
    if len(live) != 1 or live[0] is _offset(call):
        return None
    (x,), entry = live, call.reference

    def sizes(size: Tensor) -> Tensor:
        swap = {id(t): t.abs() for t in _tensors(call.args, call.kwargs) if t is not x} | {id(x): size}
        args, kwargs = list(swapped(call.args, swap)), dict(swapped(call.kwargs, swap))
        offset = _offset_at(call)
        if offset is not None and isinstance(args[offset], Tensor):
            args[offset] = torch.zeros_like(args[offset])
        kwargs |= {"alpha": abs(kwargs["alpha"])} if "alpha" in kwargs else {}
        return call.function(*args, **kwargs)

    plus, minus = _Parted.apply(sizes, x, entry.values[0], result, entry.result)
    return Pair(plus, minus, call.family != "convolution")


_ADDING = ("addmm", "addbmm", "baddbmm", "addmv")


def _offset(call: Call) -> Any:
    """What a linear map adds."""
    place = _offset_at(call)
    return None if place is None else call.args[place]


def _offset_at(call: Call) -> int | None:
    """Where that is among the arguments."""
    place = 0 if call.name in _ADDING else 2 if call.name == "linear" or call.family == "convolution" else None
    return place if place is not None and len(call.args) > place else None


class _Parted(Node):
    """(Δy ± |W||Δx|)/2 from x and y. On the way back y has half the sum of the signals, x the difference by |W|."""

    @staticmethod
    def forward(ctx: Any, sizes: Any, x: Tensor, before: Tensor, y: Tensor, y_before: Tensor) -> Any:
        step = x - before
        ctx.sign = step.sign()
        with torch.enable_grad():
            ctx.size = step.abs_().requires_grad_()
            ctx.sizes = sizes(ctx.size)
        rise = y - y_before
        plus = torch.add(rise, ctx.sizes.detach()).mul_(0.5)
        return plus, rise.sub_(plus)

    @staticmethod
    def backward(ctx: Any, plus: Tensor, minus: Tensor) -> Any:
        (by,) = torch.autograd.grad(ctx.sizes, ctx.size, (plus - minus).mul_(0.5), retain_graph=True)
        return None, by.mul_(ctx.sign), None, (plus + minus).mul_(0.5), None


def _add(call: Call, live: Sequence[Tensor], pairs: Sequence[Pair], result: Tensor) -> Pair | None:
    known = {id(t): pair for t, pair in zip(live, pairs, strict=True)}
    raw = getattr(call.function, "__name__", "")
    alpha = call.kwargs.get("alpha", 1)
    total: Pair | None = None
    for place, operand in enumerate(call.args[:2]):
        pair = known.get(id(operand)) if isinstance(operand, Tensor) else None
        if pair is None:
            continue
        minus = "neg" in call.name or ("sub" in call.name and (place == 1) != (raw in ("__rsub__", "rsub")))
        pair = _times(pair, (-1.0 if minus else 1.0) * (alpha if place == 1 else 1))
        total = pair if total is None else Pair(total.plus + pair.plus, total.minus + pair.minus, _same(total, pair))
    return None if total is None else total.map(lambda t: t.expand(result.shape))


def _same(a: Pair, b: Pair) -> bool:
    return a.dense and b.dense


def _scale(call: Call, live: Sequence[Tensor], pairs: Sequence[Pair], result: Tensor) -> Pair | None:
    (x,) = live
    factors = [a for a in call.args[:2] if a is not x]
    if len(factors) != 1:
        return None
    factor = 1 / factors[0] if "div" in call.name else factors[0]
    return _times(pairs[0], factor).map(lambda t: t.expand(result.shape))


def _times(pair: Pair, factor: Any) -> Pair:
    """A negative factor swaps the two."""
    if not isinstance(factor, Tensor):
        a, b = (pair.plus, pair.minus) if factor >= 0 else (pair.minus, pair.plus)
        return Pair(a * factor, b * factor, pair.dense) if factor != 1 else pair
    up, down = factor.clamp(min=0), factor.clamp(max=0)
    return Pair(pair.plus * up + pair.minus * down, pair.minus * up + pair.plus * down, pair.dense)


def _batch_norm(call: Call, live: Sequence[Tensor], pairs: Sequence[Pair], result: Tensor) -> Pair | None:
    by_module = inspect.isfunction(call.function)  # F.batch_norm has its weights last, torch.batch_norm first
    at, weight = (2, 3) if by_module else (4, 1)
    factor = torch.rsqrt(call.args[at] + (call.args[7] if len(call.args) > 7 else 1e-5))
    if len(call.args) > weight and call.args[weight] is not None:
        factor = factor * call.args[weight]
    return _times(pairs[0], factor.view(-1, *[1] * (result.dim() - 2)))


def _alike(call: Call, live: Sequence[Tensor], pairs: Sequence[Pair], result: Any) -> Any:
    """Views and averages: the same to both parts, constants beside them 0."""
    if call.name in ("diff",) or (call.name in ("pad", "constant_pad_nd") and _fills(call)):
        return None
    halves = []
    for side in ("plus", "minus"):
        swap = {id(t): getattr(pair, side) for t, pair in zip(live, pairs, strict=True)}
        if call.family == "concatenate":
            rest = (t for t in _tensors(call.args, call.kwargs) if id(t) not in swap and t.is_floating_point())
            swap |= {id(t): torch.zeros_like(t) for t in rest}
        halves.append(call.function(*swapped(call.args, swap), **swapped(call.kwargs, swap)))
    plus, minus = halves
    dense = all(pair.dense for pair in pairs)
    if isinstance(plus, Tensor):
        return Pair(plus, minus, dense)
    return [Pair(a, b, dense) for a, b in zip(plus, minus, strict=True)]


def _fills(call: Call) -> bool:
    value = call.kwargs.get("value", call.args[3] if len(call.args) > 3 else None)
    return call.name == "constant_pad_nd" or (value is not None and value != 0)


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    return list(tensors_in([*args, *kwargs.values()]))


_MAKERS: dict[str, Callable[..., Any]] = {"linear": _linear, "convolution": _linear}
_CARRIERS: dict[str, Callable[..., Any]] = {
    "add": _add,
    "scale": _scale,
    "batch_norm": _batch_norm,
    **dict.fromkeys(
        "view cast index repeat concatenate pad sum average_pool dropout cumsum interpolate".split(), _alike
    ),
}


# ---- RevealCancel ----


class _Joined(Node):
    """A value as the model computes it, whose signal goes to both its parts."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, plus: Tensor, minus: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Any:
        return None, m, m


def revealed(call: Call, x: Tensor, pair: Pair) -> tuple[Tensor, Pair]:
    """y = g(x) and its parts: Δy⁺ is what Δx⁺ adds before and after Δx⁻, on average, and the reverse."""
    with torch.no_grad():
        start, end = call.reference.values[0], x.detach()
        call.inputs = (end,)
        call.args, call.kwargs = swapped(call.args, {id(x): end}), swapped(call.kwargs, {id(x): end})
        ups, downs = pair.plus.detach(), pair.minus.detach()
        plus, minus = start + ups, start + downs
        at_start, at_plus, at_minus, y = (call.value_at([point]) for point in (start, plus, minus, end))
        rise, between = y - at_start, at_plus - at_minus
        up = _per_step(call, (rise + between).mul_(0.5), ups, start, minus)
        down = _per_step(call, rise.sub_(between).mul_(0.5), downs, start, plus)
    parts = Pair(pair.plus * up, pair.minus * down, pair.dense)
    return _Joined.apply(y, parts.plus, parts.minus), parts


def _per_step(call: Call, rise: Tensor, step: Tensor, *starts: Tensor) -> Tensor:
    """rise / step, and the mean of the derivatives from these starts where the step is too small."""
    tiny = too_close(call.family, step)
    near = step.abs() <= tiny if tiny else step == 0
    return replaced_where(call, near, rise.div_(step), [((start, 1.0), (step, 0.5)) for start in starts])
