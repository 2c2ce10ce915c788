"""Two classifiers of Fashion-MNIST: a CNN, and a vision transformer of Hugging Face's architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.adapters.load import load
from whence.adapters.wrapped import Wrapped, wrap
from whence.zoo.images import Gray
from whence.zoo.models import FashionCnn
from whence.zoo.training import data
from whence.zoo.training.loop import Recipe, Trained, fit, shuffled

LABELS = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_FILES = [f"{name.replace(' ', '-').lower()}.png" for name in LABELS]


def cnn(seed: int) -> Trained:
    torch.manual_seed(seed)
    arguments = {"width": 16, "labels": len(LABELS)}
    images, labels = data.fashion("train")
    model = FashionCnn(**arguments)
    _fit(model, images, labels, epochs=6, size=128, rate=4e-3, moved=True, title="fashion-cnn")
    wrapped = wrap(model, Gray(), task="image-classification", labels=LABELS)
    return Trained(wrapped, {"arguments": arguments, "labels": LABELS}, _write_examples)


def vit(seed: int) -> Trained:
    """The CNN of the zoo teaches it (Touvron et al. 2021): half of the target is the CNN's prediction."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256, image_size=28, patch_size=7,
        num_channels=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1,
        id2label=dict(enumerate(LABELS)), label2id={name: i for i, name in enumerate(LABELS)},
    )  # fmt: skip
    model = ViTForImageClassification(config)
    model.vit.embeddings.position_embeddings.data[0, 1:] = patch_places(4, config.hidden_size)
    images, labels = data.fashion("train")
    images, labels = torch.cat([images, images.flip(-1)]), labels.repeat(2)  # mirrored, clothes stay what they are
    wanted = (F.one_hot(labels, len(LABELS)) + cnn_says(images)) / 2
    _fit(model, images, wanted, epochs=8, size=64, rate=1e-3, moved=False, title="fashion-vit")
    return Trained(wrap(model, Gray()), None, _write_examples)


@torch.no_grad()
def cnn_says(images: Tensor) -> Tensor:
    """The CNN's probabilities, softened."""
    teacher = load("zoo:fashion-cnn")
    parts = teacher.processor.normalised(images).split(500)
    return torch.cat([(_scores(teacher.model, part) / 2).softmax(1) for part in parts])


def patch_places(side: int, width: int) -> Tensor:
    """Patches begin with waves along both axes as their places: a small transformer learns much faster so."""
    waves = 100 ** -(torch.arange(width // 4, device="cpu") / (width // 4))
    down, across = torch.meshgrid(torch.arange(side, device="cpu"), torch.arange(side, device="cpu"), indexing="ij")
    angles = [place.flatten()[:, None] * waves for place in (across, down)]
    return 0.5 * torch.cat([wave for angle in angles for wave in (angle.sin(), angle.cos())], 1)


def _fit(
    model: nn.Module, images: Tensor, wanted: Tensor, *, epochs: int, size: int, rate: float, moved: bool, title: str
) -> None:
    normalised = Gray().normalised

    def loss(rows: list[int]) -> Tensor:
        shown = _moved(images[rows]) if moved else images[rows]
        return F.cross_entropy(_scores(model, normalised(shown)), wanted[rows])

    count = epochs * len(images) // size
    fit(model, shuffled(len(images), size), loss, count=count, rate=rate, decay=0.05, title=title)


@torch.no_grad()
def measure(wrapped: Wrapped) -> dict[str, float]:
    images, labels = data.fashion("t10k")
    parts = wrapped.processor.normalised(images).split(500)
    found = torch.cat([_scores(wrapped.model, part).argmax(1) for part in parts])
    return {"test accuracy": float((found == labels).double().mean())}


def _write_examples(folder: Path) -> None:
    """The first test image of each kind."""
    from PIL import Image

    images, labels = data.fashion("t10k")
    for number, name in enumerate(_FILES):
        first = images[labels == number][0, 0]
        Image.fromarray(first.numpy()).save(folder / name, optimize=True)


def _scores(model: nn.Module, pixels: Tensor) -> Any:
    found = model(pixel_values=pixels)
    return found if isinstance(found, Tensor) else found.logits


def _moved(images: Tensor) -> Tensor:
    """Half of them mirrored, all of them moved by at most one pixel."""
    mirrored = torch.where(torch.rand(len(images), 1, 1, 1, device="cpu") < 0.5, images.flip(-1), images)
    across, down = torch.randint(0, 3, (2,), device="cpu").tolist()
    return F.pad(mirrored, (1, 1, 1, 1))[..., down : down + 28, across : across + 28]


_CARD = {
    "task": "image-classification",
    "what": "which of ten kinds of clothing an image of 28 × 28 shows",
    "data": "Fashion-MNIST (Xiao et al. 2017): 60,000 images to learn from, 10,000 to measure on",
    "licence": "weights Apache-2.0; Fashion-MNIST and the example images are MIT, © 2017 Zalando SE",
    "limits": "light things on a black ground, centred and upright; shirts are often taken for T-shirts, pullovers and "
    "coats; a photograph gets a class all the same",
}
CNN = Recipe(cnn, measure, {**_CARD, "architecture": "four convolutions, two poolings, two dense layers"}, _FILES)
VIT = Recipe(
    vit,
    measure,
    {
        **_CARD,
        "architecture": "ViT, 3 layers of 4 heads, 128 wide, patches of 7 × 7; half of what it learned from is what "
        "zoo:fashion-cnn says of the images and of their mirror images (Touvron et al. 2021)",
    },
    _FILES,
)
