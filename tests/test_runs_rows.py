"""A run read back: rows by their numbers, filters by class, gap and label, columns, and parts that are damaged."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

import whence
from tests.support.runs import MODEL, Small, parts, rows, run_of, written
from whence.runs.opened import Run
from whence.runs.run import ASIDE


class Picky(Small):
    """A model that refuses row 2."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0] > 50).any()):
            raise ValueError("this row is not for me")
        return super().forward(x)


@pytest.fixture(scope="module")
def holed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Twelve rows, of which row 2 could not be explained."""
    folder, lines = tmp_path_factory.mktemp("holed"), rows(12)
    lines[2]["inputs"][0] = 99.0
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.warns(whence.WhenceWarning, match="1 rows could not be explained"):
        return whence.run(
            Picky(), folder / "rows.jsonl", methods=["gradient", "input_x_gradient"], out=folder / "run", shard_rows=5
        )


# ---- numbers ----


def test_a_row_is_asked_for_by_the_number_that_reports_name(holed: Run) -> None:
    for number in (0, 1, 3, 7, 11):
        assert holed.row(number).receipt["row"] == number
        assert {a.receipt["row"] for a in holed.compare(number).values()} == {number}
    assert holed["input_x_gradient"].row(7).method == "input_x_gradient"
    assert holed[2].receipt["row"] == 3  # the third of those that could be explained
    x = torch.tensor([row["inputs"] for row in rows(12)])
    for note in holed.summary().disagree:
        whole = whence.explain(Small(), x[note.row][None], method="gradient")
        assert torch.allclose(holed.row(note.row).values, whole.values, rtol=0, atol=1e-6)


def test_rows_that_are_not_there_are_told_apart(holed: Run) -> None:
    with pytest.raises(whence.InputError, match="Row 2 could not be explained: gradient: .*this row is not for me"):
        holed.row(2)
    with pytest.raises(whence.InputError, match="Row 2 could not be explained"):
        holed.compare(2)
    for number in (-1, 12):
        with pytest.raises(whence.InputError, match=f"no row {number}.\n  The data has the rows 0 to 11"):
            holed.row(number)
    with pytest.raises(IndexError, match=r"There are 11 rows, and none at 11.\n  run.row\(11\)"):
        holed[11]
    some = holed[4:8]
    assert [a.receipt["row"] for a in some] == [5, 6, 7, 8]
    assert some.row(6).receipt["row"] == 6
    with pytest.raises(whence.InputError, match="Row 0 is not among the selected rows"):
        some.row(0)


def test_a_row_of_a_shard_that_is_not_done(tmp_path: Path) -> None:
    run_of(written(tmp_path / "rows.jsonl", 24), tmp_path / "run")
    (tmp_path / "run" / "out" / "part-00001.parquet").unlink()
    run = whence.open(tmp_path / "run")
    assert run.row(17).receipt["row"] == 17
    with pytest.raises(whence.InputError, match="Row 9 is in shard 1, which is not done"):
        run.row(9)
    assert run.summary().notes == ["1 of 3 shards, with 8 rows, are missing: the run is not finished."]


def test_a_slice_has_the_same_rows_by_every_method(tmp_path: Path) -> None:
    class Halting(Small):
        """A model that fails on the way from 0 to the large input of row 1, and not there."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool(((x[:, 0] > 10) & (x[:, 0] < 90)).any()):
                raise ValueError("not here")
            return super().forward(x)

    lines = rows(8)
    lines[1]["inputs"][0] = 99.0
    methods = ["gradient", "integrated_gradients"]
    with pytest.warns(whence.WhenceWarning, match="1 rows could not be explained"):
        run = whence.run(Halting(), lines, methods=methods, out=tmp_path / "run")
    assert [a.receipt["row"] for a in run["integrated_gradients"]] == [0, 2, 3, 4, 5, 6, 7]
    some = run[1:5]
    assert [a.receipt["row"] for a in some] == [1, 2, 3, 4]
    assert [a.receipt["row"] for a in some["integrated_gradients"]] == [2, 3, 4]
    assert list(run.compare(1)) == ["gradient"]


# ---- filters ----


