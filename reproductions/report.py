"""What an experiment leaves behind: tables as Markdown and CSV, figures, and the results' part of its README.

An experiment is a folder with a `run.py` that has `run(report)`, and a README that says what the paper claims and what
came out. The part of the README between the two markers is written by the run.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from torch import Tensor, nn

matplotlib.use("Agg")
from matplotlib import pyplot

import whence
from whence.evaluation.bootstrap import interval, wilson
from whence.util.files import put
from whence.views.tables import table
from whence.zoo.training import data

ROOT = Path(__file__).parent
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
SKIPPED = "skipped"
RED, BLUE, GREY = "#b2182b", "#2166ac", "#5b6470"


class NotAsItMustBe(AssertionError):
    """An ordering that is certain did not come out: the run is wrong, not the paper."""


@dataclass
class Report:
    """One run of an experiment."""

    name: str
    out: Path  # where files go
    quick: bool = False
    cache: Path = Path("build/reproductions")
    blocks: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.process_time)
    files: dict[str, bytes] = field(default_factory=dict)  # tables and figures, written when all is done
    skipped: list[str] = field(default_factory=list)  # parts whose data are not here

    def __post_init__(self) -> None:
        if self.quick:  # it begins anew each time
            self.cache = self.out / "kept"
            shutil.rmtree(self.cache, ignore_errors=True)

    def say(self, text: str) -> None:
        """A paragraph: sizes, seeds, accuracies, what was found."""
        print(text + "\n", flush=True)
        self.blocks.append(text)

    def heading(self, text: str) -> None:
        print(f"── {text}", flush=True)
        self.blocks.append(f"### {text}")

    def table(self, name: str, heads: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> None:
        """A table, written as `name.csv` and into the README."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([heads, *rows])
        self.files[f"{name}.csv"] = text.getvalue().encode()
        print(table([str(head) for head in heads], [[str(cell) for cell in row] for row in rows]), flush=True)
        lines = ["| " + " | ".join(_cell(c) for c in row) + " |" for row in (heads, *rows)]
        lines.insert(1, "|" + "---|" * len(heads))
        link = f"[{name}.csv]({name}.csv)"
        self.blocks += ["\n".join(lines), f"{caption} ({link})" if caption else link]

    def board(self, name: str, board: Any, caption: str = "") -> None:
        """A scoreboard: each cell is the mean with its interval; the rows behind it are in the CSV."""
        heads = ["method", *board.metrics]
        rows = [[method, *(scored(board[method, metric]) for metric in board.metrics)] for method in board.methods]
        self.table(name, heads, rows, caption)

    def figure(self, name: str, figure: Any, caption: str) -> None:
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=130, bbox_inches="tight", metadata={"Software": None})
        self.files[f"{name}.png"] = drawn.getvalue()
        pyplot.close(figure)
        self.blocks.append(f"![{caption}]({name}.png)\n\n*{caption}*")

    def must(self, claim: str, holds: bool) -> None:
        """Something certain, which no run may break."""
        if not holds:
            raise NotAsItMustBe(f"{self.name}: {claim} does not hold in this run.")

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextmanager
    def part(self, title: str) -> Iterator[None]:
        """A part that needs data: where they are not here, a quick run skips it, visibly."""
        self.heading(title)
        try:
            yield
        except data.Absent as error:
            if not self.quick:
                raise
            self.skipped.append(title)
            self.say(f"{SKIPPED}: {error}")

    def kept(self, name: str, *of: Any) -> Path:
        """A file in which long work keeps its state, so that a run that was stopped goes on.

        `of` is what the work hangs on (data, a model, settings): another one has another file.
        """
        folder = self.cache / self.name
        folder.mkdir(parents=True, exist_ok=True)
        stem, _, end = name.rpartition(".")
        return folder / (f"{stem}-{stamp(*of)}.{end}" if of else name)

    def once(self, name: str, make: Callable[[], Any], *of: Any) -> Any:
        """What `make` gives, as JSON has it; kept, see `kept`."""
        file = self.kept(f"{name}.json", *of)
        if not file.is_file():
            put(file, json.dumps(make()))
        return json.loads(file.read_text(encoding="utf-8"))

    def learned(self, name: str, model: nn.Module, learn: Callable[[], Any], *of: Any) -> None:
        """The model's weights as `learn` leaves them; kept, see `kept`."""
        file = self.kept(f"{name}.pt", *of)
        if not file.is_file():
            learn()
            beside = file.with_suffix(".part")
            torch.save(model.state_dict(), beside)
            beside.replace(file)
        model.load_state_dict(torch.load(file, weights_only=True))

    def spent(self) -> list[float]:
        """CPU seconds of this run, after those of the earlier ones that it went on from."""
        kept = self.kept("spent.json")
        before = json.loads(kept.read_text()) if kept.is_file() and not self.quick else []
        return [*before, time.process_time() - self.started]

    def keep_time(self) -> None:
        """Whatever became of the run, what it kept is the next one's, and so is the time that it took."""
        if not self.quick:
            self.kept("spent.json").write_text(json.dumps(self.spent()))

    def finish(self) -> None:
        """Write the results into the README, or beside it where the run was a quick one."""
        how = f"`make reproduce NAME={self.name}{' QUICK=1' if self.quick else ''}`"
        spent = self.spent()
        runs = f" in {len(spent)} runs, each of which went on from the one before" if len(spent) > 1 else ""
        took = f"{_minutes(sum(spent))} of CPU time{runs}"
        for name, content in self.files.items():
            put(self.out / name, content)
        text = "\n\n".join([*self.blocks, f"Produced by {how}: {took}, whence {whence.__version__}."])
        (self.out / "results.md").write_text(text + "\n", encoding="utf-8")
        readme = ROOT / self.name / "README.md"
        if self.out == readme.parent and readme.is_file():
            page = readme.read_text(encoding="utf-8")
            block = f"{BEGIN}\n{text}\n{END}"
            readme.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: block, page, flags=re.DOTALL), encoding="utf-8")
            (self.out / "results.md").unlink()


def stamp(*given: Any) -> str:
    """Eight letters for data, settings, and models by their weights."""
    known = hashlib.sha256()
    for one in given:
        module = one if isinstance(one, nn.Module) else getattr(one, "model", None)
        parts = module.state_dict().items() if isinstance(module, nn.Module) else [("", one)]
        for name, part in parts:
            known.update(name.encode())
            known.update(part.cpu().numpy().tobytes() if isinstance(part, Tensor) else repr(part).encode())
    return known.hexdigest()[:8]


def around(values: Any, digits: int = 3, least: float = -math.inf, most: float = math.inf) -> str:
    """The mean over cases with its 95 % interval, which ends at what the mean can be; none where all are alike."""
    given = np.asarray(values, dtype=float)
    low, high = (float(ends[0]) for ends in interval(given[:, None]))
    mean = f"{given.mean():.{digits}f}"
    return mean if math.isnan(low) else f"{mean} [{max(low, least):.{digits}f}, {min(high, most):.{digits}f}]"


def proportion(hits: float, count: int, digits: int = 3, alike: float | None = None) -> str:
    """A share of cases with its 95 % interval; `alike` is how many cases of their own tell as much as these do."""
    low, high = wilson(hits / count, count if alike is None else alike)
    return f"{hits / count:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def scored(score: Any, form: str = ".3f") -> str:
    """A score, or a difference of scores, with its interval where the rows allow one."""
    if math.isnan(score.value):
        return "–"
    if math.isnan(score.low):
        return f"{score.value:{form}}"
    return f"{score.value:{form}} [{score.low:{form}}, {score.high:{form}}]"


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|")


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
