"""Evaluations by several workers: the same scores as here, and the same result file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from tests.support.runs import MODEL, rows, small
from whence.cli import main

X = torch.tensor([row["inputs"] for row in rows(24)])
GIVEN: dict[str, Any] = {
    "methods": {"input_x_gradient": None, "ig": {"method": "integrated_gradients"}}, "metrics": ["comprehensiveness"],
    "chunk": 6,
}  # fmt: skip


def scores(board: whence.Scoreboard) -> dict[Any, Any]:
    return {key: {place: r.value for place, r in sorted(found.items())} for key, found in board.results.items()}


def test_a_model_may_be_given_by_its_name() -> None:
    assert scores(whence.evaluate(MODEL, X, **GIVEN)) == scores(whence.evaluate(small().eval(), X, **GIVEN))


@pytest.mark.slow
def test_workers_find_the_same_scores_and_go_on_with_a_result_file(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    whole = scores(whence.evaluate(MODEL, X, **GIVEN))
    spread = whence.evaluate(MODEL, X, executor="process", workers=2, resume=tmp_path / "a.jsonl", **GIVEN)
    assert scores(spread) == whole
    lines = (tmp_path / "a.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 5
    (tmp_path / "a.jsonl").write_text("".join(lines[:3]))
    assert (
        scores(whence.evaluate(MODEL, X, resume=tmp_path / "a.jsonl", **GIVEN)) == whole
    )  # here, what was begun there
    (tmp_path / "a.jsonl").write_text("".join(lines[:2]))
    again = whence.evaluate(MODEL, X, executor="process", workers=2, resume=tmp_path / "a.jsonl", **GIVEN)
    assert scores(again) == whole


@pytest.mark.slow
def test_recommend_with_workers() -> None:
    here, there = (
        whence.recommend(MODEL, X, methods=["gradient", "input_x_gradient"], rows=12, **how)
        for how in ({}, {"executor": "process", "workers": 2})
    )
    assert scores(here.board) == scores(there.board)
    assert here.best == there.best


def test_what_workers_cannot_be_given_is_refused() -> None:
    with pytest.raises(whence.ParameterError, match="a model that each worker can load itself"):
        whence.evaluate(small(), X, executor="process", **GIVEN)
    with pytest.raises(whence.InputError, match="data is a stream"):
        whence.evaluate(MODEL, iter(X), executor="process", **GIVEN)
    with pytest.raises(whence.ParameterError, match="plain values and tensors, but .* holds function"):
        whence.evaluate(MODEL, X, executor="process", **{**GIVEN, "methods": {"mine": lambda *a: a}})


@pytest.mark.slow
def test_workers_read_long_texts_as_they_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "rows.jsonl").write_text('{"text": "a warm film"}\n{"text": "' + "dull " * 600 + '"}\n')
    options = ["--model", "zoo:sentiment", "--file", str(tmp_path / "rows.jsonl"), "--methods", "gradient", "--json"]
    options += ["--metrics", "sparseness", "--long", "truncate", "--task", "text-classification"]
    torch.set_num_threads(1)
    found = []
    for how in ([], ["--executor", "process", "--workers", "1"]):
        assert main(["evaluate", *options, *how]) == 0
        found.append(json.loads(capsys.readouterr().out))
    here, there = ({key: told[key] for key in told if key not in ("settings", "cost")} for told in found)  # no times
    assert here == there
    assert main(["evaluate", *options[:-4], "--executor", "process", "--task", "question-answering"]) == 2
    assert "but task='question-answering' was given" in capsys.readouterr().err


def test_how_a_model_is_loaded_is_asked_of_names_alone() -> None:
    with pytest.raises(whence.ParameterError, match="task= and long= are for a model by its name.\n.*whence.load"):
        whence.evaluate(small(), X, long="truncate", **GIVEN)
    with pytest.raises(whence.ParameterError, match="long='cut' is not allowed"):
        whence.recommend(MODEL, X, long="cut")
