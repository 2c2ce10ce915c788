"""Causal language models, with attention, with experts and without either."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.families.case import Case, of_tests
from tests.support.hf import ENDS, FAMILIES, POSITION, SMALL, TEXT, of, text

LAST = (4, 7)  # the last position that is real in every row, token 7
BASE = {**SMALL, **TEXT, **ENDS, **POSITION}
GROUPED = {**BASE, "num_key_value_heads": 1, "head_dim": 8}
GPT = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "n_inner": 24, **TEXT, **ENDS}
EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 12,
    "dtype": torch.float32,
}  # of the grouped products


def speaker(name: str, config: str | None = None, base: dict[str, Any] = BASE, **options: Any) -> Case:
    options = {**base, **options}
    facts = {key: options.pop(key) for key in ("kinds", "attends", "reports", "inputs", "dtype") if key in options}
    head = options.pop("head", "ForCausalLM")
    built = of(name + head, (config or name) + "Config", **options)
    inputs = facts.pop("inputs", text)
    return Case(built, inputs, "causal", target=LAST, **facts)


CASES: dict[str, Case] = {
    "gpt2": of_tests(FAMILIES["gpt2"], "text"),
    "llama": of_tests(FAMILIES["llama"], "text"),
    "mistral": of_tests(FAMILIES["mistral"], "text"),
    "qwen3": of_tests(FAMILIES["qwen3"], "text"),
    "gpt2, speaks": speaker("GPT2", base=GPT, head="LMHeadModel"),
    "gpt_neo": speaker(
        "GPTNeo", attention_types=[[["global", "local"], 1]], num_layers=2, num_heads=2, window_size=4
    ),
    "gpt_neox": speaker("GPTNeoX"),
    "gptj": speaker("GPTJ", base={**GPT, "rotary_dim": 4}),
    "codegen": speaker("CodeGen", base={**GPT, "rotary_dim": 4, "n_head": 4, "n_embd": 16}, kinds=("eager",)),
    "gpt_bigcode": speaker("GPTBigCode", base=GPT),
    "opt": speaker("OPT", ffn_dim=24, word_embed_proj_dim=16),
    "bloom": speaker("Bloom", n_head=2, n_layer=2),
    "mpt": speaker("Mpt", base={"d_model": 16, "n_heads": 2, "n_layers": 2, "max_seq_len": 32, **TEXT, **ENDS}),
    "llama, speaks": speaker("Llama", base=GROUPED),
    "mixtral": speaker("Mixtral", base={**GROUPED, **EXPERTS}),
    "qwen2": speaker("Qwen2", base=GROUPED),
    "qwen2_moe": speaker(
        "Qwen2Moe", base={**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 12, "decoder_sparse_step": 1}
    ),
    "gemma": speaker("Gemma", base=GROUPED),
    "gemma2": speaker("Gemma2", base=GROUPED, query_pre_attn_scalar=8, sliding_window=4),
    "gemma3": speaker("Gemma3", "Gemma3Text", base=GROUPED, query_pre_attn_scalar=8, sliding_window=4),
    "phi": speaker("Phi"),
    "phi3": speaker("Phi3"),
    "falcon": speaker("Falcon", new_decoder_architecture=True, num_kv_heads=1),
    "olmo": speaker("Olmo"),
    "olmo2": speaker("Olmo2"),
    "stablelm": speaker("StableLm", num_key_value_heads=2, partial_rotary_factor=0.5),
    "cohere": speaker("Cohere", base=GROUPED),
    "granite": speaker("Granite", base=GROUPED),
    "deepseek_v3": speaker(
        "DeepseekV3", base={**BASE, **EXPERTS}, num_key_value_heads=2, q_lora_rank=8, kv_lora_rank=8,
        qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, n_routed_experts=4, n_shared_experts=1, n_group=2,
        topk_group=1, first_k_dense_replace=1, reports=False,
    ),
    "mamba": speaker("Mamba", state_size=4, conv_kernel=3, expand=2, time_step_rank=2, attends=False),
    "mamba2": speaker(
        "Mamba2", state_size=4, conv_kernel=3, expand=2, num_heads=4, head_dim=8, n_groups=2, chunk_size=4,
        attends=False,
    ),
    "rwkv": speaker("Rwkv", attention_hidden_size=16, context_length=32, attends=False),
    "recurrent_gemma": speaker(
        "RecurrentGemma", base=GROUPED, lru_width=16, attention_window_size=8, block_types=["recurrent", "attention"],
        reports=False,
    ),
    "jamba": speaker(
        "Jamba", base={**GROUPED, **EXPERTS}, mamba_d_state=4, mamba_d_conv=3, mamba_dt_rank=2, attn_layer_period=2,
        attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, use_mamba_kernels=False, reports=False,
    ),
}  # fmt: skip
