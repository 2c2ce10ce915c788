"""What attributions add up to, and what attributions of sums are."""

from __future__ import annotations

import torch
from torch import nn

from whence.evaluation.axioms.asker import Asker
from whence.evaluation.axioms.functions import Other, Sum
from whence.evaluation.axioms.registry import axiom, share, size, worst
from whence.evaluation.axioms.table import Finding
from whence.util.stats import score_scale

_UP, _DOWN = ((2.0, 0.5),), ((1.0, -2.0), (-1.5, -0.5))


@axiom("completeness", order=20, short="complete", paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365")
def completeness(ask: Asker) -> Finding:
    """Attributions add up to the difference of the scores, Σφ = f(x) − f(x').

    The number is the gap, |Σφ − Δf| / max(|Δf|, 0.1·max(|f(x)|, |f(x')|)).
    """
    points = ask.probe.rows
    after, before = ask.probe.f(points), ask.probe.f(ask.probe.at_baseline(points))
    change, total = after - before, ask.rows().sum
    violation = share((total - change).abs(), score_scale(after, before))
    return worst(ask, violation, points, lambda p: f"the sum is {total[p]:.4g}, the score moves by {change[p]:.4g}")


@axiom("linearity", order=20, short="linear", paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365")
def linearity(ask: Asker) -> Finding:
    """φ(a·f + b·g) = a·φ(f) + b·φ(g), for positive a and b; g is another target, or a random network."""
    return _combined(ask, _UP)


@axiom("linearity_negative", order=20, short="linear, negative")
def linearity_negative(ask: Asker) -> Finding:
    """The same with negative coefficients."""
    return _combined(ask, _DOWN)


def _combined(ask: Asker, coefficients: tuple[tuple[float, float], ...]) -> Finding:
    probe, points = ask.probe, ask.probe.rows
    g: nn.Module = probe.other or Other(probe.name, probe.tensor(points.x), ask.seed)
    one, two = ask.rows().phi, ask(points, g).phi
    found = []
    for a, b in coefficients:
        whole = ask(points, Sum(probe.score, g, a, b)).phi
        apart, scale = size(whole - (a * one + b * two)), size(a * one) + size(b * two)
        violation = share(apart, torch.maximum(scale, size(whole)))
        said = f"φ({a:g}·f {b:+g}·g) is off by"
        found.append(worst(ask, violation, points, lambda p, v=apart, s=said: f"{s} {v[p]:.3g}"))  # type: ignore[misc]
    return max(found, key=lambda finding: finding.number or 0.0)
