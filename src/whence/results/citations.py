"""Citations: the parts of a prompt that each sentence of an answer rests on, and what removing each of them does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from whence.errors import InputError
from whence.results.text_units import merged, parts_of
from whence.util.checks import check_count
from whence.util.receipt import Receipt

if TYPE_CHECKING:
    from torch import Tensor

    from whence.results.attribution import Attribution


@dataclass(frozen=True)
class Source:
    """A part of the prompt with its value for a sentence of the answer."""

    text: str
    start: int
    end: int
    value: float
    drop: float | None = None  # of the explained log-probability without this part, where the model was asked

    def __str__(self) -> str:
        told = "" if self.drop is None else f"  without it: log p {-self.drop:+.3f}"
        return f"{self.value:+.4g}  {self.text}{told}"


@dataclass(frozen=True)
class Citation:
    """A sentence of an answer and the sources that it rests on, the strongest first."""

    sentence: str
    sources: tuple[Source, ...]

    def __str__(self) -> str:
        return "\n".join([self.sentence, *(f"  {source}" for source in self.sources)])


def cited(a: Attribution, k: int, units: Any, model: Any) -> list[Citation]:
    """For each sentence of the answer, the k units of the prompt that raise its score most."""
    check_count("k", k)
    if len(a) == 1 and a.answer is not None and not a.one_input:
        raise InputError(
            "cite() needs the values of the text that the encoder reads, but the answer's own are there, too.\n"
            '  Explain it with target=whence.span(of="the answer") and wrt="input_ids".'
        )
    if len(a) != 1 or a.text is None or a.answer is None or a.spans is None or not a.one_input:
        raise InputError(
            "cite() needs one prompt and its answer.\n  Explain a text or a conversation with target= the answer, "
            "as text, from complete(), or as whence.span(…); of several rows, take one: a[0].cite()."
        )
    by_unit = a if a.params.get("units") is not None and a.words is None else merged(a, units)
    assert by_unit.units is not None
    assert by_unit.spans is not None
    own = zip(by_unit.units[0], by_unit.spans[0], strict=True)
    places = [(n, name, span) for n, (name, span) in enumerate(own) if span[0] < span[1]]
    found = []
    for number, (sentence, start, values) in enumerate(sentences_of(by_unit)):
        best = sorted(places, key=lambda place: -float(values[place[0]]))[:k]
        spans = [span for _, _, span in best]
        drops = _known(a, number, spans) if model is None else _drops(a, sentence, start, spans, model)
        sources = [
            Source(name, *span, float(values[n]), drop) for (n, name, span), drop in zip(best, drops, strict=False)
        ]
        found.append(Citation(sentence, tuple(sources)))
    return found


def _known(a: Attribution, number: int, spans: Sequence[tuple[int, int]]) -> Sequence[float | None]:
    """What `tried` found out about a sentence's sources."""
    told = a.receipt.get("sources")
    known = {} if told is None else {(one["start"], one["end"]): one["drop"] for one in told[number]}
    return [known.get((start, end)) for start, end in spans]


def sentences_of(a: Attribution) -> list[tuple[str, int, Tensor]]:
    """The answer's sentences, where they begin in it, and their values by unit: the sum over a sentence's tokens."""
    assert a.answer is not None
    answer = a.answer[0][0]
    if not a.several:
        return [(answer, 0, a.values[0])]
    starts = _starts(a)
    found = []
    for text, start, end in parts_of(answer, "sentences", None):
        tokens = [i for i, at in enumerate(starts) if start <= at < end]
        if tokens:
            found.append((text, start, a.values[0][tokens].sum(0)))
    return found


def _starts(a: Attribution) -> list[int]:
    """Where each token of the answer begins in it; a file of an older version has only their labels."""
    assert a.labels is not None
    if a.answer is not None and len(a.answer[0]) > 3:
        return list(a.answer[0][3])
    starts, position = [], 0
    for label in a.labels[0]:
        starts.append(position + len(label) - len(label.lstrip()))
        position += len(label)
    return starts


def rivals_of(a: Attribution) -> list[tuple[str, list[int]]]:
    """The two answers of a contrast, each with its ids."""
    return list(a.answer[0][4]) if a.answer is not None and len(a.answer[0]) > 4 else []


def _asked(a: Attribution) -> tuple[Any, Any]:
    """The prompt as it was read, a conversation without further special tokens, and the answer with its own tokens."""
    from whence.adapters.chats import Conversation
    from whence.adapters.generation import Continuation

    assert a.text is not None
    assert a.answer is not None
    messages = a.messages[0] if a.messages is not None else None
    prompt = a.text[0] if messages is None else Conversation(a.text[0], messages)
    text, _, *more = a.answer[0]
    return prompt, Continuation(text, more[0]) if more and more[0] else text


def _drops(
    a: Attribution, sentence: str, start: int, spans: Sequence[tuple[int, int]], model: Any
) -> Sequence[float | None]:
    """What the log-probability of a sentence, or the difference of two answers', loses without each of these parts."""
    from whence.adapters.answers import Contrast, Span
    from whence.adapters.generation import Continuation
    from whence.api import explain

    if not spans:  # a prompt without a text of its own
        return []
    prompt, answer = _asked(a)
    occurrence = 1 + sum(answer.startswith(sentence, at) for at in range(start))
    target: Any = Span(None if sentence == answer else sentence, occurrence, answer)
    if rivals := rivals_of(a):
        target = Contrast(*(Continuation(text, ids) for text, ids in rivals))
    units = {str(n): span for n, span in enumerate(spans)}
    wrt = "input_ids" if model.entry.text_target else None  # what an encoder reads, without what a decoder has written
    lost = explain(model, prompt, method="leave_one_out", target=target, units=units, wrt=wrt)
    assert lost.units is not None
    by_name = dict(zip(lost.units[0], lost.values[0].tolist(), strict=True))
    return [by_name[str(n)] for n in range(len(spans))]


def tried(a: Attribution, k: int, model: Any) -> Attribution:
    """The attribution with what the model does beside what the method says, in its receipt.

    "sources": for each sentence of the answer, the k strongest units and what its log-probability loses without them;
    "alternatives": what else could stand at each of the answer's tokens.
    """
    from whence.adapters.alternatives import alternatives

    sources = [
        [{"start": s.start, "end": s.end, "drop": s.drop} for s in citation.sources]
        for citation in cited(a, k, "sentences", model)
    ]
    told = None if rivals_of(a) else alternatives(model, *_asked(a))
    return replace(a, receipt=Receipt(a.receipt, {"sources": sources, "alternatives": told}))
