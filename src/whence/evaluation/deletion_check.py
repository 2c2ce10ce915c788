"""Does the model bear the methods out? Each row again without what a method puts first, beside what chance does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.adapters.wrapped import Wrapped
from whence.errors import InputError
from whence.evaluation.answers import logits
from whence.evaluation.answers.explanations import unit_scores
from whence.evaluation.data import listed
from whence.evaluation.examples import Example, example_of
from whence.evaluation.metrics.shares import trapezoid
from whence.evaluation.removal import default
from whence.evaluation.requests import View, both_classes, probabilities
from whence.results.attribution import Attribution

ROWS = 12  # that are checked, as many as a page shows
_STEPS, _DRAWS = 16, 10  # points of a curve at most, and random orders
PATCHES = 7  # along a side of an image
_CLASSES = 5  # that are named


@dataclass(frozen=True)
class DeletionCheck:
    """One row: the target's probability as the units that each method puts first go, and as random ones do."""

    classes: tuple[tuple[str, float], ...]  # the likeliest, with the target among them
    others: int  # classes that are not named
    target: str
    unit: str  # what goes: "word", "token", "patch", "feature"
    how: str  # "deleted", or what stands in its place
    places: tuple[int, ...]  # how many units are gone at each point of the curves
    curves: Mapping[str, tuple[float, ...]]  # by method
    random: tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]  # mean, 10 % and 90 % quantile
    first: Mapping[str, str]  # the unit that each method puts first
    order: Mapping[str, tuple[int, ...]]  # the numbers of the units as each method has them go (`grouped`)
    failed: Mapping[str, str]  # methods that cannot be checked, and why
    chance: tuple[float, ...] = ()  # what is left on average with each of the random orders

    def left(self, method: str | None = None) -> float:
        """What is left of the probability on average as a method's first units go, or random ones; lower is better."""
        curve = self.random[0] if method is None else self.curves[method]
        return trapezoid(curve, self.places) / (self.places[-1] or 1)


def checked(
    model: Any, inputs: Any, attributions: Mapping[str, Attribution], *, wrt: Any = None, steps: int = _STEPS,
    draws: int = _DRAWS, seed: int = 0, batch_size: int | None = None,
) -> list[DeletionCheck]:  # fmt: skip
    """The first rows of a comparison, checked: the targets of the first method are those of all."""
    given = inputs if not isinstance(model, Wrapped) or isinstance(inputs, list) else [inputs]
    rows = listed(model, given, {})[:ROWS]
    found = []
    for place, row in enumerate(rows):
        example = example_of(model, row, place, wrt)
        own = {name: a[place : place + 1] for name, a in attributions.items()}
        found.append(_row(model, example, own, steps, draws, seed, batch_size))
    return found


def _row(
    model: Any, example: Example, own: Mapping[str, Attribution], steps: int, draws: int, seed: int,
    batch_size: int | None,
) -> DeletionCheck:  # fmt: skip
    target, operator = _target(next(iter(own.values()))), default(example, "delete", "zero")
    (whole,) = logits.of_examples([example], batch_size)
    groups, names, unit = grouped(example, next(iter(own.values())))
    places = places_of(_count(example, groups), steps)
    orders, views, failed = {}, {}, {}
    for name, a in own.items():
        try:
            scores = unit_scores(example, a)
        except InputError as error:
            failed[name] = str(error).splitlines()[0]
            continue
        views[name] = View(example, name, scores, target, a, whole, seed)
        orders[name] = _ranked(views[name], groups)
    if not views:
        raise InputError(f"No method can be checked here: {next(iter(failed.values()))}")
    view = next(iter(views.values()))
    chance = [_shuffled(view, groups, draw) for draw in range(draws)]
    copies = [
        (view, view.without(_members(groups, order[:count]), operator))
        for order in [*orders.values(), *chance]
        for count in places
    ]
    told = torch.stack(logits.of_copies(copies, batch_size))
    curves = view.value(told, "probability").view(-1, len(places))
    mean, spread = curves[len(orders) :], torch.tensor([0.1, 0.9], dtype=torch.double, device="cpu")
    low, high = mean.quantile(spread, 0)
    p, labels = probabilities(both_classes(whole), "probability", example.exclusive, whole), _labels(model)
    names_of = {number: labels.get(number, f"class {number}") for number in range(len(p))}
    asked = target if len(whole) > 1 else 1
    best = p.argsort(descending=True, stable=True).tolist()[:_CLASSES]
    best = best if asked in best else [*best[:-1], asked]
    return DeletionCheck(
        tuple((names_of[number], float(p[number])) for number in best), len(p) - len(best), names_of[asked], unit,
        _how(example, operator), tuple(places),
        {name: tuple(curves[i].tolist()) for i, name in enumerate(orders)},
        (tuple(mean.mean(0).tolist()), tuple(low.tolist()), tuple(high.tolist())),
        {name: names[int(order[0])] for name, order in orders.items()},
        {name: tuple(order.tolist()) for name, order in orders.items()}, failed,
        tuple(trapezoid(one, places) / (places[-1] or 1) for one in mean.tolist()),
    )  # fmt: skip


