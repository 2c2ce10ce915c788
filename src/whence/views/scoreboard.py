"""A scoreboard to look at: a table for the terminal, for a page, for Markdown and for LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from whence.evaluation.columns import Column
from whence.evaluation.scoreboard import Score, Scoreboard
from whence.util.terminal import clean
from whence.views.colours import wash
from whence.views.components import text
from whence.views.curves import ARROW, crowded, drawn, key, number

_COST = ("copies", "passes", "s / row", "× fb")


def _head(board: Scoreboard) -> list[str]:
    return ["method", *(f"{c.name} {ARROW[c.better]}" for c in board.columns), *_COST]


def _costs(board: Scoreboard, method: str) -> list[str]:
    """Copies that its metrics asked for, passes of an explanation, its time, and that in passes forward and back."""
    forward, backward = board.passes(method)
    times = board.times_fb(method)
    return [
        f"{board.cost[method].get('asked', 0):.0f}",
        f"{forward:.0f}+{backward:.0f}" if forward or backward else "–",
        f"{board.seconds_per_row(method):.3f}",
        "–" if math.isnan(times) else f"{times:.1f}",
    ]


def table(board: Scoreboard) -> str:
    """Methods down, metrics across; ± is the 95 % interval, * marks who is told apart from all others."""
    lines = [[clean(name) for name in _head(board)]]
    for method in board.methods:
        cells = [_cell(board, method, column) for column in board.columns]
        lines.append([clean(method), *cells, *_costs(board, method)])
    head = lines[0]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    shown = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*shown, "", *(clean(note) for note in notes(board))])


def notes(board: Scoreboard) -> list[str]:
    """What is to be known about the table."""
    said = board.settings
    found = [
        f"{said['rows']} rows, target {said['target']}, seed {said['seed']}; ± is a 95 % interval (bootstrap-t, of "
        "proportions Wilson's), – where the rows allow none; * is told apart from all others, wrongly in 5 % of tables "
        "at most; × fb is the time in passes forward and backward."
    ]
    if board.copies:
        found.append(f"{len(board.copies)} rows equal others: for intervals and tests, equal rows count once.")
    for column in board.columns:
        params = ", ".join(f"{name}={value}" for name, value in column.params.items())
        found.append(f"{column.name}: {column.better} is better" + (f"; {params}" if params else ""))
        short = {board[m, column.name].rows for m in board.methods} - {said["rows"]}
        if short:
            found[-1] += f"; {min(short)} rows count for some"
        found += [f"  {m}: {more}" for m in board.methods if (more := _parts(board, m, column))]
    if board.failures:
        found.append(f"{len(board.failures)} failures, the first of them:")
        found += [f"  {failure}" for failure in board.failures[:5]]
    return found


def _parts(board: Scoreboard, method: str, column: Column) -> str:
    """What else a metric measured, in words."""
    parts = board[method, column.name].parts
    return ", ".join(f"{name} {number(value)}" for name, value in parts.items())


def _cell(board: Scoreboard, method: str, column: Column) -> str:
    score = board[method, column.name]
    if math.isnan(score.value):
        return "–"
    star = "*" if board.star(column.name) == method else ""
    return f"{number(score.value)}{_spread(score)}{star}"


def _spread(score: Score) -> str:
    """The interval around the score: ± where it is even, else what it reaches below and above."""
    if math.isnan(score.low):
        return " ±–"
    below, above = number(score.value - score.low), number(score.high - score.value)
    return f" ±{above}" if below == above else f" −{below} +{above}"


def section(board: Scoreboard) -> str:
    """The table, its notes and the curves as one section of a page."""
    head = "".join(f"<th>{text(name)}</th>" for name in _head(board))
    lines = []
    for method in board.methods:
        cells = "".join(_html_cell(board, method, column) for column in board.columns)
        name = f"<em>{text(method)}</em>" if method in board.controls else text(method)
        costs = "".join(f"<td>{text(cell)}</td>" for cell in _costs(board, method))
        lines.append(f"<tr><th>{name}</th>{cells}{costs}</tr>")
    said = "".join(f"<li>{text(note)}</li>" for note in notes(board))
    curves = "".join(drawn(board, column) for column in board.columns)
    if curves:
        grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(340px,100%),1fr));gap:16px"
        only = ", of the random order; those of methods are in the table" if crowded(board) else ""
        shaded = f'<p class="soft">Shaded: 95 % intervals{only}.</p>' if "random" in board.methods or not only else ""
        curves = f'<h3>Mean curves over rows</h3>{shaded}<div style="{grid}">{curves}</div>{key(board)}'
    return (
        '<section><div class="wide"><table class="plain">'
        f"<tr>{head}</tr>{''.join(lines)}</table></div>"
        '<p class="soft">The stronger the shade, the better than random; bold is told apart from all others.</p>'
        f"{curves}"
        f'<details><summary>How it was measured</summary><ul class="soft">{said}</ul></details></section>'
    )


def _html_cell(board: Scoreboard, method: str, column: Column) -> str:
    score = board[method, column.name]
    if math.isnan(score.value):
        return "<td>–</td>"
    reach = f"95 % interval {score.low:.4g} to {score.high:.4g}" if score.low == score.low else "no interval"
    told = f"{score.value:.6g}, {reach}, {score.rows} rows"
    best = board.star(column.name) == method
    shown = f"{number(score.value)}<small> {text(_spread(score))}</small>"
    ground = wash(max(0.0, _share(board, method, column)), ink=True)
    return (
        f'<td title="{text(told)}" style="white-space:nowrap;background:{ground}">'
        f"{f'<b>{shown}</b>' if best else shown}</td>"
    )


def _share(board: Scoreboard, method: str, column: Column) -> float:
    """From −1 to 1: how far above the random control, in the column's own range."""
    gains = {m: float(column.gain(board[m, column.name].value)) for m in board.methods}
    known = [v for v in gains.values() if not math.isnan(v)]
    random = gains["random"] if "random" in gains else min(known)
    reach = max((abs(v - random) for v in known), default=0.0)
    return 0.6 * (gains[method] - random) / reach if reach and not math.isnan(random) else 0.0


