"""Whether the sources that a method names are those which an answer rests on (Cohen-Wang et al. 2024).

A source is a sentence of the text, and its score is the sum of its tokens'; rows that are not texts have one source for
each unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Any

import torch
from torch import Tensor

from whence.evaluation.metrics import Asking, metric
from whence.evaluation.requests import Copy, Result, View
from whence.registry import Bounds
from whence.results.text_units import numbers_of, parts_of
from whence.util.checks import is_whole, not_allowed
from whence.util.stats import spearman

_PAPER = "Cohen-Wang, Shah, Georgiev & Mądry 2024, arXiv:2409.00729"


@metric("source_ablation", order=15, paper=_PAPER, better="higher", operators=("delete", "mean"))
def source_ablation(view: View, *, k: Any = (1, 3, 5), sources: str = "sentences", operator: Any = None) -> Asking:
    """ln p(answer) − ln p(answer without the k highest sources), mean over k; the paper's top-k log-probability drop.

    For a language model p is that of the whole answer, teacher-forced; for a classifier that of the class. A row with
    fewer sources than k loses all of them but one.
    """
    sizes = _sizes(k)
    numbers, scores = _sources(view, sources)
    order = _order(view, scores)
    asked = [_without(view, numbers, order[: min(n, len(order) - 1)], operator) for n in (0, *sizes)]
    whole, *less = [float(view.value(logits, "log_probability")) for logits in (yield asked)]
    length = int(view.example.told.get("answer_tokens", 1))  # p is per token
    drops = [length * (whole - part) for part in less]
    return Result(
        fmean(drops),
        {f"k = {n}": drop for n, drop in zip(sizes, drops, strict=True)},
        ([float(n) for n in sizes], drops),
    )


@metric(
    "linear_datamodelling_score",
    order=15,
    paper=f"{_PAPER}; Park et al. 2023, arXiv:2303.14186",
    better="higher",
    within=(-1, 1),
    operators=("delete", "mean"),
)
def linear_datamodelling_score(
    view: View, *, samples: Annotated[int, Bounds(low=3)] = 32, sources: str = "sentences", operator: Any = None
) -> Asking:
    """Rank correlation of Σφ over the sources that stay with the score, over random halves of the sources.

    The score is the logit of the answer's probability, or the class's logit. Each source stays with probability ½; a
    row with fewer than three sources does not count.
    """
    numbers, scores = _sources(view, sources)
    if len(scores) < 3:
        return Result(float("nan"))
    stays = torch.rand(samples, len(scores), generator=view.generator(7), device="cpu") < 0.5
    stays[~stays.any(1), 0] = True
    answers = yield [_without(view, numbers, (~some).nonzero().flatten(), operator) for some in stays]
    found = torch.tensor([float(view.value(logits, "logit")) for logits in answers], dtype=torch.float64, device="cpu")
    return Result(spearman(stays.double() @ scores, found))


def _sizes(k: Any) -> list[int]:
    given = [k] if is_whole(k) else list(k) if isinstance(k, Sequence) and not isinstance(k, str) else []
    if not given or not all(is_whole(n) and int(n) >= 1 for n in given):
        raise not_allowed("k", k, "a whole number of sources, at least 1, or several", "source_ablation")
    return [int(n) for n in given]


def _sources(view: View, sources: str) -> tuple[Tensor, Tensor]:
    """The number of each unit's source, −1 for what stays, (units,); and the sources' scores."""
    told, free = view.example.told, view.example.free
    if isinstance(told.get("text"), str) and told.get("spans"):
        parts = parts_of(told["text"], sources, told.get("messages"))
        named = numbers_of(parts, told["spans"], told["special"], 0, False)
        numbers = torch.tensor(named, device="cpu").masked_fill(~free, -1)
    else:
        numbers = torch.where(free, free.long().cumsum(0) - 1, -1)
    there = numbers >= 0
    _, numbers[there] = numbers[there].unique(return_inverse=True)
    scores = torch.zeros(int(numbers.max()) + 1, dtype=torch.float64, device="cpu")
    return numbers, scores.index_add(0, numbers[there], view.scores[there].double())


def _order(view: View, scores: Tensor) -> Tensor:
    mixed = torch.randperm(len(scores), generator=view.generator(), device="cpu")
    return mixed[scores[mixed].argsort(descending=True, stable=True)]


def _without(view: View, numbers: Tensor, gone: Tensor, operator: Any) -> Copy:
    return view.without(torch.isin(numbers, gone).nonzero().flatten(), operator)
