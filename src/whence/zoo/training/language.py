"""A small causal language model, GPT-2's architecture, on sentences about films and on questions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.adapters.wrapped import Wrapped, wrap
from whence.zoo.training import data
from whence.zoo.training.loop import Recipe, Trained, fit, shuffled
from whence.zoo.training.tokens import byte_pairs, shipped

_EPOCHS, _SIZE, _LENGTH = 3, 16, 128


def train(seed: int) -> Trained:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(seed)
    known, _ = _split(data.sentences())
    tokenizer = shipped("language") or byte_pairs(known, 4096, _LENGTH)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer), n_positions=_LENGTH, n_embd=144, n_layer=4, n_head=4, resid_pdrop=0.1,
            embd_pdrop=0.1, attn_pdrop=0.1, initializer_range=0.05, bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )  # fmt: skip
    blocks = _blocks(tokenizer, known)

    def loss(rows: list[int]) -> Tensor:
        ids = blocks[rows]
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    count = _EPOCHS * len(blocks) // _SIZE
    fit(model, shuffled(len(blocks), _SIZE), loss, count=count, rate=2e-3, decay=0.1, title="language")
    return Trained(wrap(model, tokenizer))


@torch.no_grad()
def measure(wrapped: Wrapped) -> dict[str, float]:
    """On the sentences held back, joined and cut like those it learned from."""
    _, held = _split(data.sentences())
    total = count = 0.0
    for part in _blocks(wrapped.tokenizer, held).split(32):
        logits = wrapped.model(input_ids=part, use_cache=False).logits[:, :-1]
        total += float(F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
        count += part[:, 1:].numel()
    return {"perplexity per token": math.exp(total / count)}


def _split(sentences: list[str]) -> tuple[list[str], list[str]]:
    """One sentence in twenty is held back; sentences with the same letters stay together."""
    first: dict[str, str] = {}
    for sentence in sentences:
        first.setdefault("".join(filter(str.isalnum, sentence)), sentence)
    keys = sorted(first)
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0), device="cpu").tolist()
    held = {keys[i] for i in order[: len(keys) // 20]}
    return [first[key] for key in keys if key not in held], [first[key] for key in keys if key in held]


def _blocks(tokenizer: Any, sentences: list[str]) -> Tensor:
    """(n, length): sentences in a random order, each ended by the end token, cut into pieces of one length."""
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(1), device="cpu").tolist()
    found = tokenizer([sentences[i] for i in order])["input_ids"]
    end = tokenizer.eos_token_id
    ids = torch.tensor([number for row in found for number in (*row, end)], device="cpu")
    return ids[: len(ids) // _LENGTH * _LENGTH].view(-1, _LENGTH)


RECIPE = Recipe(
    train,
    measure,
    {
        "task": "text-generation",
        "what": "goes on with a sentence about a film, or with a question",
        "architecture": "GPT-2's, 4 layers of 4 heads, 144 wide, 4,096 byte pairs, 128 tokens, from scratch",
        "data": "sentences of film reviews and plots (Subj, MR, SST) and TREC questions, each once; one in twenty held "
        "back to measure on",
        "licence": "weights Apache-2.0; the corpora are research releases without a stated licence",
        "limits": "lower case; knows films and little else; loses the thread after a dozen words; repeats the tone of "
        "its sources, which may offend",
    },
    [
        "the film is a",
        "a young woman returns to her village and",
        "despite its flaws, the movie",
        "what is the capital of",
    ],
)
