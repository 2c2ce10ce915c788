"""DeepLIFT's cost on BERT-base's shape and on a wide MLP, beside Captum's, and what each leaves of the delta.

Times take turns in one process; peak memory is that of tensors.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import whence
from benchmarks.measure import measure, peak, plain
from benchmarks.trained import FromEmbeddings
from whence.views.tables import table

SIGNED = "values, positive and negative"
GOALS = {  # (case, job) → time, peak memory
    ("bert 8 × 128", "one reference per row"): (2.0, 2.5),
    ("bert 8 × 128", "one reference for all"): (1.5, 2.5),
    ("bert 2 × 512", "one reference per row"): (2.8, 4.0),
    ("bert 2 × 512", "one reference for all"): (2.8, 4.0),
    ("mlp 6 × 1024", "RevealCancel, one reference per row"): (2.8, None),
    ("mlp 6 × 1024", "RevealCancel, one reference for all"): (2.8, None),
}
Jobs = dict[str, Callable[[], Any]]


def bert_jobs(rows: int, length: int) -> Jobs:
    """BERT-base with random weights, from other words and from an embedding of zeros."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=8000)).eval()
    ids, others = torch.randint(0, 8000, (rows, length)), torch.randint(0, 8000, (rows, length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    embed = model.get_input_embeddings()
    x, before = embed(ids).detach(), embed(others).detach()
    bare = FromEmbeddings(model, inputs["attention_mask"], lambda out: out.logits)
    ours = partial(whence.explain, model, inputs, method="deeplift", target=0)
    return {
        "plain": lambda: plain(bare, x),
        "one reference per row": partial(ours, baseline=others),
        "one reference for all": partial(ours, baseline=0),
        f"one per row, {SIGNED}": partial(ours, baseline=others, signed=True),
        f"one for all, {SIGNED}": partial(ours, baseline=0, signed=True),
        "Captum, one per row": lambda: captum(bare, x, before),
    }


def mlp_jobs(rows: int = 256) -> Jobs:
    """Six layers of 1,024 ReLUs."""
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(1024, 10)).eval()
    x, before = torch.randn(rows, 1024), torch.randn(rows, 1024)
    ours = partial(whence.explain, model, x, method="deeplift", target=0)
    reveal = partial(ours, rule="reveal_cancel")
    return {
        "plain": lambda: plain(model, x),
        "Rescale, one reference per row": partial(ours, baseline=before),
        "RevealCancel, one reference per row": partial(reveal, baseline=before, signed=False),
        "RevealCancel, one reference for all": partial(reveal, baseline=0, signed=False),
        f"RevealCancel, one per row, {SIGNED}": partial(reveal, baseline=before),
        "Captum, one per row (Rescale)": lambda: captum(model, x, before),
    }


CASES: dict[str, Callable[[], Jobs]] = {
    "bert 8 × 128": partial(bert_jobs, 8, 128),
    "bert 2 × 512": partial(bert_jobs, 2, 512),
    "mlp 6 × 1024": mlp_jobs,
}


def captum(model: nn.Module, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
    """Captum's attributions and their gap."""
    from captum.attr import DeepLift

    found = DeepLift(model).attribute(x.clone().requires_grad_(), before, target=0).detach()
    with torch.no_grad():
        here, there = model(x)[:, 0].double(), model(before)[:, 0].double()
    size = torch.maximum((here - there).abs(), 0.1 * torch.maximum(here.abs(), there.abs()))
    return found, (found.double().flatten(1).sum(1) - (here - there)).abs() / size


def gap_of(result: Any) -> str:
    if result is None:
        return ""
    gap = result.gap if isinstance(result, whence.Attribution) else result[1]
    return f"{float(gap.max()):.1e}"


def size_of(result: Any) -> str:
    """Σ|φ| / |Δf|, the median row: how much cancels."""
    if not isinstance(result, whence.Attribution):
        return ""
    rise = (result.output_value - result.baseline_value).abs()  # type: ignore[operator]
    return f"{float((result.values.abs().flatten(1).sum(1) / rise).median()):.1f}"


def report(case: str) -> None:
    jobs = CASES[case]()
    results = {name: job() for name, job in jobs.items()}
    times = measure(jobs, rounds=5)
    floor = peak(jobs["plain"])
    rows = []
    for name in jobs:
        most_time, most_memory = GOALS.get((case, name), (None, None))
        memory = peak(jobs[name]) / floor
        met = (most_time is None or times[name] <= most_time) and (most_memory is None or memory <= most_memory)
        goal = " and ".join(f"{most} ×" for most in (most_time, most_memory) if most)
        verdict = f"at most {goal}: {'met' if met else 'MISSED'}" if goal else ""
        rows.append(
            [name, f"{times[name]:.2f}", f"{memory:.2f}", gap_of(results[name]), size_of(results[name]), verdict]
        )
    print(f"\nDeepLIFT, {case}: relative to one plain forward+backward")
    print(table(["job", "time", "peak memory", "worst gap", "Σ|φ|/|Δf|", "goal"], rows), flush=True)


def main(cases: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for case in cases or CASES:
        report(case)


if __name__ == "__main__":
    main(sys.argv[1:])
