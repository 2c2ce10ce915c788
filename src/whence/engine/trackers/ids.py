"""Explained ids are recognised where an embedding looks them up, whatever the model has made of them before.

Each id carries its position in the input. What copies ids (views, casts, indexing, concatenation, padding) is done to
their positions too; entries that come from elsewhere, such as a token put in front, have the position -1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.engine.ops import Spelling, family_of
from whence.engine.trackers import store
from whence.util.tree import swapped, tensors_in

_IDS = "ids"  # on a tensor of ids: (name of the input, each entry's position in it)
_COPIES = frozenset({"view", "cast", "index", "repeat", "concatenate"})  # families
_JOINS = frozenset({"pad", "constant_pad_nd", "masked_fill"})  # ops


@dataclass(eq=False)
class Ids:
    """The explained ids of one pass."""

    shapes: dict[str, torch.Size] = field(default_factory=dict)  # by input
    aside: bool = False  # whether ids were used for anything but to be looked up

    def begin(self, name: str, ids: Tensor) -> Tensor:
        """A copy of an input's ids that is recognised, as are views, casts and copies of it."""
        handed = ids.clone()
        positions = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
        store.put(handed, _IDS, (name, positions))
        self.shapes[name] = ids.shape
        return handed

    def among(self, args: Any, kwargs: Any) -> bool:
        """Whether explained ids are among the arguments of a call."""
        return bool(self.shapes) and any(store.get(t, _IDS) is not None for t in tensors_in((args, kwargs)))

    def follow(self, spelled: Spelling, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Carry positions through whatever copies ids, by doing the same to them."""
        if not self.shapes:
            return
        names = {mark[0] for t in tensors_in((args, kwargs)) if (mark := store.get(t, _IDS))}
        if len(names) != 1:
            self.aside |= bool(names)
            return
        (name,) = names
        family = family_of(spelled.name, args, kwargs, ())
        copies = family in _COPIES or spelled.name in _JOINS
        self.aside |= not copies or (isinstance(result, Tensor) and result.is_floating_point())
        try:
            if spelled.writes:
                _overwrite(name, spelled.name, args, kwargs)
            elif copies:
                _carry(name, spelled.name, family, func, args, kwargs, result)
        except (IndexError, RuntimeError, TypeError, ValueError):
            return  # not a form that can be followed: what comes of it is not the ids


def looked_up(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Tensor] | None:
    """Input and positions of the explained ids by which a table is indexed: table(ids), table[ids], table[ids, :]."""
    given = [*args, *kwargs.values()]
    if name != "embedding" and store.get(given[0], _IDS) is not None:
        return None  # the ids themselves are indexed
    if name == "index_select" and (args[1] if len(args) > 1 else kwargs.get("dim")) != 0:
        return None
    if name == "getitem" and isinstance(args[1], tuple):
        first, *rest = args[1]
        given = [first] if all(item in (slice(None), Ellipsis) for item in rest) else []
    return next((mark for a in given if (mark := store.get(a, _IDS))), None)


def with_ids(ids: Tensor, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """A call's arguments with these ids in place of the explained ones."""
    explained = next(t for t in tensors_in((args, kwargs)) if store.get(t, _IDS) is not None)
    swap = {id(explained): ids.to(explained.dtype)}
    return swapped(args, swap), swapped(kwargs, swap)


def _overwrite(name: str, op: str, args: Any, kwargs: Any) -> None:
    """A write changes positions in place, and so in every view that shares the memory."""
    target = args[0]
    if store.get(target, _IDS) is None:
        if op not in ("setitem", "copy"):
            return
        store.put(target, _IDS, (name, torch.full_like(target, -1, dtype=torch.long)))
    positions = store.get(target, _IDS)[1]
    if op == "setitem":
        positions[args[1]] = _positions(args[2]) if isinstance(args[2], Tensor) else -1
    elif op == "copy":
        positions.copy_(_positions(args[1]))
    elif op == "masked_fill":
        positions.masked_fill_(args[1] if len(args) > 1 else kwargs["mask"], -1)
    else:
        positions.fill_(-1)


def _carry(name: str, op: str, family: str, func: Any, args: Any, kwargs: Any, result: Any) -> None:
    mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
    if family == "cast":  # a narrow type would not hold the positions
        moved: Any = _positions(args[0])
    elif op == "pad" and mode == "constant":
        moved = func(_positions(args[0]), args[1] if len(args) > 1 else kwargs["pad"], value=-1)
    elif op == "masked_fill":
        moved = func(_positions(args[0]), args[1] if len(args) > 1 else kwargs["mask"], -1)
    elif family == "concatenate":
        swap = {id(t): _positions(t) for t in tensors_in((args, kwargs)) if _whole_numbers(t)}
        moved = func(*swapped(args, swap), **swapped(kwargs, swap))
    else:
        moved = func(_positions(args[0]), *args[1:], **kwargs)
    pairs = [(result, moved)] if isinstance(result, Tensor) else zip(result, moved, strict=True)
    for tensor, positions in pairs:
        if not any(tensor is a for a in args) and not tensor.is_floating_point():
            store.put(tensor, _IDS, (name, positions.long()))


def _positions(tensor: Tensor) -> Tensor:
    """Each entry's position in the explained ids, -1 where it comes from elsewhere."""
    mark = store.get(tensor, _IDS)
    return mark[1] if mark is not None else torch.full_like(tensor, -1, dtype=torch.long)


def _whole_numbers(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
