"""Which atoms and which pairs of atoms make a molecule look active, on Tox21."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib import pyplot

import whence
from reproductions.report import Report, around
from whence.evaluation.bootstrap import pseudo_values
from whence.zoo import molecules
from whence.zoo.training import data

ASSAYS, LARGEST, DRAWN = ("NR-AhR", "SR-MMP", "SR-ARE"), 30, 6


def run(report: Report) -> None:
    smiles, outcomes, assays = data.molecules()
    zoo = whence.load("zoo:molecules")
    rows, drawn = [], []
    for assay in ASSAYS[: report.size(3, 1)]:
        active = [s for s, y in zip(smiles, outcomes[:, assays.index(assay)].tolist(), strict=True) if y == 1]
        line, strongest = _shares(zoo, _fitting(active)[: report.size(60, 12)], assay)
        rows.append([assay, *line])
        drawn = drawn or strongest
    report.table(
        "ligands",
        ["assay", "called active", "f(x) − f(0)", "atoms, %", "pairs with a bond, %", "pairs without, %",
         "one pair with", "one pair without", "worst gap"],
        rows, "Active molecules that `zoo:molecules` calls active: shares of the summed integrated gradients of the "
        "logit, from all-zero features, with 95 % intervals over molecules. The paper, for one molecule "
        "of another network: pairs with a bond 46 %, without −3 %.",
    )  # fmt: skip
    figure, axes = pyplot.subplots(2, DRAWN // 2, figsize=(12, 7), layout="constrained")
    for axis, a in zip(axes.flatten(), drawn, strict=False):
        a.plot(axis)
    report.figure("ligands", figure, f"{ASSAYS[0]}: orange atoms and bonds speak for activity, blue against; "
                  "pairs without a bond are not drawn.")  # fmt: skip


def _share(parts: torch.Tensor, place: int) -> str:
    """One part's share of all, in per cent, with its interval over molecules (the jackknife's pseudo-values)."""
    sums = torch.stack([parts[place], parts.sum(0)], 1).numpy()
    return around(100 * pseudo_values(lambda total: total[0] / total[1], sums), 0)


def _fitting(smiles: list[str]) -> list[str]:
    found = []
    for text in smiles:
        try:
            size = molecules.parsed(text).GetNumAtoms()
        except whence.InputError:
            continue
        if 8 <= size <= LARGEST:
            found.append(text)
    return found


def _shares(zoo: Any, smiles: list[str], assay: str) -> tuple[list[Any], list[Any]]:
    """How the attribution of molecules that the network calls active is shared out, and the most active ones."""
    a = whence.explain(zoo, smiles, method="integrated_gradients", target=assay, batch_size=20)
    called = [row for row, score in enumerate(a.output_value.tolist()) if score > 0]
    kinds = zoo.processor(smiles)["pairs"]
    bonded = (kinds >= min(molecules.BONDED)) & (kinds <= max(molecules.BONDED))
    parts = torch.stack([
        a.values["atoms"].sum(1),
        (a.values["pairs"] * bonded).sum((1, 2)),
        (a.values["pairs"] * ~bonded).sum((1, 2)),
    ])[:, called].double()  # (parts, molecules)  # fmt: skip
    shares = [_share(parts, place) for place in range(len(parts))]
    parts = parts.sum(1)
    delta = float((a.output_value - a.baseline_value)[called].mean())
    counts = [int(chosen[called].sum()) for chosen in (bonded, (kinds > 0) & ~bonded)]
    each = [
        f"{float(part / parts.sum()) / count * len(called):+.2%}" for part, count in zip(parts[1:], counts, strict=True)
    ]
    line = [f"{len(called)} of {len(smiles)}", f"{delta:+.2f}", *shares,
            *each, f"{float(a.gap[called].max()):.1e}"]  # fmt: skip
    order = sorted(called, key=lambda row: -float(a.output_value[row]))
    return line, [a[row] for row in order[:DRAWN]]
