"""Transformer Attribution (Chefer, Gur & Wolf 2021): perturbation, segmentation, ablations, two classes of one image.

On `zoo:mosaic-vit`, a vision transformer with the paper's grid of 14 × 14 patches, whose mosaics come with masks; and,
for methods of convolutional networks, on EfficientNet-Lite0 with photographs of horses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from matplotlib import pyplot
from PIL import Image
from torch.nn import functional as F

import whence
from reproductions import horses
from reproductions.ranks import part, verdicts
from reproductions.report import Report, around, scored
from whence.evaluation.bootstrap import wilson
from whence.zoo.training import mosaics
from whence.zoo.training.fashion import LABELS

OURS = "transformer_attribution"
BLACK = {"baseline": "black"}
METHODS: dict[str, dict[str, Any]] = {
    "rollout": {}, "raw_attention": {}, "attention_gradcam": {}, "lrp": {}, "partial_lrp": {}, OURS: {},
    "generic_attention": {}, "attcat": {}, "gradient": {"absolute": True}, "integrated_gradients": BLACK,
    "deeplift": BLACK, "attnlrp": {},
}  # fmt: skip
PAPERS = ("rollout", "raw_attention", "attention_gradcam", "lrp", "partial_lrp", OURS)  # the rows of its tables
POOLED = ("lrp", "gradient", "integrated_gradients", "deeplift", "attnlrp")  # those which have a value per pixel
ABLATIONS = {
    "without ∇A": {"method": OURS, "weight": "attention"},
    "last block only": {"method": OURS, "blocks": "last"},
    "first block only": {"method": OURS, "blocks": "first"},
}
CONVOLUTIONAL: dict[str, dict[str, Any]] = {
    "gradient": {"absolute": True}, "input_x_gradient": {}, "smoothgrad": {"samples": 10, "kind": "square"},
    "guided_backprop": {}, "grad_cam": {}, "guided_grad_cam": {}, "deeplift": BLACK, "lrp": {}, "attnlrp": {},
    "integrated_gradients": {**BLACK, "rule": "gauss_legendre", "steps": 32},
}  # fmt: skip
CONTROLS = ("random", "edges")
PERTURBATION = ["perturbation_positive", "perturbation_negative"]
SEGMENTATION = ["segmentation_accuracy", "segmentation_iou", "segmentation_ap"]
AREA = (
    "100 · the area under the accuracy as 0 … 90 % of the pixels turn black. Positive: the most relevant first, lower "
    "is better; negative: the least relevant first, higher is better. "
)


def run(report: Report) -> None:
    model = whence.load("zoo:mosaic-vit")
    one, two = _mosaics(report)
    right = float((_predicted(model, one) == one.classes[:, 0]).double().mean())
    low, high = wilson(right, len(one.images))
    source = "shipped with the model" if report.quick else "made of the test split, seed 5"
    report.say(f"`zoo:mosaic-vit` on {len(one.images)} mosaics with one item, {source}. Base accuracy {right:.3f} "
               f"[{low:.3f}, {high:.3f}]. Brackets are 95 % intervals over images; seed 0.")  # fmt: skip
    first = _tables(report, model, one)
    _target(report, model, one, first)
    _classes(report, model, two)
    _pictures(report, model, one, two)
    with report.part("Convolutional methods: EfficientNet-Lite0 on photographs of horses"):
        _horses(report)


def _mosaics(report: Report) -> tuple[mosaics.Mosaics, mosaics.Mosaics]:
    """With one item, and with two of different classes."""
    if report.quick:
        given = mosaics.shipped()
        return _some(given, slice(0, 2)), _apart(_some(given, slice(32, 38)))
    parts = mosaics.parts("t10k")
    return mosaics.compose(parts, range(384), seed=5, two=0.0), _apart(
        mosaics.compose(parts, range(220), seed=6, two=1.0)
    )


def _methods(report: Report) -> dict[str, dict[str, Any]]:
    """All, or in a quick run the paper's."""
    return {name: how for name, how in METHODS.items() if not report.quick or name in PAPERS}


def _some(given: mosaics.Mosaics, which: Any) -> mosaics.Mosaics:
    return mosaics.Mosaics(given.images[which], given.classes[which], given.masks[which])


def _apart(given: mosaics.Mosaics) -> mosaics.Mosaics:
    return _some(given, given.classes[:, 0] != given.classes[:, 1])


