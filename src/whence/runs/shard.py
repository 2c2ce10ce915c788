"""One shard: read, explained, written. The same function for every executor; what is done already is not done again."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from whence.errors import WhenceError
from whence.runs import parts
from whence.runs.answers import Explainer, answers, facts, warned
from whence.runs.job import BATCH, Job
from whence.runs.plan import Shard
from whence.runs.reading import Reader
from whence.runs.rows import Row, class_of, classes_of, cut, kind_of, label_of, read
from whence.runs.storage import Storage


class Worker:
    """A model that is loaded, and shards given to it one by one."""

    def __init__(self, job: Job, model: Any, storage: Storage, fingerprint: str, retry_errors: bool = False,
                 entries: Sequence[str] = ()) -> None:  # fmt: skip
        self.entries = entries  # of the data's first row
        self.job, self.model, self.storage, self.fingerprint = job, model, storage, fingerprint
        self.retry_errors = retry_errors
        self.kind, self.reader = kind_of(model), Reader()
        self.metrics = metric_names(job.metrics)
        self.schema = parts.schema(job.methods, job.dtype, self.metrics)

    def __call__(self, shard: Shard) -> dict[str, Any]:
        """What became of the shard: how many rows, how many errors, and whether it had been done before."""
        done = parts.about(self.storage, shard, self.fingerprint, self.schema)
        if done is not None and not (self.retry_errors and done["errors"]):
            return {**done, "kept": True}
        before = self._kept(shard) if done is not None else {}
        work = _Work(self, shard, before)
        work.explain()
        return {**work.write(), "kept": False}

    def _kept(self, shard: Shard) -> dict[int, dict[str, Any]]:
        """The records of a finished part that have no error, by their place."""
        table = parts.table(self.storage, shard, self.fingerprint, self.schema)
        records = table.to_pylist()
        return {place: record for place, record in enumerate(records) if record["error"] is None}


def metric_names(given: Any) -> list[str]:
    if given is None:
        return []
    return [given] if isinstance(given, str) else list(given)


class _Work:
    """The records of one shard as they grow."""

    def __init__(self, worker: Worker, shard: Shard, before: Mapping[int, dict[str, Any]]) -> None:
        self.worker, self.shard, self.before = worker, shard, before
        self.records: list[dict[str, Any]] = [{"row": shard.row + place} for place in range(shard.rows)]
        self.lines = [0] * shard.rows
        self.errors: list[dict[str, Any]] = []
        self.maps: dict[str, Tensor] = {}
        self.kinds: dict[str, dict[str, Any]] = {}  # what is the same for all rows of a method

    def explain(self) -> None:
        rows = self._read()
        job = self.worker.job
        ask = Explainer(self.worker.model, self.worker.kind, self._options(), job.batch_size)
        targets = self._targets(rows) if job.options.get("target") == "label" else None
        rows = rows if targets is None else [row for row in rows if row.place in targets]
        for batch in cut(rows, job.batch_size or BATCH):
            self._predict(batch, ask)
            for label, method in job.methods.items():
                for some, a in ask(batch, method["method"], method["params"], targets):
                    self._note(some, a, label)
        if self.worker.metrics and rows:
            self._measure(rows)

    def _read(self) -> list[Row]:
        """The rows that can be read and are to be explained; the others get their error, or what they had."""
        job, folder, rows = self.worker.job, os.path.dirname(self.shard.file), []
        for place, (line, given) in enumerate(self.worker.reader(self.shard)):
            self.lines[place] = line
            if place in self.before:
                self._keep(place)
                continue
            try:
                if isinstance(given, WhenceError):
                    raise given
                row = read(given, place, self.worker.kind, job.columns, folder, self.worker.entries)
            except WhenceError as error:
                self._fail(place, error, None)
                continue
            label = label_of(row.label, self.worker.model)
            self.records[place].update(id=row.id, label=label, image=row.image)
            rows.append(row)
        return rows

    def _keep(self, place: int) -> None:
        record = dict(self.before[place])
        self.records[place] = record
        if any(record[f"shape_{label}"] is not None for label in self.worker.job.methods):
            from safetensors.torch import load

            maps = load(self.worker.storage.read(self.shard.maps) or b"")
            self.maps.update({name: t for name, t in maps.items() if name.startswith(f"{record['row']}/")})

    def _options(self) -> dict[str, Any]:
        options = dict(self.worker.job.options)
        if options.get("target") == "label":
            del options["target"]
        return options

    def _targets(self, rows: list[Row]) -> dict[int, Any]:
        """Each row's own label as its target."""
        found = {}
        for row in rows:
            try:
                number = class_of(row.label)
                model = self.worker.model
                if number is None and (row.label is None or not hasattr(model, "target")):
                    raise WhenceError(f"The row's label is {row.label!r}, which is not the number of a class.")
                found[row.place] = model.target(str(row.label)) if number is None else number
            except WhenceError as error:
                self._fail(row.place, error, None)
        return found

    def _predict(self, batch: list[Row], ask: Explainer) -> None:
        """The prediction where it is not what is explained, which takes a forward pass of its own."""
        if ask.options.get("target") is None and self.worker.job.options.get("target") != "label":
            return
        plain = {name: ask.options[name] for name in ("wrt",) if name in ask.options}
        for some, a in Explainer(ask.model, ask.kind, plain, ask.batch_size)(batch, "random", {}, None):
            if not isinstance(a, Exception):
                self._note_prediction(some, a)

    def _note_prediction(self, rows: list[Row], a: Any) -> None:
        likely = a.receipt.get("probability")
        for i, (row, own) in enumerate(zip(rows, facts(a), strict=True)):
            self.records[row.place].update(prediction=own["target"], probability=None if likely is None else likely[i])

    def _note(self, rows: list[Row], a: Any, label: str) -> None:
        if isinstance(a, Exception):
            for row in rows:
                self._fail(row.place, a, label)
            return
        if self.worker.job.options.get("target") is None:
            self._note_prediction(rows, a)
        self.kinds.setdefault(label, {"channels": a.receipt.get("channels"), "image_size": a.image_size})
        told = zip(rows, facts(a), answers(a, label, self.worker.job.dtype), warned(a, label), strict=True)
        for row, own, (columns, values), texts in told:
            record = self.records[row.place]
            for name, value in own.items():
                record.setdefault(name, value)
            record.update(columns)
            record.setdefault("warnings", []).extend(texts)
            if isinstance(values, Exception):
                self._fail(row.place, values, label)
            elif values is not None:
                self.maps[f"{record['row']}/{label}"] = values

    def _measure(self, rows: list[Row]) -> None:
        from whence.runs.measures import measured

        values, failures = measured(self.worker.job, self.worker.model, self.worker.kind, rows)
        for (place, column), value in values.items():
            self.records[place][column] = value
        for place, label, error in failures:
            self._fail(place, error, label)

    def _fail(self, place: int, error: Exception, label: str | None) -> None:
        text = str(error) or type(error).__name__
        kind = type(error).__name__
        where = {"row": self.shard.row + place, "file": self.shard.file, "line": self.lines[place]}
        self.errors.append({**where, "method": label, "kind": kind, "error": text})
        record = self.records[place]
        note = text if label is None else f"{label}: {text}"
        record["error"] = note if record.get("error") is None else f"{record['error']}\n{note}"

    def _below(self, label: str) -> bool:
        """Whether some value of a method is below 0."""
        lists = (record.get(f"values_{label}") for record in self.records)
        maps = (self.maps.get(f"{record['row']}/{label}") for record in self.records)
        return any(own is not None and bool((np.asarray(own) < 0).any()) for own in (*lists, *maps))

    def write(self) -> dict[str, Any]:
        """The errors, the maps, and the part last: with it the shard is done."""
        worker, shard = self.worker, self.shard
        if self.errors:
            self.errors.sort(key=lambda error: error["row"])
            lines = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in self.errors)
            worker.storage.put(shard.errors, lines.encode(errors="backslashreplace"))
        else:
            worker.storage.remove(shard.errors)
        named = {r[key] for r in self.records for key in ("label", "prediction", "target") if r.get(key) is not None}
        about: dict[str, Any] = {
            "errors": len(self.errors), "kinds": self.kinds, "classes": classes_of(named, worker.model),
            "gaps": [m for m in worker.job.methods if any(r.get(f"gap_{m}") is not None for r in self.records)],
            "signed": [m for m in worker.job.methods if self._below(m)],
            "failed": sum(record.get("error") is not None for record in self.records),
            "explained": {
                label: sum(r.get(f"values_{label}") is not None or r.get(f"shape_{label}") is not None
                           for r in self.records)
                for label in worker.job.methods
            },
        }  # fmt: skip
        if self.maps:
            from safetensors.torch import save

            content = save(self.maps)
            about["maps"] = hashlib.sha256(content).hexdigest()
            worker.storage.put(shard.maps, content)
        content = parts.to_bytes(self.records, worker.schema, shard, worker.fingerprint, about)
        worker.storage.put(shard.part, content)
        return {"shard": shard.shard, "row": shard.row, "rows": shard.rows, **about}
