"""Several explanations of the same rows side by side, and the trace of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from whence.attribution import Attribution
from whence.engine.propagate import Step


@dataclass(frozen=True, eq=False)
class Comparison(Mapping[str, Attribution]):
    """Attributions by method."""

    found: Mapping[str, Attribution]

    def __getitem__(self, method: str) -> Attribution:
        return self.found[method]

    def __iter__(self) -> Iterator[str]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def agreement(self) -> Tensor:
        """Rank correlation of each pair of methods, over the units of a row, averaged over rows."""
        ranks = [_ranks(a) for a in self.found.values()]  # each (rows, units)
        return torch.stack([torch.stack([(a * b).sum(1).mean() for b in ranks]) for a in ranks])

    def show(self) -> None:
        """Print the comparison."""
        print(self)

    def __str__(self) -> str:
        from whence.views.terminal import compared

        return compared(self)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.found)})"

    def to_html(self, title: str = "Whence: methods compared") -> str:
        """A self-contained page, one section per method."""
        from whence.views.html import page, section

        return page(title, [section(a) for a in self.found.values()])

    def _repr_html_(self) -> str:
        from whence.views.html import section

        return "".join(section(a) for a in self.found.values())


def _ranks(a: Attribution) -> Tensor:
    """Ranks of a row's units, centred and of length 1; ties share their mean rank. Padding takes no part."""
    values = a.values if isinstance(a.values, Tensor) else None
    parts = [values] if values is not None else list(a.values.values() if isinstance(a.values, Mapping) else a.values)
    flat = torch.cat([part.flatten(1) for part in parts], 1).double()
    below = (flat[:, None, :] < flat[:, :, None]).sum(2)
    equal = (flat[:, None, :] == flat[:, :, None]).sum(2)
    ranks = below + (equal - 1).double() / 2
    ranks = ranks - ranks.mean(1, keepdim=True)
    return ranks / ranks.norm(dim=1, keepdim=True).clamp(min=1e-12)


@dataclass(frozen=True)
class Trace:
    """The ops of an explanation in the order in which they ran."""

    method: str
    steps: tuple[Step, ...]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __str__(self) -> str:
        from whence.views.terminal import table

        rows = [(s.op, s.family, s.path, s.rule, "×".join(map(str, s.shape))) for s in self.steps]
        return table(("op", "family", "module", "rule", "shape"), rows)

    def __repr__(self) -> str:
        return f"Trace({self.method}, {len(self.steps)} ops)"
