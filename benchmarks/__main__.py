"""`make bench`: what each method costs, as a ratio to one plain forward+backward of the same model.

Everything runs in one process and takes turns, so that a busy machine slows all of it alike; a ratio is the median over
rounds of (this one's time / plain's time in the same round). Captum stands beside where it has the method.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import whence
from whence.views.terminal import table

ROUNDS = 7
GOALS = {("bert", "gradient"): 1.15, ("bert", "guided_backprop"): 1.5}
PEERS = {
    "gradient": "Saliency",
    "input_x_gradient": "InputXGradient",
    "guided_backprop": "GuidedBackprop",
    "deconvnet": "Deconvolution",
}


def small_cnn() -> tuple[nn.Module, Tensor, nn.Module, Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 64, 10),
    ).eval()  # fmt: skip
    x = torch.randn(16, 3, 32, 32)
    return model, x, model, x


class FromEmbeddings(nn.Module):
    """BERT as a function of its word embeddings: what a user of plain autograd or Captum writes by hand."""

    def __init__(self, bert: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.bert, self.mask = bert, mask

    def forward(self, e: Tensor) -> Any:
        mask = self.mask.repeat(len(e) // len(self.mask), 1)
        return self.bert(inputs_embeds=e, attention_mask=mask).logits


def bert() -> tuple[nn.Module, dict[str, Tensor], nn.Module, Tensor]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=8000
    )
    model = BertForSequenceClassification(config).eval()
    ids = torch.randint(0, 8000, (8, 128))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    embedded = model.get_input_embeddings()(ids).detach()
    return model, inputs, FromEmbeddings(model, inputs["attention_mask"]), embedded


def plain(model: nn.Module, x: Tensor) -> None:
    leaf = x.detach().clone().requires_grad_()
    torch.autograd.grad(model(leaf)[:, 0].sum(), leaf)


def peer(name: str, model: nn.Module, x: Tensor) -> Callable[[], Any] | None:
    import captum.attr

    if name == "smoothgrad":
        tunnel = captum.attr.NoiseTunnel(captum.attr.Saliency(model))
        return lambda: tunnel.attribute(
            x.clone(), nt_type="smoothgrad", nt_samples=25, stdevs=0.15, target=0, abs=False
        )
    if name not in PEERS:
        return None
    method = getattr(captum.attr, PEERS[name])(model)
    return lambda: method.attribute(x.clone().requires_grad_(), target=0)


def measure(jobs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median ratio of each job's time to the job "plain" of the same round."""
    ratios: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()  # warm up
    for _ in range(ROUNDS):
        times = {}
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name] = time.perf_counter() - start
        for name in jobs:
            ratios[name].append(times[name] / times["plain"])
    return {name: statistics.median(found) for name, found in ratios.items()}


def report(title: str, make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, inputs, bare, x = make()
    jobs: dict[str, Callable[[], Any]] = {"plain": lambda: plain(bare, x)}
    passes = {}
    for name in whence.methods:
        jobs[name] = lambda name=name: whence.explain(model, inputs, method=name, target=0, channels="sum_abs")
        receipt = jobs[name]().receipt
        passes[name] = f"{receipt['forward_passes']}+{receipt['backward_passes']}"
        other = peer(name, bare, x)
        if other is not None:
            jobs[f"captum {name}"] = other
    found = measure(jobs)
    rows = []
    for name in whence.methods:
        beside = found.get(f"captum {name}")
        goal = GOALS.get((title, name))
        verdict = "" if goal is None else f"at most {goal}: {'met' if found[name] <= goal else 'MISSED'}"
        rows.append([name, f"{found[name]:.2f}", "–" if beside is None else f"{beside:.2f}", passes[name], verdict])
    print(f"\n{title}: cost relative to one plain forward+backward")
    print(table(["method", "whence", "captum", "passes", "goal"], rows), flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    report("small cnn", small_cnn)
    report("bert", bert)


if __name__ == "__main__":
    main()
