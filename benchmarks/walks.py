"""How far a reader walks: files, changes of file and pairs of files that call each other, in one call of the package.

`python -m benchmarks.walks`. Each function of the package counts at its first call, in order; a change of file is a
neighbour in that list from another file; a pair is two files of which each calls a function of the other. Every call is
made once before it is counted, so that no import takes part.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn

import whence

ROOT = Path(whence.__file__).parent
INLINE = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}  # frames of their own, but no functions


@dataclass
class Walk:
    """The package's functions in the order of their first calls, and which file called which."""

    functions: dict[CodeType, str] = field(default_factory=dict)
    calls: set[tuple[str, str]] = field(default_factory=set)
    _files: dict[str, str | None] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """For `sys.setprofile`: each function that is called, in the file where it is written."""
        if event != "call" or frame.f_code.co_name in INLINE or (file := self._file(frame.f_code)) is None:
            return
        self.functions.setdefault(frame.f_code, file)
        caller = self._file(frame.f_back.f_code) if frame.f_back is not None else None
        if caller is not None and caller != file:
            self.calls.add((caller, file))

    def _file(self, code: CodeType) -> str | None:
        name = code.co_filename
        if name not in self._files:
            path = Path(name)
            self._files[name] = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else None
        return self._files[name]

    @property
    def files(self) -> list[str]:
        return sorted(set(self.functions.values()))

    @property
    def changes(self) -> int:
        return sum(a != b for a, b in pairwise(self.functions.values()))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return sorted((a, b) for a, b in self.calls if a < b and (b, a) in self.calls)


def walk(call: Callable[[], Any]) -> Walk:
    """What a call walks through, the second time."""
    call()
    found = Walk()
    sys.setprofile(found)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def _mlp() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval(), torch.randn(6, 4)


def gradient() -> Callable[[], Any]:
    model, x = _mlp()
    return lambda: whence.explain(model, x[:2], method="gradient", target=0)


def transformer_attribution() -> Callable[[], Any]:
    model = whence.load("zoo:sentiment")
    return lambda: whence.explain(model, "a moving and funny film", method="transformer_attribution")


def evaluate() -> Callable[[], Any]:
    model, x = _mlp()
    return lambda: whence.evaluate(model, x, methods=["gradient"], metrics=["comprehensiveness"], progress=False)


CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    "gradient": gradient, "transformer_attribution": transformer_attribution, "evaluate": evaluate,
}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    walks = {name: walk(make()) for name, make in CALLS.items()}
    print(f"{'call':26}{'functions':>10}{'files':>7}{'changes':>9}{'pairs':>7}")
    for name, found in walks.items():
        counts = f"{len(found.functions):10}{len(found.files):7}{found.changes:9}{len(found.pairs):7}"
        print(f"{name:26}{counts}")
    for name, found in walks.items():
        if found.pairs:
            print(f"\n{name}: files that call each other")
            print("\n".join(f"  {a}  {b}" for a, b in found.pairs))


if __name__ == "__main__":
    main()
