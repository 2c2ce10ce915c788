"""Generated text: each token of a continuation or a translation, explained by the tokens before it in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.adapters import tokens as tokenization
from whence.adapters.decoding import texts_of, units_of
from whence.adapters.requests import Request, text_facts
from whence.adapters.tokens import Long, Tokens
from whence.engine import blame
from whence.engine.scope import scope
from whence.errors import InputError, TargetError
from whence.subject.targets import Indices

if TYPE_CHECKING:
    from whence.adapters.wrapped import Wrapped

# (wrapped, the text's ids, the ids that are written) → the inputs whose last position predicts the next token
Step = Callable[["Wrapped", list[int], list[int]], dict[str, Tensor]]


class Continuation(str):
    """Text that a model wrote, with the ids of its tokens."""

    ids: list[int]

    def __new__(cls, text: str, ids: Sequence[int]) -> Continuation:
        made = super().__new__(cls, text)
        made.ids = list(ids)
        return made


@torch.no_grad()
def complete(wrapped: Wrapped, text: str, tokens: int, step: Step) -> Continuation:
    """What the model writes for a text, the likeliest token each time, up to its end-of-text token."""
    if not isinstance(text, str) or not text or tokens < 1:
        raise InputError("complete() writes at least one token for a text.\n  Give a string that is not empty.")
    model, tokenizer = wrapped.model, wrapped.tokenizer
    end = getattr(model.config, "eos_token_id", None)
    ends = set(end) if isinstance(end, list) else {end}
    limit = tokenization.limit_of(tokenizer, model.config)
    ids = _tokens(wrapped, (text,), limit).ids["input_ids"]
    before = _positions(step(wrapped, ids, []))
    if limit is not None and before >= limit:
        raise InputError(f"The text has {before} tokens, but the model takes {limit}: nothing can be written after it.")
    most = tokens if limit is None else min(tokens, limit - before)
    written: list[int] = []
    with scope(model):
        while len(written) < most:
            logits = blame.called(model, step(wrapped, ids, written), "dict", model).logits
            token = int(logits[0, -1].argmax())
            if token in ends and written:
                break
            written.append(token)
    return Continuation(tokenizer.decode(written), written)


def after_the_text(wrapped: Wrapped, ids: list[int], written: list[int]) -> dict[str, Tensor]:
    """A decoder goes on after the text."""
    return {"input_ids": torch.tensor([[*ids, *written]], device=wrapped.device)}


def beside_the_text(wrapped: Wrapped, ids: list[int], written: list[int]) -> dict[str, Tensor]:
    """An encoder reads the text, and a decoder writes its own."""
    decoder = torch.tensor([[_start(wrapped.model), *written]], device=wrapped.device)
    return {"input_ids": torch.tensor([ids], device=wrapped.device), "decoder_input_ids": decoder}


def _positions(inputs: dict[str, Tensor]) -> int:
    """The length of what tokens are written to: the decoder's input where there is one."""
    return inputs.get("decoder_input_ids", inputs["input_ids"]).shape[1]


def _ids(wrapped: Wrapped, target: Any, role: str) -> list[int]:
    """The ids of a target, which the tokenizer reads as `text` or as `text_target`."""
    if isinstance(target, Continuation):
        return target.ids
    silent = tokenization.silent(wrapped.tokenizer)
    ids = wrapped.tokenizer(**{role: target}, add_special_tokens=False, **silent)["input_ids"]
    if not ids:
        raise TargetError("The continuation has no tokens.\n  Give one that is not empty.")
    return list(ids)


def continued(wrapped: Wrapped, rows: list[tuple[str, ...]], target: Any) -> Request:
    """Each token of a continuation (or, for `...`, of the text itself) as a target of its own: values (1, k, n)."""
    row = _one(rows)
    limit = tokenization.limit_of(wrapped.tokenizer, wrapped.model.config)
    tokens = _tokens(wrapped, row, limit)
    ids = list(tokens.ids["input_ids"])
    if target is ...:
        wanted, first = ids[1:], 0
        if not wanted:
            raise InputError("A text of one token has no token that another one comes before.\n  Give a longer one.")
        whole = ids
    else:
        wanted, first = _ids(wrapped, target, "text"), len(ids) - 1
        whole = [*ids, *wanted[:-1]]
        tokens = _with(wrapped, tokens, wanted)
    if limit is not None and len(whole) > limit:
        raise InputError(f"Text and continuation have {len(whole)} tokens, but the model takes {limit}.")
    inputs = {
        "input_ids": torch.tensor([whole], device=wrapped.device),
        "attention_mask": torch.ones(1, len(whole), dtype=torch.long, device=wrapped.device),
    }
    index = torch.tensor([[[first + i, token] for i, token in enumerate(wanted)]], device="cpu")
    facts = text_facts([tokens], len(whole)) | {
        "labels": [texts_of(wrapped.tokenizer, [*ids[: first + 1], *wanted])[first + 1 :]]
    }
    return Request(wrapped.model, inputs, Indices(index), [0], facts)


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
    row = _one(rows)
    limit = tokenization.limit_of(wrapped.tokenizer, wrapped.model.config)
    tokens = _tokens(wrapped, row, limit)
    if target is not None and not isinstance(target, str):
        raise TargetError(
            f"target={target!r} is not a text.\n  Give the target text, or leave it out for what is written."
        )
    written = wrapped.complete(row[0]) if target is None else target
    wanted = _ids(wrapped, written, "text_target")
    before = [_start(wrapped.model), *wanted[:-1]]
    inputs = {
        "input_ids": torch.tensor([tokens.ids["input_ids"]], device=wrapped.device),
        "attention_mask": torch.ones(1, len(tokens), dtype=torch.long, device=wrapped.device),
        "decoder_input_ids": torch.tensor([before], device=wrapped.device),
    }
    index = torch.tensor([[[i, token] for i, token in enumerate(wanted)]], device="cpu")
    units = {"input_ids": [tokens.units], "decoder_input_ids": [units_of(wrapped.tokenizer, [before[0], *wanted])[:-1]]}
    facts: dict[str, list[Any]] = {"text": [row[0]], "labels": [texts_of(wrapped.tokenizer, wanted)]}
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
    if len(rows[0]) != 1:
        raise InputError(
            "A pair was given, but every token of a text is explained from one text.\n"
            "  Give that text alone; what is to be written after it, or as its translation, is target=."
        )
    return rows[0]
