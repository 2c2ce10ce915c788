"""Several explanations of the same rows, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from os import PathLike
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from whence.methods import methods
from whence.results.attribution import Attribution
from whence.util.checks import not_allowed
from whence.util.files import Place, page_written
from whence.util.stats import centred_ranks, correlation
from whence.util.terminal import clean, say

if TYPE_CHECKING:
    from whence.evaluation.deletion_check import DeletionCheck


@dataclass(frozen=True, eq=False)
class Comparison(Mapping[str, Attribution]):
    """Attributions by method, and for each of the first rows what the model says of them, where that was asked."""

    attributions: Mapping[str, Attribution]
    checks: Sequence[DeletionCheck] | None = None

    def __getitem__(self, method: str) -> Attribution:
        """By the method's name as it stands here, or an alias of it."""
        if method not in self.attributions and method in methods:
            method = methods.label(method)
        return self.attributions[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self.attributions)

    def __len__(self) -> int:
        return len(self.attributions)

    def agreement(self, kind: Literal["common", "chance", "rank"] = "common") -> Tensor:
        """The share that each pair of methods has in common, 1 − ½ Σ |a − b|, of a row, averaged over rows.

        a and b are the two methods' values over the sum of their magnitudes, signed where both methods are, else
        magnitudes. "chance" is the same with one method's values dealt to the units at random. "rank" is the rank
        correlation of the values, in which units count that neither method cares about. All are NaN for methods with
        other units than each other's, such as pixels and patches; rows that are 0 everywhere (for ranks, constant) take
        no part. Special tokens take part here, and not on the page of a comparison.
        """
        if kind not in ("common", "chance", "rank"):
            raise not_allowed("kind", kind, '"common", "chance" or "rank"')
        names = list(self.attributions)
        found = torch.full((len(names), len(names)), float("nan"), dtype=torch.float64, device="cpu")
        rows = [_ranks(a) if kind == "rank" else _flat(a) for a in self.attributions.values()]
        sign = [has_sign(a) for a in self.attributions.values()]
        others = [_dealt(values) for values in rows] if kind == "chance" else [[values] for values in rows]
        for i, j in combinations_with_replacement(range(len(names)), 2):
            if rows[i].shape == rows[j].shape and kind == "rank":
                found[i, j] = found[j, i] = correlation(rows[i], rows[j]).nanmean()
            elif rows[i].shape == rows[j].shape:
                signed = sign[i] and sign[j]
                found[i, j] = found[j, i] = torch.stack([_common(rows[i], b, signed) for b in others[j]]).mean()
        return found

    def show(self) -> None:
        """Print the comparison."""
        say(self)

    def __str__(self) -> str:
        from whence.views.terminal import compared

        return compared(self)

    def __repr__(self) -> str:
        return clean(f"Comparison({', '.join(self.attributions)})")

    def to_html(self, path: Place = None, *, title: str = "Whence: methods compared") -> str:
        """A self-contained page, a report for each row; written to a file, if there is a path."""
        from whence.views.comparison import page_of

        return page_written(page_of(self, title), path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what the name's ending says: html, png, svg, pdf, json or csv."""
        from whence.views.export import write

        write(self, path)

    def _repr_html_(self) -> str:
        from whence.views.comparison import cell_of

        return cell_of(self)


def has_sign(a: Attribution) -> bool:
    """Whether values speak for and against: those of attention and of feature maps do only if some are below 0."""
    if not a.signed():
        return False
    reads = a.method in methods and methods[a.method].facts.get("needs") in ("attention", "maps")
    return not reads or any(bool((part < 0).any()) for part in a.by_name().values())


def _flat(a: Attribution) -> Tensor:
    """Each row's values (rows, units), input by input; padding is NaN."""
    rows = []
    for row in range(len(a)):
        parts = []
        for values, real in zip(a.by_name().values(), a.by_name("real").values(), strict=True):
            flat = values[row].flatten().double().cpu()
            if real is not None and real[row].numel() == flat.numel():
                flat = torch.where(real[row].flatten().cpu(), flat, torch.full_like(flat, float("nan")))
            parts.append(flat)
        rows.append(torch.cat(parts))
    return torch.stack(rows)


def _shares(values: Tensor, signed: bool) -> Tensor:
    """Values over the sum of their magnitudes, row by row; padding is 0, and rows without a value are NaN."""
    known = values.nan_to_num(0.0)
    known = known if signed else known.abs()
    return known / known.abs().sum(1, keepdim=True)


def _common(a: Tensor, b: Tensor, signed: bool) -> Tensor:
    return (1 - (_shares(a, signed) - _shares(b, signed)).abs().sum(1) / 2).nanmean()


def _dealt(values: Tensor) -> list[Tensor]:
    """Each row's values, dealt to its units at random, a few times."""
    draw = torch.Generator().manual_seed(0)
    found = [values.clone() for _ in range(_DRAWS)]
    for row in (row for other in found for row in other):
        real = (~row.isnan()).nonzero().flatten()
        row[real] = row[real[torch.randperm(len(real), generator=draw, device="cpu")]]
    return found


_DRAWS = 4  # of chance


def _ranks(a: Attribution) -> Tensor:
    """Centred ranks (rows, units) of each row's values, input by input; padding takes no part and is 0."""
    parts = list(zip(a.by_name().values(), a.by_name("real").values(), strict=True))
    rows = []
    for row in range(len(a)):
        rows.append(torch.cat([_row_ranks(part[row], None if real is None else real[row]) for part, real in parts]))
    return torch.stack(rows)


def _row_ranks(values: Tensor, real: Tensor | None) -> Tensor:
    flat = values.flatten().double()
    keep = torch.ones_like(flat, dtype=torch.bool) if real is None or real.numel() != flat.numel() else real.flatten()
    ranks = torch.zeros_like(flat)
    ranks[keep] = centred_ranks(flat[keep])
    return ranks
