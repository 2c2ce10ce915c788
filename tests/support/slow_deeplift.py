"""DeepLIFT, slowly."""

from __future__ import annotations

import torch
from torch import nn


def windows_of(pool: nn.MaxPool2d, shape: torch.Size) -> tuple[list[list[int]], torch.Size]:
    channels, height, width = shape
    k, s, p = pool.kernel_size, pool.stride, pool.padding
    rows, columns = (range(-p, size + p - k + 1, s) for size in (height, width))
    windows = [
        [(c * height + i) * width + j for i in range(top, top + k) for j in range(left, left + k)
         if 0 <= i < height and 0 <= j < width]
        for c in range(channels) for top in rows for left in columns
    ]  # fmt: skip
    return windows, torch.Size((channels, len(rows), len(columns)))
