"""What two methods have in common in each row: the share of their totals that they place alike, 1 − ½·Σ|a − b|."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.runs.units import Block

Array = np.ndarray[Any, Any]


def shares_of(block: Block) -> tuple[Array, Array]:
    """Each unit's share of its row's Σ|φ| (methods, units), special tokens left out as NaN; and what those have.

    The second is (methods, rows): the part of all magnitudes that special tokens take.
    """
    values = block.values
    rows = len(block)
    whole = _summed(np.abs(values), block.owner, rows)
    plain = _summed(np.where(block.special, 0.0, np.abs(values)), block.owner, rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(block.special, np.nan, values / np.where(plain > 0, plain, np.nan)[:, block.owner])
        aside = np.where(whole > 0, 1 - plain / whole, np.nan)
    return shares, aside


def _summed(values: Array, owner: Array, rows: int) -> Array:
    """Sums by row along the last dimension."""
    return np.stack([np.bincount(owner, own, rows) for own in values])


def common(a: Array, b: Array, owner: Array, rows: int, plain: Array, signed: bool) -> Array:
    """What two methods have in common in each row, of magnitudes unless both have a sign; NaN where one has nothing."""
    apart = a - b if signed else np.abs(a) - np.abs(b)
    total = np.bincount(owner[plain], np.abs(apart[plain]), rows)
    some = np.bincount(owner[plain], minlength=rows) > 0
    return np.where(some, np.clip(1 - total / 2, 0.0, 1.0), np.nan)


def by_chance(shares: Array, owner: Array, rows: int, plain: Array, signed: bool) -> Array:
    """What a method has on average in common with its own numbers, dealt anew among the units of the row.

    All n² pairs of units are equally likely to meet: 1 − ½·ΣΣ|aᵢ − aⱼ|/n, by one sort.
    """
    own = (shares if signed else np.abs(shares))[plain]
    at = owner[plain]
    order = np.lexsort((own, at))
    own, at = own[order], at[order]
    counts = np.bincount(at, minlength=rows)
    rank = np.arange(len(at)) - (np.cumsum(counts) - counts)[at] + 1
    pairs = 2 * np.bincount(at, (2 * rank - counts[at] - 1) * own, rows)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(counts > 0, 1 - pairs / np.maximum(counts, 1) / 2, np.nan)
