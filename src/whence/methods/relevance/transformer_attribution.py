"""Methods on the relevance of attention: Transformer Attribution and partial LRP."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor

from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.attention.combine import StartLayer, one_layer, through, with_residual
from whence.methods.attention.reading import READS_ATTENTION
from whence.methods.relevance.reading import read_relevance
from whence.subject import Subject

Weight = Literal["gradient", "attention"] | None
Blocks = Literal["all", "last", "first"]


@method("partial_lrp", paper="Voita et al. 2019, arXiv:1905.09418", order=110, **READS_ATTENTION)
def partial_lrp(
    subject: Subject, *, composite: Any = "chefer", positive: bool = False, layer: Any = -1, readout: Any = "auto"
) -> Answer:
    """The relevance of the last layer's attention, E_h(R), at the read-out row.

    `composite` is LRP's ("orig" for the authors' baseline); `positive` takes each head's positive part.
    """

    def reduce(a: Tensor, g: Tensor | None, r: Tensor) -> Tensor:
        return (r.clamp(min=0) if positive else r).mean(1)

    reading = read_relevance(subject, reduce, composite, gradient=False, last=layer == -1)
    return one_layer(reading, layer, readout)


@method("transformer_attribution", paper="Chefer, Gur & Wolf 2021, arXiv:2012.09838", order=110, **READS_ATTENTION)
def transformer_attribution(
    subject: Subject, *, weight: Weight = "gradient", blocks: Blocks = "all", normalize: bool = False,
    start_layer: StartLayer = 0, composite: Any = "chefer", readout: Any = "auto",
) -> Answer:  # fmt: skip
    """The product over layers of I + E_h((g ⊙ R)⁺), g an attention's gradient and R its relevance, at the read-out row.

    `weight="attention"` puts the map itself in its gradient's place and `None` nothing; `blocks` takes the last or the
    first layer alone: the paper's ablations. `normalize` divides rows by their sum, as the authors do for BERT, and
    `start_layer` leaves the first layers out.
    """

    def reduce(a: Tensor, g: Tensor | None, r: Tensor) -> Tensor:
        factor = {"gradient": g, "attention": a, None: None}[weight]
        return (r if factor is None else factor * r).clamp(min=0).mean(1)

    reading = read_relevance(subject, reduce, composite, gradient=weight == "gradient", last=blocks == "last")
    if blocks != "all":
        return one_layer(reading, -1 if blocks == "last" else 0, readout)
    return through(reading, with_residual(normalize), start_layer, readout)
