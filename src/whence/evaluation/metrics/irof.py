"""IROF: superpixels go, the most relevant first (Rieger & Hansen 2020)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
import torch

from whence.errors import InputError
from whence.evaluation.metrics import Asking, metric
from whence.evaluation.metrics.shares import Output, trapezoid, values
from whence.evaluation.requests import Result, View
from whence.evaluation.superpixels import grid, slic
from whence.registry import Bounds

_POINTS = 20  # of its curve


@metric("irof", order=42, paper="Rieger & Hansen 2020, arXiv:2003.08747", better="higher", within_probability=(None, 1),
        of="images", operators=("mean",))  # fmt: skip
def irof(
    view: View, *, segments: Annotated[int, Bounds(low=2)] = 50, segmentation: Literal["slic", "grid"] = "slic",
    operator: Any = None, output: Output = "probability",
) -> Asking:  # fmt: skip
    """The area over p(x without superpixels) / p(x) as they go, by descending mean φ, and take the mean colour.

    `segmentation` is by clusters of colour and place (SLIC; Achanta et al. 2012) or by a grid.
    """
    example = view.example
    if not example.image:
        raise InputError("IROF removes superpixels, but the rows are not images.\n  Leave it out.")
    labels = slic(example.x[0], segments) if segmentation == "slic" else grid(example.shape, segments)
    flat = labels.flatten()
    number = int(flat.max()) + 1
    mean = torch.zeros(number, dtype=torch.float64, device="cpu").index_add(0, flat, view.scores)
    mean = mean / torch.bincount(flat, minlength=number)
    mixed = torch.randperm(number, generator=view.generator(6), device="cpu")  # ties by the seed
    order = mixed[mean[mixed].argsort(descending=True, stable=True)]
    rank = torch.empty(number, dtype=torch.long, device="cpu")
    rank[order] = torch.arange(number, device="cpu")
    gone = rank[flat]  # when each pixel goes
    asked = [view.without((gone < step).nonzero().flatten(), operator) for step in range(number + 1)]
    whole, *rest = values(view, (yield asked), output)
    if whole == 0:
        return Result(float("nan"))
    shares, y = [i / number for i in range(number + 1)], [1.0, *(p / whole for p in rest)]
    drawn = [i / _POINTS for i in range(_POINTS + 1)]  # images have different numbers of segments
    curve = drawn, [float(v) for v in np.interp(drawn, shares, y)]
    return Result(1 - trapezoid(y, shares), {"segments": float(number)}, curve)