def _rows(given: mosaics.Mosaics) -> list[dict[str, Any]]:
    return [
        {"image": Image.fromarray(image[0].numpy()), "label": LABELS[int(classes[0])], "mask": masks[0]}
        for image, classes, masks in zip(given.images, given.classes, given.masks, strict=True)
    ]


@torch.no_grad()
def _predicted(model: Any, given: mosaics.Mosaics) -> torch.Tensor:
    return mosaics.said(model, given)[:, 0]


# ---- Tables 1, 2 and 3 ----


def _tables(report: Report, model: Any, one: mosaics.Mosaics) -> Any:
    board = whence.evaluate(
        model, _rows(one), methods={**_methods(report), **ABLATIONS}, metrics=[*PERTURBATION, *SEGMENTATION], chunk=16,
        resume=report.kept(f"predicted-{len(one.images)}.jsonl"),
    )  # fmt: skip
    first = part(board, [*METHODS, *CONTROLS])
    report.heading("Table 1: perturbation, the predicted class explained")
    report.board("perturbation_predicted", part(first, None, PERTURBATION), AREA)
    report.say(verdicts(first, PERTURBATION))
    report.figure("perturbation", _curves(part(board, [*PAPERS, "random"])), "Accuracy as pixels turn black, the "
                  "predicted class explained: the methods of the paper's Table 1.")  # fmt: skip
    report.heading("Table 2: segmentation")
    report.board("segmentation", part(first, None, SEGMENTATION), "Pixel accuracy, mean intersection over union, "
                 "average precision; the object is what lies above the map's own mean; the predicted class "
                 "explained.")  # fmt: skip
    report.say(verdicts(first, SEGMENTATION))
    _against(report, "against", first, [name for name in _methods(report) if name != OURS])
    report.heading("Table 3: ablations")
    report.board("ablations", part(board, [OURS, *ABLATIONS]), "Without ∇A: each block's relevance is multiplied by "
                 "its attention, not by its gradient. Last and first block: that block's map alone.")  # fmt: skip
    _against(report, "against_ablations", board, list(ABLATIONS))
    report.heading("Beyond the paper: methods with a value per pixel, at the resolution of patches")
    pooled = {f"{name}, per patch": _pooled(name, METHODS[name]) for name in POOLED if name in _methods(report)}
    patches = whence.evaluate(
        model, _rows(one), methods={OURS: {}, **pooled}, metrics=SEGMENTATION,
        resume=report.kept(f"patches-{len(one.images)}.jsonl"),
    )  # fmt: skip
    report.board("per_patch", patches, "A patch's values are added up, and the map of "
                 "14 × 14 is stretched bilinearly, as the maps of attention are.")  # fmt: skip
    _certain(report, board)
    return first


def _pooled(name: str, how: dict[str, Any]) -> Callable[..., Any]:
    """A method's values, summed within each patch and stretched to the image."""

    def pooled(model: Any, inputs: Any, targets: Any) -> Any:
        a = whence.explain(model, inputs, method=name, target=targets.tolist(), **how)
        patches = F.avg_pool2d(a.values, mosaics.PATCH)
        return F.interpolate(patches, (mosaics.SIDE, mosaics.SIDE), mode="bilinear", align_corners=False)

    return pooled


def _certain(report: Report, board: Any) -> None:
    """What holds whatever the model has learned."""
    for name in board.methods:
        for metric in PERTURBATION:
            curve: Any = board.curve(name, metric)
            report.must(f"{name}'s curve has 10 points from 0 to 0.9", len(curve[0]) == 10 and curve[0][-1] == 0.9)
            start: Any = board.curve("random", metric)
            report.must(f"{name}'s curve begins at the base accuracy", abs(curve[1][0] - start[1][0]) < 1e-9)
        report.must(f"{name} segments pixels", 0 <= board[name, "segmentation_accuracy"].value <= 1)
    found, chance = (board[name, "segmentation_ap"].value for name in (OURS, "random"))
    report.must("Transformer Attribution finds the item better than chance", found > chance + 0.1)
    if not report.quick:
        means = [board["random", metric].value for metric in PERTURBATION]
        report.must("at random it does not matter which end goes first", abs(means[0] - means[1]) < 5)
        ours = board.difference("perturbation_negative", OURS, "random")
        report.must("Transformer Attribution keeps the class longer than chance", ours.low > 0)


