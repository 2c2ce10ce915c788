"""A data-set run as the page browses it: its light columns in memory, filtered and sorted there, its rows on demand."""

from __future__ import annotations

import base64
import io
import logging
import math
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from whence.errors import InputError, WhenceError
from whence.runs.opened import Run
from whence.runs.report import scale, space
from whence.runs.storage import library
from whence.runs.summary import Summary, summarize
from whence.runs.units import block_of
from whence.server import shown
from whence.server.limits import Limits, Refused
from whence.views.families import title_of

_LIGHT = ("row", "id", "text", "second", "image", "label", "prediction", "probability", "target", "score", "error")
_ORDERS = 32  # sorted and filtered views that are kept
_WORDS = 2000  # rows whose words are kept
_TEXT = 400  # letters of a text in the table
_READERS, _PAUSE = 4, 0.005  # threads that read the table; seconds of rest after some rows of the summary
_FIRST = 3.0  # seconds for which the summary lets the first rows go before it
_UNITS = 12  # of a class and side
SORTS = ("row", "label", "prediction", "probability", "target", "score", "gap", "in_common", "text")
_log = logging.getLogger("whence.server")


@dataclass(frozen=True)
class Filter:
    """Which rows, and in which order."""

    sort: str = "row"
    descending: bool = False
    label: str | None = None
    prediction: str | None = None
    wrong: bool | None = None
    failed: bool | None = None
    probability_above: float | None = None
    probability_below: float | None = None
    gap_above: float | None = None
    in_common_below: float | None = None
    word: str | None = None


