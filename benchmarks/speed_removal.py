"""Rows of the table of speeds: sentences removed from a language model's prompt, with the growing cache and without."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import whence
from benchmarks.measure import Line, ratios, times
from whence.methods.perturbation import growing
from whence.zoo import needles

SENTENCES, WORDS, ANSWER = 16, 32, 32
AIM = 0.7


def model() -> Any:
    """Six layers, 512 wide, 32,000 words, with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32_000, hidden_size=512, intermediate_size=1408, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=1024, pad_token_id=0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return whence.wrap(LlamaForCausalLM(config).eval(), whence.load("zoo:needle").tokenizer)


@contextmanager
def worth(tokens: int) -> Iterator[None]:
    """From how many tokens on the cache is used."""
    before, growing.WORTH = growing.WORTH, tokens
    try:
        yield
    finally:
        growing.WORTH = before


def sentences() -> Sequence[Line]:
    """`leave_one_out` of 16 sentences of 32 tokens, 32 tokens of answer: the same values, CPU time of five rounds."""
    lm, draw = model(), random.Random(0)
    words = [word for word in needles.words() if word not in ".:"]
    prompt = " ".join(" ".join(draw.choices(words, k=WORDS - 1)) + "." for _ in range(SENTENCES))
    answer = " ".join(draw.choices(words, k=ANSWER))

    def job(tokens: int) -> Callable[[], whence.Attribution]:
        def run() -> whence.Attribution:
            with worth(tokens):
                return whence.explain(
                    lm, prompt, method="leave_one_out", units="sentences", target=whence.span(of=answer), progress=False
                )

        return run

    jobs = {"plain": job(1 << 60), "grown": job(0)}
    plain, grown = (made() for made in jobs.values())
    assert grown.receipt["prefix_cache"].startswith("grown")
    far = float((plain.values - grown.values).abs().max() / plain.values.abs().max())
    cost = ratios(times(jobs, rounds=5))["grown"]
    name = f"leave_one_out of {SENTENCES} sentences, {SENTENCES * WORDS} + {ANSWER} tokens: growing cache / without"
    return [Line(name, cost, None, AIM, f"values differ by {far:.1g} of the largest")]


ROWS = {"sentences": sentences}
