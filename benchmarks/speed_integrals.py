"""What integrated gradients cost, in units of one plain forward+backward of the same rows, with Captum beside.

Every function gives lines (name, measured ratio, the peer's ratio, aim, extra): CPU time of one thread, in turns, the
median of the rounds. Captum runs with the fewest steps on a ladder that bring the worst row's L1 error within 1 % of a
sum over 20,000 midpoints (`riemann_middle`); nobody knows them beforehand.
"""

from __future__ import annotations

import functools
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
from benchmarks.certificates import digits, on_digits, wide_mlp, zoo
from benchmarks.measure import made_of, peak
from benchmarks.trained import Trained, _classifier

LADDER = (16, 32, 48, 64, 96, 128, 160)
Line = tuple[str, float, float | None, float, str]


def turns(jobs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median CPU seconds of each job."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.process_time()
            job()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def plain(case: Trained, rows: int | None = None) -> None:
    leaf = case.x.detach()[torch.arange(rows or len(case.x)) % len(case.x)].requires_grad_()
    torch.autograd.grad(case.model(leaf)[:, 0].sum(), leaf)


def ours(case: Trained, **options: Any) -> whence.Attribution:
    return whence.explain(
        case.model, case.inputs, method="integrated_gradients", baseline=case.baseline, **case.options, **options
    )


def theirs(case: Trained, steps: int) -> Tensor:
    method = captum.attr.IntegratedGradients(case.model)
    found: Tensor = method.attribute(
        case.x, case.before, target=case.options["target"], n_steps=steps, method="riemann_middle"
    )
    return found.detach()


def exact(case: Trained, points: int) -> Tensor:
    """φ by midpoints, summed in float64."""
    found = []
    for end, start, index in zip(case.x, case.before, case.options["target"].tolist(), strict=True):
        total = torch.zeros_like(end, dtype=torch.float64)
        for alpha in ((torch.arange(points, dtype=torch.float64) + 0.5) / points).split(32):
            point = torch.lerp(start, end, alpha.to(end).view(-1, *[1] * end.dim())).requires_grad_()
            total += torch.autograd.grad(case.model(point)[:, index].sum(), point)[0].double().sum(0)
        found.append(total / points * (end - start))
    return torch.stack(found)


def errors(values: Tensor, fine: Tensor) -> Tensor:
    return (values.double() - fine).flatten(1).abs().sum(1) / fine.flatten(1).abs().sum(1)


def line(name: str, case: Trained, aim: float, *, points: int, rounds: int = 5, unit: str = "fb") -> Line:
    """One row of the table; `unit="captum"` measures in units of the peer at its smallest sufficient steps."""
    a = ours(case)
    fine = exact(case, points)
    enough = next((n for n in LADDER if float(errors(theirs(case, n), fine).max()) <= 0.01), LADDER[-1])
    jobs = {"plain": lambda: plain(case), "whence": lambda: ours(case), "captum": lambda: theirs(case, enough)}
    seconds = turns(jobs, rounds)
    receipt = a.receipt
    counts = receipt["gradient_evaluations"]
    base = seconds["captum" if unit == "captum" else "plain"]
    off, other = float(errors(a.raw, fine).max()), float(errors(theirs(case, enough), fine).max())
    said = (
        f"{receipt['scheme']}, {sum(counts) / len(counts):.0f} evaluations a row, {receipt['forward_passes']} passes, "
        f"true error {off:.2%} (said {max(receipt['tolerance_reached']):.2%}); Captum n = {enough}, {other:.2%}; "
        + ", ".join(f"{job} {1e3 * found:.2f} ms" for job, found in seconds.items())
        + f"; {made_of(jobs['whence'], jobs[unit if unit == 'captum' else 'plain'])}"
    )
    return name, seconds["whence"] / base, seconds["captum"] / base, aim, said


def mlp(rows: int = 8) -> Trained:
    x = digits(rows)
    return _classifier(on_digits(wide_mlp), x, torch.zeros_like(x))


def fashion_vit(rows: int = 1) -> Trained:
    case = zoo("fashion-vit", rows)
    return _classifier(case.model, case.x, torch.full_like(case.x, float(case.before)))


def resnet(rows: int = 2, points: int = 20_000) -> list[Line]:
    return [line(f"integrated_gradients, ResNet-20, {rows} rows", trained.resnet20(rows), 80, points=points)]


def efficientnet(points: int = 2_000) -> list[Line]:
    name = "integrated_gradients, EfficientNet-Lite0, one image"
    return [line(name, trained.efficientnet(1), 160, points=points, rounds=1)]


def relu_mlp() -> list[Line]:
    name = "integrated_gradients, ReLU MLP, 8 rows (in units of Captum)"
    return [line(name, mlp(), 1.2, points=20_000, rounds=25, unit="captum")]


def vit() -> list[Line]:
    return [line("integrated_gradients, fashion-vit, one row", fashion_vit(), 12, points=2_000, rounds=11)]


def memory() -> list[Line]:
    """Peak memory of integrated gradients by that of a plain pass of as many rows as one of its passes holds."""
    lines: list[Line] = []
    for name, case in {"ResNet-20": trained.resnet20(2), "MLP": mlp(), "fashion-vit": fashion_vit(4)}.items():
        for size in (None, 8):
            seen: list[int] = []
            hook = case.model.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(len(inputs[0])))
            ours(case, batch_size=size)
            hook.remove()
            most = max(seen)
            held, floor = (
                peak(functools.partial(ours, case, batch_size=size)),
                peak(functools.partial(plain, case, most)),
            )
            given = "" if size is None else f", batch_size={size}"
            told = f"{most} rows in a pass; {held / 1e6:.2f} MB, plain {floor / 1e6:.2f} MB"
            lines.append((f"memory of integrated_gradients, {name}{given}", held / floor, None, 1.5, told))
    return lines


ROWS: dict[str, Callable[[], list[Line]]] = {
    "mlp": relu_mlp, "vit": vit, "resnet": resnet, "efficientnet": efficientnet, "memory": memory,
}  # fmt: skip


def main(*only: str) -> None:
    warnings.simplefilter("ignore")
    for name in only or ROWS:
        for title, measured, peer, aim, extra in ROWS[name]():
            beside = "" if peer is None else f", Captum {peer:.2f}"
            print(f"{title}: {measured:.2f}{beside}, aim {aim:g}\n    {extra}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
