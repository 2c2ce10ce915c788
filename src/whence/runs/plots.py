"""`run.plot`: a run's summaries drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import InputError, ParameterError
from whence.runs.report import space
from whence.runs.samples import sampled
from whence.runs.summary import Summary, Unit, summarize
from whence.util.checks import check_choice
from whence.util.terminal import clean
from whence.views.colours import solid
from whence.views.plot import pyplot, titled

if TYPE_CHECKING:
    from whence.runs.opened import Run

_DOTS = 200


def plot(
    run: Run, kind: str = "units", ax: Any = None, *, summary: Summary | None = None, target: str | None = None,
    count: int = 10, unit: str = "word",
) -> Any:  # fmt: skip
    """Draw one summary of a run on the axes, or on new ones, and give them back.

    "units": the units that matter most for a class, with intervals; "swarm": their values, row by row; "gaps": the
    histogram of completeness gaps; "agreement": what methods have in common; "map": the mean map of a class. Values are
    those of the run's method. A `summary` that is there already saves a pass.
    """
    check_choice("kind", kind, _KINDS)
    found = summary if summary is not None else summarize(run, unit=unit)
    if ax is None:
        ax = pyplot().subplots(layout="constrained")[1]
    _KINDS[kind](run, found, ax, found.target(target), count)
    return ax


def _chosen(run: Run, s: Summary, target: str, count: int) -> list[Unit]:
    found = s.units(target, run.method, count=count)
    if not found:
        raise InputError(f"No {s.unit} occurs in enough rows to be ranked.\n  Run over more rows, or plot 'map'.")
    return sorted(found, key=lambda u: u.mean)


def _colour(value: float, signed: bool) -> str:
    return solid(1.0 if value > 0 else -1.0, ink=not signed)


def _units(run: Run, s: Summary, ax: Any, target: str, count: int) -> None:
    units, signed = _chosen(run, s, target, count), s.signed[run.method]
    means = [u.mean for u in units]
    reach = [[u.mean - u.low for u in units], [u.high - u.mean for u in units]]
    ax.barh(range(len(units)), means, xerr=reach, color=[_colour(m, signed) for m in means], ecolor="#171a20")
    _named(run, ax, units, target)


def _swarm(run: Run, s: Summary, ax: Any, target: str, count: int) -> None:
    units, signed = _chosen(run, s, target, count), s.signed[run.method]
    dots = sampled(run, "token" if s.unit == "token" else "word", {target: {u.name for u in units}}, _DOTS)
    draw = np.random.default_rng(0)
    for place, unit in enumerate(units):
        values = np.array([value for value, _ in dots[target, unit.name]])
        spread = draw.uniform(-0.25, 0.25, len(values))
        ax.scatter(values, place + spread, s=6, alpha=0.5, color=[_colour(v, signed) for v in values])
        ax.plot([unit.low, unit.high], [place - 0.38] * 2, color="#171a20", linewidth=2)
        ax.plot([unit.mean], [place - 0.38], "o", color="#171a20", markersize=3)
    _named(run, ax, units, target)


def _named(run: Run, ax: Any, units: list[Unit], target: str) -> None:
    names = [f"{clean(u.name)} ({u.rows})".replace("$", r"\$") for u in units]
    ax.set_yticks(range(len(units)), names, fontsize=8)
    ax.axvline(0, color="#858d9b", linewidth=0.8)
    ax.set_xlabel(f"part of the {space(run)}, mean over rows with 95 % interval", fontsize=8)
    titled(ax, f"{run.method}, for {target} (rows)")


def _gaps(run: Run, s: Summary, ax: Any, target: str, count: int) -> None:
    found = {m: h for m, h in s.gaps.items() if h.counts.sum()}
    if not found:
        raise InputError("No method of the run promises a sum, so that there are no gaps.")
    for number, (method, h) in enumerate(found.items()):
        ax.stairs(h.counts[1:-1], h.edges, label=method, linestyle=("-", "--", ":", "-.")[number % 4], linewidth=1.5)
    ax.set_xscale("log")
    ax.set_xlabel("gap", fontsize=8)
    ax.set_ylabel("rows", fontsize=8)
    ax.legend(fontsize=7, frameon=False)
    titled(ax, "Completeness gaps")


def _agreement(run: Run, s: Summary, ax: Any, target: str, count: int) -> None:
    if len(s.methods) < 2:
        raise InputError("The run has one method, which agrees with itself.")
    size = len(s.methods)
    table = np.eye(size)
    for (a, b), mean in s.agreement.items():
        i, j = s.methods.index(a), s.methods.index(b)
        table[i, j] = table[j, i] = mean.mean
    ax.imshow(table, cmap="Greys", vmin=0, vmax=1.4)
    for i in range(size):
        for j in range(size):
            ax.text(j, i, f"{100 * table[i, j]:.0f}", ha="center", va="center", fontsize=8)
    ax.set_xticks(range(size), s.methods, rotation=45, ha="right", fontsize=8)
    ax.set_yticks(range(size), s.methods, fontsize=8)
    titled(ax, "Share in common, in percent")


def _map(run: Run, s: Summary, ax: Any, target: str, count: int) -> None:
    found = s.maps.get((target, run.method))
    if found is None:
        raise ParameterError(f"The run has no maps, but {s.unit}s.\n  Plot 'units' or 'swarm'.")
    largest = float(np.abs(found.mean).max()) or 1.0
    ax.imshow(found.mean, cmap="RdBu_r", vmin=-largest, vmax=largest)
    ax.axis("off")
    titled(ax, f"{run.method}, mean over {found.rows} rows of {target}, ends ±{largest:.2g}")


_KINDS: dict[str, Callable[..., None]] = {
    "units": _units, "swarm": _swarm, "gaps": _gaps, "agreement": _agreement, "map": _map,
}  # fmt: skip
