"""What relevance costs on the shapes of BERT-base and ViT-B/16, relative to one plain forward+backward.

Times take turns in one process, on one thread; peak memory is that of tensors.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import whence
from benchmarks.measure import measure, peak, plain
from benchmarks.trained import FromEmbeddings
from whence.views.tables import table

GOALS = {"attnlrp": (1.3, None), "lrp": (2.0, None), "transformer_attribution": (2.8, 2.8)}
OTHERS = ("cp_lrp", "partial_lrp")
Jobs = dict[str, Callable[[], Any]]


def bert() -> Jobs:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=8000)).eval()
    ids = torch.randint(0, 8000, (8, 128))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    x = model.get_input_embeddings()(ids).detach()
    bare = FromEmbeddings(model, inputs["attention_mask"], lambda out: out.logits)
    return {"plain": lambda: plain(bare, x), **_methods(model, inputs)}


def vit() -> Jobs:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(num_labels=10)).eval()
    x = torch.randn(4, 3, 224, 224)

    class Logits(torch.nn.Module):
        def forward(self, images: Any) -> Any:
            return model(images).logits

    return {"plain": lambda: plain(Logits(), x), **_methods(model, x)}


def _methods(model: Any, inputs: Any) -> Jobs:
    return {name: partial(whence.explain, model, inputs, target=0, method=name) for name in (*GOALS, *OTHERS)}


SHAPES = {"BERT-base, 8 × 128 tokens": bert, "ViT-B/16, 4 × 224²": vit}


def report(title: str, rounds: int = 3) -> None:
    jobs = SHAPES[title]()
    times = measure(jobs, rounds=rounds)
    floor = peak(jobs["plain"])
    lines = []
    for name, job in jobs.items():
        memory = peak(job) / floor
        line = [name, f"{times[name]:.2f}", f"{memory:.2f}", ""]
        if name in GOALS:
            most_time, most_memory = GOALS[name]
            met = times[name] <= most_time and (most_memory is None or memory <= most_memory)
            also = "" if most_memory is None else f" and {most_memory} ×"
            line[3] = f"at most {most_time} ×{also}: {'met' if met else 'MISSED'}"
        lines.append(line)
    print(f"\nRelevance, {title}: relative to one plain forward+backward")
    print(table(["method", "time", "peak memory", "goal"], lines), flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for title in SHAPES:
        report(title)


if __name__ == "__main__":
    sys.exit(main())
