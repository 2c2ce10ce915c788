"""Which methods are told apart, with the error that is promised: resampling in which the best is chosen anew each time.

Two resamplings have to agree, and the larger p counts. Exchanging the methods' scores within each row is exact where
equal methods are exchangeable. Flipping the sign of whole rows, centred, keeps each method's own spread, and is right
where equal methods scatter differently. Statistics are paired t; those who are told apart leave one by one
(Romano & Wolf 2005; Hansen, Lunde & Nason 2011), so that the bound follows how many are left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ERROR = 0.05  # the chance that any method is told apart wrongly
DRAWS = 999
_EXCHANGED = 512  # rows; with more of them, both resamplings say the same
_BLOCK, _AT_ONCE = 64, 1 << 18  # draws, and scores, that are held at once
_CLEAR = 199  # draws; where none of them reaches what was observed, p is 0.005, and more would change no answer
_NORM = 8  # close to the maximum, which has little power where one method leads all others by as much


def least_error(rows: int) -> float:
    """The smallest error that a statement from so many rows can have: each difference might have had either sign."""
    return 2.0 ** (1 - rows)


def telling(scores: Array) -> int:
    """Rows in which the methods differ at all, of scores (rows, methods)."""
    return int((np.ptp(scores, axis=1) > 0).sum())


def behind_best(scores: Array, weights: Array | None = None, seed: int = 0, draws: int = DRAWS) -> Array:
    """The p of each method being as good as the best, of scores (rows, methods); corrected, at least the error if left.

    In at most 5 % of data sets is any of those methods at 5 % or less which are as good as the best.
    """
    return _step_down(scores, scores[:, :0], weights, seed, draws)


def above_control(
    scores: Array, control: Array, weights: Array | None = None, seed: int = 0, draws: int = DRAWS
) -> Array:
    """The p of each method being no better than the control, of which there are some draws, (rows, draws); corrected.

    In at most 5 % of data sets is any of those methods at 5 % or less which are not better than the control.
    """
    return _step_down(scores, control, weights, seed, draws)


def _step_down(scores: Array, control: Array, weights: Array | None, seed: int, draws: int) -> Array:
    """Take out the method that is farthest from the best (above the control), as long as chance does not reach it."""
    rows, count = scores.shape
    w = np.ones(rows) / rows if weights is None else weights / weights.sum()
    found, left, reached = np.ones(count), list(range(count)), 0.0
    alone = 0 if control.shape[1] else 1
    if telling(np.hstack([scores, control])) < 2 or least_error(rows) > ERROR:
        return found
    while len(left) > alone:
        now = np.hstack([scores[:, left], control])
        apart = _apart(now, w, control.shape[1])
        farthest = int(apart.argmax())
        p = _chance(now, w, control.shape[1], _reach(apart, control.shape[1]), seed + len(left), draws)
        reached = max(reached, p)
        if reached > ERROR:
            break
        found[left.pop(farthest)] = reached
    found[left] = 1.0 if len(left) == alone else reached
    return found


def _reach(apart: Array, controls: int) -> Array:
    """How far methods are apart, as one number (…): the largest t above the control, or a norm of the best's leads."""
    return np.asarray(apart.max(-1) if controls else (apart**_NORM).sum(-1) ** (1 / _NORM))


