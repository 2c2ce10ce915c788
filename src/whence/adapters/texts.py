"""Requests of texts: tokenized, in batches of similar length, each with its targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.adapters import tokens as tokenization
from whence.adapters.requests import Request, per_row, text_facts
from whence.adapters.tokens import Tokens
from whence.engine import blame
from whence.engine.scope import scope
from whence.errors import InputError, TargetError

if TYPE_CHECKING:
    from whence.adapters.wrapped import Wrapped

CHUNK = 32  # texts of similar length in one pass

# (wrapped, the rows' tokens, their batch, the targets that were asked for) → the model to explain and its targets; what
# else is asked of the model is added to the batch
Aim = Callable[["Wrapped", list[Tokens], dict[str, Any], list[Any]], tuple[Any, Any]]


def text_requests(
    wrapped: Wrapped, rows: list[tuple[str, ...]], target: Any, size: int | None, aim: Aim, windows: bool = False
) -> list[Request]:
    """The texts in batches of similar length; a text that is too long in windows, where the task allows them."""
    limit = tokenization.limit_of(wrapped.tokenizer, getattr(wrapped.model, "config", None))
    targets = per_row(wrapped.target(target), len(rows))
    tokens = tokenization.tokens_of_all(wrapped.tokenizer, rows, limit, wrapped.long, windows)
    short = sorted((row for row, parts in enumerate(tokens) if len(parts) == 1), key=lambda row: len(tokens[row][0]))
    size = size or CHUNK
    batches = [short[start : start + size] for start in range(0, len(short), size)]
    requests = [_request(wrapped, [tokens[r][0] for r in batch], batch, [targets[r] for r in batch], aim)
                for batch in batches]  # fmt: skip
    for row, parts in enumerate(tokens):
        if len(parts) > 1:
            if not windows:
                raise InputError(
                    f'long="window" is for text classification, but this is {wrapped.task}.\n  Use "truncate".'
                )
            requests.append(_windows(wrapped, parts, row, targets[row], aim))
    return requests


def _windows(wrapped: Wrapped, parts: list[Tokens], row: int, target: Any, aim: Aim) -> Request:
    """All windows of one text, for one class: the one with the highest mean logit, if none is given."""
    if target is None:
        inputs: dict[str, Any] = dict(tokenization.batch(parts, wrapped.pad, wrapped.device))
        target = int(logits(wrapped, wrapped.model, inputs).mean(0).argmax())
    return replace(_request(wrapped, parts, [row], [target] * len(parts), aim), windows=parts)


def _request(wrapped: Wrapped, tokens: list[Tokens], rows: list[int], targets: list[Any], aim: Aim) -> Request:
    inputs: dict[str, Any] = dict(tokenization.batch(tokens, wrapped.pad, wrapped.device))
    facts = text_facts(tokens, inputs["input_ids"].shape[1])
    model: Any = wrapped.model
    target = targets[0]
    if not any(map(callable, targets)):
        model, target = aim(wrapped, tokens, inputs, targets)
    return Request(model, inputs, target, rows, facts, stand_ins=wrapped.stand_ins)


@torch.no_grad()
def logits(wrapped: Wrapped, model: Any, inputs: dict[str, Any]) -> Tensor:
    """The model's logits for a batch; its state is as before afterwards."""
    with scope(wrapped.model):
        output = blame.called(model, inputs, "dict", wrapped.model)
    return output if isinstance(output, Tensor) else output.logits


def check_positions(tokens: Sequence[Tokens], targets: Sequence[Any]) -> None:
    """A target's position is one of the text's own tokens, not of the padding after it."""
    for row, target in zip(tokens, targets, strict=True):
        position = target[0] if isinstance(target, tuple) else None
        if isinstance(position, int) and not -len(row) <= position < len(row):
            raise TargetError(
                f"The target's position is {position}, but the text {row.text[0][:40]!r} has {len(row)} tokens.\n"
                "  Give a position inside it."
            )
