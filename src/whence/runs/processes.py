"""Workers as processes of this machine: each loads the model itself, gets shards as lines of JSON, and answers so."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from whence.runs.plan import Shard


class Processes:
    """A crew of processes. They end with this one: their input ends."""

    def __init__(self, begin: dict[str, Any], gpus: float = 0) -> None:
        self.begin = json.dumps({**begin, "path": sys.path, "device": "cuda" if gpus else None})
        self.gpus = gpus
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.slots: dict[int, int] = {}  # which of the first n numbers a worker has: its place among the GPUs
        self.said: queue.Queue[tuple[int, Any]] = queue.Queue()
        self.count = 0

    def start(self) -> int:
        number, self.count = self.count, self.count + 1
        slot = next(i for i in range(len(self.slots) + 1) if i not in self.slots.values())
        process = subprocess.Popen(
            [sys.executable, "-m", "whence.runs.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=_environment(slot, self.gpus), process_group=0,  # Ctrl-C is for the driver, which stops its workers
        )  # fmt: skip
        self.processes[number], self.slots[number] = process, slot
        threading.Thread(target=self._listen, args=(number, process), daemon=True).start()
        self._send(number, self.begin)
        return number

    def _listen(self, number: int, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                try:
                    self.said.put((number, json.loads(line)))
                except ValueError:  # cut short by its death
                    break
        process.wait()
        self.said.put((number, None))

    def _send(self, number: int, line: str) -> None:
        pipe = self.processes[number].stdin
        assert pipe is not None
        with suppress(OSError):  # it is dead, which its listener reports
            pipe.write(line.encode() + b"\n")
            pipe.flush()

    def give(self, worker: int, shard: Shard) -> None:
        self._send(worker, json.dumps(shard.plain()))

    def next(self) -> tuple[int, Any]:
        while True:
            number, message = self.said.get()
            if number in self.processes:
                if message is None:
                    self.slots.pop(number, None)
                return number, message

    def dismiss(self, worker: int) -> None:
        process = self.processes.pop(worker)
        self.slots.pop(worker, None)
        if process.stdin is not None:
            process.stdin.close()
        process.wait()

    def how(self, worker: int) -> str:
        code = self.processes[worker].wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            if process.stdin is not None:
                with suppress(OSError):  # what was still to be sent
                    process.stdin.close()


def _environment(slot: int, gpus: float) -> dict[str, str]:
    """One thread for each worker: so many workers as cores share them without waiting for each other."""
    found = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    found["PYTHONPATH"] = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    if gpus:
        first = int(slot * gpus)
        found["CUDA_VISIBLE_DEVICES"] = ",".join(str(first + i) for i in range(max(1, int(gpus))))
    return found
