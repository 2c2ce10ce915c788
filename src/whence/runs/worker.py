"""`python -m whence.runs.worker`: a worker process. It reads lines of JSON, and writes one for each."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from typing import Any


def main() -> None:
    """Load the model, then explain shards until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a model prints goes to standard error
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    begin = json.loads(lines.get())
    sys.path[:] = [*sys.path, *(place for place in begin["path"] if place not in sys.path)]
    from whence.runs.begin import worker_of
    from whence.runs.executors import told
    from whence.runs.plan import Shard

    try:
        worker = worker_of(begin)
        answer({"ready": True})
        while True:
            answer(worker(Shard(**json.loads(lines.get()))))
    except Exception as error:
        answer(told(error))


def _listen(lines: queue.Queue[str]) -> None:
    """The input's lines; where it ends, so does this process, whatever it is doing: its driver is gone or done."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
