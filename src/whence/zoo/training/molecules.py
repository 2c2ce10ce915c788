"""A graph network on the twelve assays of Tox21."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.adapters.wrapped import Wrapped, wrap
from whence.errors import InputError
from whence.zoo import molecules
from whence.zoo.models import Weave
from whence.zoo.training import data
from whence.zoo.training.loop import Recipe, Trained, fit, shuffled

_EPOCHS, _SIZE, _LARGEST = 12, 32, 60


def train(seed: int) -> Trained:
    torch.manual_seed(seed)
    known, _, assays = _split()
    counts = Counter(molecules.atom_name(atom) for molecule, _ in known for atom in molecule.GetAtoms())
    vocabulary = ["padding", "other", *sorted(name for name, count in counts.items() if count >= 10)]
    graphs = [molecules.graph(molecule, vocabulary) for molecule, _ in known]
    outcomes = torch.stack([measured for _, measured in known])
    arguments = {
        "atoms": len(vocabulary), "pairs": molecules.KINDS, "width": 64, "pair_width": 32, "layers": 2,
        "labels": len(assays),
    }  # fmt: skip
    model = Weave(**arguments)

    def loss(rows: list[int]) -> Tensor:
        wanted = outcomes[rows]
        measured = ~wanted.isnan()
        scores = model(**molecules.batch([graphs[row] for row in rows]))
        return F.binary_cross_entropy_with_logits(scores[measured], wanted[measured])

    batches = shuffled(len(graphs), _SIZE, [len(atoms) for atoms, _ in graphs])
    fit(model, batches, loss, count=_EPOCHS * len(graphs) // _SIZE, rate=2e-3, decay=0.05, title="molecules")
    wrapped = wrap(model, molecules.Reader(vocabulary), labels=assays)
    return Trained(wrapped, {"arguments": arguments, "labels": assays, "atoms": vocabulary})


@torch.no_grad()
def measure(wrapped: Wrapped) -> dict[str, float]:
    """The area under each assay's ROC curve, on the molecules held back."""
    _, held, assays = _split()
    graphs = [molecules.graph(molecule, wrapped.processor.vocabulary) for molecule, _ in held]
    parts = [graphs[i : i + 32] for i in range(0, len(graphs), 32)]
    scores = torch.cat([wrapped.model(**molecules.batch(part)) for part in parts])
    outcomes = torch.stack([measured for _, measured in held])
    areas = [_area(scores[:, k], outcomes[:, k]) for k in range(len(assays))]
    return {"mean area under the ROC curve": sum(areas) / len(areas), **dict(zip(assays, areas, strict=True))}


Known = list[tuple[Any, Tensor]]


def _split() -> tuple[Known, Known, list[str]]:
    """Molecules with their outcomes to learn from, one in ten held back, and the assays' names."""
    smiles, outcomes, assays = data.molecules()
    read = ((_molecule(text), measured) for text, measured in zip(smiles, outcomes, strict=True))
    found = [(molecule, measured) for molecule, measured in read if molecule and molecule.GetNumAtoms() <= _LARGEST]
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(0), device="cpu").tolist()
    tenth = len(found) // 10
    return [found[i] for i in order[tenth:]], [found[i] for i in order[:tenth]], assays


def _molecule(smiles: str) -> Any:
    """None for the few of the file that RDKit refuses."""
    try:
        return molecules.parsed(smiles)
    except InputError:
        return None


def _area(scores: Tensor, wanted: Tensor) -> float:
    """The chance that an active molecule scores higher than an inactive one; ties count half."""
    active, inactive = scores[wanted == 1], scores[wanted == 0]
    above = (active[:, None] > inactive).double() + 0.5 * (active[:, None] == inactive).double()
    return float(above.mean())


RECIPE = Recipe(
    train,
    measure,
    {
        "task": "function",
        "what": "whether a molecule is active in each of twelve assays of toxicity",
        "architecture": "Kearnes et al.'s (2016) weave network: 2 layers over 64 features of atoms, 32 of pairs",
        "data": "Tox21 as DeepChem gives it: molecules of at most 60 atoms that RDKit reads, one in ten (the same for "
        "every seed, at random, not by scaffold) held back to measure on",
        "licence": "weights Apache-2.0; DeepChem's repository is MIT, Tox21 is public",
        "limits": "a small data set of mostly inactive molecules: no tool for judging a substance; molecules that look "
        "like those it learned from are on both sides of the split; the examples are well-known substances, most of "
        "them in Tox21",
    },
    [
        "CC(=O)Oc1ccccc1C(=O)O",
        "Cn1cnc2c1c(=O)n(C)c(=O)n2C",
        "Oc1ccc(Cl)cc1Cl",
        "c1ccc2c(c1)ccc1ccccc12",
        "CC(C)(c1ccc(O)cc1)c1ccc(O)cc1",
    ],
)
