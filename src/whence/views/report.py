"""What the parts of a report share: one row by several methods, on common scales, and how each speaks of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from whence.results.attribution import Attribution
from whence.views.maps import counted, notices, sizes_of, spelled
from whence.views.shares import Drawn, Scale

if TYPE_CHECKING:
    from whence.evaluation.deletion_check import DeletionCheck


@dataclass(frozen=True, eq=False)
class Report:
    """One row by several methods, those that are shown first, and the scales of all."""

    every: Mapping[str, Drawn]
    first: Sequence[Drawn]
    scales: Mapping[bool, Scale]  # of shares, and of multiples of an even spread
    check: DeletionCheck | None

    def scale(self, d: Drawn) -> Scale:
        return self.scales[d.times]

    @property
    def a(self) -> Attribution:
        return self.first[0].a

    @property
    def target(self) -> str:
        return spelled(self.first[0].maps[0].target)


def small(d: Drawn) -> str:
    """What an answer says about itself, in a line."""
    receipt = d.a.receipt
    said = ["no sum is promised" if d.a.gap is None else f"adds up within {_gap(float(d.a.gap.max()))}"]
    passes = sum(int(receipt.get(f"{way}_passes", 0)) for way in ("forward", "backward"))
    asked = [(receipt[key], what) for key, what in _ASKED.items() if receipt.get(key)]
    said += [counted(int(count[0]), what) for count, what in asked] or [counted(passes, "pass", "passes")]
    if d.kind == "image" and d.shares[0].shape != size_of(d.a):
        said.append(f"{d.shares[0].shape[1]} × {d.shares[0].shape[0]} patches")
    if sizes_of(d.a):
        said.append(sizes_of(d.a))
    if receipt.get("method_chosen"):
        said.append(f"no method was named, so Whence chose {receipt['method_chosen']}")
    for entry, field, lead in (("unruled", "op", "plain derivative at"), ("unseen", "node", "not seen:")):
        if receipt.get(entry):
            said.append(f"{lead} " + ", ".join(sorted({item[field] for item in receipt[entry]})))
    return " · ".join(said)


_ASKED = {"evaluations": "evaluation", "gradient_evaluations": "gradient"}  # how often the model was asked about a row


def _gap(gap: float) -> str:
    return f"{100 * gap:.2g} %" if gap >= 1e-4 else "0.01 %"


def notices_of(d: Drawn) -> list[str]:
    """The warnings of a run, which number this row as the first, and an integral that was taken too coarsely."""
    told = [told.replace("rows [0]", "this row") for told in notices(d.a)]
    receipt, gap = d.a.receipt, 0.0 if d.a.gap is None else float(d.a.gap.max())
    if gap > _COARSE and receipt.get("gradient_evaluations") and not receipt.get("converged"):
        points = int(receipt["gradient_evaluations"][0])
        told.append(
            f"The values add up to the score only within {_gap(gap)}: {points} points are few for this integral. Take "
            "more steps, or leave steps out and give a tolerance."
        )
    return told


_COARSE = 0.05  # what an integral of fixed points may miss, before the page warns


def heading(title: str, level: int) -> str:
    """The heading of a part looks alike on every level."""
    return f'<h{level} class="part">{title}</h{level}>'


def size_of(a: Attribution) -> tuple[int, int]:
    assert a.image is not None
    return int(a.image.shape[-2]), int(a.image.shape[-1])
