"""Rows that a model sorts by its data: the reference's values in the order of the input's.

Experts, lengths and buckets put rows in one order for the input and in another for the reference, do something to each
row, and put them back. Between the two, row r of the input stands beside another row of the reference, and their
difference would mean nothing. An `Order` on a tensor says which row it is; what a rule sees of the reference is put in
the input's order, so that every row is compared with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.engine.ops import GROUP
from whence.engine.tape import WAY_OUT, Tape, TapeEntry
from whence.engine.trackers import Op, Tracker, store
from whence.errors import DivergedError
from whence.util.tree import swapped, tensors_in

_ORDER = "order"
SORTS = frozenset({"sort", "argsort"})
_ROW_BY_ROW = frozenset("add sum scale multiply divide linear matmul batch_norm dropout cast lerp".split())
_PICKS = frozenset({"getitem", "index_select"})
_PUTS = frozenset("index_add index_copy index_put setitem scatter scatter_add".split())  # by the numbers of rows


@dataclass(frozen=True, eq=False)
class Order:
    """Row r of the input's tensor is row at[r] of the reference's, whose row s is row back[s] of the input's."""

    at: Tensor
    back: Tensor


def order_of(tensor: Tensor) -> Order | None:
    return store.get(tensor, _ORDER)


def _order(at: Tensor) -> Order:
    return Order(at, torch.empty_like(at).scatter_(0, at, torch.arange(len(at), device=at.device)))


def _matched(ours: Tensor, theirs: Tensor) -> Order | None:
    """The order that takes one list of different numbers to another list of the same."""
    (a, by_ours), (b, by_theirs) = ours.sort(), theirs.sort()
    if not torch.equal(a, b) or bool((a[1:] == a[:-1]).any()):
        return None
    return _order(torch.empty_like(by_ours).scatter_(0, by_ours, by_theirs))


class Orders(Tracker):
    """What two passes sorted, and how their rows go together."""

    def __init__(self, tape: Tape) -> None:
        self._sorts, self._replays = tape.sorts, tape.replays
        self._known: list[Order] = []
        self._last: Order | None = None  # of the last sort, unless both passes sorted alike
        self._order: Order | None = None  # of the op that runs now

    def sorted(self, result: Any) -> None:
        """A sort of constants: take its permutation down, or compare it with the reference's."""
        tensors = list(tensors_in(result))
        if not tensors or tensors[-1].dim() != 1:
            return
        by = tensors[-1].detach()
        if not self._replays:
            self._sorts.append(by)
            return
        theirs = self._sorts.popleft() if self._sorts else None
        self._last = None
        if theirs is not None and theirs.shape == by.shape and not torch.equal(theirs, by):
            order = _matched(by, theirs)
            self._known += [] if order is None else [order]
            self._last = order

    def before(self, op: Op) -> None:
        """Put the reference's entry in the order of the input's rows."""
        if op.entry is not None:
            op.entry, self._order = self._ordered(op.entry, op.name, op.args, op.live)

    def _ordered(self, entry: TapeEntry, name: str, args: Any, live: Sequence[Tensor]) -> tuple[TapeEntry, Any]:
        """The reference's entry in the order of these inputs, and the order of what comes of them, if they have one."""
        order = self._of(name, live)
        if order is None:
            return self._begun(entry, name, args) if self._replays and name in _PICKS else (entry, None)
        index = _index(name, entry.args) if name in _PICKS else None
        swap = {id(v): v[order.at] for v, t in zip(entry.values, live, strict=False) if order_of(t) is order}
        rows = len(order.at)
        for t in entry.loose:
            if t is index:
                swap[id(t)] = order.back[t]
            elif t.dim() and len(t) == rows:
                swap[id(t)] = t[order.at]
        result = entry.result[order.at] if entry.result is not None and len(entry.result) == rows else entry.result
        return replace(
            entry, values=tuple(swap.get(id(v), v) for v in entry.values), args=swapped(entry.args, swap),
            kwargs=swapped(entry.kwargs, swap), loose=tuple(swap.get(id(t), t) for t in entry.loose), result=result,
        ), order  # fmt: skip

    def _of(self, name: str, live: Sequence[Tensor]) -> Order | None:
        orders = {id(o): o for t in live if (o := order_of(t)) is not None}
        if len(orders) > 1:
            raise _lost(name)
        order = next(iter(orders.values()), None)
        if order is not None and any(
            order_of(t) is None and t.dim() and len(t) == len(order.at) and name not in _PUTS for t in live
        ):
            raise _lost(name)
        return order

    def _begun(self, entry: TapeEntry, name: str, args: Any) -> tuple[TapeEntry, Order | None]:
        """Rows that are picked in another order than the reference's; of tokens with several experts, one may stand
        where another pair of the same token stood."""
        ours, theirs = _index(name, args), _index(name, entry.args)
        if ours is None or theirs is None or ours.shape != theirs.shape:
            return entry, None
        equal = torch.equal(ours, theirs)
        known = [self._last] if equal else reversed(self._known)
        same = (o for o in known if o is not None and len(o.at) == len(ours) and torch.equal(theirs[o.at], ours))
        order = next(same, None) or (None if equal else _matched(ours, theirs))
        if order is None:
            return entry, None
        swap = {id(theirs): theirs[order.at]}
        loose = tuple(swap.get(id(t), t) for t in entry.loose)
        return replace(entry, args=swapped(entry.args, swap), loose=loose), order

    def follow(self, op: Op) -> None:
        """Say which rows an op's outputs have."""
        order, self._order = self._order, None
        if order is None:
            return
        rows = len(order.at)
        if _index(op.name, op.args) is not None:  # picked anew: put back, unless this is where the order begins
            if order_of(op.live[0]) is None:
                for t in op.results:
                    store.put(t, _ORDER, order)
            return
        if op.name in _PUTS:
            return
        if GROUP.get(op.family) == "view":
            _keep_if_in_place(order, op.name, op.func, op.args, op.kwargs, op.live, op.results)
            return
        if not (op.family in _ROW_BY_ROW or GROUP.get(op.family) in ("elementwise", "softmax", "norm", "max")):
            raise _lost(op.name)
        for t in op.results:
            if t.dim() and len(t) == rows:
                store.put(t, _ORDER, order)


