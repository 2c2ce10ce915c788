"""A recommendation to look at."""

from __future__ import annotations

import textwrap

from whence.evaluation.recommend import FEW, GUARANTEE, Recommendation
from whence.util.terminal import clean
from whence.views import scoreboard
from whence.views.components import text

_HEADS = ("", "method", "faithfulness", "95 % interval", "s / row")


def advice(r: Recommendation) -> str:
    """What to do, in a sentence or two."""
    here = "On this row" if r.rows == 1 else f"On these {r.rows} rows"
    if r.best is None:
        more = f" Give at least {FEW} different rows." if r.rows < FEW else ""
        return f"{here} no method can be told apart from the random control: there is nothing to recommend.{more}"
    tied = [c.method for c in r.ranking if c.tied and c.beats_random]
    if len(tied) == 1:
        return f"Take {r.best}: {here.lower()} it is the most faithful, beyond the noise."
    named = ", ".join(tied[:_NAMED]) + (f" and {len(tied) - _NAMED} more" if tied[_NAMED:] else "")
    return (
        f"Take {r.best}: {named} cannot be told apart {here.lower()} (their differences are within the noise), "
        "and it is the cheapest of them."
    )


_NAMED, _HIGH, _WIDE = 4, 20, 100  # methods in a sentence, lines, and letters in a line: all fits on a screen


def _lines(r: Recommendation) -> list[tuple[str, ...]]:
    return [
        (("≈" if c.tied else "") + ("" if c.beats_random else "×"), c.method, f"{c.faithfulness:+.2f}",
         f"{c.low:+.2f} … {c.high:+.2f}" if c.low == c.low else "–", f"{c.seconds:.3f}")
        for c in r.ranking
    ]  # fmt: skip


_KEY = (
    "Faithfulness is the mean over the metrics, in standard deviations above the random control. ≈ may be as good as "
    "the best, × is not shown to be better than random."
)


def told(r: Recommendation) -> str:
    """For the terminal, on one screen: the advice and the beginning of the ranking; the rest is named."""
    ranked = [line if len(line[1]) <= 40 else (line[0], f"{line[1][:39]}…", *line[2:]) for line in _lines(r)]
    notes = [f"{_KEY} {GUARANTEE}", _left_out(r), "The table: .board"]
    below = [line for note in notes if note for line in textwrap.wrap(clean(note), _WIDE)]
    above = textwrap.wrap(clean(advice(r)), _WIDE)[:4]
    room = _HIGH - len(above) - len(below) - 3  # the head of the table and two empty lines
    shown = ranked if len(ranked) <= room else ranked[: room - 1]
    lines = [_HEADS, *shown]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADS))]
    table = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    more = [f"… and {len(ranked) - len(shown)} more in .ranking"] if ranked[len(shown) :] else []
    return "\n".join([*above, "", *map(clean, table), *more, "", *below])


def _left_out(r: Recommendation) -> str:
    """How many methods could not be tried, and some of their names; why is in `.left_out`."""
    names = list(r.left_out)
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
    return f"Not applicable here: {', '.join(names[:_NAMED])}{more} (why: .left_out)."


def section(r: Recommendation) -> str:
    """As a section of a page."""
    head = "".join(f"<th>{text(name)}</th>" for name in _HEADS)
    body = "".join(
        "<tr>" + "".join(f'<td style="white-space:nowrap">{text(cell)}</td>' for cell in line) + "</tr>"
        for line in _lines(r)
    )
    left = "".join(f"<li>{text(name)}: {text(why)}</li>" for name, why in r.left_out.items())
    beside = f"<details><summary>{len(r.left_out)} methods were left out</summary><ul>{left}</ul></details>"
    return (
        f'<section><h2>Which method to trust here</h2><p>{text(advice(r))}</p><div class="wide"><table class="plain">'
        f'<tr>{head}</tr>{body}</table></div><p class="soft">{text(f"{_KEY} {GUARANTEE}")}</p>'
        f"{beside if left else ''}</section>"
        f"{scoreboard.section(r.board)}"
    )
