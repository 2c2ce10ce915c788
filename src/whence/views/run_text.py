"""Summaries and comparisons of runs as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whence.views.tables import table

if TYPE_CHECKING:
    from whence.runs.diff import Diff
    from whence.runs.summary import Note, Summary, Unit

_WORDS, _ROWS, _LETTERS = 8, 5, 60


def summary(s: Summary) -> str:
    """The units that matter most by class and method, the agreement, and the rows that stand out."""
    parts = [f"{s.rows:,} rows, {', '.join(f'{name}: {n:,}' for name, n in list(s.predictions.items())[:5])}", *s.notes]
    if s.labelled:
        parts.append(f"{s.wrong:,} of {s.labelled:,} predictions are not the label")
    for target in s.most(3) if s.vocabulary.size else ():
        for method in s.methods:
            for side in ("for", "against") if s.signed[method] else ("both",):
                if units := s.units(target, method, side=side, count=_WORDS):
                    parts.append(f"\n{method}, {side if side != 'both' else 'most for'} {target}\n{_units(units)}")
    if s.agreement:
        lines = [[a, b, f"{m.mean:.3f}", f"{m.low:.3f} to {m.high:.3f}"] for (a, b), m in s.agreement.items()]
        parts.append("\nshare in common\n" + table(["", "", "mean", "95 % interval"], lines))
    for title, notes in (("methods disagree", s.disagree), ("largest gaps", s.largest_gaps),
                         ("confident and wrong", s.confident_wrong)):  # fmt: skip
        if notes:
            parts.append(f"\n{title}\n{_notes(notes)}")
    return "\n".join(parts)


def _units(units: Sequence[Unit]) -> str:
    lines = [[u.name, f"{u.mean:.3g}", f"{u.low:.3g} to {u.high:.3g}", f"{u.rows:,}"] for u in units]
    return table(["", "mean", "95 % interval", "rows"], lines)


def _notes(notes: Sequence[Note]) -> str:
    lines = [[note.row, _value(note), _begin(note)] for note in notes[:_ROWS]]
    return table(["row", "", ""], lines)


def _value(note: Note) -> str:
    after = note.about.get("after")
    if after is None or after["prediction"] == note.about["prediction"]:
        return f"{note.value:.3g}"
    return f"{note.about['prediction']} → {after['prediction']}"


def _begin(note: Note) -> str:
    given = " ".join(str(note.about.get("text") or note.about.get("id") or "").split())
    return given if len(given) <= _LETTERS else f"{given[:_LETTERS]} …"


def diff(d: Diff) -> str:
    """What changed from one run to the other."""
    low, high = d.changed_interval
    parts = [
        f"{d.rows:,} rows in both runs",
        f"predictions changed: {d.changed:,} ({100 * d.changed_share:.2g} %, {100 * low:.2g} to {100 * high:.2g} %)",
        *d.notes,
    ]
    lines = [
        [pair, f"{m.mean:.3f}", f"{m.low:.3f} to {m.high:.3f}", f"{d.chance[pair].mean:.3f}"]
        for pair, m in d.agreement.items()
    ]
    parts.append("\nshare in common\n" + table(["method", "mean", "95 % interval", "random"], lines))
    for pair in d.agreement:
        for side, title in (("gained", "gained weight"), ("lost", "lost weight")):
            if units := d.units(pair, side=side, count=_WORDS):
                parts.append(f"\n{pair}: {title}\n{_units(units)}")
    for title, notes in (("prediction changed most", d.predictions), ("explanation changed most", d.explanations)):
        if notes:
            parts.append(f"\n{title}\n{_notes(notes)}")
    return "\n".join(parts)
