"""Windowed attention as one map over all tokens: which token each position of each window stands for."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from whence.engine.call import derivative
from whence.engine.captures import Site, layers
from whence.engine.trackers.token_numbers import numbers_of
from whence.engine.trackers.token_sources import Source
from whence.engine.trackers.tokens import Tokens, begin
from whence.errors import InputError
from whence.subject import Subject


@dataclass(eq=False)
class WindowTokens:
    """Listens to a pass: for each attention call, the numbers of its windows' queries and keys, and of all tokens."""

    members: set[str]
    tokens: Tokens
    found: dict[Site, tuple[Tensor, Tensor, int]] = field(default_factory=dict)
    count: int = 0

    def begin(self) -> None:
        self.found.clear()

    def value(self, site: Site, tensor: Tensor) -> None:
        if site.kind == "input" and site.path in self.members and tensor.dim() == 3:
            begin(tensor)
            self.count = tensor.shape[1]
        elif site.kind == "attention":
            numbers = numbers_of(tensor)
            if len(numbers) == 2 and tensor.dim() == 4:
                query, key = numbers  # (windows, heads, w, w)
                if not all(bool((n == n[:, :1]).all()) for n in numbers):
                    return  # the second axis is something else than heads
                self.found[site] = (query[:, 0, :, 0], key[:, 0, 0, :], self.count)

    def fused(self, site: Site, modalities: object, depth: int, numbers: object) -> None:
        """Attention is written out in this pass."""


def window_tokens(subject: Subject) -> dict[Site, tuple[Tensor, Tensor, int]]:
    """Run the model once more, following its tokens into their windows."""
    listener = WindowTokens(layers(subject.root), Tokens(subject.rows, born=False))
    expand = frozenset({"multi_head_attention_forward", "scaled_dot_product_attention"})
    subject.run({"*": derivative}, expand=expand, tell=listener, gradient=False)
    return listener.found


def spread(a: Tensor, where: tuple[Tensor, Tensor, int] | None, rows: int) -> Tensor:
    """Windows (windows, heads, w, w) as (rows, heads, n, n), 0 between tokens of different windows."""
    if where is None:
        raise InputError(
            f"This model's attention maps have the shape {tuple(a.shape)} for {rows} rows, which does not show "
            "which tokens they are about.\n  Choose a method that does not read attention."
        )
    query, key, n = where
    whole = a.new_zeros(rows, n, n, a.shape[1])
    real = (query > 0)[:, :, None] & (key > 0)[:, None]
    row, first, second = (query - 1).clamp(min=0) // n, (query - 1) % n, (key - 1) % n
    shape = real.shape
    index = (row[:, :, None].expand(shape), first[:, :, None].expand(shape), second[:, None].expand(shape))
    whole[tuple(i[real] for i in index)] = a.permute(0, 2, 3, 1)[real]
    return whole.permute(0, 3, 1, 2)


