"""Integrated gradients beside gradients on photographs, as pixels scaled by their attribution; and what they find."""

from __future__ import annotations

from collections.abc import Callable
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
GREYS: dict[str, Callable[[Tensor], Tensor]] = {  # one value for each image: what it is counted from, and painted with
    "black": lambda pixels: pixels.flatten(1).amin(1)[:, None, None, None],
    "mean": lambda pixels: pixels.flatten(1).mean(1)[:, None, None, None],
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
    product = _times_image(zoo, gradient.values, photos)
    rows = []
    for row, label in enumerate(ig.labels):
        rows.append([
            photos[row].rpartition("/")[2], label, f"{float(ig.output_value[row]):.3f}", f"{float(ig.gap[row]):.1e}",
            *(f"{_held(values[row]):.2f}" for values in (ig.values, product, gradient.values)),
        ])  # fmt: skip
    report.table(
        "photographs",
        ["photograph", "top label", "score", "completeness gap", "integrated gradients: share in a tenth",
         "image × gradient", "gradient"],
        rows, "EfficientNet-Lite0. Share of |φ| that lies in the tenth of the pixels where it is largest; the image is "
        "counted from black, as in the integrals.",
    )  # fmt: skip
    report.must("a photograph's map has its size", tuple(ig.values.shape[1:]) == (3, 224, 224))
    figure, axes = pyplot.subplots(len(photos), 4, figsize=(12, 3.2 * len(photos)), layout="constrained", squeeze=False)
    for row, line in enumerate(axes):
        image = ig.image[row]
        maps = {"integrated gradients": ig.values, "image × gradient": product, "gradient": gradient.values}
        seen = [image.permute(1, 2, 0), *(_scaled(image, values[row]) for values in maps.values())]
        titles = [f"{ig.labels[row]}, {float(ig.output_value[row]):.3f}", *(f"scaled by: {name}" for name in maps)]
        for axis, shown, title in zip(line, seen, titles, strict=True):
            axis.imshow(np.asarray(shown))
            axis.set_title(title, fontsize=9)
            axis.axis("off")
    report.figure("photographs", figure, "Pixels scaled by their attribution, as in the paper's Figure 2.")


def _times_image(zoo: Any, gradient: Tensor, photos: list[str]) -> Tensor:
    """The gradient times how far each pixel is from black."""
    pixels = zoo.processor([Image.open(path) for path in photos])["pixel_values"]
    return gradient * (pixels - zoo.processor.normalised(torch.zeros(1, 3, 1, 1)))


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
    greys = {name: grey(pixels) for name, grey in GREYS.items()}
    maps, converged = _maps(zoo.model, pixels, classes, greys)
    rows, means = [], {}
    for colour, grey in greys.items():
        drops = {
            title: [before - _painted(zoo.model, pixels, values, classes, share, grey) for share in SHARES]
            for title, values in maps.items()
        }
        ours, theirs = (drops[f"{name}, from {colour}"] for name in ("integrated gradients", "image × gradient"))
        drops[f"from {colour}: integrated gradients, less image × gradient"] = [
            a - b for a, b in zip(ours, theirs, strict=True)
        ]
        means |= {(colour, title): float(found[-2].mean()) for title, found in drops.items()}
        rows += [[colour, title, *(around(d, least=-1, most=1) for d in found)] for title, found in drops.items()]
    report.table(
        f"painting-{name.removeprefix('zoo:')}",
        ["painted over with", "highest ranked by", *(f"{s:.0%}" for s in SHARES)], rows,
        f"`{name}`, {len(pixels)} {taken}, mean probability {float(before.mean()):.3f}: what of it is lost with the "
        "share of pixels that is ranked highest, mean with its 95 % interval. Integrals begin at black or at the "
        "image's mean, and the image that multiplies the gradient is counted from there; seed 0; "
        f"{sum(converged)} of {len(converged)} integrals within their tolerance.",
    )  # fmt: skip
    report.must(f"{name}: a tenth by integrated gradients matters more than a random tenth",
                means["black", "integrated gradients, from black"] > means["black", "random"])  # fmt: skip


def _maps(
    model: Any, pixels: Tensor, classes: Tensor, greys: dict[str, Tensor]
) -> tuple[dict[str, Tensor], list[bool]]:
    """What ranks the pixels, and whether each integral is within its tolerance."""

    def values(method: str, **how: Any) -> Any:
        return whence.explain(model, {"pixel_values": pixels}, method=method, target=classes, **how)

    integrals = {
        name: values("integrated_gradients", baseline={"pixel_values": grey.expand_as(pixels)})
        for name, grey in greys.items()
    }
    gradient = values("gradient").values
    maps = {
        **{f"integrated gradients, from {name}": a.values for name, a in integrals.items()},
        **{f"image × gradient, from {name}": (pixels - grey) * gradient for name, grey in greys.items()},
        "gradient": gradient.abs(),
        "random": values("random").values,
    }
    return maps, [each for a in integrals.values() for each in a.receipt["converged"]]


def _images(zoo: Any, report: Report) -> tuple[Tensor, str]:
    if not report.quick:
        pixels, _ = data.fashion("t10k")
        return zoo.processor.normalised(pixels[:200]), "test images"
    return zoo.processor([Image.open(path) for path in zoo.examples])["pixel_values"], "images of the zoo"


def _logits(model: Any, pixels: Tensor) -> Tensor:
    found = model(pixel_values=pixels)
    return found if isinstance(found, Tensor) else found.logits


@torch.no_grad()
def _painted(model: Any, pixels: Tensor, values: Tensor, classes: Tensor, share: float, grey: Tensor) -> Tensor:
    """The class's probability without the share of pixels that the map ranks highest."""
    count = round(share * pixels[0].numel())
    highest = values.flatten(1).topk(count, 1).indices
    without = pixels.flatten(1).scatter(1, highest, grey.flatten(1).expand(-1, count)).view_as(pixels)
    return _logits(model, without).softmax(1).gather(1, classes[:, None])[:, 0]
