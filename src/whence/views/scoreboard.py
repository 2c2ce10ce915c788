"""A scoreboard to look at: a table for the terminal, a page, and the curves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from whence.errors import ParameterError
from whence.evaluation.scoreboard import Column, Score, Scoreboard
from whence.util.terminal import clean
from whence.views.colours import wash
from whence.views.plot import pyplot
from whence.views.rows_html import text

_ARROW = {"higher": "↑", "lower": "↓"}
_CONTROLS = ("random", "edges")


def table(board: Scoreboard) -> str:
    """Methods down, metrics across; ± is half of the 95 % interval, * marks the best of a column."""
    head = ["method", *(f"{clean(c.name)} {_ARROW[c.better]}" for c in board.columns), "copies", "s / row"]
    lines = [head]
    for method in board.methods:
        cells = [_cell(board, method, column) for column in board.columns]
        copies = f"{board.cost[method].get('asked', 0):.0f}"
        lines.append([clean(method), *cells, copies, f"{board.seconds_per_row(method):.3f}"])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    shown = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*shown, "", *(clean(note) for note in notes(board))])


def notes(board: Scoreboard) -> list[str]:
    """What is to be known about the table."""
    said = board.settings
    found = [
        f"{said['rows']} rows, target {said['target']}, seed {said['seed']}; ± is half of a 95 % bootstrap interval, "
        "* the best of a column."
    ]
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
    star = "*" if _known(board, column) and board.best(column.name) == method else ""
    return f"{number(score.value)}{_spread(score)}{star}"


def _known(board: Scoreboard, column: Column) -> bool:
    return any(not math.isnan(board[m, column.name].value) for m in board.methods)


def _spread(score: Score) -> str:
    return "" if math.isnan(score.low) else f" ±{number((score.high - score.low) / 2)}"


def number(value: float) -> str:
    """Three digits that tell."""
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e5):
        return f"{value:.1e}"
    return f"{value:.1f}" if size >= 100 else f"{value:.3f}"


def section(board: Scoreboard) -> str:
    """The table, its notes and the curves as one section of a page."""
    head = "".join(f"<th>{text(c.name)} {_ARROW[c.better]}</th>" for c in board.columns)
    lines = []
    for method in board.methods:
        cells = "".join(_html_cell(board, method, column) for column in board.columns)
        name = f"<em>{text(method)}</em>" if method in _CONTROLS else text(method)
        lines.append(f"<tr><th>{name}</th>{cells}<td>{board.seconds_per_row(method):.3f}</td></tr>")
    said = "".join(f"<li>{text(note)}</li>" for note in notes(board))
    curves = "".join(_drawn(board, column) for column in board.columns)
    if curves:
        grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(22rem,100%),1fr));gap:1rem"
        curves = f'<h3>Mean curves over rows</h3><div style="{grid}">{curves}</div>'
    return (
        '<section><div class="wide"><table class="plain">'
        f"<tr><th>method</th>{head}<th>s / row</th></tr>{''.join(lines)}</table></div>"
        f'<p class="soft">Red is better and blue is worse than the random control.</p>{curves}'
        f'<details><summary>How it was measured</summary><ul class="soft">{said}</ul></details></section>'
    )


def _html_cell(board: Scoreboard, method: str, column: Column) -> str:
    score = board[method, column.name]
    if math.isnan(score.value):
        return "<td>–</td>"
    told = f"{score.value:.6g}, 95 % interval {score.low:.4g} to {score.high:.4g}, {score.rows} rows"
    best = board.best(column.name) == method
    shown = f"{number(score.value)}<small> {text(_spread(score))}</small>"
    return (
        f'<td title="{text(told)}" style="white-space:nowrap;background:{wash(_share(board, method, column))}">'
        f"{f'<b>{shown}</b>' if best else shown}</td>"
    )


def _share(board: Scoreboard, method: str, column: Column) -> float:
    """From −1 to 1: how far above the random control, in the column's own range."""
    values = [board[m, column.name].value for m in board.methods]
    known = [v for v in values if not math.isnan(v)]
    random = board[_control(board), column.name].value if _control(board) else min(known)
    reach = max((abs(v - random) for v in known), default=0.0)
    sign = 1 if column.better == "higher" else -1
    share = sign * (board[method, column.name].value - random) / reach if reach and not math.isnan(random) else 0.0
    return 0.6 * share


def _control(board: Scoreboard) -> str:
    return "random" if "random" in board.methods else ""


# ---- curves ----

_INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
_WIDTH, _HEIGHT, _EDGE = 520, 220, 40


