"""Random numbers that depend only on the row's seed and the unit's position among the row's real units."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from whence.subject.masks import real_units
from whence.subject.subject import Subject

_SEED_STEP = 1_000_003  # so that the samples of one seed never meet those of the next


def gaussian(subject: Subject, sample: int) -> dict[str, Tensor]:
    """Standard normal noise for each explained value; padding gets 0. The global random state is not used."""
    return {key: normal(subject, key, value, sample) for key, value in subject.values.items()}


def normal(subject: Subject, key: str, value: Tensor, sample: int) -> Tensor:
    """Standard normal noise in the shape of one explained value; padding gets 0."""
    return torch.stack([_row(subject, key, value, row, sample) for row in range(subject.rows)])


def generator(subject: Subject, row: int) -> torch.Generator:
    """A generator for the random choices of one row, from its seed alone."""
    return torch.Generator().manual_seed(subject.seeds[row] * _SEED_STEP % 2**63)


def _row(subject: Subject, key: str, value: Tensor, row: int, sample: int) -> Tensor:
    offset = zlib.crc32(key.encode()) if key != next(iter(subject.values), key) else 0  # inputs are independent
    generator = torch.Generator().manual_seed((subject.seeds[row] * _SEED_STEP + sample + (offset << 24)) % 2**63)
    real = real_units(subject, key, value.shape)
    if real is None:
        draw = torch.randn(value.shape[1:], generator=generator, device="cpu")
        return draw.to(value)
    noise = value.new_zeros(value.shape[1:])
    count = int(real[row].sum())
    noise[real[row]] = torch.randn(count, *value.shape[2:], generator=generator, device="cpu").to(value)
    return noise


def uniform(subject: Subject, count: int) -> Tensor:
    """Uniform random numbers in [0, 1), in double precision: (rows, count)."""
    draws = []
    for seed in subject.seeds:
        generator = torch.Generator().manual_seed((seed * _SEED_STEP) % 2**63)
        draws.append(torch.rand(count, generator=generator, dtype=torch.float64, device="cpu"))
    return torch.stack(draws)
