"""Images in superpixels: by a grid, or by clusters of colour and place (SLIC; Achanta et al. 2012)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_ROUNDS = 10
_COLOUR = 3.0  # steps of the grid that a standard deviation of colour is as far as


def grid(shape: Sequence[int], segments: int) -> Tensor:
    """Rectangles of nearly equal size, about so many, as their numbers (height, width)."""
    height, width = shape
    down = min(height, max(1, round(math.sqrt(segments * height / width))))
    right = min(width, max(1, round(segments / down)))
    row = torch.arange(height, device="cpu") * down // height
    column = torch.arange(width, device="cpu") * right // width
    return row[:, None] * right + column


def slic(image: Tensor, segments: int) -> Tensor:
    """About so many clusters of an image (channels, height, width), as their numbers from 0 on (height, width).

    k-means on (colour, place) from the centres of a grid: each pixel goes to the nearest centre among those of cells
    around its own cell of the grid. Colours count by their spread over the image, places by the grid's step.
    """
    colours = image.detach().cpu().double()
    colours = colours - colours.mean((1, 2), keepdim=True)
    _, height, width = colours.shape
    start = grid((height, width), segments)
    count = int(start.max()) + 1
    step = math.sqrt(height * width / count)
    spread = colours.flatten(1).std(1, correction=0).amax().clamp(min=1e-12)
    places = torch.stack(torch.meshgrid(
        torch.arange(height, dtype=torch.float64, device="cpu"), torch.arange(width, dtype=torch.float64, device="cpu"),
        indexing="ij",
    )) / step  # fmt: skip
    points = torch.cat([_COLOUR * colours / spread, places]).flatten(1).T  # (pixels, features)
    labels = start.flatten()
    cells = _means(places.flatten(1).T, labels, count)
    near = torch.cdist(places.flatten(1).T, cells, p=math.inf) <= 2.0  # (pixels, clusters)
    for _ in range(_ROUNDS):
        far = torch.cdist(points, _means(points, labels, count))
        new = far.masked_fill(~near, math.inf).argmin(1)
        if torch.equal(new, labels):
            break
        labels = new
    return labels.unique(return_inverse=True)[1].view(height, width)


def _means(points: Tensor, labels: Tensor, count: int) -> Tensor:
    """The centre of each cluster; that of an empty one is far away."""
    sizes = torch.bincount(labels, minlength=count)
    sums = points.new_zeros(count, points.shape[1]).index_add(0, labels, points)
    return torch.where(sizes[:, None] > 0, sums / sizes[:, None].clamp(min=1), 1e6)
