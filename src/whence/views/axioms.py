"""Tables of properties, printed and as HTML."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from whence.evaluation.axioms.registry import properties
from whence.evaluation.axioms.table import MEANING
from whence.evaluation.axioms.toys import TOYS
from whence.methods import methods
from whence.util.terminal import clean
from whence.views.html import page, text
from whence.views.tables import folded, table

if TYPE_CHECKING:
    from whence.evaluation.axioms.table import AxiomTable, Cell
    from whence.evaluation.axioms.toys import TextbookEntry, TextbookTable

_WASH = {"yes": "none", "no": "rgba(118,118,118,.28)", "not refuted": "rgba(118,118,118,.12)", "–": "none"}
_WIDTH = 100


def _lead(t: AxiomTable) -> str:
    legend = "; ".join(f"{verdict}: {meaning}" for verdict, meaning in MEANING.items())
    rows = t.facts["rows"]
    return (
        f"Measured on {rows} row{'s' * (rows != 1)}, at most {t.facts['features']} units of each. A violation up to "
        f"{t.facts['tolerance']:g} counts as rounding. {legend}."
    )


def _short(name: str) -> str:
    return str(properties[name].facts.get("short", name))


def _yes(reference: bool) -> str:
    return "yes" if reference else "no"


# ---- printed ----


def printed(t: AxiomTable) -> str:
    """The table, one line per method, and the witness of each cell that says no."""
    heads = ["method", "reference", *map(_short, t.properties)]
    lines = [[m, _yes(t.reference[m]), *(str(t[m, name]) for name in t.properties)] for m in t.methods]
    return "\n".join([table(heads, lines), "", *_wrapped(_lead(t)), *_witnesses(t), *_reasons(t)])


def _witnesses(t: AxiomTable) -> list[str]:
    found = [line for cell in t.failing for line in _wrapped(f"{cell.method}, {cell.property}: {cell.witness}", "  ")]
    return ["", "Witnesses", *found] if found else []


def _reasons(t: AxiomTable) -> list[str]:
    found = [line for said in _unmeasured(t) for line in _wrapped(said, "  ")]
    return ["", "Not measured", *found] if found else []


def _unmeasured(t: AxiomTable) -> list[str]:
    """Why cells were not measured, each reason once per method."""
    said: dict[tuple[str, str], list[str]] = {}
    for cell in t.cells.values():
        if cell.verdict == "–":
            said.setdefault((cell.method, cell.note), []).append(cell.property)
    found = []
    for (method, note), names in said.items():
        what = "" if len(names) == len(t.properties) else f" ({', '.join(names)})"
        found.append(f"{method}{what}: {note}")
    return found


def printed_textbook(t: TextbookTable) -> str:
    """One line per property, what is stated → what is measured; a star where a counter-example is listed below."""
    names = list(dict.fromkeys(name for _, name in t.entries))
    of = list(t.reference)
    lines = [["reference-based", *(_yes(t.reference[m]) for m in of)]]
    lines += [[name.replace("_", " "), *(str(t[m, name]) for m in of)] for name in names]
    found = []
    for e in t.entries.values():
        if e.where:
            found += _wrapped(f"{e.method}, {e.property}: {e.where}", "  ")
    beside = [line for e in t.entries.values() for a in e.against for line in _wrapped(f"{_of(e)}: {a}", "  ")]
    return "\n".join(
        [folded(["stated → measured", *of], lines, most=_WIDTH), "", "Witnesses", *found]
        + (["", "* Counter-examples beyond the toy functions", *beside] if beside else [])
        + ["", "Stated by", *(line for said in _sources(t) for line in _wrapped(said, "  "))]
    )


def _sources(t: TextbookTable) -> list[str]:
    """Who states what, a line for each."""
    found: dict[str, dict[str, list[str]]] = {}
    for e in t.entries.values():
        if e.source:
            found.setdefault(e.source, {}).setdefault(e.method, []).append(e.property.replace("_", " "))
    return [
        f"{source}: " + "; ".join(f"{method} ({', '.join(names)})" for method, names in by.items())
        for source, by in found.items()
    ]


def _of(entry: TextbookEntry) -> str:
    return f"{entry.method}, {entry.property} (stated: {entry.stated or 'open'})"


def _wrapped(line: str, indent: str = "") -> list[str]:
    return textwrap.wrap(clean(line), _WIDTH, initial_indent=indent, subsequent_indent=indent + "  ") or [""]


# ---- HTML ----


def page_of(t: AxiomTable, title: str) -> str:
    return page(title, [section(t), _explained(t)])


def section(t: AxiomTable) -> str:
    """The table, a witness on each cell and the failing ones as a list."""
    heads = "".join(f"<th>{text(head)}</th>" for head in ("method", "reference-based", *map(_short, t.properties)))
    body = "".join(
        f"<tr><th>{text(m)}</th><td>{_yes(t.reference[m])}</td>{''.join(_cell(t[m, n]) for n in t.properties)}</tr>"
        for m in t.methods
    )
    items = "".join(f"<li><b>{text(c.method)}</b>, {text(c.property)}: {text(c.witness)}</li>" for c in t.failing)
    fails = f"<h3>Witnesses</h3><ul>{items}</ul>" if items else ""
    reasons = "".join(f"<li>{text(said)}</li>" for said in _unmeasured(t))
    fails += f"<h3>Not measured</h3><ul>{reasons}</ul>" if reasons else ""
    return (
        f'<section><p class="soft">{text(_lead(t))}</p><div class="wide"><table class="plain"><tr>{heads}</tr>{body}'
        f"</table></div>{fails}</section>"
    )


def _cell(cell: Cell) -> str:
    told = "; ".join(part for part in (str(cell.witness or ""), cell.note) if part)
    return f'<td style="background:{_WASH[cell.verdict]};white-space:nowrap" title="{text(told)}">{text(cell)}</td>'


def _explained(t: AxiomTable) -> str:
    rows = [(name, properties[name].description) for name in t.properties if name in properties]
    rows += [(m, methods[m].description) for m in t.methods if m in methods]
    lines = "".join(f"<tr><th>{text(name)}</th><td>{text(said)}</td></tr>" for name, said in rows)
    return f'<section><h2>What is what</h2><table class="plain">{lines}</table></section>'


def page_of_textbook(t: TextbookTable, title: str) -> str:
    toys = [
        f"<section><h2>{text(name)}</h2><p>{text(TOYS[name].note)}.</p></section>{section(found)}"
        for name, found in t.tables.items()
    ]
    return page(title, [textbook_section(t), *toys])


def textbook_section(t: TextbookTable) -> str:
    """The usual table, stated → measured, with counter-examples below."""
    return f"<section>{textbook_grid(t)}{textbook_notes(t)}</section>"


def textbook_grid(t: TextbookTable) -> str:
    """The table itself, and how to read it."""
    of, names = list(t.reference), list(dict.fromkeys(name for _, name in t.entries))
    heads = "".join(f"<th>{text(m)}</th>" for m in of)
    body = f"<tr><th>reference-based</th>{''.join(f'<td>{_yes(t.reference[m])}</td>' for m in of)}</tr>"
    for name in names:
        cells = "".join(
            f'<td style="background:{_WASH[e.measured]}" title="{text(e.where)}">{text(e)}</td>'
            for e in (t[m, name] for m in of)
        )
        body += f"<tr><th>{text(name.replace('_', ' '))}</th>{cells}</tr>"
    return (
        "<p>Each entry is what papers, or summaries of them, state → what is measured on toy functions, with the "
        "violation. A star: a counter-example from beyond them is listed below.</p>"
        f'<div class="wide"><table class="plain"><tr><td></td>{heads}</tr>{body}</table></div>'
    )


def textbook_notes(t: TextbookTable) -> str:
    """The witnesses, the counter-examples, and who states what."""
    beside = "".join(f"<li>{text(_of(e))}: {text(a)}</li>" for e in t.entries.values() for a in e.against)
    fails = "".join(
        f"<li>{text(e.method)}, {text(e.property)}: {text(e.where)}</li>" for e in t.entries.values() if e.where
    )
    return (
        f"<h3>Witnesses</h3><ul>{fails}</ul>"
        f"<h3>Counter-examples beyond the toy functions</h3><ul>{beside}</ul>"
        f"<h3>Stated by</h3><ul>{''.join(f'<li>{text(said)}</li>' for said in _sources(t))}</ul>"
    )