def _chance(now: Array, w: Array, controls: int, observed: Array, seed: int, draws: int) -> float:
    """How often resampling reaches what was observed; the first that shows it to be usual ends the count."""
    if not observed > 0:
        return 1.0
    generator, limit = np.random.default_rng(seed), ERROR * (draws + 1)
    worst = 0.0
    resamplings: list[Callable[..., Array]] = [_flipped, _exchanged] if len(now) <= _EXCHANGED else [_flipped]
    for resampled in resamplings:
        reached, done = 1, 0
        block = max(1, min(draws, _BLOCK, _AT_ONCE // now.size))
        while done < draws and reached <= limit and not (reached == 1 and done >= _CLEAR):
            some = min(block, draws - done)
            reached += int((resampled(now, w, controls, some, generator) >= observed * (1 - 1e-9)).sum())
            done += some
        worst = max(worst, reached / (done + 1))
        if worst > ERROR:
            break
    return worst


def _exchanged(now: Array, w: Array, controls: int, draws: int, generator: np.random.Generator) -> Array:
    """The reach of each draw in which every row's scores are dealt to the methods anew, (draws,)."""
    dealt = generator.permuted(np.repeat(now[None], draws, 0), axis=-1)  # (draws, rows, methods)
    return _reach(_apart(dealt, w, controls), controls)


def _flipped(now: Array, w: Array, controls: int, draws: int, generator: np.random.Generator) -> Array:
    """The same, in which each row's scores, centred method by method, keep or change their sign together."""
    rows = len(now)
    values = now if not controls else now[:, :-controls] - now[:, -controls:].mean(1, keepdims=True)
    centred = values - w @ values
    signs = generator.integers(0, 2, (draws, rows)) * 2.0 - 1.0
    mean, cross = (signs * w) @ centred, (signs * w * w) @ centred
    square, tiny = (w * w) @ centred**2, rounding(now)
    if controls:
        return _reach(_t(mean, square - 2 * mean * cross + mean**2 * (w @ w), rows, tiny), controls)
    product = (centred * (w * w)[:, None]).T @ centred
    between = np.maximum(square[:, None] + square - 2 * product, 0)  # Σ w² (difference)², of each pair
    best = mean.argmax(1)
    ahead = np.take_along_axis(mean, best[:, None], 1) - mean
    crossed = np.take_along_axis(cross, best[:, None], 1) - cross
    return _reach(_t(ahead, between[best] - 2 * ahead * crossed + ahead**2 * (w @ w), rows, tiny), controls)


def _apart(scores: Array, w: Array, controls: int) -> Array:
    """Paired t of the best over each method, or of each method over the mean of its controls, (…, methods)."""
    rows = scores.shape[-2]
    if controls:
        difference = scores[..., :-controls] - scores[..., -controls:].mean(-1, keepdims=True)
    else:
        best = (w @ scores).argmax(-1)
        difference = np.take_along_axis(scores, best[..., None, None], -1) - scores
    mean = w @ difference
    square = (w * w) @ difference**2
    cross = (w * w) @ difference
    return _t(mean, square - 2 * mean * cross + mean**2 * (w @ w), rows, rounding(scores))


def _t(mean: Array, square: Array, rows: int, tiny: float) -> Array:
    """Mean over standard error; infinite where every row says the same, 0 where nothing differs or is behind."""
    error = np.sqrt(np.maximum(square, 0) * rows / (rows - 1))
    flat = error <= 1e-7 * np.abs(mean)
    found = np.where(flat, np.inf, mean / np.where(flat, 1.0, error))
    return np.where(mean <= tiny, 0.0, found)


def rounding(scores: Array) -> float:
    """What differences of such scores may be by rounding alone."""
    return 1e-12 * float(np.abs(scores).max())


def pairs(scores: Array, weights: Array | None = None, seed: int = 0, draws: int = DRAWS) -> tuple[Array, Array]:
    """Of all pairs of methods (a before b), the corrected p and the effect: mean difference / its standard deviation.

    Step-down over the largest |t| (Westfall & Young 1993), rows' signs flipped both as they are and centred: in at most
    5 % of data sets is any of the pairs at 5 % or less whose methods are equally good.
    """
    rows = len(scores)
    w = np.ones(rows) / rows if weights is None else weights / weights.sum()
    first, second = np.triu_indices(scores.shape[1], 1)
    difference = scores[:, first] - scores[:, second]
    mean, tiny = w @ difference, rounding(scores)
    spread = np.sqrt(np.maximum(w @ (difference - mean) ** 2 / max(1 - w @ w, 1e-12), 0))
    effect = np.where(spread > tiny, mean / np.where(spread > tiny, spread, 1), np.copysign(np.inf, mean))
    effect = np.where(np.abs(mean) <= tiny, 0.0, effect)
    return different(difference, w, tiny, seed, draws), effect


def different(difference: Array, w: Array, tiny: float, seed: int = 0, draws: int = DRAWS) -> Array:
    """The corrected p of each mean being 0, of differences (rows, several) and weights that sum to 1.

    What is not above `tiny` is rounding.
    """
    rows, several = difference.shape
    if rows < 2 or least_error(rows) > ERROR:
        return np.ones(several)
    mean, observed = w @ difference, _size(difference, w, np.ones((1, rows)), tiny)[0]
    order, signs = observed.argsort()[::-1], np.random.default_rng(seed).integers(0, 2, (draws, rows)) * 2.0 - 1.0
    worst = np.zeros(several)
    for given in (difference, difference - mean):
        drawn = _size(given[:, order], w, signs, tiny)
        largest = np.maximum.accumulate(drawn[:, ::-1], axis=1)[:, ::-1]
        p = (1 + (largest >= observed[order] * (1 - 1e-9)).sum(0)) / (draws + 1)
        worst[order] = np.maximum(worst[order], np.maximum.accumulate(p))
    return np.where(observed > 0, worst, 1.0)


def _size(difference: Array, w: Array, signs: Array, tiny: float) -> Array:
    """|t| of each difference, rows' signs as given, (draws, differences)."""
    mean, cross = (signs * w) @ difference, (signs * w * w) @ difference
    square = (w * w) @ difference**2 - 2 * mean * cross + mean**2 * (w @ w)
    return _t(np.abs(mean), square, len(difference), tiny)
