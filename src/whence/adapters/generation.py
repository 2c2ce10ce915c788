"""Generated text: each token of a continuation or a translation, explained by the tokens before it in one pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.adapters import tokens as tokenization
from whence.adapters.decoding import said, texts_of, units_of
from whence.adapters.requests import Request, text_facts
from whence.adapters.tokens import Long, Tokens
from whence.engine import blame
from whence.engine.scope import scope
from whence.errors import InputError, TargetError
from whence.subject.targets import Indices
from whence.util.checks import not_allowed

if TYPE_CHECKING:
    from whence.adapters.wrapped import Wrapped

# (wrapped, the text's ids, the ids that are written) → the inputs whose last position predicts the next token
Step = Callable[["Wrapped", list[int], list[int]], dict[str, Any]]


class Continuation(str):
    """Text that a model wrote, with the ids of its tokens."""

    ids: list[int]

    def __new__(cls, text: str, ids: Sequence[int]) -> Continuation:
        made = super().__new__(cls, text)
        made.ids = list(ids)
        return made


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest, or drawn at a temperature among the likeliest few."""

    temperature: float | None = None  # None: the likeliest
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, fine, wanted in (
            ("temperature", self.temperature is None or self.temperature > 0, "a number above 0"),
            ("top_k", self.top_k is None or self.top_k >= 1, "a whole number, at least 1"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "a number above 0 and at most 1"),
        ):
            if not fine:
                raise not_allowed(name, getattr(self, name), wanted, "complete")

    def chooser(self) -> Callable[[Tensor], int]:
        """From the logits of all tokens to the one that is written; draws by its own seed."""
        if self.temperature is None and self.top_k is None and self.top_p is None:
            return lambda logits: int(logits.argmax())
        draw = torch.Generator(device="cpu").manual_seed(self.seed)
        return lambda logits: self._drawn(logits, draw)

    def _drawn(self, logits: Tensor, draw: torch.Generator) -> int:
        shares = (logits.double().cpu() / (self.temperature or 1.0)).softmax(-1)
        ranked, ids = shares.sort(descending=True, stable=True)
        kept = torch.ones_like(ranked, dtype=torch.bool)
        if self.top_k is not None:
            kept[self.top_k :] = False
        if self.top_p is not None:
            kept &= ranked.cumsum(-1) - ranked < self.top_p  # the likeliest that together have at least p
        return int(ids[torch.multinomial(ranked * kept, 1, generator=draw)])


@torch.no_grad()
def complete(wrapped: Wrapped, text: str, tokens: int, step: Step, sampling: Sampling) -> Continuation:
    """What the model writes for a text up to its end-of-text token, the likeliest token each time or drawn."""
    if not isinstance(text, str) or not text or tokens < 1:
        raise InputError("complete() writes at least one token for a text.\n  Give a string that is not empty.")
    model, tokenizer = wrapped.model, wrapped.tokenizer
    configs = (model.config, getattr(model, "generation_config", None))
    given = [getattr(config, "eos_token_id", None) for config in configs]
    ends = {one for end in given for one in (end if isinstance(end, list) else [end])}
    limit = tokenization.limit_of(tokenizer, model.config)
    ids = _tokens(wrapped, (text,), limit).ids["input_ids"]
    before = _positions(step(wrapped, ids, []))
    if limit is not None and before >= limit:
        raise InputError(f"The text has {before} tokens, but the model takes {limit}: nothing can be written after it.")
    most = tokens if limit is None else min(tokens, limit - before)
    written: list[int] = []
    choose = sampling.chooser()
    with scope(model):
        while len(written) < most:
            logits = blame.called(model, step(wrapped, ids, written), "dict", model).logits
            token = choose(logits[0, -1])
            if token not in ends or not written:  # an answer that is its end alone is that
                written.append(token)
            if token in ends:
                break
    return Continuation(said(tokenizer, [] if wrapped.entry.text_target else ids, written)[0], written)


def after_the_text(wrapped: Wrapped, ids: list[int], written: list[int]) -> dict[str, Any]:
    """A decoder goes on after the text."""
    return {"input_ids": torch.tensor([[*ids, *written]], device=wrapped.device), **asked_of(wrapped.model, 1)}


def beside_the_text(wrapped: Wrapped, ids: list[int], written: list[int]) -> dict[str, Any]:
    """An encoder reads the text, and a decoder writes its own."""
    decoder = torch.tensor([[_start(wrapped.model), *written]], device=wrapped.device)
    own = asked_of(wrapped.model)
    return {"input_ids": torch.tensor([ids], device=wrapped.device), "decoder_input_ids": decoder, **own}


