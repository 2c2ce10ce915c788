"""Every method of a report, folded by the question that its family asks; and what every two have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whence.methods import methods
from whence.views import components as ui
from whence.views.components import text
from whence.views.drawings import DRAW, on_special, pictures
from whence.views.families import FAMILIES, FIRST, by_family, title_of
from whence.views.maps import counted
from whence.views.report import Report, heading, notices_of, small
from whence.views.shares import Drawn, common


def rest(r: Report, missing: Mapping[str, str], level: int) -> str:
    """All methods by family, folded, where there are more than are seen at once; and what every two have in common."""
    if len(r.every) <= FIRST and not missing:
        return ""
    families = by_family({name: d.a.method for name, d in r.every.items()} | {name: name for name in missing})
    folds = [
        ui.fold(family, FAMILIES[family], _counted(r, names), _family(r, names, missing))
        for family, names in families.items()
    ]  # fmt: skip
    if len(r.every) > 1:
        ordered = [r.every[name] for names in families.values() for name in names if name in r.every]
        table = ui.all_agreement([d.name for d in ordered], [[common(a, b) for b in ordered] for a in ordered])
        size = f"{len(ordered)} × {len(ordered)}"
        folds.append(ui.fold("All against all", "What every two have in common; darker is more", size, table))
    title = heading(f"All {len(r.every)} methods, by the question they ask", level)
    return f'<section>{title}<div style="margin-top:6px">{"".join(folds)}</div></section>'


def _counted(r: Report, names: Sequence[str]) -> str:
    here = sum(name in r.every for name in names)
    return counted(here, "method") if here else "none has an answer here"


def _family(r: Report, names: Sequence[str], missing: Mapping[str, str]) -> str:
    """The methods of a family, and those that have no answer, with the reason."""
    here = [r.every[name] for name in names if name in r.every]
    gone = "".join(
        f'<p class="soft"><span class="gone">{text(title_of(name))}</span> {text(missing[name])}</p>'
        for name in names
        if name in missing
    )
    if not here:
        return gone
    if all(d.kind == "image" for d in here):
        above = ui.warnings([(title_of(d.name), told) for d in here if not d.letter for told in notices_of(d)])
        return above + pictures(here, r.scale(here[0]), lambda d: _with_left(r, d), tight=True) + gone
    left = "what is left of the probability on average as its first units go; lower is better"
    head = f'<tr><th>method</th><th>what it says</th><th>cost, check</th><th class="num" title="{left}">left</th></tr>'
    lines = "".join(_line(r, d) for d in here)
    return f'<table class="all"><thead>{head}</thead><tbody>{lines}</tbody></table>{gone}'


def _left(r: Report, d: Drawn) -> str:
    known = r.check is not None and d.name in r.check.curves
    return f"{100 * r.check.left(d.name):.0f} %" if known and r.check is not None else "–"


def _with_left(r: Report, d: Drawn) -> str:
    known = r.check is not None and d.name in r.check.curves
    return f"{small(d)} · {_left(r, d)} left" if known else small(d)


def _line(r: Report, d: Drawn) -> str:
    paper = methods[d.a.method].paper if d.a.method in methods else ""
    who = f"{ui.key(d.letter)} <b>{text(title_of(d.name))}</b>".strip()
    who += f'<br><span class="tiny faint code">{text(d.name)}</span><br><span class="tiny faint">{text(paper)}</span>'
    said = "" if d.letter else ui.warnings([("", told) for told in notices_of(d)])
    told = " · ".join(filter(None, [small(d), on_special(d) if d.kind == "text" else ""]))
    return (
        f"<tr><td>{who}</td><td>{said}{DRAW[d.kind](d, r.scale(d), True)}</td>"
        f'<td class="tiny faint">{text(told)}</td><td class="num" data-head="left">{_left(r, d)}</td></tr>'
    )
