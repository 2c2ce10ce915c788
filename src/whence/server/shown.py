"""Answers as JSON: units, values, shares, and what a method says about itself in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.evaluation.deletion_check import PATCHES
from whence.results.attribution import Attribution
from whence.views.components import MINUS
from whence.views.families import FAMILIES, family_of, title_of
from whence.views.images import flat, png
from whence.views.maps import sizes_of, spelled, start_of
from whence.views.report import notices_of, small
from whence.views.shares import Drawn, by_chance, common, drawn, scale_of

PARTS = {"input_ids": "source", "decoder_input_ids": "written"}


def numbers(values: Tensor) -> list[Any]:
    """Numbers as JSON has them: float32 in as many digits as tell it apart, and null where there is none."""
    plain = values.detach().cpu()
    items = plain.double().flatten().tolist()
    digits = "" if plain.dtype == torch.float64 else ".9g"
    return [(float(format(v, digits)) if digits else v) if math.isfinite(v) else None for v in items]


def number(value: Any) -> float | None:
    found = float(value)
    return found if math.isfinite(found) else None


def units_of(a: Attribution) -> list[dict[str, Any]]:
    """What the values are of, in their order; pixels have no names."""
    if a.units is None or a.image is not None:
        return []
    if isinstance(a.units, Mapping) and a.units.keys() == {"atoms", "pairs"}:
        return _atoms(a)
    found: list[dict[str, Any]] = []
    for name, units in a.by_name("units").items():
        row = [] if units is None else units[0]
        found += [_unit(a, i, unit, PARTS.get(name, "")) for i, unit in enumerate(row)]
    return found


def _unit(a: Attribution, i: int, unit: str, part: str) -> dict[str, Any]:
    start, end = a.spans[0][i] if a.spans is not None else (0, 0)
    own = a.answer[0][1] if a.answer is not None and a.units is not None and a.one_input else 0
    written = bool(own) and a.units is not None and i >= len(a.units[0]) - own
    return {
        "text": spelled(unit), "start": start, "end": end, "special": bool(a.special[0][i]) if a.special else False,
        "segment": (a.segments[0][i] or 0) if a.segments else 0, "part": part or ("written" if written else "text"),
    }  # fmt: skip


# ---- molecules ----


def _atoms(a: Attribution) -> list[dict[str, Any]]:
    assert a.text is not None
    from whence.zoo.molecules import parsed

    molecule = parsed(a.text[0])
    names = [f"{atom.GetSymbol()}{atom.GetIdx()}" for atom in molecule.GetAtoms()]
    bonds = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in molecule.GetBonds()]
    return [{"text": name, "part": "atom", "special": False} for name in names] + [
        {"text": f"{names[i]}–{names[j]}", "part": "bond", "special": False, "atoms": [i, j]} for i, j in bonds
    ]


def drawing(smiles: str) -> dict[str, Any]:
    """Where the atoms of a molecule stand on paper, and its bonds."""
    from rdkit.Chem import rdDepictor

    from whence.zoo.molecules import parsed

    molecule = parsed(smiles)
    rdDepictor.Compute2DCoords(molecule)
    place = molecule.GetConformer()
    return {
        "atoms": [
            {"symbol": atom.GetSymbol(), "charge": atom.GetFormalCharge(), "hydrogens": atom.GetTotalNumHs(),
             "x": round(place.GetAtomPosition(i).x, 3), "y": round(place.GetAtomPosition(i).y, 3)}
            for i, atom in enumerate(molecule.GetAtoms())
        ],
        "bonds": [
            {"atoms": [bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()], "order": float(bond.GetBondTypeAsDouble())}
            for bond in molecule.GetBonds()
        ],
    }  # fmt: skip


def _of_molecule(grids: Mapping[str, Tensor], units: Sequence[Mapping[str, Any]]) -> Tensor:
    """The values of atoms, and of both directions of each bond."""
    atoms, pairs = grids["atoms"], grids["pairs"]
    bonds = [unit["atoms"] for unit in units if unit["part"] == "bond"]
    return torch.cat([atoms, torch.stack([pairs[i, j] + pairs[j, i] for i, j in bonds])]) if bonds else atoms


# ---- one method ----


def _rows(d: Drawn, units: Sequence[Mapping[str, Any]], which: Sequence[Tensor]) -> list[Tensor]:
    """Values, or shares, of each target; several inputs one after the other."""
    if d.kind == "molecule":
        return [_of_molecule({m.input: grid for m, grid in zip(d.maps, which, strict=True)}, units)]
    by_target: dict[int, list[Tensor]] = {}
    seen: dict[str, int] = {}
    for m, grid in zip(d.maps, which, strict=True):
        place = seen.get(m.input, 0)
        seen[m.input] = place + 1
        by_target.setdefault(place, []).append(grid.flatten())
    return [torch.cat(parts) for parts in by_target.values()]


def answer(name: str, a: Attribution, seconds: float | None) -> dict[str, Any]:
    """One row by one method."""
    d = drawn(name, a)
    units = units_of(a)
    grids = [flat(m.values) if d.kind in ("image", "numbers") else m.values for m in d.maps]
    values, shares = _rows(d, units, grids), _rows(d, units, d.shares)
    several, family = a.several, family_of(a.method)
    shape = list(grids[0].shape) if d.kind in ("image", "numbers") else [len(units)]
    result = {
        "method": name, "title": title_of(name), "family": family, "question": FAMILIES[family], "kind": d.kind,
        "signed": d.signed, "no_sign": sizes_of(a) or None, "shape": shape, "units": units, "aside": d.aside,
        "values": [numbers(row) for row in values] if several else numbers(values[0]),
        "gap": None if a.gap is None else number(a.gap.max()), "warnings": notices_of(d),
        "receipt": _receipt(d), "seconds": seconds, "targets": _targets(d),
        "passes": {way: int(a.receipt.get(f"{way}_passes", 0)) for way in ("forward", "backward")},
        "baseline": None if a.baseline_value is None else [number(v) for v in a.baseline_value.flatten()],
        "space": d.maps[0].space, "total": [number(row.abs().sum()) for row in values],
    }  # fmt: skip
    if d.kind not in ("image", "numbers"):
        result["shares"] = [numbers(row.float()) for row in shares] if several else numbers(shares[0].float())
    return result


def _receipt(d: Drawn) -> list[str]:
    told = small(d).split(" · ")
    start = "" if d.a.several else start_of(d.a, 0).strip(" ()")
    return [line[:1].upper() + line[1:].replace("-", MINUS) + "." for line in [*told, *([start] if start else [])]]


def _targets(d: Drawn) -> list[dict[str, Any]]:
    first = d.maps[0].input
    return [
        {"label": m.target, "score": number(m.score), "probability": m.probability}
        for m in d.maps if m.input == first
    ]  # fmt: skip


def picture(a: Attribution) -> dict[str, Any] | None:
    """What the model saw of an image."""
    if a.image is None:
        return None
    pixels = a.image[0].expand(3, -1, -1).permute(1, 2, 0)
    height, width = int(pixels.shape[0]), int(pixels.shape[1])
    patches = [min(PATCHES, height), min(PATCHES, width)]
    return {"height": height, "width": width, "png": png(pixels), "patches": patches}


# ---- several methods ----


def together(found: Mapping[str, Attribution]) -> dict[str, Any]:
    """What several methods have in common, and the one scale on which they are drawn."""
    every = [drawn(name, a) for name, a in found.items()]
    table = [[_part(common(a, b)) for b in every] for a in every]
    chance = [_mean([by_chance(other, d) for other in every if other is not d]) for d in every]
    scales = {}
    for times in {d.times for d in every}:
        scale = scale_of(every, every, times)
        scales["times" if times else "share"] = {
            "limit": scale.limit, "over": scale.over, "ticks": scale.ticks(), "ticks_one": scale.ticks(1),
        }  # fmt: skip
    return {
        "methods": list(found), "common": table, "chance": chance, "scales": scales,
        "mixed": len({d.signed for d in every}) > 1, "first": {d.name: _first(d) for d in every},
    }  # fmt: skip


def _first(d: Drawn) -> list[dict[str, Any]]:
    """The strongest units of a method's first target."""
    return [{"unit": i, "share": number(share)} for i, share in d.strongest(3)]


def _part(x: float) -> float | None:
    return None if math.isnan(x) else x


def _mean(values: Sequence[float]) -> float | None:
    known = [x for x in values if not math.isnan(x)]
    return sum(known) / len(known) if known else None