class Browsed:
    """One run. Its table is read at the first use; what is over all rows is computed beside it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._table: Any = None
        self._counted: dict[str, Any] = {}
        self._orders: OrderedDict[Filter, Any] = OrderedDict()
        self._words: OrderedDict[int, list[list[float]] | None] = OrderedDict()  # by row, of the run's first method
        self._lock = threading.Lock()
        self._summary: Summary | None = None
        self._why: str | None = None  # there is no summary
        self._over_all = threading.Thread(target=self._summarize, daemon=True)
        self._seen = threading.Event()  # somebody has the first rows

    # ---- the table ----

    @property
    def table(self) -> Any:
        """One line per row: what it says of itself, and its largest gap."""
        with self._lock:
            if self._table is None:
                self._table = self._read()
                self._over_all.start()
            return self._table

    def _read(self) -> Any:
        pa, pc = library("pyarrow"), library("pyarrow.compute")
        gaps = [f"gap_{method}" for method in self.run.methods]
        columns = [*_LIGHT, *gaps]

        def read(shard: Any) -> list[Any]:
            own = replace(self.run, shards=(shard,))
            return [batch.replace_schema_metadata(None) for batch in own.batches(columns, failed=True)]

        with ThreadPoolExecutor(_READERS) as readers:
            batches = [batch for found in readers.map(read, self.run.shards) for batch in found]
        if not batches:
            raise InputError(f"{self.run.storage.address} has no rows yet.\n  Wait until its first shard is done.")
        table = pa.Table.from_batches(batches).combine_chunks()
        self._counted = {name + "s": _counts(table, name) for name in ("label", "prediction", "target")} | {
            "failed": table.num_rows - table.column("error").null_count,
            "images": table.column("image").null_count < table.num_rows,
        }
        largest = pc.max_element_wise(*(table.column(name) for name in gaps))
        return table.drop_columns(gaps).append_column("gap", largest)

    def _summarize(self) -> None:
        """The summary, and what methods have in common in each row."""
        self._seen.wait(_FIRST)
        table = self._table
        common = np.full(table.num_rows, np.nan)
        place = {row: i for i, row in enumerate(table.column("row").to_pylist())}

        def each(rows: list[int], values: Any) -> None:
            common[[place[row] for row in rows]] = values
            time.sleep(_PAUSE)  # whoever waits for an answer comes first

        try:
            found = summarize(self.run, each=each)
        except WhenceError as error:
            self._why = str(error)
            return
        except Exception as error:
            _log.error("whence serve: the run cannot be summarized", exc_info=error)
            self._why = "The run cannot be summarized; the server's log says more."
            return
        pa = library("pyarrow")
        column = pa.array(common, mask=np.isnan(common))
        with self._lock:
            self._table = table.append_column("in_common", column)
            self._orders.clear()
            self._summary = found

    @property
    def pending(self) -> bool:
        """Whether the summary is still being computed."""
        return self._summary is None and self._why is None

    # ---- rows ----

    def rows(self, wanted: Filter, offset: int, limit: int, values: bool = False) -> dict[str, Any]:
        """Some lines of the filtered and sorted table; with `values`, the words' values by the run's first method."""
        table, order = self._ordered(wanted)
        part = table.take(order.slice(offset, limit))
        lines = part.to_pylist()
        for line in lines:
            line["text"] = line["text"] if line["text"] is None else line["text"][:_TEXT]
            for name in ("gap", "probability", "score", "in_common"):
                value = line.get(name)
                line[name] = value if value is not None and math.isfinite(value) else None
        self._seen.set()
        if values:
            found = self._values([line["row"] for line in lines])
            lines = [{**line, "values": found.get(line["row"])} for line in lines]
        return {"total": len(order), "offset": offset, "rows": lines, "pending": self.pending}

    def _values(self, rows: list[int]) -> dict[int, list[list[float]]]:
        """[start, end, which text, value] of each word of some rows, kept for the next page."""
        with self._lock:
            found = {row: self._words[row] for row in rows if row in self._words}
        missing = [row for row in rows if row not in found]
        if missing:
            found |= dict.fromkeys(missing) | _worded_rows(self.run, missing)
            with self._lock:
                self._words.update({row: found[row] for row in missing})
                while len(self._words) > _WORDS:
                    self._words.popitem(last=False)
        return {row: words for row, words in found.items() if words is not None}

    def _ordered(self, wanted: Filter) -> tuple[Any, Any]:
        table = self.table
        known = table.column_names
        if wanted.sort not in known or (wanted.in_common_below is not None and "in_common" not in known):
            if wanted.sort not in SORTS:
                raise InputError(f"Rows cannot be sorted by {wanted.sort[:40]!r}.\n  Give one of {', '.join(SORTS)}.")
            raise Refused(
                503, "pending", "What methods have in common is still being computed.\n  Try again in a while."
            )
        with self._lock:
            if wanted in self._orders and self._table is table:
                self._orders.move_to_end(wanted)
                return table, self._orders[wanted]
        order = _order(table, wanted)
        with self._lock:
            if self._table is table:
                self._orders[wanted] = order
                while len(self._orders) > _ORDERS:
                    self._orders.popitem(last=False)
        return table, order

    def row(self, number: int) -> dict[str, Any]:
        """One row with its explanations, in the form of answers to a question."""
        pc, table = library("pyarrow.compute"), self.table
        known = 0 <= number < 1 << 63  # as numbers of rows are stored
        lines = table.filter(pc.equal(table.column("row"), number)).to_pylist() if known else []
        if not lines:
            raise InputError(f"The run has no row {number}.\n  It has {table.num_rows:,}, from 0 on.")
        (line,) = lines
        try:
            found = {name: _worded(a) for name, a in self.run.compare(number).items()}
        except InputError:  # the row's own error is beside it
            found = {}
        results = [{**shown.answer(name, a, None), "place": place} for place, (name, a) in enumerate(found.items())]
        line["picture"] = _picture(line["image"]) if line["image"] else None
        return {**line, "results": results, "done": shown.together(found) if found else {}}

    # ---- over all ----

    def about(self, served: list[str]) -> dict[str, Any]:
        """The run as a whole; the summary comes when it is computed."""
        table, manifest = self.table, self.run.manifest
        model = str(manifest["model"])
        return {
            **self._counted, "model": model, "served": model if model in served else _by_folder(model, served),
            "rows": table.num_rows, "missing": len(self.run.missing),
            "methods": [{"name": name, "title": title_of(name)} for name in self.run.methods],
            "space": space(self.run), "sorts": list(SORTS), "pending": self.pending, "why": self._why,
            "summary": None if self._summary is None else self._told(self._summary),
        }  # fmt: skip

    def _told(self, s: Summary) -> dict[str, Any]:
        classes = {
            target: {
                method: {side: [_unit(u) for u in s.units(target, method, side=side, count=_UNITS)]
                         for side in (("for", "against") if s.signed[method] else ("both",))}
                for method in s.methods
            }
            for target in s.most(10)
        }  # fmt: skip
        return {
            "unit": s.unit, "rows": s.rows, "labelled": s.labelled, "wrong": s.wrong, "signed": s.signed,
            "classes": s.classes, "units": classes if s.vocabulary.size else {},
            "agreement": [{"methods": list(pair), **_mean(mean)} for pair, mean in s.agreement.items()],
            "chance": {name: _mean(mean) for name, mean in s.chance.items()},
            "aside": {name: _mean(mean) for name, mean in s.aside.items()},
            "limits": {name: scale(s, name) for name in s.methods}, "notes": s.notes,
            "stand_out": {
                name: [{"row": note.row, "value": note.value} for note in notes]
                for name, notes in (("disagree", s.disagree), ("gaps", s.largest_gaps), ("wrong", s.confident_wrong))
            },
        }  # fmt: skip


def _order(table: Any, wanted: Filter) -> Any:
    """The numbers of the lines that are wanted, in their order."""
    pa, pc = library("pyarrow"), library("pyarrow.compute")
    mask = None
    for test in _tests(table, wanted):
        test = pc.fill_null(test, False)
        mask = test if mask is None else pc.and_(mask, test)
    numbers = np.arange(table.num_rows, dtype=np.int64)  # not by pa.array, which imports pandas to look at it
    lines = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
    if mask is not None:
        lines = lines.filter(mask.combine_chunks() if hasattr(mask, "combine_chunks") else mask)
    if wanted.sort == "row" and not wanted.descending:
        return lines
    keys = [(wanted.sort, "descending" if wanted.descending else "ascending"), ("row", "ascending")]
    part = table.select([wanted.sort] if wanted.sort == "row" else [wanted.sort, "row"]).take(lines)
    return lines.take(pc.sort_indices(part, sort_keys=keys[: part.num_columns]))


def _tests(table: Any, wanted: Filter) -> list[Any]:
    pc = library("pyarrow.compute")
    found = [pc.equal(table.column(name), getattr(wanted, name)) for name in ("label", "prediction")
             if getattr(wanted, name) is not None]  # fmt: skip
    for name, column, test in (
        ("probability_above", "probability", pc.greater_equal), ("probability_below", "probability", pc.less_equal),
        ("gap_above", "gap", pc.greater), ("in_common_below", "in_common", pc.less),
    ):  # fmt: skip
        if getattr(wanted, name) is not None:
            found.append(test(table.column(column), getattr(wanted, name)))
    if wanted.wrong is not None:
        differ = pc.not_equal(table.column("label"), table.column("prediction"))
        found.append(differ if wanted.wrong else pc.invert(differ))
    if wanted.failed is not None:
        found.append((pc.is_valid if wanted.failed else pc.is_null)(table.column("error")))
    if wanted.word:
        texts = [pc.fill_null(table.column(name), "") for name in ("text", "second")]
        found.append(pc.or_(*(pc.match_substring(own, wanted.word, ignore_case=True) for own in texts)))
    return found


def _counts(table: Any, name: str) -> dict[str, int]:
    """How many rows have each value, the most frequent first."""
    pc = library("pyarrow.compute")
    found = [(item["values"], item["counts"]) for item in pc.value_counts(table.column(name)).to_pylist()]
    return dict(sorted(((str(v), n) for v, n in found if v is not None), key=lambda pair: -pair[1])[:100])


def _unit(unit: Any) -> dict[str, Any]:
    return {"name": unit.name, "places": unit.places, **_mean(unit)}


def _mean(mean: Any) -> dict[str, Any]:
    return {"rows": mean.rows, "mean": _part(mean.mean), "low": _part(mean.low), "high": _part(mean.high)}


def _part(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _worded_rows(run: Run, rows: list[int]) -> dict[int, list[list[float]]]:
    block = block_of(run, rows)
    if block is None or block.spans is None:
        return {}
    found: dict[int, list[list[float]]] = {int(line["row"]): [] for line in block.about}
    numbers = [int(line["row"]) for line in block.about]
    units = zip(block.owner.tolist(), block.spans.tolist(), block.values[0].tolist(), block.special, strict=True)
    for owner, span, value, special in units:
        if not special and math.isfinite(value):
            found[numbers[owner]].append([*span, value])
    return found


def _worded(a: Any) -> Any:
    return a.merge_words() if a.words is not None and a.one_input else a


def _picture(path: str) -> dict[str, Any] | None:
    """A row's image, small; nothing where its file cannot be read any more."""
    try:
        from PIL import Image

        with Image.open(path) as opened:
            if opened.width * opened.height > Limits().pixels:
                return None
            image = opened.convert("RGB")
    except (OSError, SyntaxError, ValueError, ImportError):
        return None
    image.thumbnail((_SIDE, _SIDE))
    out = io.BytesIO()
    image.save(out, "PNG")
    data = f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"
    return {"height": image.height, "width": image.width, "png": data}


_SIDE = 448  # of a picture, at most


def _by_folder(model: str, served: list[str]) -> str | None:
    """The offered model whose folder has the same name."""
    name = model.rstrip("/").rpartition("/")[2]
    return name if name in served else None
