"""Questions about an explanation: what the model says without some units, deletion curves, attention, written text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence.adapters.answers import check_linear
from whence.adapters.generation import Continuation
from whence.api import explain
from whence.engine import blame
from whence.engine.scope import scope
from whence.errors import InputError, TargetError, WhenceError
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
from whence.server import given, shown
from whence.server.asks import Asked, Desk
from whence.server.models import LARGE
from whence.server.schema import Ask

_MANY, _FEW = (48, 10), (8, 4)  # points of a curve, and random orders; of large images
_ALTERNATIVES = 8
_CLASSES = 10  # that are named, at most, before and after


def _methods(asked: Asked, ask: Ask) -> dict[str, Attribution]:
    """The answers of the methods that were named, those that have one."""
    found = {}
    for name in given.checked_methods(ask.methods) if ask.methods else []:
        try:
            found[name] = asked.by(name, ask.options)
        except WhenceError:
            continue  # told where it is explained
    return found


# ---- without some units ----


def remove(desk: Desk, ask: Ask, job: Any) -> None:
    """The model again without some units, beside what each method had said that would do."""
    asked = desk.asked(ask)
    job.tell("result", _removed_text(asked, ask) if asked.writes else _removed(asked, ask))


def _example(asked: Asked) -> Example:
    if not asked.classifies or asked.kind == "molecule":
        raise InputError(
            "Units are removed from texts and images of classifiers, and from prompts.\n  Change the input."
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
    for name, a in _methods(asked, ask).items():
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
    why = _no_unit(example, a)
    return {
        "share": float(scores[units].sum()) / total if total else None,
        "change": None if why else -float(scores[units].sum()), "why": why,
    }  # fmt: skip


def _no_unit(example: Example, a: Attribution) -> str | None:
    """Why values are not parts of the score; None where they are."""
    facts = methods[a.method].facts
    if facts.get("slope"):
        return "Slopes are not parts of the score."
    if facts.get("needs"):
        return "What it reads is not in the score's unit."
    if example.image and a.method in WHOLE:
        return "Each pixel has the value of everything that was removed with it."
    return None if has_sign(a) else "The method has no sign."


def _spread(asked: Asked, scores: Tensor, named: Sequence[int]) -> list[dict[str, Any]]:
    """Some classes, in their order."""
    both, labels = both_classes(scores), asked.wrapped.labels
    p = probabilities(both, "probability", asked.wrapped.exclusive)
    return [
        {"label": labels.get(n, f"class {n}"), "index": n, "probability": float(p[n]), "score": float(both[n])}
        for n in named if n < len(p)
    ]  # fmt: skip


def _removed_text(asked: Asked, ask: Ask) -> dict[str, Any]:
    """Of models that write: each token of the same answer, after a prompt without some of its tokens."""
    request, wanted = _request(asked)
    ids = request.inputs["input_ids"][0]
    count = len(ids) if asked.kind == "seq2seq" else len(ids) - len(wanted) + 1  # tokens of the prompt
    if not all(0 <= unit < count for unit in ask.removed):
        raise InputError(f"The prompt has {count} tokens, numbered from 0; one of `removed` is not among them.")
    keep = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    keep[list(ask.removed)] = False
    if not bool(keep[:count].any()):
        raise InputError("Nothing would be left of the prompt.\n  Remove less of it.")
    before, after = (_told(asked, request, wanted, which) for which in (None, keep))
    expected = {}
    for name, a in _methods(asked, ask).items():
        values = (a.values["input_ids"] if isinstance(a.values, Mapping) else a.values)[0]
        gone = values[:, list(ask.removed)].sum(-1)
        facts = methods[name].facts
        parts = has_sign(a) and not facts.get("slope") and not facts.get("needs")
        expected[name] = {"change": shown.numbers(-gone) if parts else None}
    return {"before": before, "after": after, "removed": ask.removed, "space": "logit", "how": "deleted",
            "expected": expected}  # fmt: skip


def _request(asked: Asked) -> tuple[Any, list[int]]:
    """What the model gets for the prompt and its answer, and the answer's ids."""
    (request,) = asked.wrapped.requests(asked.inputs, asked.goal())
    return request, [int(token) for _, token in request.target.index[0].tolist()]


