"""What was found, as a line in the terminal and as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from benchmarks.families.check import METHODS, VERDICTS

Results = Mapping[str, Any]


def word(cell: Mapping[str, Any]) -> str:
    """One cell: its verdict, shortly."""
    verdict, amount = cell["verdict"], cell["amount"]
    if verdict == "clear error" and cell["words"].startswith("NoAttention"):
        return "no attention"
    if verdict == "ok" and cell["compared"]:
        return "**ok**"
    return verdict if amount is None else f"{verdict} {amount:.0e}"


def line(name: str, result: Results, methods: tuple[str, ...], long: bool) -> str:
    cells = result["cells"]
    if not long:
        return f"{name:28}{result['seconds']:5.1f} s  " + " · ".join(word(cells[m]).replace("*", "") for m in methods)
    told = [f"  {m:26}{cells[m]['seconds']:5.1f} s  {word(cells[m]):22}{cells[m]['words']}" for m in methods]
    return "\n".join([f"{name}: {result['seconds']:.1f} s", *told])


def counted(results: Results) -> str:
    count = Counter(cell["verdict"] for result in results.values() for cell in result["cells"].values())
    return ", ".join(f"{verdict} {count[verdict]}" for verdict in VERDICTS if count[verdict])


def page(results: Results) -> str:
    import transformers

    notes: dict[str, int] = {}
    rows = []
    for name, result in results.items():
        shown = [_noted(result["cells"][method], notes) for method in METHODS]
        rows.append(f"| {name} | {' | '.join(shown)} | {result['seconds']:.1f} |")
    head = f"| family | {' | '.join(f'`{m}`' for m in METHODS)} | s |"
    total = sum(result["seconds"] for result in results.values())
    return "\n".join([
        "# Families of models", "",
        f"`make families`: {len(results)} families, nine methods each, in {total / 60:.0f} minutes on one thread "
        f"(torch {torch.__version__.partition('+')[0]}, transformers {transformers.__version__}). Small, with random "
        "weights; two or three rows, padded where there is a mask.", "",
        *LEGEND, "", counted(results) + ".", "",
        head, "|" + "---|" * (len(METHODS) + 2), *rows, "",
        *(f"{number}. {words}" for words, number in notes.items()), "",
    ])  # fmt: skip


LEGEND = (
    "- **ok** (bold): agrees with an independent computation, and each row alone with the row in the batch. "
    "`gradient`: plain autograd. `integrated_gradients`, `deeplift`: the sum against two plain forward passes. "
    "`lrp`: what arrives and what the receipt says was lost is what started. `rollout`, `generic_attention`, "
    "`attcat`: the same from the eager model's own `output_attentions`.",
    "- ok: each row alone agrees with the row in the batch; there is nothing independent to compare with.",
    "- no attention: the model has none, and the method says so. clear error: a `WhenceError`, with its number below.",
    "- gap: the values do not sum to the delta (or relevance is not accounted for), by so much, and a warning says so.",
    "- rows ≠: a row alone differs from the row in the batch, by so much of the row's largest value.",
    "- disagreement: with the independent computation, by so much; raw traceback: an unintended error; "
    "no end: a crash, or too slow.",
)


def _noted(cell: Mapping[str, Any], notes: dict[str, int]) -> str:
    shown = word(cell)
    if cell["verdict"] in ("ok",) or shown == "no attention":
        return shown
    words = " ".join(cell["words"].split()).replace("|", "\\|")
    if not words:
        return shown
    return f"{shown} ({notes.setdefault(words, len(notes) + 1)})"
