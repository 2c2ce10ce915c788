"""Integrated gradients beside gradients on photographs, as pixels scaled by their attribution; and what they find."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib import pyplot
from PIL import Image
from torch import Tensor

import whence
from reproductions.report import Report, around
from whence.zoo.training import data

SHARES = (0.02, 0.05, 0.1, 0.2)
METHODS: dict[str, dict[str, Any]] = {
    "integrated gradients": {"method": "integrated_gradients", "baseline": "black"},
    "gradient": {"method": "gradient", "absolute": True},
    "gradient × image": {"method": "input_x_gradient"},
    "random": {"method": "random"},
}


def run(report: Report) -> None:
    try:
        zoo = whence.load("zoo:photos")
    except whence.ParameterError as error:  # its packages are not here
        report.say(f"skipped: {error}")
    else:
        photographs(report, zoo)
    for name in ("zoo:fashion-cnn", "zoo:fashion-vit"):
        _painting(report, name)


def photographs(report: Report, zoo: Any) -> None:
    photos = zoo.examples[: report.size(len(zoo.examples), 1)]
    how = {"steps": 8, "rule": "midpoint"} if report.quick else {"tolerance": 0.02}
    ig = whence.explain(zoo, photos, method="integrated_gradients", output="probability", baseline="black", **how)
    gradient = whence.explain(zoo, photos, method="gradient", output="probability")
    rows = []
    for row, label in enumerate(ig.labels):
        rows.append([
            photos[row].rpartition("/")[2], label, f"{float(ig.output_value[row]):.3f}", f"{float(ig.gap[row]):.1e}",
            *(f"{_held(found.values[row]):.2f}" for found in (ig, gradient)),
        ])  # fmt: skip
    report.table(
        "photographs",
        ["photograph", "top label", "score", "completeness gap", "integrated gradients: share in a tenth", "gradient"],
        rows, "EfficientNet-Lite0. Share of |φ| that lies in the tenth of the pixels where it is largest.",
    )  # fmt: skip
    report.must("a photograph's map has its size", tuple(ig.values.shape[1:]) == (3, 224, 224))
    figure, axes = pyplot.subplots(len(photos), 3, figsize=(9, 3.2 * len(photos)), layout="constrained", squeeze=False)
    for row, line in enumerate(axes):
        image = ig.image[row]
        seen = [image.permute(1, 2, 0), _scaled(image, ig.values[row]), _scaled(image, gradient.values[row])]
        titles = [f"{ig.labels[row]}, {float(ig.output_value[row]):.3f}", "integrated gradients", "gradients"]
        for axis, shown, title in zip(line, seen, titles, strict=True):
            axis.imshow(np.asarray(shown))
            axis.set_title(title, fontsize=9)
            axis.axis("off")
    report.figure("photographs", figure, "Pixels scaled by their attribution, as in the paper's Figure 2.")


def _scaled(image: Tensor, values: Tensor) -> Tensor:
    """An image's pixels times the magnitude of their attribution; the 99th percentile is full."""
    size = values.abs().sum(0)
    share = (size / size.flatten().quantile(0.99).clamp(min=1e-30)).clamp(max=1)
    return (image * share).round().to(torch.uint8).permute(1, 2, 0)


def _held(values: Tensor) -> float:
    size = values.abs().sum(0).flatten()
    return float(size.topk(len(size) // 10).values.sum() / size.sum())


def _painting(report: Report, name: str) -> None:
    """What a class loses with the pixels that a map ranks highest."""
    zoo = whence.load(name)
    pixels, taken = _images(zoo, report)
    with torch.no_grad():
        scores = _logits(zoo.model, pixels).softmax(1)
    classes, before = scores.argmax(1), scores.amax(1)
    found = {
        title: whence.explain(zoo.model, {"pixel_values": pixels}, target=classes, **how)
        for title, how in METHODS.items()
    }
    rows, means = [], {}
    for title, a in found.items():
        drops = [before - _painted(zoo.model, pixels, a.values, classes, share) for share in SHARES]
        means[title] = float(drops[-2].mean())
        rows.append([title, *(around(d, least=-1, most=1) for d in drops)])
    converged = found["integrated gradients"].receipt["converged"]
    report.table(
        f"painting-{name.removeprefix('zoo:')}", ["highest-ranked pixels painted over", *(f"{s:.0%}" for s in SHARES)],
        rows, f"`{name}`, {len(pixels)} {taken}, mean probability {float(before.mean()):.3f}: what of it is lost, mean "
        f"with its 95 % interval; seed 0; {sum(converged)} of {len(converged)} integrals within their tolerance.",
    )  # fmt: skip
    report.must(f"{name}: a tenth by integrated gradients matters more than a random tenth",
                means["integrated gradients"] > means["random"])  # fmt: skip


def _images(zoo: Any, report: Report) -> tuple[Tensor, str]:
    if not report.quick:
        pixels, _ = data.fashion("t10k")
        return zoo.processor.normalised(pixels[:200]), "test images"
    return zoo.processor([Image.open(path) for path in zoo.examples])["pixel_values"], "images of the zoo"


def _logits(model: Any, pixels: Tensor) -> Tensor:
    found = model(pixel_values=pixels)
    return found if isinstance(found, Tensor) else found.logits


@torch.no_grad()
def _painted(model: Any, pixels: Tensor, values: Tensor, classes: Tensor, share: float) -> Tensor:
    """The class's probability without the share of pixels that the map ranks highest."""
    count = round(share * pixels[0].numel())
    highest = values.flatten(1).topk(count, 1).indices
    dark = pixels.flatten(1).amin(1, keepdim=True).expand(-1, count)
    without = pixels.flatten(1).scatter(1, highest, dark).view_as(pixels)
    return _logits(model, without).softmax(1).gather(1, classes[:, None])[:, 0]
