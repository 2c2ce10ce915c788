"""What these scripts share: their options, one run or two, and the table of how far the two packages are apart."""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import numpy as np
import torch

from whence.captum.differences import DIFFERENCES
from whence.views.tables import table

SAME = 1e-6  # of the largest value; the scripts are in float64, so that rounding leaves far less
RANDOM = 3  # times what another seed changes: no more than chance
Found = Iterable[tuple[Any, ...]]  # one after the other: an attribution's title, its values, its convergence delta


def main(script: str, title: str, prepare: Callable[[], tuple[Any, ...]], attribute: Callable[..., Found]) -> None:
    """Run the script with one package; where both are there and none is named, with both, and compare them.

    `attribute` gets the package's name and what `prepare` made; what it gives as "picture" is the figure to write.
    """
    package, out = _options(script, title)
    made = prepare()
    if package or not _has_captum():
        found, figure = _found(attribute(package or "whence", *made))
        _show_values(found)
        unexplained: list[str] = []
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Captum tells of every hook that it sets
            theirs, _ = _found(attribute("captum", *made))
            again, _ = _found(attribute("captum", *made), seed=1)
        found, figure = _found(attribute("whence", *made))
        unexplained = compare(found, theirs, again)
    figure.savefig(out, dpi=150, bbox_inches="tight")
    print(f"\nThe picture is {out}")
    if unexplained:
        sys.exit(f"No reason is listed for the difference of {', '.join(unexplained)}.")


def _options(script: str, title: str) -> tuple[str | None, Path]:
    parser = argparse.ArgumentParser(description=title, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", dest="package", choices=["captum", "whence"],
                        help="import from this package alone (both, compared, where Captum is installed)")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path(f"{Path(script).stem}.png"), help="the picture (%(default)s)")
    asked = parser.parse_args()
    if asked.package == "captum" and not _has_captum():
        parser.error("Captum is not installed.\n  Install it (pip install captum), or leave out --with captum.")
    return asked.package, asked.out


def _has_captum() -> bool:
    try:
        import captum.attr  # noqa: F401
    except ImportError:
        return False
    return True


def _found(attributions: Found, seed: int = 0) -> tuple[dict[str, Any], Any]:
    """Every attribution by its title, each computed from the same random state, and the picture."""
    found: dict[str, Any] = {}
    iterator = iter(attributions)
    while True:
        torch.manual_seed(seed)
        np.random.seed(seed)  # Captum draws from both
        step = next(iterator, None)
        if step is None:
            return found, found.pop("picture")[0]
        found[step[0]] = step[1:]


def _flat(values: Any) -> torch.Tensor:
    """All numbers of an answer, in order."""
    if isinstance(values, tuple | list):
        return torch.cat([_flat(value) for value in values])
    return values.detach().double().flatten()


def _apart(one: Any, other: Any) -> float:
    """The largest difference, relative to the largest value."""
    a, b = _flat(one), _flat(other)
    return float((a - b).abs().max() / b.abs().max())


def _delta(found: tuple[Any, ...]) -> str:
    """How far an attribution is from the score's difference, at worst, where the script asked for it."""
    return f"{float(_flat(found[1]).abs().max()):.0e}" if len(found) > 1 else ""


def _show_values(found: dict[str, Any]) -> None:
    rows = []
    for title, one in found.items():
        values = _flat(one[0])
        rows.append([title, f"{float(values.sum()):+.4g}", f"{float(values.abs().max()):.4g}", _delta(one)])
    print(table(["attribution", "sum", "largest magnitude", "delta"], rows))


def compare(ours: dict[str, Any], theirs: dict[str, Any], again: dict[str, Any]) -> list[str]:
    """Print how far the two packages are apart, and why; give the titles for which there is no reason."""
    rows, listed, unexplained = [], [], []
    for title, found in ours.items():
        apart, by_chance = _apart(found[0], theirs[title][0]), _apart(again[title][0], theirs[title][0])
        entry, why = _entry(title), ""
        if apart > SAME and entry:
            why = "on purpose, see below"
            listed.append(entry)
        elif apart > SAME and apart <= RANDOM * by_chance:
            why = "random draws"
        elif apart > SAME:
            unexplained.append(title)
        seeded = f"{by_chance:.0e}" if by_chance else ""
        rows.append([title, f"{apart:.0e}", seeded, _delta(found), _delta(theirs[title]), why])
    print(table(["attribution", "apart", "other seed", "delta", "Captum's", "why"], rows))
    print(
        "\napart: largest difference between Whence and Captum, relative to the largest value; other seed: the same,\n"
        "between Captum and Captum with another seed; delta: largest convergence delta, where it was asked for."
    )
    for where, here, there in dict.fromkeys(listed):
        print(f"\n{where}\n  Whence: {here}\n  Captum: {there}")
    return unexplained


def _entry(title: str) -> tuple[str, str, str] | None:
    """The difference on purpose that names the class with which a title begins."""
    name = re.match(r"\w+", title)[0].removeprefix("Layer").removeprefix("Neuron")  # type: ignore[index]
    return next((entry for entry in DIFFERENCES if name in re.findall(r"\w+", entry[0])), None)
