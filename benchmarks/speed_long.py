"""Rows of the table of speeds: DeepLIFT on long inputs, its memory, and how every method grows with the input."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch

import whence
from benchmarks.measure import Line, made_of, peak, plain, ratios, times
from benchmarks.trained import FromEmbeddings

ROWS_EXPLAINED = 2
LENGTHS = {128: 2.2, 512: 2.3, 1024: 2.5}  # tokens → fb
MEMORY = {"gradient": 0.76, "attnlrp": 0.83, "deeplift": 1.54, "lrp": 1.82, "transformer_attribution": 2.18}
GROWN = (256, 512, 1024)
STEEPER = 0.25  # by how much a slope may exceed the floor's
# a few evaluations each, as many at every length, so that what grows is the cost of one
FEW: dict[str, dict[str, Any]] = {
    "smoothgrad": {"samples": 2},
    "integrated_gradients": {"rule": "midpoint", "steps": 2},
    "path_integrated_gradients": {"rule": "midpoint", "steps": 2},
    "expected_gradients": {"samples": 2},
    "conductance": {"rule": "midpoint", "steps": 2},
    "internal_influence": {"rule": "midpoint", "steps": 2},
    "context_cite": {"samples": 8},
    "kernel_shap": {"samples": 8},
    "lime": {"samples": 8},
}
# four units each, not one per token
BY_UNITS = ("leave_one_out", "permutation", "occlusion", "shapley", "context_cite", "kernel_shap", "lime")
Jobs = dict[str, Callable[[], Any]]


def encoder(tokens: int, rows: int = ROWS_EXPLAINED) -> tuple[Any, dict[str, Any], Jobs]:
    """Four layers of four heads, 256 wide, with random weights; its inputs, and one plain forward+backward."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=1000,
        max_position_embeddings=1024,
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    ids = torch.randint(0, 1000, (rows, tokens))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    x = model.get_input_embeddings()(ids).detach()
    bare = FromEmbeddings(model, inputs["attention_mask"], lambda out: out.logits)
    return model, inputs, {"plain": lambda: plain(bare, x)}


def deeplift() -> list[Line]:
    """Two rows of 128, 512 and 1,024 tokens, from an embedding of zeros, and what `signed=True` adds."""
    return [_deeplift_line(tokens, aim) for tokens, aim in LENGTHS.items()]


def _deeplift_line(tokens: int, aim: float) -> Line:
    model, inputs, jobs = encoder(tokens)
    ours = partial(whence.explain, model, inputs, method="deeplift", target=0)
    cost = ratios(times({**jobs, "deeplift": ours, "signed": partial(ours, signed=True)}, rounds=9))
    extra = f"with positive and negative parts {cost['signed']:.2f}; {made_of(ours, jobs['plain'])}"
    return Line(f"deeplift, {ROWS_EXPLAINED} rows of {tokens:,} tokens, fb", cost["deeplift"], None, aim, extra)


def memory() -> list[Line]:
    """The most bytes of tensors at one time, relative to a plain forward+backward; DeepLIFT also on longer inputs."""
    from benchmarks.relevance import bert

    whole = bert()
    model, inputs = whole["lrp"].args  # type: ignore[attr-defined]
    methods = {name: partial(whence.explain, model, inputs, method=name, target=0) for name in MEMORY}
    floor = peak(whole["plain"])
    lines = [
        Line(f"{name}, BERT-base, 8 rows of 128 tokens, memory of fb", peak(job) / floor, None, MEMORY[name])
        for name, job in methods.items()
    ]
    for tokens in LENGTHS:
        model, inputs, jobs = encoder(tokens)
        most = peak(partial(whence.explain, model, inputs, method="deeplift", target=0)) / peak(jobs["plain"])
        name = f"deeplift, {ROWS_EXPLAINED} rows of {tokens:,} tokens, memory of fb"
        lines.append(Line(name, most, None, MEMORY["deeplift"]))
    return lines


def growth(names: Sequence[str] = (), rounds: int = 3) -> list[Line]:
    """How CPU time grows from 256 to 1,024 tokens of one row: the log–log slope, less that of a plain forward+backward.

    Methods that evaluate the model once per unit remove a quarter of the tokens each time: it is the cost of an
    evaluation that grows here. A method that exchanges values between rows gets two of them. `attention_flow`, a
    maximum flow through n² edges per layer, has a row of its own.
    """
    chosen = names or [
        name
        for name, entry in whence.methods.items()
        if name not in ("attention_flow", "random") and entry.facts.get("needs") != "maps"  # of an image
    ]
    taken: dict[str, list[float]] = {}
    for tokens in GROWN:
        model, inputs, jobs = encoder(tokens, rows=1)
        _, two_rows, _ = encoder(tokens, rows=2)
        for name in chosen:
            given = two_rows if whence.methods[name].facts.get("permutes") else inputs
            quarters = torch.arange(tokens).expand_as(given["input_ids"]) // (tokens // 4)
            told = {**FEW.get(name, {}), **({"units": quarters} if name in BY_UNITS else {})}
            jobs[name] = partial(whence.explain, model, given, method=name, target=0, progress=False, **told)
        for name, own in times(jobs, rounds).items():
            taken.setdefault(name, []).append(median(own))
    floor = _slope(taken["plain"])
    lines = []
    for name in chosen:
        by_length = ", ".join(f"{own / base:.2f}" for own, base in zip(taken[name], taken["plain"], strict=True))
        beyond = _slope(taken[name]) - floor
        lines.append(Line(f"{name}, growth beyond n^{floor:.2f}", beyond, None, STEEPER, f"{by_length} fb"))
    return lines


def _slope(costs: Sequence[float]) -> float:
    """Of the logarithm of the cost by that of the length, by least squares."""
    x, y = ([math.log(value) for value in values] for values in (GROWN, costs))
    middle = sum(x) / len(x)
    return sum((a - middle) * b for a, b in zip(x, y, strict=True)) / sum((a - middle) ** 2 for a in x)


ROWS = {"deeplift_long": deeplift, "memory": memory, "growth": growth}