def spread_pairs(a: Tensor, query: Tensor, key: Tensor, tokens: Tokens) -> Tensor:
    """Pieces of maps, in any layout, as (rows, heads, n, n): every entry goes to its query's and its key's place."""
    every = tokens.sources.every((query, key))
    source = None if every is None else tokens.sources.of(int(every[0, 0]))
    if source is None:
        raise _untold(a)
    ours = source.holds(query) & source.holds(key)
    first, second = (t[ours] - source.first for t in (query, key))
    if not torch.equal(first // source.size, second // source.size):
        raise _untold(a)
    place = first * source.size + second % source.size
    order = place.argsort(stable=True)
    distinct, count = place[order].unique_consecutive(return_counts=True)
    heads = int(count.max()) if len(count) else 1
    if not bool((count == heads).all()):
        raise _untold(a)
    whole = a.new_zeros(source.rows * source.size * source.size, heads)
    whole[distinct] = a[ours][order].view(-1, heads)
    return whole.view(source.rows, source.size, source.size, heads).permute(0, 3, 1, 2)


def _untold(a: Tensor) -> InputError:
    return InputError(
        f"This model computes its attention in pieces of the shape {tuple(a.shape)} (blocks, bands or hashed chunks), "
        "which does not show which tokens they are about.\n  Choose a method that does not read attention, or a "
        "configuration of the model that attends to all tokens at once."
    )


def refit(row: Tensor, n: int, subject: Subject | None = None) -> Tensor:
    """Scores (…, m) of merged tokens for the n tokens that they were merged from: each has its share.

    The other way round each merged token has the sum. Tokens are laid out like the explained image, or in a square.
    """
    m = row.shape[-1]
    if m == n:
        return row
    high, wide = _sides(n, m, subject)
    old_high, old_wide = _sides(m, n, subject)
    if m < n and not (high % old_high or wide % old_wide):
        up, across = high // old_high, wide // old_wide
        grid = row.unflatten(-1, (old_high, old_wide)).repeat_interleave(across, -1).repeat_interleave(up, -2)
        return grid.flatten(-2) / (up * across)
    if m > n and not (old_high % high or old_wide % wide):
        return row.unflatten(-1, (high, old_high // high, wide, old_wide // wide)).sum((-3, -1)).flatten(-2)
    raise _unrelated(n, m)


def moved(
    row: Tensor, old: Tensor | None, new: Tensor | None, n: int, tokens: Tokens, subject: Subject | None = None
) -> Tensor:
    """Scores (rows, k, m) of positions with the tokens `old` (rows, m) for n positions with the tokens `new`.

    A patch's score is shared by the smaller ones that lie in it, and a small one's goes to the larger. Positions of no
    input are matched in their order. Where tokens are not known, positions are matched by their number.
    """
    if old is None or new is None or old.shape[1] != row.shape[-1] or new.shape[1] != n:
        return refit(row, n, subject)
    if old.shape == new.shape and bool((old == new).all()):
        return row
    ours, theirs = (at <= 0 for at in (old, new))
    order = (ours.cumsum(1)[:, :, None] == theirs.cumsum(1)[:, None]) & ours[:, :, None] & theirs[:, None]
    weight = order.to(row)  # (rows, m, n)
    for source in tokens.sources:
        for other in tokens.sources if bool(source.holds(old).any()) else ():
            if other.name == source.name and bool(other.holds(new).any()):
                weight = weight + _overlap(source, other, old, new).to(row)
    if not bool((weight * ~ours[:, :, None]).any()):
        return refit(row, n, subject)
    return row @ (weight / weight.sum(-1, keepdim=True).clamp(min=1))


def _overlap(source: Source, other: Source, old: Tensor, new: Tensor) -> Tensor:
    """How much of each position (rows, m) of one grid lies in each (rows, n) of another, (rows, m, n)."""
    if source is other:
        return (old[:, :, None] == new[:, None]) & source.holds(old)[:, :, None]
    if len(source.shape) != len(other.shape) or len(source.shape) < 2:
        raise _unrelated(source.size, other.size)
    shared = (source.holds(old)[:, :, None] & other.holds(new)[:, None]).double()
    here, there = (at - s.first for at, s in ((old, source), (new, other)))
    for axis in reversed(range(len(source.shape))):
        size, count = source.shape[axis], other.shape[axis]
        a, b = (here % size)[:, :, None].double(), (there % count)[:, None].double()
        low, high = torch.maximum(a / size, b / count), torch.minimum((a + 1) / size, (b + 1) / count)
        part = (high - low) * size
        shared = shared * torch.where(part > 1e-9, part, 0)
        here, there = here // size, there // count
    return shared


def _sides(n: int, m: int, subject: Subject | None) -> tuple[int, int]:
    images = [] if subject is None else [v for v in subject.inputs.values() if isinstance(v, Tensor) and v.dim() == 4]
    ratio = images[0].shape[-2] / images[0].shape[-1] if images else 1.0
    high = round((n * ratio) ** 0.5)
    if not high or n % high or abs(high / (n // high) - ratio) > 1e-6:
        raise _unrelated(n, m)
    return high, n // high


def _unrelated(n: int, m: int) -> InputError:
    return InputError(
        f"The model attends over {max(n, m)} positions in one place and over {min(n, m)} in another, so which "
        "belong together is unknown.\n"
        "  Read the last layer alone (raw_attention), or choose a method that does not read attention."
    )
