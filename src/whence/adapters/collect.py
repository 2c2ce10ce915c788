"""Collect the answers to a wrapped model's requests: one Attribution of the user's rows, with its units and labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.adapters.requests import Request, padded, text_facts
from whence.adapters.wrapped import Wrapped
from whence.errors import warn
from whence.results import forms
from whence.results.attribution import Attribution
from whence.util.keys import SOURCE
from whence.util.receipt import Receipt, joined, waiting

if TYPE_CHECKING:
    from whence.adapters.tokens import Tokens

_PER_ROW = ("output_value", "baseline_value", "gap", "residual")
_PER_TEXT = ("text", "labels", "messages", "answer", "sides")
_LIKE_VALUES = ("values", "raw", "raising", "real")
_FILLS = {"units": "[PAD]", "spans": (0, 0), "special": True, "words": None, "segments": None}  # of padding


def collect(wrapped: Wrapped, requests: list[Request], answers: Iterable[Attribution], wrt: Any = None) -> Attribution:
    """One Attribution of the answers to all requests, in the user's order of rows."""
    parts = [_described(wrapped, request, a, wrt) for request, a in zip(requests, answers, strict=True)]
    joined, rows = _joined(parts), [row for request in requests for row in request.rows]
    order = sorted(range(len(rows)), key=rows.__getitem__)
    ordered = joined if order == list(range(len(rows))) else joined._pick(order)
    return ordered if wrapped.exclusive else _with_label_probabilities(ordered)


def _with_label_probabilities(a: Attribution) -> Attribution:
    """Labels that do not exclude each other have a probability each, not a softmax over all."""
    scores = {"probability": a.output_value, "baseline_probability": a.baseline_value}
    probabilities = {
        name: score.double().sigmoid().tolist()
        for name, score in scores.items()
        if name in a.receipt and score is not None and a.receipt.get("output") == "logit"
    }
    return replace(a, receipt=Receipt(a.receipt, probabilities))


def _described(wrapped: Wrapped, request: Request, answer: Attribution, wrt: Any) -> Attribution:
    """An answer with what its request knows of the rows; windows of one text become one row."""
    facts: dict[str, Any] = {name: list(values) for name, values in request.facts.items()}
    facts.setdefault("labels", wrapped.entry.names(wrapped, answer.target))
    if not _are_tokens(answer, facts.get("units")):
        facts = {name: values for name, values in facts.items() if name in _PER_TEXT}
        request = replace(request, real=None)
    by_name = {"units": request.units, "real": request.real, "image": request.image}
    own = {name: _explained(values, answer, wrt) for name, values in by_name.items()}
    own = {name: values for name, values in own.items() if values is not None}
    if "sides" in facts and answer.one_input:
        facts |= _of_side(facts.pop("sides"), wrt)
        if "answer" in facts:  # none of its tokens are among the text's
            facts["answer"] = [(text, 0, *more) for text, _, *more in facts["answer"]]
    answer = replace(answer, target=_in_the_text(request, answer.target), **own, **facts)
    if request.windows is None:
        return answer
    if any(isinstance(layers, list) for layers in answer.kept.values()):
        warn(f"{answer.method}: keep= is left out for a text in windows: there would be one of each per window.")
    return _one_row(answer, request.windows)


def _of_side(sides: list[Any], wrt: Any) -> dict[str, Any]:
    """What is known of the tokens of the one text that was explained, the encoder's."""
    name = wrt[0] if isinstance(wrt, list | tuple) and len(wrt) == 1 else wrt
    return {fact: [row[SOURCE][fact] for row in sides] for fact in ("spans", "special")} if name == SOURCE else {}


def _in_the_text(request: Request, target: Any) -> Any:
    """Targets (position, token) by their positions in the text, also where there are logits at its end alone."""
    kept = request.inputs.get("logits_to_keep") if isinstance(request.inputs, Mapping) else None
    if kept is None:
        return target
    before = request.inputs["input_ids"].shape[1] - kept
    if isinstance(target, Tensor) and target.shape[-1] == 2 and target.dim() > 1:
        return target + torch.tensor([before, 0], device=target.device)
    return [(position + before, token) for position, token in target] if isinstance(target, list) else target


