"""Attention maps in one form, (rows, heads, query, key), whatever layout a model computes them in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.engine.captures import Site
from whence.engine.trackers.modality import Modality
from whence.engine.trackers.token_numbers import NONE, numbers_of
from whence.engine.trackers.tokens import LEARNED, Tokens
from whence.errors import InputError


@dataclass(eq=False)
class AttentionMap:
    """One attention call, and what was made of it for each target, or once for all."""

    site: Site
    layer: str  # the innermost member of a module list around it, or its own module
    run: int  # which run of that layer it belongs to, from 0
    query: Modality
    key: Modality
    tokens: Tokens  # of the pass
    depth: int = 0  # how many attentions came before it, one after the other
    query_tokens: Tensor | None = None  # (rows, query), the token that each position stands for, where that is known
    key_tokens: Tensor | None = None
    pairs: tuple[Tensor, Tensor] | None = None  # query's and key's token of every entry, where rows of it differ
    complete: bool = True  # whether its queries are all that there are at this depth
    transposed: bool = False  # its softmax goes over the first of the two axes
    reduced: list[Tensor] = field(default_factory=list)  # what the method made of it, each (rows, …)
    activations: list[Tensor] = field(default_factory=list)  # Σ h·∇h of what queries are projected from, by target
    row_norms: list[Tensor] = field(default_factory=list)  # ‖gradient‖ of each query's row, (rows, query), by target

    @property
    def crosses(self) -> bool:
        """Whether it is a cross-attention."""
        return self.query != self.key

    def stacked(self) -> Tensor:
        """(rows, targets or 1, …), in at least single precision."""
        stacked = torch.stack(self.reduced, 1)
        return stacked.to(torch.promote_types(stacked.dtype, torch.float32))

    def transpose(self) -> None:
        """Exchange queries and keys."""
        self.transposed, self.query, self.key = True, self.key, self.query
        self.query_tokens, self.key_tokens = self.key_tokens, self.query_tokens


def is_learned(modality: Modality) -> bool:
    """Whether positions are learned tokens, and nothing else."""
    return bool(modality) and all(name.startswith(LEARNED) for name in modality)


# ---- one call ----


def by_head(a: Tensor, rows: int) -> Tensor:
    """A map as (rows, heads, query, key)."""
    if a.dim() == 2 and len(a) == rows:
        return a[:, None, None]  # one query, as in a recurrent decoder
    if a.dim() == 3 and len(a) == rows:
        return a.unsqueeze(1)
    if a.dim() == 3 and len(a) % rows == 0:
        return a.unflatten(0, (rows, -1))
    if a.dim() == 4:
        return a
    raise InputError(
        f"This model's attention maps have the shape {tuple(a.shape)} for {rows} rows, not (rows, heads, query, key).\n"
        "  Choose a method that does not read attention."
    )


def is_over_features(tensor: Tensor) -> bool:
    """Whether a softmax goes over parts of one token (the taps of a filter, say) and not over tokens."""
    numbers = numbers_of(tensor)
    if len(numbers) != 1 or tensor.dim() < 2:
        return False
    n = numbers[0]
    return bool((n == n[..., :1, :1]).all()) and n.shape[-2:].numel() > 1


def is_over_queries(a: Tensor) -> bool:
    """Whether a softmax goes over the queries' axis, so that columns sum to 1 and rows do not."""
    near = 0.05 if torch.finfo(a.dtype).bits < 32 else 1e-3
    across = a.sum(-1)
    if bool((((across - 1).abs() < near) | (across == 0)).all()):
        return False
    down = a.sum(-2)
    if bool((((down - 1).abs() < near) | (down == 0)).all()):
        return True
    if bool((across < 1 + near).all()):
        return False  # some of it goes nowhere
    if bool(across.isnan().any()):
        raise InputError(
            "This model's attention is NaN in some rows: it has queries for which every key is masked.\n"
            '  Load it with attn_implementation="sdpa", or pad on the other side.'
        )
    raise InputError(
        f"This model has a softmax of the shape {tuple(a.shape)} that goes over neither of its last two axes.\n"
        "  Choose a method that does not read attention."
    )


