"""Rows of a run on a page: the text with its words coloured, features as bars, maps as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.util.terminal import clean
from whence.views.components import number, side, signed, strength, text, tops
from whence.views.maps import percent

_MUCH, _SOME = 0.3, 0.05  # of the scale: from here a line tells for from against; below this there is no colour
_LETTERS = 160  # of a text, in a list of rows
_FEATURES = 8
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class RunRow:
    """One row of a run: what is known of it, its units, and what each method says of them."""

    about: Mapping[str, Any]
    names: Sequence[str] | None  # None for maps
    spans: Array | None  # (units, 3): start, end, and which text
    special: Array
    values: Mapping[str, Array]  # by method; missing where it has no answer
    gaps: Mapping[str, float]
    grid: tuple[int, int] | None = None

    @property
    def texts(self) -> list[str]:
        return [one for one in (self.about["text"], self.about["second"]) if one is not None]


def drawn(row: RunRow, values: Array, limit: float, has_sign: bool, shares: bool = False) -> str:
    """What one method says of a row, on the scale that the legend tells; in percent where values are shares."""
    if row.grid is not None:
        return _picture(values.reshape(row.grid), limit, has_sign)
    if row.spans is not None and row.texts:
        return _reading(row, values, limit, has_sign, shares)
    names = row.names or []
    order = np.argsort(-np.abs(np.nan_to_num(values)), kind="stable")[:_FEATURES]
    return tops([(names[i], _said(values[i], has_sign, shares)) for i in order if values[i]])


def _reading(row: RunRow, values: Array, limit: float, has_sign: bool, shares: bool) -> str:
    assert row.spans is not None
    found = []
    for part, given in enumerate(row.texts):
        pieces, last = [], 0
        for unit in np.flatnonzero((row.spans[:, 2] == part) & ~row.special):
            start, end = max(int(row.spans[unit, 0]), last), int(row.spans[unit, 1])
            if end <= start:
                continue
            pieces += [plain(given[last:start]), _mark(given[start:end], values[unit], limit, has_sign, shares)]
            last = end
        pieces.append(plain(given[last:]))
        found.append(f'<p class="reading small" dir="auto">{"".join(pieces)}</p>')
    return "".join(found)


def _mark(written: str, value: float, limit: float, has_sign: bool, shares: bool) -> str:
    if not abs(value) >= _SOME * limit:
        return plain(written)
    much = " much" if abs(value) > _MUCH * limit else ""
    return (
        f'<span class="w {side(value, has_sign)}{much}" style="--a:{strength(value, limit)}" '
        f'data-n="{text(_said(value, has_sign, shares))}">{plain(written)}</span>'
    )


def _said(value: float, has_sign: bool, shares: bool) -> str:
    if shares:
        return signed(float(value), has_sign)
    return ("+" if has_sign and value > 0 else "") + number(float(value))


def _picture(grid: Array, limit: float, has_sign: bool) -> str:
    import torch

    from whence.views.images import palette_png

    address = palette_png(torch.from_numpy(np.ascontiguousarray(grid / (limit or 1.0))), not has_sign)
    height, width = grid.shape
    return f'<img class="map" alt="map of {width} × {height}" width="{min(160, 4 * width)}" src="{address}">'


def plain(written: str) -> str:
    """Escaped; line breaks stay, other control characters are spelled out."""
    return "\n".join(text(clean(line)) for line in written.split("\n"))


def excerpt(about: Mapping[str, Any]) -> str:
    """A row in a line: the beginning of its text, or its image or id."""
    given = about.get("text") or about.get("image") or about.get("id") or ""
    line = " ".join(str(given).split())
    return text(line if len(line) <= _LETTERS else f"{line[:_LETTERS]} …")


def facts(about: Mapping[str, Any]) -> str:
    """The prediction, its probability and the label."""
    said = []
    if about.get("prediction") is not None:
        likely = "" if about.get("probability") is None else f" {percent(about['probability'])}"
        said.append(f"{about['prediction']}{likely}")
    if about.get("label") is not None:
        said.append(f"label {about['label']}")
    if about.get("id") is not None:
        said.append(str(about["id"]))
    return text(" · ".join(said))
