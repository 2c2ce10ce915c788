"""A result file: one line of JSON per finished chunk of rows, so that an interrupted evaluation goes on."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from whence.errors import FileError
from whence.evaluation.cases import Case, bytes_of
from whence.writing import put


class Journal:
    """The finished chunks of one evaluation, in a file if there is a path."""

    def __init__(self, path: str | os.PathLike[str] | None, header: Mapping[str, Any]) -> None:
        if path is not None and not isinstance(path, str | os.PathLike):
            raise FileError(f"resume={path!r} is no name of a file.\n  Give a path.")
        self.path = None if path is None else Path(path)
        self.chunks: dict[int, Any] = {}
        if self.path is not None:
            self._open(json.loads(json.dumps(header)))

    def _open(self, header: dict[str, Any]) -> None:
        assert self.path is not None
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise FileError(
                f"{str(self.path)!r} is no place for a result file.\n  Give a file in a folder that exists."
            )
        whole = []
        if self.path.exists() and self.path.stat().st_size:
            whole = self._read(header)
        text = "".join(json.dumps(line) + "\n" for line in ({"whence": header}, *whole))
        put(self.path, text)  # a last line that was cut short is gone
        self.chunks = {line["chunk"]: line for line in whole}

    def _read(self, header: dict[str, Any]) -> list[Any]:
        assert self.path is not None
        try:
            lines = self.path.read_text(encoding="utf-8").split("\n")
            first = json.loads(lines[0])["whence"]
        except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError):
            raise FileError(
                f"{str(self.path)!r} is no result file of an evaluation.\n  Give another name, or remove it."
            ) from None
        for name in header:
            if first.get(name) != header[name]:
                raise FileError(
                    f"{str(self.path)!r} belongs to an evaluation with other {name}.\n"
                    "  Give another name, or the same call as then."
                )
        found = itertools.takewhile(lambda told: told is not None, map(_line, lines[1:]))
        return list(found)

    def add(self, number: int, told: Mapping[str, Any]) -> None:
        """Keep a chunk's results."""
        line = {"chunk": number, **told}
        text = json.dumps(line)
        self.chunks[number] = json.loads(text)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())


def _line(text: str) -> dict[str, Any] | None:
    """A finished chunk; None where the run was interrupted as it wrote."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and "chunk" in found else None


def fingerprint_of(cases: list[Case]) -> dict[str, str]:
    """What rows and weights these are."""
    rows, weights = hashlib.sha256(), hashlib.sha256()
    for case in cases:
        for name, value in case.inputs.items():
            rows.update(name.encode() + (bytes_of(value) if isinstance(value, Tensor) else str(value).encode()))
        rows.update(str((case.label, case.rationale)).encode())
        rows.update(b"" if case.mask is None else bytes_of(case.mask))
    root = cases[0].root
    weights.update(str(said(cases[0].model) if root is None or cases[0].model is not root else "").encode())
    for name, tensor in root.state_dict().items() if root is not None else ():
        weights.update(name.encode() + (bytes_of(tensor) if isinstance(tensor, Tensor) else b""))
    return {"rows": rows.hexdigest(), "weights": weights.hexdigest()}


def said(value: Any) -> Any:
    """A setting for the header: tensors and functions by what they hold."""
    if isinstance(value, Tensor):
        return f"tensor {hashlib.sha256(bytes_of(value)).hexdigest()}"
    if isinstance(value, Mapping):
        return {str(key): said(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [said(item) for item in value]
    code = getattr(value, "__code__", None)
    if code is not None:
        cells = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        parts = [code.co_code.hex(), str(code.co_consts), code.co_names, said(cells), said(value.__defaults__)]
        return f"function {hashlib.sha256(str(parts).encode()).hexdigest()}"
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
