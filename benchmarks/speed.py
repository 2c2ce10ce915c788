"""`make bench`: what Whence costs where speed matters, beside a peer and an aim: `python -m benchmarks.speed`.

All numbers are CPU time on one thread. Whence, its peer and plain work take turns in one process, and a ratio is the
median over rounds of the times of one round; fb is the time of one plain forward+backward of the same model and rows.
`python -m benchmarks` measures every method on two models, and peak memory. `--write FILE` keeps the table in a
document, between the marks BEGIN and END: rows of the same name are replaced as they are measured, the others stay.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks.measure import Line
from whence.views.tables import table

MODULES = sorted(file.stem for file in Path(__file__).parent.glob("speed_*.py"))
HEADS = ["work", "measured", "peer", "aim", "met", ""]
TITLES = [*HEADS[:-1], "made of"]  # of a document
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"


def rows() -> dict[str, Callable[[], Sequence[Line]]]:
    """What can be measured, by the file and its own name: each function makes some lines of the table."""
    return {
        f"{module.removeprefix('speed_')}.{name}": make
        for module in MODULES
        for name, make in importlib.import_module(f"benchmarks.{module}").ROWS.items()
    }


def chosen(known: Sequence[str], names: Sequence[str]) -> list[str]:
    """What is meant by the names: a row, all rows of a file, or rows of that name in any file."""
    found = [key for key in known if {key, *key.split(".")} & set(names)]
    for name in names:
        if not any(name in (key, *key.split(".")) for key in known):
            raise SystemExit(f"{name} is not measured. There are {', '.join(known)}.")
    return found


def verdict(line: Line) -> str:
    if line.aim is None:
        return ""
    return "met" if line.measured <= line.aim else f"missed by {line.measured / line.aim - 1:.0%}"


def cells(line: Line) -> list[str]:
    peer = "–" if line.peer is None else f"{line.peer:.2f}"
    aim = "–" if line.aim is None else f"≤ {line.aim:.3g}"
    return [line.name, f"{line.measured:.2f}", peer, aim, verdict(line), line.extra]


def write(document: Path, lines: Sequence[Line]) -> None:
    """Put these lines into the table of a document, in the place of those of the same name or at its end."""
    text = document.read_text()
    before, rest = text.split(BEGIN)
    between, after = rest.split(END)
    known = [[cell.strip() for cell in row.strip()[1:-1].split("|")] for row in between.strip().splitlines()[2:]]
    rows = {row[0]: row for row in known} | {line.name: cells(line) for line in lines}
    made = ["| " + " | ".join(row) + " |" for row in (TITLES, ["---"] * len(TITLES), *rows.values())]
    document.write_text("\n".join([before + BEGIN, *made, END + after]))


def main(arguments: list[str] | None = None) -> None:
    known = rows()
    reader = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reader.add_argument("--only", nargs="+", metavar="NAME", help=f"some of {', '.join(known)}")
    reader.add_argument("--write", type=Path, metavar="FILE", help="a document whose table is to be kept")
    options = reader.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines: list[Line] = []
    for name in chosen(list(known), options.only) if options.only else known:
        made = [Line(*row) for row in known[name]()]
        lines += made
        for line in made:
            print("  ".join(filter(None, cells(line))), flush=True)
        if options.write is not None:
            write(options.write, made)
    print("\n" + table(HEADS, [cells(line) for line in lines]), flush=True)


if __name__ == "__main__":
    main()
