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
from tests.support.hf import SMALL, make
from tests.support.models import close
from tests.support.slow import mostly_slow

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
    "reformer, two hashes": lambda: make(
        hf.ReformerForSequenceClassification,
        hf.ReformerConfig(
            **WORDS,
            **{**REFORMER, "num_hashes": 2, "num_buckets": 4},
            hidden_size=16,
            num_attention_heads=2,
            max_position_embeddings=32,
        ),
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
EXPERTS: dict[str, Any] = {
    **WORDS, **SMALL, "num_key_value_heads": 1, "num_experts_per_tok": 2, "max_position_embeddings": 32,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MIXTURES: dict[str, Callable[[], nn.Module]] = {  # the grouped product has no float64
    "mixtral": lambda: make(
        hf.MixtralForSequenceClassification, hf.MixtralConfig(**EXPERTS, num_local_experts=4), "eager"
    ).float(),
    "qwen2_moe": lambda: make(
        hf.Qwen2MoeForSequenceClassification,
        hf.Qwen2MoeConfig(**EXPERTS, num_experts=4, moe_intermediate_size=12, shared_expert_intermediate_size=12),
        "eager",
    ).float(),
}
IN_FLOAT32 = ("longformer", "phi3")  # the softmax of one and the norms of the other, in any model
built = functools.cache(lambda name: {**FAMILIES, **MIXTURES}[name]())


def words() -> dict[str, Tensor]:
    ids = torch.randint(3, 60, (2, 8), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.parametrize(
    "method", mostly_slow(["input_x_gradient", "deeplift", "lrp", "attnlrp"], ["input_x_gradient", "lrp"])
)
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_alone_equal_rows_in_a_batch_and_nothing_is_lost(name: str, method: str) -> None:
    model, given = built(name), words()
    if "two" in name:  # no mask: its autograd function is then given one tensor alone
        given = {"input_ids": given["input_ids"].repeat(1, 2)}
    a = whence.explain(model, given, method=method, target=0)
    assert bool(a.values.isfinite().all())
    assert float(a.values.abs().max()) > 0
    assert a.receipt["unseen"] == [] or method == "input_x_gradient"  # whose derivative is autograd's anyway
    assert a.gap is None or float(a.gap.max()) < 2e-6
    for row in range(2):
        alone = whence.explain(model, {key: t[row : row + 1] for key, t in given.items()}, method=method, target=0)
        close(alone.values, a.values[row : row + 1], 2e-6 if name in IN_FLOAT32 else 1e-9)


@pytest.mark.parametrize("method", ["gradient", "deeplift", "lrp", "attnlrp"])
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_of_experts(name: str, method: str) -> None:
    """The reference goes to other experts than the input, so the model sorts its tokens in another order."""
    model, given = built(name), words()
    a = whence.explain(model, given, method=method, target=0)
    assert a.receipt["unruled"] == []
    assert a.gap is None or float(a.gap.max()) < 1e-5
    for row in range(2):
        alone = whence.explain(model, {key: t[row : row + 1] for key, t in given.items()}, method=method, target=0)
        close(alone.values, a.values[row : row + 1], 1e-5)


@pytest.mark.parametrize("rule", ["rescale", "reveal_cancel"])
def test_experts_chosen_token_by_token_are_explained_as_grouped_ones(rule: str) -> None:
    grouped, given = built("mixtral"), words()
    found = whence.explain(grouped, given, method="deeplift", target=0, rule=rule)
    assert float(found.gap.max()) < 1e-5  # type: ignore[union-attr]
    grouped.set_experts_implementation("batched_mm")
    try:
        batched = whence.explain(grouped, given, method="deeplift", target=0, rule=rule)
        grouped.set_experts_implementation("eager")
        with pytest.raises(whence.DivergedError):
            whence.explain(grouped, given, method="deeplift", target=0, rule=rule)
    finally:
        grouped.set_experts_implementation("grouped_mm")
    if rule == "rescale":
        close(batched.values, found.values, 1e-4)
    assert float(batched.gap.max()) < 1e-5  # type: ignore[union-attr]


@pytest.mark.parametrize("method", ["rollout", "generic_attention", "attcat"])
def test_attention_of_reversible_layers_is_refused(method: str) -> None:
    """Without a mask, their function has one tensor and a cache; its own derivative refuses in eval mode."""
    with pytest.raises(whence.WhenceError):
        whence.explain(built("reformer"), words()["input_ids"], method=method, target=0)


@pytest.mark.parametrize("method", ["rollout", "generic_attention", "transformer_attribution", "attcat"])
def test_tokens_beside_their_neighbours_keep_their_places(method: str) -> None:
    """MobileBERT gives its first layer each token's embedding with those on its left and right."""
    config = hf.MobileBertConfig(
        **WORDS, **SMALL, embedding_size=8, intra_bottleneck_size=8, true_hidden_size=8, num_feedforward_networks=2,
        max_position_embeddings=32,
    )  # fmt: skip
    model = make(hf.MobileBertForSequenceClassification, config, "eager")
    assert whence.explain(model, words(), method=method, target=0).values.shape == (2, 8)


@pytest.mark.parametrize("name", ["layoutlm", "whisper", "qwen2_vl"])
def test_boxes_frames_and_packed_patches_keep_their_layout(name: str) -> None:
    """Several ids per token, frames that a convolution makes, all rows' patches one under another."""
    from benchmarks.families import FAMILIES as CASES
    from benchmarks.families import check

    cells: dict[str, Any] = {}
    check.examine(CASES[name], lambda method, cell: cells.update({method: cell}), names=("rollout",))
    assert cells["rollout"].verdict == "ok", cells["rollout"]