def asked_of(model: Any, last: int | None = None) -> dict[str, Any]:
    """What a model's class can leave out: its cache of keys and values, and all logits but the `last` ones."""
    wanted: dict[str, Any] = {"use_cache": False} if last is None else {"use_cache": False, "logits_to_keep": last}
    known = inspect.signature(model.forward).parameters
    return {name: value for name, value in wanted.items() if name in known}


def _positions(inputs: dict[str, Any]) -> int:
    """The length of what tokens are written to: the decoder's input where there is one."""
    return int(inputs.get("decoder_input_ids", inputs["input_ids"]).shape[1])


def wanted_ids(wrapped: Wrapped, target: Any, prompt: str) -> list[int]:
    """The ids of what is written after a prompt, or beside it where an encoder reads that."""
    if isinstance(target, Continuation):
        return target.ids
    if wrapped.entry.text_target:
        silent = tokenization.silent(wrapped.tokenizer)
        ids = list(wrapped.tokenizer(text_target=target, add_special_tokens=False, **silent)["input_ids"])
    else:
        ids = _ids_after(wrapped.tokenizer, str(prompt), str(target))
    if not ids:
        raise TargetError("The continuation has no tokens.\n  Give one that is not empty.")
    return ids


def _ids_after(tokenizer: Any, prompt: str, text: str) -> list[int]:
    """The ids of a text as it stands after another one.

    A tokenizer that puts a space before every text would put one between the two. So both are read together; where
    that joins the prompt's last letters with the first ones of the text, the text is read after a line's end, and alone
    where it is not known otherwise.
    """

    def ids(of: str) -> list[int]:
        return list(tokenizer(of, add_special_tokens=False, **tokenization.silent(tokenizer))["input_ids"])

    alone, unknown = ids(text), getattr(tokenizer, "unk_token_id", None)
    for before in (prompt, "\n"):
        own, both = ids(before), ids(before + text)
        rest = both[len(own) :]
        if rest and both[: len(own)] == own and (unknown not in rest or unknown in alone):
            return rest
    return alone


def continued(wrapped: Wrapped, rows: list[tuple[str, ...]], target: Any) -> Request:
    """Each token of a continuation (or, for `...`, of the text itself) as a target of its own: values (1, k, n)."""
    text = one_text(_one(rows))
    if target is ...:
        tokens = _tokens(wrapped, (text,), tokenization.limit_of(wrapped.tokenizer, wrapped.model.config))
        ids = list(tokens.ids["input_ids"])
        wanted, first = ids[1:], 0
        if not wanted:
            raise InputError("A text of one token has no token that another one comes before.\n  Give a longer one.")
        inputs, own = _inputs(wrapped, ids), ids[:1]
    else:
        wanted = wanted_ids(wrapped, target, text)
        inputs, tokens, first, _ = text_and_answer(wrapped, text, wanted)
        own = tokens.ids["input_ids"][: len(tokens) + 1 - len(wanted)]
    index = torch.tensor([[[first + i, token] for i, token in enumerate(wanted)]], device="cpu")
    labels = texts_of(wrapped.tokenizer, [*own, *wanted])[len(own) :]
    facts = text_facts([tokens], inputs["input_ids"].shape[1]) | {"labels": [labels]}
    if target is not ...:
        facts["answer"] = [answer_fact(wrapped, own, wanted)]
    return Request(wrapped.model, inputs, Indices(index), [0], facts)


def answer_fact(
    wrapped: Wrapped, before: Sequence[int], wanted: Sequence[int]
) -> tuple[str, int, list[int], list[int]]:
    """An answer as text, how many of the row's tokens are its, its ids, and where in the text each of them begins."""
    text, ends = said(wrapped.tokenizer, before, wanted)
    starts = []
    for begin, end in pairwise([0, *ends]):
        piece = text[begin:end]
        starts.append(begin + len(piece) - len(piece.lstrip()))
    return text, len(wanted) - 1, list(wanted), starts


# what a model gets, the tokens of its text, which of the logits predict the answer's first token, units by input
Built = tuple[dict[str, Any], Tokens, int, Any]


def text_and_answer(wrapped: Wrapped, text: str, wanted: list[int]) -> Built:
    """A decoder's input: the text, and after it the answer without its last token; logits at the answer alone."""
    limit = tokenization.limit_of(wrapped.tokenizer, wrapped.model.config)
    tokens = _tokens(wrapped, (text,), limit)
    whole = [*tokens.ids["input_ids"], *wanted[:-1]]
    if limit is not None and len(whole) > limit:
        raise InputError(f"Text and continuation have {len(whole)} tokens, but the model takes {limit}.")
    asked = asked_of(wrapped.model, len(wanted))
    first = 0 if "logits_to_keep" in asked else len(tokens) - 1
    return _inputs(wrapped, whole) | asked, _with(wrapped, tokens, wanted), first, None


