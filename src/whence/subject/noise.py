"""Random numbers that depend only on the row's seed and the unit's position among the row's real units."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from whence.subject.masks import real_units
from whence.subject.subject import Subject
from whence.util.checks import not_allowed
from whence.util.keys import input_of, inputs_of

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
        each = [draws[own] for own in zip(subject.seeds, counts, strict=True)] if len(draws) > 1 else [*draws.values()]
        return torch.stack(each).expand_as(value)
    noise = torch.zeros_like(value)
    for row, own in enumerate(zip(subject.seeds, counts, strict=True)):
        noise[row, real[row]] = draws[own]
    return noise


def deviations(subject: Subject, noise: Any, relative: bool) -> dict[str, Tensor]:
    """The standard deviation of each row's noise, (rows, 1, …) by explained value; `relative` to the row's range."""
    names = inputs_of(subject.values)
    given = dict(zip(names, noise, strict=False)) if isinstance(noise, tuple | list) else noise
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(names, given)
    fine = by_name.keys() <= set(names) and not (isinstance(noise, tuple | list) and len(noise) != len(names))
    if not fine or not all(map(_is_deviation, by_name.values())):
        wanted = "a number, at least 0, or a dict or tuple with one for each explained input"
        raise not_allowed("noise", noise, wanted, subject.method)
    found = {}
    for key, value in subject.values.items():
        ones = value.new_ones(len(value), *[1] * (value.dim() - 1))
        found[key] = float(by_name.get(input_of(key), 0)) * (_ranges(subject, key, value) if relative else ones)
    return found


def _is_deviation(number: Any) -> bool:
    return isinstance(number, Real) and not isinstance(number, bool) and 0 <= float(number) < math.inf


def _ranges(subject: Subject, key: str, value: Tensor) -> Tensor:
    """Each row's largest minus smallest real value, (rows, 1, …)."""
    real = real_units(subject, key, value.shape)
    flat = value.reshape(len(value), -1)
    if real is not None:
        keep = real.view(*real.shape, *[1] * (value.dim() - 2)).expand_as(value).reshape(len(value), -1)
        low = flat.masked_fill(~keep, float("inf")).amin(1)
        high = flat.masked_fill(~keep, float("-inf")).amax(1)
    else:
        low, high = flat.amin(1), flat.amax(1)
    apart = high - low
    return apart.where(apart > 0, torch.zeros_like(apart)).view(-1, *[1] * (value.dim() - 1))


def generator(subject: Subject, row: int) -> torch.Generator:
    """A generator for the random choices of one row, from its seed alone."""
    return torch.Generator().manual_seed(subject.seeds[row] * _SEED_STEP % 2**63)


def uniform(subject: Subject, count: int) -> Tensor:
    """Uniform random numbers in [0, 1), in double precision: (rows, count)."""
    draws = {}
    for seed in dict.fromkeys(subject.seeds):
        generator = torch.Generator().manual_seed((seed * _SEED_STEP) % 2**63)
        draws[seed] = torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
    each = [draws[seed] for seed in subject.seeds] if len(draws) > 1 else [*draws.values()]
    return torch.stack(each).expand(len(subject.seeds), -1)