def _against(report: Report, file: str, board: Any, names: Sequence[str]) -> None:
    """How each differs from Transformer Attribution, in pairs over images."""
    rows = []
    for name in names:
        found = [board.difference(metric, name, OURS) for metric in board.metrics]
        rows.append([name, *(scored(d, "+.3f") for d in found)])
    report.table(file, ["method", *board.metrics], rows, f"Each less `{OURS}`, image by image, with paired 95 % "
                 "intervals, not adjusted for their number.")  # fmt: skip


def _curves(board: Any) -> Any:
    figure, axes = pyplot.subplots(1, 2, figsize=(12, 4), layout="constrained")
    for axis, metric in zip(axes, PERTURBATION, strict=True):
        board.plot(metric, axis)
        axis.set(xlabel="share of pixels that are black", ylabel="accuracy")
    axes[1].get_legend().remove()  # it is the same, and would lie on a line
    return figure


def _target(report: Report, model: Any, one: mosaics.Mosaics, first: Any) -> None:
    """Where the prediction is right, the target's explanation is the prediction's: only the others are explained."""
    report.heading("Table 1: perturbation, the target class explained")
    wrong = (_predicted(model, one) != one.classes[:, 0]).nonzero().flatten().tolist()
    board = part(first, None, PERTURBATION)
    if wrong:
        board = _replaced(board, wrong, _of_targets(report, model, _some(one, wrong)))
    report.board("perturbation_target", board, AREA)
    report.say(verdicts(board))
    _against(report, "against_target", board, [name for name in _methods(report) if name != OURS])


def _of_targets(report: Report, model: Any, one: mosaics.Mosaics) -> Any:
    return whence.evaluate(
        model, _rows(one), methods=_methods(report), metrics=PERTURBATION, target="label", chunk=16,
        resume=report.kept(f"label-{len(one.images)}.jsonl"),
    )  # fmt: skip


def _replaced(board: Any, rows: Sequence[int], other: Any) -> Any:
    """A scoreboard in which these rows are those of another."""
    results = {
        cell: {row: found for row, found in own.items() if row not in rows}
        | {rows[place]: found for place, found in other.results[cell].items()}
        for cell, own in board.results.items()
        if cell in other.results
    }
    return replace(board, results={cell: dict(sorted(own.items())) for cell, own in results.items()})


# ---- Figure 4 as numbers: does the map of a class lie on that class's item? ----


def _classes(report: Report, model: Any, two: mosaics.Mosaics) -> None:
    report.heading("The class-agnostic claim: two items in one image, each class explained")
    pixels = model.processor.normalised(two.images)
    rows = []
    for name in (*METHODS, "random"):
        follow = partial(_followed, model, pixels, two, name)
        found = report.once(f"two-{name}", follow, model, pixels, METHODS.get(name))
        hits, alike = (torch.tensor(part).double() for part in found)
        share, mean = float(hits.mean()), float(alike.mean())
        rows.append(
            [name, around(hits.mean(0), least=0, most=1), around(alike, least=-1, most=1)]
        )  # the two classes of an image are one case
        if name in ("rollout", "raw_attention"):
            report.must(f"{name} gives both classes one map", bool(alike.min() > 1 - 1e-6))
            report.must(f"{name} prefers one item for both classes", share == 0.5)
        if name == OURS:
            report.must("Transformer Attribution prefers the item of the explained class", share > 0.5)
        if name == "random":
            report.must("random maps of two classes have nothing in common", abs(mean) < 0.1)
    heads = ["method", "the map prefers its class's item", "correlation of the two maps"]
    report.table("two_classes", heads, rows, f"{len(pixels)} images with items of two classes. First: how often the "
                 "map's mean over the item of the explained class is higher than over the other item; 0.5 is chance, "
                 "and what a method gets that ignores the class. Bootstrap-t intervals over images; none where "
                 "all are alike.")  # fmt: skip


def _followed(model: Any, pixels: torch.Tensor, two: Any, name: str) -> tuple[list[Any], list[Any]]:
    """For each image and class, whether the map prefers that class's item; for each image, the maps' correlation."""
    maps = [_maps(model, pixels, two.classes[:, place], name, seed=place) for place in (0, 1)]
    hits = []
    for place, found in enumerate(maps):
        own, other = (_mean(found, two.masks[:, p]) for p in (place, 1 - place))
        hits.append((own > other).double() + 0.5 * (own == other).double())
    flat = [found.flatten(1) - found.flatten(1).mean(1, keepdim=True) for found in maps]
    return torch.stack(hits).tolist(), F.cosine_similarity(flat[0], flat[1], dim=1).tolist()


