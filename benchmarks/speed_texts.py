"""Rows of the table of speeds: texts from end to end, and the maximum flow through attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

import whence
from benchmarks.measure import Line, plain, ratios, times
from benchmarks.trained import DATA, FromEmbeddings, toxic_posts

POSTS, BATCH, TOKENS = 96, 32, 512
KEYS = ("input_ids", "attention_mask", "token_type_ids")


def posts() -> list[Line]:
    """96 posts as text; the floor is one call of the tokenizer and a forward and a backward pass of each batch.

    A method's own cost is what it takes on the same batches as tensors, relative to those plain passes. The aim is
    0.9 of the floor's texts per second divided by that cost; what is measured is the time relative to that.
    """
    if not (DATA / "bert-tiny-toxicity").is_dir():
        return []
    wrapped = whence.load(DATA / "bert-tiny-toxicity", long="truncate")
    texts = toxic_posts(POSTS)
    batches = _batches(wrapped.tokenizer, texts)
    jobs: dict[str, Callable[[], Any]] = {
        "floor": lambda: _passes(wrapped.model, _batches(wrapped.tokenizer, texts)),
        "plain": lambda: _passes(wrapped.model, batches),
    }
    methods = ("gradient", "deeplift", "lrp")
    for name in methods:
        jobs[name] = partial(whence.explain, wrapped, texts, method=name, target=1)
        jobs[f"{name} of tensors"] = partial(_of_tensors, wrapped.model, batches, name)
    taken = times(jobs, rounds=5)
    to_floor, to_plain = ratios(taken, "floor"), ratios(taken)
    speed = {name: POSTS / median(own) for name, own in taken.items()}
    lines = []
    for name in methods:
        own = to_plain[f"{name} of tensors"]
        extra = f"{speed[name]:.0f} texts/s, floor {speed['floor']:.0f}, {own:.2f} fb as tensors"
        lines.append(
            Line(f"{name}, {POSTS} posts as text, floor × cost as tensors", to_floor[name] / own, None, 1 / 0.9, extra)
        )
    return lines


def _batches(tokenizer: Any, texts: list[str]) -> list[dict[str, Tensor]]:
    """The texts in batches of similar length, tokenized by one call."""
    coded = tokenizer(texts, truncation=True, max_length=TOKENS)
    order = sorted(range(len(texts)), key=lambda row: len(coded["input_ids"][row]))
    batches = []
    for start in range(0, len(order), BATCH):
        rows = {key: [coded[key][row] for row in order[start : start + BATCH]] for key in KEYS if key in coded}
        batches.append(dict(tokenizer.pad(rows, return_tensors="pt")))
    return batches


def _logits(output: Any) -> Tensor:
    return output.logits


def _passes(model: Any, batches: list[dict[str, Tensor]]) -> None:
    for batch in batches:
        embedded = model.get_input_embeddings()(batch["input_ids"]).detach()
        plain(FromEmbeddings(model, batch["attention_mask"], _logits), embedded)


def _of_tensors(model: Any, batches: list[dict[str, Tensor]], method: str) -> None:
    for batch in batches:
        whence.explain(model, batch, method=method, target=1)


def attention_flow() -> list[Line]:
    """The maximum flow to each token of one row, 4 layers of 4 heads, 256 wide."""
    return [_flow_line(tokens, aim) for tokens, aim in ((256, 50.0), (512, None))]


def _flow_line(tokens: int, aim: float | None) -> Line:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=8000
    )
    model = BertForSequenceClassification(config).eval()
    ids = torch.randint(0, 8000, (1, tokens))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    embedded = model.get_input_embeddings()(ids).detach()
    jobs = {
        "plain": lambda: plain(FromEmbeddings(model, inputs["attention_mask"], _logits), embedded),
        "flow": partial(whence.explain, model, inputs, method="attention_flow", target=0),
    }
    taken = times(jobs, rounds=3)
    extra = f"{median(taken['flow']):.2f} s"
    return Line(f"attention_flow, {tokens} tokens, fb", ratios(taken)["flow"], None, aim, extra)


ROWS = {"posts": posts, "attention_flow": attention_flow}
