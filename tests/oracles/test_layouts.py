"""Attention in other layouts, slowly: frames of sound, patches that overlap, blocks, tokens first, learned queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whence
from tests.support.hf import ENDS, POSITION, SMALL, TEXT, make, of
from tests.support.models import close
from tests.support.slow_attention import mean_over_heads, normalised, product

pytestmark = pytest.mark.filterwarnings("ignore:.*every value of rows")
ORACLE_OF: list[str] = []  # those of test_attention, on other models
G = torch.Generator().manual_seed(0)
SOUND = {
    **SMALL, "num_labels": 3, "conv_dim": [8, 8], "conv_stride": [4, 2], "conv_kernel": [6, 3],
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "vocab_size": 20, "classifier_proj_size": 12,
    "num_feat_extract_layers": 2, "mask_time_prob": 0.0,
}  # fmt: skip
SPARSE = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 64}


@dataclass(frozen=True)
class Layout:
    build: Callable[[str], nn.Module]
    inputs: dict[str, Tensor]
    lay: Callable[[Tensor], Tensor]  # from a line of the model's own positions to the answer's
    target: Any = 0
    rtol: float = 1e-6


def ids(n: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 60, (2, n), generator=G)}


def values(*shape: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(*shape, generator=G).double()}


CASES = {
    "xlnet": Layout(
        of("XLNetForSequenceClassification", "XLNetConfig", **TEXT, d_model=16, n_layer=2, n_head=2, d_inner=24),
        ids(7), lambda line: line,
    ),
    "wav2vec2": Layout(
        of("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", **SOUND), values(2, 120), lambda line: line
    ),
    "wav2vec2, a letter": Layout(
        of("Wav2Vec2ForCTC", "Wav2Vec2Config", **SOUND), values(2, 120), lambda line: line, target=(3, 7)
    ),
    "ast": Layout(
        of("ASTForAudioClassification", "ASTConfig", **SMALL, num_labels=3, patch_size=4, frequency_stride=2,
           time_stride=3, max_length=16, num_mel_bins=8),
        values(2, 16, 8),
        lambda line: line[:, 2:].unflatten(1, (3, 5)).mT,  # the model has frequencies first, the input has time first
    ),
    "convbert": Layout(
        of("ConvBertForSequenceClassification", "ConvBertConfig", **SMALL, **TEXT, **POSITION, embedding_size=16,
           head_ratio=1, conv_kernel_size=3),
        ids(7), lambda line: line,
    ),
}  # fmt: skip


BLOCKS = Layout(
    of("BigBirdForSequenceClassification", "BigBirdConfig", **SMALL, **{**TEXT, "sep_token_id": 5}, **SPARSE),
    ids(64),
    lambda line: line,
)


def test_blocks_make_whole_maps() -> None:
    """BigBird shows a block that it looks at twice only once; all the others are as it shows them."""
    case = BLOCKS
    maps, _, shares = maps_and_state(case)
    a = whence.explain(case.build("eager"), case.inputs, method="raw_attention", target=0)
    close(a.values.sum(1), torch.ones(2).double(), 1e-9)
    line = torch.stack([shares[i] @ mean_over_heads(maps[-1][i]) for i in range(2)])
    close(a.values[:, 4:], line[:, 4:], 1e-9)
    for row in (5, 30, 62):
        a = whence.explain(case.build("eager"), case.inputs, method="raw_attention", target=0, readout=row)
        close(a.values.sum(1), torch.ones(2).double(), 1e-9)
        close(a.values[:, 4:], maps[-1].mean(1)[:, row, 4:], 1e-9)


def maps_and_state(case: Layout) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Maps, their gradients, and how much the score reads of each position of the last state."""
    model = case.build("eager")
    out = model(**case.inputs, output_attentions=True, output_hidden_states=True)
    pick = (slice(None), *case.target) if isinstance(case.target, tuple) else (slice(None), case.target)
    found = torch.autograd.grad(out.logits[pick].sum(), [*out.attentions, out.hidden_states[-1]], allow_unused=True)
    grads = [g for g in found[:-1] if g is not None]  # some models show copies
    if found[-1] is None:  # XLNet reads its last token
        size = torch.eye(out.attentions[0].shape[-1]).double()[-1:].expand(2, -1)
    else:
        size = found[-1].norm(dim=-1)
    return [m.detach() for m in out.attentions], grads, size / size.sum(1, keepdim=True)


def rolled(layers: list[Tensor], shares: Tensor) -> Tensor:
    return torch.stack([shares[i] @ product([layer[i] for layer in layers]) for i in range(2)])


