"""A language model's answer over its prompt: each token and each sentence of it shows the prompt in its colours.

There is no script: what can be chosen are radio buttons, and the style sheet shows the panel of the chosen one.
Messages are blocks with their sums, the strongest sources are listed with what removing them does where the model was
asked (`Attribution.tried`), and what carries little is folded.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from whence.results.attribution import Attribution
from whence.results.citations import rivals_of, sentences_of
from whence.results.text_units import ANSWER, TEMPLATE
from whence.views import components
from whence.views.components import MINUS, nice, side, signed, strength, text
from whence.views.maps import Map, percent
from whence.views.text import plain

_SOURCES = 5  # that are listed
_LITTLE, _RUN = 0.05, 4  # a share of the largest value, and so many units below it in a row, which fold
_MOST = 20_000  # units over all panels: beyond, there is a panel for each sentence only
_OWN = 0.5  # the share of the answer's own tokens that is worth a warning
_NAMES = {ANSWER: "the answer so far", TEMPLATE: "the chat template", "[rest]": "the rest of the prompt"}


@dataclass(frozen=True, eq=False)
class _Choice:
    """Something of the answer that can be chosen: its values by unit, and what is known of it."""

    name: str  # as it is written
    question: str
    values: list[float]
    lead: str = ""
    sentence: int | None = None  # whose sources were tried
    token: int | None = None


def is_answer(a: Attribution, maps: list[Map]) -> bool:
    """Whether an answer, or each token of it, was explained by larger units of one prompt."""
    known = a.answer is not None and a.spans is not None and a.text is not None and a.params.get("units") is not None
    return known and a.words is None and a.one_input and len(a) == 1 and isinstance((a.text or [""])[0], str)


def answer(a: Attribution, maps: list[Map]) -> str:
    """The answer, of which a part is chosen, and the prompt in the colours of that part."""
    sentences, tokens = _sentences(a), _tokens(a)
    if not tokens or len(tokens) * len(a.spans[0] if a.spans else ()) > _MOST:
        tokens = _places(a)
    whole = [] if len(sentences) == 1 else [_sum(a, sentences)]
    choices = [*sentences, *whole, *tokens]
    if len(choices) == 1:
        return f'<div class="lm">{_panel(a, choices[0])}</div>'
    group = f"lm{zlib.crc32(repr([choice.values for choice in choices]).encode()):08x}"
    boxes, rules = [], []
    for n, choice in enumerate(choices):
        chosen = " checked" if n == 0 else ""
        boxes.append(f'<input type="radio" class="sr" name="{group}" id="{group}-{n}"{chosen} '
                     f'aria-label="{text(choice.question)}">')  # fmt: skip
        rules.append(f"#{group}-{n}:checked~.panels>.p{n}{{display:grid}}"
                     f"#{group}-{n}:checked~.said [for={group}-{n}]{{outline:2px solid var(--accent)}}"
                     f"#{group}-{n}:focus-visible~.said [for={group}-{n}]{{outline-width:3px}}")  # fmt: skip
    first = len(choices) - len(tokens)
    said = "".join(f'<label for="{group}-{first + n}">{plain(c.name)}</label>' for n, c in enumerate(tokens))
    parts = "".join(f'<label for="{group}-{n}">{plain(c.name)}</label>' for n, c in enumerate(choices[:first]))
    reading = f'<p class="reading answer" dir="auto">{said}</p>' if tokens else ""
    panels = "".join(f'<section class="panel p{n}">{_panel(a, choice)}</section>' for n, choice in enumerate(choices))
    return (
        f'<div class="lm" role="group" aria-label="The answer"><style>{"".join(rules)}</style>{"".join(boxes)}'
        f'<div class="said">{reading}<p class="parts"><span class="tiny faint">by sentence</span> {parts}</p></div>'
        f'<div class="panels" aria-live="polite">{panels}</div></div>'
    )


# ---- what can be chosen ----


def _sentences(a: Attribution) -> list[_Choice]:
    if a.several:
        return [
            _Choice(sentence, f"Why “{sentence}”?", values.tolist(), sentence=number)
            for number, (sentence, _, values) in enumerate(sentences_of(a))
        ]
    said, rivals = (a.answer or [("", 0)])[0][0], _rivals(a)
    question = f"Why “{said}”?" if rivals is None else f"Why “{rivals[0]}” rather than “{rivals[1]}”?"
    lead = f"{(a.labels or [''])[0]} = {components.number(float(a.output_value.flatten()[0]), 4)}"
    more = "" if rivals is None else ". Orange pulls towards the first, blue towards the second."
    return [_Choice(said, question, a.values[0].tolist(), lead + more, 0)]


def _rivals(a: Attribution) -> tuple[str, str] | None:
    """The two answers of a contrast."""
    found = rivals_of(a)
    return (found[0][0], found[1][0]) if found else None


def _sum(a: Attribution, sentences: Sequence[_Choice]) -> _Choice:
    total = [sum(column) for column in zip(*(one.values for one in sentences), strict=True)]
    return _Choice("the whole answer", "What does the answer rest on?", total)


def _tokens(a: Attribution) -> list[_Choice]:
    if not a.several or a.labels is None:
        return []
    told = a.receipt.get("alternatives") or [None] * len(a.labels[0])
    found = []
    for j, label in enumerate(a.labels[0]):
        p = "" if told[j] is None else f"The model gave it {percent(told[j]['probability'])}."
        own: Tensor = a.values[0, j]
        found.append(_Choice(label, f"Why “{label.strip() or label}”?", own.tolist(), p, token=j))
    return found


def _places(a: Attribution) -> list[_Choice]:
    """The answer's tokens where none has values of its own here: what else could stand there."""
    found = []
    for j, told in enumerate(a.receipt.get("alternatives") or ()):
        label = told.get("token", "")
        p = f"The model gave “{label.strip() or label}” {percent(told['probability'])}."
        found.append(_Choice(label, f"What else could stand for “{label.strip() or label}”?", [], p, token=j))
    return found


