"""Tables as plain text, as wide as the terminal; without torch, so that lists come at once."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from whence.util.terminal import clean


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns as wide as their widest cell."""
    cells = [[clean(str(cell)) for cell in row] for row in [heads, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def folded(heads: Sequence[str], rows: Sequence[Sequence[str]], soft: int = 0, most: int | None = None) -> str:
    """A table as wide as the terminal, or `most`: the `soft` column wraps, and what has no room goes on below."""
    width = min((w for w in (columns(), most) if w is not None), default=None)
    widths = [max(len(clean(str(row[i]))) for row in [heads, *rows]) for i in range(len(heads))]
    too_wide = 0 if width is None else sum(widths) + 2 * (len(widths) - 1) - width
    if width is None or too_wide <= 0:
        return table(heads, rows)
    below = max(NARROW, width - widths[0] - 2)  # of a column that stands beside the first alone
    beside = widths[soft] - too_wide
    limits = [w if i == 0 else min(w, below) for i, w in enumerate(widths)]
    limits[soft] = beside if soft and beside >= NARROW else limits[soft]
    lines = [line for row in rows for line in _wrapped(row, limits)]
    parts: list[list[int]] = []
    for i in range(1, len(heads)):
        used = sum(limits[j] + 2 for j in parts[-1]) if parts else width
        parts = [*parts[:-1], [*parts[-1], i]] if parts and used + limits[i] <= width else [*parts, [0, i]]
    return "\n\n".join(
        table([heads[i] for i in part], [[line[i] for i in part] for line in lines if any(line[i] for i in part)])
        for part in parts
    )


NARROW = 20  # letters, of a column that wraps


def columns() -> int | None:
    """Of the terminal; None where there is none to fit into, such as in a pipe."""
    known = os.environ.get("COLUMNS") or (sys.stdout is not None and sys.stdout.isatty())
    return shutil.get_terminal_size().columns if known else None


def _wrapped(row: Sequence[str], limits: Sequence[int]) -> list[tuple[str, ...]]:
    """A row of cells as the lines that it takes."""
    cells = [textwrap.wrap(clean(str(cell)), limit) for cell, limit in zip(row, limits, strict=True)]
    return list(zip_longest(*cells, fillvalue=""))


def cards(told: Sequence[Mapping[str, Any]]) -> str:
    """The zoo's models, one line each."""
    rows = []
    for card in told:
        first = next((f"{score} {_measured(found)}" for score, found in card["measured"].items()), "not here")
        rows.append([f"zoo:{card['name']}", card["what"], first, _size(card["bytes"])])
    return folded(["load", "what it does", "measured", "size"], rows, soft=1)


def card(told: Mapping[str, Any]) -> str:
    """All that is known of one of the zoo's models."""
    width = min(100, shutil.get_terminal_size().columns)
    lines = [f"zoo:{told['name']}, {_size(told['bytes'])}, {told['parameters']:,} parameters"]
    for name in ("what", "architecture", "data", "licence", "limits", "retrain"):
        lines += textwrap.wrap(f"{name}: {told[name]}", width, subsequent_indent="  ")
    for score, found in told["measured"].items():
        seeds = f"{len(found['seeds'])} seed{'s' * (len(found['seeds']) > 1)}"
        lines.append(f"{score}: {_measured(found)} ({seeds}), this one {found['shipped']:.4g}")
    if any(found["spread"] is not None for found in told["measured"].values()):
        lines.append("(± is two standard deviations over the seeds)")
    return "\n".join(lines)


def _measured(found: Mapping[str, Any]) -> str:
    spread = "" if found["spread"] is None else f" ± {found['spread']:.2g}"
    return f"{found['mean']:.4g}{spread}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