def _explained(facts: Any, answer: Attribution, wrt: Any) -> Any:
    """Facts of several inputs by name: those of the inputs that were explained."""
    if not isinstance(facts, Mapping):
        return facts
    if not answer.one_input:
        return {name: facts[name] for name in answer.by_name() if name in facts}
    name = wrt[0] if isinstance(wrt, list | tuple) and len(wrt) == 1 else wrt
    return facts.get(name) if isinstance(name, str) else None


def _are_tokens(answer: Attribution, units: list[list[str]] | None) -> bool:
    """Whether there is one value per token, not those of some layer."""
    if units is None or not answer.one_input:
        return True
    axis = 1 + answer.several
    return answer.values.dim() == axis + 1 and answer.values.shape[axis] == len(units[0])


def difference(a: Attribution, b: Attribution) -> Attribution:
    """What one answer owes to the prompt more than another does: their values' difference at the prompt's tokens."""
    return _joined([_row_difference(one, other) for one, other in zip(a, b, strict=True)])


def _row_difference(a: Attribution, b: Attribution) -> Attribution:
    own = [part.answer[0][1] if part.one_input and part.answer is not None else 0 for part in (a, b)]
    raws = [part.by_name("raw") for part in (a, b)]
    shown = next(iter(raws[0]))  # the encoder's, where a decoder's own tokens are explained too
    axis = 1 + a.several
    kept = raws[0][shown].shape[axis] - own[0]
    raw = raws[0][shown].narrow(axis, 0, kept) - raws[1][shown].narrow(axis, 0, kept)
    first, second = (part.by_name()[shown] for part in (a, b))
    values = first.narrow(axis, 0, kept) - second.narrow(axis, 0, kept)
    facts = {name: _first(getattr(a, name), shown, kept) for name in _FILLS}
    if a.sides is not None and not a.one_input:
        facts |= _of_side(a.sides, shown)
    there = [part.baseline_value for part in (a, b)]
    rests = [_rest(part, shown, kept) for part in (a, b)]
    receipt = _receipts([a.receipt, b.receipt])
    told = {name: _of_both(*receipt.pop(name)) for name in receipt.pop("per_row", ())}
    per_row = {name: [fact] for name, fact in told.items() if fact is not None} | {"on_the_answers": [rests]}
    made = replace(
        a, values=values, raw=raw, raising=None, gap=None, residual=None, kept={}, sides=None,
        real=torch.ones(1, kept, dtype=torch.bool, device="cpu"), output_value=a.output_value - b.output_value,
        baseline_value=None if there[0] is None or there[1] is None else there[0] - there[1],
        channel_axis=a.by_name("channel_axis")[shown], target=f"{a.target} − {b.target}",
        labels=[f"{one} − {other}" for one, other in zip(a.labels or [], b.labels or [], strict=True)],
        answer=[_rivals(one, other) for one, other in zip(a.answer or [], b.answer or [], strict=True)],
        receipt=Receipt(receipt, per_row, {"per_row": list(per_row)}), **facts,
    )  # fmt: skip
    how = a.receipt.get("channels")
    how = how.get(shown) if isinstance(how, Mapping) else how
    return made.channels(how) if how not in (None, "sum") else made


def _of_both(one: Any, other: Any) -> Any:
    """A fact about a difference of answers: what holds of both, what both took, the larger error, else nothing."""
    if isinstance(one, bool):
        return one and other
    if isinstance(one, int):
        return one + other
    return max(one, other) if isinstance(one, float) else one if one == other else None


def _rest(part: Attribution, shown: str, kept: int) -> float:
    """What an answer owes to its own tokens: those after the prompt's, or a decoder's."""
    return sum(float(v[..., kept * (name == shown) :].sum()) for name, v in part.by_name().items())


def _rivals(one: Any, other: Any) -> tuple[Any, ...]:
    """Two answers as one: no tokens of its own, and both with their ids."""
    return (f"{one[0]} / {other[0]}", 0, [], [], [(one[0], one[2]), (other[0], other[2])])


def _first(facts: Any, name: str, kept: int) -> Any:
    facts = facts.get(name) if isinstance(facts, Mapping) else facts
    return None if facts is None else [row[:kept] for row in facts]


# ---- rows of other lengths ----


