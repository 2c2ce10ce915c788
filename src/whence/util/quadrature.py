"""Quadrature on [0, 1]: fixed rules, and the weights with which interpolants through given nodes integrate panels."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Nodes = Sequence[float]


@functools.cache
def fixed(rule: str, steps: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The nodes and weights of a rule; weights sum to 1, so that a constant is integrated exactly."""
    if rule == "gauss_legendre":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return (nodes + 1) / 2, weights / 2
    if rule == "trapezoid":
        weights = np.full(steps + 1, 1 / steps)
        weights[[0, -1]] /= 2
        return np.arange(steps + 1) / steps, weights
    if rule == "clenshaw_curtis":  # at (1 − cos iπ/n)/2 for even n
        i, j = np.arange(steps + 1), np.arange(steps // 2 + 1)
        terms = np.where((j == 0) | (j == steps // 2), 1.0, 2.0) / (1 - 4.0 * j * j)
        weights = (np.cos(2 * np.pi * np.outer(i, j) / steps) * terms).sum(1) / steps
        weights[[0, -1]] /= 2
        return (1 - np.cos(np.pi * i / steps)) / 2, weights
    offset = {"right": 1.0, "left": 0.0, "midpoint": 0.5}[rule]
    return (np.arange(steps) + offset) / steps, np.full(steps, 1 / steps)


def panels(nodes: Nodes, points: int) -> NDArray[np.float64]:
    """Weights (panels, nodes): row p integrates, over [node p, node p+1], the interpolant through the `points` nodes
    around it."""
    x = np.asarray(nodes, dtype=np.float64)
    points, count = min(points, len(x)), len(x) - 1
    first = np.clip(np.arange(count) - (points - 2) // 2, 0, len(x) - points)
    around = first[:, None] + np.arange(points)  # (panels, points)
    width = np.diff(x)
    relative = (x[around] - x[:count, None]) / width[:, None]
    weights = np.zeros((count, len(x)))
    np.put_along_axis(weights, around, width[:, None] * _cardinals(relative), axis=1)
    return weights


def _cardinals(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """The integrals over [0, 1] of the polynomials that are 1 at one node of each row and 0 at the others."""
    points = x.shape[1]
    at, weights = fixed("gauss_legendre", (points + 1) // 2)
    apart = x[:, :, None] - x[:, None, :]  # (panels, i, j)
    ratio = (at[:, None, None, None] - x[:, None, :]) / np.where(apart == 0, 1, apart)  # (at, panels, i, j)
    ratio[:, :, range(points), range(points)] = 1
    return np.tensordot(weights, ratio.prod(-1), 1)
