"""What double precision changes: methods that divide by sums which nearly cancel, on the image models of the league."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor

import whence
from reproductions.report import Report

FAR = 0.1  # of the values' magnitudes
HEADS = ("model", "method", "median change", "largest", f"changed by more than {FAR:.0%}", "warned about")


def told(report: Report, models: dict[str, tuple[Any, list[dict[str, Any]]]], methods: dict[str, Any]) -> None:
    """For each model and method, how far the values of single precision are from those of double precision."""
    report.heading("The LRP family: what is rounding")
    lines = []
    for name, (model, rows) in models.items():
        pixels = model.processor([row["image"] for row in rows])["pixel_values"]
        for method, how in methods.items():
            measure = partial(changed, model.model, pixels, {"method": method, **how})
            changes, warned = report.once(f"rounding-{name}-{method}", measure, model, pixels, how)
            far = sum(change > FAR for change in changes)
            median, largest = torch.tensor(changes).median(), max(changes)
            if method == "attnlrp":
                report.must(f"rounding decides nothing of what attnlrp says of {name}", largest < FAR)
            lines.append([name, method, f"{median:.1%}", f"{largest:.1%}", f"{far} of {len(rows)}", warned])
    report.table("rounding", HEADS, lines, "Σ|φ − φ64| / Σ|φ64| of each row, where φ is computed in single precision, "
                 "as everywhere else here, and φ64 by the same model in double precision; and how many rows Whence "
                 "warns about, which sees φ only.")  # fmt: skip


def changed(model: Any, pixels: Tensor, how: dict[str, Any]) -> tuple[list[float], int]:
    """By how much double precision changes each row's values, and how many rows are warned about."""
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        said = model(pixels)
    target = (said if isinstance(said, Tensor) else said.logits).argmax(1)
    a = whence.explain(model, pixels, target=target, batch_size=8, **how)
    b = whence.explain(exact, pixels.double(), target=target, batch_size=8, **how)
    apart = (a.values.double() - b.values).flatten(1).abs().sum(1) / b.values.flatten(1).abs().sum(1)
    rows = {row for one in a.receipt.get("warned", ()) if "rounding" in one["text"] for row in one["rows"] or ()}
    return apart.tolist(), len(rows)
