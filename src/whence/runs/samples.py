"""Rows of a run that a page shows: each by itself, chosen ones, and the values of a few units."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from whence.runs.units import Block, blocks
from whence.views.run_rows import RunRow

if TYPE_CHECKING:
    from whence.runs.opened import Run

Dots = dict[tuple[str, str], list[tuple[float, int]]]  # by class and unit: values, each with its row


def rows(run: Run, unit: str) -> Iterator[RunRow]:
    """Every row of a run, one after the other."""
    for block in blocks(run, unit):
        ends = np.searchsorted(block.owner, np.arange(len(block) + 1))
        for place in range(len(block)):
            yield _row(block, place, slice(ends[place], ends[place + 1]), run.methods)


def _row(block: Block, place: int, own: slice, methods: list[str]) -> RunRow:
    values = {m: block.values[i, own] for i, m in enumerate(methods) if not np.isnan(block.values[i, own]).all()}
    gaps = {m: float(block.gaps[i, place]) for i, m in enumerate(methods) if np.isfinite(block.gaps[i, place])}
    names = None if block.names is None else block.names[own]
    spans = None if block.spans is None else block.spans[own]
    return RunRow(block.about[place], names, spans, block.special[own], values, gaps, block.grid)


def sampled(run: Run, unit: str, wanted: Mapping[str, Collection[str]], most: int) -> Dots:
    """At most `most` values of each wanted unit by the run's method, a uniform sample of its rows (Vitter 1985)."""
    found: Dots = {(target, name): [] for target, names in wanted.items() for name in names}
    seen = dict.fromkeys(found, 0)
    draw = random.Random(0)
    for row in rows(run, unit):
        target = str(row.about["target"])
        if target not in wanted or row.names is None or run.method not in row.values:
            continue
        sums: dict[str, float] = {}
        for name, value, special in zip(row.names, row.values[run.method].tolist(), row.special, strict=True):
            if name in wanted[target] and not special:
                sums[name] = sums.get(name, 0.0) + value
        for name, value in sums.items():
            own, key = found[target, name], (target, name)
            seen[key] += 1
            if len(own) < most:
                own.append((value, int(row.about["row"])))
            elif (place := draw.randrange(seen[key])) < most:
                own[place] = (value, int(row.about["row"]))
    return found