def _keep_if_in_place(
    order: Order, name: str, func: Any, args: Any, kwargs: Any, live: Sequence[Tensor], outputs: Sequence[Tensor]
) -> None:
    """Views may do anything: done to the rows' numbers, they must leave each where it is."""
    rows = len(order.at)
    numbers = torch.arange(rows, device=order.at.device)
    swap = {id(t): numbers.view(-1, *[1] * (t.dim() - 1)).expand(t.shape).to(t.dtype) for t in live if order_of(t)}
    try:
        with torch.no_grad():
            moved = list(tensors_in(func(*swapped(args, swap), **swapped(dict(kwargs), swap))))
    except RuntimeError:  # a view that wants real memory
        laid = {key: t.contiguous() for key, t in swap.items()}
        with torch.no_grad():
            moved = list(tensors_in(func(*swapped(args, laid), **swapped(dict(kwargs), laid))))
    for t, number in zip(outputs, moved, strict=False):
        still = number.dim() > 0 and len(number) == rows
        if not still or not bool((number == numbers.view(-1, *[1] * (number.dim() - 1))).all()):
            raise _lost(name)
        store.put(t, _ORDER, order)


def _index(name: str, args: Any) -> Tensor | None:
    """The numbers of the rows that an op picks."""
    if len(args) < 2:
        return None
    index = args[1] if name == "getitem" else args[2] if name == "index_select" and args[1] == 0 else None
    if isinstance(index, tuple) and index and not any(isinstance(item, Tensor | list) for item in index[1:]):
        index = index[0]
    if not isinstance(index, Tensor) or index.dim() != 1 or index.dtype not in (torch.int64, torch.int32):
        return None
    return index


def _lost(name: str) -> DivergedError:
    return DivergedError(
        f"The model sorts its rows in another order for the input than for the reference, and {name} mixes them "
        f"before they are put back.\n{WAY_OUT}"
    )
