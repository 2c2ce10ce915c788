"""Where the rows are: rules that sum per row need to know which entries of a tensor belong to which row.

Rows start as the first axis and are followed through the pass. Ops that only move entries (views, permutations,
indexing, concatenation) are done to the row numbers themselves; ops that are known to leave axes where they are keep
the rows there. Everywhere else nothing is guessed: the row axis is None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.ops import GROUP
from whence.engine.trackers import Birth, Op, Tracker, store
from whence.util.tree import swapped

_ROWS = "rows"
_MOVES = frozenset("view index repeat concatenate".split())
# reductions whose arguments are (input, dim, keepdim)
_REDUCTIONS = frozenset("sum mean amax amin max min prod logsumexp median nansum nanmean".split())
_LEADING = frozenset("convolution average_pool max_pool batch_norm interpolate".split())  # keep their first axes
_ALIGNED = frozenset("add scale multiply divide cast dropout pad where lerp".split())  # broadcast from the last axis
_TURNS = frozenset("unsqueeze squeeze t transpose swapaxes swapdims resize resize_as set".split())
_PRODUCTS = frozenset("linear grouped_rows matmul mm bmm addmm baddbmm rmatmul mv".split())


@dataclass(frozen=True, slots=True)
class RowAxis:
    """Entry i along `axis` belongs to row (i // inner) % rows."""

    axis: int
    inner: int
    rows: int

    def numbers(self, shape: Sequence[int]) -> Tensor:
        """The row of each entry, as a view that takes no memory."""
        along = (torch.arange(shape[self.axis], device="cpu") // self.inner) % self.rows
        return along.view([-1 if a == self.axis else 1 for a in range(len(shape))]).expand(*shape)

    def sums(self, tensor: Tensor) -> Tensor:
        """Each row's sum, (rows,)."""
        others = tuple(a for a in range(tensor.dim()) if a != self.axis)
        return (tensor.sum(others) if others else tensor).view(-1, self.rows, self.inner).sum((0, 2))

    def spread(self, per_row: Tensor, like: Tensor) -> Tensor:
        """One number per row, laid out to multiply a tensor of this shape."""
        index = (torch.arange(like.shape[self.axis], device=per_row.device) // self.inner) % self.rows
        return per_row[index].view([-1 if a == self.axis else 1 for a in range(like.dim())])


def row_axis_of(tensor: Tensor) -> RowAxis | None:
    return store.get(tensor, _ROWS)


@dataclass(eq=False)
class Rows(Tracker):
    """Finds the rows in an op's outputs from those in its inputs."""

    rows: int

    def begin(self, tensor: Tensor, birth: Birth) -> None:
        """The rows come first, or where the looked-up ids have them."""
        if birth.positions is None or birth.shape is None:
            store.put(tensor, _ROWS, RowAxis(0, 1, self.rows))
        else:
            numbers = birth.positions // max(1, birth.shape.numel() // self.rows)
            store.put(tensor, _ROWS, _read(numbers, self.rows))

    def copy(self, old: Tensor, new: Tensor) -> None:
        store.copy(old, new, _ROWS)

    def describe(self, op: Op) -> None:
        if op.call is not None:
            op.call.row_axes = tuple(map(row_axis_of, op.live))

    def follow(self, op: Op) -> None:
        if not op.writes:
            axes = _axes(op)
            for n, output in enumerate(op.results):
                store.put(output, _ROWS, axes[n] if n < len(axes) else None)
        elif op.name in _TURNS:  # x.unsqueeze_(0): where the rows are now is not known
            for output in op.results:
                store.put(output, _ROWS, None)
        if op.call is not None:
            op.call.row_axis = row_axis_of(op.outputs[0]) if op.outputs else None


def _axes(op: Op) -> Sequence[RowAxis | None]:
    """Of each tensor in the result."""
    known = [(t, at) for t in op.live if (at := row_axis_of(t)) is not None]
    if not known:
        return ()
    if op.family in _MOVES:
        return _moved(op.func, op.args, op.kwargs, known, op.results)
    if op.name == "einsum" and op.results:
        return [_contracted(op.args, known, op.results[0])]
    if op.name in _REDUCTIONS and op.results:
        return _reduced(op.args, op.kwargs, known[0], op.results)
    return [_kept(op.name, op.family, op.args, known, output) for output in op.results]


_MOVED: dict[Any, list[RowAxis | None]] = {}  # what views of one form did before: a model's layers repeat them


def _moved(func: Any, args: Any, kwargs: Any, known: Any, outputs: Sequence[Tensor]) -> list[RowAxis | None]:
    """Do the same to the row numbers, once for each form of call."""
    try:
        form = (func, _form((tuple(args), tuple(sorted(kwargs.items()))), {id(t): at for t, at in known}))
        axes = _MOVED.get(form)
    except TypeError:  # it depends on the values of an index, or of something else that has no name
        return _done_to_numbers(func, args, kwargs, known)
    if axes is None:
        if len(_MOVED) > 4096:
            _MOVED.clear()
        axes = _MOVED[form] = _done_to_numbers(func, args, kwargs, known)
    return axes


def _form(value: Any, axes_of: Mapping[int, RowAxis]) -> Any:
    """A call's arguments as a key: shapes and row axes in the tensors' stead."""
    if isinstance(value, Tensor):
        if id(value) not in axes_of:
            raise TypeError
        return (tuple(value.shape), value.stride(), axes_of[id(value)])
    if isinstance(value, tuple | list):
        return tuple(_form(item, axes_of) for item in value)
    if isinstance(value, slice):
        return ("slice", value.start, value.stop, value.step)
    hash(value)
    return value


def _done_to_numbers(func: Any, args: Any, kwargs: Any, known: Any) -> list[RowAxis | None]:
    rows = known[0][1].rows
    swap = {id(t): at.numbers(t.shape).to(t.device) for t, at in known}
    swap |= _companions(args, known[0], swap)
    for laid in (False, True):  # some views need real memory
        laid_out = {key: t.contiguous() for key, t in swap.items()} if laid else swap
        try:
            with torch.no_grad():
                moved = func(*swapped(args, laid_out), **swapped(dict(kwargs), laid_out))
            break
        except (RuntimeError, TypeError, IndexError):
            moved = None
    parts = [moved] if isinstance(moved, Tensor) else list(moved) if isinstance(moved, list | tuple) else []
    return [_read(part, rows) if isinstance(part, Tensor) else None for part in parts]


def _companions(args: Any, known: tuple[Tensor, RowAxis], swap: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Constants that are put beside a tensor with rows (a class token, say) have theirs in the same place."""
    tensor, at = known
    beside = args[0] if args and isinstance(args[0], list | tuple) else ()
    return {
        id(t): at.numbers(t.shape).to(t.device)
        for t in beside
        if id(t) not in swap and t.dim() == tensor.dim() and t.shape[at.axis] == tensor.shape[at.axis]
    }


def _reduced(
    args: Any, kwargs: Mapping[str, Any], known: tuple[Tensor, RowAxis], outputs: Sequence[Tensor]
) -> list[RowAxis | None]:
    """Reductions over axes that are not the rows'."""
    tensor, at = known
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if dim is None or isinstance(dim, Tensor | bool):
        return []
    axes = [int(d) % tensor.dim() for d in (dim if isinstance(dim, list | tuple) else [dim])]
    keep = bool(kwargs.get("keepdim", len(args) > 2 and args[2] is True))
    axis = at.axis - (0 if keep else sum(a < at.axis for a in axes))
    fits = at.axis not in axes and all(
        axis < o.dim() == tensor.dim() - (0 if keep else len(axes)) and o.shape[axis] == tensor.shape[at.axis]
        for o in outputs
    )
    return [RowAxis(axis, at.inner, at.rows)] * len(outputs) if fits else []


def _contracted(args: Any, known: Any, output: Tensor) -> RowAxis | None:
    """The axis that has the letter of the operands' rows."""
    if not args or not isinstance(args[0], str) or "->" not in args[0] or "." in args[0]:
        return None
    left, _, out = args[0].replace(" ", "").partition("->")
    operands = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    axes = set()
    for term, operand in zip(left.split(","), operands, strict=False):
        for tensor, at in known:
            if tensor is operand and len(term) == tensor.dim():
                letter = term[at.axis]
                axes.add(RowAxis(out.index(letter), at.inner, at.rows) if letter in out else None)
    return axes.pop() if len(axes) == 1 else None


def _kept(name: str, family: str, args: Any, known: Any, output: Tensor) -> RowAxis | None:
    """The one axis that every operand with rows points to, for ops that are known to leave axes where they are."""
    axes = {_pointed(name, family, args, t, at, output) for t, at in known}
    return axes.pop() if len(axes) == 1 else None


def _pointed(name: str, family: str, args: Any, tensor: Tensor, at: RowAxis, output: Tensor) -> RowAxis | None:
    axis, group = at.axis, GROUP.get(family)
    if family in _LEADING:
        pass
    elif name in _PRODUCTS or family == "scaled_dot_product_attention":
        if any(isinstance(a, Tensor) and a.dim() == 1 and a is not tensor for a in _right(name, args)):
            return RowAxis(axis, at.inner, at.rows) if axis < output.dim() else None  # a vector takes the last axis
        lost = -2 if any(tensor is a for a in _right(name, args)) else -1  # the axis that is summed over
        if min(tensor.dim(), output.dim()) < 2 or axis == tensor.dim() + lost:
            return None
        axis += output.dim() - tensor.dim()
    elif family in _ALIGNED or name == "masked_fill" or group in ("elementwise", "softmax", "norm"):
        axis += output.dim() - tensor.dim()
    else:
        return None
    fits = 0 <= axis < output.dim() and output.shape[axis] == tensor.shape[at.axis]
    return RowAxis(axis, at.inner, at.rows) if fits else None


def _right(name: str, args: Any) -> Sequence[Any]:
    """The right operand of a product (the weight of F.linear is transposed: its rows would be lost either way)."""
    return {"addmm": args[2:3], "baddbmm": args[2:3], "linear": ()}.get(name, args[1:2])


def _read(numbers: Tensor, rows: int) -> RowAxis | None:
    """The axis along which row numbers change, if it is one, and how."""
    varying = []
    if not numbers.numel():
        return None  # nothing is there, of no row
    for axis in range(numbers.dim()):
        line = numbers.movedim(axis, 0).reshape(numbers.shape[axis], -1)[:, 0]
        if bool((line != line[0]).any()):
            varying.append((axis, line))
    if rows == 1:
        return RowAxis(0, numbers.shape[0], 1) if numbers.dim() else None
    if len(varying) != 1:
        return None
    axis, line = varying[0]
    inner = int((line != line[0]).long().argmax())
    at = RowAxis(axis, inner, rows)
    whole = len(line) % (inner * rows) == 0
    return at if whole and bool((at.numbers(numbers.shape) == numbers).all()) else None
