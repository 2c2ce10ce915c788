"""Windowed attention as one map over all tokens: which token each place of each window stands for."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from whence.engine import tokens
from whence.engine.call import derivative
from whence.engine.capture import Site, layers
from whence.errors import InputError
from whence.subject import Subject


@dataclass(eq=False)
class Places:
    """Listens to a pass: for each attention call, the numbers of its windows' queries and keys, and of all tokens."""

    members: set[str]
    found: dict[Site, tuple[Tensor, Tensor, int]] = field(default_factory=dict)
    count: int = 0

    def begin(self) -> None:
        self.found.clear()

    def value(self, site: Site, tensor: Tensor) -> None:
        if site.kind == "input" and site.path in self.members and tensor.dim() == 3:
            tokens.begin(tensor)
            self.count = tensor.shape[1]
        elif site.kind == "attention":
            numbers = tokens.numbers_of(tensor)
            if len(numbers) == 2:
                query, key = numbers  # (windows, heads, w, w)
                self.found[site] = (query[:, 0, :, 0], key[:, 0, 0, :], self.count)

    def fused(self, site: Site, streams: object, depth: int) -> None:
        """Attention is written out in this pass."""


def places(subject: Subject) -> dict[Site, tuple[Tensor, Tensor, int]]:
    """Run the model once more, following its tokens into their windows."""
    listener = Places(layers(subject.root))
    expand = frozenset({"multi_head_attention_forward", "scaled_dot_product_attention"})
    subject.run({"*": derivative}, expand=expand, tell=listener, gradient=False, tokens=True)
    return listener.found


def spread(a: Tensor, where: tuple[Tensor, Tensor, int] | None, rows: int) -> Tensor:
    """Windows (windows, heads, w, w) as (rows, heads, n, n), 0 between tokens of different windows."""
    if where is None:
        raise InputError(
            f"This model's attention maps have the shape {tuple(a.shape)} for {rows} rows, and it cannot be told which "
            "tokens they are about.\n  Choose a method that reads no attention."
        )
    query, key, n = where
    whole = a.new_zeros(rows, n, n, a.shape[1])
    real = (query > 0)[:, :, None] & (key > 0)[:, None]
    row, first, second = (query - 1).clamp(min=0) // n, (query - 1) % n, (key - 1) % n
    shape = real.shape
    index = (row[:, :, None].expand(shape), first[:, :, None].expand(shape), second[:, None].expand(shape))
    whole[tuple(i[real] for i in index)] = a.permute(0, 2, 3, 1)[real]
    return whole.permute(0, 3, 1, 2)


def refit(row: Tensor, n: int, subject: Subject | None = None) -> Tensor:
    """Scores (…, m) of merged tokens for the n tokens that they were merged from: each has its share.

    The other way round each merged token has the sum. Tokens are laid out like the explained image, or in a square.
    """
    m = row.shape[-1]
    if m == n:
        return row
    high, wide = _sides(n, subject)
    old_high, old_wide = _sides(m, subject)
    if m < n and not (high % old_high or wide % old_wide):
        up, across = high // old_high, wide // old_wide
        grid = row.unflatten(-1, (old_high, old_wide)).repeat_interleave(across, -1).repeat_interleave(up, -2)
        return grid.flatten(-2) / (up * across)
    if m > n and not (old_high % high or old_wide % wide):
        return row.unflatten(-1, (high, old_high // high, wide, old_wide // wide)).sum((-3, -1)).flatten(-2)
    raise _unrelated(n, m)


def _sides(n: int, subject: Subject | None) -> tuple[int, int]:
    images = [] if subject is None else [v for v in subject.inputs.values() if isinstance(v, Tensor) and v.dim() == 4]
    ratio = images[0].shape[-2] / images[0].shape[-1] if images else 1.0
    high = round((n * ratio) ** 0.5)
    if not high or n % high or abs(high / (n // high) - ratio) > 1e-6:
        raise _unrelated(n, n)
    return high, n // high


def _unrelated(n: int, m: int) -> InputError:
    return InputError(
        f"The model attends over {n} and over {m} positions, and it cannot be told which belong together.\n"
        "  Give readout= a position, read one layer (raw_attention), or choose a method that reads no attention."
    )
