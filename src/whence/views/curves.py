"""Mean curves of an evaluation with their bands: as SVG on a page, and with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from whence.errors import ParameterError
from whence.evaluation.columns import Column
from whence.evaluation.scoreboard import Scoreboard
from whence.views.components import text
from whence.views.plot import pyplot

ARROW = {"higher": "↑", "lower": "↓", "nearer to 0": "→0"}
_INKS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#6a3d9a")
_DASHES = ("", "6 3", "2 2", "8 2 2 2")  # after eight lines, the next eight are dashed, and so on
_CONTROL = ("#555555", "1 3")
_WIDTH, _HEIGHT, _EDGE = 520, 220, 40


def _styles(board: Scoreboard) -> dict[str, tuple[str, str]]:
    """Each line's ink and dashes: 32 differ, and controls are gray dots."""
    names = [m for m in board.methods if m not in board.controls]
    styles = {m: (_INKS[i % len(_INKS)], _DASHES[i // len(_INKS) % len(_DASHES)]) for i, m in enumerate(names)}
    return styles | dict.fromkeys(board.controls, _CONTROL)


def number(value: float) -> str:
    """Three digits that tell."""
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e5):
        return f"{value:.1e}"
    return f"{value:.1f}" if size >= 100 else f"{value:.3f}"


def drawn(board: Scoreboard, column: Column) -> str:
    """One metric's mean curves as SVG, each with its band; nothing where the metric draws none."""
    found = {m: c for m in board.methods if (c := board.curve(m, column.name)) is not None and len(c[0]) > 1}
    bands = {m: board.band(m, column.name) or ([], []) for m in found}
    flat = [y for m, (_, ys) in found.items() for y in (*ys, *bands[m][0], *bands[m][1]) if not math.isnan(y)]
    if not flat:
        return ""
    low, high = min(flat), max(flat)
    high = high if high > low else low + 1
    first = next(iter(found.values()))[0]
    span = (first[-1] - first[0]) or 1

    def at(x: float, y: float) -> str:
        across = _EDGE + (x - first[0]) / span * (_WIDTH - _EDGE - 10)
        return f"{across:.1f},{10 + (high - y) / (high - low) * (_HEIGHT - 40):.1f}"

    areas, lines, names = [], [], []
    for method, (ink, dash) in ((m, s) for m, s in _styles(board).items() if m in found):
        xs, ys = found[method]
        edge = [(x, *reach) for x, *reach in zip(xs, *bands[method], strict=True) if not math.isnan(reach[0])]
        around = [at(x, top) for x, _, top in edge] + [at(x, bottom) for x, bottom, _ in reversed(edge)]
        areas.append(f'<polygon points="{" ".join(around)}" fill="{ink}" fill-opacity=".1"/>' if edge else "")
        points = " ".join(at(x, y) for x, y in zip(xs, ys, strict=True) if not math.isnan(y))
        stroke = f'fill="none" stroke="{ink}" stroke-width="2" stroke-dasharray="{dash}"'
        lines.append(f'<polyline points="{points}" {stroke}><title>{text(method)}</title></polyline>')
        sample = f'<svg width="26" height="8" aria-hidden="true"><line x1="0" y1="4" x2="26" y2="4" {stroke}/></svg>'
        names.append(f'<span style="white-space:nowrap">{sample} {text(method)}</span>')
    soft = 'fill="currentColor" font-size="11"'
    return (
        f'<figure style="max-width:none"><h4>{text(column.name)} {ARROW[column.better]}</h4>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" style="max-width:{_WIDTH}px;width:100%" role="img" '
        f'aria-label="mean curves of {text(column.name)}, one per method">{"".join(areas)}{"".join(lines)}'
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
    ax.set_xlabel(str(column.facts.get("axis", "share of units")))
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
