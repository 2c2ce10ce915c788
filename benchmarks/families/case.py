"""One family: how to build it, what it eats, what is asked of it, and where its own attention stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.hf import Family

Inputs = Any  # a tensor, a tuple of tensors or a dict of them; rows first


@dataclass(frozen=True)
class Case:
    """A model by name; `build` takes the implementation of attention that is wanted, where there are several."""

    build: Callable[[str], nn.Module]
    inputs: Callable[[], Inputs]
    kind: str
    target: Any = 0
    attends: bool = True
    reports: bool = True  # whether `output_attentions` gives every map that it has
    kinds: tuple[str, ...] = ("sdpa", "eager")
    rtol: float | None = None  # how closely it agrees with itself, where that is not told by its dtypes
    dtype: torch.dtype = torch.float64
    parts: Any = None  # {input: where the output has its maps}, where an input has a stack of its own
    lay: Any = None  # (eager model, what is made, scores of positions) → scores of inputs, where that is not plain
    real: Any = None  # inputs → which positions are no padding, where the mask is not as long as the sequence


def of_tests(family: Family, kind: str, **options: Any) -> Case:
    return Case(
        family.build, family.inputs, kind, family.target, family.attends, kinds=family.kinds,
        **options,
    )  # fmt: skip


def draw(*shape: int, seed: int = 5) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ids(rows: int, n: int, low: int = 3, high: int = 60, seed: int = 4) -> Tensor:
    return torch.randint(low, high, (rows, n), generator=torch.Generator().manual_seed(seed))
