"""Which token each entry stands for, through whatever moves tokens about: windows, shifts, padding, heads.

Numbers are followed by doing to them what is done to the tensor; 0 stands for no token. Attention scores have two
numbers for each entry, the query's and the key's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import swapped

_TOKENS = "_whence_tokens"
_MOVES = frozenset("view cast index repeat concatenate pad dropout".split())


def begin(tensor: Tensor) -> None:
    """Number the tokens of (rows, n, hidden), from 1 on."""
    numbers = torch.arange(1, tensor.shape[:-1].numel() + 1, device=tensor.device).view(*tensor.shape[:-1], 1)
    setattr(tensor, _TOKENS, (numbers.expand(tensor.shape),))


def numbers_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """The numbers of each entry: one, or the query's and the key's, or none."""
    found: tuple[Tensor, ...] = getattr(tensor, _TOKENS, ())
    return found


def follow(family: str, func: Any, args: Any, kwargs: Mapping[str, Any], live: Sequence[Tensor], outputs: Any) -> None:
    """Find the numbers of an op's outputs."""
    known = [(t, numbers_of(t)) for t in live if numbers_of(t)]
    if not known or not outputs:
        return
    if family in _MOVES:
        _move(func, args, kwargs, known, outputs)
        return
    first, numbers = known[0]
    output = outputs[0]
    if family == "matmul" and len(known) == 2 and len(numbers) == len(known[1][1]) == 1:
        query, key = numbers[0][..., :1], known[1][1][0][..., :1, :]
        setattr(output, _TOKENS, (query.expand(output.shape), key.expand(output.shape)))
    elif family == "linear" and output.shape[:-1] == first.shape[:-1]:
        setattr(output, _TOKENS, tuple(n[..., :1].expand(output.shape) for n in numbers))
    elif output.shape == first.shape:
        setattr(output, _TOKENS, numbers)


def _move(func: Any, args: Any, kwargs: Any, known: Any, outputs: Sequence[Tensor]) -> None:
    parts: list[list[Tensor]] = []
    for place in range(len(known[0][1])):
        swap = {id(t): numbers[place] for t, numbers in known if len(numbers) > place}
        with torch.no_grad():
            try:
                moved = func(*swapped(args, swap), **swapped(dict(kwargs), swap))
            except (RuntimeError, TypeError, IndexError):
                return
        parts.append([moved] if isinstance(moved, Tensor) else list(moved))
    for output, *numbers in zip(outputs, *parts, strict=False):
        if all(n.shape == output.shape for n in numbers):
            setattr(output, _TOKENS, tuple(n.long() for n in numbers))
