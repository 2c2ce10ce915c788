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
    offset = {"right": 1.0, "left": 0.0, "midpoint": 0.5}[rule]
    return (np.arange(steps) + offset) / steps, np.full(steps, 1 / steps)


def panels(nodes: Nodes, points: int) -> NDArray[np.float64]:
    """Weights (panels, nodes): row p integrates, over [node p, node p+1], the interpolant through the `points` nodes
    around it."""
    points = min(points, len(nodes))
    found = np.zeros((len(nodes) - 1, len(nodes)))
    for p in range(len(nodes) - 1):
        first = max(0, min(p - (points - 2) // 2, len(nodes) - points))
        width = nodes[p + 1] - nodes[p]
        around = tuple((node - nodes[p]) / width for node in nodes[first : first + points])
        found[p, first : first + points] = width * np.array(_cardinals(around))
    return found


@functools.lru_cache(maxsize=65536)
def _cardinals(nodes: tuple[float, ...]) -> tuple[float, ...]:
    """The integrals over [0, 1] of the polynomials that are 1 at one node and 0 at the others."""
    x = np.array(nodes)
    points, weights = np.polynomial.legendre.leggauss((len(x) + 1) // 2)
    at = (points + 1) / 2
    found = []
    for i in range(len(x)):
        others = np.delete(x, i)
        values = np.prod((at[:, None] - others) / (x[i] - others), axis=1)
        found.append(float((values * weights).sum() / 2))
    return tuple(found)