# ---- one panel ----


def _panel(a: Attribution, choice: _Choice) -> str:
    """Question, warnings, legend, the prompt; beside it the sources and what else could stand there."""
    assert a.spans is not None
    assert a.text is not None
    assert a.units is not None
    if not choice.values:
        head = f'<header><h3 class="part">{text(choice.question)}</h3><p class="soft">{text(choice.lead)}</p></header>'
        return f'{head}<div class="only">{_others(a, choice)}</div>'
    places = [(i, span) for i, span in enumerate(a.spans[0]) if span[0] < span[1]]
    total = sum(abs(choice.values[i]) for i, _ in places) or 1.0
    shares = {i: choice.values[i] / total for i, _ in places}
    limit = nice(max((abs(part) for part in shares.values()), default=1.0))
    beside, warned = _beside(a, choice.values, total)
    lead = f'<p class="soft">{text(choice.lead)}</p>' if choice.lead else ""
    blocks = (a.messages[0] if a.messages is not None else None) or [("prompt", 0, len(a.text[0]))]
    shown = "".join(_block(a, block, places, choice.values, shares, limit) for block in blocks)
    small = f'<p class="tiny faint">Beside it: {text(", ".join(beside))}.</p>' if beside else ""
    aside = _sources(a, choice, shares) + _others(a, choice)
    return (
        f'<header><h3 class="part">{text(choice.question)}</h3>{lead}</header>'
        f"{components.warnings(warned)}{_legend(a, limit)}"
        f'<div class="first"><section>{shown}{small}</section><aside>{aside}</aside></div>'
    )


def _beside(a: Attribution, values: Sequence[float], total: float) -> tuple[list[str], list[tuple[str, str]]]:
    """What is not drawn: units that are none of the prompt's own; a warning where the answer carries itself."""
    assert a.units is not None
    assert a.spans is not None
    found, own = [], 0.0
    for i, unit in enumerate(a.units[0]):
        if unit in _NAMES and a.spans[0][i][0] == a.spans[0][i][1]:
            found.append(f"{_NAMES[unit]} {values[i]:+.4g}".replace("-", MINUS))
            own += abs(values[i]) if unit == ANSWER else 0.0
    part = own / (own + total)
    told = f"Drawn is how the other {percent(1 - part)} is spread over the prompt."
    warned = [("", f"{percent(part)} rests on the answer itself. {told}")] if part > _OWN else []
    return [*found, f"{percent(part)} rests on the answer itself"] if own and not warned else found, warned


def _legend(a: Attribution, limit: float) -> str:
    note = "Share of the total over the prompt."
    if not a.signed():
        return components.legend([components.scale("one", ["0", signed(limit, False)], ("nothing", "much"))], note)
    rivals = _rivals(a)
    ends = ("against", "for") if rivals is None else (f"for “{rivals[1]}”", f"for “{rivals[0]}”")
    return components.legend([components.scale("two", [signed(-limit), "0", signed(limit)], ends)], note)


