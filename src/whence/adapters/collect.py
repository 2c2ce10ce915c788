"""From the answers to a wrapped model's questions to one Attribution of the user's rows, with its units and labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence.adapters.decoding import texts_of
from whence.adapters.tokens import Tokens
from whence.adapters.wrapped import Question, Wrapped, text_facts
from whence.errors import Said, gathered, warn
from whence.results.attribution import Attribution
from whence.util.progress import steps

_PER_ROW = ("output_value", "baseline_value", "gap", "residual")
_LIKE_VALUES = ("values", "raw", "positive", "negative", "real")


def answered(
    wrapped: Wrapped, questions: list[Question], progress: bool | None, ask: Callable[[Question], Attribution],
    chosen: Any = None,
) -> Attribution:  # fmt: skip
    """Ask each question, and put the rows in the user's order."""
    found = []
    for question in steps(questions, progress, repr(wrapped)):
        with gathered() as said:
            answer = ask(question)
        _say_again(said, question)
        facts: dict[str, Any] = {name: list(told) for name, told in question.facts.items()}
        facts.setdefault("labels", _labels(wrapped, answer))
        if not _are_tokens(answer, facts.get("units")):
            facts = {name: told for name, told in facts.items() if name in ("text", "labels")}
        own = {"units": question.units, "real": question.real, "image": question.image}
        own = {name: _named(told, answer, chosen) for name, told in own.items()}
        answer = replace(answer, **{name: told for name, told in own.items() if told is not None}, **facts)
        if question.windows is not None and any(isinstance(layers, list) for layers in answer.kept.values()):
            warn(f"{answer.method}: what is kept of a text's windows is left out; there is one of each per window.")
        found.append(answer if question.windows is None else _one_row(answer, question.windows))
    places = [place for question in questions for place in question.places]
    whole = _joined(found)
    order = sorted(range(len(places)), key=places.__getitem__)
    return whole if order == list(range(len(places))) else whole._pick(order)


def _say_again(said: list[Said], question: Question) -> None:
    """What was said of a question's rows, of the user's; windows are all of one row."""
    for one in said:
        rows = None if one.rows is None else [question.places[0 if question.windows else row] for row in one.rows]
        warn(one.text, rows, **one.worst)


def _named(told: Any, answer: Attribution, chosen: Any) -> Any:
    """What is told of several inputs by name, of those that were explained."""
    if not isinstance(told, Mapping):
        return told
    if isinstance(answer.values, Mapping):
        return {name: told[name] for name in answer.values if name in told}
    name = chosen[0] if isinstance(chosen, list | tuple) and len(chosen) == 1 else chosen
    return told.get(name) if isinstance(name, str) else None


def _are_tokens(answer: Attribution, units: list[list[str]] | None) -> bool:
    """Whether the values are one per token, and not those of some layer."""
    if units is None or not isinstance(answer.values, Tensor):
        return True
    axis = 1 + answer.several
    return answer.values.dim() == axis + 1 and answer.values.shape[axis] == len(units[0])


def _labels(wrapped: Wrapped, answer: Attribution) -> list[Any] | None:
    """The names of the explained classes, one per row."""
    if wrapped.task in ("fill-mask", "text-generation") and isinstance(answer.target, list):
        return [texts_of(wrapped.tokenizer, [index[-1]])[0] for index in answer.target]
    if wrapped.task == "token-classification" and isinstance(answer.target, list):
        return [wrapped.labels.get(index[-1], str(index[-1])) for index in answer.target]
    if not wrapped.labels or not isinstance(answer.target, Tensor) or wrapped.task == "question-answering":
        return None
    rows = answer.target.tolist()
    name = lambda n: wrapped.labels.get(n, str(n))  # noqa: E731
    return [[name(n) for n in row] if isinstance(row, list) else name(row) for row in rows]


# ---- rows of other lengths ----


