"""Whether the words that matter are those which people marked (DeYoung et al. 2020; Chefer, Gur & Wolf 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError
from whence.evaluation.examples import Example
from whence.evaluation.metrics import metric
from whence.evaluation.requests import Result, View
from whence.util.checks import not_allowed

_FACTS: dict[str, Any] = {"better": "higher", "of": "tokens", "needs": ("rationale",), "within": (0, 1)}


@metric("rationale_f1", order=120, paper="DeYoung et al. 2020, arXiv:1911.03429; Chefer, Gur & Wolf 2021", **_FACTS)
def rationale_f1(view: View, *, k: Any = "marked") -> Result:
    """F1 of the k highest words against the marked ones, k as many as were marked; a row without marks does not count.

    A word's score is the highest of its pieces', negative ones count as 0, special tokens take no part. Other k: shares
    of the row's words (0.1, 0.2), numbers of words, or "paper" for Chefer, Gur & Wolf's 5, 10 … 80; F1 is averaged.
    """
    scores, gold = words(view)
    if not bool(gold.any()):
        return Result(float("nan"))
    order = _ranked(view, scores.clamp(min=0))
    sizes = _sizes(k, len(order), int(gold.sum()))
    found = [f1(gold[order[:n]].sum().item(), min(n, len(order)), int(gold.sum())) for _, n in sizes]
    curve = ([at for at, _ in sizes], found) if len(sizes) > 1 else None
    return Result(sum(found) / len(found), curve=curve)


def _sizes(k: Any, count: int, marked: int) -> list[tuple[float, int]]:
    """How many of the words are taken, each with its k as it was given."""
    if isinstance(k, str) and k == "marked":
        return [(float(marked), marked)]
    given = range(5, 81, 5) if isinstance(k, str) and k == "paper" else k
    given = [given] if isinstance(given, int | float) else given
    if isinstance(given, Sequence) and given and not isinstance(given, str):
        if all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in given):
            return [(float(n), n) for n in given]
        if all(isinstance(n, float) and 0 < n <= 1 for n in given):
            return [(n, max(1, math.ceil(round(n * count, 9)))) for n in given]
    raise not_allowed("k", k, '"marked", "paper", whole numbers above 0, or shares of at most 1.0', "rationale_f1")


@metric("rationale_ap", order=120, paper="DeYoung et al. 2020, arXiv:1911.03429", **_FACTS)
def rationale_ap(view: View) -> Result:
    """Average precision of the words' scores against the marked ones; a row without marks does not count."""
    from whence.evaluation.metrics.segmentation import average_precision

    return Result(average_precision(*words(view)))


def f1(hits: float, found: int, gold: int) -> float:
    """The harmonic mean of precision and recall."""
    return 2 * hits / (found + gold) if found + gold else 0.0


def words(view: View) -> tuple[Tensor, Tensor]:
    """The score of each word, the highest of its tokens', and whether it is marked."""
    example = view.example
    units = example.free.nonzero().flatten().tolist()
    numbers, segments = example.told.get("words"), example.told.get("segments")
    named = [(segments[u], numbers[u]) if numbers and segments else u for u in units]
    places = {name: i for i, name in enumerate(dict.fromkeys(named))}
    marked = _marked(example, units)
    scores = torch.full((len(places),), float("-inf"), dtype=torch.float64, device="cpu")
    gold = torch.zeros(len(places), dtype=torch.bool, device="cpu")
    for name, unit, is_gold in zip(named, units, marked, strict=True):
        scores[places[name]] = max(float(scores[places[name]]), float(view.scores[unit]))
        gold[places[name]] |= is_gold
    return scores, gold


def _marked(example: Example, units: Sequence[int]) -> list[bool]:
    """Whether each of these tokens is marked: by characters' spans, or by one entry per token."""
    given = example.rationale
    spans = example.told.get("spans")
    segments = example.told.get("segments") or [0] * len(example.free)
    if isinstance(given, list | tuple) and spans and all(isinstance(item, list | tuple) for item in given):
        pair = len({segments[u] for u in units}) > 1
        if any(len(item) != (3 if pair else 2) for item in given):
            form = "(text, start, end), the text being 0 or 1" if pair else "(start, end)"
            raise InputError(f"The rationale of row {example.place} is {given!r}.\n  Give spans of characters {form}.")
        marks = [tuple(item) if pair else (segments[units[0]], *item) for item in given]
        return [
            any(segments[u] == text and spans[u][0] < end and start < spans[u][1] for text, start, end in marks)
            for u in units
        ]
    whole = torch.as_tensor(given, device="cpu").flatten()
    if len(whole) == len(example.free):
        return [bool(whole[u]) for u in units]
    if len(whole) == len(units):
        return [bool(mark) for mark in whole]
    raise InputError(
        f"The rationale of row {example.place} has {len(whole)} entries, but the row has {len(example.free)} tokens.\n"
        "  Give (start, end) spans of characters, or one mark per token."
    )


def _ranked(view: View, scores: Tensor) -> Tensor:
    mixed = torch.randperm(len(scores), generator=view.generator(), device="cpu")
    return mixed[scores[mixed].argsort(descending=True, stable=True)]