def _block(
    a: Attribution, block: tuple[str, int, int], places: Sequence[tuple[int, tuple[int, int]]],
    values: Sequence[float], shares: dict[int, float], limit: float,
) -> str:  # fmt: skip
    """One message: who speaks, its sum, and its text with the shares of its units behind them."""
    assert a.text is not None
    role, start, end = block
    own = [(i, span) for i, span in places if start <= span[0] < end]
    pieces: list[tuple[str, bool]] = []  # HTML, and whether it carries little
    last = start
    for i, (begin, stop) in own:
        begin = max(begin, last)
        part = shares[i]
        classes = f"w {side(part, a.signed())}{' much' if abs(part) > 0.3 * limit else ''}"
        told = f"{signed(part, a.signed())}, {values[i]:+.4g}".replace("-", MINUS)
        before, inside = plain(a.text[0][last:begin]), plain(a.text[0][begin:stop])
        pieces.append((
            f'{before}<span class="{classes}" style="--a:{strength(part, limit)}" title="{told}">{inside}</span>',
            abs(part) < _LITTLE * limit,
        ))  # fmt: skip
        last = stop
    rest = plain(a.text[0][last:end])
    total, part = sum(values[i] for i, _ in own), sum(shares[i] for i, _ in own)
    head = (
        f'<div class="role"><b>{text(role)}</b> <span class="num">{signed(part, a.signed())}</span> '
        f'<span class="num faint">{f"{total:+.4g}".replace("-", MINUS)}</span>{_bar(part, 1.0, a.signed())}</div>'
    )
    return f'<div class="blk">{head}<div dir="auto" class="reading small">{_folded(pieces)}{rest}</div></div>'


def _folded(pieces: Sequence[tuple[str, bool]]) -> str:
    """The units in order; a long run of those that carry little is a fold."""
    found: list[str] = []
    run: list[str] = []
    for written, little in [*pieces, ("", False)]:
        if little:
            run.append(written)
            continue
        folds = len(run) >= _RUN
        found += (
            [f"<details><summary>… {len(run)} that carry little</summary>{''.join(run)}</details>"] if folds else run
        )
        found.append(written)
        run = []
    return "".join(found)


def _bar(value: float, limit: float, has_sign: bool) -> str:
    width = 50 * min(1.0, abs(value) / limit)
    left = 50 - width if has_sign and value < 0 else 50 if has_sign else 0
    width = width if has_sign else 2 * width
    inner = f'<i class="{side(value, has_sign)}" style="left:{left:.1f}%;width:{width:.1f}%"></i>'
    return f'<div class="div{"" if has_sign else " left"}">{inner}</div>'


# ---- beside the prompt ----


def _sources(a: Attribution, choice: _Choice, shares: dict[int, float]) -> str:
    """The strongest units, and what the sentence loses without them where that was tried."""
    assert a.units is not None
    assert a.spans is not None
    told = a.receipt.get("sources")
    drops = {} if told is None or choice.sentence is None else {
        (one["start"], one["end"]): one["drop"] for one in told[choice.sentence] if one["drop"] is not None
    }  # fmt: skip
    best = [i for i in sorted(shares, key=lambda i: -shares[i])[:_SOURCES] if shares[i] > 0]
    items = []
    for i in best:
        start, end = a.spans[0][i]
        drop = drops.get((start, end))
        lost = "" if drop is None else f'<span class="tiny soft">without it: log p {_nats(-drop)}</span>'
        items.append(
            f'<li><span class="num">{signed(shares[i], a.signed())}</span> {plain(a.units[0][i])} {lost}'
            f"{_bar(shares[i], max(abs(shares[best[0]]), 1e-12), a.signed())}</li>"
        )
    shown = f'<ol class="sources">{"".join(items)}</ol>' if items else '<p class="soft">Nothing speaks for it.</p>'
    return f"<div><h4>Sources</h4>{shown}</div>"


def _nats(value: float) -> str:
    return f"{value:+.3f} nats".replace("-", MINUS)


def _others(a: Attribution, choice: _Choice) -> str:
    """What else could stand at a token."""
    told = a.receipt.get("alternatives")
    if told is None or choice.token is None:
        return ""
    own = told[choice.token]
    classes = [(choice.name.strip() or choice.name, own["probability"], True)]
    classes += [(name.strip() or name, p, False) for name, p in own["others"]]
    shown = components.predictions(classes)
    return f"<div><h4>What else could stand here</h4>{shown}</div>"
