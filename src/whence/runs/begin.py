"""How a worker begins, wherever it is: load the model by its name, and see that it is the one which the run is of."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from whence.errors import ModelError
from whence.runs.job import unpacked
from whence.runs.models import identity, limit_threads, loaded
from whence.runs.plan import Shard
from whence.runs.shard import Worker
from whence.runs.storage import Storage


def worker_of(begin: Mapping[str, Any]) -> Callable[[Shard], dict[str, Any]]:
    """A worker by the message that it gets first: of a run, or of an evaluation."""
    limit_threads(int(begin.get("threads", 1)))
    if "call" in begin:
        from whence.runs.evaluation import Chunks

        return Chunks(_model(begin["model"], begin["task"], begin["long"], begin), begin["call"])
    job = unpacked(begin["job"])
    model = _model(job.model, job.task, job.long, begin)
    return Worker(job, model, Storage(begin["out"]), begin["fingerprint"], bool(begin.get("retry_errors")),
                  begin.get("entries", ()))  # fmt: skip


def _model(name: str, task: str | None, long: str, begin: Mapping[str, Any]) -> Any:
    model = loaded(name, task, long, begin.get("device"))
    if identity(model, name) != begin["identity"]:
        raise ModelError(
            f"On {socket.gethostname()}, {name!r} is another model than the run began with.\n"
            "  Give every worker the same files and the same code."
        )
    return model
