"""Three problems of plain gradients (Shrikumar et al. 2017, Smilkov et al. 2017), and what is done about each.

Saturation: y = min(x₁ + x₂, 1). Thresholding: y = max(0, x − 10). Noise: a CNN's gradient next to its input.
"""

from __future__ import annotations

import torch
from matplotlib import pyplot
from torch import Tensor, nn

import whence
from reproductions.report import BLUE, GREY, RED, Report, around
from whence.evaluation.bootstrap import interval


def run(report: Report) -> None:
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
    for problem, axis in zip((saturation, thresholding, noise), axes, strict=True):
        problem(report, axis)
    report.figure("problems", figure, "Saturation, thresholding and noise.")


class Saturated(nn.Module):
    """x₁ + x₂, but never more than 1. A third input is idle at 0: it gives SmoothGrad's noise its scale."""

    def forward(self, x: Tensor) -> Tensor:
        return 1 - torch.relu(1 - x[:, :2].sum(1, keepdim=True))


class Threshold(nn.Module):
    """What x is above 10; a second input is idle at 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x[:, :1] - 10)


def idle(x: Tensor) -> Tensor:
    return torch.cat([x, torch.zeros(len(x), 1)], 1)


def saturation(report: Report, axis: pyplot.Axes) -> None:
    report.heading("Saturation: min(x₁ + x₂, 1) at (1, 1), where y = 1, from (0, 0), where y = 0")
    point = idle(torch.ones(1, 2))
    named = {
        "gradient": {}, "smoothgrad": {"noise": 0.5, "samples": 4000}, "input_x_gradient": {},
        "integrated_gradients": {}, "deeplift": {},
    }  # fmt: skip
    found = {name: whence.explain(Saturated(), point, method=name, target=0, **how) for name, how in named.items()}
    rows = []
    for name, a in found.items():
        x1, x2 = (value + 0.0 for value in a.values[0, :2].tolist())  # no −0
        rows.append([name, f"{x1:+.3f}", f"{x2:+.3f}", f"{x1 + x2:+.3f}"])
    report.table("saturation", ["method", "x₁", "x₂", "sum"], rows)
    report.must("the gradient is 0 where y is saturated", bool(found["gradient"].values.abs().max() == 0))
    halves = torch.tensor([[0.5, 0.5, 0.0]])
    exact = torch.allclose(found["integrated_gradients"].values, halves, atol=1e-3)
    report.must("integrated gradients give a half to each", exact)
    report.must("SmoothGrad sees some of the slope", bool(found["smoothgrad"].values[0, 0] > 0.05))
    line = idle(torch.linspace(0, 1, 201)[:, None].expand(-1, 2))
    axis.plot(line.sum(1), Saturated()(line), color=GREY, label="y")
    gradients = whence.explain(Saturated(), line, method="gradient", target=0).values[:, 0]
    integrals = whence.explain(Saturated(), line, method="integrated_gradients", target=0).values[:, 0]
    axis.plot(line.sum(1), gradients, color=BLUE, label="gradient of x₁")
    axis.plot(line.sum(1), integrals, color=RED, label="integrated gradient of x₁")
    axis.set(title="saturation: min(x₁ + x₂, 1)", xlabel="x₁ + x₂, with x₁ = x₂", ylabel="y, attribution of x₁")
    axis.legend(fontsize=7, loc="center right", bbox_to_anchor=(1, 0.73))


def thresholding(report: Report, axis: pyplot.Axes) -> None:
    report.heading("Thresholding: max(0, x − 10), how far the attribution jumps between x = 9.99 and x = 10.01")
    sides = idle(torch.tensor([[9.99], [10.01]]))
    named = {
        "gradient": ("gradient", {}),
        "gradient, softplus for the ReLU": ("gradient", {"relu": "softplus"}),
        "input_x_gradient": ("input_x_gradient", {}),
        "smoothgrad": ("smoothgrad", {"noise": 0.15, "samples": 4000}),
        "integrated_gradients": ("integrated_gradients", {}),
        "deeplift": ("deeplift", {}),
    }
    line = idle(torch.linspace(7, 13, 241)[:, None])
    shown = {
        "gradient": BLUE, "gradient, softplus for the ReLU": GREY, "smoothgrad": "#8a5a00", "integrated_gradients": RED,
    }  # fmt: skip
    rows = []
    for name, (method, how) in named.items():
        below, above = whence.explain(Threshold(), sides, method=method, target=0, **how).values[:, 0].tolist()
        rows.append([name, f"{below:+.4f}", f"{above:+.4f}", f"{abs(above - below):.4f}"])
        if name in shown:
            values = whence.explain(Threshold(), line, method=method, target=0, **how).values[:, 0]
            axis.plot(line[:, 0], values, color=shown[name], label=name)
    report.table("thresholding", ["method", "at 9.99", "at 10.01", "jump"], rows)
    jumps = {row[0]: float(row[3]) for row in rows}
    report.must("the gradient jumps by 1", jumps["gradient"] == 1)
    report.must("softplus does not jump", jumps["gradient, softplus for the ReLU"] < 0.01)
    report.must("integrated gradients do not jump", jumps["integrated_gradients"] < 0.02)
    report.must("SmoothGrad hardly jumps", jumps["smoothgrad"] < 0.1)
    axis.set(title="thresholding: max(0, x − 10)", xlabel="x", ylabel="attribution of x")
    axis.legend(fontsize=7)


def noise(report: Report, axis: pyplot.Axes) -> None:
    report.heading("Noise: how alike the maps of an image and of the image with a little noise are")
    zoo = whence.load("zoo:fashion-cnn")
    pixels = zoo.processor([_opened(path) for path in zoo.examples])["pixel_values"]
    generator = torch.Generator().manual_seed(0)
    noisy = pixels + 0.05 * torch.randn(pixels.shape, generator=generator)  # a fiftieth of the range
    black = float(zoo.processor.normalised(torch.zeros(1)))
    with torch.no_grad():
        classes = zoo.model(pixels).argmax(1)
        before, after = (zoo.model(x).gather(1, classes[:, None]) for x in (pixels, noisy))
    named = {
        "gradient": {}, "smoothgrad": {"samples": 50, "noise": 0.15}, "input_x_gradient": {},
        "integrated_gradients": {"baseline": black},
    }  # fmt: skip
    rows, alike, ends = [], {}, []
    for name, how in named.items():
        one, two = (whence.explain(zoo.model, x, method=name, target=classes, **how).values for x in (pixels, noisy))
        each = torch.stack([_alike(a, b) for a, b in zip(one, two, strict=True)])
        alike[name] = float(each.mean())
        low, high = (float(end[0]) for end in interval(each[:, None].double().numpy()))
        ends.append((alike[name] - max(low, -1), min(high, 1) - alike[name]))
        rows.append([name, around(each, least=-1, most=1)])
    report.table("noise", ["method", "correlation"], rows, "Correlation of 784 values, mean over ten images of "
                 "`zoo:fashion-cnn` with its 95 % interval; noise of deviation 0.05 in units of the normalised image, "
                 "seed 0.")  # fmt: skip
    moved = float((after - before).abs().mean() / before.mean())
    report.say(f"The noise moved the class's score by {moved:.1%} on average.")
    report.must("SmoothGrad's map changes less than the gradient's", alike["smoothgrad"] > alike["gradient"])
    axis.barh(list(alike), list(alike.values()), xerr=list(zip(*ends, strict=True)), color=[BLUE, GREY, GREY, RED],
              error_kw={"elinewidth": 0.8})  # fmt: skip
    axis.set(title="noise: how alike a map stays", xlabel="correlation", xlim=(0, 1))
    axis.invert_yaxis()


def _opened(path: str) -> object:
    from PIL import Image

    return Image.open(path)


def _alike(a: Tensor, b: Tensor) -> Tensor:
    return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
