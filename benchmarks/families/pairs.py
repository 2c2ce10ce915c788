"""Encoders with decoders, of text and of sound."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.families.case import Case, draw, of_tests
from tests.support.hf import ENDS, FAMILIES, POSITION, ROWS, WORDS, of, pair

BART = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 60, "pad_token_id": 0,
    **ENDS, "decoder_start_token_id": 2, "forced_eos_token_id": None, **POSITION,
}  # fmt: skip
T5 = {
    "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 2,
    "eos_token_id": 1, "vocab_size": 60, "pad_token_id": 0,
}  # fmt: skip


def heard(width: int, frames: int) -> dict[str, Any]:
    return {"input_features": draw(ROWS, width, frames), "decoder_input_ids": torch.tensor([[2, 5, 6], [2, 7, 8]])}


def both(model: str, config: str, inputs: Any = pair, **options: Any) -> Case:
    facts = {key: options.pop(key) for key in ("kinds", "reports") if key in options}
    return Case(of(model, config, **options), inputs, "seq2seq", target=WORDS, **facts)


CASES: dict[str, Case] = {
    "t5": of_tests(FAMILIES["t5"], "seq2seq"),
    "bart": of_tests(FAMILIES["bart"], "seq2seq"),
    "t5, gated": both("T5ForConditionalGeneration", "T5Config", **T5, feed_forward_proj="gated-gelu"),
    "marian": both("MarianMTModel", "MarianConfig", **BART),
    "mbart": both("MBartForConditionalGeneration", "MBartConfig", **BART),
    "pegasus": both("PegasusForConditionalGeneration", "PegasusConfig", **BART),
    "m2m_100": both("M2M100ForConditionalGeneration", "M2M100Config", **BART),
    "switch_transformers": both(
        "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", **T5, num_experts=2,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, expert_capacity=64,
    ),
    "whisper": both(
        "WhisperForConditionalGeneration", "WhisperConfig", lambda: heard(8, 16), **BART, num_mel_bins=8,
        max_source_positions=8, max_target_positions=16, suppress_tokens=None, begin_suppress_tokens=None,
    ),
    "speech_to_text": both(
        "Speech2TextForConditionalGeneration", "Speech2TextConfig", lambda: {**heard(16, 8)}, **BART,
        input_feat_per_channel=8, num_conv_layers=1, conv_channels=16, conv_kernel_sizes=[3],
        max_source_positions=16, max_target_positions=16,
    ),
}  # fmt: skip
