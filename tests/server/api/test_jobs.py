"""Jobs: progress, cancelling, clients that go away, limits of time and number, and how the server ends."""

from __future__ import annotations

import http.client
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server, served

SHORT = {"model": "zoo:questions", "input": {"text": "How many moons does Jupiter have?"}}
LONG = {  # thousands of passes
    "kind": "explain", "model": "zoo:questions", "input": {"text": "Who wrote the first book about the far moon?"},
    "methods": ["smoothgrad"], "options": {"smoothgrad": {"samples": 10_000}},
}  # fmt: skip
TIGHT = (
    "import functools, whence.server.app as app\n"
    "app.Limits = functools.partial(app.Limits, running=1, waiting=2, seconds=4.0, tokens=12, grace=1.0, upload=2.0)"
)


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that does one thing at a time, and none for long."""
    pytest.importorskip("transformers")
    with served(tmp_path_factory.mktemp("tight"), "--model", "zoo:questions", program=TIGHT) as found:
        found.get("/api/models/zoo:questions")  # loaded
        yield found


_SAMPLED = ("shapley", "smoothgrad", "expected_gradients", "kernel_shap", "lime")
LONGER = {**LONG, "methods": list(_SAMPLED), "options": {name: {"samples": 10_000} for name in _SAMPLED}}  # minutes


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that does one thing at a time, for as long as somebody wants it: only going away ends long work."""
    pytest.importorskip("transformers")
    program = TIGHT.replace("seconds=4.0", "seconds=3600.0")
    with served(tmp_path_factory.mktemp("patient"), "--model", "zoo:questions", program=program) as found:
        found.get("/api/models/zoo:questions")  # loaded
        yield found


def idle(server: Server) -> bool:
    """Whether its process computes nothing for a while."""
    for _ in range(20):
        before = server.cpu()
        time.sleep(0.5)
        if server.cpu() - before < 0.1:
            return True
    return False


def test_a_job_tells_its_progress_and_its_results(server: Server) -> None:
    methods = ["integrated_gradients", "grad_cam", "gradient"]
    fresh = {**SHORT, "input": {"text": "Who asked this question, and nobody before?"}}  # no answer of it is kept
    told = list(server.events({"kind": "explain", **fresh, "methods": methods}))
    names = [name for name, _ in told]
    assert [name for name in names if name != "progress"] == ["result", "failed", "result", "done"]
    first = next(data for name, data in told if name == "progress")
    assert (first["done"], first["of"], first["method"]) == (0, 3, "integrated_gradients")
    failed = next(data for name, data in told if name == "failed")
    assert failed["method"] == "grad_cam"
    assert failed["error"].startswith("Lays a layer's maps over an image")
    assert told[-1][1]["methods"] == ["integrated_gradients", "gradient"]
    assert told[-1][1]["passes"] >= 5


def test_a_reader_that_comes_back_reads_on(server: Server) -> None:
    body = {"kind": "explain", **SHORT, "methods": ["gradient", "deeplift"]}
    job = server.post("/api/jobs", body)["id"]
    _, headers, whole = server.send("GET", f"/api/jobs/{job}/events")
    assert headers["content-type"].startswith("text/event-stream")
    parts = whole.decode().split("\n\n")[:-1]
    _, _, rest = server.send("GET", f"/api/jobs/{job}/events", headers={"Last-Event-ID": "1"})
    assert rest.decode().split("\n\n")[:-1] == parts[2:]
    for last in (str(len(parts) - 1), "100"):  # whoever has seen the end need not come back
        assert server.send("GET", f"/api/jobs/{job}/events", headers={"Last-Event-ID": last}, timeout=10)[0] == 204
    _, _, again = server.send("GET", f"/api/jobs/{job}/events", headers={"Last-Event-ID": "9" * 5000})
    assert again == whole


def test_a_job_is_cancelled_before_its_next_pass(tight: Server) -> None:
    events = tight.events(LONG)
    assert next(events)[0] == "progress"
    job = next(name for name in _jobs(tight, events))
    assert tight.send("DELETE", f"/api/jobs/{job}")[0] == 200
    name, data = list(events)[-1]
    assert name == "cancelled"
    assert data["passes"] < 10_000
    assert idle(tight)


def _jobs(server: Server, events: Iterator[Any]) -> Iterator[str]:
    """The job that a stream is of: its own frame knows it."""
    yield events.gi_frame.f_locals["job"]  # type: ignore[attr-defined]


