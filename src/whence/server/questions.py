"""Questions about an explanation: what the model says without some units, deletion curves, attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.api import explain
from whence.errors import InputError, TargetError
from whence.evaluation.answers import logits
from whence.evaluation.answers.explanations import unit_scores
from whence.evaluation.deletion_check import checked, grouped
from whence.evaluation.examples import Example, example_of
from whence.evaluation.removal import default
from whence.evaluation.requests import View, both_classes, probabilities
from whence.methods import methods
from whence.results.attribution import Attribution
from whence.results.comparison import has_sign
from whence.results.text_units import WHOLE
from whence.results.words import groups_of
from whence.server import molecules, shown, written
from whence.server.asks import Asked, Desk, answers
from whence.server.curves import curves, ranked
from whence.server.models import LARGE
from whence.server.schema import Ask

_MANY, _FEW = (48, 10), (8, 4)  # points of a curve, and random orders; of large images
_CLASSES = 10  # that are named, at most, before and after


# ---- without some units ----


def remove(desk: Desk, ask: Ask, job: Any) -> None:
    """The model again without some units, beside what each method had said that would do."""
    asked = desk.asked(ask)
    kind = written.removed if asked.writes else _removed_atoms if asked.kind == "molecule" else _removed
    job.tell("result", kind(asked, ask))


def _example(asked: Asked) -> Example:
    if not asked.classifies:
        raise InputError(
            "Units are removed from texts, images and molecules of classifiers, and from prompts.\n  Change the input."
        )
    return example_of(asked.wrapped, {"inputs": asked.inputs}, 0, None)


def members_of(asked: Asked, example: Example) -> list[list[int]]:
    """The tokens of each unit that predict lists; of images, the pixels of each patch."""
    if example.image:
        groups, names, _ = grouped(example)
        return [(groups == number).nonzero().flatten().tolist() for number in range(len(names))]
    whole = asked.explained("random")
    if asked.in_units(whole) is not whole:
        return groups_of(whole, 0)
    return [[i] for i in range(len(example.free))]


def _chosen(members: Sequence[Sequence[int]], removed: Sequence[int]) -> list[int]:
    if not all(0 <= unit < len(members) for unit in removed):
        raise InputError(f"There are {len(members)} units, numbered from 0; one of `removed` is not among them.")
    return sorted({i for unit in removed for i in members[unit]})


def _removed(asked: Asked, ask: Ask) -> dict[str, Any]:
    example, whole = _example(asked), asked.explained("random")
    units = torch.tensor(_chosen(members_of(asked, example), ask.removed), dtype=torch.long, device="cpu")
    target, (plain,) = _target(whole), logits.of_examples([example], None)
    view = View(example, "", torch.zeros(len(example.free), device="cpu"), target, whole, plain, 0)
    (after,) = logits.of_copies([(view, view.without(units, default(example, "delete", "zero")))], None)
    likely = [both_classes(scores).argsort(descending=True)[:_CLASSES].tolist() for scores in (plain, after)]
    named = sorted({*likely[0], *likely[1], target})
    expected = {}
    for name, a in answers(asked, ask).items():
        try:
            expected[name] = _expected(example, a, units)
        except InputError as error:
            expected[name] = {"share": None, "change": None, "why": str(error).splitlines()[0]}
    return {
        "before": _spread(asked, plain, named), "after": _spread(asked, after, named),
        "removed": ask.removed, "target": target,
        "change": float(view.value(after, "logit") - view.value(plain, "logit")), "space": "logit",
        "how": "deleted" if default(example, "delete", "zero") == "delete" else "set to 0", "expected": expected,
    }  # fmt: skip


def _target(a: Attribution) -> int:
    if isinstance(a.target, Tensor) and a.target.dim() == 1:
        return int(a.target[0])
    raise TargetError("Units are removed where one class is explained.\n  Name a class.")


def _expected(example: Example, a: Attribution, units: Tensor) -> dict[str, Any]:
    """What a method says of these units: their share, and the score's change without them, if it has that unit."""
    scores = unit_scores(example, a)
    total = float(scores[example.free].abs().sum())
    why = _no_unit(a, example.image)
    return {
        "share": float(scores[units].sum()) / total if total else None,
        "change": None if why else -float(scores[units].sum()), "why": why,
    }  # fmt: skip


def _no_unit(a: Attribution, image: bool = False) -> str | None:
    """Why values are not parts of the score; None where they are."""
    facts = methods[a.method].facts
    if facts.get("slope"):
        return "Slopes are not parts of the score."
    if facts.get("needs"):
        return "What it reads is not in the score's unit."
    if image and a.method in WHOLE:
        return "Each pixel has the value of everything that was removed with it."
    return None if has_sign(a) else "The method has no sign."


