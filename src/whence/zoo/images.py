"""The image processor of the zoo's models of clothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Gray:
    """Square images in one channel, light on dark, normalised by Fashion-MNIST's mean and deviation."""

    size: int = 28
    image_mean: tuple[float, ...] = (0.2860,)
    image_std: tuple[float, ...] = (0.3530,)

    def __call__(self, images: Sequence[Any], return_tensors: str = "pt") -> dict[str, Tensor]:
        rows = [np.asarray(image.convert("L").resize((self.size, self.size))) for image in images]
        return {"pixel_values": self.normalised(torch.from_numpy(np.stack(rows))[:, None])}

    def normalised(self, pixels: Tensor) -> Tensor:
        """Bytes as the models take them."""
        return (pixels.float() / 255 - self.image_mean[0]) / self.image_std[0]
