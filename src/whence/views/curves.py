"""Mean curves of an evaluation with their bands: as SVG on a page, and with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from whence.errors import ParameterError
from whence.evaluation.columns import Column
from whence.evaluation.scoreboard import Scoreboard
from whence.views import components as ui
from whence.views.charts import Axis
from whence.views.components import text
from whence.views.plot import pyplot

ARROW = {"higher": "↑", "lower": "↓", "nearer to 0": "→0"}
_INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#6a3d9a")
_DASHES = ("", "6 3", "2 2", "8 2 2 2")  # after eight lines, the next eight are dashed, and so on
_CONTROLS = {"random": ("#8a8f98", ""), "edges": ("#8a8f98", "1 3")}
_BANDS = 4  # lines, up to which each has its band; more bands than that hide one another
_ACROSS = "share of units"
_WIDTH, _HEIGHT, _EDGE, _TOP, _BOTTOM = 360, 220, 44, 8, 38


def _styles(board: Scoreboard) -> dict[str, tuple[str, str]]:
    """Each line's ink and dashes: 32 differ, and controls are grey."""
    names = [m for m in board.methods if m not in board.controls]
    styles = {m: (_INKS[i % len(_INKS)], _DASHES[i // len(_INKS) % len(_DASHES)]) for i, m in enumerate(names)}
    return styles | {m: _CONTROLS.get(m, _CONTROLS["edges"]) for m in board.controls}


def number(value: float) -> str:
    """Three digits that tell."""
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e5):
        return f"{value:.1e}"
    return f"{value:.1f}" if size >= 100 else f"{value:.3f}"


def drawn(board: Scoreboard, column: Column) -> str:
    """One metric's mean curves as SVG, chance with its band; nothing where the metric draws none."""
    found = {m: c for m in board.methods if (c := board.curve(m, column.name)) is not None and len(c[0]) > 1}
    banded = [m for m in found if m == "random" or not crowded(board)]
    reach = {m: _reach(found[m][0], board.band(m, column.name)) for m in banded}
    flat = [y for _, ys in found.values() for y in ys] + [y for edge in reach.values() for _, *ys in edge for y in ys]
    known = [y for y in flat if not math.isnan(y)]
    if not known:
        return ""
    low, high = min(known), max(known)
    axis = Axis(low, high) if high - low > 1e-9 else Axis(low - 0.5, high + 0.5)
    first = next(iter(found.values()))[0]
    span = (first[-1] - first[0]) or 1

    def at(x: float, y: float) -> str:
        across = _EDGE + (x - first[0]) / span * (_WIDTH - _EDGE - 10)
        return f"{across:.1f},{_TOP + (100 - axis.at(y)) / 100 * (_HEIGHT - _TOP - _BOTTOM):.1f}"

    styles = _styles(board)
    parts = [_grid(y, at(first[0], y).partition(",")[2]) for y in axis.ticks()]
    for x in Axis(first[0], first[-1]).ticks() if first[-1] > first[0] else []:
        across = at(x, axis.low).partition(",")[0]
        parts.append(f'<text x="{across}" y="{_HEIGHT - 20}" text-anchor="middle">{round(x, 12):g}</text>')
    what = text(str(column.facts.get("axis", _ACROSS)))
    parts.append(f'<text x="{(_EDGE + _WIDTH - 10) / 2}" y="{_HEIGHT - 5}" text-anchor="middle">{what}</text>')
    for method, edge in reach.items():
        around = [at(x, top) for x, _, top in edge] + [at(x, low) for x, low, _ in reversed(edge)]
        parts.append(f'<polygon points="{" ".join(around)}" fill="{styles[method][0]}" fill-opacity=".14"/>')
    for method in sorted(found, key=lambda m: m not in board.controls):  # methods over controls
        xs, ys = found[method]
        points = " ".join(at(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(y))
        parts.append(f'<polyline points="{points}" {_stroke(styles[method])}><title>{text(method)}</title></polyline>')
    return (
        f"<figure><h4>{text(column.name)} {ARROW[column.better]}</h4>"
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="mean curves of {text(column.name)}, one per method">{"".join(parts)}</svg></figure>'
    )


def crowded(board: Scoreboard) -> bool:
    """Whether only chance is drawn with its band."""
    return len(board.methods) > _BANDS


def _reach(xs: Sequence[float], band: tuple[Sequence[float], Sequence[float]] | None) -> list[tuple[float, ...]]:
    """Where there is an interval: x, its low end, its high end."""
    low, high = band or ((), ())
    return [(x, *ends) for x, *ends in zip(xs, low, high, strict=bool(low)) if not math.isnan(ends[0])]


def _grid(value: float, y: str) -> str:
    return (
        f'<line class="grid" x1="{_EDGE}" x2="{_WIDTH - 10}" y1="{y}" y2="{y}"/>'
        f'<text x="{_EDGE - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{text(ui.number(round(value, 12)))}</text>'
    )


def _stroke(style: tuple[str, str]) -> str:
    return f'fill="none" stroke="{style[0]}" stroke-width="2" stroke-dasharray="{style[1]}"'


def key(board: Scoreboard) -> str:
    """The lines' names, and how each is drawn."""
    names = []
    for method, style in _styles(board).items():
        line = f'<line x1="0" y1="4" x2="26" y2="4" {_stroke(style)}/>'
        names.append(f'<span><svg width="26" height="8" aria-hidden="true">{line}</svg> {text(method)}</span>')
    return f'<p class="keys">{"".join(names)}</p>'


def plot(board: Scoreboard, metric: str | None, ax: Any, new: Callable[..., Any] | None = None) -> Any:
    """Mean curves with matplotlib; of attention erasure, boxes of shares and a scatter of differences."""
    drawn = [c for c in board.columns if c.metric in _OWN or any(board.curve(m, c.name) for m in board.methods)]
    chosen = drawn if metric is None else [c for c in drawn if c.name == metric]
    if not chosen:
        raise ParameterError(f"There is no curve of {metric or 'these metrics'!r}.\n  Plot one of the removal metrics.")
    if ax is not None and len(chosen) > 1:
        raise ParameterError("One pair of axes holds one metric.\n  Name it: plot(metric, ax).")
    new = new or pyplot().figure
    tall = 3.6 if len(board.methods) <= len(_INKS) else 4.8
    made = None if ax is not None else new(figsize=(6.4 * len(chosen), tall), layout="constrained")
    axes = [ax] if made is None else made.subplots(1, len(chosen), squeeze=False)[0]
    for here, column in zip(axes, chosen, strict=True):
        _OWN.get(column.metric, _curves)(board, column, here)
        here.set_title(f"{column.name} {ARROW[column.better]}", fontsize=10)
    return axes[0] if len(chosen) == 1 else list(axes)


def _curves(board: Scoreboard, column: Column, ax: Any) -> None:
    styles = _styles(board)
    for method in board.methods:
        curve, band = board.curve(method, column.name), board.band(method, column.name)
        if curve is None or band is None:
            continue
        ink, dash = styles[method]
        dashes = (0, tuple(float(part) for part in dash.split())) if dash else "-"
        ax.plot(*curve, label=method, color=ink, ls=dashes, lw=1.5)
        ax.fill_between(curve[0], *band, color=ink, alpha=min(0.12, 0.6 / len(board.methods)), lw=0)
    ax.set_xlabel(str(column.facts.get("axis", _ACROSS)))
    ax.set_ylabel("mean over rows, 95 % interval")
    _legend(board, ax)


def _legend(board: Scoreboard, ax: Any) -> None:
    """Beside the axes where there are many lines, so that it hides none of them."""
    many = len(board.methods) > len(_INKS)
    beside = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0} if many else {}
    ax.legend(fontsize=7, handlelength=3.2, **beside)


def _boxes(board: Scoreboard, column: Column, ax: Any) -> None:
    """Each ranking's shares until the decision flips."""
    values = [[r.value for r in board.results[m, column.name].values() if r.value == r.value] for m in board.methods]
    ax.boxplot(values, tick_labels=board.methods)
    ax.tick_params(axis="x", labelsize=7, rotation=20)
    ax.set_ylabel("share erased")


def _scattered(board: Scoreboard, column: Column, ax: Any) -> None:
    """The difference of divergences against that of weights, a point a row."""
    for i, (method, (ink, _)) in enumerate((m, _styles(board)[m]) for m in board.methods):
        found = [r for r in board.results[method, column.name].values() if r.value == r.value]
        apart = [r.parts["difference of weights"] for r in found]
        shape = "os^Dv"[i // len(_INKS) % 5]
        ax.scatter(apart, [r.value for r in found], s=8, color=ink, marker=shape, label=method)
    ax.axhline(0, color="gray", lw=0.8)
    ax.set_xlabel("difference of attention weights")
    ax.set_ylabel("difference of JS divergences")
    _legend(board, ax)


_OWN = {"erasure_set": _boxes, "erasure_single": _scattered}