# ---- for papers ----


def markdown(board: Scoreboard) -> str:
    """A table in Markdown, and what is to be known about it."""
    head, *body = [f"| {' | '.join(line)} |" for line in _plain(board, "**{}**", _md)]
    said = [f"- {_md(note)}" for note in notes(board)]
    return "\n".join([head, "|" + "---|" * len(_head(board)), *body, "", *said])


def latex(board: Scoreboard) -> str:
    """A tabular with booktabs' rules, and what is to be known about it as comments."""
    head, *body = [" & ".join(line) + r" \\" for line in _plain(board, r"\textbf{{{}}}", _tex)]
    return "\n".join(
        [*(f"% {clean(note)}" for note in notes(board)), rf"\begin{{tabular}}{{l{'r' * (len(_head(board)) - 1)}}}",
         r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]
    )  # fmt: skip


def _plain(board: Scoreboard, bold: str, escaped: Callable[[str], str]) -> list[list[str]]:
    """The lines of the table, its head first, escaped; who is told apart in bold."""
    lines = [[escaped(name) for name in _head(board)]]
    for method in board.methods:
        cells = [_cell(board, method, column) for column in board.columns]
        marked = [bold.format(escaped(cell[:-1])) if cell.endswith("*") else escaped(cell) for cell in cells]
        lines.append([escaped(method), *marked, *map(escaped, _costs(board, method))])
    return lines


def _md(told: str) -> str:
    """Text that Markdown takes for nothing else: no emphasis, no link, no tag, no end of a cell."""
    return re.sub(r"([\\`*_\[\]<>|~$])", r"\\\1", clean(told))


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "[": "{[}", "]": "{]}", "*": "{*}", "|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
    "→": r"$\to$", "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "–": "--",
}  # fmt: skip


def _tex(told: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in clean(told))
