"""Several explanations of the same rows, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from os import PathLike

import torch
from torch import Tensor

from whence.methods import methods
from whence.results.attribution import Attribution
from whence.util.files import Place, page_written
from whence.util.stats import centred_ranks, correlation
from whence.util.terminal import clean, say


@dataclass(frozen=True, eq=False)
class Comparison(Mapping[str, Attribution]):
    """Attributions by method."""

    attributions: Mapping[str, Attribution]

    def __getitem__(self, method: str) -> Attribution:
        """By the method's name as it stands here, or an alias of it."""
        if method not in self.attributions and method in methods:
            method = methods.label(method)
        return self.attributions[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self.attributions)

    def __len__(self) -> int:
        return len(self.attributions)

    def agreement(self) -> Tensor:
        """Rank correlation of each pair of methods, over the units of a row, averaged over rows.

        It is NaN for methods with other units than each other's, such as pixels and patches, and for those that rank
        nothing, because all of a row's values are the same; such rows take no part in the mean.
        """
        ranks = [_ranks(a) for a in self.attributions.values()]  # each (rows, units)
        none = torch.tensor(float("nan"), dtype=torch.float64, device="cpu")
        return torch.stack(
            [torch.stack([correlation(a, b).nanmean() if a.shape == b.shape else none for b in ranks]) for a in ranks]
        )

    def show(self) -> None:
        """Print the comparison."""
        say(self)

    def __str__(self) -> str:
        from whence.views.terminal import compared

        return compared(self)

    def __repr__(self) -> str:
        return clean(f"Comparison({', '.join(self.attributions)})")

    def to_html(self, path: Place = None, *, title: str = "Whence: methods compared") -> str:
        """A self-contained page, one section per method; written to a file, if there is a path."""
        from whence.views.html import compared, page

        return page_written(page(title, [compared(self)]), path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what the name's ending says: html, png, svg, pdf, json or csv."""
        from whence.views.export import write

        write(self, path)

    def _repr_html_(self) -> str:
        from whence.views.html import compared

        return compared(self)


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
