"""One call of both packages, and what has to be the same."""

from __future__ import annotations

from typing import Any

import captum.attr
import torch
from torch import Tensor, nn

import whence.captum

BOTH = (captum.attr, whence.captum)


class Two(nn.Module):
    """Two inputs and two more arguments, with a layer for each input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(2, 4)
        self.relu, self.last = nn.ReLU(), nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor, scale: Any = 1.0, word: str = "") -> Tensor:
        return self.last(self.relu(self.a(x) + self.b(y))) * scale


class Pair(nn.Module):
    """A layer that takes two tensors and gives two."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(x), 2 * y


class Pairs(nn.Module):
    """A model with such a layer in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.pair, self.last = nn.Linear(3, 4), Pair(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.pair(self.a(x), x.sum(1, keepdim=True))
        return self.last(one + other)


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.pool = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2)
        self.last = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(self.relu(self.conv(x))).flatten(1))


def models() -> dict[str, Any]:
    """The models, the same every time."""
    torch.manual_seed(0)
    dense = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    made = {"dense": dense, "two": Two(), "pairs": Pairs(), "pictures": Pictures()}
    for model in made.values():
        model.eval()
    return made


def draw(*shape: int) -> Tensor:
    """The same numbers for the same shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def flat(value: Any) -> list[Any]:
    """All tensors of an answer, in order."""
    return [t for item in value for t in flat(item)] if isinstance(value, tuple | list) else [value]


def check_same(ours: Any, theirs: Any, tolerance: float | None = 1e-6) -> None:
    """The same forms, shapes and dtypes, and the same numbers relative to the largest, unless they are random."""
    assert type(ours) is type(theirs)
    for one, other in zip(flat(ours), flat(theirs), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if tolerance is not None and one.numel():
            assert float((one - other).abs().max()) <= tolerance * max(1.0, float(other.abs().max()))