def started(wrapped: Wrapped, text: str, wanted: list[int]) -> Built:
    """An encoder's input, the text, and a decoder's: its start, and the answer without its last token."""
    tokens = _tokens(wrapped, (text,), tokenization.limit_of(wrapped.tokenizer, wrapped.model.config))
    before = [_start(wrapped.model), *wanted[:-1]]
    inputs = _inputs(wrapped, tokens.ids["input_ids"]) | asked_of(wrapped.model)
    inputs["decoder_input_ids"] = torch.tensor([before], device=wrapped.device)
    own = units_of(wrapped.tokenizer, [before[0], *wanted])[:-1]
    return inputs, tokens, 0, {"input_ids": [tokens.units], "decoder_input_ids": [own]}


def sides(wrapped: Wrapped, tokens: Tokens, fact: Any) -> dict[str, Any]:
    """What units are made of: the text that is read and the one that is written, with the places of their tokens."""
    text, _, _, starts = fact
    own = [(0, 0), *pairwise([*starts, len(text)])][:-1]
    return {
        "input_ids": {"text": str(tokens.text[0]), "spans": list(tokens.spans), "special": list(tokens.special)},
        "decoder_input_ids": {"text": text, "spans": own, "special": [True] + [False] * (len(own) - 1)},
    }


def _inputs(wrapped: Wrapped, ids: Sequence[int]) -> dict[str, Any]:
    return {
        "input_ids": torch.tensor([list(ids)], device=wrapped.device),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.long, device=wrapped.device),
    }


def _tokens(wrapped: Wrapped, row: tuple[str, ...], limit: int | None) -> Tokens:
    long: Long = "error" if wrapped.long == "window" else wrapped.long  # what is written has no windows
    return tokenization.tokens_of(wrapped.tokenizer, row, limit, long, windows=False)[0]


def _with(wrapped: Wrapped, tokens: Tokens, wanted: list[int]) -> Tokens:
    """The text's tokens and those written after it, without the last."""
    more, count = wanted[:-1], len(wanted) - 1
    units = units_of(wrapped.tokenizer, [*tokens.ids["input_ids"], *wanted])[:-1]
    end = len(tokens.text[0])
    return Tokens(
        {**tokens.ids, "input_ids": [*tokens.ids["input_ids"], *more]}, units, [*tokens.spans, *[(end, end)] * count],
        [*tokens.special, *[False] * count], [*tokens.words, *[None] * count], tokens.text,
        [*tokens.segments, *[0] * count],
    )  # fmt: skip


def translated(wrapped: Wrapped, rows: list[tuple[str, ...]], target: Any) -> Request:
    """Each token of a target text by the source's tokens and by the target's tokens before it."""
    text = one_text(_one(rows))
    if target is not None and not isinstance(target, str) and not callable(target):
        raise TargetError(
            f"target={target!r} is not a text.\n"
            "  Give the target text, leave it out for what is written, or give a function of the output for that."
        )
    given = isinstance(target, str)
    wanted = wanted_ids(wrapped, target if given else wrapped.complete(text), text)
    inputs, tokens, _, units = started(wrapped, text, wanted)
    both = [sides(wrapped, tokens, answer_fact(wrapped, [], wanted))]
    if callable(target):
        return Request(wrapped.model, inputs, target, [0], {"text": [text], "sides": both}, units)
    index = torch.tensor([[[i, token] for i, token in enumerate(wanted)]], device="cpu")
    facts: dict[str, list[Any]] = {"text": [text], "labels": [texts_of(wrapped.tokenizer, wanted)], "sides": both}
    return Request(wrapped.model, inputs, Indices(index), [0], facts, units)


def _start(model: Any) -> int:
    config = model.config
    start = getattr(config, "decoder_start_token_id", None)
    start = getattr(config, "bos_token_id", None) if start is None else start
    if start is None:
        raise InputError("The model's configuration has no decoder_start_token_id.\n  Set it, or give tensors.")
    return int(start)


def _one(rows: list[tuple[str, ...]]) -> tuple[str, ...]:
    if len(rows) != 1:
        raise InputError(
            f"Every token of a text is explained one text at a time, but {len(rows)} rows were given.\n"
            "  Explain them one by one."
        )
    return rows[0]


def one_text(row: tuple[str, ...]) -> str:
    """The text of a row; an answer is not explained from a pair."""
    if len(row) != 1:
        raise InputError(
            "A pair was given, but every token of a text is explained from one text.\n"
            "  Give that text alone; what is to be written after it, or as its translation, is target=."
        )
    return row[0]
