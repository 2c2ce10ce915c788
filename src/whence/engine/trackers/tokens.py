"""Which token of an explained input each entry stands for, through whatever moves tokens about.

Every token has a number. Numbers are followed by doing to them what is done to the tensor: windows, heads, padding,
concatenation, scattering and gathering. `NONE` stands for no token (a learned one, a constant), `LOST` for an entry
that was made of several tokens or by an op that nobody knows. Attention scores have two numbers for each entry, the
query's and the key's. Convolutions, pools and merged entries begin new tokens: patches, frames.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.expand.attention import operands
from whence.engine.ops import GROUP
from whence.engine.trackers import Birth, Op, Tracker, store
from whence.util.keys import input_of
from whence.util.tree import swapped, tensors_in

NONE, LOST = 0, -1
LEARNED = "~"  # begins the names of tokens that a model has learned and that look at tokens of an input
_TOKENS = "tokens"
_MOVES = frozenset("view index repeat concatenate pad".split())
_SAME = frozenset("cast detach clone contiguous dropout alias requires_grad".split())
_GRIDS = frozenset("convolution average_pool max_pool interpolate".split())
_PRODUCTS = frozenset("matmul rmatmul mm bmm baddbmm addbmm addmm linalg_matmul".split())
_REDUCTIONS = frozenset("sum mean amax amin nansum nanmean".split())
_AS_COPIES = {"index_add": "index_copy_", "scatter_add": "scatter_"}  # sums of one token's parts are that token


@dataclass(frozen=True, slots=True)
class Source:
    """Tokens that were born together: `shape` of them for each row, numbered row by row from `first` on."""

    name: str
    first: int
    shape: tuple[int, ...]
    rows: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def holds(self, numbers: Tensor) -> Tensor:
        return (numbers >= self.first) & (numbers < self.first + self.rows * self.size)


def numbers_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """The numbers of each entry: one, or the query's and the key's, or none."""
    found: tuple[Tensor, ...] = store.get(tensor, _TOKENS, ())
    return found


def begin(tensor: Tensor) -> None:
    """Number the tokens of (rows, n, hidden), from 1 on."""
    numbers = torch.arange(1, tensor.shape[:-1].numel() + 1, device=tensor.device).view(*tensor.shape[:-1], 1)
    store.put(tensor, _TOKENS, (numbers.expand(tensor.shape),))


class Tokens(Tracker):
    """The tokens of one pass, and what becomes of them."""

    def __init__(self, rows: int, *, born: bool = True) -> None:
        self.rows, self.born = rows, born  # whether inputs are numbered, or whoever listens numbers what he likes
        self.sources: list[Source] = []
        self.shared: dict[str, str] = {}  # inputs whose tokens lie on those of another one, which has their scores
        self._next = 1
        self._made: dict[Any, Source] = {}

    # ---- where tokens are born ----

    def begin(self, tensor: Tensor, birth: Birth) -> None:
        if birth.key is not None and birth.positions is None:
            self._begin_values(tensor, birth.key)
        elif birth.key is not None and birth.shape is not None:
            self._begin_ids(tensor, input_of(birth.key), birth.positions, birth.shape)

    def copy(self, old: Tensor, new: Tensor) -> None:
        if numbers_of(old):
            store.copy(old, new, _TOKENS)

    def _begin_values(self, tensor: Tensor, name: str) -> None:
        """The positions of a floating input: pixels of an image, entries (rows, n), or what (rows, n, hidden) has."""
        if not self.born or not tensor.dim() or len(tensor) != self.rows:
            return
        shape = tuple(tensor.shape[2:] if tensor.dim() == 4 else tensor.shape[1:2])
        if tensor.dim() > 4:
            shape = tuple(tensor.shape[1:])
        lead = (1,) if tensor.dim() == 4 else ()
        numbers = self._numbers(self._source(name, shape, name), tensor.device).view(self.rows, *lead, *shape)
        numbers = numbers.unsqueeze(-1) if tensor.dim() == 3 else numbers
        store.put(tensor, _TOKENS, (numbers.expand(tensor.shape),))

    def _begin_ids(self, tensor: Tensor, name: str, positions: Any, shape: Sequence[int]) -> None:
        """Ids that were looked up: `positions` in all of them, -1 for those that come from elsewhere."""
        if not self.born or len(shape) < 2 or shape[0] != self.rows:
            return
        source = self._source(name, tuple(shape[1:]), name)
        numbers = torch.where(positions >= 0, positions + source.first, NONE)
        inner = tensor.dim() - numbers.dim()
        store.put(tensor, _TOKENS, (numbers.view(*numbers.shape, *[1] * inner).expand(tensor.shape),))

    def _source(self, name: str, shape: tuple[int, ...], made: Any) -> Source:
        found = self._made.get((made, shape))
        if found is None:
            found = self._made[made, shape] = Source(name, self._next, shape, self.rows)
            self.sources.append(found)
            self._next += self.rows * found.size
        return found

    def _numbers(self, source: Source, device: torch.device) -> Tensor:
        count = source.rows * source.size
        return torch.arange(source.first, source.first + count, device=device).view(source.rows, *source.shape)

    def source_of(self, number: int) -> Source | None:
        return next((s for s in self.sources if s.first <= number < s.first + s.rows * s.size), None)

    def names(self, numbers: Tensor) -> frozenset[str]:
        """The inputs that some of these tokens belong to."""
        return frozenset(s.name for s in self.sources if bool(s.holds(numbers).any()))

    def one(self, name: str, numbers: Tensor) -> Source | None:
        """The one kind of an input's tokens that is met here, besides one that stands for them all."""
        found = [s for s in self.sources if s.name == name and bool(s.holds(numbers).any())]
        several = [s for s in found if s.size > 1]
        return several[0] if len(several) == 1 else found[0] if len(found) == 1 else None

    def every(self, parts: Sequence[Tensor]) -> Tensor | None:
        """All tokens (rows, n) of the one source that these are of; tokens of no input are not counted."""
        found = [s for s in self.sources if any(bool(s.holds(n).any()) for n in parts)]
        if len(found) != 1:
            return None
        return self._numbers(found[0], parts[0].device).view(self.rows, -1)

    def by_row(self, lines: Tensor) -> Tensor | None:
        """(rows, n) of (…, n), where every line of a row has the same tokens."""
        lines = lines.reshape(-1, lines.shape[-1])
        highest = lines.amax(1)
        row = torch.full_like(highest, -1)
        for source in self.sources:
            row = torch.where(source.holds(highest), (highest - source.first) // max(1, source.size), row)
        if bool((row < 0).any()):
            return None
        first = torch.stack([(row == r).long().argmax() for r in range(self.rows)])
        found = lines[first]
        every = bool((row[first] == torch.arange(self.rows, device=row.device)).all())
        return found if every and torch.equal(found[row], lines) else None

    # ---- what becomes of them ----

    def follow(self, op: Op) -> None:
        """Find the numbers of an op's outputs; where they cannot be told, there are none."""
        known = [(t, numbers) for t in op.live if (numbers := numbers_of(t))]
        outputs = list(tensors_in(op.target)) if op.writes else op.results
        if not known or not outputs:
            return
        try:
            with torch.no_grad():
                found = self._found(op.name, op.family, op.func, op.args, op.kwargs, op.live, known, outputs, op.writes)
        except (RuntimeError, TypeError, IndexError, ValueError, AttributeError, NotImplementedError):
            found = []
        for n, output in enumerate(outputs):
            numbers = found[n] if n < len(found) else ()
            if numbers and all(part.shape == output.shape for part in numbers):
                store.put(output, _TOKENS, numbers)
            else:
                store.drop(output, _TOKENS)  # written to

    def _found(
        self, name: str, family: str, func: Any, args: Any, kwargs: Any, live: Any, known: Any, outputs: Any,
        writes: bool,
    ) -> list[tuple[Tensor, ...]]:  # fmt: skip
        output, (first, numbers) = outputs[0], known[0]
        group = GROUP.get(family)
        if (writes and family == "write") or name in _AS_COPIES:
            return [self._written(name, func, args, kwargs, live, writes)]
        if family in ("write", "where"):
            return [self._placed(func, args, kwargs, live, known, output)]
        if (family in _SAME or name in _SAME) and output.shape == first.shape:
            return [numbers]
        if family in _MOVES:
            return _moved(func, args, kwargs, live, known, family)
        if family == "scaled_dot_product_attention":
            query = operands(args, kwargs)["query"]
            asked = numbers_of(query)
            if _of_no_input(asked):
                return [self._asked(args, kwargs, output)]
            return [(_along(asked[0], -1).expand(output.shape),)]
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
            return [(_along(numbers[0], -1).expand(output.shape),)]
        return [self._met(known, output)]

    def _met(self, known: Any, output: Tensor) -> tuple[Tensor, ...]:
        """Of what acts entry by entry: the operands of the output's shape say it, scores before all."""
        most = max(len(numbers) for _, numbers in known)
        full = [numbers for t, numbers in known if len(numbers) == most and t.shape == output.shape]
        if not full:  # constants are laid along it
            full = [tuple(n.expand(output.shape) for n in numbers) for _, numbers in known if len(numbers) == most]
        found = full[0]
        for other in full[1:]:
            found = tuple(self._joined(a, b) for a, b in zip(found, other, strict=True))
        return found

    def _joined(self, a: Tensor, b: Tensor) -> Tensor:
        """Two tokens at one place: the earlier born has it."""
        if a is b:
            return a
        short, other = _short(a), _short(b)
        if short.shape == other.shape and torch.equal(short, other):
            return a
        apart = (a > 0) & (b > 0) & (a != b)
        if bool(apart.any()):
            self._share(a[apart], b[apart])
        return torch.where((a > 0) == (b > 0), torch.minimum(a, b), torch.maximum(a, b))

    def _share(self, a: Tensor, b: Tensor) -> None:
        names = self.names(torch.cat([a, b]))
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
        low, high = (self.source_of(int(n.max())) for n in (torch.where(highest > 0, lowest, NONE), highest))
        if low is None or bool((numbers == LOST).any()):
            return torch.full_like(numbers[..., :1], LOST)
        if low is not high:  # features of several inputs side by side, of one token each
            if any(_differ(numbers, source.holds(numbers)) for source in self.sources):
                return torch.full_like(numbers[..., :1], LOST)
            self._share(lowest[highest > 0], highest[highest > 0])
            return torch.where(highest > 0, lowest, NONE).unsqueeze(-1)
        if numbers.dim() == 2 and len(numbers) == self.rows:  # more of them: all rows' patches, one under another
            return self._whole(lowest, low).unsqueeze(-1)
        own = self._numbers(low, numbers.device).view(self.rows, -1, 1)
        if own.shape[:2] == numbers.shape[:-1] and bool((numbers == own).any(-1).all()):
            return own  # each with its neighbours beside it
        return self._patches(lowest, low).unsqueeze(-1)

    def _whole(self, numbers: Tensor, source: Source) -> Tensor:
        """One token that stands for all of a row's."""
        made = self._source(source.name, (1,) * len(source.shape), (source.name, "whole"))
        found = made.first + (numbers - source.first) // source.size
        return torch.where(source.holds(numbers), found, LOST)

    def _patches(self, corner: Tensor, source: Source) -> Tensor:
        """Tokens of a coarser grid, made of several each, by the first of these."""
        if len(source.shape) > 3 or not bool(source.holds(corner).all()):
            return torch.full_like(corner, LOST)
        offset = corner - source.first
        row, rest = offset // source.size, offset % source.size
        index = torch.zeros_like(rest)
        shape: list[int] = []
        for size, stride in zip(source.shape, _strides(source.shape), strict=True):
            along = rest // stride % size
            distinct, place = along.unique(return_inverse=True)
            if len(distinct) > 1 or not shape:
                shape.append(len(distinct))
            index = index * len(distinct) + place
        shape = [n for n in shape if n > 1] or [1]
        made = self._source(source.name, tuple(shape), (source, "merged"))
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
        found = []
        for n in numbers:
            for axis in axes:
                one = n.narrow(axis, 0, 1)
                if n.stride(axis) and not bool((n == one).all()):
                    one = n.amax(axis, keepdim=True)
                    source = self.source_of(int(one.max()))
                    if len(numbers) > 1 or source is None:
                        return ()
                    one = self._whole(one, source)
                n = one if keep else one.squeeze(axis)
            found.append(n)
        return tuple(found)

    def _gridded(self, numbers: Tensor, first: Tensor, output: Tensor) -> tuple[Tensor, ...]:
        """A convolution's places (rows, channels, …) are new tokens, if it does not leave them where they were."""
        if first.shape[2:] == output.shape[2:]:
            return (numbers[:, :1].expand(output.shape),)
        one = numbers[(slice(None), *[slice(1)] * (numbers.dim() - 1))]
        if bool((numbers == one).all()):
            return (one.expand(output.shape),)  # each window is one token's: patches that came cut
        lines = numbers.flatten(1).amax(1)
        source = self.source_of(int(lines.max()))
        if source is None or len(output) % self.rows:
            return ()
        many = len(output) // self.rows
        rows = torch.arange(len(output), device=lines.device) // many
        if not bool(((lines - source.first) // source.size == rows).all()):
            return ()
        order = _axes_in_order(numbers)  # the grid lies like the input, whichever way round it came here
        sizes = [output.shape[2:][axis] for axis in order]
        made = self._source(source.name, (*((many,) if many > 1 else ()), *sizes), (source, "grid"))
        found = self._numbers(made, output.device).view(len(output), 1, *sizes)
        found = found.permute(0, 1, *(2 + order.index(axis) for axis in range(len(order))))
        return (found.expand(output.shape),)

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
            return (_along(ours[0], -1).expand(output.shape),)
        if len(theirs) == 2:
            return (_along(theirs[1], -2).expand(output.shape),)
        key = _along(theirs[0], -2).expand(output.shape)
        query = self._learned(key) if _of_no_input(ours) else _along(ours[0], -1).expand(output.shape)
        return (query, key)

    def _learned(self, key: Tensor) -> Tensor:
        """Numbers for queries (…, query, key) that are no tokens of an input, of the rows that their keys are of."""
        source = self.source_of(int(key.amax()))
        if source is None:
            return torch.zeros_like(key)
        row = (key.amax(-1, keepdim=True) - source.first) // source.size  # (…, query, 1)
        count = key.shape[-2]
        made = self._source(f"{LEARNED}{count}", (count,), "learned")
        index = torch.arange(count, device=key.device).view(-1, 1)
        return (made.first + row * count + index).expand(key.shape)

    def _asked(self, args: Any, kwargs: Any, output: Tensor) -> tuple[Tensor, ...]:
        """What fused attention gives to queries that are no tokens of an input."""
        keys = numbers_of(operands(args, kwargs)["key"])
        if not keys:
            return ()
        key = _along(keys[0], -1).transpose(-2, -1)  # (…, 1, key)
        return (self._learned(key.expand(*key.shape[:-2], output.shape[-2], -1))[..., :1].expand(output.shape),)

    def of_fused(self, args: Any, kwargs: Any) -> tuple[Tensor, ...]:
        """The numbers (…, query, key) of a fused attention's map."""
        given = operands(args, kwargs)
        query, key = given["query"], given["key"]
        keys = numbers_of(key)
        if not keys:
            return ()
        shape = (*query.shape[:-1], key.shape[-2])
        theirs = _along(keys[0], -1).transpose(-2, -1)
        groups = query.shape[-3] // key.shape[-3] if query.dim() > 3 and given.get("enable_gqa") else 1
        theirs = (theirs.repeat_interleave(groups, -3) if groups > 1 else theirs).expand(shape)
        ours = numbers_of(query)
        return (self._learned(theirs) if _of_no_input(ours) else _along(ours[0], -1).expand(shape), theirs)

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
            kept = [n for n in numbers if _letters(n, term) <= set(out)]
            return (_laid(kept[0], term, out, output.shape),) if kept else ()
        single = [(term, numbers[0]) for term, numbers in terms if numbers]
        if any(not _letters(n, term) <= set(out) for term, n in single):
            if len(single) == 1 and len(terms) == 2 and set(single[0][0]) - set(out) == {single[0][0][-1]}:
                term, n = single[0]
                return (_laid(self._merged(n), term, out, output.shape),)  # a projection
            return ()
        laid = [_laid(n, term, out, output.shape) for term, n in single]
        return tuple(laid)

    def _placed(self, func: Any, args: Any, kwargs: Any, live: Any, known: Any, output: Tensor) -> tuple[Tensor, ...]:
        """where, masked_fill, masked_scatter, index_put, scatter: entries of one tensor in the places of another's."""
        scores = [numbers for t, numbers in known if len(numbers) == 2 and t.shape == output.shape]
        if scores:
            return scores[0]  # masked, and still about the same tokens
        plain = [a for a in tensors_in((args, kwargs)) if _is_content(a) and a.numel() > 1]
        if len(plain) == 1 and plain[0].shape == output.shape:
            return numbers_of(plain[0])  # filled with one number
        swap = _as_numbers(plain, live)
        moved = func(*swapped(args, swap), **swapped(dict(kwargs), swap))
        return (moved.long(),)

    def _written(self, name: str, func: Any, args: Any, kwargs: Any, live: Any, writes: bool) -> tuple[Tensor, ...]:
        """x[mask] = y, x.masked_scatter_(…), and sums of parts put in place."""
        target, base = args[0], args[0]._base if writes else None
        given = [a for a in tensors_in((args[1:], kwargs)) if _is_content(a)]
        if not any(a.numel() > 1 for a in given):
            return numbers_of(target)  # one number here and there: still the same tokens
        most = max(len(numbers_of(t)) for t in (target, *given))
        wholes, parts = [], []
        for place in range(most):
            old = base if base is not None else target
            whole = torch.empty_strided(old.size(), old.stride(), dtype=torch.long, device=old.device)
            whole = whole if old.is_contiguous() else torch.empty_like(whole, memory_format=torch.contiguous_format)
            whole.copy_(_at_place(old, place, live))
            part = whole
            if base is not None:  # a view: what it is a part of has the tokens too
                start = target.storage_offset() - base.storage_offset()
                part = whole.as_strided(target.size(), target.stride(), start)
            swap = {id(t): _at_place(t, place, live) for t in given}
            if name == "setitem":
                part[args[1]] = swap.get(id(args[2]), args[2])
            else:
                function = getattr(part, _AS_COPIES.get(name, f"{name}_"))
                function(*swapped(args[1:], swap), **swapped({k: v for k, v in kwargs.items() if k != "alpha"}, swap))
            wholes.append(whole)
            parts.append(part)
        if base is not None:
            store.put(base, _TOKENS, tuple(wholes))
        return tuple(parts)


def _of_no_input(numbers: tuple[Tensor, ...]) -> bool:
    """Whether these are learned tokens alone, such as may have stood beside an input's before."""
    return not numbers or bool((numbers[0] == NONE).all())


def _at_place(tensor: Tensor, place: int, live: Sequence[Tensor]) -> Tensor:
    """A tensor's numbers, the query's or the key's; constants are no tokens."""
    numbers = numbers_of(tensor)
    if numbers:
        return numbers[min(place, len(numbers) - 1)]
    fill = LOST if any(tensor is other for other in live) else NONE
    return torch.full((), fill, device=tensor.device).expand(tensor.shape)


def _moved(func: Any, args: Any, kwargs: Any, live: Any, known: Any, family: str) -> list[tuple[Tensor, ...]]:
    """Do to the numbers what is done to the tensor."""
    most = max(len(numbers) for _, numbers in known)
    parts: list[list[Tensor]] = []
    for place in range(most):
        swap = {id(t): numbers[min(place, len(numbers) - 1)] for t, numbers in known}
        if family == "concatenate":
            others = [t for t in tensors_in((args, kwargs)) if id(t) not in swap]
            swap |= _as_numbers(others, live, place)
        elif getattr(func, "__name__", "") == "as_strided":
            if not all(t.is_contiguous() for t, _ in known):
                raise ValueError
            swap = {key: n.contiguous() for key, n in swap.items()}
        elif family == "pad":
            kwargs = {key: value for key, value in kwargs.items() if key != "value"}
            args = args[:3]
        try:
            moved = func(*swapped(args, swap), **swapped(dict(kwargs), swap))
        except RuntimeError:  # some ops know no whole numbers, some views need real memory
            swap = {key: t.double().contiguous() for key, t in swap.items()}
            moved = func(*swapped(args, swap), **swapped(dict(kwargs), swap))
        parts.append([moved] if isinstance(moved, Tensor) else list(moved))
    return [
        tuple(n if n.dtype == torch.long else n.round().long() for n in numbers) for numbers in zip(*parts, strict=True)
    ]


def _as_numbers(tensors: Sequence[Tensor], live: Sequence[Tensor], place: int = 0) -> dict[int, Tensor]:
    """Numbers in the tensors' stead."""
    return {id(t): _at_place(t, place, live) for t in tensors}


def _is_content(t: Tensor) -> bool:
    """Not a mask or an index."""
    return t.is_floating_point() or t.is_complex()


def _short(numbers: Tensor) -> Tensor:
    """Without axes along which nothing changes."""
    for axis in range(numbers.dim()):
        if numbers.stride(axis) == 0 and numbers.shape[axis] > 1:
            numbers = numbers.narrow(axis, 0, 1)
    return numbers


def _along(numbers: Tensor, axis: int) -> Tensor:
    """The one number along an axis that is summed over, kept as an axis of 1."""
    one = numbers.narrow(axis, 0, 1)
    if numbers.stride(axis) != 0 and numbers.shape[axis] > 1 and not bool((numbers == one).all()):
        raise ValueError
    return one


def _axes_in_order(numbers: Tensor) -> list[int]:
    """The axes of (rows, channels, …) after the channels, the one first along which numbers change most."""
    corner = numbers[0, 0]
    steps = [
        int(corner.select(a, min(1, n - 1)).flatten()[0] - corner.flatten()[0]) for a, n in enumerate(corner.shape)
    ]
    return sorted(range(corner.dim()), key=lambda axis: -abs(steps[axis]))


def _differ(numbers: Tensor, ours: Tensor) -> bool:
    """Whether several tokens are met along the last axis, of those that are asked for."""
    low = torch.where(ours, numbers, torch.iinfo(numbers.dtype).max).amin(-1)
    high = torch.where(ours, numbers, torch.iinfo(numbers.dtype).min).amax(-1)
    return bool(((low < high) & ours.any(-1)).any())


def _letters(numbers: Tensor, term: str) -> set[str]:
    """The axes along which numbers change."""
    return {
        letter
        for axis, letter in enumerate(term)
        if numbers.shape[axis] > 1 and numbers.stride(axis) and bool((numbers != numbers.narrow(axis, 0, 1)).any())
    }


def _laid(numbers: Tensor, term: str, out: str, shape: torch.Size) -> Tensor:
    """An operand's numbers at the output's axes."""
    for axis in reversed(range(len(term))):
        if term[axis] not in out:
            numbers = numbers.narrow(axis, 0, 1).squeeze(axis)
    letters = [letter for letter in term if letter in out]
    numbers = numbers.permute([letters.index(letter) for letter in out if letter in letters])
    for axis, letter in enumerate(out):
        if letter not in letters:
            numbers = numbers.unsqueeze(axis)
    return numbers.expand(shape)


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
