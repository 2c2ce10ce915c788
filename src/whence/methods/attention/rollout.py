"""Methods that read attention maps alone: one layer's, their product over layers, and their maximum flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.engine.trackers.modality import Modality
from whence.errors import InputError
from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.attention.attention_map import AttentionMap
from whence.methods.attention.combine import (
    Preset,
    StartLayer,
    at_first_tokens,
    first_is_zero,
    one_layer,
    through,
    with_residual,
)
from whence.methods.attention.layout import on_inputs
from whence.methods.attention.max_flow import max_flows
from whence.methods.attention.reading import READS_ATTENTION, Reading, read
from whence.methods.attention.readout import readout as readout_of
from whence.subject import Subject


def _heads(m: AttentionMap, a: Tensor, g: Tensor | None) -> Tensor:
    return a.mean(1)


@method(
    "raw_attention",
    paper="Abnar & Zuidema 2020, arXiv:2005.00928",
    aliases=("attention", "attention_weights"),
    order=80,
    **READS_ATTENTION,
)
def raw_attention(subject: Subject, *, layer: Any = -1, readout: Any = "auto", preset: Preset = None) -> Answer:
    """The attention of one layer, mean over its heads, at the read-out row.

    `layer="mean"` averages all layers. `readout` is the position whose row is read: "auto" (where the score depends on
    the last layer), "first", "last", "mean", or an index. The authors' BERT code gives the first token 0.
    """
    reading = read(subject, _heads, gradient=False, readout=readout)
    return first_is_zero(one_layer(reading, layer, readout, preset), preset)


@method(
    "rollout",
    paper="Abnar & Zuidema 2020, arXiv:2005.00928",
    aliases=("attention_rollout",),
    order=80,
    **READS_ATTENTION,
)
def rollout(
    subject: Subject,
    *,
    normalize: bool = True,
    start_layer: StartLayer = 0,
    readout: Any = "auto",
    preset: Preset = None,
) -> Answer:
    """The product over layers of E_h(a) + I, each row normalised, at the read-out row.

    The authors' BERT code gives the first token 0: `preset="authors-bert"`.
    """
    reading = read(subject, _heads, gradient=False, readout=readout)
    return first_is_zero(through(reading, with_residual(normalize), start_layer, readout, preset), preset)


@method("attention_flow", paper="Abnar & Zuidema 2020, arXiv:2005.00928", order=80, **READS_ATTENTION)
def attention_flow(subject: Subject, *, readout: Any = "auto") -> Answer:
    """The maximum flow from the read-out row to each token through layers of capacity (E_h(a) + I) / 2."""
    reading = read(subject, _heads, gradient=False, readout=readout)
    rows = readout_of(reading, readout)
    sizes = {n for m in reading.maps for n in m.reduced[0].shape[-2:] if m.query in rows}
    if len(sizes) > 1 or any(m.crosses and m.query in rows for m in reading.maps):
        raise InputError(
            "attention_flow is defined for one sequence with as many tokens in every layer.\n  Choose rollout instead."
        )
    return on_inputs(reading, at_first_tokens(reading, _flows(reading, rows)))


def _flows(reading: Reading, readouts: dict[Modality, Tensor]) -> dict[Modality, Tensor]:
    flows = {}
    for modality, row in readouts.items():
        maps = [m.stacked()[:, 0].double() for m in reading.maps if m.query == m.key == modality]
        layers = [(a + torch.eye(a.shape[-1], device=a.device)) / 2 for a in maps]
        by_row = [[max_flows([a[i] for a in layers], one.double()) for one in each] for i, each in enumerate(row)]
        flows[modality] = torch.stack([torch.stack(each) for each in by_row]).to(row)
    return flows
