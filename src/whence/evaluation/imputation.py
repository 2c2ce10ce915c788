"""Noisy linear imputation (Rong et al. 2022): a removed pixel is the weighted mean of its neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

_AROUND = torch.tensor(
    [[1 / 12, 1 / 6, 1 / 12], [1 / 6, 0, 1 / 6], [1 / 12, 1 / 6, 1 / 12]], dtype=torch.float64, device="cpu"
)


def imputed(x: Tensor, keep: Tensor, noise: float, draws: Sequence[torch.Generator]) -> Tensor:
    """Copies (m, channels, height, width) of an image (1, …), what (m, 1, height, width) does not keep solved for.

    Weights are 1/6 beside and 1/12 across, renormalised at the borders. With A the weights between pixels and D their
    sums, the removed pixels solve (D − A)u = A·(kept), one system per copy; it is symmetric, so that conjugate
    gradients solve all of them together. Each copy's noise comes from a generator of its own.
    """
    known = keep.to(torch.float64)
    gone = 1 - known
    image = x.detach().to("cpu", torch.float64)
    total = _around(torch.ones_like(known[:1]))  # D
    channels = image.shape[1]
    gone = gone.expand(-1, channels, -1, -1)
    right = gone * _around(image * known)
    found = _solved(lambda u: gone * (total * u - _around(u)), right, image.mean((2, 3), keepdim=True) * gone)
    if noise:
        shape = found.shape[1:]
        found = found + noise * torch.stack(
            [torch.randn(shape, generator=own, dtype=torch.float64, device="cpu") for own in draws]
        )
    return (image * known + gone * found).to(x)


def _around(image: Tensor) -> Tensor:
    rows, channels, height, width = image.shape
    flat = image.reshape(rows * channels, 1, height, width)
    return F.conv2d(flat, _AROUND[None, None], padding=1).view_as(image)


def _solved(matrix: object, right: Tensor, start: Tensor, tolerance: float = 1e-9) -> Tensor:
    """Conjugate gradients, each copy and channel by itself."""
    assert callable(matrix)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum((2, 3), keepdim=True)

    u = start
    rest = right - matrix(u)
    way = rest
    size = dot(rest, rest)
    wanted = tolerance**2 * dot(right, right).clamp(min=1e-30)
    for _ in range(4 * max(right.shape[2:]) + 50):
        if bool((size <= wanted).all()):
            break
        along = matrix(way)
        step = size / dot(way, along).clamp(min=1e-300)
        u = u + step * way
        rest = rest - step * along
        new = dot(rest, rest)
        way = rest + (new / size.clamp(min=1e-300)) * way
        size = new
    return u
