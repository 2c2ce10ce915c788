"""The reproductions run in their quick form, and every one of them says what came out."""

from __future__ import annotations

import csv
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import whence

pytest.importorskip("matplotlib")
pytest.importorskip("transformers")

from PIL import Image

from reproductions import cifar, digits
from reproductions.__main__ import main, names
from reproductions.attention_erasure.run import _share as shared_of
from reproductions.league_table.fields import FIELDS
from reproductions.movie_rationales.run import ceiling, marked_words
from reproductions.property_table.run import told
from reproductions.report import BEGIN, END, ROOT, NotAsItMustBe, Report, proportion
from reproductions.texts import reviews, runs
from whence.evaluation.axioms.toys import USUAL
from whence.evaluation.bootstrap import wilson
from whence.zoo.training import data, mosaics


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
@pytest.mark.filterwarnings("default")
def test_the_quick_form_runs(name, tmp_path, capsys):
    assert main([name, "--quick", "--out", str(tmp_path), "--threads", "1"]) == 0
    told = capsys.readouterr().out
    if "skipped: " in told:
        pytest.skip(told[told.index("skipped: ") :].partition("\n")[0])
    assert (tmp_path / name / "results.md").read_text().strip()


@pytest.mark.parametrize("name", names())
def test_each_has_a_verdict_and_results(name):
    told = (ROOT / name / "README.md").read_text()
    assert re.search(r"\*\*Verdict: (agrees|disagrees|cannot tell)", told)
    assert f"make reproduce NAME={name}" in told
    assert len(told.split(BEGIN)[1].split(END)[0].strip()) > 200, "no results: make reproduce writes them"
    for link in re.findall(r"\]\(([\w./-]+\.(?:png|svg|csv|md))\)", told):
        assert (ROOT / name / link).is_file(), link
    assert f"({name}/README.md)" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("field", [field.name for field in FIELDS])
