"""Is attention interpretable? What the decision does when attention weights are erased (Serrano & Smith 2019).

A method ranks positions; `raw_attention`, `attention_gradient` and `attention_x_gradient` (with `output="probability"`)
and `random` are the paper's rankings. With one attention layer before the output this is the paper's test; with several
layers the columns of all of them are erased, which is an extension.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from whence.evaluation.metrics import Asking, metric
from whence.evaluation.requests import Attended, Erased, Result, View, both_classes, decision, probabilities

if TYPE_CHECKING:
    from whence.evaluation.scoreboard import Scoreboard

_PAPER = "Serrano & Smith 2019, arXiv:1906.03731"


@metric("erasure_single", order=90, paper=_PAPER, better="higher", of="tokens", needs=("attention",))
def erasure_single(view: View, *, layers: Any = "all", heads: Any = "all") -> Asking:
    """JS(p, q without the highest-ranked weight) − JS(p, q without a random other one), in nats.

    Beside it, in per cent: which of the two flips the decision (the 2 × 2 table); and the difference of their weights.
    """
    positions = _positions(view)
    if len(positions) < 2:
        return Result(float("nan"))
    (weights,) = yield [Attended(layers, heads)]
    first = int(view.order(among=view.example.real)[0])
    others = positions[positions != first]
    other = int(others[torch.randint(len(others), (), generator=view.generator(3), device="cpu")])
    p, q_first, q_other = yield [_erase(view, units, layers, heads) for units in ([], [first], [other])]
    top, rest = (js(p, q, view.logits) for q in (q_first, q_other))
    flips = [decision(q) != decision(p) for q in (q_first, q_other)]
    names = {(True, True): "both flip", (True, False): "only the first flips", (False, True): "only the other flips"}
    parts = dict.fromkeys([*names.values(), "neither flips"], 0.0)
    parts[names.get((flips[0], flips[1]), "neither flips")] = 100.0
    parts["difference of weights"] = float(weights[first] - weights[other])
    parts["negative"] = 100.0 * (top < rest)
    return Result(top - rest, parts)


@metric("erasure_set", order=90, paper=_PAPER, better="lower", within=(0, 1), of="tokens", needs=("attention",))
def erasure_set(
    view: View, *, layers: Any = "all", heads: Any = "all", never: Literal["drop", "one"] = "one"
) -> Asking:
    """The share of weights erased, highest ranked first, until the decision flips.

    Rows that never flip count as 1, or not at all (`never="drop"`); how many there are, and what part of all attention
    was erased, are given beside it.
    """
    positions = _positions(view)
    if len(positions) < 2:
        return Result(float("nan"))
    (weights,) = yield [Attended(layers, heads)]
    order = view.order(among=view.example.real)
    answers = yield [_erase(view, order[:k].tolist(), layers, heads) for k in range(len(order) + 1)]
    needed = next((k for k, q in enumerate(answers) if decision(q) != decision(answers[0])), None)
    if needed is None:
        return Result(1.0 if never == "one" else float("nan"), {"never flips": 100.0})
    mass = float(weights[order[:needed]].sum() / weights[order].sum())
    return Result(needed / len(order), {"never flips": 0.0, "mass erased": mass})


def by_difference(board: Scoreboard, method: str, bins: int = 5) -> list[tuple[float, float, int, float]]:
    """How often the highest weight did less than a random one, by how far apart the two were: (from, to, rows, %)."""
    column = next((c.name for c in board.columns if c.metric == "erasure_single"), "")
    found_by_row = board.results.get((method, column), {}).values()
    pairs = [(r.parts["difference of weights"], r.value) for r in found_by_row if r.value == r.value]
    edges = [i / bins for i in range(bins + 1)]
    found = []
    for low, high in pairwise(edges):
        here = [value for apart, value in pairs if low <= apart < high or (high == 1 and apart == 1)]
        found.append((low, high, len(here), 100 * sum(v < 0 for v in here) / len(here) if here else float("nan")))
    return found


def js(p: Tensor, q: Tensor, row: Tensor | None = None) -> float:
    """The Jensen–Shannon divergence of two rows of logits, in nats; for `row` see `probabilities`."""
    a, b = (probabilities(both_classes(logits), "log_probability", row=row) for logits in (p, q))
    m = torch.logaddexp(a, b) - torch.log(torch.tensor(2.0, dtype=a.dtype, device=a.device))
    return max(0.0, float(((a.exp() * (a - m)).sum() + (b.exp() * (b - m)).sum()) / 2))


def _positions(view: View) -> Tensor:
    return view.example.real.nonzero().flatten()


def _erase(view: View, units: list[int], layers: Any, heads: Any) -> Erased:
    which = torch.zeros(len(view.scores), dtype=torch.bool, device="cpu")
    which[units] = True
    return Erased(which, layers, heads)
