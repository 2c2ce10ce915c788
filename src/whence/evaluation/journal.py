"""A result file: one line of JSON per finished chunk of rows, so that an interrupted evaluation goes on."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence.errors import FileError
from whence.evaluation.cases import Case


class Journal:
    """The finished chunks of one evaluation, in a file if there is a path."""

    def __init__(self, path: str | os.PathLike[str] | None, header: Mapping[str, Any]) -> None:
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
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, self.path)  # a last line that was cut short is gone
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
            rows.update(name.encode() + (_bytes(value) if isinstance(value, Tensor) else str(value).encode()))
        rows.update(str((case.label, case.rationale)).encode())
        rows.update(b"" if case.mask is None else _bytes(case.mask))
    root = next((case.root for case in cases), None)
    for name, tensor in root.state_dict().items() if root is not None else ():
        weights.update(name.encode() + (_bytes(tensor) if isinstance(tensor, Tensor) else b""))
    return {"rows": rows.hexdigest(), "weights": weights.hexdigest()}


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return str(tuple(tensor.shape)).encode() + (flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