def _maps(model: Any, pixels: torch.Tensor, classes: torch.Tensor, name: str, seed: int = 0) -> torch.Tensor:
    """One map per image, (n, 56, 56)."""
    found = []
    for start in range(0, len(pixels), 25):
        some = slice(start, start + 25)
        how: dict[str, Any] = (
            {"baseline": float(model.processor.normalised(torch.zeros(1)))} if METHODS.get(name) is BLACK else {}
        )
        seeds = [1000 * seed + row for row in range(len(pixels))[some]]
        a: Any = whence.explain(model.model, pixels[some], method=name, target=classes[some], seed=seeds, **how)
        values = a.to_image_size().values if a.image_size is not None else a.values.sum(1)
        found.append((values.abs() if name == "gradient" else values).double())
    return torch.cat(found)


def _mean(found: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    return (found * masks).sum((1, 2)) / masks.sum((1, 2))


# ---- Figures 2 and 4 ----


def _pictures(report: Report, model: Any, one: mosaics.Mosaics, two: mosaics.Mosaics) -> None:
    report.heading("Figures 2 and 4")
    shown = _some(one, slice(0, 4))
    _grid(report, model, shown, shown.classes[:, :1], "methods", "Figure 2: one item, methods side by side; each map "
          "is scaled by itself, negative values are not shown.")  # fmt: skip
    pair = _some(two, slice(0, 3))
    _grid(report, model, pair, pair.classes, "two_classes", "Figure 4: two items; each class of the image "
          "explained; each map is scaled by itself, negative values are not shown.")  # fmt: skip


def _grid(report: Report, model: Any, given: Any, classes: torch.Tensor, name: str, caption: str) -> None:
    shown = (*PAPERS, "generic_attention", "integrated_gradients")
    pixels = model.processor.normalised(given.images)
    each = classes.shape[1]
    figure, axes = pyplot.subplots(
        len(pixels) * each, len(shown) + 1, figsize=(1.0 * (len(shown) + 1), 1.1 * len(pixels) * each),
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for place in range(each):
        maps = {method: _maps(model, pixels, classes[:, place], method) for method in shown}
        for row in range(len(pixels)):
            line = axes[row * each + place]
            line[0].imshow(given.images[row, 0], cmap="gray")
            line[0].set_title(LABELS[int(classes[row, place])], fontsize=7)
            for axis, (method, found) in zip(line[1:], maps.items(), strict=True):
                axis.imshow(given.images[row, 0], cmap="gray")
                axis.imshow(found[row].clamp(min=0), cmap="inferno", alpha=0.7)
                if row + place == 0:
                    axis.set_title(method.replace("_", "\n"), fontsize=6)
    for axis in axes.flat:
        axis.axis("off")
    report.figure(name, figure, caption)


# ---- photographs ----


def _horses(report: Report) -> None:
    model, rows = horses.model(), horses.rows(report.size(24, 2))
    chosen = {n: how for n, how in CONVOLUTIONAL.items() if not report.quick or n in ("gradient", "grad_cam")}
    board = whence.evaluate(
        model, rows, methods=chosen, metrics=SEGMENTATION if report.quick else [*PERTURBATION, *SEGMENTATION],
        batch_size=16, resume=report.kept(f"horses-{len(rows)}.jsonl"),
    )  # fmt: skip
    if not report.quick:
        curve: Any = board.curve("random", PERTURBATION[0])
        base = curve[1][0]
        low, high = wilson(base, len(rows))
        report.say(f"{len(rows)} photographs, label sorrel, the only class of horses in ImageNet. Base accuracy "
                   f"{base:.3f} [{low:.3f}, {high:.3f}]. The predicted class is explained.")  # fmt: skip
        report.say(verdicts(board))
    report.board("horses", board, "Integrated gradients with 32 points of Gauss and Legendre; Grad-CAM at the last "
                 "maps; SmoothGrad is the mean square of 10 noisy gradients.")  # fmt: skip
    report.must("edges and random are in the table", set(CONTROLS) <= set(board.methods))
