"""Small language models from configurations, with a tokenizer of bytes and a chat template; most in float64."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf

import whence

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_SIZES = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 192,
}  # fmt: skip
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
_DECODER: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 192}),
    "llama": ("Llama", _SIZES),
    "qwen2": ("Qwen2", _SIZES),
    "qwen3": ("Qwen3", {**_SIZES, "head_dim": 8}),
    "mistral": ("Mistral", {**_SIZES, "sliding_window": 8}),
    "gemma2": ("Gemma2", {**_SIZES, "head_dim": 8, "sliding_window": 8}),
    "gemma3": ("Gemma3Text", {**_SIZES, "head_dim": 8, "sliding_window": 8}),
    "phi3": ("Phi3", {**_SIZES, "pad_token_id": 0}),
    "mixtral": ("Mixtral", {**_SIZES, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("Qwen3Moe", {**_SIZES, **_EXPERTS, "head_dim": 8, "decoder_sparse_step": 1}),
}
_BOTH: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5", {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}),
    "bart": (
        "Bart",
        {"d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
         "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 192},
    ),
}  # fmt: skip
EXPERTS = ("mixtral", "qwen3_moe")  # their grouped products have no float64
DECODERS, TRANSLATORS = list(_DECODER), list(_BOTH)


def of_bytes() -> Any:
    """A tokenizer of single bytes: every text is known, and characters of several bytes are split."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    own = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    made = hf.PreTrainedTokenizerFast(tokenizer_object=own, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    made.chat_template = TEMPLATE
    return made


def language_model(name: str) -> Any:
    """A family's small model with random weights, wrapped with the tokenizer of bytes."""
    tokenizer = of_bytes()
    family, sizes = (_DECODER | _BOTH)[name]
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": len(tokenizer)}
    config = getattr(hf, f"{family}Config")(**{**ends, **sizes})
    kind = {"GPT2": "GPT2LMHeadModel", "Gemma3Text": "Gemma3ForCausalLM"}.get(family, f"{family}ForCausalLM")
    kind = f"{family}ForConditionalGeneration" if name in _BOTH else kind
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = getattr(hf, kind)(config).to(torch.float32 if name in EXPERTS else torch.float64).eval()
        for p in model.parameters():
            if p.dim() > 1:
                p.data.normal_(std=0.3)
    return whence.wrap(model, tokenizer)
