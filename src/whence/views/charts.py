"""Charts of a run as inline SVG: swarms, means with intervals, histograms.

Places are percentages of the width, so that a chart is as wide as the page lets it be and its letters keep their size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from whence.views.components import number, side, text

_DOT, _HIGH = 2.5, 30  # a dot's radius and a line's height, in pixels
_WIDTH = 420  # pixels that a swarm is laid out for


@dataclass(frozen=True)
class Line:
    """One unit of a chart: its mean with an interval, and some of its values, each with its row."""

    name: str
    rows: int
    mean: float
    low: float
    high: float
    dots: Sequence[tuple[float, int]] = ()


@dataclass(frozen=True)
class Axis:
    """From the least to the largest number that is drawn; what lies beyond is drawn at the ends."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """In percent."""
        return 100 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        rough = (self.high - self.low) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def axis_of(lines: Sequence[Line]) -> Axis:
    """One axis for all lines: it has 0, every interval, and all but the last hundredth of the dots at either end."""
    dots = sorted(value for line in lines for value, _ in line.dots)
    cut = len(dots) // 100
    kept = dots[cut : len(dots) - cut] or dots
    ends = [0.0, *kept, *(end for line in lines for end in (line.low, line.high, line.mean) if math.isfinite(end))]
    low, high = min(ends), max(ends)
    if low == high:
        high = low + 1
    room = 0.04 * (high - low)
    return Axis(low - room if low < 0 else 0.0, high + room if high > 0 else 0.0)


def swarm(lines: Sequence[Line], axis: Axis, has_sign: bool, link: Callable[[int], str | None], head: str) -> str:
    """A line for each unit: its values as dots, the mean with its interval as a bar below them."""
    body = "".join(
        f'<div class="unit"><span class="name" title="{text(line.name)}">{text(line.name)}</span>'
        f"{_marks(line, axis, has_sign, link)}"
        f'<span class="num faint tiny" title="rows that have it">{line.rows:,}</span></div>'
        for line in lines
    )
    return (
        f'<div class="swarm" role="img" aria-label="{text(head)}">{body}'
        f'<div class="unit"><span></span>{_axis(axis)}<span class="faint tiny">rows</span></div></div>'
    )


def _marks(line: Line, axis: Axis, has_sign: bool, link: Callable[[int], str | None]) -> str:
    middle, zero = _HIGH / 2 - 3, axis.at(0.0)
    parts = [f'<line class="zero" x1="{zero:.2f}%" x2="{zero:.2f}%" y1="0" y2="{_HIGH}"/>']
    for (value, row), offset in zip(line.dots, _offsets([axis.at(v) for v, _ in line.dots]), strict=True):
        dot = (
            f'<circle class="{side(value, has_sign)}" cx="{axis.at(value):.2f}%" cy="{middle + offset:.1f}" r="{_DOT}">'
            f"<title>row {row}: {text(number(value))}</title></circle>"
        )
        address = link(row)
        parts.append(dot if address is None else f'<a href="{address}" tabindex="-1">{dot}</a>')
    parts.append(_interval(line, axis, _HIGH - 4))
    return f'<svg height="{_HIGH}">{"".join(parts)}</svg>'


def _interval(line: Line, axis: Axis, y: float) -> str:
    told = f"{line.name}: {number(line.mean)}, {number(line.low)} to {number(line.high)}, {line.rows} rows"
    return (
        f'<g class="mean"><title>{text(told)}</title>'
        f'<line x1="{axis.at(line.low):.2f}%" x2="{axis.at(line.high):.2f}%" y1="{y}" y2="{y}"/>'
        f'<circle cx="{axis.at(line.mean):.2f}%" cy="{y}" r="3"/></g>'
    )


def _offsets(places: Sequence[float]) -> list[float]:
    """How far each dot is moved up or down so that few overlap."""
    most = _HIGH / 2 - _DOT - 4
    taken: dict[int, int] = {}
    found = []
    for place in places:
        column = round(place * _WIDTH / 100 / (1.6 * _DOT))
        turn = taken.get(column, 0)
        taken[column] = turn + 1
        step = (turn + 1) // 2 * 1.6 * _DOT * (1 if turn % 2 else -1)
        found.append(step if abs(step) <= most else math.remainder(step, 2 * most))
    return found


def _axis(axis: Axis) -> str:
    ticks = "".join(
        f'<line class="grid" x1="{axis.at(t):.2f}%" x2="{axis.at(t):.2f}%" y1="0" y2="4"/>'
        f'<text x="{axis.at(t):.2f}%" y="16" text-anchor="{_anchor(axis.at(t))}">{text(number(_zero(t), 2))}</text>'
        for t in axis.ticks()
    )
    return f'<svg height="18"><line class="grid" x1="0" x2="100%" y1="0" y2="0"/>{ticks}</svg>'


def _anchor(place: float) -> str:
    return "start" if place < 4 else "end" if place > 96 else "middle"


def _zero(value: float) -> float:
    return 0.0 if abs(value) < 1e-12 else value


def means(lines: Sequence[Line], axis: Axis, has_sign: bool, head: str) -> str:
    """A line for each unit: a bar as long as its mean, with the interval over it."""
    body = []
    for line in lines:
        zero, end = axis.at(0.0), axis.at(line.mean)
        shown = (
            f'<svg height="20"><line class="zero" x1="{zero:.2f}%" x2="{zero:.2f}%" y1="0" y2="20"/>'
            f'<rect class="{side(line.mean, has_sign)}" x="{min(zero, end):.2f}%" width="{abs(end - zero):.2f}%" y="4" '
            f'height="12"/>{_interval(line, axis, 10)}</svg>'
        )
        body.append(
            f'<div class="unit"><span class="name" title="{text(line.name)}">{text(line.name)}</span>{shown}'
            f'<span class="num faint tiny">{line.rows:,}</span></div>'
        )
    foot = f'<div class="unit"><span></span>{_axis(axis)}<span class="faint tiny">rows</span></div>'
    return f'<div class="swarm" role="img" aria-label="{text(head)}">{"".join(body)}{foot}</div>'


def histogram(edges: Sequence[float], counts: Sequence[int], head: str, high: int = 72) -> str:
    """Counts between edges that are powers; the first count is what lies below them, the last above."""
    there = [place for place, count in enumerate(counts) if count]
    first, last = max(0, min(there) - 1), min(len(counts) - 1, max(there) + 1)
    shown, most = list(counts[first : last + 1]), max(counts)
    wide = 100 / len(shown)
    bars = "".join(
        f'<rect class="size" x="{place * wide + 0.4:.2f}%" width="{wide - 0.8:.2f}%" y="{high * (1 - n / most):.1f}" '
        f'height="{high * n / most:.1f}"><title>{text(_between(edges, first + place))}: {n:,} rows</title></rect>'
        for place, n in enumerate(shown)
        if n
    )
    marks = "".join(
        f'<text x="{(place - first) * wide:.2f}%" y="{high + 15}" text-anchor="middle">'
        f"{text(_power(edges[place - 1]))}</text>"
        for place in range(first + 1, last + 1)
        if _whole(edges[place - 1])
    )
    return (
        f'<svg class="histogram" height="{high + 18}" role="img" aria-label="{text(head)}">{bars}'
        f'<line class="grid" x1="0" x2="100%" y1="{high}" y2="{high}"/>{marks}</svg>'
    )


def _between(edges: Sequence[float], place: int) -> str:
    if place == 0:
        return f"below {_power(edges[0])}"
    if place >= len(edges):
        return f"above {_power(edges[-1])}"
    return f"{number(edges[place - 1], 2)} to {number(edges[place], 2)}"


def _whole(edge: float) -> bool:
    power = math.log10(edge)
    return abs(power - round(power)) < 1e-6 and round(power) % 2 == 0


_UP = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(edge: float) -> str:
    power = round(math.log10(edge))
    return f"{100 * edge:.3g} %" if power >= -4 else f"10{str(power).translate(_UP)}"
