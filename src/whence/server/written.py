"""Models that write: what they write, what else could have stood there, and the same answer after a shorter prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence.adapters.answers import check_linear
from whence.adapters.generation import Continuation
from whence.engine import blame
from whence.engine.scope import scope
from whence.errors import InputError, TargetError
from whence.methods import methods
from whence.results.attribution import Attribution
from whence.results.comparison import has_sign
from whence.server import shown
from whence.server.asks import Asked, Desk, answers
from whence.server.curves import curves, ranked
from whence.server.schema import Ask

_ALTERNATIVES = 8
_CUT = ("input_ids", "attention_mask")  # what has an entry for each token of the prompt


# ---- the same answer after less of the prompt ----


def removed(asked: Asked, ask: Ask) -> dict[str, Any]:
    """Each token of the same answer, after a prompt without some of its tokens."""
    request, wanted = _request(asked)
    count = _read(asked, request, wanted)
    if not all(0 <= unit < count for unit in ask.removed):
        raise InputError(f"The prompt has {count} tokens, numbered from 0; one of `removed` is not among them.")
    if len(set(ask.removed)) >= count:
        raise InputError("Nothing would be left of the prompt.\n  Remove less of it.")
    before, after = (_told(_logits(asked, request, wanted, [gone])[0], wanted) for gone in ([], ask.removed))
    expected = {}
    for name, a in answers(asked, ask).items():
        gone = _values(a)[:, sorted(set(ask.removed))].sum(-1)
        facts = methods[name].facts
        parts = has_sign(a) and not facts.get("slope") and not facts.get("needs")
        expected[name] = {"change": shown.numbers(-gone) if parts else None}
    return {"before": before, "after": after, "removed": ask.removed, "space": "logit", "how": "deleted",
            "expected": expected}  # fmt: skip


def deleted(asked: Asked, ask: Ask, found: Mapping[str, Attribution], steps: int, draws: int) -> dict[str, Any]:
    """The probability of the answer's chosen tokens, their geometric mean, as the prompt's go (teacher forcing)."""
    request, wanted = _request(asked)
    chosen = list(range(len(wanted))) if ask.chosen is None else sorted(set(ask.chosen))
    if not chosen or chosen[0] < 0 or chosen[-1] >= len(wanted):
        raise InputError(f"The answer has {len(wanted)} tokens, numbered from 0; choose some of them.")
    count = _read(asked, request, wanted)
    free = [i for i, unit in enumerate(_prompt_units(asked)[:count]) if not unit["special"]]
    most = len(free) if len(free) < count else len(free) - 1  # something has to stay
    if most < 1:
        raise InputError("The prompt has one token, and something has to stay of it.\n  Write a longer one.")
    orders = {name: ranked(_values(a)[chosen].sum(0), free) for name, a in found.items()}

    def measure(choices: Sequence[Sequence[int]]) -> Tensor:
        logs = _logits(asked, request, wanted, choices).log_softmax(-1)
        own = torch.tensor(wanted, device="cpu")[None, :, None].expand(len(choices), -1, 1)
        return logs.gather(2, own)[:, chosen, 0].mean(-1).exp()

    return {**curves(orders, free, most, steps, draws, measure), "unit": "token", "how": "deleted",
            "target": asked.wrapped.tokenizer.decode([wanted[i] for i in chosen]), "chosen": chosen,
            "failed": {}}  # fmt: skip


def _prompt_units(asked: Asked) -> list[dict[str, Any]]:
    """The tokens of the prompt; those of a chat template are special."""
    return [unit for unit in shown.units_of(asked.explained("random")) if unit["part"] != "written"]


def _values(a: Attribution) -> Tensor:
    """(answer's tokens, tokens that are read)"""
    found = (a.values["input_ids"] if isinstance(a.values, Mapping) else a.values)[0]
    assert isinstance(found, Tensor)
    return found.detach().cpu()


def _request(asked: Asked) -> tuple[Any, list[int]]:
    """What the model gets for the prompt and its answer, and the answer's ids."""
    (request,) = asked.wrapped.requests(asked.inputs, asked.goal())
    return request, [int(token) for _, token in request.target.index[0].tolist()]


def _read(asked: Asked, request: Any, wanted: Sequence[int]) -> int:
    """How many tokens the prompt has."""
    size = len(request.inputs["input_ids"][0])
    return size if asked.kind == "seq2seq" else size - len(wanted) + 1


def _logits(asked: Asked, request: Any, wanted: Sequence[int], choices: Sequence[Sequence[int]]) -> Tensor:
    """(choices, answer's tokens, vocabulary) where each token is predicted, without equally many tokens each."""
    root, inputs = asked.wrapped.model, dict(request.inputs)
    length = len(inputs["input_ids"][0])
    keep = torch.ones(len(choices), length, dtype=torch.bool, device=inputs["input_ids"].device)
    for row, gone in enumerate(choices):
        keep[row, list(gone)] = False
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == 1:
            many = value.expand(len(choices), *value.shape[1:])
            inputs[name] = many[keep].view(len(choices), -1) if name in _CUT else many.contiguous()
    with scope(root), torch.no_grad():
        found = blame.called(request.model, inputs, "dict", root).logits
    return found[:, -len(wanted) :].detach().cpu().double()


def _told(scores: Tensor, wanted: Sequence[int]) -> list[dict[str, float]]:
    p = scores.softmax(-1)
    return [{"score": float(scores[i, token]), "probability": float(p[i, token])} for i, token in enumerate(wanted)]


# ---- written text ----


def generate(desk: Desk, ask: Ask, job: Any) -> None:
    """What a model writes, token by token, and what else could have stood there."""
    asked = desk.asked(ask)
    if not asked.writes:
        raise InputError("This model does not write text.\n  Choose a language model or a translator.")
    if asked.target is None:
        asked.target = asked.wrapped.complete(asked.inputs, min(ask.tokens, desk.limits.written))
    request, wanted = _request(asked)
    p = _logits(asked, request, wanted, [[]])[0].softmax(-1)
    labels, decode = request.facts["labels"][0], asked.wrapped.tokenizer.decode
    tokens = []
    for i, token in enumerate(wanted):
        best = p[i].topk(min(_ALTERNATIVES, p.shape[1]))
        others = [
            {"id": int(n), "text": decode([int(n)]), "probability": float(value)}
            for value, n in zip(best.values, best.indices, strict=True)
        ]
        tokens.append({"id": token, "text": labels[i], "probability": float(p[i, token]), "alternatives": others})
    job.tell("result", {"answer": decode(wanted), "ids": wanted, "tokens": tokens, **_prompt(asked)})


def _prompt(asked: Asked) -> dict[str, Any]:
    """The text that the model reads, and of a conversation where each message stands in it."""
    a = asked.explained("random")
    messages = None if a.messages is None else a.messages[0]
    text = None if a.text is None else a.text[0]
    told = [{"role": role, "start": start, "end": end} for role, start, end in messages or []]
    return {"prompt": text, "messages": told or None}


def next_tokens(asked: Asked, top: int) -> list[dict[str, Any]]:
    """The likeliest tokens after a prompt, or at the start of a translation."""
    first = asked.wrapped.complete(asked.inputs, 1)
    (request,) = asked.wrapped.requests(asked.inputs, first)
    scores = _logits(asked, request, first.ids, [[]])[0, 0]
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