def _logits(asked: Asked, request: Any, wanted: Sequence[int], keep: Tensor | None = None) -> Tensor:
    """(answer's tokens, vocabulary) where each of them is predicted."""
    root, inputs = asked.wrapped.model, dict(request.inputs)
    if keep is not None:
        inputs |= {name: inputs[name][:, keep] for name in ("input_ids", "attention_mask") if name in inputs}
    with scope(root), torch.no_grad():
        found = blame.called(request.model, inputs, "dict", root).logits[0]
    return found[-len(wanted) :].detach().cpu().double()


def _told(asked: Asked, request: Any, wanted: Sequence[int], keep: Tensor | None) -> list[dict[str, float]]:
    scores = _logits(asked, request, wanted, keep)
    p = scores.softmax(-1)
    return [{"score": float(scores[i, token]), "probability": float(p[i, token])} for i, token in enumerate(wanted)]


# ---- deletion curves ----


def deletion(desk: Desk, ask: Ask, job: Any) -> None:
    """The target's probability as the units that each method puts first go, beside random orders."""
    asked = desk.asked(ask)
    example, found = _example(asked), _methods(asked, ask)
    if not found:
        raise InputError("No method has an answer here that could be checked.\n  Name others.")
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


# ---- written text ----


def generate(desk: Desk, ask: Ask, job: Any) -> None:
    """What a model writes, token by token, and what else could have stood there."""
    asked = desk.asked(ask)
    if not asked.writes:
        raise InputError("This model does not write text.\n  Choose a language model or a translator.")
    if asked.target is None:
        asked.target = asked.wrapped.complete(asked.inputs, min(ask.tokens, desk.limits.written))
    request, wanted = _request(asked)
    p = _logits(asked, request, wanted).softmax(-1)
    labels, decode = request.facts["labels"][0], asked.wrapped.tokenizer.decode
    tokens = []
    for i, token in enumerate(wanted):
        best = p[i].topk(min(_ALTERNATIVES, p.shape[1]))
        others = [
            {"id": int(n), "text": decode([int(n)]), "probability": float(value)}
            for value, n in zip(best.values, best.indices, strict=True)
        ]
        tokens.append({"id": token, "text": labels[i], "probability": float(p[i, token]), "alternatives": others})
    job.tell("result", {"answer": decode(wanted), "ids": wanted, "tokens": tokens})


def next_tokens(asked: Asked, top: int) -> list[dict[str, Any]]:
    """The likeliest tokens after a prompt, or at the start of a translation."""
    first = asked.wrapped.complete(asked.inputs, 1)
    (request,) = asked.wrapped.requests(asked.inputs, first)
    scores = _logits(asked, request, first.ids)[0]
    p = scores.softmax(-1)
    best = p.topk(min(top, len(p))).indices.tolist()
    return [
        {"label": asked.wrapped.tokenizer.decode([n]), "index": n, "probability": float(p[n]),
         "score": float(scores[n]), "chosen": n == first.ids[0]}
        for n in best
    ]  # fmt: skip


def contrasted(asked: Asked, ask: Ask, name: str) -> Attribution:
    """Why a token of the answer and not another: the difference of both tokens' explanations, in logits."""
    assert ask.contrast is not None
    check_linear(name, ask.options.get(name, {}))
    _, wanted = _request(asked)
    place, other = ask.contrast.token, ask.contrast.instead
    if place >= len(wanted) or other >= len(asked.wrapped.tokenizer):
        raise TargetError(f"The answer has {len(wanted)} tokens, and the model knows {len(asked.wrapped.tokenizer):,}.")
    both = []
    for last in (wanted[place], other):
        ids = [*wanted[:place], last]
        own = Continuation(asked.wrapped.tokenizer.decode(ids), ids)
        both.append(asked.by(name, ask.options, own))
    a, b = both
    assert a.labels is not None
    assert b.labels is not None
    difference = a.output_value[:, -1] - b.output_value[:, -1]
    values = _minus(a.values, b.values)
    title = f"{a.labels[0][-1].strip()} rather than {b.labels[0][-1].strip()}"
    plain = {
        key: a.receipt[key] for key in ("model", "output", "forward_passes", "backward_passes") if key in a.receipt
    }
    return replace(
        a, values=values, raw=values, output_value=difference, target=title, labels=[title], gap=None,
        baseline_value=None, raising=None, residual=None, channel_axis=None, receipt=plain,
    )  # fmt: skip


def _minus(a: Any, b: Any) -> Any:
    """The last target's values of one minus those of the other; several inputs by name."""
    if isinstance(a, Mapping):
        return {key: _minus(a[key], b[key]) for key in a}
    return a[:, -1] - b[:, -1]
