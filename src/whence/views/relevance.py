"""A picture of a relevance receipt: from the score to the input, what was carried and what had been lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whence.errors import InputError
from whence.views.plot import pyplot
from whence.views.terminal import cuts

_COLOURS = ["#d1495b", "#edae49", "#8d96a3", "#66a182", "#7b5ea7", "#c08552"]


def draw(receipt: Mapping[str, Any], ax: Any = None, row: int = 0, target: int = 0) -> Any:
    """Bars by layer, the score on the left: carried, and above it losses by kind. Gives the axes."""
    if "relevance" not in receipt:
        raise InputError("This receipt has no relevance to draw.\n  Explain with lrp, attnlrp or another LRP method.")
    plt = pyplot()
    several = isinstance(receipt["relevance"][row], list)
    line = receipt["relevance"][row][target] if several else receipt["relevance"][row]
    ends = [{"module": "score", "carried": line["start"], "lost": {}}]
    stages = [*ends, *cuts(line), {"module": "input", "carried": line["end"], "lost": line["lost"]}]
    if ax is None:
        _, ax = plt.subplots(figsize=(min(14.0, max(4.0, 0.5 * len(stages) + 2)), 3.4), layout="constrained")
    places = range(len(stages))
    ax.bar(places, [s["carried"] for s in stages], color="#30638e", width=0.7, label="carried")
    up = [max(s["carried"], 0.0) for s in stages]
    down = [min(s["carried"], 0.0) for s in stages]
    kinds = [kind for kind, amount in line["lost"].items() if abs(amount) > 1e-4 * max(1.0, abs(line["start"]))]
    for kind, colour in zip(kinds, _COLOURS * 3, strict=False):
        amounts = [s["lost"].get(kind, 0.0) for s in stages]
        bottoms = [u if a >= 0 else d for a, u, d in zip(amounts, up, down, strict=True)]
        ax.bar(places, amounts, bottom=bottoms, color=colour, width=0.7, label=f"lost: {kind}")
        up = [u + max(a, 0.0) for u, a in zip(up, amounts, strict=True)]
        down = [d + min(a, 0.0) for d, a in zip(down, amounts, strict=True)]
    ax.axhline(0, color="black", linewidth=0.6)
    ax.set_xticks(list(places), [s["module"] or "model" for s in stages], rotation=60, ha="right", fontsize=7)
    ax.set_ylabel("relevance")
    ax.set_title(f"Where row {row}'s relevance went" + (f", target {target}" if several else ""), fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax
