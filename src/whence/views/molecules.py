"""A molecule drawn by RDKit, its atoms and bonds in the colours of what they carry."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from whence.errors import ParameterError
from whence.results.attribution import Attribution
from whence.views.colours import AGAINST, FOR, share
from whence.views.maps import Map


def svg(a: Attribution, maps: list[Map], shares: Mapping[str, Tensor] | None = None, limit: float = 0.0) -> str:
    """The drawing, ready to stand in a page; nothing where RDKit is not installed.

    `shares`, by input, are drawn instead of the values where they are given, and `limit` has the fullest colour.
    """
    try:
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError:
        return ""
    found = _drawn(a, maps, rdMolDraw2D.MolDraw2DSVG(460, 300), shares, limit)
    found = re.sub(r"<\?xml.*?\?>\s*|<!--.*?-->", "", found, flags=re.S)
    return found.replace("<svg ", '<svg role="img" style="max-width:100%;height:auto;border-radius:6px" ', 1)


def png(a: Attribution, maps: list[Map]) -> bytes:
    """The drawing as a picture."""
    try:
        from rdkit.Chem.Draw import rdMolDraw2D
    except ImportError:
        raise ParameterError("Molecules are drawn by RDKit.\n  pip install 'whence[chem]'") from None
    return _drawn(a, maps, rdMolDraw2D.MolDraw2DCairo(920, 600))


def strongest(maps: list[Map], count: int = 8) -> tuple[list[str], list[float], int]:
    """The atoms that carry most, by name, their values, and how many more there are."""
    atoms = next(part for part in maps if part.input == "atoms")
    best = atoms.strongest(count)
    return [str(name) for name, _ in best], [value for _, value in best], atoms.count - len(best)


def _drawn(
    a: Attribution, maps: list[Map], canvas: Any, shares: Mapping[str, Tensor] | None = None, limit: float = 0.0
) -> Any:
    from rdkit.Chem.Draw import rdMolDraw2D

    from whence.zoo.molecules import parsed

    by = {part.input: part.values for part in maps} if shares is None else shares
    assert a.text is not None
    molecule = parsed(a.text[maps[0].row])
    atoms = by["atoms"].tolist()[: molecule.GetNumAtoms()]  # padding comes last
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    pairs = by["pairs"].tolist()
    bonds = [pairs[i][j] + pairs[j][i] for i, j in ends]
    largest = limit or max(map(abs, [*atoms, *bonds]))
    rdMolDraw2D.PrepareAndDrawMolecule(
        canvas,
        molecule,
        highlightAtoms=list(range(len(atoms))),
        highlightAtomColors={i: _colour(share(v, largest)) for i, v in enumerate(atoms)},
        highlightBonds=list(range(len(bonds))),
        highlightBondColors={i: _colour(share(v, largest)) for i, v in enumerate(bonds)},
    )
    canvas.FinishDrawing()
    return canvas.GetDrawingText()


def _colour(part: float) -> tuple[float, float, float]:
    end = FOR if part > 0 else AGAINST
    red, green, blue = (1 + (c / 255 - 1) * abs(part) ** 0.8 for c in end)
    return (red, green, blue)
