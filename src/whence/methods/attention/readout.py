"""The read-out row: which positions of the last layer the score reads, by its gradient or as the user says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.trackers.modality import Modality
from whence.engine.trackers.tokens import LEARNED
from whence.methods.attention.attention_map import AttentionMap, is_learned
from whence.subject import Subject
from whence.subject.masks import real_units
from whence.util.checks import not_allowed

if TYPE_CHECKING:
    from whence.methods.attention.reading import Reading


def readout(reading: Reading, where: Any) -> dict[Modality, Tensor]:
    """How much of each position the score reads: (rows, targets or 1, n), summing to 1."""
    shares = {}
    for last in last_maps(reading.maps):
        share = _read_by_score(reading, last, where == "auto")
        if share is not None and where != "auto":
            share = _chosen(where, real_positions(reading.subject, last, "query", share.shape[-1]))[:, None]
        if share is not None:
            shares[last.query] = share
    return shares


def last_maps(maps: list[AttentionMap]) -> list[AttentionMap]:
    """Each modality's last map, if what it leads to goes to the score and not to another one's attention.

    Positions that go on as a part of a joint sequence (an image's tokens among those of a text) are read there, and so
    are learned tokens that stand beside others and look at an input by themselves.
    """
    last = {m.query: n for n, m in enumerate(maps)}
    return [
        maps[n]
        for modality, n in last.items()
        if not any((m.crosses and m.key == modality) or _goes_on(modality, m.key) for m in maps[n:])
        and not (is_learned(modality) and any(modality < other for other in last))
    ]


def _goes_on(modality: Modality, later: Modality) -> bool:
    """Whether positions, or the learned tokens among them, are a part of later ones."""
    return modality < later or (modality != later and any(name.startswith(LEARNED) for name in modality & later))


def is_output_of(reading: Reading, last: AttentionMap) -> bool:
    """Whether the state that this map's layer gave is one of its queries, so that its gradient tells where it is read.

    That is decided by the state's modality and length, not by where modules are kept.
    """
    modality, norms = reading.outputs.get(last.layer, (None, []))
    queries = last.reduced[0].shape[-2] if last.reduced and last.reduced[0].dim() > 2 else None
    return queries == 1 or (bool(norms) and modality == last.query and queries in (None, norms[0].shape[-1]))


def _read_by_score(reading: Reading, last: AttentionMap, auto: bool) -> Tensor | None:
    """By the gradient of what the last layer gave, or of the rows of its last map."""
    first = last.reduced[0]
    if first.dim() > 2 and first.shape[-2] == 1:
        return _shares(torch.ones_like(first[:, :1, :1]))
    if is_output_of(reading, last):
        return _shares(torch.stack(reading.outputs[last.layer][1], 1))
    if last.row_norms:
        return _shares(torch.stack(last.row_norms, 1))
    if auto or first.dim() < 3:
        return None
    return torch.ones_like(first[:, None, :, 0])  # for an explicit position: how many there are


def _shares(size: Tensor) -> Tensor:
    size = size.to(torch.promote_types(size.dtype, torch.float32))
    total = size.sum(-1, keepdim=True)
    return torch.where(total > 0, size / total.masked_fill(total == 0, 1), torch.full_like(size, 1 / size.shape[-1]))


def _chosen(where: Any, real: Tensor) -> Tensor:
    """One row, or all of them, (rows, n)."""
    positions = torch.arange(real.shape[1], device=real.device)
    if where == "mean":
        return real / real.sum(1, keepdim=True)
    if where == "first":
        index = torch.where(real > 0, positions, real.shape[1]).argmin(1)
    elif where == "last":
        index = (real * positions).argmax(1)
    elif isinstance(where, int) and not isinstance(where, bool) and -real.shape[1] <= where < real.shape[1]:
        index = torch.full((len(real),), where % real.shape[1], device=real.device)
    else:
        raise not_allowed("readout", where, f'"auto", "first", "last", "mean", or a position below {real.shape[1]}')
    return torch.nn.functional.one_hot(index, real.shape[1]).to(real)


def real_positions(subject: Subject, m: AttentionMap, side: str, n: int) -> Tensor:
    """1 for a map's queries (or keys) that are not padding, (rows, n)."""
    modality, tokens = (m.query, m.query_tokens) if side == "query" else (m.key, m.key_tokens)
    like = next(iter(subject.measured.values.values()))
    dtype = torch.promote_types(like.dtype, torch.float32)
    real = torch.ones(subject.rows, n, dtype=dtype, device=like.device)
    for name in sorted(modality):
        source = None if tokens is None else m.tokens.sources.one(name, tokens)
        if source is not None and tokens is not None:
            mask = real_units(subject, name, (subject.rows, source.size))
            if mask is not None:
                index = (tokens - source.first).clamp(0, mask.numel() - 1)
                real = torch.where(source.holds(tokens), mask.flatten().to(like.device, dtype)[index], real)
        elif (mask := real_units(subject, name, (subject.rows, n))) is not None:
            return mask.to(like.device, dtype)
    return real
