"""What reading attention costs on BERT-base's shape, and what multiplying only the read-out row saves.

Times take turns in one process; peak memory is that of tensors. "plain" is one forward+backward with fused attention.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import whence
from benchmarks.measure import measure, peak, plain
from benchmarks.trained import FromEmbeddings
from whence.views.tables import table

MAPS = ("raw_attention", "rollout")
GRADIENTS = ("generic_attention", "grad_sam", "attention_gradients", "attcat")
SIZES = {"8 × 128": (8, 128, 1.2, 1.5), "2 × 512": (2, 512, 1.5, 2.0)}  # rows, tokens, most time, most memory


def jobs(rows: int, length: int) -> dict[str, Callable[[], Any]]:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=8000)).eval()
    ids = torch.randint(0, 8000, (rows, length))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    x = model.get_input_embeddings()(ids).detach()
    bare = FromEmbeddings(model, inputs["attention_mask"], lambda out: out.logits)
    explain = partial(whence.explain, model, inputs, target=0)
    return {"plain": lambda: plain(bare, x)} | {name: partial(explain, method=name) for name in (*MAPS, *GRADIENTS)}


def report(title: str) -> None:
    rows, length, most_time, most_memory = SIZES[title]
    made = jobs(rows, length)
    times = measure(made, rounds=3)
    floor = peak(made["plain"])
    lines = []
    for name, job in made.items():
        memory = peak(job) / floor
        line = [name, f"{times[name]:.2f}", f"{memory:.2f}"]
        if name in MAPS:
            line.append(f"at most 0.6 ×: {_verdict(times[name] <= 0.6)}")
        elif name in GRADIENTS:
            met = times[name] <= most_time and memory <= most_memory
            line.append(f"at most {most_time} × and {most_memory} ×: {_verdict(met)}")
        lines.append([*line, ""][:4])
    print(f"\nAttention methods, BERT-base, {title} tokens: relative to one plain forward+backward")
    print(table(["method", "time", "peak memory", "goal"], lines), flush=True)


def _verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def row_against_matrix(layers: int = 12) -> None:
    """One row vector through the layers, against the product of whole matrices."""
    lines = []
    for n in (128, 256, 512, 1024, 2048):
        maps = [torch.rand(n, n).softmax(-1) for _ in range(layers)]
        row = torch.eye(n)[:1]
        times = [min(_product(start, maps) for _ in range(5)) for start in (row, torch.eye(n))]
        lines.append([str(n), f"{times[1] / times[0]:.0f}"])
    print(f"\nThe product of {layers} whole maps, relative to one row through them")
    print(table(["tokens", "time"], lines), flush=True)


def _product(start: Tensor, maps: list[Tensor]) -> float:
    begin = time.perf_counter()
    for a in reversed(maps):
        start = start @ a
    return time.perf_counter() - begin


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    row_against_matrix()
    for title in SIZES:
        report(title)


if __name__ == "__main__":
    sys.exit(main())
