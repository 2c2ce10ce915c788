"""Work of the server: a few threads, a line of jobs that wait, progress, and cancelling before the next pass.

A job is a function that gets its `Job` and tells events. Threads suffice: torch computes outside of Python's lock, and
explanations in several threads do not disturb each other. Before every pass of a model the job is checked
(`engine.scope.each_pass`): one that was cancelled, or that took too long, ends there.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from whence.engine.scope import each_pass
from whence.errors import WhenceError
from whence.server.limits import Limits, Refused

Event = tuple[str, dict[str, Any]]
Work = Callable[["Job"], None]
ENDS = ("done", "cancelled", "failed_all")
_EVERY = 0.1  # seconds between two events of progress
_SWEEP = 0.25  # seconds between two looks at all jobs
_log = logging.getLogger("whence.server")


class Stopped(BaseException):
    """Raised before a pass of a job that is not wanted any more; nothing that handles errors holds it up."""


class Job:
    """One piece of work: its events so far, and whether somebody listens."""

    def __init__(self, work: Work, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.id = secrets.token_urlsafe(12)
        self.work, self.seconds, self._loop = work, limits.seconds, loop
        self.events: list[Event] = []
        self.listeners, self.left = 0, time.monotonic()  # and when the last one left
        self.passes, self._told = 0, 0.0
        self.progress: dict[str, Any] = {}
        self.stop = threading.Event()
        self._deadline = float("inf")
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        return bool(self.events) and self.events[-1][0] in ENDS

    def tell(self, name: str, data: dict[str, Any]) -> None:
        """An event, from whatever thread."""
        self.events.append((name, data))
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the server has ended
            self.stop.set()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def run(self) -> None:
        """In a worker's thread."""
        if self.stop.is_set():
            return self.tell("cancelled", {})
        self._deadline = time.monotonic() + self.seconds
        try:
            with each_pass(self._next_pass):
                self.work(self)
            if not self.ended:
                self.tell("done", {})
        except Stopped:
            if self.stop.is_set():
                self.tell("cancelled", {"passes": self.passes})
            else:
                self.tell("failed_all", {
                    "error": f"This took longer than {self.seconds:g} s and was stopped.\n"
                    "  Choose fewer or cheaper methods, or a shorter text.", "kind": "time", "status": 503,
                })  # fmt: skip
        except Exception as error:
            self.tell("failed_all", told(error))
        return None

    def _next_pass(self) -> None:
        now = time.monotonic()
        if self.stop.is_set() or now > self._deadline:
            raise Stopped
        self.passes += 1
        if now - self._told > _EVERY:
            self._told = now
            self.tell("progress", {**self.progress, "passes": self.passes})

    async def follow(self, after: int = 0) -> AsyncIterator[tuple[int, Event]]:
        """The events from a number on, as they come; the last one ends it. It counts as a listener."""
        self.listeners += 1
        try:
            while True:
                changed = self._changed
                for number in range(after, len(self.events)):
                    yield number, self.events[number]
                    if self.events[number][0] in ENDS:
                        return
                    after = number + 1
                if self.ended and after >= len(self.events):
                    return  # whoever comes back has seen the end
                if after >= len(self.events):
                    await changed.wait()
        finally:
            self.listeners -= 1
            self.left = time.monotonic()


def told(error: Exception) -> dict[str, Any]:
    """An error as clients see it; one of ours says what to do, any other is reported to the server's log only."""
    if isinstance(error, Refused):
        return {"error": str(error), "kind": error.kind, "status": error.status}
    if isinstance(error, WhenceError):
        return {"error": str(error), "kind": type(error).__name__, "status": 422}
    if isinstance(error, MemoryError) or "memory" in str(error):
        return {"error": "There is not enough memory for this.\n  Choose a shorter text, or fewer samples.",
                "kind": "memory", "status": 503}  # fmt: skip
    _log.error("whence serve: a request failed", exc_info=error)
    return {"error": "This should not happen; the server's log says more.", "kind": "internal", "status": 500}


class Jobs:
    """All jobs: at most so many run, at most so many wait."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.closing = False  # set by the handler of a signal, which must not wait for anything
        self._jobs: dict[str, Job] = {}
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"whence-worker-{n}", daemon=True) for n in range(limits.running)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job.run()

    def start(self, work: Work) -> Job:
        """A new job at the end of the line; refused where the line is full."""
        if self.closing:
            raise Refused(503, "ending", "The server is about to end.\n  Start it again.")
        open_ = [job for job in self._jobs.values() if not job.ended]
        if len(open_) >= self.limits.running + self.limits.waiting:
            raise Refused(
                503, "busy", f"{len(open_)} jobs run or wait already, which is the limit.\n  Try again in a while."
            )
        job = Job(work, self.limits, asyncio.get_running_loop())
        self._jobs[job.id] = job
        self._queue.put(job)
        return job

    def get(self, name: str) -> Job:
        if name not in self._jobs:
            raise Refused(404, "unknown", "There is no such job, or it ended long ago.\n  Start it again.")
        return self._jobs[name]

    def cancel(self, name: str) -> None:
        self.get(name).stop.set()

    async def result(self, work: Work, gone: Callable[[], Any]) -> list[Event]:
        """All events of a job but for its progress; it is cancelled where the client is `gone`."""
        job = self.start(work)
        watch = asyncio.ensure_future(self._watched(job, gone))
        try:
            found = [event async for _, event in job.follow() if event[0] != "progress"]
        finally:
            watch.cancel()
            job.stop.set()
            self._jobs.pop(job.id, None)
        return found

    async def _watched(self, job: Job, gone: Callable[[], Any]) -> None:
        while not await gone():
            await asyncio.sleep(0.2)
        job.stop.set()

    async def sweep(self) -> None:
        """Cancels jobs that nobody listens to, and forgets those that ended."""
        while True:
            await asyncio.sleep(_SWEEP)
            now = time.monotonic()
            for job in list(self._jobs.values()):
                alone = not job.listeners and now - job.left > self.limits.grace
                if (alone or self.closing) and not job.ended:
                    job.stop.set()
                elif job.ended and not job.listeners and now - job.left > 10 * self.limits.grace:
                    del self._jobs[job.id]
            ended = [job for job in self._jobs.values() if job.ended and not job.listeners]
            for job in ended[: max(0, len(ended) - self.limits.kept)]:
                del self._jobs[job.id]

    def close(self, seconds: float = 3.0) -> bool:
        """Stops everything before its next pass; whether all threads ended in time."""
        for job in self._jobs.values():
            job.stop.set()
        for _ in self._threads:
            self._queue.put(None)
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)