def _spread(asked: Asked, scores: Tensor, named: Sequence[int]) -> list[dict[str, Any]]:
    """Some classes, in their order."""
    both, labels = both_classes(scores), asked.wrapped.labels
    p = probabilities(both, "probability", asked.wrapped.exclusive, scores)
    return [
        {"label": labels.get(n, f"class {n}"), "index": n, "probability": float(p[n]), "score": float(both[n])}
        for n in named if n < len(p)
    ]  # fmt: skip


# ---- without some atoms ----


def _removed_atoms(asked: Asked, ask: Ask) -> dict[str, Any]:
    """A molecule again without some atoms."""
    gone, target = molecules.checked(asked, ask.removed), _target(asked.explained("random"))
    plain, after = molecules.scores_without(asked, [[], gone])
    named = sorted({*both_classes(plain).argsort(descending=True)[:_CLASSES].tolist(), target})
    expected = {}
    for name, a in answers(asked, ask).items():
        total, whole = molecules.said(a, gone)
        why = _no_unit(a)
        expected[name] = {"share": total / whole if whole else None, "change": None if why else -total, "why": why}
    return {
        "before": _spread(asked, plain, named), "after": _spread(asked, after, named), "removed": ask.removed,
        "target": target, "change": float(after[target] - plain[target]), "space": "logit", "how": molecules.HOW,
        "expected": expected,
    }  # fmt: skip


def _deleted_atoms(asked: Asked, found: dict[str, Attribution]) -> dict[str, Any]:
    """The probability as the atoms go that each method puts first; one has to stay."""
    count, target = molecules.atoms_of(asked), _target(asked.explained("random"))
    orders = {name: ranked(molecules.by_atom(a), range(count)) for name, a in found.items()}

    def measure(choices: Sequence[Sequence[int]]) -> Tensor:
        return molecules.probability(asked, molecules.scores_without(asked, choices), target)

    label = asked.wrapped.labels.get(target, f"class {target}")
    return {**curves(orders, range(count), count - 1, *_MANY, measure), "unit": "atom", "how": molecules.HOW,
            "target": label, "failed": {}}  # fmt: skip


# ---- deletion curves ----


def deletion(desk: Desk, ask: Ask, job: Any) -> None:
    """The target's probability as the units that each method puts first go, beside random orders."""
    asked = desk.asked(ask)
    found = answers(asked, ask)
    if not found:
        raise InputError("No method has an answer here that could be checked.\n  Name others.")
    if asked.writes:
        return job.tell("result", written.deleted(asked, ask, found, *_MANY))
    if asked.kind == "molecule":
        return job.tell("result", _deleted_atoms(asked, found))
    example = _example(asked)
    steps, draws = _FEW if example.image and max(example.shape) >= LARGE else _MANY
    (check,) = checked(asked.wrapped, asked.inputs, found, steps=steps, draws=draws)
    groups, names, unit = grouped(example)
    owner = {i: number for number, own in enumerate(members_of(asked, example)) for i in own}
    units: list[list[int]] = [[] for _ in names]
    for i, group in enumerate(groups.tolist()):
        if group >= 0 and i in owner and owner[i] not in units[group]:
            units[group].append(owner[i])
    mean, low, high = check.random
    job.tell("result", {
        "places": list(check.places), "curves": {name: list(curve) for name, curve in check.curves.items()},
        "random": {"mean": list(mean), "low": list(low), "high": list(high)},
        "left": {name: check.left(name) for name in check.curves} | {"": check.left()},
        "orders": {name: [units[group] for group in order] for name, order in check.order.items()},
        "names": {name: [names[group] for group in order] for name, order in check.order.items()},
        "unit": unit, "how": check.how, "target": check.target, "failed": dict(check.failed),
    })  # fmt: skip
    return None


# ---- attention ----


def attention(desk: Desk, ask: Ask, job: Any) -> None:
    """A layer's attention from each token (a line) to each token, of one head or their mean."""
    asked = desk.asked(ask)
    goal = asked.goal() if asked.writes else asked.target
    a = explain(asked.wrapped, asked.inputs, method="random", target=goal, keep=["attention"], progress=False)
    maps = [one if one.dim() == 4 else one[:, None] for one in a.kept["attention"]]  # (rows, heads, query, key)
    layer = len(maps) - 1 if ask.layer is None else ask.layer
    if layer >= len(maps) or (ask.head is not None and ask.head >= maps[layer].shape[1]):
        heads = maps[min(layer, len(maps) - 1)].shape[1]
        raise InputError(f"The model has {len(maps)} layers of attention, and this one {heads} heads, from 0 on.")
    own = maps[layer][0]
    rows = own.mean(0) if ask.head is None else own[ask.head]
    job.tell("result", {
        "layers": len(maps), "heads": [int(one.shape[1]) for one in maps], "layer": layer, "head": ask.head,
        "tokens": [] if asked.kind == "image" else shown.units_of(a),
        "rows": [[float(f"{v:.4g}") for v in row] for row in rows.double().tolist()],
    })  # fmt: skip
