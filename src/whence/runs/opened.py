"""`whence.open`: a run that is on disk, read as a stream; its rows as Attributions, as batches, or as one table."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from whence.errors import FileError, InputError, MethodError, ParameterError, did_you_mean
from whence.runs import manifest as manifests
from whence.runs import parts, plan
from whence.runs.plan import Shard
from whence.runs.storage import Storage, library, storage_of

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

    `run["method"]` is the same run by another method; `run[3]`, `run[10:20]` and iteration go by row.
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
    def _counts(self) -> list[int]:
        """The number of explained rows of each part."""
        found = [parts.footer(self.storage, shard, self.manifest["fingerprint"]) for shard in self.shards]
        return [int(told["explained"][self.method]) for told in found]

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
            return replace(self, chosen=(*self.chosen, span))
        from whence.runs.attributions import attributions

        shard, batch = self._row(operator.index(key))
        return next(iter(attributions(self, shard, batch, self.method)))

    def compare(self, row: int) -> Comparison:
        """One row by every method that could explain it."""
        from whence.results.comparison import Comparison
        from whence.runs.attributions import attributions

        shard, batch = self._row(row)
        found = {name: next(iter(attributions(self, shard, batch, name)), None) for name in self.methods}
        return Comparison({name: a for name, a in found.items() if a is not None})

    def _by(self, method: str) -> Run:
        if method not in self.methods:
            raise MethodError(f"The run has no method {method!r}. {did_you_mean(method, self.methods)}")
        return replace(self, method=method)

    def _row(self, number: int) -> tuple[Shard, Any]:
        if not -len(self) <= number < len(self):
            raise IndexError(f"Row {number} does not exist: there are {len(self)} rows.")
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

    # ---- selections ----

    def filter(
        self, *, prediction: Any = None, label: Any = None, gap_above: float | None = None, wrong: bool | None = None
    ) -> Run:
        """The rows with a prediction, with a label, with a completeness gap, or whose prediction is (not) the label."""
        pc = library("pyarrow.compute")
        run = self
        if prediction is not None:
            run = run._where(("prediction",), lambda batch: pc.equal(batch.column("prediction"), str(prediction)))
        if label is not None:
            run = run._where(("label",), lambda batch: pc.equal(batch.column("label"), str(label)))
        if gap_above is not None:
            names = tuple(f"gap_{method}" for method in self.methods)
            run = run._where(names, lambda batch: _any(pc.greater(batch.column(n), gap_above) for n in names))
        if wrong is not None:

            def differs(batch: Any) -> Any:
                return pc.not_equal(batch.column("prediction"), batch.column("label"))

            run = run._where(("prediction", "label"), differs if wrong else lambda batch: pc.invert(differs(batch)))
        return run

    def _where(self, columns: tuple[str, ...], test: Callable[[Any], Any]) -> Run:
        return replace(self, chosen=(*self.chosen, Where(columns, test)))

    # ---- tables ----

    def batches(self, columns: Sequence[str] | None = None, *, failed: bool = False) -> Iterator[Any]:
        """The rows as Arrow record batches, part after part; with `failed`, rows that have no values too."""
        for _, batch in self._selected(columns, failed=failed):
            yield batch

    def _selected(
        self, columns: Sequence[str] | None, shards: Sequence[Shard] | None = None, failed: bool = False
    ) -> Iterator[tuple[Shard, Any]]:
        self._check(columns)
        steps: list[Where | range] = [*([] if failed else [self._explained()]), *self.chosen]
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

    def _check(self, columns: Sequence[str] | None) -> None:
        known = self.schema.names
        unknown = next((name for name in columns or () if name not in known), None)
        if unknown is not None:
            raise ParameterError(f"The run has no column {unknown!r}. {did_you_mean(unknown, known)}")

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
                yield from file.iter_batches(_ROWS, columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise FileError(f"{path} cannot be read: {error}.\n  Run again with the same call: it is redone.") from None

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """All rows as one table of Arrow's."""
        pa = library("pyarrow")
        self._check(columns)
        wanted = self.schema if columns is None else pa.schema([self.schema.field(name) for name in columns])
        found = [batch.replace_schema_metadata(None) for batch in self.batches(columns)]
        return pa.Table.from_batches(found, wanted)

    def to_pandas(self, columns: Sequence[str] | None = None) -> pandas.DataFrame:
        """All rows as a DataFrame."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise ParameterError("to_pandas() needs pandas, which is not installed.\n  pip install pandas") from None
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
        for name in sorted(self.storage.names("errors")):
            for line in (self.storage.read(f"errors/{name}") or b"").splitlines():
                yield json.loads(line)


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
