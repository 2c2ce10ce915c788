"""`whence.run`: explain a data set shard by shard; whatever interrupts it, the same call goes on where it was."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any

from whence.errors import FileError, InputError, ParameterError, warn
from whence.runs import manifest as manifests
from whence.runs import plan, spool
from whence.runs.executors import Outcome, crew_of, dispatched, inline
from whence.runs.job import Job, job_of
from whence.runs.lock import locked
from whence.runs.models import check_name, identity, is_named, loaded, name_of
from whence.runs.opened import Run
from whence.runs.plan import Shard
from whence.runs.reading import Reader
from whence.runs.shard import Worker
from whence.runs.sources import SPOOL, SPOOLED, found
from whence.runs.storage import Storage, is_local, library, storage_of
from whence.util.checks import check_choice, check_count, not_allowed
from whence.util.progress import bar

_WORKERS = 2
_PART = re.compile(r"part-\d{5,}\.(parquet|safetensors|jsonl)")
ASIDE = "Aside"  # the kind of error of a shard that was set aside


def run(
    model: Any,
    data: Any,
    *,
    methods: Any,
    out: str | os.PathLike[str],
    metrics: Any = None,
    executor: str = "inline",
    workers: int | None = None,
    shard_rows: int | None = None,
    address: str | None = None,
    gpus_per_worker: float = 0,
    progress: bool | None = None,
    columns: Mapping[str, str] | None = None,
    task: str | None = None,
    long: str = "error",
    batch_size: int | None = None,
    dtype: str = "float32",
    retry_errors: bool = False,
    **options: Any,
) -> Run:
    """Explain every row of a data set, and write the answers into the folder `out`, a Parquet file per shard of rows.

    `data` is a file (.jsonl, .csv, .parquet), a folder or a glob of them, a data set that Hugging Face's save_to_disk
    wrote, a folder of images, or an iterable of rows. The same call on the same folder goes on where an earlier one was
    interrupted. With `executor="process"` or "ray" the model is named by what each worker can load: what `whence.load`
    takes, or "package.module:function". Further options are those of `explain`.
    """
    check_choice("executor", executor, ("inline", "process", "ray"))
    check_name(model, executor)
    _check_call(executor, address, gpus_per_worker, columns)
    for name, count in (("workers", workers), ("shard_rows", shard_rows)):
        if count is not None:
            check_count(name, count)
    library("pyarrow.parquet"), library("fsspec")
    storage = storage_of(out)
    job = job_of(
        name_of(model), methods, options, metrics=metrics, columns=dict(columns or {}), task=task, long=long,
        batch_size=batch_size, dtype=dtype,
    )  # fmt: skip
    if executor != "inline":
        job.packed()  # whatever workers cannot be told is an error now
    with locked(storage):
        job = _as_before(job, manifests.read(storage))
        live = _live(model, job, executor)
        begin: dict[str, Any] = {
            "identity": identity(live, job.model),
            "out": storage.address,
            "retry_errors": retry_errors,
        }
        shards, fingerprint = _begun(storage, job, data, begin["identity"], shard_rows)
        begin |= {"fingerprint": fingerprint, "entries": _entries(shards)}
        if executor == "inline":
            outcomes = inline(Worker(job, live, storage, fingerprint, retry_errors, begin["entries"]), shards)
        else:
            begin["job"] = job.packed()
            crew = crew_of(executor, begin, workers or _WORKERS, address, gpus_per_worker)
            outcomes = dispatched(crew, shards, min(workers or _WORKERS, len(shards)))
        _finish(storage, outcomes, shards, progress)
    return Run.at(storage)


def _check_call(executor: str, address: str | None, gpus: float, columns: Mapping[str, str] | None) -> None:
    if columns is not None and not isinstance(columns, Mapping):
        raise not_allowed("columns", columns, 'a mapping from usual names to those of the data, {"text": "comment"}')
    if address is not None and executor != "ray":
        raise ParameterError('address= is that of a Ray cluster.\n  Leave it out, or give executor="ray".')
    if not isinstance(gpus, Real) or isinstance(gpus, bool) or not 0 <= gpus < math.inf:
        raise not_allowed("gpus_per_worker", gpus, "a number, at least 0")


def _live(model: Any, job: Job, executor: str) -> Any:
    """The model in this process, where it is needed here: to explain, or to see what it is."""
    if not is_named(model):
        return model
    from_files = job.model.startswith("zoo:") or os.path.isdir(job.model)
    return None if executor != "inline" and from_files else loaded(job.model, job.task, job.long)


def _begun(storage: Storage, job: Job, data: Any, model: str, shard_rows: int | None) -> tuple[list[Shard], str]:
    """The shards of this run, new or begun before: then it must be the same run."""
    old = manifests.read(storage)
    rows = shard_rows or (old or {"of": {}})["of"].get("shard_rows", plan.SHARD_ROWS)
    for folder in ("out", "errors", SPOOL, ""):
        storage.clean(folder)
    sources, shards = plan.planned(_files(storage, data), rows)
    new = manifests.manifest_of(job, model, sources, len(shards), rows)
    if old is not None and old["fingerprint"] != new["fingerprint"] and storage.names("out"):
        _drop_spooled(storage, old)
        manifests.check(old, new, storage.address)
    _check_new(storage, old)
    _drop_strays(storage, shards)
    _drop_spooled(storage, new)
    if old is None or old != new:
        manifests.write(storage, new)
    plan.write(storage, shards)
    return shards, new["fingerprint"]


def _check_new(storage: Storage, old: Mapping[str, Any] | None) -> None:
    """A folder that is no run's has nothing in the places of a run's files."""
    if old is not None:
        return
    foreign = [f"out/{name}" for name in sorted(storage.names("out"))] or [plan.FILE] * storage.exists(plan.FILE)
    if foreign:
        raise FileError(f"{storage.address} has {foreign[0]}, but no manifest.json of a run.\n  Give another folder.")


def _as_before(job: Job, old: Mapping[str, Any] | None) -> Job:
    """Methods and metrics in the order in which the run began with them: it is that of the columns."""
    if old is None:
        return job

    def ordered(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        return {**{name: given[name] for name in names if name in given}, **given}

    metrics, before = job.metrics, old["of"]["metrics"]
    if isinstance(metrics, Mapping) and isinstance(before, Mapping):
        metrics = ordered(metrics, before)
    return replace(job, methods=ordered(job.methods, old["of"]["methods"]), metrics=metrics)


def _entries(shards: list[Shard]) -> list[str]:
    """The names that the first row has, which is read by name and not by position from then on."""
    reader = Reader()
    try:
        rows = (given for shard in shards for _, given in reader(shard))
        return list(next((given for given in rows if isinstance(given, Mapping)), {}))
    finally:
        reader.close()


def _files(storage: Storage, data: Any) -> list[tuple[str, str]]:
    if isinstance(data, str | os.PathLike):
        place = os.fspath(data)
        whole = os.path.abspath(os.path.expanduser(place))
        try:
            return found(place, storage.address)
        except FileError:
            if is_local(place) and spool.is_images(whole):
                return spool.spooled(storage, spool.images(whole))
            raise
    data = _records(data)
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise InputError(f"data is {type(data).__name__}.\n  Give a file, a folder, a glob, or an iterable of rows.")
    return spool.spooled(storage, data)


def _records(data: Any) -> Any:
    """The rows of a data frame, which itself gives its columns; anything else as it is."""
    if hasattr(data, "itertuples") and hasattr(data, "columns"):  # pandas
        rows = data.itertuples(index=False, name=None)
        return ({n: None if _is_missing(v) else v for n, v in zip(data.columns, row, strict=True)} for row in rows)
    if hasattr(data, "iter_rows"):  # polars
        return data.iter_rows(named=True)
    if hasattr(data, "to_batches"):  # Arrow
        return (row for batch in data.to_batches() for row in batch.to_pylist())
    by_number = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Iterable)
    return (data[i] for i in range(len(data))) if by_number else data  # as torch's data sets


def _is_missing(value: Any) -> bool:
    """What pandas has where there is nothing: NaN, NaT or NA."""
    return (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in ("NaTType", "NAType")


def _drop_strays(storage: Storage, shards: list[Shard]) -> None:
    """Remove parts that are not in the plan: whoever reads out/*.parquet would have their rows too."""
    for folder, known in (
        ("out", {os.path.basename(name) for shard in shards for name in (shard.part, shard.maps)}),
        ("errors", {os.path.basename(shard.errors) for shard in shards}),
    ):
        strays = sorted(name for name in storage.names(folder) - known if not name.startswith((".", "_")))
        foreign = [name for name in strays if not _PART.fullmatch(name)]
        if foreign:
            raise FileError(
                f"{storage.path(folder)} has a file that is not of this run ({foreign[0]}).\n"
                "  Move it away: whoever reads the folder would read it too."
            )
        for name in strays:
            storage.remove(f"{folder}/{name}")


def _drop_spooled(storage: Storage, manifest: Mapping[str, Any]) -> None:
    """Remove rows that a run wrote down here and that are not of this one; the folder may have files of the user's."""
    known = {os.path.basename(source["path"]) for source in manifest["data"]}
    for name in storage.names(SPOOL) - known:
        if SPOOLED.fullmatch(name):
            storage.remove(f"{SPOOL}/{name}")


def _finish(storage: Storage, outcomes: Iterator[Outcome], shards: list[Shard], progress: bool | None) -> None:
    """Let all shards be done; what failed is told once, at the end."""
    failed, aside = 0, []
    try:
        with bar(sum(shard.rows for shard in shards), progress, "run", at_once=True, unit=" rows") as counted:
            for outcome in outcomes:
                if "aside" in outcome:
                    aside.append(outcome)
                failed += outcome.get("failed", 0)
                counted(outcome["rows"])
    finally:
        for folder in ("out", "errors"):
            storage.clean(folder)
    if failed:
        warn(
            f"{failed} rows could not be explained, or not by every method: see errors/ in {storage.address}.\n"
            f"  {_first_error(storage)}"
        )
    for outcome in aside:
        _set_aside(storage, outcome)


def _first_error(storage: Storage) -> str:
    """What went wrong with the first row that failed."""
    for name in sorted(storage.names("errors")):
        for line in (storage.read(f"errors/{name}") or b"").splitlines():
            told = json.loads(line)
            if told["kind"] != ASIDE:
                return f"The first of them, row {told['row']}: {told['error']}"
    return "None of them is written down any more: the same call tries them again."


def _set_aside(storage: Storage, outcome: Outcome) -> None:
    """Write down that a shard is left out, and say so."""
    shard = Shard(**{name: value for name, value in outcome.items() if name != "aside"})
    last = shard.row + shard.rows - 1
    line = {"row": shard.row, "last": last, "file": shard.file, "line": shard.line, "method": None}
    storage.put(shard.errors, (json.dumps({**line, "kind": ASIDE, "error": outcome["aside"]}) + "\n").encode())
    warn(
        f"Shard {shard.shard} (rows {shard.row} to {last}) was set aside: {outcome['aside']}. "
        "The same call tries it again."
    )
