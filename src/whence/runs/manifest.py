"""manifest.json: what a run is of, as one fingerprint, and what has changed where another one is asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from whence import __version__
from whence.errors import FileError
from whence.evaluation.fingerprint import said
from whence.runs.job import Job
from whence.runs.sources import Source
from whence.runs.storage import Storage

FILE = "manifest.json"
VERSION = 1  # of the files' form


def manifest_of(job: Job, identity: str, sources: Sequence[Source], shards: int, shard_rows: int) -> dict[str, Any]:
    """What is written down about a run."""
    of = {
        "version": VERSION, "whence": __version__, "model": identity, "task": job.task, "long": job.long,
        "methods": {label: _checked(own) for label, own in job.methods.items()}, "options": said(dict(job.options)),
        "metrics": said(job.metrics), "columns": dict(job.columns), "batch_size": job.batch_size, "dtype": job.dtype,
        "shard_rows": shard_rows,
        "data": hashlib.sha256(json.dumps([[s.digest, s.kind, s.rows] for s in sources]).encode()).hexdigest(),
    }  # fmt: skip
    of = json.loads(json.dumps(of))
    return {
        "fingerprint": fingerprint_of(of), "of": of, "model": job.model, "rows": sum(s.rows for s in sources),
        "shards": shards, "data": [asdict(source) for source in sources], "made_with": _versions(),
    }  # fmt: skip


def fingerprint_of(of: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()


def _checked(own: Mapping[str, Any]) -> Any:
    """A method by its own name, its parameters complete."""
    from whence.methods import methods

    name, preset = methods.resolve(own["method"])
    return {"method": name, "params": said(methods[name].check({**preset, **own["params"]}))}


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("torch", "transformers", "pyarrow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def read(storage: Storage) -> dict[str, Any] | None:
    """The manifest of a folder; None where no run was begun there."""
    content = storage.read(FILE)
    if content is None:
        return None
    try:
        found = json.loads(content)
        if found["of"]["version"] == VERSION and found["fingerprint"] == fingerprint_of(found["of"]):
            return found
        reason = "it is of another version, or its fingerprint is another"
    except (ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise FileError(f"{storage.path(FILE)} is not the manifest of a run: {reason}.\n  Give another folder.")


def write(storage: Storage, manifest: Mapping[str, Any]) -> None:
    storage.put(FILE, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())


def check(old: Mapping[str, Any], new: Mapping[str, Any], place: str) -> None:
    """Refuse to go on with another run in the same folder."""
    changed = [name for name in new["of"] if old["of"].get(name) != new["of"][name]]
    if not changed:
        return
    lines = [_difference(name, old, new) for name in changed]
    raise FileError(
        f"{place} holds a run that differs from this one:\n  " + "\n  ".join(lines)
        + "\n  Give another folder, or the call that it began with."
    )  # fmt: skip


def _difference(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    if name == "data":
        return f"data: {_data(old['data'], new['data'])}"
    called = f" ({old['model']} before, now {new['model']})" * (name == "model" and old["model"] != new["model"])
    return f"{name}: " + "; ".join(_changes("", old["of"].get(name), new["of"][name])) + called


def _changes(place: str, a: Any, b: Any) -> list[str]:
    """What is another in two values, entry by entry where both have entries."""
    if not isinstance(a, dict) or not isinstance(b, dict):
        return [f"{place} was {_short(a)}, is {_short(b)}".lstrip()]
    keys = [key for key in {**a, **b} if a.get(key) != b.get(key)]
    at = {key: place if key == "params" else f"{place}.{key}".lstrip(".") for key in keys}
    return [one for key in keys for one in _changes(at[key], a.get(key), b.get(key))]


def _data(old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]) -> str:
    for a, b in zip(old, new, strict=False):
        if a["digest"] != b["digest"]:
            size = f"{a['rows']} rows in {a['size']} bytes, now {b['rows']} in {b['size']}"
            return f"{b['path']} has other contents ({size})"
    return f"there were {len(old)} files, now there are {len(new)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 90 else f"{text[:86]} …"
