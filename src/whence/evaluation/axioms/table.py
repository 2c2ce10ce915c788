"""The table of properties: a number, a verdict and a witness for each method and property."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, Literal

from whence.errors import ParameterError, did_you_mean
from whence.methods import methods
from whence.util.files import Place, csv_text, page_written, written

Verdict = Literal["yes", "no", "not refuted", "–"]
MEANING = {
    "yes": "held at every point that was tried",
    "no": "a witness is given",
    "not refuted": "nothing that was tried could have told",
    "–": "not measured, and why",
}


@dataclass(frozen=True)
class Witness:
    """The point that violates a property most: numbers of the input and the baseline there, and what happens."""

    row: int
    unit: Any  # an index into the row, or None
    x: tuple[float, ...]
    baseline: tuple[float, ...]
    said: str

    def __str__(self) -> str:
        unit = "" if self.unit is None else f", unit {self.unit}"
        return f"row {self.row}{unit}, x = {_numbers(self.x)}, x' = {_numbers(self.baseline)}: {self.said}"


@dataclass(frozen=True)
class Finding:
    """What measuring one property of one method gave."""

    number: float | None
    verdict: Verdict
    witness: Witness | None = None
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """One property of one method: the measured violation, what follows from it, and where."""

    method: str
    property: str
    verdict: Verdict
    number: float | None
    witness: Witness | None
    note: str

    def __str__(self) -> str:
        return self.verdict if self.number is None else f"{self.verdict} {self.number:.1g}"


@dataclass(frozen=True)
class AxiomTable(Mapping[tuple[str, str], Cell]):
    """Cells by (method, property); `table["gradient"]` is one method's cells by property."""

    methods: tuple[str, ...]
    properties: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    reference: Mapping[str, bool]  # whether a method is reference-based, as the registry knows
    facts: Mapping[str, Any]  # tolerance, rows, features, seed

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            key = self._method(key)
            return {name: self.cells[key, name] for name in self.properties}
        method, name = key
        method = self._method(method)
        self._known(name, self.properties, "property")
        return self.cells[method, name]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.cells)

    def __len__(self) -> int:
        return len(self.cells)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AxiomTable) and dict(self.cells) == dict(other.cells)

    __hash__ = None  # type: ignore[assignment]

    def _method(self, name: Any) -> str:
        """A method of the table by its name, or by an alias."""
        found = methods.label(name) if name not in self.methods and name in methods else name
        self._known(found, self.methods, "method")
        return str(found)

    def _known(self, name: Any, known: tuple[str, ...], noun: str) -> None:
        if name not in known:
            raise ParameterError(f"The table has no {noun} {name!r}. {did_you_mean(str(name), known)}")

    @property
    def failing(self) -> list[Cell]:
        """The cells that say no, worst first within a method."""
        order = {name: i for i, name in enumerate(self.methods)}
        return sorted((c for c in self.cells.values() if c.verdict == "no"), key=lambda c: (order[c.method], -_size(c)))

    # ---- showing and keeping ----

    def __str__(self) -> str:
        from whence.views.axioms import printed

        return printed(self)

    def __repr__(self) -> str:
        return f"AxiomTable({len(self.methods)} methods, {len(self.properties)} properties, {len(self.failing)} fail)"

    def to_html(self, path: Place = None, *, title: str = "Whence: properties, measured") -> str:
        """A self-contained page; written to a file, if there is a path."""
        from whence.views.axioms import page_of

        return page_written(page_of(self, title), path)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what the name's ending says: html, csv or json."""
        from whence.views.export import write

        write(self, path)

    def _repr_html_(self) -> str:
        from whence.views.axioms import section

        return section(self)

    def to_json(self, path: Place = None) -> str:
        """Everything, as JSON; written to a file, if there is a path."""
        cells = [asdict(cell) for cell in self.cells.values()]
        told = {"facts": self.facts, "reference_based": self.reference, "cells": cells}
        return written(json.dumps(told, ensure_ascii=False), path)

    def to_csv(self, path: Place = None) -> str:
        """One line per cell; written to a file, if there is a path."""
        head = ["method", "reference_based", "property", "verdict", "number", "witness", "note"]
        lines = [
            [c.method, self.reference[c.method], c.property, c.verdict, c.number, c.witness, c.note]
            for c in self.cells.values()
        ]
        return written(csv_text(head, lines), path)


def _size(cell: Cell) -> float:
    return cell.number or 0.0


def _numbers(values: tuple[float, ...]) -> str:
    shown = ", ".join(f"{v:.4g}" for v in values[:6])
    return f"({shown}{', …' if len(values) > 6 else ''})"
