"""Rows whose attention is read, or erased: answers to the metrics of attention erasure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence.adapters.tensors import adapt
from whence.engine.captures import Site
from whence.engine.custom_functions import suspended
from whence.engine.scope import scope
from whence.errors import NoAttention, ParameterError
from whence.evaluation.answers.logits import ROWS, TOKENS, checked
from whence.evaluation.examples import together, unbroken
from whence.evaluation.requests import Attended, Erased, View
from whence.subject.logits import find_logits

_WRITTEN_OUT = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})


def of_erasures(asked: Sequence[tuple[View, Erased]], batch_size: int | None) -> list[Tensor]:
    """Of rows whose attention to some positions is erased; rows of one length go together."""
    return _in_groups(asked, batch_size, _erased)


def attention(asked: Sequence[tuple[View, Attended]], batch_size: int | None) -> list[Tensor]:
    """What each position is given of attention."""
    return _in_groups(asked, batch_size, _attended)


def _in_groups(
    asked: Sequence[tuple[View, Any]], batch_size: int | None, answer: Callable[..., Tensor]
) -> list[Tensor]:
    found: list[Any] = [None] * len(asked)
    groups: dict[Any, list[int]] = {}
    for number, (view, want) in enumerate(asked):
        unbroken(view.example)
        groups.setdefault((view.example.x.shape, str(want.layers), str(want.heads)), []).append(number)
    for members in groups.values():
        size = batch_size or max(1, min(ROWS, TOKENS // max(1, asked[members[0]][0].example.x.shape[1])))
        for start in range(0, len(members), size):
            some = members[start : start + size]
            for number, line in zip(some, answer([asked[n] for n in some]), strict=True):
                found[number] = line
    return found


def _erased(asked: Sequence[tuple[View, Erased]]) -> Tensor:
    gone = torch.stack([erased.which for _, erased in asked])
    heads = asked[0][1].heads
    logits, _ = _attending(asked, lambda weights: without(weights, gone, heads))
    return logits


def _attended(asked: Sequence[tuple[View, Attended]]) -> Tensor:
    units = len(asked[0][0].scores)
    heads = asked[0][1].heads
    found: list[Tensor] = []

    def read(weights: Tensor) -> None:
        chosen = weights if heads == "all" or weights.dim() != 4 else weights[:, list(heads)]
        pooled = weights.dim() == 3 and weights.shape[-1] == 1
        keys = chosen[..., 0] if pooled else chosen.flatten(1, -2).mean(1)
        _check_keys(keys, units)
        found.append(keys.detach().cpu().double())

    _attending(asked, read)
    return torch.stack(found).mean(0)


def _attending(asked: Sequence[tuple[View, Any]], work: Callable[[Tensor], Tensor | None]) -> tuple[Tensor, list[Site]]:
    """The logits of one pass in which attention weights of the chosen calls are read, or replaced."""
    example, layers = asked[0][0].example, asked[0][1].layers
    subject = adapt(example.model, together([view.example for view, _ in asked]), method="attention erasure")
    met: list[Site] = []
    held: dict[str, Tensor] = {}

    def edit(site: Site, weights: Tensor) -> Tensor | None:
        if site.kind != "attention":
            return None
        met.append(site)
        return work(weights) if layers == "all" or len(met) - 1 in layers else None

    def read(output: Any) -> Tensor:
        held["logits"] = checked(find_logits(output), len(asked))
        return find_logits(output).flatten(1).sum(1)

    with suspended(), scope(example.root):
        replace(subject, target=read).run(gradient=False, marks=True, expand=_WRITTEN_OUT, edit=edit)
    if not met:
        raise NoAttention("Attention erasure needs attention, but this model has none.\n  Leave these metrics out.")
    if layers != "all" and max(layers, default=-1) >= len(met):
        raise ParameterError(f"layers={layers!r}: the model attends {len(met)} times.\n  Count from 0.")
    return held["logits"], met


def without(weights: Tensor, gone: Tensor, heads: Any = "all") -> Tensor:
    """Attention weights with some keys at 0 and the rest renormalised; where nothing is left, 0 stays.

    Weights are (rows, heads, query, key), or (rows, n, 1) where one weight per position pools.
    """
    pooled = weights.dim() == 3 and weights.shape[-1] == 1
    if pooled:
        return without(weights.transpose(1, 2), gone).transpose(1, 2)
    _check_keys(weights, gone.shape[1])
    shape = [len(gone), *[1] * (weights.dim() - 2), gone.shape[1]]
    here = gone.view(shape).to(weights.device)
    if heads != "all" and weights.dim() == 4:
        chosen = torch.zeros(weights.shape[1], dtype=torch.bool, device=weights.device)
        chosen[list(heads)] = True
        here = here & chosen.view(1, -1, 1, 1)
    left = weights.masked_fill(here, 0.0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total.clamp(min=torch.finfo(left.dtype).tiny), left)


def _check_keys(weights: Tensor, units: int) -> None:
    if weights.shape[-1] != units:
        raise NoAttention(
            f"An attention map is {tuple(weights.shape)}, but the rows have {units} units: its keys are others.\n"
            "  Erasure is for attention over the units themselves; name such calls with layers=."
        )
