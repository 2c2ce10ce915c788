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
    offset = zlib.crc32(key.encode()) if key != next(iter(subject.values), key) else 0  # inputs are independent
    real = real_units(subject, key, value.shape)
    counts = [0] * subject.rows if real is None else real.sum(1).tolist()
    draws: dict[tuple[int, int], Tensor] = {}  # rows of one seed and length have the same
    for seed, count in zip(subject.seeds, counts, strict=True):
        if (seed, count) not in draws:
            generator = torch.Generator().manual_seed((seed * _SEED_STEP + sample + (offset << 24)) % 2**63)
            shape = value.shape[1:] if real is None else (count, *value.shape[2:])
            draws[seed, count] = torch.randn(shape, generator=generator, device="cpu").to(value)
    if real is None:
        return torch.stack([draws[own] for own in zip(subject.seeds, counts, strict=True)])
    noise = torch.zeros_like(value)
    for row, own in enumerate(zip(subject.seeds, counts, strict=True)):
        noise[row, real[row]] = draws[own]
    return noise


def generator(subject: Subject, row: int) -> torch.Generator:
    """A generator for the random choices of one row, from its seed alone."""
    return torch.Generator().manual_seed(subject.seeds[row] * _SEED_STEP % 2**63)


def uniform(subject: Subject, count: int) -> Tensor:
    """Uniform random numbers in [0, 1), in double precision: (rows, count)."""
    draws = {}
    for seed in dict.fromkeys(subject.seeds):
        generator = torch.Generator().manual_seed((seed * _SEED_STEP) % 2**63)
        draws[seed] = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
    return torch.stack([draws[seed] for seed in subject.seeds])
