"""Methods that read attention maps and their gradients."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from whence.engine.trackers.modality import Modality
from whence.errors import ParameterError
from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.attention.attention_map import AttentionMap
from whence.methods.attention.combine import (
    Counted,
    Preset,
    add,
    at_first_tokens,
    first_is_zero,
    mean,
    one_layer,
    through,
    with_residual,
    without_residual,
)
from whence.methods.attention.cross_attention import two_stream
from whence.methods.attention.layout import Scores, on_inputs
from whence.methods.attention.reading import READS_ATTENTION, read
from whence.methods.attention.readout import real_positions
from whence.subject import Subject


@method(
    "generic_attention",
    paper="Chefer, Gur & Wolf 2021, arXiv:2103.15679",
    aliases=("gae",),
    order=90,
    **READS_ATTENTION,
)
def generic_attention(
    subject: Subject, *, identity: bool = True, readout: Any = "auto", preset: Preset = None
) -> Answer:
    """R ← R + M·R over layers, M = E_h((g ⊙ a)⁺), at the read-out row; `identity=False` multiplies M alone.

    Encoder–decoder models and models of two inputs take the paper's rules for cross-attention. The authors' code gives
    scores to tokens that a mask hides, too.
    """
    reading = read(subject, _positive, gradient=True)
    if any(m.crosses for m in reading.maps):
        if not identity:
            raise ParameterError("identity=False is defined for models without cross-attention.\n  Leave it out here.")
        scores = at_first_tokens(reading, two_stream(reading, readout))
        return on_inputs(reading, scores, padding=preset is not None)
    step = with_residual(False) if identity else without_residual
    return through(reading, step, 0, readout, preset)


@method(
    "attention_gradients",
    paper="Barkan et al. 2021, arXiv:2204.11073",
    aliases=("attgrads",),
    order=90,
    **READS_ATTENTION,
)
def attention_gradients(
    subject: Subject, *, combine: Literal["product", "sum"] = "product", readout: Any = "auto"
) -> Answer:
    """AttGrads: E_h(g ⊙ a) without a positive part, multiplied or summed over layers, at the read-out row."""
    reading = read(subject, _product, gradient=True)
    if combine == "product":
        return through(reading, without_residual, 0, readout)
    return one_layer(reading, "sum", readout)


@method("attention_x_gradient", paper="Serrano & Smith 2019, arXiv:1906.03731", order=90, **READS_ATTENTION)
def attention_x_gradient(subject: Subject, *, layer: Any = -1, readout: Any = "auto") -> Answer:
    """One layer's attention times its gradient, E_h(a ⊙ ∂f/∂a), at the read-out row.

    `output="probability"` ranks as the paper does, by the gradient of the decision's probability.
    """
    return one_layer(read(subject, _product, gradient=True), layer, readout)


@method("attention_gradient", paper="Serrano & Smith 2019, arXiv:1906.03731", order=90, **READS_ATTENTION)
def attention_gradient(subject: Subject, *, layer: Any = -1, readout: Any = "auto") -> Answer:
    """One layer's gradient by its attention, E_h(∂f/∂a), at the read-out row."""
    return one_layer(read(subject, lambda m, a, g: g.mean(1), gradient=True), layer, readout)  # type: ignore[union-attr]


@method("grad_sam", paper="Barkan et al. 2021, arXiv:2204.11073", order=90, **READS_ATTENTION)
def grad_sam(subject: Subject, *, axis: Literal["query", "key"] = "query", rows: Counted = "real") -> Answer:
    """The mean over layers, heads and query rows of a ⊙ ReLU(g); `axis` is the one that is averaged away.

    `rows="all"` counts padding among them.
    """
    reading = read(subject, _where_raised, gradient=True)
    scores = Scores()
    count: dict[Modality, int] = {}
    for m in reading.maps:
        modality, tokens = (m.key, m.key_tokens) if axis == "query" else (m.query, m.query_tokens)
        add(reading, scores, modality, mean(reading, m, rows, axis), tokens)
        count[modality] = count.get(modality, 0) + 1
    scores.values = {modality: value / count[modality] for modality, value in scores.values.items()}
    return on_inputs(reading, scores)


@method(
    "attention_gradcam",
    paper="Selvaraju et al. 2017, arXiv:1610.02391",
    order=90,
    **READS_ATTENTION,
)
def attention_gradcam(
    subject: Subject, *, rows: Counted = "real", readout: Any = "auto", preset: Preset = None
) -> Answer:
    """The last layer's maps, each head weighted by its mean gradient, (E_h w_h·a_h)⁺, at the read-out row.

    The authors' BERT code stretches the whole map to [0, 1] and gives the first token 0 (`preset="authors-bert"`), and
    their ViT code looks at the class token's row of patches alone and stretches that (`preset="authors-vit"`).
    """
    everything = bool(preset) or rows == "all"
    reading = read(subject, lambda m, a, g: _gradcam(subject, everything, preset, m, a, g), gradient=True)
    return first_is_zero(one_layer(reading, -1, readout, preset), preset)


# ---- what is made of a map ----


def _positive(m: AttentionMap, a: Tensor, g: Tensor | None) -> Tensor:
    assert g is not None
    return (g * a).clamp_(min=0).mean(1)


def _where_raised(m: AttentionMap, a: Tensor, g: Tensor | None) -> Tensor:
    assert g is not None
    return g.clamp(min=0).mul_(a).mean(1)


def _product(m: AttentionMap, a: Tensor, g: Tensor | None) -> Tensor:
    assert g is not None
    return (g * a).mean(1)


def _gradcam(
    subject: Subject, everything: bool, preset: Preset, m: AttentionMap, a: Tensor, g: Tensor | None
) -> Tensor:
    assert g is not None
    query, key = real_positions(subject, m, "query", a.shape[2]), real_positions(subject, m, "key", a.shape[3])
    if everything:
        query, key = torch.ones_like(query), torch.ones_like(key)
    pairs = (query[:, :, None] * key[:, None])[:, None]  # (rows, 1, q, k)
    if preset == "authors-vit":
        pairs = torch.zeros_like(pairs)
        pairs[:, :, 0, 1:] = 1
    weight = (g * pairs).sum((2, 3), keepdim=True) / pairs.sum((2, 3), keepdim=True)
    cam = (weight * a).mean(1).clamp(min=0)
    if preset is None:
        return cam
    seen = cam if preset == "authors-bert" else cam[:, :1, 1:]
    low, high = seen.amin((1, 2), keepdim=True), seen.amax((1, 2), keepdim=True)
    return (cam - low) / (high - low)
