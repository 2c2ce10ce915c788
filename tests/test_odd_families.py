"""Families whose code goes its own way: reversible layers, windows with -inf, empty slices, experts, own functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whence
from tests.hf import SMALL, make
from tests.models import close

WORDS: dict[str, Any] = {"vocab_size": 60, "num_labels": 3, "pad_token_id": 0}
REFORMER = {
    "attention_head_size": 8, "attn_layers": ["local", "lsh"], "feed_forward_size": 24, "axial_pos_embds": False,
    "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_buckets": 2, "num_hashes": 1, "hash_seed": 0,
}  # fmt: skip
FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "reformer": lambda: make(
        hf.ReformerForSequenceClassification,
        hf.ReformerConfig(**WORDS, **REFORMER, hidden_size=16, num_attention_heads=2, max_position_embeddings=32),
        "eager",
    ),
    "longformer": lambda: make(
        hf.LongformerForSequenceClassification,
        hf.LongformerConfig(**{**WORDS, "pad_token_id": 1}, **SMALL, attention_window=4, max_position_embeddings=40),
        "eager",
    ),
    "phi3": lambda: make(
        hf.Phi3ForSequenceClassification,
        hf.Phi3Config(**WORDS, **SMALL, max_position_embeddings=32, bos_token_id=1, eos_token_id=2),
        "eager",
    ),
    "bloom": lambda: make(
        hf.BloomForSequenceClassification, hf.BloomConfig(**WORDS, hidden_size=16, n_layer=2, n_head=2), "eager"
    ),
}
built = functools.cache(lambda name: FAMILIES[name]())


def words() -> dict[str, Tensor]:
    ids = torch.randint(3, 60, (2, 8), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize("method", ["input_x_gradient", "deeplift", "lrp", "attnlrp"])
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_alone_equal_rows_in_a_batch_and_nothing_is_lost(name: str, method: str) -> None:
    model, given = built(name), words()
    a = whence.explain(model, given, method=method, target=0)
    assert bool(a.values.isfinite().all())
    assert float(a.values.abs().max()) > 0
    assert a.receipt["unseen"] == [] or method == "input_x_gradient"  # whose derivative is autograd's anyway
    assert a.gap is None or float(a.gap.max()) < 2e-6
    for row in range(2):
        alone = whence.explain(model, {key: t[row : row + 1] for key, t in given.items()}, method=method, target=0)
        close(alone.values, a.values[row : row + 1], 1e-9)
