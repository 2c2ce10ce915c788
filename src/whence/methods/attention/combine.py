"""From maps to one score per position: the read-out row through all layers, or one layer's map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from whence.engine.trackers.modality import Modality
from whence.engine.trackers.token_numbers import LOST
from whence.engine.trackers.tokens import LEARNED
from whence.methods.answer import Answer
from whence.methods.attention.attention_map import AttentionMap
from whence.methods.attention.layout import Scores, on_inputs
from whence.methods.attention.reading import Reading
from whence.methods.attention.readout import readout, real_positions
from whence.methods.attention.windows import moved
from whence.registry import Bounds
from whence.util.checks import not_allowed

Preset = Literal["authors-bert", "authors-vit"] | None  # as the authors' code does it, where that is not the paper
Counted = Literal["real", "all"]  # the tokens that an average counts
StartLayer = Annotated[int, Bounds(low=0)]
Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # a row and a map → what stays, what goes to the keys


# ---- from the last layer to the first ----


def with_residual(normalize: bool) -> Step:
    """The step of r·(A + I), with rows of A + I divided by their sum or as they are."""

    def step(row: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        row = row / (a.sum(-1) + 1) if normalize else row
        return row, _times(row, a)

    return step


def without_residual(row: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """The step of r·A."""
    return torch.zeros_like(row), _times(row, a)


def _times(row: Tensor, a: Tensor) -> Tensor:
    """A row vector times a matrix, for each row and target."""
    return (row.unsqueeze(-2) @ a).squeeze(-2)


def through(reading: Reading, step: Step, start_layer: int, where: Any, preset: Preset = None) -> Answer:
    """The read-out row through the layers, from the last to the one to start with."""
    if start_layer and start_layer >= max(sum(m.query == n.query for n in reading.maps) for m in reading.maps):
        raise not_allowed("start_layer", start_layer, "a layer that the model has")
    scores = Scores(readout(reading, where), {m.query: m.query_tokens for m in reading.maps})
    for m in reversed(_from_layer(reading.maps, start_layer)):
        _gather_learned(scores, m)
        if m.query in scores.values:
            _step_back(reading, scores, m, step)
    return on_inputs(reading, scores, padding=preset is not None)


def _step_back(reading: Reading, scores: Scores, m: AttentionMap, step: Step) -> None:
    """From the outputs of an attention to its inputs."""
    old = scores.values[m.query]
    row = _at_queries(reading, old, scores.tokens[m.query], m)
    gone = (old.abs().sum((1, 2)) - row.abs().sum((1, 2))).clamp(min=0)
    scores.dropped = gone if scores.dropped is None else scores.dropped + gone
    scores.tokens[m.query] = m.query_tokens
    stays, goes = step(row, m.stacked())
    if m.crosses:
        scores.values[m.query] = row if step is without_residual else stays
        add(reading, scores, m.key, goes, m.key_tokens)
    elif row.shape[-1] == 1 < goes.shape[-1]:  # one query: nothing of it stays
        scores.values[m.query], scores.tokens[m.query] = _times(row, m.stacked()), m.key_tokens
    else:
        n = row.shape[-1]
        scores.values[m.query] = stays + moved(goes, m.key_tokens, m.query_tokens, n, reading.tokens, reading.subject)


def _at_queries(reading: Reading, row: Tensor, tokens: Tensor | None, m: AttentionMap) -> Tensor:
    """Scores of positions with these tokens as scores of a map's queries."""
    return moved(row, tokens, m.query_tokens, m.reduced[0].shape[-2], reading.tokens, reading.subject)


