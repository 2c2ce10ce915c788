"""How shards get to workers: one after the other here, to processes of this machine, or to actors of a Ray cluster.

Nothing here is needed to go on after an interruption: what is done is in the files.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from whence import errors
from whence.errors import ModelError, WhenceError
from whence.runs.plan import Shard
from whence.runs.shard import Worker

DEATHS = 3  # of workers, before their shard is set aside
Outcome = dict[str, Any]


def inline(worker: Worker, shards: Iterable[Shard]) -> Iterator[Outcome]:
    """In this process."""
    try:
        for shard in shards:
            yield worker(shard)
    finally:
        worker.reader.close()


class Crew(Protocol):
    """Workers elsewhere, each known by a number."""

    def start(self) -> int:
        """A new worker, which says when it is ready."""

    def give(self, worker: int, shard: Shard) -> None:
        """A shard for a worker that waits."""

    def next(self) -> tuple[int, Outcome | None]:
        """What the next worker has to say; None if it died."""

    def dismiss(self, worker: int) -> None:
        """No more work for this one."""

    def how(self, worker: int) -> str:
        """How a worker died."""

    def close(self) -> None:
        """Stop all of them, at once."""


def dispatched(crew: Crew, shards: Iterable[Shard], workers: int) -> Iterator[Outcome]:
    """Each shard by whoever is free. A worker that dies is replaced, and its shard is tried again."""
    source, again = iter(shards), deque[Shard]()
    deaths: Counter[int] = Counter()
    busy: dict[int, Shard | None] = {}  # None: still loading

    def following() -> Shard | None:
        return again.popleft() if again else next(source, None)

    def peeked() -> bool:
        """Whether there is a shard for a worker that is still loading; if not, nobody waits for it."""
        shard = following()
        if shard is not None:
            again.appendleft(shard)
        return shard is not None

    try:
        if not peeked():
            return
        for _ in range(workers):
            busy[crew.start()] = None
        while busy and (any(busy.values()) or peeked()):
            who, said = crew.next()
            had = busy.pop(who)
            if said is None:
                lost = -1 if had is None else had.shard
                deaths[lost] += 1
                reason = crew.how(who)
                if had is None and deaths[lost] == DEATHS:
                    raise ModelError(f"{DEATHS} workers died while they loaded the model ({reason}).")
                if had is not None and deaths[lost] < DEATHS:
                    again.append(had)
                elif had is not None:
                    yield {**had.plain(), "aside": f"it killed its worker {DEATHS} times ({reason})"}
                if peeked():
                    busy[crew.start()] = None
                continue
            if "fatal" in said:
                raise error_of(said)
            if had is not None:
                yield said
            shard = following()
            if shard is None:
                crew.dismiss(who)
            else:
                busy[who] = shard
                crew.give(who, shard)
    finally:
        crew.close()


def crew_of(executor: str, begin: dict[str, Any], workers: int, address: str | None = None, gpus: float = 0) -> Crew:
    """The workers of an executor, told how to begin."""
    if executor == "process":
        from whence.runs.processes import Processes

        return Processes(begin, gpus)
    from whence.runs.ray_actors import Actors

    return Actors(begin, workers, address, gpus)


def told(error: Exception) -> Outcome:
    """An error as a message."""
    own = isinstance(error, WhenceError)
    return {"fatal": str(error) if own else f"{type(error).__name__}: {error}", "kind": type(error).__name__}


def error_of(said: Outcome) -> WhenceError:
    """And back."""
    kind = getattr(errors, said["kind"], WhenceError)
    return kind(said["fatal"]) if issubclass(kind, WhenceError) else WhenceError(said["fatal"])
