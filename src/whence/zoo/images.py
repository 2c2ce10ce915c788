"""The image processor of the zoo's Fashion-MNIST models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Gray:
    """Images in one channel of 28 × 28, light on dark, normalised by the training set's mean and deviation."""

    size, image_mean, image_std = 28, (0.2860,), (0.3530,)

    def __call__(self, images: Sequence[Any], return_tensors: str = "pt") -> dict[str, Tensor]:
        rows = [np.asarray(image.convert("L").resize((self.size, self.size))) for image in images]
        return {"pixel_values": self.normalised(torch.from_numpy(np.stack(rows))[:, None])}

    def normalised(self, pixels: Tensor) -> Tensor:
        """Bytes as the models take them."""
        return (pixels.float() / 255 - self.image_mean[0]) / self.image_std[0]
