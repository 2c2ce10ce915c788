"""Which atoms and which pairs of atoms make a molecule look active? The paper's ligand experiment, on Tox21.

The paper attributes its network's predictions to atoms and to pairs of atoms, and finds that pairs with a bond carry
46 % of the attribution and pairs without one −3 %. Here the same sums are taken over molecules that the zoo's network
calls active. Needs Tox21 (WHENCE_DATA, see README.md) and RDKit.
"""

from __future__ import annotations

import torch
from matplotlib import pyplot
from pictures import missing, save, table, where

import whence
from whence.zoo import molecules
from whence.zoo.training import data

ASSAYS, EACH, LARGEST, DRAWN = ("NR-AhR", "SR-MMP", "SR-ARE"), 60, 30, 6


def main() -> None:
    out = where(__file__, __doc__)
    try:
        smiles, outcomes, assays = data.molecules()
        zoo = whence.load("zoo:molecules")
        rows, drawn = [], []
        for assay in ASSAYS:
            active = [s for s, y in zip(smiles, outcomes[:, assays.index(assay)].tolist(), strict=True) if y == 1]
            line, strongest = shares(zoo, _fitting(active)[:EACH], assay)
            rows.append([assay, *line])
            drawn = drawn or strongest
    except (whence.FileError, whence.ParameterError) as error:
        missing(error)
    print("Integrated gradients of the logit from all-zero features; shares of the summed attribution, f(x) − f(0):\n")
    table(
        ["assay", "molecules", "f(x) − f(0)", "atoms", "pairs with a bond", "pairs without",
         "one pair with", "one pair without", "worst gap"],
        rows,
    )  # fmt: skip
    print("\nThe paper (another network, another task): pairs with a bond 46 %, without −3 %.")
    figure, axes = pyplot.subplots(2, DRAWN // 2, figsize=(12, 7), layout="constrained")
    for axis, a in zip(axes.flatten(), drawn, strict=True):
        a.plot(axis)
    figure.suptitle(f"{ASSAYS[0]}: red atoms and bonds speak for activity, blue against", fontsize=10)
    save(figure, out)


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


def shares(zoo, smiles: list[str], assay: str):  # type: ignore[no-untyped-def]
    """How the attribution of molecules that the network calls active is shared out, and the most active ones."""
    a = whence.explain(zoo, smiles, method="integrated_gradients", target=assay, batch_size=20)
    called = [row for row, score in enumerate(a.output_value.tolist()) if score > 0]
    kinds = zoo.processor(smiles)["pairs"]
    bonded = (kinds >= min(molecules.BONDED)) & (kinds <= max(molecules.BONDED))
    parts = torch.stack([
        a.values["atoms"].sum(1),
        (a.values["pairs"] * bonded).sum((1, 2)),
        (a.values["pairs"] * ~bonded).sum((1, 2)),
    ])[:, called].sum(1)  # fmt: skip
    delta = float((a.output_value - a.baseline_value)[called].mean())
    counts = [int(chosen[called].sum()) for chosen in (bonded, (kinds > 0) & ~bonded)]
    each = [
        f"{float(part / parts.sum()) / count * len(called):+.2%}" for part, count in zip(parts[1:], counts, strict=True)
    ]
    line = [len(called), f"{delta:+.2f}", *(f"{float(part / parts.sum()):.0%}" for part in parts),
            *each, f"{float(a.gap[called].max()):.1e}"]  # fmt: skip
    order = sorted(called, key=lambda row: -float(a.output_value[row]))
    return line, [a[row] for row in order[:DRAWN]]


if __name__ == "__main__":
    main()
