"""What the examples share: their one option, their colours, coloured words, tables."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot

RED, BLUE, GREY = "#b2182b", "#2166ac", "#5b6470"


def where(script: str, title: str) -> Path:
    """Where to write the picture."""
    parser = argparse.ArgumentParser(description=title)
    name = Path(script).stem
    parser.add_argument("--out", type=Path, default=Path(f"{name}.png"), help="the picture (%(default)s)")
    return parser.parse_args().out


def missing(error: Exception) -> None:
    """Say what is not here, and stop."""
    print(error, file=sys.stderr)
    sys.exit(2)


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    from whence.views.tables import table as made

    print(made(heads, rows))


def grid(axis: Any, values: torch.Tensor, title: str = "") -> None:
    """A map of numbers, one scale, white at 0."""
    largest = float(values.abs().max()) or 1.0
    axis.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest)
    axis.set_title(title, fontsize=8)
    axis.axis("off")


def save(figure: Any, out: Path) -> None:
    figure.savefig(out, dpi=150, bbox_inches="tight")
    pyplot.close(figure)
    print(f"\nThe picture is {out}")