@pytest.mark.parametrize("name", CASES)
def test_against_the_models_own_maps(name: str) -> None:
    case = CASES[name]
    maps, grads, shares = maps_and_state(case)
    eye = torch.eye(maps[0].shape[-1]).double()
    mean = [torch.stack([mean_over_heads(a) for a in m]) for m in maps]
    positive = [
        torch.stack([mean_over_heads(a) for a in (m * g).clamp(min=0)]) for m, g in zip(maps, grads, strict=bool(grads))
    ]
    expected = {
        "raw_attention": torch.stack([shares[i] @ mean[-1][i] for i in range(2)]),
        "rollout": rolled([(m + eye) / (m + eye).sum(-1, keepdim=True) for m in mean], shares),
        "generic_attention": rolled([m + eye for m in positive], shares) if grads else None,
    }
    for method, line in expected.items():
        if line is None:
            continue
        a = whence.explain(case.build("eager"), case.inputs, method=method, target=case.target)
        close(a.values, case.lay(line), case.rtol)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, "big_bird"])
def test_every_method_gives_an_answer(name: str) -> None:
    case = CASES.get(name, BLOCKS)
    shape = whence.explain(case.build("eager"), case.inputs, method="rollout", target=case.target).values.shape
    for method in ("grad_sam", "attcat", "cat", "transformer_attribution", "attention_gradients", "partial_lrp"):
        a = whence.explain(case.build("eager"), case.inputs, method=method, target=case.target)
        assert a.values.shape == shape
        assert bool(torch.isfinite(a.values).all())
        assert bool(a.values.abs().sum() > 0)


# ---- learned queries ----


def detr() -> nn.Module:
    body = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = hf.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=body, d_model=16,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24,
        decoder_ffn_dim=24, num_queries=5, num_labels=3, **ENDS,
    )  # fmt: skip
    return make(hf.DetrForObjectDetection, config, "eager")


def test_queries_that_look_at_an_image() -> None:
    """The paper's rules for an encoder and a decoder; the first self-attention is of constants, and acts on nothing."""
    model, x = detr(), {"pixel_values": torch.randn(1, 3, 32, 32, generator=G).double()}
    out = model(**x, output_attentions=True)
    flat = [*out.encoder_attentions, *out.decoder_attentions[1:], *out.cross_attentions]
    grads = torch.autograd.grad(out.logits[0, 1, 2], flat, allow_unused=True)
    m = [mean_over_heads((a[0] * g[0]).clamp(min=0)).detach() for a, g in zip(flat, grads, strict=True)]
    encoder, decoder, cross = m[:2], m[2:3], m[3:]
    ee = product([layer + torch.eye(len(layer)).double() for layer in encoder])
    dd = torch.eye(5).double()
    de = normalised(dd).T @ cross[0] @ normalised(ee)
    dd, de = dd + decoder[0] @ dd, de + decoder[0] @ de
    de = de + normalised(dd).T @ cross[1] @ normalised(ee)
    a = whence.explain(model, x, method="generic_attention", target=(1, 2))
    close(a.values.flatten(1), de[1:2], 1e-6)
    assert a.values.shape == (1, 4, 4)
    assert 0 < a.receipt["other_positions"][0] < 1


# ---- what is refused, and the way out ----


def test_pooled_tokens_are_refused_and_one_layer_is_read() -> None:
    build = of(
        "FunnelForSequenceClassification", "FunnelConfig", **TEXT, block_sizes=[1, 1], num_decoder_layers=1, d_model=16,
        n_head=2, d_head=8, d_inner=24,
    )  # fmt: skip
    inputs = ids(7)
    with pytest.raises(whence.InputError, match="over 7 positions in one place and over 4 in another"):
        whence.explain(build("eager"), inputs, method="rollout", target=0)
    a = whence.explain(build("eager"), inputs, method="raw_attention", target=0)
    close(a.values.sum(1), torch.ones(2).double(), 1e-9)


def test_sliding_windows_are_refused_and_a_method_without_attention_works() -> None:
    build = of(
        "LongformerForSequenceClassification", "LongformerConfig", **SMALL, **TEXT, attention_window=4,
        max_position_embeddings=40,
    )  # fmt: skip
    inputs = ids(16)
    with pytest.raises(whence.InputError, match="which tokens they are about|how they make one map"):
        whence.explain(build("eager"), inputs, method="rollout", target=0)
    assert whence.explain(build("eager"), inputs, method="input_x_gradient", target=0).values.shape == (2, 16)


def test_attention_out_of_sight_is_not_said_to_be_none() -> None:
    build = of(
        "ReformerForSequenceClassification", "ReformerConfig", hidden_size=16, num_attention_heads=2, **TEXT,
        attn_layers=["local", "lsh"], num_buckets=4, num_hashes=2, lsh_attn_chunk_length=4, local_attn_chunk_length=4,
        axial_pos_shape=[4, 4], axial_pos_embds_dim=[8, 8], attention_head_size=8, feed_forward_size=24,
        is_decoder=False, hash_seed=1, num_chunks_after=0, max_position_embeddings=16,
    )  # fmt: skip
    inputs = ids(16)
    with pytest.raises(whence.WhenceError, match="none that can be seen|but not which of its positions") as error:
        whence.explain(build("eager"), inputs, method="rollout", target=0)
    assert "has none:" not in str(error.value)
    a = whence.explain(build("eager"), inputs, method="occlusion", target=0)
    assert bool(a.values.abs().sum() > 0)
