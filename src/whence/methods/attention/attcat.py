"""Class activation tokens: hidden states times their gradients, weighted by attention or not."""

from __future__ import annotations

import torch

from whence.errors import InputError
from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.attention.combine import Counted, Preset, add, mean
from whence.methods.attention.layout import Scores, on_inputs
from whence.methods.attention.reading import READS_ATTENTION, Reading, read
from whence.methods.attention.windows import moved
from whence.subject import Subject


@method("cat", paper="Qiang et al. 2022, AttCAT", order=100, **READS_ATTENTION)
def cat(subject: Subject, *, preset: Preset = None) -> Answer:
    """Class activation tokens: Σ over layers of the hidden states that enter them times their gradients, Σ_h ∇h ⊙ h.

    The authors' code gives scores to tokens that a mask hides, too.
    """
    reading = read(subject, lambda m, a, g: a.new_zeros(len(a)), gradient=True, hidden=True)
    return _activations(reading, None, preset)


@method("attcat", paper="Qiang et al. 2022, AttCAT", order=100, **READS_ATTENTION)
def attcat(subject: Subject, *, rows: Counted = "real", preset: Preset = None) -> Answer:
    """Class activation tokens of each layer, weighted by the attention that each token receives there on average.

    `rows="all"` (and the authors' preset) counts padding among the tokens that give attention.
    """
    reading = read(subject, lambda m, a, g: a.mean(1), gradient=True, hidden=True)
    return _activations(reading, "all" if preset else rows, preset)


def _activations(reading: Reading, rows: str | None, preset: Preset) -> Answer:
    """Σ over layers of h·∇h, weighted by the attention received if rows are given."""
    scores = Scores()
    seen = set()
    for m in reading.maps:
        activations = m.activations or reading.activations.get((m.layer, m.run), [])
        if m.crosses or (m.query, m.depth) in seen or not activations or activations[0].dim() != 2:
            continue
        seen.add((m.query, m.depth))
        values = torch.stack(activations, 1)  # (rows, k, n)
        if rows is not None:
            received, n = mean(reading, m, rows, "query"), values.shape[-1]
            values = values * moved(received, m.key_tokens, m.query_tokens, n, reading.tokens, reading.subject)
        add(reading, scores, m.query, values, m.query_tokens)
    if not scores.values:
        raise InputError(
            f"{reading.subject.method} reads the hidden states that enter attention layers, but this model has none.\n"
            "  Choose a method that reads maps, such as generic_attention."
        )
    return on_inputs(reading, scores, padding=preset is not None)
