"""Many clients at once: no answer is lost or mixed up, memory stays flat, and one that fails harms no other."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from tests.support.server import Server, served

METHODS = ("integrated_gradients", "deeplift", "attnlrp", "gradient", "input_x_gradient", "leave_one_out")
SUBJECTS = "you he this that nobody everybody the film the plot my neighbour".split()
ENDS = "is great|is an idiot|was never that bad|makes no sense at all|should go home|is kind and warm".split("|")


def questions(model: str, count: int) -> list[dict[str, Any]]:
    """Different ones, in an order of their own."""
    draw = random.Random(0)
    found = [
        {"kind": "explain", "model": model, "input": {"text": f"{draw.choice(SUBJECTS)} {draw.choice(ENDS)} {i}"},
         "target": draw.choice([0, 1]), "methods": draw.sample(METHODS, 2)}
        for i in range(count)
    ]  # fmt: skip
    return found


def by_clients(clients: int, asked: list[Any], ask: Callable[[int, Any], None]) -> None:
    """Each client asks its own, one after the other, all clients at once."""
    errors: list[BaseException] = []

    def client(number: int) -> None:
        try:
            for place in range(number, len(asked), clients):
                ask(place, asked[place])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def same_as_explain(model: Any, body: dict[str, Any], told: dict[str, Any]) -> None:
    assert [one["method"] for one in told["results"]] == body["methods"]
    for one in told["results"]:
        a = whence.explain(model, body["input"]["text"], method=one["method"], target=body["target"]).merge_words()
        assert [unit["text"] for unit in one["units"]] == a.units[0]
        assert torch.allclose(torch.tensor(one["values"]), a.values[0], rtol=1e-5, atol=1e-7)
        assert one["targets"][0]["score"] == pytest.approx(float(a.output_value[0]), rel=1e-5)


def loaded(server: Server, name: str, model: Any, count: int, clients: int) -> None:
    """Questions by jobs and at once, with some between them that fail; each answer is that of its own question."""
    asked, answers = questions(name, count), {}

    def ask(place: int, body: dict[str, Any]) -> None:
        if place % 3 == 0:  # as the page does
            events = list(server.events(body))
            assert events[-1][0] == "done"
            answers[place] = {"results": [data for kind, data in events if kind == "result"]}
        else:
            answers[place] = server.post("/api/ask", body)
        if place % 10 == 0:
            assert server.send("POST", "/api/ask", {**body, "target": 99})[0] == 422
            assert server.send("POST", "/api/predict", b"nonsense")[0] == 422

    by_clients(clients, asked, ask)
    assert sorted(answers) == list(range(count))  # none is lost
    for place, body in enumerate(asked):
        same_as_explain(model, body, answers[place])
    assert "Traceback" not in server.log.read_text()


def test_answers_are_not_mixed_up(server: Server) -> None:
    loaded(server, "zoo:questions", whence.load("zoo:questions"), 40, 20)


@pytest.mark.shared
def test_two_hundred_requests_by_twenty_clients_on_a_real_model(data: Any, tmp_path: Path) -> None:
    folder = data("bert-tiny-toxicity")
    with served(tmp_path, "--model", str(folder)) as own:
        loaded(own, folder.name, whence.load(folder), 200, 20)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_stays_flat_over_two_thousand_requests(tmp_path: Path) -> None:
    with served(tmp_path, "--model", "zoo:questions") as own:
        asked = questions("zoo:questions", 2400)
        for body in asked:
            body["methods"] = body["methods"][:1]

        def ask(place: int, body: dict[str, Any]) -> None:
            if place % 4 == 0:
                assert list(own.events(body))[-1][0] == "done"
            elif place % 4 == 1:
                own.post("/api/predict", {name: body[name] for name in ("model", "input")})
            else:
                own.post("/api/ask", body)

        by_clients(8, asked[:400], ask)  # until what is kept is full
        before = own.memory()
        by_clients(8, asked[400:], ask)
        after = own.memory()
        print(json.dumps({"before": before, "after": after}))
        assert after - before < 40_000  # kilobytes; 20 of each request's own would be as many
