"""Plain text: a table for anything, bars for units."""

from __future__ import annotations

import math
import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whence.results.attribution import Attribution
from whence.util.terminal import Painted, clean, joined, safe
from whence.views import language
from whence.views.colours import share, solid
from whence.views.maps import (
    Map,
    counted,
    has_tokens,
    maps,
    notices,
    percent,
    probability_of,
    space_of,
    spelled,
    start_of,
)
from whence.views.tables import NARROW, columns, folded
from whence.views.tables import table as table

if TYPE_CHECKING:
    from whence.results.comparison import Comparison

_BAR, _ROWS, _UNITS, _SAID = 12, 4, 10, 5


def coloured(stream: Any = None) -> bool:
    """Whether to write in colour: to a terminal that shows it, unless NO_COLOR says no."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"


def describe(a: Attribution, colour: bool = False) -> str:
    """What was explained, and each row's strongest units; in colour, the text itself."""
    lines = [clean(repr(a)), *_noticed(notices(a))]
    if a.receipt.get("method_chosen"):
        lines.append(clean(f"(no method was named, so Whence chose {a.receipt['method_chosen']})"))
    if language.is_answer(a, []):
        cited = [line for citation in a.cite(_SAID) for line in str(citation).splitlines()]
        return joined([*lines, *map(clean, cited), *_warnings(a.receipt)])
    found = list(maps(a, _ROWS))
    last = None
    for part in found:
        head = (part.row, None if a.several else part.target)
        if head != last:
            told = "" if a.several else f": target {clean(spelled(part.target))}, {part.scored}{start_of(a, part.row)}"
            lines.append(f"row {part.row}{told}")
            last = head
        if colour and has_tokens(a) and part.units is not None and part.values.dim() == 1 and not a.several:
            lines += _washed(part)
        if a.several:
            lines.append(_line(part))
        else:
            lines += [f"  {clean(part.title)}:"] * bool(part.title) + _bars(part.strongest(_UNITS), part.signed)
            lines += [f"  … and {part.count - _UNITS} more"] * (part.count > _UNITS)
    if len(a) > _ROWS:
        lines.append(f"… and {counted(len(a) - _ROWS, 'more row')}")
    return joined([*lines, *_warnings(a.receipt)])


def _noticed(messages: Sequence[str]) -> list[str]:
    """Warnings, each in lines as wide as the terminal."""
    width, found = columns(), []
    for message in messages:
        wrapped = textwrap.wrap(clean(message), max(NARROW, width - 2)) if width else [clean(message)]
        found += [("  " if i else "! ") + line for i, line in enumerate(wrapped)]
    return found


def compared(c: Comparison) -> str:
    """One line per method, and how far the methods agree."""
    common, chance, rank = c.agreement(), c.agreement("chance"), c.agreement("rank")
    names = list(c)
    first = next(iter(c.values()))
    p = probability_of(first, 0)
    beside = f" ({percent(p)})" if p is not None and space_of(first) != "probability" else ""
    heads = ["method", f"{space_of(first)} of row 0", "gap", "passes", *[f"vs {name}" for name in names]]
    rows = []
    for i, (name, a) in enumerate(c.items()):
        gap = "–" if a.gap is None else f"{float(a.gap.max()):.2g}"
        counts = [a.receipt.get(f"{way}_passes") for way in ("forward", "backward")]  # none of a row of a run
        passes = "–" if None in counts else "{}+{}".format(*counts)
        score = f"{float(a.output_value.flatten()[0]):.4g}{beside}"
        each = zip(common[i].tolist(), chance[i].tolist(), rank[i].tolist(), strict=True)
        rows.append([name, score, gap, passes, *[_agreed(*cell) for cell in each]])
    said = (
        "(vs: the share that the two methods have in common, 1 − ½ Σ |a − b| of values over their sum; in brackets "
        "what chance has in common with them, and the rank correlation; means over rows)"
    )
    warned = [line for name, a in c.items() for line in _noticed([f"{name}: {told}" for told in notices(a)])]
    return "\n".join([*warned, folded(heads, rows), *textwrap.wrap(said, columns() or len(said))])


