"""A comparison as a report: the question, four methods that ask different ones, whether they agree, the rest folded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from whence.results.attribution import Attribution
from whence.util.receipt import Receipt
from whence.views import components as ui
from whence.views.components import text
from whence.views.drawings import DRAW, image_style, names_of, photo, pictures, table_of_bars
from whence.views.families import family_of, first_of, letters, title_of
from whence.views.folds import rest
from whence.views.maps import counted, percent, probability_of, spelled, start_of
from whence.views.report import Report, heading, notices_of, size_of, small
from whence.views.shares import Drawn, by_chance, common, drawn, scale_of

if TYPE_CHECKING:
    from whence.evaluation.deletion_check import DeletionCheck
    from whence.results.comparison import Comparison

_ROWS = 12  # that are shown
_NUMBERS = ("No", "One", "Two", "Three", "Four")


def page_of(c: Comparison, title: str) -> str:
    """A page of its own."""
    return ui.page(title, compared(c) + FOOT)


FOOT = '<footer class="foot">Made by Whence. This page has no script and asks for nothing from outside.</footer>'


def cell_of(c: Comparison) -> str:
    """For a notebook."""
    return ui.cell(compared(c))


def compared(c: Comparison) -> str:
    """A report for each row, and how many more there are."""
    count = len(next(iter(c.values())))
    found = []
    for number in range(min(count, _ROWS)):
        check = c.checks[number] if c.checks is not None and number < len(c.checks) else None
        row = {name: _row(a, number) for name, a in c.items()}
        found.append(report(row, check, level=2 if number else 1, lead=f"Row {number}. " if count > 1 else ""))
    left = counted(count - _ROWS, "more row is", "more rows are")
    return "".join(found) + (f'<p class="soft">{left} not shown.</p>' if count > _ROWS else "")


def _row(a: Attribution, number: int) -> Attribution:
    """One row, with the warnings of all where nobody knows which rows they are about."""
    row = a[number]
    if not a.receipt.get("warnings") or a.receipt.get("warned"):
        return row
    return replace(row, receipt=Receipt(row.receipt, {"warnings": a.receipt["warnings"]}))


def report(
    row: Mapping[str, Attribution], check: DeletionCheck | None = None, *, level: int = 1, lead: str = "",
    missing: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """One row as several methods explain it; `missing` are methods that have no answer here, and why."""
    named = {name: a.method for name, a in row.items()}
    keys = letters(first_of(named))
    every = {name: drawn(name, a, keys.get(name, "")) for name, a in row.items()}
    first = [every[name] for name in keys]
    scales = {times: scale_of(first, list(every.values()), times) for times in (False, True)}
    r = Report(every, first, scales, check)
    style = f' style="{image_style(first[0])}"' if first[0].kind == "image" else ""
    smooth = " smooth" if first[0].kind == "image" and min(size_of(r.a)) >= _SMOOTH else ""
    return (
        f'<article class="report{smooth}"{style}>{_opening(r, level, lead)}{_verdict(r)}{ui.warnings(_warned(r))}'
        f"{_first_sight(r, level + 1)}{rest(r, missing or {}, level + 1)}</article>"
    )


_SMOOTH = 112  # pixels of an image's side, from which it is drawn without visible pixels


# ---- the question and the answer ----


def _opening(r: Report, level: int, lead: str) -> str:
    given = _texts(r.a) if r.first[0].kind in ("text", "generated", "molecule") else []
    folded = " folded" if sum(map(len, given)) > _LONG else ""
    shown = "".join(f'<p class="reading given{folded}" dir="auto">{text(one)}</p>' for one in given)
    shown += photo(r.first[0]) if r.first[0].kind == "image" else ""
    told = f'<p class="soft lead">{text(lead)}{_model(r.a)}{text(_scored(r))}</p>'
    return ui.opening(question(r.a, r.target), shown + told, _predicted(r), level)


_LONG = 600  # letters of a text above the methods, which scrolls if it has more


def question(a: Attribution, target: str) -> str:
    """What is asked of this row."""
    if a.several:
        return "Where does each word come from?" if a.text is not None else "Where does each target come from?"
    if isinstance(a.target, str) or probability_of(a, 0) is None:
        return f"Why {ui.number(float(a.output_value[0]), 4)}?" if not a.labels else f"Why “{target}”?"
    return f"Why “{target}”?" if a.labels else f"Why class {target}?"


def _texts(a: Attribution) -> list[str]:
    given = a.text[0] if a.text is not None else None
    return [given] if isinstance(given, str) else [str(one) for one in given or ()]


def _model(a: Attribution) -> str:
    return f"Model: <b>{text(a.receipt['model'])}</b>. " if a.receipt.get("model") else ""


def _scored(r: Report) -> str:
    """The score that is explained."""
    if r.a.several:
        return f"{counted(len(r.a.output_value[0]), 'target')} explained."
    part = r.first[0].maps[0]
    starts = {start_of(d.a, 0) for d in r.first} - {""}
    start = starts.pop() if len(starts) == 1 else ""  # where methods have baselines of their own, none is all theirs
    return f"Explained: {part.scored.replace('-', ui.MINUS, part.score < 0)}{start}."


def _predicted(r: Report) -> str:
    """The likeliest classes, where the model was asked for them; else the target alone."""
    if r.check is not None:
        others = f"{counted(r.check.others, 'more class', 'more classes')}" if r.check.others else ""
        return ui.predictions([(name, p, name == r.check.target) for name, p in r.check.classes], others)
    p = None if r.a.several else probability_of(r.a, 0)
    if p is None:
        return "<div></div>"
    return ui.predictions([(r.target, p, True), ("otherwise", 1 - p, False)])


def _verdict(r: Report) -> str:
    """Whether the methods put the same unit first, and what the model says without it; of images, what it says."""
    if r.first[0].kind == "image" and r.check is not None and len(r.check.classes) > 1:
        said = [f"“{text(spelled(name))}” at {text(percent(p))}" for name, p in r.check.classes[:2]]
        return f'<p class="verdict">The model says {said[0]}; next is {said[1]}.</p>'
    if r.a.several or not all(d.kind in ("text", "vector") for d in r.first):
        return ""
    names: dict[int, str] = {}
    tops: dict[int, list[Drawn]] = {}
    for d in r.first:
        for place, name in _top(r, d):
            names[place] = name
            tops.setdefault(place, []).append(d)
    if not tops:
        return ""
    named = {place: f"<b>{text(name)}</b>{_which(r, names, place)}" for place, name in names.items()}
    best = max(tops, key=lambda place: len(tops[place]))
    if len(tops) > 1 and len(tops[best]) < 2:
        told = ", ".join(f"{ui.key(own[0].letter)} {named[place]}" for place, own in tops.items())
        return f'<p class="verdict">The methods do not agree on what comes first: {told}.</p>'
    count, whole = len(tops[best]), len(r.first)
    puts = "puts" if count == 1 else "put"
    who = "The method puts" if whole == 1 else f"{_NUMBERS[count]} of {_NUMBERS[whole].lower()} methods {puts}"
    if count == whole > 1:
        who = "Both methods put" if whole == 2 else f"All {_NUMBERS[whole].lower()} methods put"
    return f'<p class="verdict">{who} {named[best]} first{_without(r, tops[best][0])}.</p>'


def _top(r: Report, d: Drawn) -> list[tuple[int, str]]:
    """The place and name of the unit that a method puts first: the one that goes first where the model is asked."""
    if r.check is not None:
        return [(r.check.order[d.name][0], spelled(r.check.first[d.name]))] if d.name in r.check.order else []
    values = d.shares[0].flatten() if d.signed else d.shares[0].flatten().abs()
    if not values.numel() or float(values.max()) <= 0:
        return []
    place = int(values.argmax())
    units = d.maps[0].units
    name = (spelled(units[place]) if units else "") if d.kind == "text" else names_of(d)[place]
    return [(place, name.strip() or "an empty name")]


def _which(r: Report, names: Mapping[int, str], place: int) -> str:
    """Which of several units that are spelled alike."""
    alike = list(names.values()).count(names[place]) > 1
    return f" ({r.check.unit if r.check else 'unit'} {place + 1})" if alike else ""


def _without(r: Report, d: Drawn) -> str:
    """What the model says without the unit that a method puts first, if it was asked."""
    check = r.check
    if check is None or len(check.places) < 2 or check.places[1] != 1:
        return ""
    return f"; without it the model says “{text(spelled(check.target))}” at {text(percent(check.curves[d.name][1]))}"


def _warned(r: Report) -> list[tuple[str, str]]:
    """What is to be known about the methods that are shown first, each text once with their letters."""
    found: dict[str, list[str]] = {}
    for d in r.first:
        for told in notices_of(d):
            found.setdefault(told, []).append(d.letter)
    return [(", ".join(who) if len(r.every) > 1 else "", told) for told, who in found.items()]


# ---- at first sight ----


def _first_sight(r: Report, level: int) -> str:
    count = len(r.first)
    families = {family_of(d.a.method) for d in r.first}
    differ = "that ask different questions" if len(families) == count else "side by side"
    title = "What the method says" if count == 1 else f"{_NUMBERS[count]} methods {differ}"
    aside = _agreement(r, level) + _checked(r, level)
    beside = f"<aside>{aside}</aside>" if aside else ""
    body = f"{heading(title, level)}{_legend(r)}{_cards(r)}{_small_print(r)}"
    return f'<div class="{"first" if aside else ""}"><section>{body}</section>{beside}</div>'


def _legend(r: Report) -> str:
    kinds = {d.kind for d in r.first}
    scale = r.scale(r.first[0])
    signs = [d.signed for d in r.every.values() if d.times == scale.times]
    two, one = next((look for kind, look in _LOOKS.items() if kind in kinds), ("two", "one"))
    scales = [ui.scale(two, scale.ticks())] if any(signs) else []
    scales += [ui.scale(one, scale.ticks(1), ("nothing", "much"))] if not all(signs) else []
    return ui.legend(scales)


_LOOKS = {"image": ("pixels", "light"), "numbers": ("drawn", "greys"), "molecule": ("drawn", "greys"),
          "vector": ("bars", "one")}  # fmt: skip


def _cards(r: Report) -> str:
    kind = r.first[0].kind
    if kind == "image" and all(d.kind == kind for d in r.first):
        return pictures(r.first, r.scale(r.first[0]), small)
    if kind == "vector" and all(d.kind == kind and d.shares[0].shape == r.first[0].shares[0].shape for d in r.first):
        prints = "".join(
            f'<p class="tiny faint">{ui.key(d.letter)} {text(title_of(d.name))}: {text(small(d))}</p>' for d in r.first
        )
        return table_of_bars(r.first, r.scale(r.first[0])) + prints
    wide = "" if kind == "text" else " side"
    cards = "".join(
        ui.card(d.letter, title_of(d.name), _beside(d), DRAW[d.kind](d, r.scale(d)), small(d)) for d in r.first
    )
    return f'<div class="cards{wide}">{cards}</div>'


def _beside(d: Drawn) -> str:
    family = family_of(d.a.method)
    told = [] if family == "Others" else [family]
    return " · ".join([*told, *([] if d.signed else ["magnitude only"])])


def _small_print(r: Report) -> str:
    what = {"text": "a word's", "vector": "a feature's", "generated": "a token's", "molecule": "an atom's or a bond's"}
    kind = r.first[0].kind
    if kind in what:
        of = " for each token that was written" if kind == "generated" else ""
        told = f"One scale for all methods: {what[kind]} share of its method's total, Σ|φ|{of}"
        told += ", special tokens left out." if any(d.aside for d in r.every.values()) else "."
    else:
        told = (
            "One scale for all methods: 1 × is what an even spread over the picture would give, so that a pale map is "
            "a spread-out one"
        )
        told += "; beyond the scale's ends the colour stays." if r.scale(r.first[0]).over else "."
    if kind in ("text", "vector"):
        told += " Dashed: against." if kind == "text" else " Hatched: against."
    if not all(d.signed for d in r.first):
        told += (" Brightness instead of colour" if kind == "image" else " Grey") + ": the method has no sign."
    hover = " Hover or tab to a word for its numbers." if kind == "text" else ""
    return f'<p class="tiny faint" style="margin-top:8px;max-width:80ch">{text(told + hover)}</p>'


# ---- agreement and the model's word ----


def _agreement(r: Report, level: int) -> str:
    if len(r.first) < 2:
        return ""
    table = [[common(a, b) for b in r.first] for a in r.first]
    names = [f"{d.letter} {title_of(d.name)}" for d in r.first]
    mixed = len({d.signed for d in r.first}) > 1
    chance = [_mean([by_chance(other, d) for other in r.first if other is not d]) for d in r.first]
    body = ui.agreement(names, table, chance, mixed)
    if any(math.isnan(share) for line in table for share in line):
        body += '<p class="tiny faint">–: the units of the two cannot be laid over one another.</p>'
    told = "How much of their shares two methods place alike; random: with the others' numbers dealt anew."
    return f'<section>{heading("Do they agree?", level)}<p class="soft">{told}</p>{body}</section>'


def _mean(numbers: Sequence[float]) -> float:
    known = [x for x in numbers if not math.isnan(x)]
    return sum(known) / len(known) if known else math.nan


def _checked(r: Report, level: int) -> str:
    check = r.check
    if check is None:
        return ""
    lines = {d.letter: check.curves[d.name] for d in r.first if d.name in check.curves}
    left = {d.letter: check.left(d.name) for d in r.first if d.name in check.curves} | {"": check.left()}
    units = f"{check.unit}es" if check.unit == "patch" else f"{check.unit}s"
    label = f"Probability of {spelled(check.target)} as each method's first {units} go"
    told = (
        f"Probability of “{spelled(check.target)}” as the first {units} of each go ({check.how}). Band: "
        f"{len(check.chance)} random orders, 10 to 90 %."
    )
    if not r.a.labels and len(check.classes) == 2 and not check.others and _one_output(r):
        told += " The model's one output is read as a logit."
    chart = ui.curves(lines, check.random, check.places, left, label, f"{units} gone, highest first")
    failed = "".join(
        f'<p class="tiny faint">{text(title_of(name))} is not checked: {text(why)}</p>'
        for name, why in check.failed.items()
    )
    return (
        f'<section>{heading("Does the model bear them out?", level)}<p class="soft">{text(told)}</p>{chart}'
        f"{_beyond_chance(left, check.chance)}{failed}</section>"
    )


def _one_output(r: Report) -> bool:
    """Whether the explained score is all that the model says."""
    return probability_of(r.a, 0) is None


def _beyond_chance(left: Mapping[str, float], chance: Sequence[float]) -> str:
    """The methods whose orders leave more of the class than one in ten random orders, or more of them, do."""
    worse = {letter: sum(x < share - 1e-9 for x in chance) for letter, share in left.items() if letter}
    weak = [letter for letter, count in worse.items() if count and 10 * count >= len(chance)]
    if not weak:
        return ""
    who = ", ".join(ui.key(letter) for letter in weak)
    return f'<p class="soft">{who}: some of the {len(chance)} random orders do better here.</p>'
