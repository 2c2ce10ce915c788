"""The report of a run: one page, static, with every chart inline."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whence.views import components as ui
from whence.views.charts import Line, axis_of, histogram, means, swarm
from whence.views.components import text
from whence.views.families import title_of
from whence.views.maps import counted, percent
from whence.views.run_rows import RunRow, drawn, excerpt, facts
from whence.views.run_style import STYLE

if TYPE_CHECKING:
    from whence.runs.samples import Dots
    from whence.runs.streamed import Mean
    from whence.runs.summary import Note, Summary, Unit

SHOWN, CLASSES = 12, 3  # units on either side, and classes that are shown with their values
_GROUP = 100  # rows of one fold
_SHARES = 0.5  # the end of the scale of shares


@dataclass(frozen=True, eq=False)
class RunPage:
    """What the page is made of."""

    summary: Summary
    method: str  # whose values are drawn first
    model: str
    address: str
    space: str  # what values are parts of: a logit, a probability
    dots: Dots
    limit: float  # the end of the method's scale
    listed: set[int]  # rows that the page has, by number
    outstanding: Mapping[int, RunRow]
    rows: Sequence[str]  # each row of the list, drawn
    left: int  # rows that are not in the list
    pages: Sequence[tuple[str, int, int, int]] = ()  # of all rows: their address, first and last row, how many

    def link(self, row: int) -> str | None:
        return f"#r{row}" if row in self.listed else None


def page(p: RunPage) -> str:
    """The whole page."""
    s = p.summary
    sections = [
        _opening(p), ui.warnings([("", note) for note in s.notes]), _units(p), _maps(p), _agreement(p), _gaps(p),
        _outstanding(p), _rows(p),
    ]  # fmt: skip
    foot = f'<p class="foot">whence.open({text(repr(p.address))}) · intervals are Student’s, 95 %, over rows</p>'
    return ui.page(
        f"{os.path.basename(p.model.rstrip('/'))}: {s.rows:,} rows explained",
        f"<style>{STYLE}</style>{''.join(sections)}{foot}",
    )


def plural(unit: str) -> str:
    return f"{unit}s"


# ---- the head ----


def _opening(p: RunPage) -> str:
    s = p.summary
    facts = [("rows", f"{s.rows:,}"), ("methods", str(len(s.methods)))]
    facts += [(f"predicted “{name}”", f"{100 * n / s.rows:.0f} %") for name, n in _most(s.predictions, 2)]
    if s.labelled:
        facts.append(("prediction is not the label", f"{s.wrong:,} of {s.labelled:,}"))
    named = ", ".join(title_of(m) for m in s.methods)
    lead = f"Model: {os.path.basename(p.model.rstrip('/')) or p.model}. Explained: {_explained(s)}, by {named}."
    return (
        f'<section><h1>Which {plural(s.unit)} matter over {s.rows:,} rows?</h1><p class="soft">{text(lead)}</p>'
        f"{stats(facts)}</section>"
    )


def stats(told: Sequence[tuple[str, str]]) -> str:
    """Lone numbers with their names."""
    inner = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in told)
    return f'<dl class="stats">{inner}</dl>'


def _most(counts: Mapping[str, int], most: int) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: -item[1])[:most]


def _explained(s: Summary) -> str:
    named = [f"“{name}”" for name, _ in _most(s.classes, 3)]
    more = len(s.classes) - len(named)
    return ", ".join(named) + (f" and {counted(more, 'more class', 'more classes')}" if more else "")


# ---- units ----


def lines(units: Sequence[Unit], dots: Mapping[str, Sequence[tuple[float, int]]]) -> list[Line]:
    return [Line(u.name, u.rows, u.mean, u.low, u.high, dots.get(u.name, ())) for u in units]


def _units(p: RunPage) -> str:
    s = p.summary
    if not s.vocabulary.size:
        return ""
    classes = [name for name, _ in _most(s.classes, CLASSES)]
    first = "".join(_class(p, target) for target in classes)
    rest = [name for name, _ in _most(s.classes, len(s.classes))[CLASSES:20]]
    folds = [_all_methods(p, target) for target in classes if len(s.methods) > 1]
    folds += [
        ui.fold(f"“{target}”", f"The {plural(s.unit)} by {title_of(p.method)}", f"{s.classes[target]:,} rows",
                _sides(p, target, p.method, 8))
        for target in rest
    ]  # fmt: skip
    return first + (f'<section><div style="margin-top:6px">{"".join(folds)}</div></section>' if folds else "")


def _class(p: RunPage, target: str) -> str:
    s = p.summary
    signed = s.signed[p.method]
    parts = []
    for side in ("for", "against") if signed else ("both",):
        units = s.units(target, p.method, side=side, count=SHOWN)
        if units:
            dots = {u.name: p.dots.get((target, u.name), []) for u in units}
            parts.append((side, lines(units, dots)))
    if not parts:
        none = f'<p class="soft">No {s.unit} occurs in five rows.</p>'
        return f'<section><h2 class="part">“{text(target)}”</h2>{none}</section>'
    axis = axis_of([line for _, own in parts for line in own])
    titles = {"for": f"Speak for “{target}”", "against": f"Speak against “{target}”", "both": f"Matter for “{target}”"}
    figures = "".join(
        f"<figure><figcaption><b>{text(titles[side])}</b></figcaption>"
        f"{swarm(own, axis, signed, p.link, f'{titles[side]}: ' + ', '.join(line.name for line in own))}</figure>"
        for side, own in parts
    )
    told = (
        f"By {title_of(p.method)}, in parts of the {p.space}. A dot is a row (some of them, where there are many): "
        f"what the {s.unit} adds up to in it. The bar is the mean with its 95 % interval, by whose near end "
        f"{plural(s.unit)} are ordered; those in fewer than five rows are left out. The outermost hundredth of the "
        "dots is drawn at the ends."
    )
    head = _verdict(parts, target)
    return (
        f'<section><h2 class="part">{text(head)}</h2><p class="soft">{text(told)}</p>'
        f'<div class="swarms">{figures}</div></section>'
    )


def _verdict(parts: Sequence[tuple[str, Sequence[Line]]], target: str) -> str:
    """The heading says the answer."""
    side, own = parts[0]
    named = [line.name for line in own[:3] if line.low > 0 or line.high < 0]
    if not named:
        return f"Nothing is sure to matter for “{target}”"
    told = named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"
    verb = "matter most for" if side == "both" else "speak most for" if side == "for" else "speak most against"
    return (
        f"{told} {verb if len(named) > 1 else verb.replace('matter', 'matters').replace('speak', 'speaks')} “{target}”"
    )


def _all_methods(p: RunPage, target: str) -> str:
    inner = "".join(f"<h3>{text(title_of(method))}</h3>{_sides(p, target, method, 8)}" for method in p.summary.methods)
    ask = f"The {plural(p.summary.unit)} that matter most for “{target}”, method by method"
    return ui.fold("Every method", ask, counted(len(p.summary.methods), "method"), inner)


def _sides(p: RunPage, target: str, method: str, count: int) -> str:
    """The means of one method, for and against, on one axis of its own."""
    s = p.summary
    signed = s.signed[method]
    sides = ("for", "against") if signed else ("both",)
    found = [lines(s.units(target, method, side=side, count=count), {}) for side in sides]
    found = [own for own in found if own]
    if not found:
        return '<p class="soft">nothing to rank</p>'
    axis = axis_of([line for own in found for line in own])
    return f'<div class="swarms">{"".join(means(own, axis, signed, title_of(method)) for own in found)}</div>'


# ---- maps ----


def _maps(p: RunPage) -> str:
    """The mean map of each class by each method, all of a method on one scale."""
    s = p.summary
    if not s.maps:
        return ""
    cards = []
    for method in s.methods:
        own = [(target, s.maps[target, method]) for target, _ in _most(s.classes, 10) if (target, method) in s.maps]
        limit = max((float(abs(found.mean).max()) for _, found in own), default=0.0) or 1.0
        figures = "".join(
            f"<figure>{_mean_map(found.mean, limit, s.signed[method])}"
            f'<figcaption class="tiny">{text(target)}, {found.rows:,} rows</figcaption></figure>'
            for target, found in own
        )
        scale = f"{title_of(method)}, the ends of the scale are ±{ui.number(limit, 2)}"
        cards.append(f'<h3>{text(scale)}</h3><div class="maps">{figures}</div>')
    return f'<section><h2 class="part">Where it matters on average</h2>{"".join(cards)}</section>'


def _mean_map(grid: Any, limit: float, signed: bool) -> str:
    row = RunRow({"text": None, "second": None}, None, None, grid, {}, {}, grid.shape)
    return drawn(row, grid, limit, signed)


# ---- agreement ----


def _agreement(p: RunPage) -> str:
    s = p.summary
    if len(s.methods) < 2:
        return ""
    keys = [chr(ord("A") + i % 26) for i in range(len(s.methods))]
    table = [[_pair(s, a, b) for b in s.methods] for a in s.methods]
    chance = [s.chance[m].mean for m in s.methods]
    mixed = len(set(s.signed.values())) > 1
    body = ui.agreement([f"{k} {title_of(m)}" for k, m in zip(keys, s.methods, strict=True)], table, chance, mixed)
    pairs = sorted(s.agreement.items(), key=lambda item: item[1].mean)
    (low, least), (high, most) = pairs[0], pairs[-1]
    told = (
        f"How much of their shares two methods place alike, on average over rows. Most: {title_of(high[0])} and "
        f"{title_of(high[1])}, {_interval(most)}. Least: {title_of(low[0])} and {title_of(low[1])}, "
        f"{_interval(least)}. Random: with a method's own numbers, dealt anew."
    )
    aside = [f"{title_of(m)} {100 * x.mean:.0f} %" for m, x in s.aside.items() if x.mean >= 0.005]
    left_out = f"Special tokens are left out; they have: {', '.join(aside)}." if aside else ""
    return (
        f'<section><h2 class="part">Do the methods agree?</h2><p class="soft">{text(told)}</p>{body}'
        f'<p class="tiny faint" style="margin-top:8px">{text(left_out)}</p></section>'
    )


def _pair(s: Summary, a: str, b: str) -> float:
    found = s.agreement.get((a, b)) or s.agreement.get((b, a))
    return 1.0 if found is None else found.mean


def _interval(m: Mean) -> str:
    return f"{100 * m.mean:.1f} % ({100 * m.low:.1f} to {100 * m.high:.1f})"


# ---- gaps ----


def _gaps(p: RunPage) -> str:
    found = [(method, h) for method, h in p.summary.gaps.items() if h.counts.sum()]
    if not found:
        return ""
    figures = "".join(
        f"<figure><figcaption><b>{text(title_of(method))}</b> <span class='faint tiny'>half of the rows below "
        f"{text(small(h.quantile(0.5)))}, 95 % below {text(small(h.quantile(0.95)))}</span></figcaption>"
        f"{histogram(h.edges.tolist(), h.counts.tolist(), f'Gaps of {title_of(method)}')}</figure>"
        for method, h in found
    )
    without = [title_of(m) for m, h in p.summary.gaps.items() if not h.counts.sum()]
    told = "The gap: by how much a row's values miss the change of the score, relative to it."
    if without:
        told += f" {', '.join(without)}: no sum is promised."
    return (
        f'<section><h2 class="part">Do the values add up?</h2><p class="soft">{text(told)}</p>'
        f'<div class="swarms">{figures}</div></section>'
    )


def small(gap: float) -> str:
    """A gap in percent."""
    return f"{100 * gap:.2g} %" if gap >= 1e-6 else "0.0001 %"


# ---- rows ----


def _outstanding(p: RunPage) -> str:
    s = p.summary
    lists: list[tuple[str, str, Sequence[Note], Callable[[float], str]]] = [
        ("Methods disagree", "The rows in which they have least in common", s.disagree, _in_common),
        ("Confident and wrong", "Sure of a prediction that is not the label", s.confident_wrong, percent),
        ("Largest gaps", "The values miss the score by most", s.largest_gaps, lambda v: f"gap {small(v)}"),
    ]  # fmt: skip
    folds = "".join(
        ui.fold(title, ask, counted(len(found), "row"), "".join(_note(p, note, said) for note in found))
        for title, ask, found, said in lists
        if found
    )
    if not folds:
        return ""
    ends = [f"{ui.MINUS}50 %", "0", "+50 %"]
    scales = [ui.scale("two", ends)] if any(s.signed.values()) else []
    scales += [ui.scale("one", ["0", "50 %"], ("nothing", "much"))] if not all(s.signed.values()) else []
    told = f"Shown is each {s.unit}'s share of its method's total, Σ|φ|; all methods on one scale."
    return f'<section><h2 class="part">Rows that stand out</h2>{ui.legend(scales, told)}<div>{folds}</div></section>'


def _in_common(part: float) -> str:
    return f"{100 * part:.0f} % in common"


def _note(p: RunPage, note: Note, said: Callable[[float], str]) -> str:
    row = p.outstanding.get(note.row)
    where = f'<a href="#r{note.row}">{note.row}</a>' if note.row in p.listed else str(note.row)
    inner = "" if row is None else "".join(_by_method(p, row, method) for method in row.values)
    return (
        f'<details class="rowfold"><summary><span class="num faint">{where}</span>'
        f'<span class="cut">{excerpt(note.about)}</span><span class="end num">{text(said(note.value))}</span></summary>'
        f'<p class="tiny faint">{facts(note.about)}</p>{inner}</details>'
    )


def _by_method(p: RunPage, row: RunRow, method: str) -> str:
    values = row.values[method]
    total = float(abs(values[~row.special]).sum()) or 1.0
    limit = _SHARES if row.grid is None else float(abs(values).max()) / total or 1.0
    gap = f" · gap {small(row.gaps[method])}" if method in row.gaps else ""
    return (
        f'<h4>{text(title_of(method))}<span class="tiny faint">{text(gap)}</span></h4>'
        f"{drawn(row, values / total, limit, p.summary.signed[method], True)}"
    )


def listed(row: RunRow, method: str, limit: float, signed: bool) -> str:
    """One row of the list of all rows."""
    number = int(row.about["row"])
    values = row.values.get(method)
    gap = f" · gap {small(row.gaps[method])}" if method in row.gaps else ""
    body = "" if values is None else drawn(row, values, limit, signed)
    return (
        f'<article class="row" id="r{number}"><p class="tiny faint"><b>{number}</b> {facts(row.about)}{text(gap)}</p>'
        f"{body}</article>"
    )


def _rows(p: RunPage) -> str:
    numbers = sorted(p.listed)
    folds = "".join(
        f'<details class="fold"><summary><b>Rows {numbers[start]:,} to {numbers[start : start + _GROUP][-1]:,}'
        f'</b><span class="end num faint">{counted(len(p.rows[start : start + _GROUP]), "row")}</span></summary>'
        f'<div class="inside">{"".join(p.rows[start : start + _GROUP])}</div></details>'
        for start in range(0, len(p.rows), _GROUP)
    )
    signed, end = p.summary.signed[p.method], ui.number(p.limit, 2)
    scale = (
        ui.scale("two", [f"≤ {ui.MINUS}{end}", "0", f"≥ {end}"])
        if signed
        else ui.scale("one", ["0", f"≥ {end}"], ("nothing", "much"))
    )
    told = f"By {title_of(p.method)}, in parts of the {p.space}."
    more = _elsewhere(p) if p.left else ""
    return f'<section><h2 class="part">Every row</h2>{ui.legend([scale], told)}{more}<div>{folds}</div></section>'


def _elsewhere(p: RunPage) -> str:
    """Where the rows are that the page does not list."""
    told = f"{p.left:,} more rows are not on this page: those that stand out, those of the dots and the first ones are."
    if p.pages:
        links = "".join(
            f'<li><a href="{text(address)}">Rows {first:,} to {last:,}</a> <span class="faint">{count:,}</span></li>'
            for address, first, last, count in p.pages
        )
        return (
            f'<p class="soft">{text(told)}</p><details><summary>All rows, on '
            f'{counted(len(p.pages), "page")}</summary><ul class="pages">{links}</ul></details>'
        )
    call = f"whence.open({text(repr(p.address))}).compare(row)"
    return f'<p class="soft">{text(told)} Any other: <code>{call}</code>, or a report with <code>pages=True</code>.</p>'


def page_of_rows(first: int, last: int, rows: Sequence[str], report: str) -> str:
    """A page of rows beside the report."""
    title = f"Rows {first:,} to {last:,}"
    head = f'<section><h1>{title}</h1><p class="soft"><a href="{text(report)}">To the report</a></p></section>'
    return ui.page(title, f"<style>{STYLE}</style>{head}<section>{''.join(rows)}</section>")
