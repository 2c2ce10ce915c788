"""The numbers of tokens, and ops that only move them: what is done to a tensor is done to its numbers.

`NONE` stands for no token (a learned one, a constant), `LOST` for an entry that was made of several tokens or by an op
that nobody knows. Attention scores have two numbers for each entry, the query's and the key's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.trackers import store
from whence.util.tree import swapped, tensors_in

NONE, LOST = 0, -1
_TOKENS = "tokens"
AS_COPIES = {"index_add": "index_copy_", "scatter_add": "scatter_"}  # sums of one token's parts are that token


def numbers_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """The numbers of each entry: one, or the query's and the key's, or none."""
    numbers: tuple[Tensor, ...] = store.get(tensor, _TOKENS, ())
    return numbers


def put_numbers(tensor: Tensor, numbers: tuple[Tensor, ...]) -> None:
    """Note the numbers of each entry."""
    store.put(tensor, _TOKENS, numbers)


def copy_numbers(old: Tensor, new: Tensor) -> None:
    """Note on one tensor the numbers of another, if it has any."""
    if numbers_of(old):
        store.copy(old, new, _TOKENS)


def forget_numbers(tensor: Tensor) -> None:
    """A tensor whose tokens are not known any more."""
    store.drop(tensor, _TOKENS)


# ---- ops that move tokens ----


def moved(func: Any, args: Any, kwargs: Any, live: Any, known: Any, family: str) -> list[tuple[Tensor, ...]]:
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
            result = func(*swapped(args, swap), **swapped(dict(kwargs), swap))
        except RuntimeError:  # some ops know no whole numbers, some views need real memory
            swap = {key: t.double().contiguous() for key, t in swap.items()}
            result = func(*swapped(args, swap), **swapped(dict(kwargs), swap))
        parts.append([result] if isinstance(result, Tensor) else list(result))
    return [
        tuple(n if n.dtype == torch.long else n.round().long() for n in numbers) for numbers in zip(*parts, strict=True)
    ]


def placed(func: Any, args: Any, kwargs: Any, live: Any, known: Any, output: Tensor) -> tuple[Tensor, ...]:
    """where, masked_fill, masked_scatter, index_put, scatter: entries of one tensor in the places of another's."""
    scores = [numbers for t, numbers in known if len(numbers) == 2 and t.shape == output.shape]
    if scores:
        return scores[0]  # masked, and still about the same tokens
    plain = [a for a in tensors_in((args, kwargs)) if _is_content(a) and a.numel() > 1]
    if len(plain) == 1 and plain[0].shape == output.shape:
        return numbers_of(plain[0])  # filled with one number
    swap = _as_numbers(plain, live)
    numbers: Tensor = func(*swapped(args, swap), **swapped(dict(kwargs), swap))
    return (numbers.long(),)


def written(name: str, func: Any, args: Any, kwargs: Any, live: Any, writes: bool) -> tuple[Tensor, ...]:
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
            function = getattr(part, AS_COPIES.get(name, f"{name}_"))
            function(*swapped(args[1:], swap), **swapped({k: v for k, v in kwargs.items() if k != "alpha"}, swap))
        wholes.append(whole)
        parts.append(part)
    if base is not None:
        put_numbers(base, tuple(wholes))
    return tuple(parts)


def _at_place(tensor: Tensor, place: int, live: Sequence[Tensor]) -> Tensor:
    """A tensor's numbers, the query's or the key's; constants are no tokens."""
    numbers = numbers_of(tensor)
    if numbers:
        return numbers[min(place, len(numbers) - 1)]
    fill = LOST if any(tensor is other for other in live) else NONE
    return torch.full((), fill, device=tensor.device).expand(tensor.shape)


def _as_numbers(tensors: Sequence[Tensor], live: Sequence[Tensor], place: int = 0) -> dict[int, Tensor]:
    """Numbers in the tensors' stead."""
    return {id(t): _at_place(t, place, live) for t in tensors}


def _is_content(t: Tensor) -> bool:
    """Not a mask or an index."""
    return t.is_floating_point() or t.is_complex()


# ---- numbers along axes ----


def along(numbers: Tensor, axis: int) -> Tensor:
    """The one number along an axis that is summed over, kept as an axis of 1."""
    one = numbers.narrow(axis, 0, 1)
    if numbers.stride(axis) != 0 and numbers.shape[axis] > 1 and not bool((numbers == one).all()):
        raise ValueError
    return one


def short(numbers: Tensor) -> Tensor:
    """Without axes along which nothing changes."""
    for axis in range(numbers.dim()):
        if numbers.stride(axis) == 0 and numbers.shape[axis] > 1:
            numbers = numbers.narrow(axis, 0, 1)
    return numbers


def differ(numbers: Tensor, ours: Tensor) -> bool:
    """Whether several tokens are met along the last axis, of those that are asked for."""
    low = torch.where(ours, numbers, torch.iinfo(numbers.dtype).max).amin(-1)
    high = torch.where(ours, numbers, torch.iinfo(numbers.dtype).min).amax(-1)
    return bool(((low < high) & ours.any(-1)).any())


def axes_in_order(numbers: Tensor) -> list[int]:
    """The axes of (rows, channels, …) after the channels, the one first along which numbers change most."""
    corner = numbers[0, 0]
    steps = [
        int(corner.select(a, min(1, n - 1)).flatten()[0] - corner.flatten()[0]) for a, n in enumerate(corner.shape)
    ]
    return sorted(range(corner.dim()), key=lambda axis: -abs(steps[axis]))


def letters(numbers: Tensor, term: str) -> set[str]:
    """The axes along which numbers change."""
    return {
        letter
        for axis, letter in enumerate(term)
        if numbers.shape[axis] > 1 and numbers.stride(axis) and bool((numbers != numbers.narrow(axis, 0, 1)).any())
    }


def laid_along(numbers: Tensor, term: str, out: str, shape: torch.Size) -> Tensor:
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
