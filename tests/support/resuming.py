"""An evaluation of a small model that can be resumed, here or in another process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import whence

X = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))


class Small(nn.Module):
    """Two layers and what is between them."""

    slope = 1.0

    def __init__(self, between: Any = torch.relu, power: int = 1) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
        self.between, self.power, self.calls = between, power, 0
        self.set = {"b", "a", "c"}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.second(self.between(self.first(x)) ** self.power) * self.slope


def told(model: Any, path: Path | None, **more: Any) -> str:
    given = {"methods": ["integrated_gradients"], "metrics": ["comprehensiveness"], "resume": path, **more}
    return whence.evaluate(model, X, **given).to_csv()


def closing(factor: float) -> Any:
    model = Small()
    return lambda x: model(x) * factor
