"""Small runs: a model that workers can import, rows in files, and what makes two runs the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

MODEL = "tests.support.runs:small"


class Small(nn.Module):
    """Two layers on six features."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def small() -> nn.Module:
    return Small()


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    drawn = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)).tolist()
    return [{"inputs": row, "label": number % 3, "id": f"r{number}"} for number, row in enumerate(drawn)]


def written(path: Path, count: int = 40) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows(count)))
    return path


def parts(folder: Path) -> dict[str, bytes]:
    """Every file of the answers, by its name."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.glob("[oe]*/*"))}
