"""Two runs compared: what is the same, what was changed on purpose and is found again, and the exit code."""

from __future__ import annotations

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whence
from tests.support.browser import scroll_width
from tests.support.runs import Small, rows
from whence.cli.main import main
from whence.runs.opened import Run

TEXTS = [
    f"{a} {b} film {c}" for a in ("a", "the", "this") for b in ("warm", "dull", "moving") for c in (".", "!", "<b>")
]
METHODS = ["integrated_gradients", "attnlrp"]


def with_less(word: str, how_much: float) -> Any:
    """The zoo's sentiment model, one word's vector made smaller."""
    model = whence.load("zoo:sentiment")
    number = model.tokenizer(word, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        model.model.get_input_embeddings().weight[number] *= how_much
    return model


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    models = {"before": whence.load("zoo:sentiment"), "after": with_less("dull", 0.3)}
    return {
        name: whence.run(
            model, folder / "rows.jsonl", methods=METHODS, out=folder / name, target="positive", shard_rows=10
        )
        for name, model in models.items()
    }


def test_a_run_does_not_differ_from_itself(runs: dict[str, Run]) -> None:
    found = whence.diff(runs["before"], runs["before"])
    assert (found.rows, found.changed, found.alone, found.predictions) == (27, 0, (0, 0), [])
    assert found.change == {"rows": 0.0, "predictions": 0.0, "explanations": pytest.approx(0.0, abs=1e-12)}
    assert all(unit.mean == unit.low == unit.high == 0 for unit in found.units())
    assert found.exceeded(1e-9) == []


def test_the_word_that_was_changed_is_the_word_that_changed_most(runs: dict[str, Run]) -> None:
    found = whence.diff(runs["before"], runs["after"])
    for method in METHODS:
        (first, *_) = found.units(method)
        assert first.name == "dull"
        assert first.mean > first.low > 0  # it no longer speaks against "positive" as much
        assert first.rows == 9
        assert found.agreement[method].mean < 1
        slow = [
            _dull(b) - _dull(a) for a, b in zip(runs["before"][method], runs["after"][method], strict=True)
            if "dull" in str(a.text)
        ]  # fmt: skip
        assert abs(first.mean - float(np.mean(slow))) < 1e-6
    table_a, table_b = (runs[name].to_pandas() for name in ("before", "after"))
    assert found.changed == int((table_a.prediction != table_b.prediction).sum())
    assert all("dull" in note.about["text"] for note in found.explanations[:5])


def _dull(a: whence.Attribution) -> float:
    merged = a.merge_words()
    assert merged.units is not None
    return float(merged.values[0][merged.units[0].index("dull")])


def test_two_methods_of_one_run_are_compared(runs: dict[str, Run]) -> None:
    run = runs["before"]
    found = whence.diff(run, run, methods={"integrated_gradients": "attnlrp"})
    summary = run.summary()
    expected = summary.agreement["integrated_gradients", "attnlrp"]
    (mean,) = found.agreement.values()
    assert mean.mean == pytest.approx(expected.mean, abs=1e-12)
    assert (mean.low, mean.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert list(found.pairs) == ["integrated_gradients → attnlrp"]


def test_the_page_is_static_and_escaped(runs: dict[str, Run], tmp_path: Path) -> None:
    page = whence.diff(runs["before"], runs["after"]).to_html(tmp_path / "d.html")
    assert (tmp_path / "d.html").read_text() == page
    assert "<script" not in page
    assert "<b>.</b>" not in page
    assert "&lt;" in page
    assert not re.search(r"""(src|href)=["']?(https?:|//)|url\((?!data:)""", page)
    assert "Gained weight" in page


@pytest.mark.slow
def test_pages_are_as_wide_as_the_window(tmp_path: Path) -> None:
    lines = [{"text": "so dull " * n, "id": "x" * 300, "label": "positive"} for n in range(1, 9)]
    runs = [
        whence.run("zoo:sentiment", lines, methods=["gradient"], out=tmp_path / target, target=target)
        for target in ("positive", "negative")
    ]
    runs[0].report(tmp_path / "report.html")
    whence.diff(*runs).to_html(tmp_path / "diff.html")
    for name, width in itertools.product(("report", "diff"), (400, 1200)):
        assert scroll_width((tmp_path / f"{name}.html").read_text(encoding="utf-8"), width, tmp_path) <= width


# ---- numbers, and rows that are missing ----


class Other(Small):
    """The same, with its first two classes swapped for large inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x)
        return torch.where(x[:, :1] > 1, scores[:, [1, 0, 2]], scores)


def numbers(folder: Path, model: Any, lines: list[dict[str, Any]], name: str) -> Run:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return whence.run(model, path, methods="input_x_gradient", out=folder / name, shard_rows=16)


def test_predictions_that_changed_come_first_and_their_explanations_are_not_compared(tmp_path: Path) -> None:
    a, b = (numbers(tmp_path, model, rows(60), name) for model, name in ((Small(), "a"), (Other(), "b")))
    found = whence.diff(a, b)
    x = torch.tensor([row["inputs"] for row in rows(60)])
    moved = (Small()(x).argmax(1) != Other()(x).argmax(1)).nonzero()[:, 0].tolist()
    assert found.changed == len(moved) > 0
    assert {note.row for note in found.predictions[: len(moved)]} == set(moved)
    assert found.agreement["input_x_gradient"].rows == 60 - len(moved)
    assert any(f"{len(moved)} rows were explained for another class in B" in note for note in found.notes)
    low, high = found.changed_interval
    assert low < found.changed_share < high
    assert sum(found.flows.values()) == 60
    (before, after), count = max(((k, n) for k, n in found.flows.items() if k[0] != k[1]), key=lambda item: item[1])
    assert f"<th>{before} → {after}: {count}</th>" in found.to_html()


def test_a_model_without_classes_changes_by_its_score(tmp_path: Path) -> None:
    models = [torch.nn.Linear(6, 1) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    with torch.no_grad():
        models[1].weight[0, 2] += 1
    a, b = (numbers(tmp_path, model, rows(20), name) for model, name in zip(models, "ab", strict=True))
    found = whence.diff(a, b)
    x = torch.tensor([row["inputs"] for row in rows(20)])
    assert [note.row for note in found.predictions] == x[:, 2].abs().argsort(descending=True).tolist()
    means = {unit.name: unit.mean for unit in found.units(count=None)}
    assert means.pop("2") == pytest.approx(float(x[:, 2].mean()), abs=1e-6)
    assert list(means.values()) == pytest.approx([0.0] * 5, abs=1e-6)
    assert (a.summary().labelled, a.summary().confident_wrong) == (0, [])
    assert "Predictions that changed" not in found.to_html()


def test_rows_that_only_one_run_has_are_counted(tmp_path: Path) -> None:
    a = numbers(tmp_path, Small(), rows(20), "a")
    found = whence.diff(a, a[5:])
    assert (found.rows, found.alone) == (15, (5, 0))
    assert found.change["rows"] == 0.25
    assert found.exceeded({"rows": 0.1}) == ["rows changed by 25 %, more than 10 %"]
    assert found.notes == ["5 rows are only in run A."]
    with pytest.raises(whence.InputError, match="no row in common"):
        whence.diff(a[:5], a[5:])


def test_what_cannot_be_compared_is_refused(runs: dict[str, Run], tmp_path: Path) -> None:
    a = numbers(tmp_path, Small(), rows(20), "a")
    b = numbers(tmp_path, Small(), rows(20, seed=1), "b")
    with pytest.raises(whence.InputError, match="not over the same data: row 0 is another"):
        whence.diff(a, b)
    with pytest.raises(whence.MethodError, match=r"no method in common.*\n  Say which to compare, such as methods="):
        whence.diff(a, runs["before"])
    for nothing in ([], 3, {}):
        with pytest.raises(whence.ParameterError, match="methods=.* is not allowed"):
            whence.diff(a, a, methods=nothing)
    with pytest.raises(whence.MethodError, match="no method 'attnlr'. Did you mean 'attnlrp'"):
        whence.diff(runs["before"], runs["after"], methods="attnlr")
    found = whence.diff(a, a)
    with pytest.raises(whence.ParameterError, match="from 0 to 1"):
        found.exceeded(1.5)
    with pytest.raises(whence.ParameterError, match="threshold"):
        found.exceeded({"prediction": 0.1})
    with pytest.raises(whence.MethodError, match="not compared by 'gradient'"):
        found.units("gradient")


# ---- the command line ----


def test_the_exit_code_tells_whether_more_changed_than_may(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = (runs[name].storage.address for name in ("before", "after"))
    page = tmp_path / "d.html"
    assert main(["diff", a, b]) == 0
    assert "dull" in capsys.readouterr().out
    assert main(["diff", a, a, "--threshold", "0"]) == 0
    assert main(["diff", a, b, "--threshold", "1", "--out", str(page)]) == 0
    assert "Gained weight" in page.read_text()
    capsys.readouterr()
    assert main(["diff", a, b, "--threshold", "explanations=0.0001", "--methods", "attnlrp", "--json"]) == 4
    told = json.loads(capsys.readouterr().out)
    assert list(told["agreement"]) == ["attnlrp"]
    assert re.match(r"explanations changed by [\d.]+ %, more than 0.01 %", told["exceeded"][0])
    assert main(["diff", a, b, "--threshold", "often"]) == 2
    assert "predictions=0.01,explanations=0.1" in capsys.readouterr().err
    assert main(["diff", a, b, "--out", "d.pdf"]) == 2
    assert main(["diff", a, str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


def test_a_report_from_the_command_line(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, page = runs["before"].storage.address, tmp_path / "report.html"
    assert main(["report", folder, "--out", str(page), "--method", "attnlrp"]) == 0
    assert "By AttnLRP, in parts of the logit" in page.read_text()
    capsys.readouterr()
    assert main(["report", folder]) == 0
    told = capsys.readouterr().out
    assert "attnlrp, against positive" in told
    assert math.isfinite(float(re.search(r"share in common\n.*\n.*\n\S+ +\S+ +([\d.]+)", told)[1]))  # type: ignore[index]


def test_rows_that_were_explained_for_another_class_come_after_those_whose_prediction_changed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in rows(60)))
    a = whence.run(Small(), path, methods="gradient", out=tmp_path / "a")
    b = whence.run(Other(), path, methods="gradient", out=tmp_path / "b", target=0)
    notes = whence.diff(a, b).predictions
    flips = [note.about["prediction"] != note.about["after"]["prediction"] for note in notes]
    assert 0 < sum(flips) < len(flips)
    assert flips == sorted(flips, reverse=True)
    assert all(note.value >= 1 for note in notes[: sum(flips)])
    assert all(note.value < 1 for note in notes[sum(flips) :])


# ---- what the gate must not pass ----


def test_rows_that_were_explained_for_other_classes_count_as_changed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in rows(20)))
    a, b = (whence.run(Small(), path, methods="gradient", out=tmp_path / str(n), target=n) for n in (0, 1))
    found = whence.diff(a, b)
    assert (found.changed, found.change) == (20, {"rows": 0.0, "predictions": 1.0, "explanations": 1.0})
    assert found.exceeded({"predictions": 0.5}) == ["predictions changed by 100 %, more than 50 %"]
    assert found.notes == [
        "20 rows were explained for another class in B: they count as changed predictions, and their explanations are "
        "not compared."
    ]
    assert ", explained: 0 → 1" in found.to_html()


class Halting(Small):
    """A model that fails on the way from 0 to large inputs, and not there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(((x[:, 0].abs() > 0.2) & (x[:, 0].abs() < 0.3)).any()):
            raise ValueError("not here")
        return super().forward(x)


def test_rows_that_one_run_could_not_explain_count_as_missing(tmp_path: Path) -> None:
    path, methods = tmp_path / "rows.jsonl", ["gradient", "integrated_gradients"]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in rows(20)))
    a = whence.run(Small(), path, methods=methods, out=tmp_path / "a")
    with pytest.warns(whence.WhenceWarning, match="could not be explained"):
        b = whence.run(Halting(), path, methods=methods, out=tmp_path / "b")
    both, left = len(b), len(b["integrated_gradients"])
    assert 0 < left < both < 20
    found = whence.diff(a, b)
    assert (found.alone, found.unanswered) == ((20 - both, 0), {"gradient": 0, "integrated_gradients": both - left})
    assert found.change["rows"] == pytest.approx((20 - left) / 20)
    assert (
        f"{both - left} rows have an explanation by integrated_gradients in one of the two runs alone." in found.notes
    )
    alone = whence.diff(a, b, methods="integrated_gradients")  # by rows that this method explained
    assert (alone.rows, alone.alone) == (left, (20 - left, 0))