# ---- all calls ----


def merged(maps: list[AttentionMap], tokens: Tokens) -> list[AttentionMap]:
    """One map for each attention of the model, which may have computed it in several calls."""
    return _with_learned_names(_heads_merged(_blocks_merged(maps, tokens)))


def _blocks_merged(maps: list[AttentionMap], tokens: Tokens) -> list[AttentionMap]:
    """Calls about some of a depth's queries and keys each (blocks, bands) as one map over all of them."""
    for group in _by_depth(maps):
        first = group[0]
        if len(group) == 1 or all(m.complete and _same_tokens(m.query_tokens, first.query_tokens) for m in group):
            continue
        parts = [m.query_tokens for m in group if m.query_tokens is not None]
        every = tokens.sources.every(parts) if len(parts) == len(group) else None
        unasked = all(m.reduced[0].dim() == 1 for m in group)  # the method does not look at maps
        if every is None or not (unasked or all(m.reduced[0].dim() == 3 for m in group)):
            raise _in_pieces(first)
        maps = [m for m in maps if m not in group[1:]]
        if not unasked:
            _sum_blocks(group, every)
        first.query_tokens = first.key_tokens = every
    return maps


def _sum_blocks(group: list[AttentionMap], every: Tensor) -> None:
    """Blocks (rows, query, key), each over its own tokens, as their sum over all tokens in the first of them."""
    for m in group:
        query, key = (_one_hot(numbers, every) for numbers in (m.query_tokens, m.key_tokens))
        m.reduced = [query.to(t).mT @ t @ key.to(t) for t in m.reduced]
        m.row_norms = [(t[:, None] @ query.to(t))[:, 0] for t in m.row_norms]
    group[0].reduced = [torch.stack(same).sum(0) for same in zip(*(m.reduced for m in group), strict=True)]
    norms = zip(*(m.row_norms for m in group), strict=True)
    group[0].row_norms = [torch.stack(same).square().sum(0).sqrt() for same in norms]


def _heads_merged(maps: list[AttentionMap]) -> list[AttentionMap]:
    """Calls that act on the same tokens at the same depth are heads of one attention."""
    for group in _by_depth(maps):
        alike = len({tuple(t.shape for t in m.reduced) for m in group}) == 1
        if len(group) > 1 and alike:
            group[0].reduced = [torch.stack(same).mean(0) for same in zip(*(m.reduced for m in group), strict=True)]
            maps = [m for m in maps if m not in group[1:]]
    return maps


def _with_learned_names(maps: list[AttentionMap]) -> list[AttentionMap]:
    """Learned tokens that stood beside others before they looked at an input: the same ones as afterwards."""
    for m in maps:
        if m.query_tokens is None or m.crosses or not bool((m.query_tokens == NONE).any()):
            continue
        for other in maps:
            numbers = other.query_tokens
            if numbers is None or numbers.shape != m.query_tokens.shape or not m.query < other.query:
                continue
            same = (m.query_tokens == NONE) | (m.query_tokens == numbers)
            if is_learned(other.query - m.query) and bool(same.all()):
                m.query = m.key = other.query
                m.query_tokens = m.key_tokens = numbers
                break
    return maps


def _by_depth(maps: list[AttentionMap]) -> list[list[AttentionMap]]:
    groups: dict[Any, list[AttentionMap]] = {}
    for m in maps:
        groups.setdefault((m.query, m.key, m.depth), []).append(m)
    return list(groups.values())


def _same_tokens(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and a.shape == b.shape and torch.equal(a, b))


def _one_hot(numbers: Tensor | None, every: Tensor) -> Tensor:
    """Which of all tokens each position is, (rows, n, all)."""
    assert numbers is not None
    return numbers[:, :, None] == every[:, None]


def _in_pieces(m: AttentionMap) -> InputError:
    return InputError(
        f"The model computes its attention (in {m.layer or 'the model itself'}) in pieces, but not in a way that shows "
        "how they make one map.\n  Choose a method that does not read attention, or a configuration of the model that "
        "attends to all tokens at once."
    )
