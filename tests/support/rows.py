"""Rows and models whose metrics are known in closed form."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import whence

W = torch.tensor([4.0, -3.0, 2.0, 1.0, 0.5, -0.25, 3.0, -2.0, 1.5, 0.75])


class Linear(nn.Module):
    """f₀ = w·x, and a second class that is always 0."""

    def __init__(self, w: Tensor = W) -> None:
        super().__init__()
        self.w = nn.Parameter(w.clone())

    def forward(self, x: Tensor) -> Tensor:
        score = x.flatten(1) @ self.w
        return torch.stack([score, torch.zeros_like(score)], 1)


X = torch.linspace(-1, 2, 60).view(6, 10)[:, torch.randperm(10, generator=torch.Generator().manual_seed(0))]


def image_model() -> nn.Module:
    return Linear(torch.linspace(-1, 1, 36))


IMAGES = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(1))


MASKS = torch.zeros(4, 6, 6)
MASKS[:, :3] = 1


class Pooled(nn.Module):
    """Embeddings pooled by attention of a vector: the paper's setting, with nothing after it but a linear layer."""

    def __init__(self, words: int = 12, width: int = 6) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed = nn.Embedding(words, width)
        self.key = nn.Linear(width, 1)
        self.out = nn.Linear(width, 3)

    def weights(self, ids: Tensor) -> Tensor:
        return self.key(self.embed(ids)).softmax(1)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.out((self.weights(input_ids) * self.embed(input_ids)).sum(1))


def every(board: whence.Scoreboard) -> Tensor:
    """(methods, metrics, rows)."""
    rows = sorted({row for found in board.results.values() for row in found})
    return torch.tensor(
        [[[board.results[m, c][row].value for row in rows] for c in board.metrics] for m in board.methods],
        dtype=torch.float64,
    )


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