def _drawn(board: Scoreboard, column: Column) -> str:
    """One metric's mean curves as SVG."""
    found = {m: c for m in board.methods if (c := board.curve(m, column.name)) is not None and len(c[0]) > 1}
    flat = [y for _, ys in found.values() for y in ys if not math.isnan(y)]
    if not flat:
        return ""
    low, high = min(flat), max(flat)
    high = high if high > low else low + 1
    first = next(iter(found.values()))[0]
    span = (first[-1] - first[0]) or 1

    def at(x: float, y: float) -> str:
        across = _EDGE + (x - first[0]) / span * (_WIDTH - _EDGE - 10)
        return f"{across:.1f},{10 + (high - y) / (high - low) * (_HEIGHT - 40):.1f}"

    lines, names = [], []
    for i, (method, (xs, ys)) in enumerate(found.items()):
        ink, dash = _INKS[i % len(_INKS)], ' stroke-dasharray="5 4"' if i >= len(_INKS) or method in _CONTROLS else ""
        points = " ".join(at(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(y))
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{ink}" stroke-width="2"{dash}><title>{text(method)}'
            "</title></polyline>"
        )
        names.append(f'<span style="white-space:nowrap"><b style="color:{ink}">—</b> {text(method)}</span>')
    soft = 'fill="currentColor" font-size="11"'
    return (
        f'<figure style="max-width:none"><h4>{text(column.name)} {_ARROW[column.better]}</h4>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" style="max-width:{_WIDTH}px;width:100%" role="img" '
        f'aria-label="mean curves of {text(column.name)}, one per method">{"".join(lines)}'
        f'<text x="0" y="16" {soft}>{text(number(high))}</text><text x="0" y="{_HEIGHT - 28}" {soft}>'
        f'{text(number(low))}</text><text x="{_EDGE}" y="{_HEIGHT - 6}" {soft}>{first[0]:g}</text>'
        f'<text x="{_WIDTH - 30}" y="{_HEIGHT - 6}" {soft}>{first[-1]:g}</text></svg>'
        f"<figcaption class='soft'>{' · '.join(names)}</figcaption></figure>"
    )


def plot(board: Scoreboard, metric: str | None, ax: Any, new: Callable[..., Any] | None = None) -> Any:
    """Mean curves with matplotlib; of attention erasure, boxes of shares and a scatter of differences."""
    drawn = [c for c in board.columns if c.metric in _OWN or any(board.curve(m, c.name) for m in board.methods)]
    chosen = drawn if metric is None else [c for c in drawn if c.name == metric]
    if not chosen:
        raise ParameterError(f"There is no curve of {metric or 'these metrics'!r}.\n  Plot one of the removal metrics.")
    if ax is not None and len(chosen) > 1:
        raise ParameterError("One pair of axes holds one metric.\n  Name it: plot(metric, ax).")
    new = new or pyplot().figure
    made = None if ax is not None else new(figsize=(5 * len(chosen), 3.6), layout="constrained")
    axes = [ax] if made is None else made.subplots(1, len(chosen), squeeze=False)[0]
    for here, column in zip(axes, chosen, strict=True):
        _OWN.get(column.metric, _curves)(board, column, here)
        here.set_title(f"{column.name} {_ARROW[column.better]}", fontsize=10)
    return axes[0] if len(chosen) == 1 else list(axes)


def _curves(board: Scoreboard, column: Column, ax: Any) -> None:
    for i, method in enumerate(board.methods):
        curve = board.curve(method, column.name)
        if curve is not None:
            ax.plot(*curve, label=method, color=_INKS[i % len(_INKS)], ls="--" if method in _CONTROLS else "-")
    ax.legend(fontsize=7)


def _boxes(board: Scoreboard, column: Column, ax: Any) -> None:
    """Each ranking's shares until the decision flips."""
    values = [[r.value for r in board.results[m, column.name].values() if r.value == r.value] for m in board.methods]
    ax.boxplot(values, tick_labels=board.methods)
    ax.tick_params(axis="x", labelsize=7, rotation=20)
    ax.set_ylabel("share erased")


def _scattered(board: Scoreboard, column: Column, ax: Any) -> None:
    """The difference of divergences against that of weights, a point a row."""
    for i, method in enumerate(board.methods):
        found = [r for r in board.results[method, column.name].values() if r.value == r.value]
        apart = [r.parts["difference of weights"] for r in found]
        ax.scatter(apart, [r.value for r in found], s=6, color=_INKS[i % len(_INKS)], label=method)
    ax.axhline(0, color="gray", lw=0.8)
    ax.set_xlabel("difference of attention weights")
    ax.set_ylabel("difference of JS divergences")
    ax.legend(fontsize=7)


_OWN = {"erasure_set": _boxes, "erasure_single": _scattered}