def test_explanations_that_are_all_zero_are_compared(tmp_path: Path) -> None:
    models = [torch.nn.Linear(6, 2) for _ in range(2)]
    with torch.no_grad():
        models[1].weight.zero_()
        models[1].bias.copy_(models[0].bias)
    a, b = (numbers(tmp_path, model, rows(10), name) for model, name in zip(models, "ab", strict=True))
    assert whence.diff(b, b).change["explanations"] == 0
    found = whence.diff(a, b)
    same = found.rows - found.changed
    assert same > 0
    assert (found.agreement["input_x_gradient"].rows, found.change["explanations"]) == (same, 1.0)


def test_texts_without_a_word_are_alike(tmp_path: Path) -> None:
    run = whence.run("zoo:sentiment", ["a warm film", "", " \n"], methods=["gradient"], out=tmp_path / "run")
    found = whence.diff(run, run)
    assert (found.rows, found.agreement["gradient"].rows, found.change["explanations"]) == (3, 3, 0.0)


@pytest.mark.parametrize("threshold", ["x", None, True, float("nan"), {"rows": "0.1"}, {"rows": -0.1}])
def test_thresholds_that_are_no_numbers_are_refused(runs: dict[str, Run], threshold: Any) -> None:
    with pytest.raises(whence.ParameterError, match=r"The threshold of rows is .*\n  Give a number from 0 to 1"):
        whence.diff(runs["before"], runs["before"]).exceeded(threshold)


def test_features_are_called_features(tmp_path: Path) -> None:
    lines = [dict(zip("abcdef", row["inputs"], strict=True)) for row in rows(20)]
    run, other = (numbers(tmp_path, model, lines, name) for model, name in ((Small(), "a"), (Other(), "b")))
    summary, found = run.summary(), whence.diff(run, other)
    assert (summary.unit, found.unit) == ("feature", "feature")
    assert {unit.name for unit in summary.units(count=None)} == set("abcdef")
    for page in (run.report(), found.to_html()):
        assert "word" not in re.sub(r"<style>.*?</style>", "", page, flags=re.S)
        assert "features" in page
