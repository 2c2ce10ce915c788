"""Hugging Face families from small configurations, in float64: builders by name, each with inputs and a target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

ROWS = 2
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
TEXT = {"vocab_size": 60, "num_labels": 3, "pad_token_id": 0}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True)
class Family:
    """How to build one, and what it eats."""

    build: Callable[[str], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    attends: bool = True
    kinds: tuple[str, ...] = ("sdpa", "eager")
    target: Any = 0


def text(start: int = 3) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(start, 60, (ROWS, 7), generator=g)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def pair() -> dict[str, Tensor]:
    decoder = torch.tensor([[2, 5, 6], [2, 7, 8]])
    return {**text(), "decoder_input_ids": decoder}


def image(channels: int = 3, size: int = 16) -> dict[str, Tensor]:
    return {
        "pixel_values": torch.randn(ROWS, channels, size, size, generator=torch.Generator().manual_seed(1)).double()
    }


def make(model: Any, config: Any, attention: str) -> nn.Module:
    config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        built = model(config).double().eval()
        with torch.no_grad():
            for p in built.parameters():
                if p.dim() > 1:
                    p.normal_(std=0.2)
                else:
                    p.add_(torch.randn_like(p) * 0.1)
    return built


def of(model: str, config: str, **options: Any) -> Callable[[str], nn.Module]:
    return lambda attention: make(getattr(hf, model), getattr(hf, config)(**options), attention)


POSITION = {"max_position_embeddings": 32}
LLAMA = {**SMALL, **TEXT, **ENDS, "num_key_value_heads": 1, "head_dim": 8}
VISION = {**SMALL, "image_size": 16, "patch_size": 4, "num_labels": 3}
WORDS = (0, 1)  # decoder position 0, token 1

FAMILIES: dict[str, Family] = {
    "bert": Family(of("BertForSequenceClassification", "BertConfig", **SMALL, **TEXT, **POSITION), text),
    "roberta": Family(
        of("RobertaForSequenceClassification", "RobertaConfig", **SMALL, **TEXT, **POSITION), text
    ),
    "distilbert": Family(
        of("DistilBertForSequenceClassification", "DistilBertConfig", dim=16, n_layers=2, n_heads=2, hidden_dim=24,
           **TEXT, **POSITION), text,
    ),
    "deberta_v2": Family(
        of("DebertaV2ForSequenceClassification", "DebertaV2Config", **SMALL, **TEXT, **POSITION,
           relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False), text, kinds=("eager",),
    ),
    "modernbert": Family(
        of("ModernBertForSequenceClassification", "ModernBertConfig", **SMALL, **{**TEXT, "pad_token_id": 0}, **ENDS,
           cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=2, local_attention=4), text,
    ),
    "electra": Family(
        of("ElectraForSequenceClassification", "ElectraConfig", **SMALL, **TEXT, **POSITION, embedding_size=12), text
    ),
    "albert": Family(
        of("AlbertForSequenceClassification", "AlbertConfig", **SMALL, **TEXT, **ENDS, **POSITION, embedding_size=12),
        text,
    ),
    "gpt2": Family(
        of("GPT2ForSequenceClassification", "GPT2Config", n_embd=16, n_layer=2, n_head=2, n_positions=32, **TEXT,
           **ENDS),
        text,
    ),
    "llama": Family(of("LlamaForSequenceClassification", "LlamaConfig", **LLAMA), text),
    "mistral": Family(of("MistralForSequenceClassification", "MistralConfig", **LLAMA), text),
    "qwen3": Family(of("Qwen3ForSequenceClassification", "Qwen3Config", **LLAMA), text),
    "t5": Family(
        of("T5ForConditionalGeneration", "T5Config", d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
           decoder_start_token_id=2, eos_token_id=1, vocab_size=60, pad_token_id=0), pair, target=WORDS
    ),
    "bart": Family(
        of("BartForConditionalGeneration", "BartConfig", d_model=16, encoder_layers=2, decoder_layers=2,
           encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, vocab_size=60,
           pad_token_id=0, **ENDS, decoder_start_token_id=2, forced_eos_token_id=None, **POSITION), pair, target=WORDS,
    ),
    "vit": Family(of("ViTForImageClassification", "ViTConfig", **VISION), image),
    "deit": Family(of("DeiTForImageClassification", "DeiTConfig", **VISION), image),
    "swin": Family(
        of("SwinForImageClassification", "SwinConfig", image_size=16, patch_size=2, embed_dim=8, depths=[2, 2],
           num_heads=[2, 2], window_size=4, num_labels=3), image,
    ),
    "beit": Family(of("BeitForImageClassification", "BeitConfig", **VISION, use_relative_position_bias=True), image),
    "convnext": Family(
        of("ConvNextForImageClassification", "ConvNextConfig", hidden_sizes=[8, 12], depths=[1, 1], num_stages=2,
           num_labels=3), image, attends=False, kinds=("eager",),
    ),
    "resnet": Family(
        of("ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1],
           layer_type="basic", num_labels=3), image, attends=False, kinds=("eager",),
    ),
    "mobilenet_v2": Family(
        of("MobileNetV2ForImageClassification", "MobileNetV2Config", image_size=32, depth_multiplier=0.25, min_depth=4,
           num_labels=3), lambda: image(size=32), attends=False, kinds=("eager",),
    ),
    "clip": Family(
        of("CLIPModel", "CLIPConfig", projection_dim=8,
           text_config={**SMALL, "vocab_size": 60, "pad_token_id": 0, **ENDS, **POSITION},
           vision_config={**SMALL, "image_size": 16, "patch_size": 4}),
        lambda: {**text(), **image()}, target=lambda out: out.logits_per_image.diagonal(),
    ),
    "lxmert": Family(
        of("LxmertForQuestionAnswering", "LxmertConfig", **{**SMALL, "num_hidden_layers": 2}, vocab_size=60, l_layers=1,
           x_layers=1, r_layers=1, num_qa_labels=3, visual_feat_dim=10, visual_pos_dim=4, **POSITION),
        lambda: {**text(),
                 "visual_feats": torch.randn(ROWS, 4, 10, generator=torch.Generator().manual_seed(2)).double(),
                 "visual_pos": torch.rand(ROWS, 4, 4, generator=torch.Generator().manual_seed(3)).double()},
        target=lambda out: out.question_answering_score[:, 0], kinds=("eager",),
    ),
}  # fmt: skip
