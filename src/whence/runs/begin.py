"""How a worker begins, wherever it is: load the model by its name, and see that it is the one which the run is of."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from whence.errors import ModelError
from whence.runs.job import unpacked
from whence.runs.models import identity, limit_threads, loaded
from whence.runs.shard import Worker
from whence.runs.storage import Storage


def worker_of(begin: Mapping[str, Any]) -> Worker:
    """A worker by the message that it gets first."""
    limit_threads(int(begin.get("threads", 1)))
    job = unpacked(begin["job"])
    model = loaded(job.model, job.task, job.long, begin.get("device"))
    found = identity(model, job.model)
    if found != begin["identity"]:
        raise ModelError(
            f"On {socket.gethostname()}, {job.model!r} is another model than the run began with.\n"
            "  Give every worker the same files and the same code."
        )
    return Worker(job, model, Storage(begin["out"]), begin["fingerprint"], bool(begin.get("retry_errors")))