def test_classes_are_given_by_name_or_by_number(tmp_path: Path) -> None:
    texts = ["a warm film", "a dull film", "warm", "dull", "lifeless", "a film"]
    labels: list[Any] = [1, 0, "positive", "negative", "POSITIVE", 99]
    lines = [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    run = whence.run("zoo:sentiment", tmp_path / "rows.jsonl", methods="gradient", out=tmp_path / "run", shard_rows=4)

    def found(**what: Any) -> list[int]:
        return [a.receipt["row"] for a in run.filter(**what)]

    assert run.classes == {"negative": 0, "positive": 1}
    for one in (1, "positive", 1.0, torch.tensor(1)):
        assert found(label=one) == [0, 2]
        assert found(prediction=one) == [n for n, a in enumerate(run) if a.receipt["prediction"] == ["positive"]] != []
    assert (found(label="POSITIVE"), found(label=99), found(label="no such")) == ([4], [5], [])
    assert not {4, 5} & {*found(wrong=True), *found(wrong=False)}  # whose labels are no classes
    assert sorted([*found(wrong=True), *found(wrong=False)]) == [0, 1, 2, 3]
    summary = run.summary()
    assert (summary.labelled, summary.wrong) == (4, len(found(wrong=True)))
    assert summary.notes == [
        "2 rows have a label that is no class of the model, such as 'POSITIVE', '99': they count neither as right nor "
        "as wrong."
    ]


def test_gaps_are_those_of_the_chosen_method(tmp_path: Path) -> None:
    methods = {"coarse": {"method": "integrated_gradients", "steps": 2}, "integrated_gradients": {}, "gradient": {}}
    run = whence.run(MODEL, rows(20), methods=methods, out=tmp_path / "run", shard_rows=7)
    table = run.to_pandas()
    for method in ("coarse", "integrated_gradients"):
        limit = table[f"gap_{method}"].median()
        assert [a.receipt["row"] for a in run[method].filter(gap_above=limit)] == table.row[
            table[f"gap_{method}"] > limit
        ].tolist()
    assert table.gap_coarse.min() > table.gap_integrated_gradients.max()
    limit = table.gap_integrated_gradients.max()
    assert (len(run.filter(gap_above=limit)), len(run["integrated_gradients"].filter(gap_above=limit))) == (20, 0)
    with pytest.raises(whence.InputError, match=r"gradient promises no sum.*\n  Ask run\['coarse'\] or run\['integr"):
        run["gradient"].filter(gap_above=0.1)


@pytest.mark.parametrize(
    "what", [{"gap_above": "x"}, {"gap_above": True}, {"gap_above": float("nan")}, {"wrong": "yes"}, {"wrong": 1}]
)
def test_filters_that_make_no_sense_are_refused(holed: Run, what: dict[str, Any]) -> None:
    with pytest.raises(whence.ParameterError, match=f"{next(iter(what))}=.* is not allowed"):
        holed.filter(**what)


def test_a_filter_is_for_one_class(holed: Run) -> None:
    with pytest.raises(whence.ParameterError, match=r"\[1, 2\] is not one class"):
        holed.filter(label=[1, 2])


# ---- columns, and parts that are damaged ----


def test_one_column_may_be_a_name(holed: Run) -> None:
    assert holed.to_pandas("row").row.tolist() == [n for n in range(12) if n != 2]
    assert holed.to_arrow("row").column_names == ["row"]
    with pytest.raises(whence.ParameterError, match="no column 'rwo'. Did you mean 'row'"):
        holed.to_pandas("rwo")
    with pytest.raises(whence.ParameterError, match="no column 7"):
        holed.to_arrow([7])


def test_a_damaged_part_is_one_error_whatever_is_asked(tmp_path: Path) -> None:
    whole = run_of(written(tmp_path / "rows.jsonl", 24), tmp_path / "whole")
    content = (tmp_path / "whole" / "out" / "part-00001.parquet").read_bytes()
    for number, place in enumerate([*range(0, len(content), len(content) // 23), len(content) - 5]):
        folder = tmp_path / f"run-{number}"
        shutil.copytree(tmp_path / "whole", folder)
        flipped = content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]
        (folder / "out" / "part-00001.parquet").write_bytes(flipped)
        for ask in (len, Run.to_arrow, lambda run: [a.values.tolist() for a in run], lambda run: str(run.summary())):
            found = asked(whence.open(folder), ask)
            if isinstance(found, whence.FileError):
                assert re.search("part-00001.parquet (cannot be read|is damaged|is not of this run)", str(found))
            else:
                assert found == ask(whole), place  # a bit of the footer that no value depends on


def asked(run: Run, ask: Any) -> Any:
    try:
        return ask(run)
    except whence.FileError as error:
        return error


def test_a_part_with_other_columns_is_refused(tmp_path: Path) -> None:
    run_of(written(tmp_path / "rows.jsonl", 24), tmp_path / "run")
    path = tmp_path / "run" / "out" / "part-00001.parquet"
    table = pq.read_table(path)
    pq.write_table(table.select(table.column_names[::-1]), path)
    with pytest.raises(whence.FileError, match="part-00001.parquet cannot be read: its rows or columns are not those"):
        whence.open(tmp_path / "run").to_arrow()
    pq.write_table(table.slice(1), path)
    with pytest.raises(whence.FileError, match="part-00001.parquet cannot be read: its rows or columns are not those"):
        whence.open(tmp_path / "run").to_arrow()


def test_damaged_errors_are_one_error(holed: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(holed.storage.address, folder)
    (folder / "errors" / "part-00000.jsonl").write_text('{"row": 2, "fi')
    with pytest.raises(whence.FileError, match="errors/part-00000.jsonl is damaged: .*\n  Run again with retry_errors"):
        list(whence.open(folder).errors())


# ---- going on ----


def test_methods_in_another_order_are_the_same_run(tmp_path: Path) -> None:
    data, out = written(tmp_path / "rows.jsonl", 24), tmp_path / "run"
    methods = {"gradient": {}, "input_x_gradient": {}}
    how = {"out": out, "shard_rows": 8, "metrics": {"sparseness": {}, "complexity": {}}}
    whence.run(MODEL, data, methods=methods, **how)
    before = parts(out)
    times = [path.stat().st_mtime_ns for path in sorted((out / "out").iterdir())]
    how["metrics"] = {"complexity": {}, "sparseness": {}}
    again = whence.run(MODEL, data, methods=dict(reversed(methods.items())), **how)
    assert [path.stat().st_mtime_ns for path in sorted((out / "out").iterdir())] == times
    assert again.methods == list(methods)
    (out / "out" / "part-00001.parquet").unlink()
    whence.run(MODEL, data, methods=dict(reversed(methods.items())), **how)
    assert parts(out) == before


def test_parts_that_are_not_in_the_plan_do_not_stay(tmp_path: Path) -> None:
    data, out = written(tmp_path / "rows.jsonl", 24), tmp_path / "run"
    run_of(data, out)
    before = parts(out)
    (out / "errors").mkdir()
    for name in ("out/part-00003.parquet", "out/part-00077.safetensors", "errors/part-00099.jsonl"):
        shutil.copy(out / "out" / "part-00000.parquet", out / name)
    assert list(whence.open(out).errors()) == []
    run_of(data, out)
    assert parts(out) == before
    shutil.copy(out / "out" / "part-00000.parquet", out / "out" / "part-00000 (copy).parquet")
    with pytest.raises(whence.FileError, match=r"out has a file that is not of this run \(part-00000 \(copy\).parquet"):
        run_of(data, out)
    assert len(parts(out)) == 4


def test_a_shard_that_was_set_aside_is_no_row_with_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from whence.cli import run_commands

    run = run_of(written(tmp_path / "rows.jsonl", 24), tmp_path / "run")
    (tmp_path / "run" / "out" / "part-00001.parquet").unlink()
    line = {"row": 8, "last": 15, "file": "rows.jsonl", "line": 9, "method": None, "kind": ASIDE, "error": "it died"}
    run.storage.put("errors/part-00001.jsonl", json.dumps(line).encode())
    assert run_commands.told(whence.open(tmp_path / "run"), as_json=False) == run_commands.INCOMPLETE
    out, err = capsys.readouterr()
    assert "16 of 24 rows explained, 0 with errors, 1 of 3 shards missing" in out
    assert "the first error, in rows 8 to 15: it died" in err


# ---- runs and other files in one folder ----


def test_files_of_the_user_s_beside_a_run_stay(tmp_path: Path) -> None:
    """The run's folder may hold the data: `whence run --data data/train.jsonl --out .`"""
    (tmp_path / "data" / "raw").mkdir(parents=True)
    mine = ["data/train.jsonl", "data/test.jsonl", "data/rows-1.parquet", "data/notes.tmp", "notes.tmp", ".x.tmp"]
    for name in mine:
        written(tmp_path / name, 8)
    unfinished = tmp_path / "out" / ".part-00000.parquet-123-0123abcd.tmp"
    for _ in range(2):
        unfinished.parent.mkdir(exist_ok=True)
        run = run_of(tmp_path / "data" / "train.jsonl", tmp_path)
        assert len(run) == 8
        assert all((tmp_path / name).exists() for name in mine)
        assert not unfinished.exists()
        unfinished.write_text("cut")


@pytest.mark.parametrize("data", ["", "**/*.jsonl", "*.jsonl"])
@pytest.mark.parametrize("out", ["run", "."])
def test_what_runs_wrote_into_the_folder_of_the_data_is_no_data(data: str, out: str, tmp_path: Path) -> None:
    written(tmp_path / "rows.jsonl", 8)
    for name in (out, out, "second", "deeper/third"):
        run = run_of(tmp_path / data, tmp_path / name)
        assert (len(run), len(run.manifest["data"])) == (8, 1)
    assert len(run_of(tmp_path / out / "out", tmp_path / "of parts", columns={"inputs": "values_gradient"})) == 8


def test_a_run_in_its_folder_of_images_goes_on(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("a.png", "b.png"):
        image.new("L", (28, 28), 99).save(tmp_path / name)
    for _ in range(2):
        run = whence.run("zoo:fashion-cnn", tmp_path, methods=["gradient"], out=tmp_path / "run")
        assert len(run) == 2
