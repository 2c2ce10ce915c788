"""What the pages of methods and axioms tell: `python -m benchmarks.pages` writes docs/ideas/measured.json.

Costs are those of the zoo's examples: forward and backward passes that a row took part in, which are counted and do not
depend on the machine. Properties are measured on the toy functions, by `textbook_table`, or on a model of the zoo where
those are too small. If methods are named, only these are measured again, and the others stay as they are.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import whence
from whence.errors import WhenceError, WhenceWarning
from whence.evaluation.axioms import textbook_table

PLACE = Path(__file__).resolve().parents[1] / "docs" / "ideas" / "measured.json"
MODELS = ("sentiment", "fashion-cnn", "fashion-vit")
ROWS = 4


def costs(names: list[str]) -> dict[str, dict[str, list[float]]]:
    """By method and model: forward and backward passes."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for model in MODELS:
        loaded = whence.load(f"zoo:{model}")
        rows = list(loaded.examples)[:ROWS]
        fits = [name for name in names if _fits(loaded, rows[0], name)]
        if not fits:
            continue
        board = whence.evaluate(loaded, rows, methods=fits, metrics=["sparseness"], progress=False)
        for name in fits:
            found[name][model] = list(board.passes(name))
    return found


def _fits(model: Any, row: Any, name: str) -> bool:
    try:
        whence.explain(model, [row, row], method=name, progress=False)
    except WhenceError:
        return False
    return True


def properties(names: list[str]) -> dict[str, dict[str, dict[str, Any]]]:
    """By method and property: the verdict on the toys, the number, where, and counter-examples beside them."""
    table = textbook_table(names)
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in names}
    for (method, name), entry in table.entries.items():
        number = None if entry.number is None else float(f"{entry.number:.2g}")
        found[method][name] = {"verdict": entry.measured, "number": number, "where": entry.where,
                               "against": list(entry.against)}  # fmt: skip
    return found


def on_models(names: list[str], measured: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same on a model of the zoo, for methods that toys are too small for: by method, model and property."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        facts = whence.methods[name].facts
        if facts.get("permutes") or any(entry["verdict"] != "–" for entry in measured[name].values()):
            continue
        model = "sentiment" if facts.get("needs") == "attention" else "fashion-cnn"
        loaded = whence.load(f"zoo:{model}")
        rows = list(loaded.examples)[:2]
        table = whence.axioms(loaded, rows, methods=[name], rows=2, features=4, progress=False)
        found[name] = {f"zoo:{model}": {
            prop: {"verdict": cell.verdict, "number": None if cell.number is None else float(f"{cell.number:.2g}")}
            for prop, cell in table[name].items()}}  # fmt: skip
        print(name, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="methods; all, if none is named")
    names = parser.parse_args().names or list(whence.methods)
    warnings.simplefilter("ignore", WhenceWarning)
    kept = json.loads(PLACE.read_text(encoding="utf-8")) if PLACE.exists() else {}
    known = {**kept.get("methods", {})}
    cost, measured = costs(names), properties(names)
    models = on_models(names, measured)
    for name in names:
        known[name] = {"cost": cost[name], "properties": measured[name]}
        known[name] |= {"models": models[name]} if name in models else {}
    ordered = {name: known[name] for name in whence.methods if name in known}
    PLACE.write_text(json.dumps({"rows": ROWS, "methods": ordered}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