def _target(a: Attribution) -> int:
    if isinstance(a.target, Tensor) and a.target.dim() == 1 and not a.several:
        return int(a.target[0])
    raise InputError("check=True follows the probability of one class a row.\n  Give such a target, or leave it out.")


def _labels(model: Any) -> Mapping[int, str]:
    return model.labels if isinstance(model, Wrapped) else {}


def _how(example: Example, operator: str) -> str:
    return "deleted" if operator == "delete" else f"replaced by {'0' if operator == 'zero' else operator}"


# ---- units that go together ----


def grouped(example: Example, a: Attribution | None = None) -> tuple[Tensor, list[str], str]:
    """The group of each unit, −1 for what stays; the groups' names, those of an attribution's features where it has
    them; and what a group is called."""
    units = len(example.free)
    if example.image:
        return _patches(example)
    numbers = _numbered(example) if example.ids else None
    if numbers is None or all(number is None for number in numbers):
        names = list(map(str, example.told.get("units", _features(a, units) or range(units))))
        numbers, unit = list(range(units)), "token" if example.ids else "feature"
    else:
        names, unit = _words(example, numbers), "word"
    known = torch.tensor([-1 if number is None else int(number) for number in numbers[:units]], device="cpu")
    groups = torch.where(example.free, known, -1)
    _, dense = groups.unique(return_inverse=True)
    dense = dense - int(bool((groups < 0).any()))  # what stays comes first
    first = {int(dense[i]): names[i] for i in reversed(range(units))}
    return dense, [first[group] for group in range(int(dense.max()) + 1)], unit


def _features(a: Attribution | None, count: int) -> list[str] | None:
    """The names that an attribution of one row has for so many features."""
    known = a.units if a is not None and a.one_input else None
    return known[0] if isinstance(known, list) and len(known[0]) == count else None


def _numbered(example: Example) -> list[int | None] | None:
    """The word of each token; those of a pair's second text, which has numbers of its own, come after the first's."""
    words = example.told.get("words")
    if words is None:
        return None
    segments = example.told.get("segments") or [0] * len(words)
    first = 1 + max((word for word in words if word is not None), default=0)
    return [
        None if word is None else word + first * (segment or 0) for word, segment in zip(words, segments, strict=True)
    ]


def _words(example: Example, numbers: Sequence[int | None]) -> list[str]:
    """For each token, the text of its word."""
    reach: dict[int, tuple[int, int]] = {}
    spans, whole = example.told["spans"], example.told["text"]
    segments = example.told.get("segments") or [0] * len(numbers)
    of: dict[int, str] = {}
    for number, (start, end), segment in zip(numbers, spans, segments, strict=True):
        if number is not None:
            low, high = reach.get(number, (start, end))
            reach[number] = min(low, start), max(high, end)
            of[number] = whole if isinstance(whole, str) else whole[segment or 0]
    named = {number: of[number][slice(*reach[number])] for number in reach}
    return ["" if number is None else named[number] for number in numbers]


def _patches(example: Example) -> tuple[Tensor, list[str], str]:
    height, width = example.shape
    down, across = (
        torch.arange(size, device="cpu") * min(PATCHES, size) // size for size in (height, width)
    )  # equal parts, up to a pixel
    groups = (down[:, None] * min(PATCHES, width) + across).flatten()
    count = int(groups.max()) + 1
    names = [f"row {n // min(PATCHES, width) + 1}, column {n % min(PATCHES, width) + 1}" for n in range(count)]
    return groups, names, "patch"


def _count(example: Example, groups: Tensor) -> int:
    """How many groups may go: of ids, something has to stay."""
    count = int(groups.max()) + 1
    return count - 1 if example.ids and bool((groups[example.real] >= 0).all()) else count


def places_of(count: int, steps: int) -> list[int]:
    """How many units are gone at each point of a curve: all numbers, or some of them and 1."""
    if count <= steps:
        return list(range(count + 1))
    return sorted({round(i * count / steps) for i in range(steps + 1)} | {1})


def _ranked(view: View, groups: Tensor) -> Tensor:
    """The groups from the most relevant to the least by the sums of their units; ties by the seed."""
    count = int(groups.max()) + 1
    there = groups >= 0
    sums = torch.zeros(count, dtype=torch.double, device="cpu").index_add(0, groups[there], view.scores[there])
    mixed = torch.randperm(count, generator=view.generator(), device="cpu")
    return mixed[sums[mixed].argsort(descending=True, stable=True)]


def _shuffled(view: View, groups: Tensor, draw: int) -> Tensor:
    return torch.randperm(int(groups.max()) + 1, generator=view.generator(1000 + draw), device="cpu")


def _members(groups: Tensor, chosen: Tensor) -> Tensor:
    """The units of these groups."""
    return torch.isin(groups, chosen).nonzero().flatten()
