"""An op with weights as a linear map, y = L(x, W) + b, and L with other values in both places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Call
from whence.engine.dense import matrix_of
from whence.util.tree import swapped, tensors_in

Pull = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class Maps:
    """One op: y = L(x, W) + b, and L with other values in both places."""

    x: Tensor
    y: Tensor
    weight: Tensor
    bias: Tensor | float  # laid out like the output
    apply: Callable[[Tensor, Tensor], tuple[Tensor, Pull]]  # L(x', W'), and how signals come back to x'
    back: Pull  # of L(x, W) itself
    rows_last: bool = False  # the last axis is the rows', and may not be summed over
    rounds: bool = False  # whether a rule is to say how much of what it hands on may be rounding
    memo: dict[str, Any] | None = None  # what further targets will ask for again, of all positions
    whole: Maps | None = None  # the same op at all positions, where this is at some of them
    seen: Tensor | None = None  # which these are

    def once(self, name: str, make: Callable[[Maps], Any]) -> Any:
        """What does not depend on the relevance, made once for all targets."""
        if self.memo is None:
            return make(self)
        if name not in self.memo:
            self.memo[name] = make(self.whole or self)
        return self.memo[name]

    def here(self, amount: Tensor) -> Tensor:
        """What was made once, at the positions of this map."""
        return amount if self.memo is None or self.seen is None else amount[self.seen]

    def total(self, amount: Tensor) -> Tensor:
        """A loss, summed over the last axis where that may be."""
        return amount if self.rows_last else amount.sum(-1, keepdim=True)

    @cached_property
    def size(self) -> Tensor:
        """About how large the terms of y are together, Σ|x·w| + |b|, at the cost of two norms."""
        aligned = self.x.dim() == self.y.dim() > 1 and len(self.x) == len(self.y)
        x = (
            self.x.flatten(1).square().mean(1).view(-1, *[1] * (self.y.dim() - 1))
            if aligned
            else self.x.square().mean()
        )
        terms = self.weight.numel() / max(1, self.y.shape[1] if aligned else len(self.y))  # of each sum
        bias = self.bias.abs() if isinstance(self.bias, Tensor) else abs(self.bias)
        return 0.64 * terms * x.sqrt() * self.weight.square().mean().sqrt() + bias

    def raising(self) -> tuple[Tensor, Pull]:
        """x⁺W⁺ + x⁻W⁻, each by itself, and how signals come back."""
        return self._sum(self.weight.clamp(min=0), self.weight.clamp(max=0))

    def lowering(self) -> tuple[Tensor, Pull]:
        """x⁺W⁻ + x⁻W⁺."""
        return self._sum(self.weight.clamp(max=0), self.weight.clamp(min=0))

    @cached_property
    def has_negative(self) -> bool:
        """Whether some x is negative, as behind a ReLU none is."""
        return self.x.numel() > 0 and bool(self.x.amin() < 0)

    @cached_property
    def _signs(self) -> tuple[Tensor, Tensor | None]:
        """x⁺ and x⁻, which is not there behind a ReLU."""
        if self.has_negative:
            return self.x.clamp(min=0), self.x.clamp(max=0)
        return self.x, None

    def _sum(self, above: Tensor, below: Tensor) -> tuple[Tensor, Pull]:
        """x⁺ with one weight and x⁻ with another."""
        plus, minus = self._signs
        a, pull_a = self.apply(plus, above)
        if minus is None:
            return a, lambda s: pull_a(s).mul_(plus)
        b, pull_b = self.apply(minus, below)
        return a.add_(b), lambda s: pull_a(s).mul_(plus).addcmul_(minus, pull_b(s))


def maps_of(call: Call) -> Maps | None:
    """The op's maps, or None where it has no single weight."""
    if len(call.inputs) != 1:
        return None
    x, (weight, bias) = call.x[0], _operands(call)
    if weight is None or weight.dtype != x.dtype or not call.y.is_floating_point():
        return None
    narrow = torch.finfo(x.dtype).bits < 32

    def apply(new: Tensor, other: Tensor) -> tuple[Tensor, Pull]:
        with torch.enable_grad():
            leaf = new.detach().requires_grad_()
            swap = {id(call.inputs[0]): leaf, id(weight): other}
            if bias is not None:
                swap[id(bias)] = torch.zeros_like(bias, dtype=other.dtype)
            out = call.function(*swapped(call.args, swap), **swapped(call.kwargs, swap))
        return out.detach(), lambda s: torch.autograd.grad(out, leaf, s)[0]

    if not narrow:
        return Maps(x, call.y, weight, _laid_out(call, bias), apply, lambda s: _one(call.vjp(s)))
    x, wide = x.float(), weight.float()
    out, back = apply(x, wide)
    b = _laid_out(call, None if bias is None else bias.float())
    return Maps(x, out + b, wide, b, apply, back)


def is_dense(call: Call) -> tuple[Tensor, Tensor | None] | None:
    """Weight (outputs, inputs) and bias of a product of positions with a matrix; None where it is another op."""
    return matrix_of(call.name, call.args, call.kwargs, call.inputs[0]) if len(call.inputs) == 1 else None


def dense(
    x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, memo: dict[str, Any] | None, seen: Tensor | None
) -> Maps:
    """A dense layer at all positions, (positions, …), or at some; its maps need no graph.

    Half precision is too coarse for sums of one sign.
    """
    if torch.finfo(x.dtype).bits < 32:
        x, y, weight, bias = x.float(), y.float(), weight.float(), None if bias is None else bias.float()

    def apply(new: Tensor, other: Tensor) -> tuple[Tensor, Pull]:
        return new @ other.mT, lambda s: s @ other

    whole = Maps(x, y, weight, 0.0 if bias is None else bias, apply, lambda s: s @ weight, memo=memo)
    return whole if seen is None else replace(whole, x=x[seen], y=y[seen], whole=whole, seen=seen)


def _operands(call: Call) -> tuple[Tensor | None, Tensor | None]:
    """Weight and bias among the arguments."""
    args, kwargs, name = call.args, call.kwargs, call.name
    if name == "grouped_rows":
        return args[1], None
    if name == "linear" or call.family == "convolution":
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        return weight, args[2] if len(args) > 2 and isinstance(args[2], Tensor | None) else kwargs.get("bias")
    others = [t for t in tensors_in((args, kwargs)) if t is not call.inputs[0]]
    if name.startswith("add") and len(others) == 2 and not kwargs and args[0] is others[0]:
        return others[1], others[0]
    return (others[0], None) if len(others) == 1 and not name.startswith("add") else (None, None)


def _laid_out(call: Call, bias: Tensor | None) -> Tensor | float:
    if bias is None:
        return 0.0
    spatial = call.y.dim() - 1 - (call.inputs[0].dim() == call.y.dim() and call.name != "conv_tbc")
    return bias.view(-1, *[1] * spatial) if call.family == "convolution" and call.name != "conv_tbc" else bias


def _one(gradients: Sequence[Tensor | None]) -> Tensor:
    assert gradients[0] is not None
    return gradients[0]
