"""The four fields of the league: a model, rows with what people marked, methods and metrics that apply there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image

import whence
from reproductions import horses
from reproductions.texts import posts, toxicity
from whence.zoo.training import data, mosaics
from whence.zoo.training.fashion import LABELS

Methods = dict[str, dict[str, Any]]
SUMMED = {"channels": "sum_abs"}  # a layer norm follows the embedding: the sum of a gradient is 0
LRP: Methods = {
    "lrp": {},
    "lrp, epsilon": {"method": "lrp", "composite": "epsilon"},
    "lrp, gamma": {"method": "lrp", "composite": "gamma"},
    "lrp, alpha_beta": {"method": "lrp", "composite": "alpha_beta"},
    "attnlrp": {},
}
ATTENTION: Methods = {
    "raw_attention": {}, "rollout": {}, "attention_gradcam": {}, "generic_attention": {}, "attention_gradients": {},
    "attention_x_gradient": {}, "grad_sam": {}, "cat": {}, "attcat": {}, "partial_lrp": {},
    "transformer_attribution": {}, "cp_lrp": {}, "attention_flow": {}, "attention_gradient": {},
}  # fmt: skip
TEXTS: Methods = {
    "gradient": SUMMED, "input_x_gradient": {}, "smoothgrad": {"samples": 10, **SUMMED}, "guided_backprop": SUMMED,
    "deconvnet": SUMMED, "integrated_gradients": {"baseline": "pad"},
    "expected_gradients": {"baseline": ["zero", "pad"], "samples": 20}, "deeplift": {"baseline": "pad"},
    "deeplift, reveal_cancel": {"method": "deeplift", "baseline": "pad", "rule": "reveal_cancel"},
    "deepshap": {"baseline": ["zero", "pad"]}, "internal_influence": {"baseline": "pad", **SUMMED},
    **LRP, **ATTENTION, "leave_one_out": {"baseline": "pad"},
    "occlusion": {"window": 3, "stride": 1, "baseline": "pad"},
    "shapley": {"exact": 6, "samples": 2, "baseline": "pad"}, "kernel_shap": {"samples": 128, "baseline": "pad"},
    "lime": {"samples": 128, "baseline": "pad"}, "context_cite": {"samples": 128, "baseline": "pad"},
}  # fmt: skip
_BLACK = {"baseline": "black"}
_BOTH = {"baseline": ["black", "mean"]}


def _removing(side: int) -> Methods:
    """Methods that black out random sets of squares."""
    sampled = {"units": side, "samples": 128, **_BLACK}
    return {
        "shapley": {"units": side, "samples": 2, **_BLACK}, "kernel_shap": sampled, "lime": sampled,
        "context_cite": sampled,
    }  # fmt: skip


_PIXELS: Methods = {
    "gradient": {"absolute": True}, "input_x_gradient": {}, "smoothgrad": {"samples": 10, "kind": "square"},
    "guided_backprop": {}, "deconvnet": {}, "deeplift": _BLACK, "deepshap": _BOTH,
    "expected_gradients": {"samples": 20, **_BOTH}, "internal_influence": {**_BLACK, **SUMMED},
}  # fmt: skip
GRID: Methods = {
    **_PIXELS, "integrated_gradients": _BLACK, **LRP, **ATTENTION,
    "occlusion": {"window": 8, "stride": 4, **_BLACK}, "leave_one_out": {"units": 4, **_BLACK}, **_removing(8),
}  # fmt: skip
PHOTOS: Methods = {
    **_PIXELS, "internal_influence": {"steps": 16, **_BLACK, **SUMMED}, "expected_gradients": {"samples": 10, **_BOTH},
    "integrated_gradients": {**_BLACK, "rule": "gauss_legendre", "steps": 32}, **LRP, "grad_cam": {},
    "guided_grad_cam": {}, "occlusion": {"window": 48, "stride": 32, **_BLACK},
    "leave_one_out": {"units": 32, **_BLACK}, **_removing(32),
}  # fmt: skip

SHARES: Methods = {"comprehensiveness": {}, "sufficiency": {}, "log_odds": {}, "aopc": {}}
CURVES: Methods = {"deletion": {"steps": 10}, "insertion": {"steps": 10}}
SUBSETS: Methods = {"infidelity": {"samples": 10}}
ROAD: Methods = {"road_morf": {"k": (20, 50, 80)}, "road_lerf": {"k": (20, 50, 80)}}
WORDS: Methods = {"rationale_f1": {}, "rationale_ap": {}}
MASKS: Methods = {"segmentation_accuracy": {}, "segmentation_iou": {}, "segmentation_ap": {}, "pointing_game": {}}


@dataclass(frozen=True)
class Field:
    """A model and rows; `faithful` and `plausible` are metrics, with their parameters."""

    name: str
    what: str
    model: Callable[[], Any]
    rows: Callable[[int], list[dict[str, Any]]]
    count: int
    methods: Methods
    faithful: dict[str, dict[str, Any]]
    plausible: dict[str, dict[str, Any]]
    target: Any = "predicted"
    batch_size: int | None = None


# ---- texts ----


def _posts(count: int) -> list[dict[str, Any]]:
    """Posts with the characters that people marked as toxic."""
    return [{**row, "label": 1} for row in posts(count)]


def _reviews(count: int) -> list[dict[str, Any]]:
    """Sentences of film reviews; marked are the words that by themselves say what the sentence says."""
    found = [row for row in map(_review, data.trees("test")) if row is not None]
    return found[:: max(1, len(found) // count)][:count]


def _review(phrases: list[tuple[str, int, bool]]) -> dict[str, Any] | None:
    """One sentence, or nothing where it is neutral or no word speaks for it."""
    text, label, _ = next(phrase for phrase in phrases if phrase[2])
    if label == 2:
        return None
    said, spans, place = data.natural(text), [], 0
    for word, own, whole in phrases:
        if whole or " " in word:
            continue
        start = said.find(data.natural(word), place)
        if start >= 0:
            place = start + len(data.natural(word))
            if own != 2 and (own > 2) == (label > 2):
                spans.append((start, place))
    return {"text": said, "label": int(label > 2), "rationale": spans} if spans else None


# ---- images ----


def _mosaics(count: int) -> list[dict[str, Any]]:
    made = mosaics.compose(mosaics.parts("t10k"), range(count), seed=7, two=0.0)
    return mosaic_rows(made)


def mosaic_rows(made: mosaics.Mosaics) -> list[dict[str, Any]]:
    return [
        {"image": Image.fromarray(image[0].numpy()), "label": LABELS[int(classes[0])], "mask": masks[0]}
        for image, classes, masks in zip(made.images, made.classes, made.masks, strict=True)
    ]


FIELDS = (
    Field("toxic_posts", "bert-tiny-toxicity on SemEval-2021's toxic posts, the class toxic, against the marked spans",
          toxicity, _posts, 64, TEXTS, {**SHARES, **CURVES, **SUBSETS}, WORDS, target=1),
    Field("reviews", "zoo:sentiment on test sentences of the Stanford Sentiment Treebank, against the words that say "
          "by themselves what the sentence says", lambda: whence.load("zoo:sentiment"), _reviews, 64, TEXTS,
          {**SHARES, **CURVES, **SUBSETS}, WORDS),
    Field("mosaics", "zoo:mosaic-vit on mosaics with one item, against the item's mask",
          lambda: whence.load("zoo:mosaic-vit"), _mosaics, 48, GRID, {**SHARES, **CURVES, **SUBSETS, **ROAD}, MASKS),
    Field("horses", "EfficientNet-Lite0 on photographs of horses, against the horse's mask", horses.model, horses.rows,
          24, PHOTOS, {**SHARES, **CURVES}, MASKS, batch_size=16),
)  # fmt: skip
