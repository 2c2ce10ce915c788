"""Molecules for the zoo's graph network: kinds of atoms and of pairs of atoms, read from SMILES by RDKit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError, ParameterError

PADDING = 0
BONDS = {"SINGLE": 1, "DOUBLE": 2, "TRIPLE": 3, "AROMATIC": 4}
IN_RING = 4  # added to a bond's kind inside a ring
FAR, NEAR = 9, 10  # further than three bonds apart; two bonds, three (11), and the same within a ring (12, 13)
KINDS = 14  # of pairs; an atom with itself is none
BONDED = range(1, 9)


def parsed(smiles: str, place: int = 0) -> Any:
    """The molecule of a SMILES, as RDKit parses it."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        raise ParameterError(
            "Molecules are read by RDKit, which is not installed.\n  pip install 'whence[chem]'"
        ) from None
    if not isinstance(smiles, str):
        raise InputError(f"Molecule {place} is {type(smiles).__name__}.\n  Give SMILES, such as 'CCO'.")
    with rdBase.BlockLogs():  # reported below
        found = Chem.MolFromSmiles(smiles)
    if found is None or found.GetNumAtoms() == 0:
        raise InputError(
            f"Molecule {place}, {smiles!r}, is not the SMILES of a molecule.\n  Give one such as 'CC(=O)O'."
        )
    return found


def atom_name(atom: Any) -> str:
    """An atom's kind: element (in lower case where aromatic), hydrogens, charge, neighbours, ring."""
    symbol = atom.GetSymbol().lower() if atom.GetIsAromatic() else atom.GetSymbol()
    charge = atom.GetFormalCharge()
    sign = "" if charge == 0 else f"{charge:+d}"
    return f"{symbol}H{atom.GetTotalNumHs()}{sign}" + ("r" if atom.IsInRing() else "")


def graph(molecule: Any, vocabulary: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Kinds of atoms (n) and of pairs (n, n); a kind that was never seen is the first one, "other"."""
    from rdkit import Chem

    known = {name: number for number, name in enumerate(vocabulary)}
    atoms = torch.tensor([known.get(atom_name(atom), 1) for atom in molecule.GetAtoms()], device="cpu")
    distance = torch.tensor(Chem.GetDistanceMatrix(molecule), device="cpu").round().long().clamp(max=4)
    pairs = torch.full(distance.shape, FAR, device="cpu")
    for apart in (2, 3):
        pairs[distance == apart] = NEAR + apart - 2
    for ring in molecule.GetRingInfo().AtomRings():
        inside = torch.tensor(ring, device="cpu")
        block = pairs[inside[:, None], inside]
        pairs[inside[:, None], inside] = torch.where((block == NEAR) | (block == NEAR + 1), block + 2, block)
    for bond in molecule.GetBonds():
        i, j = bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()
        kind = BONDS.get(str(bond.GetBondType()), 1) + (IN_RING if bond.IsInRing() else 0)
        pairs[i, j] = pairs[j, i] = kind
    pairs.fill_diagonal_(PADDING)
    return atoms, pairs


def batch(graphs: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Graphs of one size, padded with kind 0, and a mask of the atoms that are there."""
    size = max(len(atoms) for atoms, _ in graphs)
    atoms = torch.full((len(graphs), size), PADDING, device="cpu")
    pairs = torch.full((len(graphs), size, size), PADDING, device="cpu")
    mask = torch.zeros(len(graphs), size, device="cpu")
    for row, (own, between) in enumerate(graphs):
        atoms[row, : len(own)], pairs[row, : len(own), : len(own)], mask[row, : len(own)] = own, between, 1.0
    return {"atoms": atoms, "pairs": pairs, "mask": mask}


class Reader:
    """SMILES to what the network takes: the processor of zoo:molecules."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self.vocabulary = list(vocabulary)

    def __call__(self, smiles: Any, place: int = 0) -> dict[str, Tensor]:
        """The tensors of one molecule, or of several in a padded batch."""
        rows = list(smiles) if isinstance(smiles, list | tuple) else [smiles]
        return batch([graph(parsed(row, place + i), self.vocabulary) for i, row in enumerate(rows)])

    def describe(self, smiles: str) -> dict[str, Any]:
        """The names of the units: atoms by element and number, pairs by their two atoms."""
        names = [f"{atom.GetSymbol()}{atom.GetIdx()}" for atom in parsed(smiles).GetAtoms()]
        real = torch.ones(1, len(names), dtype=torch.bool, device="cpu")
        return {
            "facts": {"text": [smiles]},
            "units": {"atoms": [names], "pairs": [names]},
            "real": {"atoms": real, "pairs": real[:, :, None] & real[:, None, :]},
        }
