"""Cross-attention between modalities: the rules of Chefer, Gur & Wolf 2021 (arXiv:2103.15679)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.trackers.modality import Modality
from whence.errors import InputError
from whence.methods.attention.attention_map import AttentionMap, is_learned
from whence.methods.attention.reading import Reading
from whence.methods.attention.readout import readout

Relevance = dict[tuple[Any, Any], Tensor]  # from a stream's positions to another's, (…, n, m)


def two_stream(reading: Reading, where: Any) -> dict[Modality, Tensor]:
    """The read-out row of the relevance of each stream's positions."""
    _refuse_interleaved(reading.maps)
    asks = {
        m.query: m for m in reading.maps if m.reduced[0].shape[-2] == 1 < m.reduced[0].shape[-1]
    }  # one query for all
    maps = [m for m in reading.maps if asks.get(m.query) is not m]
    relevance = propagate([[(m.query, m.key, m.stacked()) for m in group] for group in _together(maps)])
    state: dict[Modality, Tensor] = {}
    for stream, row in readout(reading, where).items():
        if stream in asks:
            row = (row.unsqueeze(-2) @ asks[stream].stacked()).squeeze(-2)
        for (query, key), r in relevance.items():
            if query == stream:
                state[key] = state.get(key, 0) + (row.unsqueeze(-2) @ r).squeeze(-2)
    _through_learned(reading, state, relevance)
    return state


def _through_learned(reading: Reading, state: dict[Modality, Tensor], relevance: Relevance) -> None:
    """Learned tokens that looked at an input and then joined another stream's pass on what they have got there.

    The joint stream j begins with R_jt = P·R_st, P the places of the learned tokens s in it: R_jj·P·R_st arrives.
    """
    at = {m.query: m.query_tokens for m in reading.maps}
    for stream, learned in [(j, s) for j in list(state) for s, t in relevance if s == t and is_learned(s) and s < j]:
        joined, own = at.get(stream), at.get(learned)
        if joined is None or own is None:
            continue
        row = state[stream] @ (joined[:, :, None] == own[:, None]).to(state[stream])
        state[stream] = state[stream] * ~torch.isin(joined, own)[:, None]
        for (query, key), r in relevance.items():
            if query == learned:
                state[key] = state.get(key, 0) + (row.unsqueeze(-2) @ r).squeeze(-2)


def _refuse_interleaved(maps: Sequence[AttentionMap]) -> None:
    """Learned tokens that look at an input between two looks at words beside them have no rule of the paper's."""
    last = {m.query: n for n, m in enumerate(maps) if is_learned(m.query)}
    for n, m in enumerate(maps):
        if any(learned < m.query and n < there for learned, there in last.items()):
            raise InputError(
                "This model's learned tokens attend by turns to an input and, beside other tokens, to these; "
                "generic_attention's rules for two modalities do not cover that.\n"
                "  Choose rollout, or a method that does not read attention."
            )


def _together(maps: Sequence[AttentionMap]) -> Iterator[list[AttentionMap]]:
    """Calls that are updated at once: the two directions of a cross-attention in one layer."""
    waiting: list[AttentionMap] = []
    for m in maps:
        mirrored = waiting and m.crosses and (m.key, m.query) == (waiting[0].query, waiting[0].key)
        if mirrored and m.layer == waiting[0].layer:
            yield [*waiting, m]
            waiting = []
            continue
        if waiting:
            yield waiting
        waiting = [m]
    if waiting:
        yield waiting


def propagate(
    calls: Sequence[Sequence[tuple[Any, Any, Tensor]]], *, normalize: bool = True, mix: bool = True
) -> Relevance:
    """Relevance between streams after all calls, each (query stream, key stream, M); calls of one group act at once.

    Self-attention: R_st += M·R_st for every t. Cross-attention: R_sq += R̄_ssᵀ·M·R̄_qq (without `mix`: M alone), and
    R_st += M·R_qt for the others.
    """
    r: Relevance = {}
    for group in calls:
        for query, key, m in group:
            for stream, n in ((query, m.shape[-2]), (key, m.shape[-1])):
                eye = torch.eye(n, dtype=m.dtype, device=m.device)
                r.setdefault((stream, stream), eye.expand(*m.shape[:-2], -1, -1))
        added: list[tuple[tuple[Any, Any], Tensor]] = []
        for query, key, m in group:
            if query == key:
                added += [((query, t), m @ old) for (s, t), old in r.items() if s == query]
                continue
            ours, theirs = (_normalised(r[s, s]) if normalize else r[s, s] for s in (query, key))
            added.append(((query, key), ours.mT @ m @ theirs if mix else m))
            added += [((query, t), m @ old) for (s, t), old in r.items() if s == key and t != key]
        for place, more in added:
            r[place] = r[place] + more if place in r else more
    return r


def _normalised(r: Tensor) -> Tensor:
    """I + (R − I) / rowsum(R − I), and 0 for empty rows of R − I."""
    eye = torch.eye(r.shape[-1], dtype=r.dtype, device=r.device)
    rest = r - eye
    total = rest.sum(-1, keepdim=True)
    return eye + torch.where(total == 0, torch.zeros_like(rest), rest / total.masked_fill(total == 0, 1))