def _joined(parts: list[Attribution]) -> Attribution:
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    length = max(_length(part) for part in parts)
    axis = 1 + first.several
    found: dict[str, Any] = {}
    for name in _LIKE_VALUES:
        given = [getattr(part, name) for part in parts]
        along = 1 if name == "real" else axis
        found[name] = None if any(g is None for g in given) else _stacked(given, along)
    for name in _PER_ROW:
        given = [getattr(part, name) for part in parts]
        found[name] = None if any(g is None for g in given) else torch.cat(given)
    for name in ("units", "spans", "special", "words", "segments", "text", "labels"):
        given = [getattr(part, name) for part in parts]
        if all(isinstance(g, Mapping) for g in given):  # of several inputs
            found[name] = {key: _filled([row for g in given for row in g[key]]) for key in given[0]}
            continue
        rows = None if any(g is None for g in given) else [row for g in given for row in g]
        found[name] = (
            rows if name in ("text", "labels") or rows is None else [_longer(row, name, length) for row in rows]
        )
    found["target"] = _targets([part.target for part in parts])
    found["receipt"] = _receipts([part.receipt for part in parts])
    return replace(first, **found, kept={})


def _length(part: Attribution) -> int:
    values = part.values if isinstance(part.values, Tensor) else next(iter(part.values.values()))
    return int(values.shape[1 + part.several])


def _stacked(given: list[Any], axis: int) -> Any:
    """One tensor of all rows, larger rows' places 0 in the smaller ones; pairs of units have two such axes."""
    if isinstance(given[0], Mapping):
        return {key: _stacked([g[key] for g in given], axis) for key in given[0]}
    largest = [max(sizes) for sizes in zip(*(g.shape[axis:] for g in given), strict=True)]
    padded = []
    for g in given:
        whole = g.new_zeros(*g.shape[:axis], *largest)
        whole[(..., *(slice(size) for size in g.shape[axis:]))] = g
        padded.append(whole)
    return torch.cat(padded)


def _filled(rows: list[list[str]]) -> list[list[str]]:
    longest = max(map(len, rows))
    return [[*row, *[""] * (longest - len(row))] for row in rows]


def _longer(row: list[Any], name: str, length: int) -> list[Any]:
    fill = {"units": "[PAD]", "spans": (0, 0), "special": True}.get(name)
    return [*row, *[fill] * (length - len(row))]


def _targets(given: list[Any]) -> Any:
    if all(isinstance(g, Tensor) for g in given):
        return torch.cat(given)
    return [item for g in given for item in g] if all(isinstance(g, list) for g in given) else given[0]


def _receipts(given: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Counts added up, facts by row one after the other, the rest of the first."""
    found = dict(given[0])
    for name in ("forward_passes", "backward_passes"):
        found[name] = sum(receipt[name] for receipt in given)
    names = [name for name in found.pop("per_row", ()) if all(name in receipt for receipt in given)]
    for name in list(given[0].get("per_row", ())):
        found.pop(name, None)
    for name in names:
        found[name] = [line for receipt in given for line in receipt[name]]
    return found | ({"per_row": names} if names else {})


# ---- windows of one text ----


def _one_row(a: Attribution, windows: list[Tokens]) -> Attribution:
    """One row for the whole text: each token has the mean over the windows that show it, and so has the score."""
    whole = windows[0].whole
    assert whole is not None
    axis = int(a.several)

    def mean(tensor: Tensor) -> Tensor:
        """Over the windows, along the tokens."""
        shape = [*tensor.shape[1:]]
        shape[axis] = len(whole)
        total, seen = tensor.new_zeros(shape), tensor.new_zeros(len(whole))
        for row, window in enumerate(windows):
            places = torch.tensor(window.places, device=tensor.device)
            total = total.index_add(axis, places, tensor[row].narrow(axis, 0, len(places)))
            seen = seen.index_add(0, places, tensor.new_ones(len(places)))
        seen = seen.clamp(min=1).view([-1 if i == axis else 1 for i in range(len(shape))])
        return (total / seen).unsqueeze(0)

    means: dict[str, Any] = {
        name: None if (given := getattr(a, name)) is None else given.mean(0, keepdim=True) for name in _PER_ROW
    }
    facts: dict[str, Any] = text_facts([whole], {"input_ids": torch.zeros(1, len(whole), device="cpu")})
    receipt = {**{k: v for k, v in a.receipt.items() if k not in a.receipt.get("per_row", ())}, "windows": len(windows)}
    receipt.pop("per_row", None)
    return replace(
        a, **means, **facts, values=mean(a.values), raw=mean(a.raw), positive=None, negative=None, kept={},
        labels=a.labels and a.labels[:1], target=a.target[:1], receipt=receipt,
        real=torch.ones(1, len(whole), dtype=torch.bool, device="cpu"),
    )  # fmt: skip
