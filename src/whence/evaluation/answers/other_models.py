"""A method's answers for other classes and under other models, and models that were trained without what it marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from whence.adapters.wrapped import Wrapped
from whence.errors import InputError, ModelError
from whence.evaluation.answers.explanations import Explainer, Ranker, scores_or_error, unit_scores
from whence.evaluation.answers.logits import logits, of_examples
from whence.evaluation.data import listed
from whence.evaluation.examples import Example, example_of
from whence.evaluation.removal import replaced
from whence.evaluation.requests import OtherClass, Retrained, Under, View
from whence.evaluation.source import seeded
from whence.results.attribution import Attribution

_ROWS = 32  # of training data, explained together
_trained: WeakKeyDictionary[Explainer, dict[Any, Any]] = WeakKeyDictionary()


def of_classes(
    explainer: Explainer, ranker: Ranker, asked: Sequence[tuple[View, OtherClass]], batch_size: int | None
) -> list[Any]:
    """Unit scores of each row for another class; the random control draws anew for each."""
    examples = [view.example for view, _ in asked]
    targets = [want.target for _, want in asked]
    drawn = examples
    if ranker.method == "random":
        drawn = [replace(one, seed=one.seed + 104729 * (n + 1)) for one, n in zip(examples, targets, strict=True)]
    found = explainer._each(ranker, explainer.model, drawn, targets)
    return [scores_or_error(example, a) for example, a in zip(examples, found, strict=True)]


def under(
    explainer: Explainer, ranker: Ranker, asked: Sequence[tuple[View, Under]], batch_size: int | None
) -> list[Any]:
    """Unit scores of each row under another model; the random control draws anew for it."""
    other = asked[0][1].model
    if isinstance(explainer.model, Wrapped) and not isinstance(other, Wrapped):
        if not isinstance(other, nn.Module):
            raise ModelError("The other model is not an nn.Module.\n  Give one, or what whence.load gives.")
        other = replace(explainer.model, model=other)
    _check_form(asked[0][0].example.root, other.model if isinstance(other, Wrapped) else other)
    examples = [view.example for view, _ in asked]
    drawn = examples
    if ranker.method == "random":
        drawn = [replace(example, seed=example.seed + 15485863) for example in examples]
    found = explainer._each(ranker, other, drawn, [view.target for view, _ in asked])
    return [scores_or_error(example, a) for example, a in zip(examples, found, strict=True)]


def _check_form(here: nn.Module | None, there: Any) -> None:
    """Whether another model is the same network with other weights; a function's form is not known."""
    if here is None or not isinstance(there, nn.Module):
        return
    if there is here:
        raise ModelError("The other model is the model itself.\n  Give the same network trained on permuted labels.")
    own, other = ({name: tuple(t.shape) for name, t in one.named_parameters()} for one in (here, there))
    name = next((name for name in {**own, **other} if own.get(name) != other.get(name)), None)
    if name is not None:
        told = [f"of shape {shapes[name]}" if name in shapes else "missing" for shapes in (own, other)]
        raise ModelError(
            f"The other model has another form: the parameter {name!r} is {told[0]} here and {told[1]} there.\n"
            "  Give the same network trained on permuted labels."
        )


# ---- trained without what a method marks ----


def retrained(
    explainer: Explainer, ranker: Ranker, asked: Sequence[tuple[View, Retrained]], batch_size: int | None
) -> list[Any]:
    """The logits of rows without their top share, by a model that was trained on rows without theirs: once for all."""
    want = asked[0][1]
    known = _trained.setdefault(explainer, {})
    key = ranker.name, want.key
    if key not in known:
        try:
            known[key] = want.train(lambda inputs: removed(explainer, ranker, want, inputs))
        except Exception as error:  # which is not tried again for every row
            known[key] = ModelError(
                f"train raised {type(error).__name__} for {ranker.name}: {error}\n"
                "  It gets remove, a function of training rows, and must return the model that it trained."
            )
    if isinstance(known[key], ModelError):
        raise known[key]
    rows = []
    for view, _ in asked:
        example = view.example
        other = example_of(known[key], {"inputs": example.given}, example.place, explainer.wrt)
        rows.append((other, {**other.inputs, other.name: _without(view, want)}))
    return list(logits(rows, batch_size))


def removed(explainer: Explainer, ranker: Ranker, want: Retrained, inputs: Tensor) -> Tensor:
    """Rows without the top share of their units, as a method explains the model's own prediction of each."""
    rows = listed(explainer.model, inputs, {})
    seen: Counter[int] = Counter()
    read = (example_of(explainer.model, row, place, explainer.wrt) for place, row in enumerate(rows))
    examples = [seeded(example, seen) for example in read]
    return torch.cat([
        part for start in range(0, len(examples), _ROWS)
        for part in _part(explainer, ranker, want, examples[start : start + _ROWS])
    ])  # fmt: skip


def _part(explainer: Explainer, ranker: Ranker, want: Retrained, examples: Sequence[Example]) -> list[Tensor]:
    told = of_examples(examples, None)
    targets = [int(line.argmax()) for line in told]
    found = []
    for example, a, line, target in zip(
        examples, explainer.of_rows(ranker, examples, targets), told, targets, strict=True
    ):
        if not isinstance(a, Attribution):
            raise a
        view = View(example, ranker.name, unit_scores(example, a), target, a, line, explainer.seed)
        found.append(_without(view, want))
    return found


def _without(view: View, want: Retrained) -> Tensor:
    if view.example.ids:
        raise InputError("Retraining removes numbers, but the rows are token ids.\n  Leave this metric out.")
    order = view.order(absolute=want.absolute)
    keep = view.without(order[: want.rounding(view, want.share)]).keep[None]
    return replaced(view.example, keep, want.operator, 0.0, [view.generator()], view.generator(5))
