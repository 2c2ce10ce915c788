"""The comparison of two runs as one page, static, with every chart inline."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from whence.views import components as ui
from whence.views.charts import axis_of, means
from whence.views.components import text
from whence.views.families import title_of
from whence.views.maps import counted, percent
from whence.views.run_page import lines, plural, stats
from whence.views.run_rows import RunRow, drawn, excerpt
from whence.views.run_style import STYLE

if TYPE_CHECKING:
    from whence.runs.diff import Diff
    from whence.runs.summary import Note

_SHOWN, _FLOWS = 12, 12
_SHARES = 0.5  # the end of the scale of shares


def page(d: Diff) -> str:
    """The whole page."""
    sections = [
        _opening(d), ui.warnings([("", note) for note in d.notes]), _flows(d), _agreement(d),
        *(_units(d, pair) for pair in d.pairs), _rows(d),
    ]  # fmt: skip
    foot = '<p class="foot">Intervals are 95 %: Student’s over rows, Wilson’s for shares of rows.</p>'
    title = f"{_name(d, 0)} and {_name(d, 1)} compared"
    return ui.page(title, f"<style>{STYLE}</style>{''.join(sections)}{foot}")


def _name(d: Diff, number: int) -> str:
    return os.path.basename(d.names[number].rstrip("/")) or d.names[number]


def titled(pair: str) -> str:
    return " → ".join(title_of(name) for name in pair.split(" → "))


def _opening(d: Diff) -> str:
    low, high = d.changed_interval
    worst = d.change["explanations"]
    verdict = (
        f"{percent(d.changed_share)} of the predictions changed ({percent(low)} to {percent(high)}); explanations "
        f"place {100 * (1 - worst):.0f} % of their shares alike."
    )
    told = [("rows in both", f"{d.rows:,}"), ("predictions changed", f"{d.changed:,}")]
    told += [(f"in common, {titled(pair)}", f"{100 * m.mean:.1f} %") for pair, m in list(d.agreement.items())[:4]]
    lead = f"A: {d.names[0]}. B: {d.names[1]}."
    return (
        f"<section><h1>What changed from “{text(_name(d, 0))}” to “{text(_name(d, 1))}”?</h1>"
        f'<p class="soft">{text(lead)}</p><p class="verdict">{text(verdict)}</p>{stats(told)}</section>'
    )


def _flows(d: Diff) -> str:
    moved = sorted(((n, a, b) for (a, b), n in d.flows.items() if a != b), reverse=True)[:_FLOWS]
    if not moved:
        return ""
    lines = "".join(
        f'<tr><th>{text(a)} → {text(b)}: {n:,}</th><td style="width:50%">{ui.bar(n, moved[0][0], False)}</td></tr>'
        for n, a, b in moved
    )
    return (
        '<section><h2 class="part">Predictions that changed</h2>'
        f'<table class="bars" style="width:100%;max-width:560px">{lines}</table></section>'
    )


def _agreement(d: Diff) -> str:
    body = "".join(
        f'<tr><th>{text(titled(pair))}</th><td class="num">{100 * m.mean:.1f} %</td>'
        f'<td class="num faint">{100 * m.low:.1f} to {100 * m.high:.1f}</td>'
        f'<td class="num faint">{100 * d.chance[pair].mean:.0f} %</td></tr>'
        for pair, m in d.agreement.items()
    )
    head = '<tr><th>method</th><th class="num">in common</th><th class="num">95 %</th><th class="num">random</th></tr>'
    told = (
        "How much of their shares A's and B's explanations of the same row place alike, on average over rows. "
        "Random: A's own numbers, dealt anew."
    )
    return (
        f'<section><h2 class="part">Are the explanations the same?</h2><p class="soft">{text(told)}</p>'
        f'<div class="scroll"><table class="plain">{head}{body}</table></div></section>'
    )


def _units(d: Diff, pair: str) -> str:
    """The units that gained and lost, on one axis."""
    if not d.vocabulary.size:
        return ""
    found = [(side, lines(d.units(pair, side=side, count=_SHOWN), {})) for side in ("gained", "lost")]
    found = [(side, own) for side, own in found if own]
    if not found:
        return ""
    axis = axis_of([line for _, own in found for line in own])
    figures = "".join(
        f"<figure><figcaption><b>{side.capitalize()} weight</b></figcaption>"
        f"{means(own, axis, True, f'{side} weight: ' + ', '.join(line.name for line in own))}</figure>"
        for side, own in found
    )
    told = (
        f"The mean over rows of what a {d.unit} has in B minus what it has in A, with its 95 % interval, by whose near "
        f"end {plural(d.unit)} are ordered; those in fewer than five rows are left out."
    )
    return (
        f'<section><h2 class="part">{text(titled(pair))}: {plural(d.unit)} that gained or lost weight</h2>'
        f'<p class="soft">{text(told)}</p><div class="swarms">{figures}</div></section>'
    )


# ---- rows ----


def _rows(d: Diff) -> str:
    def changed(note: Note) -> str:
        return _moved(note.about)

    def shared(note: Note) -> str:
        return f"{100 * note.value:.0f} % in common"

    folds = "".join(
        ui.fold(title, ask, counted(len(found), "row"), "".join(_note(d, note, said(note)) for note in found))
        for title, ask, found, said in (
            ("Predictions", "The rows whose prediction changed most", d.predictions, changed),
            ("Explanations", "The rows whose explanations have least in common", d.explanations, shared),
        )
        if found
    )
    scales = [ui.scale("two", [f"{ui.MINUS}50 %", "0", "+50 %"])] if any(d.signed.values()) else []
    scales += [ui.scale("one", ["0", "50 %"], ("nothing", "much"))] if not all(d.signed.values()) else []
    told = f"Shown is each {d.unit}'s share of its method's total, Σ|φ|; all on one scale."
    return f'<section><h2 class="part">Rows that changed most</h2>{ui.legend(scales, told)}<div>{folds}</div></section>'


def _moved(about: Mapping[str, Any]) -> str:
    """Both predictions; where they are the same, the classes that were explained, if those are not."""
    after = about["after"]
    other = about["prediction"] == after["prediction"] and about["target"] != after["target"]
    classes = f", explained: {about['target']} → {after['target']}" if other else ""
    return f"{_predicted(about)} → {_predicted(after)}{classes}"


def _predicted(about: Mapping[str, Any]) -> str:
    if about["probability"] is None:
        return ui.number(about["score"], 4)
    return f"{about['prediction']} {percent(about['probability'])}"


def _note(d: Diff, note: Note, said: str) -> str:
    before, after = d.outstanding[note.row]
    inner = "".join(
        f'<div class="gain">{_side(d, pair, "A", before, a)}{_side(d, pair, "B", after, b)}</div>'
        for pair, (a, b) in d.pairs.items()
    )
    label = "" if note.about["label"] is None else f" · label {note.about['label']}"
    told = f"{_moved(note.about)}{label}"
    return (
        f'<details class="rowfold"><summary><span class="num faint">{note.row}</span>'
        f'<span class="cut">{excerpt(note.about)}</span><span class="end num">{text(said)}</span></summary>'
        f'<p class="tiny faint">{text(told)}</p>{inner}</details>'
    )


def _side(d: Diff, pair: str, letter: str, row: RunRow, method: str) -> str:
    values = row.values.get(method)
    if values is None:
        return f'<div><h4>{letter} {text(title_of(method))}</h4><p class="soft">no answer</p></div>'
    total = float(abs(values[~row.special]).sum()) or 1.0
    limit = _SHARES if row.grid is None else float(abs(values).max()) / total or 1.0
    target = f" · “{row.about['target']}”"
    return (
        f'<div><h4>{letter} {text(title_of(method))}<span class="tiny faint">{text(target)}</span></h4>'
        f"{drawn(row, values / total, limit, d.signed[pair], True)}</div>"
    )