def test_the_league_tables_intervals_are_within_what_a_metric_can_be(field):
    with (ROOT / "league_table" / f"{field}_intervals.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) > 100
    for line in lines:
        facts = whence.metrics[line["metric"]].facts
        least, most = facts.get("within") or facts.get("within_probability") or (None, None)
        assert least is None or not float(line["low"]) < least, line
        assert most is None or not float(line["high"]) > most, line


def test_the_property_table_counts_stated_entries_only():
    entry = SimpleNamespace
    held, apart = entry(stated="yes", source="A", against=()), entry(stated="yes", source=USUAL, against=())
    known, unstated = entry(stated="yes", source="B", against=("x",)), entry(stated="", source="", against=("x",))
    found = told([held, apart, known, unstated], [apart])
    assert found.startswith("Of 3 entries that are stated, 2 by papers and 1 by summaries only, 2 come out")
    assert "is known of 1 more of them, and of 1 that nobody states" in found


def test_what_must_hold_stops_a_run(tmp_path):
    with pytest.raises(NotAsItMustBe, match="x: 1 < 0 does not hold"):
        Report("x", tmp_path).must("1 < 0", False)


def test_a_run_that_goes_on_counts_the_time_of_those_before_it(tmp_path):
    for run, said in enumerate(("of CPU time, whence", "in 2 runs, each of which went on from the one before, whence")):
        report = Report("x", tmp_path, cache=tmp_path / "kept")
        report.finish()
        report.keep_time()
        assert said in (tmp_path / "results.md").read_text()
        assert len(json.loads((tmp_path / "kept/x/spent.json").read_text())) == run + 1


def test_an_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "gradient_problems" in capsys.readouterr().err


def test_images_and_digits_are_packed_as_they_are_read(tmp_path):
    for name in ("cat", "airplane"):
        (tmp_path / "test" / name).mkdir(parents=True)
        for number in (1, 0):
            shade = 100 * number + 50 * (name == "cat")
            Image.new("RGB", (32, 32), (shade,) * 3).save(tmp_path / "test" / name / f"{number:04}.jpg")
    assert cifar.convert(tmp_path / "test", tmp_path / "data" / "images.npz") == 4
    with np.load(tmp_path / "data" / "images.npz") as file:
        assert file["x"].shape == (4, 32, 32, 3)
        assert file["x"][:, 0, 0, 0].tolist() == [0, 100, 50, 150]
        assert file["y"].tolist() == [0, 0, 1, 1]
        assert file["classes"].tolist() == ["airplane", "cat"]
    for digit in range(10):
        (tmp_path / f"{digit}.json").write_text(json.dumps({"data": [digit / 255] * 784 * (1 + digit % 2)}))
    assert digits.convert(tmp_path, tmp_path / "digits.npz") == 15
    with np.load(tmp_path / "digits.npz") as file:
        assert file["x"].shape == (15, 28, 28)
        assert file["x"][:, 5, 5].tolist() == file["y"].tolist() == sorted([*range(10), 1, 3, 5, 7, 9])


def test_equal_cases_tell_as_much_as_one():
    apart, alike = proportion(60, 100), proportion(60, 100, alike=20)
    assert apart.split()[0] == alike.split()[0] == "0.600"
    assert [float(end) for end in re.findall(r"[\d.]+", alike)[1:]] == [round(end, 3) for end in wilson(0.6, 20)]
    board = SimpleNamespace(copies={1: 0, 2: 0, 5: 4})
    assert shared_of(board, dict.fromkeys(range(6), True)).endswith(" of 6")
    assert shared_of(board, {0: True, 1: True, 2: True, 3: False}) == f"{proportion(3, 4, 2, 16 / 10)} of 4"


# ---- what is kept, and what is not ----


def test_a_quick_run_begins_anew_and_a_full_one_goes_on(tmp_path):
    for quick, made in ((True, [1, 2]), (False, [1, 1])):
        counted = iter((1, 2))
        cache = tmp_path / "kept"
        runs = [Report("x", tmp_path / str(quick), quick, cache).once("n", lambda n=counted: next(n)) for _ in range(2)]
        assert runs == made


def test_what_was_made_of_other_things_is_made_again(tmp_path):
    report = Report("x", tmp_path, cache=tmp_path / "kept")
    one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    assert report.once("n", lambda: 1, one, ["a"]) == 1
    assert report.once("n", lambda: 2, one, ["a"]) == 1
    assert report.once("n", lambda: 3, one, ["b"]) == 3
    assert report.once("n", lambda: 4, other, ["a"]) == 4
    learned, again = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    report.learned("m", learned, lambda: torch.nn.init.ones_(learned.weight), "data")
    report.learned("m", again, lambda: torch.nn.init.zeros_(again.weight), "data")
    assert again.weight.tolist() == [[1, 1]]
    report.learned("m", again, lambda: torch.nn.init.zeros_(again.weight), "other data")
    assert again.weight.tolist() == [[0, 0]]


def test_nothing_is_written_before_the_end(tmp_path):
    report = Report("x", tmp_path, cache=tmp_path / "kept")
    report.table("t", ["a"], [[1]])
    assert not (tmp_path / "t.csv").exists()
    report.finish()
    assert (tmp_path / "t.csv").read_text() == "a\n1\n"


@pytest.mark.parametrize(("error", "code", "told"), [
    (data.Absent("There is no folder."), 0, "skipped: There is no folder."),
    (whence.FileError("a.csv is half."), 2, "a.csv is half."),
    (NotAsItMustBe("1 < 0"), 1, "1 < 0"),
    (RuntimeError("who knows"), 1, "who knows"),
    (KeyboardInterrupt(), 130, "Stopped. make reproduce NAME=needle goes on from here."),
])  # fmt: skip
def test_how_a_run_ends(error, code, told, tmp_path, capsys, monkeypatch):
    def raising(report):
        raise error

    monkeypatch.setattr("reproductions.needle.run.run", raising)
    assert main(["needle", "--quick", "--out", str(tmp_path)]) == code
    said = capsys.readouterr()
    assert told in said.out + said.err


def test_half_of_a_file_is_no_file_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    (tmp_path / "sentence_classification").mkdir()
    (tmp_path / "sentence_classification" / "TREC.test.all").write_text("<html>404</html>")
    (tmp_path / "eraser_movies").mkdir()
    (tmp_path / "eraser_movies" / "docs.tar.gz").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "mnist_10k").mkdir()
    (tmp_path / "mnist_10k" / "mnist10k.npz").write_bytes(b"PK")
    (tmp_path / "sst_trees").mkdir()
    (tmp_path / "sst_trees" / "test.txt").write_text("")
    for name in ("train", "val", "test"):
        (tmp_path / "eraser_movies" / f"{name}.jsonl").write_text("")
    for read, file in (
        (lambda: data.questions("test"), "TREC.test.all"),
        (lambda: reviews("test"), "docs.tar.gz"),
        (lambda: mosaics.parts("t10k"), "mnist10k.npz"),
        (lambda: data.trees("test"), "test.txt"),
    ):
        with pytest.raises(whence.FileError, match=f"{file} is not what it should be") as raised:
            read()
        assert not isinstance(raised.value, data.Absent)


# ---- texts with marks ----


def test_marked_characters_are_spans():
    assert runs([9, 3, 4, 5, 4]) == [(3, 6), (9, 10)]
    assert runs([]) == []


def test_reviews_are_read_with_their_rationales(tmp_path, monkeypatch):
    monkeypatch.setenv("WHENCE_DATA", str(tmp_path))
    with pytest.raises(whence.FileError, match="eraserbenchmark"):
        reviews("test")
    folder = tmp_path / "eraser_movies"
    (folder / "docs").mkdir(parents=True)
    for name in ("one", "two"):
        (folder / "docs" / name).write_text("a dull film .\nnot a good one\n")
    own = {"evidences": [[{"start_token": 1, "end_token": 3}], [{"start_token": 4, "end_token": 7}]]}
    lines = [json.dumps({"annotation_id": name, "classification": "NEG", **own}) for name in ("one", "two")]
    for split, text in {"train": "\n".join(lines), "val": lines[1], "test": lines[0]}.items():
        (folder / f"{split}.jsonl").write_text(text + "\n")
    (row,) = reviews("train")  # the other one is of val
    assert [row["text"][start:end] for start, end in row["rationale"]] == ["dull film", "not a good"]
    assert row["label"] == 0


def test_the_best_possible_f1_counts_words():
    tokenizer = whence.load("zoo:sentiment").tokenizer
    row = {"text": "an unwatchable film, dull and long", "rationale": [(3, 14), (22, 26)]}
    assert marked_words(tokenizer, row) == 2
    best = ceiling(tokenizer, [row])
    assert len(best) == 16
    assert best[0] == pytest.approx(2 * 2 / (5 + 2))
