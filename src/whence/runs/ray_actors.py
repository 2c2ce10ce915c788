"""Workers as actors of a Ray cluster: each holds the model, and reads and writes its shards itself, one task each."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from typing import Any

from whence.errors import ParameterError, WhenceError
from whence.runs.executors import told
from whence.runs.plan import Shard
from whence.util.libraries import imported

_SOCKETS = 107  # bytes that the path of a socket may have
_OF_RAY = 70  # of them, what Ray adds to its temporary folder
_PATIENCE, _ANSWER = 10, 30  # seconds without news, before the cluster is asked whether it is there; for its answer
_THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Actors:
    """A crew of actors. None is restarted by Ray: a shard that kills workers would kill them for ever."""

    def __init__(self, begin: dict[str, Any], workers: int, address: str | None = None, gpus: float = 0) -> None:
        self.ray = _library()
        self.begin = json.dumps({**begin, "device": "cuda" if gpus else None})
        self.started = _connect(self.ray, workers, address)
        self.gpus, self.actors, self.waiting = gpus, {}, {}  # type: ignore[var-annotated]
        self.reasons: dict[int, str] = {}
        self.count = 0
        try:
            _check(self.ray, workers, gpus)
        except BaseException:
            self.close()
            raise

    def start(self) -> int:
        number, self.count = self.count, self.count + 1
        kind = self.ray.remote(num_cpus=1, num_gpus=self.gpus, max_restarts=0, max_task_retries=0)(Actor)
        self.actors[number] = kind.remote()
        self.waiting[self.actors[number].begin.remote(self.begin)] = number
        return number

    def give(self, worker: int, shard: Shard) -> None:
        self.waiting[self.actors[worker].explain.remote(json.dumps(shard.plain()))] = worker

    def next(self) -> tuple[int, Any]:
        while not (found := self.ray.wait(list(self.waiting), num_returns=1, timeout=_PATIENCE)[0]):
            _check_alive(self.ray)
        (done,) = found
        worker = self.waiting.pop(done)
        try:
            return worker, self.ray.get(done)
        except self.ray.exceptions.RayError as error:
            self.reasons[worker] = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
            self._stop(worker)
            return worker, None

    def dismiss(self, worker: int) -> None:
        self._stop(worker)

    def _stop(self, worker: int) -> None:
        actor = self.actors.pop(worker, None)
        if actor is not None:
            self.ray.kill(actor)

    def how(self, worker: int) -> str:
        return self.reasons.get(worker, "no reason is known")

    def close(self) -> None:
        for worker in list(self.actors):
            self._stop(worker)
        if self.started:
            self.ray.shutdown()


class Actor:
    """One worker on the cluster; what it says is plain data."""

    def begin(self, message: str) -> dict[str, Any]:
        from whence.runs.begin import worker_of

        try:
            self.worker = worker_of(json.loads(message))
        except Exception as error:
            return told(error)
        return {"ready": True}

    def explain(self, shard: str) -> dict[str, Any]:
        try:
            return self.worker(Shard(**json.loads(shard)))
        except Exception as error:
            return told(error)


def _library() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    return imported("ray", 'executor="ray" needs', "'whence[ray]'")


def _connect(ray: Any, workers: int, address: str | None) -> bool:
    """Join the cluster at an address, or the one that this process already has, or start one here; whether it did."""
    if ray.is_initialized():
        return False
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {"env_vars": {**_THREADS, "PYTHONPATH": os.pathsep.join(dict.fromkeys([*paths, os.getcwd()]))}}
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    if address is not None:
        # a cluster's machines have their own installation: what to add to it is in the job's runtime environment
        ray.init(address=address, runtime_env={"env_vars": _THREADS}, **common)
        return True
    ray.init(  # "local": another cluster on this machine, alive or not, is not ours to take
        address="local", num_cpus=workers + 1, include_dashboard=False, _temp_dir=_short_folder(),
        runtime_env=environment, **common,
    )  # fmt: skip
    return True


def _short_folder() -> str | None:
    """A temporary folder whose sockets have short enough names; None is Ray's own choice."""
    usual = os.path.join(os.environ.get("RAY_TMPDIR", tempfile.gettempdir()), "ray")
    return "/tmp/ray" if len(usual) + _OF_RAY > _SOCKETS else usual


def _check_alive(ray: Any) -> None:
    """Ray waits for ever for machines that are gone, and for those that are to take their place."""
    found: list[float] = []
    asked = threading.Thread(target=lambda: found.append(ray.cluster_resources().get("CPU", 0)), daemon=True)
    asked.start()
    asked.join(_ANSWER)
    if not found or found[0] < 1:
        what = "has no machine left" if found else f"has not answered for {_ANSWER} seconds"
        raise WhenceError(
            f"The Ray cluster {what}.\n"
            "  What was finished before is kept: see to the cluster, and run again with the same call."
        )


def _check(ray: Any, workers: int, gpus: float) -> None:
    """Actors that the cluster has no room for would be waited for without a word."""
    there = ray.cluster_resources()
    for name, wanted in (("CPU", float(workers)), ("GPU", workers * gpus)):
        if wanted > there.get(name, 0):
            raise ParameterError(
                f"{workers} workers need {wanted:g} {name}s, but the Ray cluster has {there.get(name, 0):g}.\n"
                "  Give fewer workers, or a larger cluster."
            )
    free = ray.available_resources()
    if workers > free.get("CPU", 0):
        raise ParameterError(
            f"{workers} workers need as many CPUs, but other jobs leave {free.get('CPU', 0):g} of the cluster's "
            f"{there.get('CPU', 0):g}.\n  Give fewer workers, or wait."
        )
