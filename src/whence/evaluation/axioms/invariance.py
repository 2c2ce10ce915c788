"""Whether attributions depend on how a function is written."""

from __future__ import annotations

import torch

from whence.errors import InputError
from whence.evaluation.axioms.asker import Asker, NotMeasured
from whence.evaluation.axioms.points import Points, Probe, together
from whence.evaluation.axioms.registry import axiom, share, size, worst
from whence.evaluation.axioms.rewrites import Rewritten, folded, rewrites
from whence.evaluation.axioms.table import Finding

_EQUAL = 1e-5  # of the largest score, in float32 and finer
_ASIDE = 1e-3  # of the way to the baseline


@axiom(
    "implementation_invariance",
    order=30,
    short="impl. invariant",
    paper="Sundararajan, Taly & Yan 2017, arXiv:1703.01365",
)
def implementation_invariance(ask: Asker) -> Finding:
    """Two networks that compute the same function get the same attributions.

    The model is written in other ways, each checked to give the same scores; the user's own equivalents count too. The
    number is the largest difference, as a share of the row's largest attribution. Where every rewriting that applies is
    a linear one, no difference proves nothing: "not refuted".
    """
    points = around(ask.probe)
    found = ask.probe.once("equal ways", lambda: equal_ways(ask.probe, points))
    if not found:
        raise NotMeasured("no rewriting applies to this model")
    one = ask(points).phi
    findings, failed = [], []
    for way in found:
        try:
            two = ask(points, way.function).phi
        except Exception as error:  # a method may know no rule for this spelling
            failed.append(f"{way.name} ({str(error).splitlines()[0]})")
            continue
        apart, scale = size(one - two), size(one).maximum(size(two))
        said = f"written with {way.name}, attributions differ by"
        findings.append(
            worst(ask, share(apart, scale), points, lambda p, v=apart, s=said: f"{s} {v[p]:.3g}")  # type: ignore[misc]
        )
    if not findings:
        raise NotMeasured(f"it failed on every rewriting: {'; '.join(failed)}")
    worse = max(findings, key=lambda finding: finding.number or 0.0)
    told = any(way.tells for way in found)
    verdict = "not refuted" if worse.verdict == "yes" and not told else worse.verdict
    tried = ", ".join(way.name for way in found) + (f"; failed: {'; '.join(failed)}" if failed else "")
    return Finding(worse.number, verdict, worse.witness, f"tried: {tried}")


def around(probe: Probe) -> Points:
    """Points next to the rows and on the way to their baselines.

    Not the rows themselves: at a kink, as where an input of zeros meets a ReLU, a derivative is a convention of the
    spelling and no property of the method.
    """
    rows, draw = probe.rows, torch.Generator().manual_seed(0)
    apart = rows.x - rows.baseline
    shape = rows.x.shape[1:]  # the same noise for all rows
    noise = torch.randn(shape, generator=draw, dtype=torch.float64, device="cpu").to(rows.x)
    if probe.real is not None:
        noise = noise * probe.real[..., None]
    moved = rows.x + _ASIDE * noise * apart.abs().flatten(1).amax(1).view(-1, 1, 1)
    between = rows.baseline + 0.618 * (moved - rows.baseline)
    return together([Points(x, rows.baseline, rows.row) for x in (moved, between)])


def equal_ways(probe: Probe, points: Points) -> list[Rewritten]:
    """The rewritings that apply and give the same scores, and the user's own, which must."""
    everywhere = together([points, probe.at_baseline(points)])
    score = probe.f(everywhere)
    finest = 8 * torch.finfo(points.x.dtype).eps
    near = max(_EQUAL, finest) * score.abs().amax().clamp(min=1e-12)
    found = []
    for number, function in enumerate(probe.equivalents):
        off = (probe.f(everywhere, function) - score).abs().amax()
        if off > near:
            raise InputError(
                f"equivalents[{number}] is not equivalent: its scores differ by {float(off):.3g}.\n"
                "  Give models that compute the same scores."
            )
        found.append(Rewritten(f"equivalents[{number}]", function, True))
    for way in (*(rewrite.of(probe.score) for rewrite in rewrites.values()), folded(probe.score)):
        if way is None:
            continue
        try:
            off = (probe.f(everywhere, way.function) - score).abs().amax()
        except Exception:  # what cannot be run is no rewriting
            continue
        if off <= near and way.applied():
            found.append(way)
    return found
