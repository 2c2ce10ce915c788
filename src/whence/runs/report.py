"""`run.report`: the summaries of a run, its charts and its rows as one page."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from whence.errors import FileError, ParameterError
from whence.runs import samples
from whence.runs.summary import Summary, summarize
from whence.util.checks import check_count
from whence.util.files import page_written, put
from whence.views import run_page
from whence.views.components import nice
from whence.views.run_page import CLASSES, SHOWN, RunPage

if TYPE_CHECKING:
    from whence.runs.opened import Run
    from whence.views.run_rows import RunRow

_DOTS = 120  # values of one unit that are drawn
_PAGE = 1000  # rows of a page beside the report


def report(
    run: Run, path: str | PathLike[str] | None = None, *, unit: str = "word", rows: int = 2000, pages: bool = False,
    bound: int = 200_000,
) -> str:  # fmt: skip
    """A page with what the run says over all; written to a file, if there is a path.

    The run is read three times: for the summaries, for the dots of the units that matter most, and for the rows. At
    most `rows` rows are on the page, first those that stand out and those of the dots. Where there are more, `pages`
    writes all rows to pages of 1,000 in a folder beside it, "report-rows" beside "report.html", and links to them.
    """
    check_count("rows", rows)
    if pages and path is None:
        raise ParameterError("pages=True writes files beside the page.\n  Give a path.")
    summary = summarize(run, unit=unit, bound=bound)
    return page_written(_page(run, summary, unit, rows, Path(path) if pages and path is not None else None), path)


class _Pages:
    """Pages of rows in a folder beside the report, written one after the other."""

    def __init__(self, report: Path) -> None:
        self.report, self.folder = report, report.with_name(f"{report.stem}-rows")
        self.written: list[tuple[str, int, int, int]] = []  # address, first and last row, how many
        self._rows: list[tuple[int, str]] = []
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make {self.folder}: {error.strerror}.\n  Give a path in another folder.") from None

    def add(self, number: int, html: str) -> None:
        self._rows.append((number, html))
        if len(self._rows) == _PAGE:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            first, last = self._rows[0][0], self._rows[-1][0]
            place = self.folder / f"{len(self.written):06}.html"
            back = quote(f"../{self.report.name}")
            put(place, run_page.page_of_rows(first, last, [html for _, html in self._rows], back))
            self.written.append((quote(f"{self.folder.name}/{place.name}"), first, last, len(self._rows)))
            self._rows = []


def _page(run: Run, summary: Summary, unit: str, most: int, beside: Path | None = None) -> str:
    wanted = {target: _names(summary, target, run.method) for target in summary.most(CLASSES)}
    dots = samples.sampled(run, unit, wanted, _DOTS)
    notes = [note.row for found in (summary.disagree, summary.confident_wrong, summary.largest_gaps) for note in found]
    first = dict.fromkeys(notes) | dict.fromkeys(row for own in dots.values() for _, row in own)
    limit = scale(summary, run.method)
    chosen = _chosen(run, list(first), most)
    outstanding: dict[int, RunRow] = {}
    drawn = []
    pages = None if beside is None or chosen is None else _Pages(beside)
    for row in samples.rows(run, unit):
        number = int(row.about["row"])
        if number in notes:
            outstanding[number] = row
        wanted_here = chosen is None or number in chosen
        if wanted_here or pages is not None:
            html = run_page.listed(row, run.method, limit, summary.signed[run.method])
            drawn += [(number, html)] if wanted_here else []
            if pages is not None:
                pages.add(number, html)
    if pages is not None:
        pages.flush()
    shown = {number for number, _ in drawn}
    return run_page.page(
        RunPage(
            summary, run.method, str(run.manifest["model"]), run.storage.address, space(run), dots, limit, shown,
            outstanding, [html for _, html in drawn], summary.rows - len(drawn),
            [] if pages is None else pages.written,
        )
    )  # fmt: skip


def space(run: Run) -> str:
    """What values are parts of."""
    return str(run.manifest["of"]["options"].get("output", "logit")).replace("_", "-")


def _names(summary: Summary, target: str, method: str) -> set[str]:
    sides = ("for", "against") if summary.signed[method] else ("both",)
    return {unit.name for side in sides for unit in summary.units(target, method, side=side, count=SHOWN)}


def _chosen(run: Run, first: list[int], most: int) -> set[int] | None:
    """The rows that the page lists: None where it lists all of them."""
    if len(run) <= most:
        return None
    chosen = set(first[:most])
    for batch in run.batches(["row"]):
        for number in batch.column("row").to_pylist():
            if len(chosen) >= most:
                return chosen
            chosen.add(number)
    return chosen


def scale(summary: Summary, method: str) -> float:
    """The end of a method's scale: the largest mean of a unit that matters, or of a map."""
    means = [abs(unit.mean) for target in summary.most(CLASSES) for unit in summary.units(target, method, count=SHOWN)]
    means += [float(abs(found.mean).max()) for (_, own), found in summary.maps.items() if own == method]
    return nice(max(means, default=1.0))
