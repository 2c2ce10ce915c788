"""An explanation as a segmentation of its image (Chefer, Gur & Wolf 2021): masks are 1 on the object, 0 elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError
from whence.evaluation.metrics import metric
from whence.evaluation.requests import Result, View

_PAPER = "Chefer, Gur & Wolf 2021, arXiv:2012.09838"
_FACTS: dict[str, Any] = {"paper": _PAPER, "better": "higher", "of": "images", "needs": ("mask",), "within": (0, 1)}


@metric("segmentation_accuracy", order=100, **_FACTS, combine=lambda sums: _share(sums))
def segmentation_accuracy(view: View, *, ignore: int = 255) -> Result:
    """The share of all labelled pixels on the right side: above the map's own mean is the object."""
    found, gold = _sides(view, ignore)
    counts = {"right": float((found == gold).sum()), "labelled": float(len(gold))}
    return Result(_share(counts), counts)


@metric("segmentation_iou", order=100, **_FACTS, combine=lambda sums: _iou(sums))
def segmentation_iou(view: View, *, ignore: int = 255) -> Result:
    """Mean over object and background of intersection over union, both summed over the data set."""
    found, gold = _sides(view, ignore)
    counts = {}
    for name, side in (("object", True), ("background", False)):
        counts[f"{name} intersection"] = float(((found == side) & (gold == side)).sum())
        counts[f"{name} union"] = float(((found == side) | (gold == side)).sum())
    return Result(_iou(counts), counts)


@metric("segmentation_ap", order=100, **_FACTS)
def segmentation_ap(view: View, *, ignore: int = 255) -> Result:
    """Average precision of [1 − R, R] against [background, object], flattened together; mean over images."""
    whole, gold, labelled = _map(view, ignore)
    scores = whole[labelled]
    both = torch.cat([1 - scores, scores])
    return Result(average_precision(both, torch.cat([~gold, gold])))


def _share(sums: dict[str, float]) -> float:
    return sums["right"] / sums["labelled"] if sums["labelled"] else float("nan")


def _iou(sums: dict[str, float]) -> float:
    parts = [
        sums[f"{name} intersection"] / sums[f"{name} union"]
        for name in ("object", "background")
        if sums[f"{name} union"]
    ]
    return sum(parts) / len(parts) if parts else float("nan")


def on_mask(view: View, ignore: int) -> tuple[Tensor, Tensor, Tensor]:
    """The map in the mask's size, the object's pixels, and which pixels are labelled: (height, width) each."""
    example, mask = view.example, view.example.mask
    assert mask is not None
    scores = view.scores.view(1, 1, *example.shape)
    if tuple(mask.shape) != example.shape:
        bent = abs(mask.shape[0] / mask.shape[1] - example.shape[0] / example.shape[1]) > 0.02
        if bent or example.cropped:
            why = "of which the model sees only a part" if example.cropped else "with another aspect ratio"
            raise InputError(
                f"The mask has shape {tuple(mask.shape)}, but the image has shape {example.shape}, {why}.\n"
                "  Give the mask of the image as the model sees it."
            )
        scores = torch.nn.functional.interpolate(scores, tuple(mask.shape), mode="bilinear", align_corners=False)
    labelled = torch.ones_like(mask, dtype=torch.bool) if mask.dtype == torch.bool else mask != ignore
    return scores[0, 0], mask.bool() & labelled, labelled


def _map(view: View, ignore: int) -> tuple[Tensor, Tensor, Tensor]:
    """The whole map from 0 to 1; of labelled pixels, whether they are the object's, and which they are."""
    scores, gold, labelled = on_mask(view, ignore)
    low, high = scores.amin(), scores.amax()
    return (scores - low) / (high - low).clamp(min=1e-300), gold[labelled], labelled


def _sides(view: View, ignore: int) -> tuple[Tensor, Tensor]:
    scores, gold, labelled = _map(view, ignore)
    return (scores > scores.mean())[labelled], gold


def average_precision(scores: Tensor, gold: Tensor) -> float:
    """Σ (recall_k − recall_{k−1}) · precision_k over distinct scores; NaN where nothing is gold."""
    total = int(gold.sum())
    if total == 0:
        return float("nan")
    ranked, order = scores.sort(descending=True)
    hits = gold[order].double().cumsum(0)
    last = torch.cat([ranked[1:] != ranked[:-1], torch.ones(1, dtype=torch.bool, device="cpu")])  # ties are taken whole
    hits, seen = hits[last], (torch.arange(len(scores), device="cpu") + 1)[last]
    rises = torch.diff(hits, prepend=hits.new_zeros(1))
    return float((rises * hits / seen).sum() / total)