def answers(server: Server) -> bool:
    """Whether the one worker is free again, long before the work that it had would have been done."""
    body = {"kind": "explain", **SHORT, "methods": ["gradient"]}
    return bool(server.post("/api/ask", body, timeout=60)["results"])


def test_a_client_that_goes_away_stops_its_job(patient: Server) -> None:
    events = patient.events(LONGER)
    assert next(events)[0] == "progress"
    events.close()  # hangs up
    assert answers(patient)
    assert idle(patient)


def test_a_client_that_waits_for_an_answer_and_goes_away_stops_the_work(patient: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", patient.port)
    connection.request("POST", "/api/ask", json.dumps(LONGER), {"Content-Type": "application/json"})
    time.sleep(0.5)
    connection.close()
    assert answers(patient)
    assert idle(patient)


def test_a_job_that_nobody_listens_to_is_cancelled(tight: Server) -> None:
    job = tight.post("/api/jobs", LONG)["id"]
    assert tight.ask(kind="explain", **SHORT, methods=["gradient"])["results"]
    _, _, told = tight.send("GET", f"/api/jobs/{job}/events")
    assert "event: cancelled" in told.decode()


def test_work_that_takes_too_long_is_stopped(tight: Server) -> None:
    status, kind, text = tight.refused("POST", "/api/ask", LONG)
    assert (status, kind) == (503, "time")
    assert text.startswith("This took longer than 4 s and was stopped.\n  Choose")
    assert idle(tight)


def test_too_many_jobs_are_refused_and_those_before_are_answered(tight: Server) -> None:
    found: list[Any] = []

    def ask() -> None:
        found.append(tight.send("POST", "/api/ask", {"kind": "explain", **SHORT, "methods": ["gradient"]}))

    blocking = tight.events(LONG)
    assert next(blocking)[0] == "progress"
    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads[:1]:
        thread.join(0.5)
    blocking.close()
    for thread in threads:
        thread.join()
    refused = [answer for answer in found if answer[0] != 200]
    assert {answer[0] for answer in refused} <= {503}
    assert 0 < len(refused) <= 4
    assert all(answer[1]["retry-after"] == "2" for answer in refused)
    assert json.loads(refused[0][2])["error"].startswith("3 jobs run or wait already, which is the limit.")


def test_a_text_of_too_many_tokens_is_refused(tight: Server) -> None:
    """The server's own limit, where the model's is larger."""
    text = " ".join(["moon"] * 20)
    status, kind, told = tight.refused("POST", "/api/predict", {"model": "zoo:questions", "input": {"text": text}})
    assert (status, kind) == (413, "tokens")
    assert told == "The text has 20 tokens, and the limit is 12.\n  Shorten it."


def test_a_body_that_comes_too_slowly_is_given_up(tight: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", tight.port, timeout=30)
    connection.putrequest("POST", "/api/predict")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"{")  # and no more
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["kind"]) == (408, "slow")
    connection.close()


def test_unknown_jobs(server: Server) -> None:
    for method, path in (("GET", "/api/jobs/nothing/events"), ("DELETE", "/api/jobs/nothing")):
        assert server.refused(method, path)[:2] == (404, "unknown")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_the_server_ends_in_good_order_while_it_works(tmp_path: Path, name: str) -> None:
    with served(tmp_path, "--model", "zoo:questions") as own:
        own.get("/api/models/zoo:questions")
        streams = [own.events(LONG) for _ in range(2)]  # two run
        for events in streams:
            assert next(events)[0] == "progress"
        own.post("/api/jobs", LONG)  # and one waits
        own.process.send_signal(getattr(signal, name))
        assert own.process.wait(30) == 0
        assert [list(events)[-1][0] for events in streams] == ["cancelled", "cancelled"]
        assert "Traceback" not in own.log.read_text()


def test_a_port_that_is_taken_is_told(server: Server) -> None:
    from whence.cli import main

    # what is not refused would serve here for ever
    assert main(["serve", "--port", str(server.port), "--model", "zoo:questions"]) == 2
    assert main(["serve", "--host", "nowhere.invalid", "--port", "0"]) == 2
    assert main(["serve", "--port", "70000"]) == 2


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib.util

    from whence.cli import main

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name))
    assert main(["serve"]) == 2
    told = capsys.readouterr().err
    assert told == "whence: whence serve needs uvicorn, which is not installed.\n  pip install 'whence[serve]'\n"
    monkeypatch.undo()
    assert main(["serve", "--model", "no/such/folder/here", "--port", "0"]) == 2
    assert "There is no folder" in capsys.readouterr().err
    assert main(["serve", "--model", "zoo:questions", "--run", "nowhere", "--port", "0"]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
