"""Units of the two texts of an encoder and a decoder: what is read by sentence, what was written as one or by its own.

`units="sentences"` is about the text that the encoder reads; the decoder's tokens are the unit `[answer]`. By name of
the input, both can be asked for: `units={"input_ids": "sentences", "decoder_input_ids": "words"}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.results.text_units import ANSWER, REST, TEMPLATE, WHOLE, Part, is_by_side, numbers_of, parts_of
from whence.util.keys import SOURCE, WRITTEN

if TYPE_CHECKING:
    from whence.results.attribution import Attribution

START = "[start]"  # what a decoder begins with
Side = Mapping[str, Any]  # the text, and of each token: where it stands in it, and whether it is special


def by_side(units: Any) -> dict[str, Any]:
    """What was asked for of each side; None: of the written one, nothing of its own."""
    if is_by_side(units):
        return {SOURCE: units.get(SOURCE), WRITTEN: units.get(WRITTEN)}
    return {SOURCE: units, WRITTEN: None}


def numbers(sides: Mapping[str, Side], units: Any) -> dict[str, Tensor]:
    """The number of each token's unit by input, (1, tokens), below 0 for what is never removed; no two share one."""
    found, first = {}, 0
    for name, own in by_side(units).items():
        parts, numbered = _numbered(sides[name], own, name)
        found[name] = torch.tensor([[n + first if n >= 0 else n for n in numbered]], device="cpu")
        first += len(parts)
    return found


def _numbered(side: Side, units: Any, name: str) -> tuple[list[Part], list[int]]:
    if units is None and name == WRITTEN:
        return [], [-2] * len(side["spans"])
    if units is None:
        return [], [-1 if special else -3 for special in side["special"]]
    parts = parts_of(side["text"], units, None)
    return parts, numbers_of(parts, side["spans"], side["special"], 0, isinstance(units, Mapping))


def merged(a: Attribution, units: Any, *, absolute: bool = False, removed: bool = False) -> Attribution:
    """One value per unit of each input, the sum of its tokens' (or of their magnitudes)."""
    assert a.sides is not None
    asked, rows = by_side(units), [a[row] for row in range(len(a))]
    values: dict[str, Tensor] = {}
    shown: dict[str, list[list[str]]] = {}
    real: dict[str, Tensor] = {}
    for name in a.by_name():
        own = [_merged_row(row, name, asked[name], absolute, removed) for row in rows]
        length = max(len(names) for names, _ in own)
        values[name] = own[0][1].new_zeros(*a.by_name()[name].shape[: 1 + a.several], length)
        for i, (names, columns) in enumerate(own):
            values[name][i, ..., : len(names)] = columns
        shown[name] = [[*names, *["[PAD]"] * (length - len(names))] for names, _ in own]
        real[name] = torch.tensor([[i < len(names) for i in range(length)] for names, _ in own], device="cpu")
    named = {name: own if isinstance(own, str | None) else sorted(map(str, own)) for name, own in asked.items()}
    units_shown: Any = shown
    return replace(
        a, values=values, raw=values, real=real, raising=None, sides=None, units=units_shown,
        channel_axis=dict.fromkeys(values), params={**a.params, "units": named, "absolute": absolute},
    )  # fmt: skip


def _merged_row(a: Attribution, name: str, units: Any, absolute: bool, removed: bool) -> tuple[list[str], Tensor]:
    """The units of one row and input, and their values ([k,] units)."""
    assert a.sides is not None
    parts, numbered = _numbered(a.sides[0][name], units, name)
    others = [(-1, START if name == WRITTEN else TEMPLATE), (-2, ANSWER), (-3, REST)]
    shown = [*((n, part) for n, (part, _, _) in enumerate(parts)), *((n, part) for n, part in others if n in numbered)]
    whole, columns = a.by_name()[name][0], []
    for number, _ in shown:
        tokens = [i for i, n in enumerate(numbered) if n == number]
        own = whole[..., tokens].abs() if absolute else whole[..., tokens]
        columns.append(own.mean(-1) if removed and a.method in WHOLE and tokens else own.sum(-1))
    return [part for _, part in shown], torch.stack(columns, -1)
