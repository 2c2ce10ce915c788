"""Molecules without some of their atoms: the graph as if they had never been in it, everything else as it was."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from whence.engine import blame
from whence.engine.scope import scope
from whence.errors import InputError
from whence.evaluation.requests import both_classes, probabilities
from whence.results.attribution import Attribution
from whence.server.asks import Asked
from whence.subject.logits import find_logits

HOW = "left out of the graph, with their bonds; their neighbours stay as they were"


def scores_without(asked: Asked, choices: Sequence[Sequence[int]]) -> Tensor:
    """(choices, classes): the scores without these atoms, each choice as a molecule of its own."""
    (request,) = asked.wrapped.requests([asked.inputs], None)
    if set(request.inputs) != {"atoms", "pairs", "mask"}:
        raise InputError(
            "Atoms are taken out of graphs with atoms, pairs and mask, and this model reads something else.\n"
            "  Change the SMILES instead."
        )
    inputs = {name: value.repeat(len(choices), *[1] * (value.dim() - 1)) for name, value in request.inputs.items()}
    for row, gone in enumerate(choices):
        own = torch.tensor(list(gone), dtype=torch.long, device=inputs["atoms"].device)
        inputs["atoms"][row, own] = 0  # what stands beyond the end of a smaller molecule
        inputs["mask"][row, own] = 0
        inputs["pairs"][row, own] = 0
        inputs["pairs"][row, :, own] = 0
    root = asked.wrapped.model
    with scope(root), torch.no_grad():
        return find_logits(blame.called(request.model, inputs, "dict", root)).detach().cpu().double()


def checked(asked: Asked, removed: Sequence[int]) -> list[int]:
    """The atoms to take out: those that there are, and not all of them."""
    count = atoms_of(asked)
    if not all(0 <= atom < count for atom in removed):
        raise InputError(f"The molecule has {count} atoms, numbered from 0; one of `removed` is not among them.")
    gone = sorted(set(removed))
    if len(gone) == count:
        raise InputError("Nothing would be left of the molecule.\n  Take out fewer atoms.")
    return gone


def atoms_of(asked: Asked) -> int:
    return int(asked.explained("random").values["atoms"].shape[-1])


def said(a: Attribution, removed: Sequence[int]) -> tuple[float, float]:
    """What a method gives these atoms and every pair that one of them is in; and the sum of all magnitudes."""
    atoms, pairs = _own(a)
    touched = torch.zeros(len(atoms), dtype=torch.bool, device="cpu")
    touched[list(removed)] = True
    both = touched[:, None] | touched
    return float(atoms[touched].sum() + pairs[both].sum()), float(atoms.abs().sum() + pairs.abs().sum())


def by_atom(a: Attribution) -> Tensor:
    """(atoms): each atom's value, and half of that of every pair that it is in."""
    atoms, pairs = _own(a)
    return atoms + (pairs.sum(0) + pairs.sum(1)) / 2


def _own(a: Attribution) -> tuple[Tensor, Tensor]:
    if not {"atoms", "pairs"} <= set(a.values):
        raise InputError("The method has no values of atoms and pairs.\n  Take another one.")
    atoms, pairs = (a.values[name][0].detach().cpu().double() for name in ("atoms", "pairs"))
    return atoms, pairs


def probability(asked: Asked, scores: Tensor, target: int) -> Tensor:
    """(choices): of the class that is explained."""
    return torch.stack(
        [probabilities(both_classes(row), "probability", asked.wrapped.exclusive, row)[target] for row in scores]
    )