def _joined(parts: list[Attribution]) -> Attribution:
    if len(parts) == 1:
        return parts[0]
    length, axis = max(_length(part) for part in parts), 1 + parts[0].several
    fields: dict[str, Any] = {}
    for name in (*_LIKE_VALUES, *_PER_ROW, *_FILLS, *_PER_TEXT):
        given = [getattr(part, name) for part in parts]
        if any(g is None for g in given):
            fields[name] = None
        elif name in _LIKE_VALUES:
            fields[name] = forms.each(partial(_stacked, 1 if name == "real" else axis), parts[0].values, *given)
        elif name in _PER_ROW:
            fields[name] = torch.cat(given)
        elif all(isinstance(g, Mapping) for g in given):  # of several inputs
            fields[name] = {key: _filled([row for g in given for row in g[key]]) for key in given[0]}
        else:
            rows = [row for g in given for row in g]
            fields[name] = [padded(row, length, _FILLS[name]) for row in rows] if name in _FILLS else rows
    fields["target"] = _targets([part.target for part in parts])
    fields["receipt"] = _receipts([part.receipt for part in parts])
    return replace(parts[0], **fields, kept={})


def _length(part: Attribution) -> int:
    return int(next(iter(part.by_name().values())).shape[1 + part.several])


def _stacked(axis: int, *given: Any) -> Tensor | None:
    """One tensor of all rows, the shorter ones filled with zeros; pairs of units have two such axes."""
    if any(g is None for g in given):
        return None
    largest = [max(sizes) for sizes in zip(*(g.shape[axis:] for g in given), strict=True)]
    parts = []
    for g in given:
        whole = g.new_zeros(*g.shape[:axis], *largest)
        whole[(..., *(slice(size) for size in g.shape[axis:]))] = g
        parts.append(whole)
    return torch.cat(parts)


def _filled(rows: list[list[str]]) -> list[list[str]]:
    longest = max(map(len, rows))
    return [padded(row, longest, "") for row in rows]


def _targets(given: list[Any]) -> Any:
    if all(isinstance(g, Tensor) for g in given):
        return torch.cat(given)
    return [item for g in given for item in g] if all(isinstance(g, list) for g in given) else given[0]


def _receipts(given: list[Mapping[str, Any]]) -> Receipt:
    """One receipt: counts are added, facts per row are concatenated, the rest is the first one's."""
    receipt = Receipt(given[0])
    for name in ("forward_passes", "backward_passes"):
        receipt[name] = sum(one[name] for one in given)
    names = [name for name in receipt.pop("per_row", ()) if all(name in one for one in given)]
    for name in list(given[0].get("per_row", ())):
        del receipt[name]
    for name in names:
        receipt[name] = joined([waiting(one, name) for one in given])
    return Receipt(receipt, {"per_row": names} if names else {})


# ---- windows of one text ----


def _one_row(a: Attribution, windows: list[Tokens]) -> Attribution:
    """One row for the whole text: the mean over the windows that hold a token, and the mean score."""
    whole = windows[0].whole
    assert whole is not None
    axis = int(a.several)

    def mean(tensor: Tensor) -> Tensor:
        """Over the windows, along the tokens."""
        shape = [*tensor.shape[1:]]
        shape[axis] = len(whole)
        total, seen = tensor.new_zeros(shape), tensor.new_zeros(len(whole))
        for row, window in enumerate(windows):
            positions = torch.tensor(window.positions, device=tensor.device)
            total = total.index_add(axis, positions, tensor[row].narrow(axis, 0, len(positions)))
            seen = seen.index_add(0, positions, tensor.new_ones(len(positions)))
        seen = seen.clamp(min=1).view([-1 if i == axis else 1 for i in range(len(shape))])
        return (total / seen).unsqueeze(0)

    means: dict[str, Any] = {
        name: None if (given := getattr(a, name)) is None else given.mean(0, keepdim=True) for name in _PER_ROW
    }
    facts: dict[str, Any] = text_facts([whole], len(whole))
    gone = ("per_row", *a.receipt.get("per_row", ()))
    receipt = {**{name: a.receipt[name] for name in a.receipt if name not in gone}, "windows": len(windows)}
    return replace(
        a, **means, **facts, values=mean(a.values), raw=mean(a.raw), raising=None, kept={},
        labels=a.labels and a.labels[:1], target=a.target[:1], receipt=receipt,
        real=torch.ones(1, len(whole), dtype=torch.bool, device="cpu"),
    )  # fmt: skip
