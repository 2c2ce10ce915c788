"""Answers of language models as targets: the log-probability of all of one, of a part of it, of one against another.

`whence.span("this sentence")` is a part of the answer, `whence.span()` all of it, and `whence.contrast("Paris",
"London")` the difference of two answers' log-probabilities. The model runs once over the prompt and the answer
(teacher forcing), and gives logits at the answer alone where its class can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.adapters.decoding import said
from whence.adapters.generation import answer_fact, one_text, sides, started, text_and_answer, wanted_ids
from whence.adapters.requests import Request, per_row, text_facts
from whence.errors import TargetError
from whence.util.checks import check_count

if TYPE_CHECKING:
    from whence.adapters.tokens import Tokens
    from whence.adapters.wrapped import Wrapped


@dataclass(frozen=True, eq=False)
class Span:
    """A part of an answer, or all of it: the explained score is its log-probability."""

    text: str | None = None
    occurrence: int = 1
    of: str | None = None  # the answer; None: the one that was given with the prompt, or what the model writes


@dataclass(frozen=True, eq=False)
class Contrast:
    """Two answers: the explained score is the difference of their log-probabilities."""

    first: str
    second: str

    @property
    def spans(self) -> tuple[Span, Span]:
        return Span(of=self.first), Span(of=self.second)


def span(text: str | None = None, occurrence: int = 1, *, of: str | None = None) -> Span:
    """A part of a language model's answer as a target: its log-probability, given the prompt and what comes before it.

    `of` is the answer, as text or from `lm.complete(…)`; left out, it is the conversation's last message where that is
    the assistant's, or what the model writes. Without a text, the target is the whole answer.

    >>> import whence
    >>> whence.span("Paris", occurrence=2, of="Paris, I think. Yes, Paris.").occurrence
    2
    """
    check_count("occurrence", occurrence)
    for name, given in (("text", text), ("of", of)):
        if given is not None and (not isinstance(given, str) or not given):
            raise TargetError(f"span: {name}={given!r} is not a text.\n  Give a string that is not empty.")
    return Span(text, occurrence, of)


def contrast(first: str, second: str) -> Contrast:
    """Why the first answer and not the second: log p(first | prompt) − log p(second | prompt), of any lengths.

    >>> import whence
    >>> whence.contrast("Paris", "London").second
    'London'
    """
    for given in (first, second):
        if not isinstance(given, str) or not given:
            raise TargetError(f"contrast: {given!r} is not a text.\n  Give two strings that are not empty.")
    return Contrast(first, second)


@dataclass(frozen=True, eq=False)
class LogProbability:
    """The sum of some tokens' log-probabilities, one score per row: log p(answer | prompt) where they are all of it."""

    positions: Tensor  # where each is predicted, among the logits
    ids: Tensor
    __name__: str = "log-probability"

    def __call__(self, output: Any) -> Tensor:
        logits = output.logits[:, self.positions]  # (rows, tokens, vocabulary)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        chosen = wide.log_softmax(-1).gather(-1, self.ids.expand(len(wide), -1)[..., None])
        return chosen.sum((1, 2))


def is_about_answers(target: Any) -> bool:
    """Whether a target, or a list with one for each row, is a part of an answer."""
    return isinstance(target, Span) or (isinstance(target, list) and any(isinstance(t, Span) for t in target))


def answer_requests(wrapped: Wrapped, rows: Sequence[tuple[str, ...]], target: Any) -> list[Request]:
    """One request for each row: what is written to is as long as the prompt and its answer."""
    return [_request(wrapped, row, number, aim) for number, (row, aim) in _aims(rows, target)]


def _aims(rows: Sequence[tuple[str, ...]], target: Any) -> list[tuple[int, tuple[tuple[str, ...], Span]]]:
    aims = per_row(target, len(rows))
    if not all(isinstance(aim, Span) for aim in aims):
        raise TargetError("Some targets are parts of answers and others are not.\n  Give whence.span(…) for every row.")
    return list(enumerate(zip(rows, aims, strict=True)))


def _request(wrapped: Wrapped, row: tuple[str, ...], number: int, aim: Span) -> Request:
    prompt = one_text(row)
    answer: Any = aim.of or getattr(prompt, "answer", None) or wrapped.complete(prompt)
    beside = bool(wrapped.entry.text_target)
    wanted = wanted_ids(wrapped, answer, prompt)
    inputs, tokens, first, units = (started if beside else text_and_answer)(wrapped, prompt, wanted)
    before = [] if beside else tokens.ids["input_ids"][: len(tokens) + 1 - len(wanted)]
    chosen, title = list(range(len(wanted))), " ".join(str(answer)[:40].split())
    if aim.text is not None:
        chosen, title = _tokens_in(*said(wrapped.tokenizer, before, wanted), aim), aim.text
    device = wrapped.device
    score = LogProbability(
        torch.tensor([first + i for i in chosen], device=device),
        torch.tensor([wanted[i] for i in chosen], device=device),
        f"log p({title})",
    )
    facts: dict[str, list[Any]] = {"text": [str(prompt)]} if beside else text_facts([tokens], len(tokens))
    facts["answer"] = [answer_fact(wrapped, before, wanted)]
    if beside:
        facts["sides"] = [sides(wrapped, tokens, facts["answer"][0])]
    facts["labels"] = [score.__name__]
    held = None
    if not beside:
        held = [special or i > first_of(tokens, wanted) for i, special in enumerate(tokens.special)]
    stand_ins = {} if beside else wrapped.stand_ins
    return Request(wrapped.model, inputs, score, [number], facts, units, stand_ins=stand_ins, held=held)


def first_of(tokens: Tokens, wanted: Sequence[int]) -> int:
    """The last token of the prompt; those after it are the answer's own, without its last."""
    return len(tokens) - len(wanted)


def _tokens_in(whole: str, ends: Sequence[int], aim: Span) -> list[int]:
    """The tokens that hold a part of the text."""
    assert aim.text is not None
    start, found = -1, 0
    while found < aim.occurrence:
        start = whole.find(aim.text, start + 1)
        if start < 0:
            times = f"{found} time{'s' * (found != 1)}"
            raise TargetError(
                f"span({aim.text!r}, occurrence={aim.occurrence}): the answer has it {times}.\n  It reads: {whole!r}"
            )
        found += 1
    end, begin, chosen = start + len(aim.text), 0, []
    for token, stop in enumerate(ends):
        if begin < end and max(stop, begin + 1) > start and not (stop == begin and begin >= end):
            chosen.append(token)
        begin = max(begin, stop)
    return chosen


# ---- one answer against another ----

LINEAR = frozenset(
    """gradient input_x_gradient smoothgrad integrated_gradients path_integrated_gradients expected_gradients deeplift
    deepshap attnlrp cp_lrp leave_one_out occlusion permutation shapley kernel_shap random""".split()
)  # methods whose values of a sum of scores are the sum of the values


def check_linear(method: str, params: Any) -> None:
    """Raise where a method's values of a difference are not the difference of its values."""
    bent = params.get("kind") in ("square", "variance") or params.get("rule") == "reveal_cancel"
    if method not in LINEAR or bent:
        raise TargetError(
            f"{method} is not linear in the score, so that its values of a difference of two answers are not the "
            "difference of its values of each.\n"
            "  Explain each with target=whence.span(of=answer), or choose a method that is: attnlrp, gradient, "
            "integrated_gradients, leave_one_out, shapley."
        )
