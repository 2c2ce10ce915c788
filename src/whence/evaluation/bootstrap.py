"""95 % intervals of means over rows: bootstrap-t or Student's, whichever reaches farther; Wilson's of proportions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
DRAWS = 1000
_Z = 1.959963984540054  # the normal distribution's 97.5 % point
_MOST = 1 << 22  # counts of rows in draws that are held at once
_BEYOND = 1e100  # standard errors: a draw without spread


def interval(values: Array, weights: Array | None = None, seed: int = 0) -> tuple[Array, Array]:
    """The 95 % intervals of means over rows, of values (rows, several); NaN where the rows allow none.

    Bootstrap-t (Efron & Tibshirani 1993, ch. 12), not narrower than Student's on either side, both times 1 + 1/rows:
    small samples seldom show the tails of what they come from. Where more than 2.5 % of the draws hold equal values
    only, the rows are too few, or too alike, for an interval. Weights are how often each row came.
    """
    values = np.asarray(values, dtype=float)
    rows, w = len(values), _shares(len(values), weights)
    if rows < 2:
        return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
    mean = w @ values
    centred = values - mean
    error = _error((w * w) @ centred**2, rows)
    error[error <= 1e-12 * np.abs(values).max(0)] = 0  # nothing but rounding
    student = np.empty((DRAWS, values.shape[1]))
    for start, counts in draws(rows, seed):
        student[start : start + len(counts)] = _studentised(counts, centred, w, error, rows)
    low, high = np.quantile(student, (0.025, 0.975), axis=0)
    wide = (1 + 1 / rows) * error
    least = student_quantile(rows - 1)
    below, above = wide * np.maximum(high, least), wide * np.maximum(-low, least)
    none = (np.maximum(high, -low) > 1e-3 * _BEYOND) | ~(error > 0)  # a quantile between a draw and one without spread
    return np.where(none, np.nan, mean - below), np.where(none, np.nan, mean + above)


def _studentised(counts: Array, centred: Array, w: Array, error: Array, rows: int) -> Array:
    """(mean of a draw − mean) / standard error of the draw, (draws, several)."""
    whole = (counts @ w)[:, None]
    mean = counts @ (w[:, None] * centred) / whole
    square = (w * w)[:, None]
    moments = [counts @ (square * centred**power) for power in (2, 1)] + [counts @ square]
    spread = _error((moments[0] - 2 * mean * moments[1] + mean**2 * moments[2]) / whole**2, rows)
    flat = spread <= 1e-6 * error
    return np.where(flat, np.sign(mean) * 2 * _BEYOND, mean / np.where(flat, 1, spread))


def _error(square: Array, rows: int) -> Array:
    return np.asarray(np.sqrt(np.maximum(square, 0) * rows / (rows - 1)))


def _shares(rows: int, weights: Array | None) -> Array:
    given = np.ones(rows) if weights is None else np.asarray(weights, dtype=float)
    return np.asarray(given / given.sum())


def draws(rows: int, seed: int) -> Any:
    """How often each row comes in each draw, (some draws, rows), part by part, so that many rows need little room."""
    generator = np.random.default_rng(seed)
    step = max(1, min(DRAWS, _MOST // rows))
    for start in range(0, DRAWS, step):
        count = min(step, DRAWS - start)
        picks = generator.integers(0, rows, (count, rows)) + rows * np.arange(count)[:, None]
        yield start, np.bincount(picks.ravel(), minlength=count * rows).reshape(count, rows).astype(float)


def wilson(share: float, rows: float) -> tuple[float, float]:
    """The 95 % interval of a proportion: Wilson's score interval with continuity correction (Newcombe 1998)."""
    n, p, z = rows, share, _Z
    base, whole = 2 * n * p + z * z, 2 * (n + z * z)
    reach = [z * math.sqrt(max(z * z - 1 / n + 4 * n * p * (1 - p) + side * (4 * p - 2), 0.0)) + 1 for side in (1, -1)]
    low = 0.0 if p <= 0 else max(0.0, (base - reach[0]) / whole)
    return low, 1.0 if p >= 1 else min(1.0, (base + reach[1]) / whole)


def effective(rows: int, weights: Array | None) -> float:
    """How many rows of equal weight tell as much (Kish 1965)."""
    return float(1 / (_shares(rows, weights) ** 2).sum())


def student_quantile(freedom: int) -> float:
    """Student's 97.5 % point; Hill's expansion (1970), and the exact values where that is too short."""
    exact = {1: 12.7062047, 2: 4.3026527, 3: 3.1824463, 4: 2.7764451}
    if freedom in exact:
        return exact[freedom]
    z, v = _Z, float(freedom)
    return (
        z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )  # fmt: skip


def pseudo_values(statistic: Callable[[Array], float], parts: Array) -> Array:
    """What each row adds to a statistic of sums over rows (Tukey's jackknife), with the statistic as their mean."""
    total, rows = parts.sum(0), len(parts)
    whole = statistic(total)
    own = np.array([rows * whole - (rows - 1) * statistic(total - part) for part in parts])
    return own - own.mean() + whole
