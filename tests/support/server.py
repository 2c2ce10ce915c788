"""The one start of `whence serve` for tests, in a process of its own, and clients that speak to it over sockets."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Server:
    """Where it is, and its process."""

    process: subprocess.Popen[str]
    port: int
    address: str  # as it printed it
    log: Path

    def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 120
    ) -> tuple[int, dict[str, str], bytes]:
        """One request by hand; a body that is no bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            own = {"Content-Type": "application/json"} if content is not None else {}
            given = own | (headers or {})
            connection.putrequest(method, quote(path, safe="/:?&=%"), skip_host="Host" in given)
            for name, value in given.items():
                connection.putheader(name, value)
            if content is not None and "Content-Length" not in given:
                connection.putheader("Content-Length", str(len(content)))
            connection.endheaders(content)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path: str, **how: Any) -> Any:
        status, _, content = self.send("GET", path, **how)
        assert status == 200, content[:500]
        return json.loads(content)

    def post(self, path: str, body: Any, **how: Any) -> Any:
        status, _, content = self.send("POST", path, body, **how)
        assert status == 200, content[:500]
        return json.loads(content)

    def ask(self, **body: Any) -> Any:
        return self.post("/api/ask", body)

    def refused(self, method: str, path: str, body: Any = None, **how: Any) -> tuple[int, str, str]:
        """The status, the kind and the text of an error."""
        status, _, content = self.send(method, path, body, **how)
        told = json.loads(content)
        return status, told["kind"], told["error"]

    def events(self, body: Any) -> Iterator[tuple[str, Any]]:
        """The events of a job as they come; closing the iterator hangs up."""
        job = self.post("/api/jobs", body)["id"]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request("GET", f"/api/jobs/{job}/events")
            answer = connection.getresponse()
            name = ""
            while line := answer.readline().decode():
                kind, _, value = line.rstrip("\n").partition(": ")
                if kind == "event":
                    name = value
                elif kind == "data":
                    yield name, json.loads(value)
        finally:
            connection.close()

    def memory(self) -> int:
        """Kilobytes of this process."""
        told = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+)", told)[0])

    def cpu(self) -> float:
        """Seconds of this process, so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(folder: Path, *arguments: str, program: str = "") -> Iterator[Server]:
    """`whence serve` with these arguments, until the block ends; `program` is Python that runs before it."""
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name)
    log = folder / "server.log"
    start = f"{program}\nimport sys; from whence.__main__ import main; sys.exit(main())"
    places = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with open(log, "w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", start, "serve", "--port", "0", *arguments], stdout=subprocess.PIPE, stderr=errors,
            text=True, env={**os.environ, "PYTHONPATH": places, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
            cwd=folder,
        )  # fmt: skip
        assert process.stdout is not None
        told = process.stdout.readline()
        try:
            found = re.search(r"http://\S+:(\d+)/\S*", told)
            assert found is not None, told + log.read_text()
            server = Server(process, int(found[1]), found[0], log)
            _wait(server)
            yield server
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _wait(server: Server) -> None:
    """Until it answers."""
    for _ in range(600):
        try:
            server.send("GET", "/docs")
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(server.log.read_text())


def chat_folder(folder: Path) -> Path:
    """The folder of a small language model with a chat template."""
    from tests.support.language import language_model

    made = language_model("llama")
    made.model.float().save_pretrained(folder)
    made.tokenizer.save_pretrained(folder)
    return folder


def png(width: int, height: int) -> bytes:
    """A picture of one colour, whose file is small whatever its size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = zlib.compressobj(9)
    body = b"".join(lines.compress(b"\0" * (width + 1)) for _ in range(height)) + lines.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
