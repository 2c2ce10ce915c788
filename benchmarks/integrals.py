"""Integrated gradients beside Captum's, on trained models: time, gradient evaluations, errors, memory.

"plain" is one forward+backward of the same rows, the unit of time and memory. Captum runs with its default of 50 steps,
and with the smallest number of steps at which its worst row is within 1 % (gap) and 1.5 % (L1), which nobody knows
beforehand. Errors are relative to a fine integral, per row, over all elements.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import captum.attr
import torch
from torch import Tensor

import whence
from benchmarks import trained
from benchmarks.measure import peak
from benchmarks.trained import Trained
from whence.views.tables import table

LADDER = (8, 12, 16, 20, 24, 32, 40, 50, 64, 96, 128, 192, 256)
ROUNDS = 5


def cases() -> dict[str, tuple[Callable[[], Trained], dict[str, Any]]]:
    """By name: how it is made, and the fine rule."""
    fine, kinked = {"steps": 160}, {"rule": "midpoint", "steps": 1024}
    found: dict[str, tuple[Callable[[], Trained], dict[str, Any]]] = {
        "ViT, digits": (lambda: trained.vit(32), fine),
        "CNN, digits": (lambda: trained.cnn(32), {"rule": "midpoint", "steps": 4096}),
    }
    if (trained.DATA / "bert-tiny-toxicity").exists():
        found["BERT-tiny, zero embeddings"] = (lambda: trained.toxicity(32), fine)
        found["BERT-tiny, pad"] = (lambda: trained.toxicity(32, "pad"), fine)
    if trained.minilm_folder() is not None:
        found["MiniLM, cosine"] = (lambda: trained.sentences(16), fine)
    if (trained.DATA / "cifar10_resnets").exists():
        found["ResNet-20, CIFAR"] = (lambda: trained.resnet20(8), kinked)
    return found


def errors(found: Tensor, fine: Tensor) -> Tensor:
    """Each row's L1 error relative to the fine integral."""
    return (found - fine).flatten(1).abs().sum(1) / fine.flatten(1).abs().sum(1)


def sufficient(case: Trained, fine: whence.Attribution) -> int | None:
    """The smallest number of Captum's steps on the ladder at which every row is good enough."""
    method = captum.attr.IntegratedGradients(case.bare)
    for steps in LADDER:
        found = method.attribute(case.x, case.before, n_steps=steps, internal_batch_size=4 * len(case.x)).detach()
        rise = fine.output_value - fine.baseline_value
        size = torch.maximum(rise.abs(), 0.1 * torch.maximum(fine.output_value.abs(), fine.baseline_value.abs()))
        gap = (found.flatten(1).double().sum(1) - rise).abs() / size
        if float(gap.max()) <= 0.01 and float(errors(found, fine.raw).max()) <= 0.015:
            return steps
    return None


def report(title: str, make: Callable[[], Trained], rule: dict[str, Any]) -> None:
    case = make()

    def explain(**options: Any) -> whence.Attribution:
        return whence.explain(
            case.model, case.inputs, method="integrated_gradients", baseline=case.baseline, **case.options, **options
        )

    def plain() -> None:
        leaf = case.x.detach().clone().requires_grad_()
        torch.autograd.grad(case.bare(leaf).sum(), leaf)

    theirs = captum.attr.IntegratedGradients(case.bare)
    fine = explain(**rule)
    enough = sufficient(case, fine)
    jobs: dict[str, Callable[[], Any]] = {
        "plain": plain,
        "whence": explain,
        "captum, 50 steps": lambda: theirs.attribute(case.x, case.before),
    }
    if enough is not None:
        jobs[f"captum, {enough} steps (smallest that is enough)"] = lambda: theirs.attribute(
            case.x, case.before, n_steps=enough
        )
    results = {name: job() for name, job in jobs.items()}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            times[name].append(time.perf_counter() - start)
    memory = {name: peak(job) for name, job in jobs.items()}

    def ratio(name: str, to: str) -> float:
        return statistics.median(a / b for a, b in zip(times[name], times[to], strict=True))

    rows = []
    for name, found in results.items():
        if name == "plain":
            continue
        receipt = found.receipt if name == "whence" else None
        raw = found.raw if receipt is not None else found.detach()
        off = errors(raw, fine.raw)
        counts = receipt["gradient_evaluations"] if receipt else [int(name.split()[1])]
        rows.append([
            name, f"{ratio(name, 'plain'):.1f}", f"{sum(counts) / len(counts):.1f}", f"{float(off.median()):.2%}",
            f"{float(off.max()):.2%}", f"{memory[name] / memory['plain']:.2f}",
        ])  # fmt: skip
    print(f"\n{title}: {len(case.x)} rows; time and memory relative to one plain forward+backward of them")
    print(table(["what", "time", "evaluations per row", "median error", "worst error", "peak memory"], rows))
    receipt = results["whence"].receipt
    against = f"{ratio('whence', 'captum, 50 steps'):.2f} × Captum's default"
    if enough is not None:
        against += f", {ratio('whence', list(jobs)[-1]):.2f} × Captum's smallest sufficient"
    else:
        against += f"; Captum is not good enough at {LADDER[-1]} steps"
    print(f"whence: by {receipt['scheme']}, {receipt['converged'].count(False)} rows flagged; {against}", flush=True)


def main(only: str = "") -> None:
    warnings.simplefilter("ignore")
    for title, (make, rule) in cases().items():
        if only in title:
            report(title, make, rule)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
