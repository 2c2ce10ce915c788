"""A recommendation to look at."""

from __future__ import annotations

from whence.evaluation.recommend import FEW, Recommendation
from whence.util.terminal import clean
from whence.views import scoreboard
from whence.views.rows_html import text

_HEADS = ("", "method", "faithfulness", "95 % interval", "s / row")


def advice(r: Recommendation) -> str:
    """What to do, in a sentence or two."""
    count = r.board.settings["rows"]
    if r.best is None:
        more = f" Give at least {FEW}." if count < FEW else ""
        return (
            f"On these {count} rows no method can be told from the random control: there is nothing to recommend.{more}"
        )
    tied = [c.method for c in r.ranking if c.tied and c.beats_random]
    if len(tied) == 1:
        return f"Take {r.best}: on these {count} rows it is the most faithful, beyond the noise."
    return (
        f"Take {r.best}: {', '.join(tied)} cannot be told apart on these {count} rows (their differences are within "
        "the noise), and it is the cheapest of them."
    )


def _lines(r: Recommendation) -> list[tuple[str, ...]]:
    return [
        (("≈" if c.tied else "") + ("" if c.beats_random else "×"), c.method, f"{c.faithfulness:+.2f}",
         f"{c.low:+.2f} … {c.high:+.2f}", f"{c.seconds:.3f}")
        for c in r.ranking
    ]  # fmt: skip


_KEY = (
    "Faithfulness is the mean over the metrics, in standard deviations above the random control. ≈ cannot be told from "
    "the best, × not from random."
)


def told(r: Recommendation) -> str:
    """For the terminal: the advice, the ranking, the table."""
    lines = [_HEADS, *_lines(r)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADS))]
    ranked = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    left = [f"{name}: {why}" for name, why in r.left_out.items()]
    left = ["", f"{len(left)} methods were left out:", *(f"  {line}" for line in left)] if left else []
    return "\n".join([*map(clean, [advice(r), "", *ranked, "", _KEY, *left]), "", str(r.board)])


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
        f'<tr>{head}</tr>{body}</table></div><p class="soft">{text(_KEY)}</p>{beside if left else ""}</section>'
        f"{scoreboard.section(r.board)}"
    )
