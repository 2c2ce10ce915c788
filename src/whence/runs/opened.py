"""`whence.open`: a run that is on disk, read as a stream; its rows as Attributions, as batches, or as one table."""

from __future__ import annotations

import json
import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import TYPE_CHECKING, Any

from whence.errors import FileError, InputError, MethodError, ParameterError, did_you_mean
from whence.runs import manifest as manifests
from whence.runs import parts, plan
from whence.runs.plan import Shard
from whence.runs.storage import Storage, library, storage_of
from whence.util.checks import not_allowed
from whence.util.libraries import imported

if TYPE_CHECKING:
    import pandas

    from whence.results.attribution import Attribution
    from whence.results.comparison import Comparison
    from whence.runs.summary import Summary

_ROWS = 1024  # of a batch, at most


@dataclass(frozen=True)
class Where:
    """Some of the rows: those for which a test of a batch is true, and the columns that it looks at."""

    columns: tuple[str, ...]
    test: Callable[[Any], Any]  # from a record batch to booleans


@dataclass(frozen=True, eq=False)
class Run:
    """The explained rows of a run, by one of its methods; nothing is read before it is asked for.

    `run["method"]` is the same run by another method. `run[3]`, `run[10:20]` and iteration count the explained rows;
    `run.row(3)` and `run.compare(3)` take a row's number in the data, which reports and summaries name.
    """

    storage: Storage
    manifest: Mapping[str, Any]
    shards: tuple[Shard, ...]  # those that are done
    missing: tuple[Shard, ...]  # those that are not
    method: str
    chosen: tuple[Where | range, ...] = ()  # selections, one after the other

    @staticmethod
    def at(storage: Storage) -> Run:
        manifest = manifests.read(storage)
        if manifest is None:
            raise FileError(f"{storage.address} is not the folder of a run: it has no manifest.json.")
        there, shards = storage.names("out"), list(plan.read(storage))
        done = tuple(shard for shard in shards if os.path.basename(shard.part) in there)
        missing = tuple(shard for shard in shards if os.path.basename(shard.part) not in there)
        return Run(storage, manifest, done, missing, next(iter(manifest["of"]["methods"])))

    @property
    def methods(self) -> list[str]:
        return list(self.manifest["of"]["methods"])

    @property
    def complete(self) -> bool:
        """Whether every shard is done."""
        return not self.missing

    def __repr__(self) -> str:
        left = f", {len(self.missing)} of {self.manifest['shards']} shards missing" if self.missing else ""
        return f"Run({self.storage.address}, {len(self)} rows, {', '.join(self.methods)}{left})"

    # ---- rows ----

    @cached_property
    def _footers(self) -> list[dict[str, Any]]:
        return [parts.footer(self.storage, shard, self.manifest["fingerprint"]) for shard in self.shards]

    @cached_property
    def _counts(self) -> list[int]:
        """The number of explained rows of each part."""
        return [int(told["explained"][self.method]) for told in self._footers]

    @cached_property
    def classes(self) -> dict[str, int]:
        """The model's classes among predictions, labels and targets, by name; a label that is not here is no class."""
        return {name: number for told in self._footers for name, number in told.get("classes", {}).items()}

    @cached_property
    def signed(self) -> set[str]:
        """The methods that have values below 0, in whichever row."""
        return {method for told in self._footers for method in told.get("signed", self.methods)}

    @cached_property
    def _length(self) -> int:
        return sum(self._counts) if not self.chosen else sum(batch.num_rows for batch in self.batches(["row"]))

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Attribution]:
        from whence.runs.attributions import attributions

        for shard, batch in self._selected(None):
            yield from attributions(self, shard, batch, self.method)

    def __getitem__(self, key: Any) -> Any:
        """A row's Attribution, the run of some rows, or the run by another method."""
        if isinstance(key, str):
            return self._by(key)
        if isinstance(key, slice):
            span = range(len(self))[key]
            if span.step < 1:
                raise InputError("A run is read forwards.\n  Give a slice with a positive step.")
            return replace(self, chosen=(*self.chosen, self._explained(), span))  # the same rows by any other method
        from whence.runs.attributions import attributions

        shard, batch = self._row(operator.index(key))
        return next(iter(attributions(self, shard, batch, self.method)))

    def row(self, number: int) -> Attribution:
        """A row by its number in the data, as reports, summaries and the column `row` name it."""
        return self._told(number, [self.method])[self.method]

    def compare(self, row: int) -> Comparison:
        """The row of a number, as for `row`, by every method that could explain it."""
        from whence.results.comparison import Comparison

        return Comparison(self._told(row, self.methods))

    def _told(self, number: int, methods: Sequence[str]) -> dict[str, Attribution]:
        """What methods say of one row; those that could not explain it are left out, if there is another."""
        from whence.runs.attributions import attributions

        shard, batch = self._numbered(operator.index(number))
        found = {name: a for name in methods for a in attributions(self, shard, batch, name)}
        if not found:
            raise InputError(f"Row {number} could not be explained: {batch.column('error')[0].as_py()}")
        return found

    def _by(self, method: str) -> Run:
        if method not in self.methods:
            raise MethodError(f"The run has no method {method!r}. {did_you_mean(method, self.methods)}")
        return replace(self, method=method)

    def _row(self, number: int) -> tuple[Shard, Any]:
        if not -len(self) <= number < len(self):
            raise IndexError(
                f"There are {len(self)} rows, and none at {number}.\n"
                f"  run.row({number}) is by the number that a row has in the data."
            )
        left = number % len(self)
        skipped = 0
        if not self.chosen:  # the part that has it is known
            while left >= self._counts[skipped]:
                left, skipped = left - self._counts[skipped], skipped + 1
        for shard, batch in self._selected(None, self.shards[skipped:]):
            if left < batch.num_rows:
                return shard, batch.slice(left, 1)
            left -= batch.num_rows
        raise FileError(f"{self.storage.address} has changed since it was opened.\n  Open it again.")

    def _numbered(self, number: int) -> tuple[Shard, Any]:
        """The row of a number as a batch of one, also where it could not be explained."""
        shard = next((s for s in (*self.shards, *self.missing) if s.row <= number < s.row + s.rows), None)
        if shard is None:
            raise InputError(f"There is no row {number}.\n  The data has the rows 0 to {self.manifest['rows'] - 1}.")
        if shard in self.missing:
            raise InputError(
                f"Row {number} is in shard {shard.shard}, which is not done.\n  Run again with the same call."
            )
        if not self.chosen:
            place = number - shard.row
            for batch in self._read(shard, None):
                if place < batch.num_rows:
                    return shard, batch.slice(place, 1)
                place -= batch.num_rows
        pc = library("pyarrow.compute")
        for own, batch in self._selected(None):
            if own == shard and (found := batch.filter(pc.equal(batch.column("row"), number))).num_rows:
                return shard, found
        raise InputError(f"Row {number} is not among the selected rows.\n  Ask the whole run for it.")

    # ---- selections ----

    def filter(
        self, *, prediction: Any = None, label: Any = None, gap_above: float | None = None, wrong: bool | None = None
    ) -> Run:
        """The rows with a prediction or a label, given by the name or the number of a class; those with a completeness
        gap of the run's method; those whose prediction is (not) the label, if the label is a class of the model.
        """
        run = self
        for column, wanted in (("prediction", prediction), ("label", label)):
            if wanted is not None:
                run = run._where((column,), _equals(column, self._class(wanted)))
        if gap_above is not None:
            run = run._where((f"gap_{self.method}",), self._has_gap(gap_above))
        if wrong is not None:
            if not isinstance(wrong, bool):
                raise not_allowed("wrong", wrong, "True or False")
            run = run._where(("prediction", "label", "probability"), self._is_wrong if wrong else self._is_right)
        return run

    def _has_gap(self, above: float) -> Callable[[Any], Any]:
        if not isinstance(above, Real) or isinstance(above, bool) or not math.isfinite(above):
            raise not_allowed("gap_above", above, "a number")
        if self.method not in self._gaps and self.shards:
            others = " or ".join(f"run[{name!r}]" for name in self.methods if name in self._gaps)
            way = f"  Ask {others} for its rows." if others else "  No method of the run does."
            raise InputError(f"{self.method} promises no sum, so that it has no gaps.\n{way}")
        pc, gap = library("pyarrow.compute"), f"gap_{self.method}"
        return lambda batch: pc.greater(batch.column(gap), float(above))

    @cached_property
    def _gaps(self) -> set[str]:
        """The methods that have gaps."""
        return {method for told in self._footers for method in told.get("gaps", ())}

    def _class(self, wanted: Any) -> str:
        """The name of a class that is given by its name or its number."""
        from whence.runs.rows import class_of

        if isinstance(wanted, str) and wanted in self.classes:
            return wanted
        if isinstance(wanted, list | tuple | set | dict):
            raise ParameterError(
                f"{wanted!r} is not one class.\n  Give a name or a number, and filter for each of them."
            )
        number = class_of(wanted)
        return next((name for name, own in self.classes.items() if own == number), str(wanted))

    def _is_wrong(self, batch: Any) -> Any:
        pc = library("pyarrow.compute")
        return pc.if_else(
            self._can_be_wrong(batch), pc.not_equal(batch.column("prediction"), batch.column("label")), None
        )

    def _is_right(self, batch: Any) -> Any:
        return library("pyarrow.compute").invert(self._is_wrong(batch))

    def _can_be_wrong(self, batch: Any) -> Any:
        """Whether the label is a class, and the prediction was chosen among classes."""
        pa, pc = library("pyarrow"), library("pyarrow.compute")
        known = pc.is_in(batch.column("label"), value_set=pa.array(list(self.classes), pa.string()))
        return pc.and_(known, pc.is_valid(batch.column("probability")))

    def _where(self, columns: tuple[str, ...], test: Callable[[Any], Any]) -> Run:
        return replace(self, chosen=(*self.chosen, Where(columns, test)))

    # ---- tables ----

    def batches(self, columns: str | Sequence[str] | None = None, *, failed: bool = False) -> Iterator[Any]:
        """The rows as Arrow record batches, part after part; with `failed`, rows that have no values too."""
        for _, batch in self._selected(self._listed(columns), failed=failed):
            yield batch

    def _selected(
        self, columns: Sequence[str] | None, shards: Sequence[Shard] | None = None, failed: bool = False
    ) -> Iterator[tuple[Shard, Any]]:
        steps: list[Where | range] = [*self.chosen, *([] if failed else [self._explained()])]
        looked_at = {name for step in steps if isinstance(step, Where) for name in step.columns}
        wanted = None if columns is None else [*columns, *(looked_at - set(columns))]
        seen = [0] * len(steps)
        for shard in self.shards if shards is None else shards:
            for batch in self._read(shard, wanted):
                for number, step in enumerate(steps):
                    count = batch.num_rows
                    batch = _taken(batch, step, seen[number])
                    seen[number] += count
                if batch.num_rows:
                    yield shard, batch if columns is None else batch.select(list(columns))
            if any(isinstance(step, range) and seen[i] >= step.stop for i, step in enumerate(steps)):
                return

    def _explained(self) -> Where:
        pc, names = library("pyarrow.compute"), (f"values_{self.method}", f"shape_{self.method}")
        return Where(names, lambda batch: _any(pc.is_valid(batch.column(name)) for name in names))

    def _listed(self, columns: str | Sequence[str] | None) -> list[str] | None:
        """The names of columns, one or several, each of which the run has."""
        if columns is None:
            return None
        names, known = [columns] if isinstance(columns, str) else list(columns), self.schema.names
        for name in names:
            if name not in known:
                raise ParameterError(f"The run has no column {name!r}. {did_you_mean(str(name), known)}")
        return names

    @cached_property
    def schema(self) -> Any:
        """Arrow's schema of all columns."""
        of = self.manifest["of"]
        metrics = of["metrics"] or []
        return parts.schema(of["methods"], of["dtype"], [metrics] if isinstance(metrics, str) else metrics)

    def _read(self, shard: Shard, columns: Sequence[str] | None) -> Iterator[Any]:
        pa, parquet = library("pyarrow"), library("pyarrow.parquet")
        from whence.runs.sources import reading

        path = self.storage.path(shard.part)
        try:
            with reading(path) as source:
                file = parquet.ParquetFile(source, page_checksum_verification=True)
                if (file.schema_arrow.metadata or {}).get(parts.FINGERPRINT) != self.manifest["fingerprint"].encode():
                    raise OSError("it is not of this run")
                if file.schema_arrow.remove_metadata() != self.schema or file.metadata.num_rows != shard.rows:
                    raise OSError("its rows or columns are not those of this run")
                yield from file.iter_batches(_ROWS, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise FileError(f"{path} cannot be read: {error}.\n  Run again with the same call: it is redone.") from None

    def to_arrow(self, columns: str | Sequence[str] | None = None) -> Any:
        """All rows as one table of Arrow's."""
        pa = library("pyarrow")
        names = self._listed(columns)
        wanted = self.schema if names is None else pa.schema([self.schema.field(name) for name in names])
        found = [batch.replace_schema_metadata(None) for batch in self.batches(names)]
        return pa.Table.from_batches(found, wanted)

    def to_pandas(self, columns: str | Sequence[str] | None = None) -> pandas.DataFrame:
        """All rows as a DataFrame."""
        imported("pandas", "to_pandas() needs", "pandas")
        return self.to_arrow(columns).to_pandas()

    # ---- over all rows ----

    def summary(self, *, unit: str = "word", bound: int = 200_000, rows: int = 20) -> Summary:
        """What the run says over all its rows, in one pass: see `whence.runs.summary.summarize`."""
        from whence.runs.summary import summarize

        return summarize(self, unit=unit, bound=bound, rows=rows)

    def report(self, path: str | os.PathLike[str] | None = None, **how: Any) -> str:
        """The summaries with charts and rows as one page: see `whence.runs.report.report`."""
        from whence.runs.report import report

        return report(self, path, **how)

    def plot(self, kind: str = "units", ax: Any = None, **how: Any) -> Any:
        """A summary drawn by matplotlib: "units", "swarm", "gaps", "agreement" or "map"."""
        from whence.runs.plots import plot

        return plot(self, kind, ax, **how)

    def errors(self) -> Iterator[dict[str, Any]]:
        """What could not be explained: the row, its file and line, the method (None: all of them), and the error."""
        there = self.storage.names("errors")
        for shard in sorted((*self.shards, *self.missing), key=lambda shard: shard.shard):
            if os.path.basename(shard.errors) in there:
                yield from _lines(self.storage, shard.errors)


def _lines(storage: Storage, name: str) -> Iterator[dict[str, Any]]:
    try:
        for line in (storage.read(name) or b"").splitlines():
            yield json.loads(line)
    except ValueError as error:
        raise FileError(
            f"{storage.path(name)} is damaged: {error}.\n  Run again with retry_errors=True: it is written anew."
        ) from None


def _equals(column: str, wanted: str) -> Callable[[Any], Any]:
    return lambda batch: library("pyarrow.compute").equal(batch.column(column), wanted)


def _any(masks: Iterator[Any]) -> Any:
    """True where one of the masks is; null is false."""
    pc = library("pyarrow.compute")
    found = None
    for mask in masks:
        mask = pc.fill_null(mask, False)
        found = mask if found is None else pc.or_(found, mask)
    return found


def _taken(batch: Any, step: Where | range, seen: int) -> Any:
    pa, pc = library("pyarrow"), library("pyarrow.compute")
    if isinstance(step, Where):
        return batch.filter(pc.fill_null(step.test(batch), False))
    places = [place - seen for place in range(seen, seen + batch.num_rows) if place in step]
    return batch.take(pa.array(places, pa.int64()))


def open(folder: str | os.PathLike[str]) -> Run:
    """A run in a folder, or at a URL, finished or not.

    >>> run = whence.open("run")  # doctest: +SKIP
    >>> run.filter(prediction="toxic", gap_above=0.1).to_pandas()  # doctest: +SKIP
    """
    library("pyarrow.parquet"), library("fsspec")
    return Run.at(storage_of(folder))
