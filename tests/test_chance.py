"""What draws random numbers in eval mode, and what stumbles over the values that a method gives it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence

X = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))


class Noisy(nn.Module):
    def __init__(self, size: float) -> None:
        super().__init__()
        self.linear, self.size = nn.Linear(3, 2), size

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x + self.size * torch.rand_like(x))


@pytest.mark.parametrize("method", ["gradient", "occlusion", "shapley_value_sampling", "lime", "lrp"])
def test_a_score_that_changes_by_chance_is_warned_of(method: str) -> None:
    with pytest.warns(whence.WhenceWarning, match=r"draws random numbers in eval mode.*by up to \d"):
        whence.explain(Noisy(1.0), X, method=method, target=0)


def test_lots_that_change_nothing_are_none_of_our_business() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whence.explain(Noisy(0.0), X, method="occlusion", target=0)


class LeavesOutZeros(nn.Module):
    """As some models do with images that are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        kept = x[(x != 0).any(1)]
        return self.linear(kept).view(len(x), 2)


@pytest.mark.parametrize("method", ["deeplift", "integrated_gradients"])
def test_a_model_that_does_not_take_the_baseline(method: str) -> None:
    model = LeavesOutZeros()
    with pytest.raises(whence.ModelError, match="It takes the inputs themselves, but not the values"):
        whence.explain(model, X, method=method, target=0)
    a = whence.explain(model, X, method=method, target=0, baseline=torch.full_like(X, 0.1))
    assert float(a.gap.max()) < 1e-5


@pytest.mark.parametrize("given", [[[1, 2, 3]], np.array([[1, 2, 3]]), torch.tensor([[1, 2, 3]])])
def test_integers_for_features_say_what_to_do(given: Any) -> None:
    with pytest.raises(whence.ModelError, match=r"x\.float\(\), or array\.astype\(float\)"):
        whence.explain(nn.Linear(3, 2), given, method="gradient", target=0)