def _agreed(common: float, chance: float, rank: float) -> str:
    """What two methods have in common, beside chance, and their rank correlation."""
    told = ["–" if x != x else f"{x:.2f}" for x in (common, chance, rank)]
    return "–" if common != common and rank != rank else f"{told[0]} ({told[1]}; {told[2]})"


def relevance(receipt: Mapping[str, Any], rows: int = _ROWS) -> str:
    """Where each row's relevance went: the boundaries through which all of it passes, and the losses by kind."""
    lines = []
    for number, line in enumerate(receipt["relevance"][:rows]):
        for k, one in enumerate(line if isinstance(line, list) else [line]):
            title = f"row {number}" + (f", target {k}" if isinstance(line, list) else "")
            lost = ", ".join(f"{kind} {amount:+.3g}" for kind, amount in one["lost"].items() if abs(amount) > 1e-6)
            lines.append(
                f"{title}: {one['start']:.4g} at the score, {one['end']:.4g} at the input; lost: {lost or '–'}"
            )
            lines += [f"  {layer['module'] or 'the model'}: {layer['carried']:+.4f}" for layer in cuts(one)]
    return safe("\n".join(lines))


def cuts(line: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The boundaries past which nothing goes, from the score to the input: members of module lists, if some are."""
    whole = [layer for layer in reversed(line["layers"]) if layer["module"] and layer["cut"]]
    members = [layer for layer in whole if layer["module"].rpartition(".")[2].isdigit()]
    return members if len(members) > 1 else whole


def _bars(best: Sequence[tuple[Any, float]], signed: bool = True) -> list[str]:
    largest = max((abs(value) for _, value in best if math.isfinite(value)), default=0) or 1
    labels = [clean(spelled(str(unit))) for unit, _ in best]
    width = min(max(map(len, labels), default=0), max(10, shutil.get_terminal_size().columns - 40))
    lines, sign = [], "+" if signed else ""
    for label, (_, value) in zip(labels, best, strict=True):
        bar = "█" * (round(_BAR * abs(value) / largest) if math.isfinite(value) else 0)
        left, right = (bar.rjust(_BAR), " " * _BAR) if value < 0 else (" " * _BAR, bar.ljust(_BAR))
        lines.append(f"  {label[:width]:<{width}} {left}│{right} {value:{sign}.4g}")
    return lines


def _washed(part: Map) -> list[Painted]:
    """The units in a row, behind each the colour of its value, in lines as wide as the terminal."""
    width = shutil.get_terminal_size().columns - 2
    there = [True] * len(part.values) if part.real is None else part.real.tolist()
    values = part.values.tolist()
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    lines: list[Painted] = []
    line, used = "", 0
    for unit, value, real in zip(part.units or [], values, there, strict=True):
        if not real:
            continue
        joined = unit.startswith("##")
        name = clean(spelled(unit).removeprefix("##"))
        space = "" if joined or not line else " "
        if used + len(space) + len(name) > width and line:
            lines, line, used, space = [*lines, Painted("  " + line)], "", 0, ""
        line += space + _on(name, solid(share(value, largest), not part.signed))
        used += len(space) + len(name)
    return [*lines, *[Painted("  " + line)] * bool(line)]


def _on(name: str, colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    ink = 30 if red + 2 * green + blue > 460 else 97
    return f"\x1b[48;2;{red};{green};{blue}m\x1b[{ink}m{name}\x1b[0m"


def _line(part: Map) -> str:
    """One of several targets: what speaks most for and against it."""
    best = ", ".join(f"{clean(spelled(str(unit)))} {value:+.3g}" for unit, value in part.strongest(_SAID))
    score = f"{part.score:.3g}" + (f", {percent(part.probability)}" if part.probability is not None else "")
    return f"  {clean(spelled(part.target))} ({score}) ← {clean(part.title)}{': ' * bool(part.title)}{best}"


def _warnings(receipt: Mapping[str, Any]) -> list[str]:
    lines = []
    if receipt.get("unruled"):
        ops = sorted({item["op"] for item in receipt["unruled"]})
        lines.append(f"no rule, plain derivative: {', '.join(ops)}")
    if receipt.get("unseen"):
        nodes = sorted({item["node"] for item in receipt["unseen"]})
        lines.append(f"not seen by the engine: {', '.join(nodes)}")
    return lines