def _gather_learned(scores: Scores, m: AttentionMap) -> None:
    """Learned tokens stand in several sequences: what the queries of a map have got in another one is brought here."""
    here = m.query_tokens
    if here is None or not any(name.startswith(LEARNED) for name in m.query):
        return
    learned = torch.zeros_like(here, dtype=torch.bool)
    for source in m.tokens.sources:
        learned |= source.holds(here) if source.name.startswith(LEARNED) else False
    ours = torch.where(learned, here, LOST - 1)  # like no other
    for modality, values in list(scores.values.items()):
        there = scores.tokens.get(modality)
        if modality == m.query or not modality & m.query or there is None or there.shape[1] != values.shape[-1]:
            continue
        same = (there[:, :, None] == ours[:, None]).to(values)
        old = scores.values.get(m.query, values.new_zeros(*values.shape[:2], here.shape[1]))
        scores.values[m.query], scores.tokens[m.query] = old + values @ same, here
        scores.values[modality] = values * (1 - same.sum(-1))[:, None]


def _from_layer(maps: list[AttentionMap], start: int) -> list[AttentionMap]:
    """Each modality's maps without its first ones."""
    seen: dict[tuple[Modality, Modality], int] = {}
    chosen = []
    for m in maps:
        seen[m.query, m.key] = seen.get((m.query, m.key), -1) + 1
        if seen[m.query, m.key] >= start:
            chosen.append(m)
    return chosen


# ---- one layer ----


def one_layer(reading: Reading, layer: Any, where: Any, preset: Preset = None) -> Answer:
    """The read-out row of one layer's map onto each modality, or the mean or sum over layers."""
    scores = Scores()
    last_tokens = {m.query: m.query_tokens for m in reading.maps}
    for modality, row in readout(reading, where).items():
        for key in {m.key: None for m in reading.maps if m.query == modality}:
            maps = [m for m in reading.maps if (m.query, m.key) == (modality, key)]
            chosen = maps if layer in ("mean", "sum") else [_layer(maps, layer)]
            for m in chosen:
                there = _at_queries(reading, row, last_tokens[modality], m)
                values = _times(there, m.stacked()) / (len(chosen) if layer == "mean" else 1)
                add(reading, scores, key, values, m.key_tokens)
    return on_inputs(reading, scores, padding=preset is not None)


def _layer(maps: list[AttentionMap], layer: Any) -> AttentionMap:
    if not isinstance(layer, int) or isinstance(layer, bool) or not -len(maps) <= layer < len(maps):
        raise not_allowed("layer", layer, f'"mean" or a layer from {-len(maps)} to {len(maps) - 1}')
    return maps[layer]


# ---- what methods share ----


def add(reading: Reading, scores: Scores, modality: Modality, values: Tensor, tokens: Tensor | None) -> None:
    """Add scores of positions to those that a modality has, at the first positions that were met."""
    if modality not in scores.values:
        scores.values[modality], scores.tokens[modality] = values, tokens
        return
    old = scores.values[modality]
    scores.values[modality] = old + moved(
        values, tokens, scores.tokens.get(modality), old.shape[-1], reading.tokens, reading.subject
    )


def at_first_tokens(reading: Reading, values: dict[Modality, Tensor]) -> Scores:
    """Scores at the first positions of each modality."""
    scores = Scores(values)
    for m in reading.maps:
        for modality, tokens in ((m.query, m.query_tokens), (m.key, m.key_tokens)):
            if modality in values and tokens is not None and tokens.shape[1] == values[modality].shape[-1]:
                scores.tokens.setdefault(modality, tokens)
    return scores


def mean(reading: Reading, m: AttentionMap, counted: str, side: Literal["query", "key"]) -> Tensor:
    """The mean of a map (rows, k, query, key) over its queries or keys, of all or of those that are not padding."""
    a, dim = m.stacked(), -2 if side == "query" else -1
    weight = real_positions(reading.subject, m, side, a.shape[dim])[:, None]  # (rows, 1, n)
    weight = torch.ones_like(weight) if counted == "all" else weight
    weight = weight.unsqueeze(-1) if dim == -2 else weight.unsqueeze(-2)
    return (a * weight).sum(dim) / weight.sum(dim)


def first_is_zero(answer: Answer, preset: str | None) -> Answer:
    """What the authors' BERT code does to the class token."""
    if preset != "authors-bert":
        return answer
    values = {key: torch.cat([torch.zeros_like(v[..., :1]), v[..., 1:]], -1) for key, v in answer.values.items()}
    return replace(answer, values=values)
