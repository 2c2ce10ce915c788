"""Which token of an explained input each entry stands for, through whatever moves tokens about.

Every token has a number. Numbers are followed by doing to them what is done to the tensor: windows, heads, padding,
concatenation, scattering and gathering. `NONE` stands for no token (a learned one, a constant), `LOST` for an entry
that was made of several tokens or by an op that nobody knows. Attention scores have two numbers for each entry, the
query's and the key's. Convolutions, pools and merged entries begin new tokens: patches, frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.expand.attention import operands
from whence.engine.ops import GROUP
from whence.engine.trackers import Birth, Op, Tracker
from whence.engine.trackers.token_numbers import (
    AS_COPIES,
    LOST,
    NONE,
    along,
    axes_in_order,
    copy_numbers,
    differ,
    forget_numbers,
    laid_along,
    letters,
    moved,
    numbers_of,
    placed,
    put_numbers,
    short,
    written,
)
from whence.engine.trackers.token_sources import Source, Sources
from whence.util.keys import input_of
from whence.util.tree import tensors_in

LEARNED = "~"  # begins the names of tokens that a model has learned and that look at tokens of an input
_MOVES = frozenset("view index repeat concatenate pad".split())
_SAME = frozenset("cast detach clone contiguous dropout alias requires_grad".split())
_GRIDS = frozenset("convolution average_pool max_pool interpolate".split())
_PRODUCTS = frozenset("matmul rmatmul mm bmm baddbmm addbmm addmm linalg_matmul".split())
_REDUCTIONS = frozenset("sum mean amax amin nansum nanmean".split())


def begin(tensor: Tensor) -> None:
    """Number the tokens of (rows, n, hidden), from 1 on."""
    numbers = torch.arange(1, tensor.shape[:-1].numel() + 1, device=tensor.device).view(*tensor.shape[:-1], 1)
    put_numbers(tensor, (numbers.expand(tensor.shape),))


class Tokens(Tracker):
    """The tokens of one pass, and what becomes of them."""

    def __init__(self, rows: int, *, born: bool = True) -> None:
        self.rows, self.born = rows, born  # whether inputs are numbered, or whoever listens numbers what he likes
        self.sources = Sources(rows)
        self.shared: dict[str, str] = {}  # inputs whose tokens lie on those of another one, which has their scores

    # ---- where tokens are born ----

    def begin(self, tensor: Tensor, birth: Birth) -> None:
        if birth.key is not None and birth.positions is None:
            self._begin_values(tensor, birth.key)
        elif birth.key is not None and birth.shape is not None:
            self._begin_ids(tensor, input_of(birth.key), birth.positions, birth.shape)

    def copy(self, old: Tensor, new: Tensor) -> None:
        copy_numbers(old, new)

    def _begin_values(self, tensor: Tensor, name: str) -> None:
        """The positions of a floating input: pixels of an image, entries (rows, n), or what (rows, n, hidden) has."""
        if not self.born or not tensor.dim() or len(tensor) != self.rows:
            return
        shape = tuple(tensor.shape[2:] if tensor.dim() == 4 else tensor.shape[1:2])
        if tensor.dim() > 4:
            shape = tuple(tensor.shape[1:])
        lead = (1,) if tensor.dim() == 4 else ()
        numbers = self.sources.numbers(self.sources.begin(name, shape, name), tensor.device).view(
            self.rows, *lead, *shape
        )
        numbers = numbers.unsqueeze(-1) if tensor.dim() == 3 else numbers
        put_numbers(tensor, (numbers.expand(tensor.shape),))

    def _begin_ids(self, tensor: Tensor, name: str, positions: Any, shape: Sequence[int]) -> None:
        """Ids that were looked up: `positions` in all of them, -1 for those that come from elsewhere."""
        if not self.born or len(shape) < 2 or shape[0] != self.rows:
            return
        source = self.sources.begin(name, tuple(shape[1:]), name)
        numbers = torch.where(positions >= 0, positions + source.first, NONE)
        inner = tensor.dim() - numbers.dim()
        put_numbers(tensor, (numbers.view(*numbers.shape, *[1] * inner).expand(tensor.shape),))

    # ---- what becomes of them ----

    def follow(self, op: Op) -> None:
        """Find the numbers of an op's outputs; where they cannot be told, there are none."""
        known = [(t, numbers) for t in op.live if (numbers := numbers_of(t))]
        outputs = list(tensors_in(op.target)) if op.writes else op.results
        if not known or not outputs:
            return
        try:
            with torch.no_grad():
                by_output = self._of_outputs(
                    op.name, op.family, op.func, op.args, op.kwargs, op.live, known, outputs, op.writes
                )
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError, NotImplementedError):
            by_output = []
        for n, output in enumerate(outputs):
            numbers = by_output[n] if n < len(by_output) else ()
            if numbers and all(part.shape == output.shape for part in numbers):
                put_numbers(output, numbers)
            else:
                forget_numbers(output)  # written to

    def _of_outputs(
        self, name: str, family: str, func: Any, args: Any, kwargs: Any, live: Any, known: Any, outputs: Any,
        writes: bool,
    ) -> list[tuple[Tensor, ...]]:  # fmt: skip
        output, (first, numbers) = outputs[0], known[0]
        group = GROUP.get(family)
        if (writes and family == "write") or name in AS_COPIES:
            return [written(name, func, args, kwargs, live, writes)]
        if family in ("write", "where"):
            return [placed(func, args, kwargs, live, known, output)]
        if (family in _SAME or name in _SAME) and output.shape == first.shape:
            return [numbers]
        if family in _MOVES:
            return moved(func, args, kwargs, live, known, family)
        if family == "scaled_dot_product_attention":
            query = operands(args, kwargs)["query"]
            asked = numbers_of(query)
            if _of_no_input(asked):
                return [self._asked(args, kwargs, output)]
            return [(along(asked[0], -1).expand(output.shape),)]
        if name == "einsum":
            return [self._contracted(args, kwargs, known, output)]
        if name in _PRODUCTS:
            return [self._multiplied(name, args, kwargs, output)]
        if family in _GRIDS and first.dim() == output.dim():
            return [self._gridded(numbers[0], first, output)]
        if name in _REDUCTIONS and len(live) == 1:
            return [self._reduced(args, kwargs, numbers, first)]
        if family in ("linear", "recurrent") or (output.shape != first.shape and len(known) == 1):
            return [tuple(self._merged(n).expand(output.shape) for n in numbers)]
        if group == "recurrent":
            return [(along(numbers[0], -1).expand(output.shape),)]
        return [self._met(known, output)]

    def _met(self, known: Any, output: Tensor) -> tuple[Tensor, ...]:
        """Of what acts entry by entry: the operands of the output's shape say it, scores before all."""
        most = max(len(numbers) for _, numbers in known)
        full = [numbers for t, numbers in known if len(numbers) == most and t.shape == output.shape]
        if not full:  # constants are laid along it
            full = [tuple(n.expand(output.shape) for n in numbers) for _, numbers in known if len(numbers) == most]
        numbers = full[0]
        for other in full[1:]:
            numbers = tuple(self._joined(a, b) for a, b in zip(numbers, other, strict=True))
        return numbers

    def _joined(self, a: Tensor, b: Tensor) -> Tensor:
        """Two tokens at one place: the earlier born has it."""
        if a is b:
            return a
        ours, theirs = short(a), short(b)
        if ours.shape == theirs.shape and torch.equal(ours, theirs):
            return a
        both = (a > 0) & (b > 0) & (a != b)
        if bool(both.any()):
            self._share(a[both], b[both])
        return torch.where((a > 0) == (b > 0), torch.minimum(a, b), torch.maximum(a, b))

    def _share(self, a: Tensor, b: Tensor) -> None:
        names = self.sources.names(torch.cat([a, b]))
        ordered = list(dict.fromkeys(s.name for s in self.sources if s.name in names))
        for name in ordered[1:]:
            self.shared.setdefault(name, ordered[0])

    def _merged(self, numbers: Tensor) -> Tensor:
        """(…, 1): the token that a whole last axis stands for."""
        if numbers.shape[-1] < 2 or numbers.stride(-1) == 0 or bool((numbers == numbers[..., :1]).all()):
            return numbers[..., :1]
        positive = torch.where(numbers > 0, numbers, torch.iinfo(numbers.dtype).max)
        lowest = positive.amin(-1)
        highest = numbers.amax(-1)
        low, high = (self.sources.of(int(n.max())) for n in (torch.where(highest > 0, lowest, NONE), highest))
        if low is None or bool((numbers == LOST).any()):
            return torch.full_like(numbers[..., :1], LOST)
        if low is not high:  # features of several inputs side by side, of one token each
            if any(differ(numbers, source.holds(numbers)) for source in self.sources):
                return torch.full_like(numbers[..., :1], LOST)
            self._share(lowest[highest > 0], highest[highest > 0])
            return torch.where(highest > 0, lowest, NONE).unsqueeze(-1)
        if numbers.dim() == 2 and len(numbers) == self.rows:  # more of them: all rows' patches, one under another
            return self._whole(lowest, low).unsqueeze(-1)
        own = self.sources.numbers(low, numbers.device).view(self.rows, -1, 1)
        if own.shape[:2] == numbers.shape[:-1] and bool((numbers == own).any(-1).all()):
            return own  # each with its neighbours beside it
        return self._patches(lowest, low).unsqueeze(-1)

    def _whole(self, numbers: Tensor, source: Source) -> Tensor:
        """One token that stands for all of a row's."""
        made = self.sources.begin(source.name, (1,) * len(source.shape), (source.name, "whole"))
        whole = made.first + (numbers - source.first) // source.size
        return torch.where(source.holds(numbers), whole, LOST)

    def _patches(self, corner: Tensor, source: Source) -> Tensor:
        """Tokens of a coarser grid, made of several each, by the first of these."""
        if len(source.shape) > 3 or not bool(source.holds(corner).all()):
            return torch.full_like(corner, LOST)
        offset = corner - source.first
        row, rest = offset // source.size, offset % source.size
        index = torch.zeros_like(rest)
        shape: list[int] = []
        for size, stride in zip(source.shape, _strides(source.shape), strict=True):
            distinct, place = (rest // stride % size).unique(return_inverse=True)
            if len(distinct) > 1 or not shape:
                shape.append(len(distinct))
            index = index * len(distinct) + place
        shape = [n for n in shape if n > 1] or [1]
        made = self.sources.begin(source.name, tuple(shape), (source, "merged"))
        twice = corner.dim() == 2 and len(corner.unique()) != corner.numel()  # at an edge, say
        if made.size == 1 or twice or len(corner.unique()) != self.rows * made.size:
            return torch.full_like(corner, LOST)
        return made.first + row * made.size + index

    def _reduced(self, args: Any, kwargs: Any, numbers: tuple[Tensor, ...], first: Tensor) -> tuple[Tensor, ...]:
        """A sum over an axis along which all is one token's, or over all tokens of a row."""
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        keep = bool(kwargs.get("keepdim", len(args) > 2 and args[2] is True))
        if dim is None or isinstance(dim, Tensor | bool):
            return ()
        axes = sorted((int(d) % first.dim() for d in (dim if isinstance(dim, list | tuple) else [dim])), reverse=True)
        reduced = []
        for n in numbers:
            for axis in axes:
                one = n.narrow(axis, 0, 1)
                if n.stride(axis) and not bool((n == one).all()):
                    one = n.amax(axis, keepdim=True)
                    source = self.sources.of(int(one.max()))
                    if len(numbers) > 1 or source is None:
                        return ()
                    one = self._whole(one, source)
                n = one if keep else one.squeeze(axis)
            reduced.append(n)
        return tuple(reduced)

    def _gridded(self, numbers: Tensor, first: Tensor, output: Tensor) -> tuple[Tensor, ...]:
        """A convolution's places (rows, channels, …) are new tokens, if it does not leave them where they were."""
        if first.shape[2:] == output.shape[2:]:
            return (numbers[:, :1].expand(output.shape),)
        one = numbers[(slice(None), *[slice(1)] * (numbers.dim() - 1))]
        if len(numbers) != self.rows and bool((numbers == one).all()):
            return (one.expand(output.shape),)  # all rows' patches, one under another: each window is one token's
        lines = numbers.flatten(1).amax(1)
        source = self.sources.of(int(lines.max()))
        if source is None or len(output) % self.rows:
            return ()
        many = len(output) // self.rows
        rows = torch.arange(len(output), device=lines.device) // many
        if not bool(((lines - source.first) // source.size == rows).all()):
            return ()
        order = axes_in_order(numbers)  # the grid lies like the input, whichever way round it came here
        sizes = [output.shape[2:][axis] for axis in order]
        made = self.sources.begin(source.name, (*((many,) if many > 1 else ()), *sizes), (source, "grid"))
        grid = self.sources.numbers(made, output.device).view(len(output), 1, *sizes)
        grid = grid.permute(0, 1, *(2 + order.index(axis) for axis in range(len(order))))
        return (grid.expand(output.shape),)

    def _multiplied(self, name: str, args: Any, kwargs: Any, output: Tensor) -> tuple[Tensor, ...]:
        given = [*args, *(kwargs[k] for k in ("other", "mat2", "batch1", "batch2", "mat1") if k in kwargs)]
        left, right = given[-2:] if name in ("baddbmm", "addbmm", "addmm") else given[:2]
        if name == "rmatmul":
            left, right = right, left
        if min(left.dim(), right.dim()) < 2:
            return ()
        ours, theirs = numbers_of(left), numbers_of(right)
        if not theirs:
            return tuple(self._merged(n).expand(output.shape) for n in ours)  # a projection
        if len(ours) == 2:  # probabilities times values
            return (along(ours[0], -1).expand(output.shape),)
        if len(theirs) == 2:
            return (along(theirs[1], -2).expand(output.shape),)
        key = along(theirs[0], -2).expand(output.shape)
        query = self._learned(key) if _of_no_input(ours) else along(ours[0], -1).expand(output.shape)
        return (query, key)

    def _learned(self, key: Tensor) -> Tensor:
        """Numbers for queries (…, query, key) that are no tokens of an input, of the rows that their keys are of."""
        source = self.sources.of(int(key.amax()))
        if source is None:
            return torch.zeros_like(key)
        row = (key.amax(-1, keepdim=True) - source.first) // source.size  # (…, query, 1)
        count = key.shape[-2]
        made = self.sources.begin(f"{LEARNED}{count}", (count,), "learned")
        index = torch.arange(count, device=key.device).view(-1, 1)
        return (made.first + row * count + index).expand(key.shape)

    def _asked(self, args: Any, kwargs: Any, output: Tensor) -> tuple[Tensor, ...]:
        """What fused attention gives to queries that are no tokens of an input."""
        keys = numbers_of(operands(args, kwargs)["key"])
        if not keys:
            return ()
        key = along(keys[0], -1).transpose(-2, -1)  # (…, 1, key)
        return (self._learned(key.expand(*key.shape[:-2], output.shape[-2], -1))[..., :1].expand(output.shape),)

    def of_fused(self, args: Any, kwargs: Any) -> tuple[Tensor, ...]:
        """The numbers (…, query, key) of a fused attention's map."""
        given = operands(args, kwargs)
        query, key = given["query"], given["key"]
        keys = numbers_of(key)
        if not keys:
            return ()
        shape = (*query.shape[:-1], key.shape[-2])
        theirs = along(keys[0], -1).transpose(-2, -1)
        groups = query.shape[-3] // key.shape[-3] if query.dim() > 3 and given.get("enable_gqa") else 1
        theirs = (theirs.repeat_interleave(groups, -3) if groups > 1 else theirs).expand(shape)
        ours = numbers_of(query)
        return (self._learned(theirs) if _of_no_input(ours) else along(ours[0], -1).expand(shape), theirs)

    def _contracted(self, args: Any, kwargs: Any, known: Any, output: Tensor) -> tuple[Tensor, ...]:
        """einsum: an operand's tokens go where their letters go."""
        equation = args[0].replace(" ", "")
        given = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        left, _, out = equation.partition("->")
        if "." in equation or not out or len(given) > 2:
            return ()
        terms = [(term, numbers_of(t)) for term, t in zip(left.split(","), given, strict=True)]
        scores = [(term, numbers) for term, numbers in terms if len(numbers) == 2]
        if scores:
            term, numbers = scores[0]
            kept = [n for n in numbers if letters(n, term) <= set(out)]
            return (laid_along(kept[0], term, out, output.shape),) if kept else ()
        single = [(term, numbers[0]) for term, numbers in terms if numbers]
        if any(not letters(n, term) <= set(out) for term, n in single):
            if len(single) == 1 and len(terms) == 2 and set(single[0][0]) - set(out) == {single[0][0][-1]}:
                term, n = single[0]
                return (laid_along(self._merged(n), term, out, output.shape),)  # a projection
            return ()
        laid = [laid_along(n, term, out, output.shape) for term, n in single]
        return tuple(laid)


def _of_no_input(numbers: tuple[Tensor, ...]) -> bool:
    """Whether these are learned tokens alone, such as may have stood beside an input's before."""
    return not numbers or bool((numbers[0] == NONE).all())


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
