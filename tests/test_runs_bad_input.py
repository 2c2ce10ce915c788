"""What can be wrong with a run: a clear error, or an entry in errors/ for the row, and nothing else is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import whence
from tests.support.runs import MODEL, Small, parts, rows, written
from whence.cli import main

MODELS = "tests.support.runs"


def run_of(data: Any, out: Path, **how: Any) -> whence.Run:
    given = {"model": Small().eval(), "methods": ["gradient"], "shard_rows": 8, **how}
    return whence.run(given.pop("model"), data, out=out, **given)


# ---- refused at once ----


def missing(folder: Path) -> dict[str, Any]:
    return {"data": folder / "nothing.jsonl"}


def empty_file(folder: Path) -> dict[str, Any]:
    (folder / "rows.jsonl").write_text("")
    return {"data": folder / "rows.jsonl"}


def blank_lines(folder: Path) -> dict[str, Any]:
    (folder / "rows.jsonl").write_text("\n\n  \n")
    return {"data": folder / "rows.jsonl"}


def only_a_header(folder: Path) -> dict[str, Any]:
    (folder / "rows.csv").write_text("a,b\n")
    return {"data": folder / "rows.csv"}


def columns_of_one_name(folder: Path) -> dict[str, Any]:
    (folder / "rows.csv").write_text("a,a,b,c,d,e\n1,2,3,4,5,6\n")
    return {"data": folder / "rows.csv"}


def names_in_latin_1(folder: Path) -> dict[str, Any]:
    (folder / "rows.csv").write_bytes("a,b,c,d,e,größe\n1,2,3,4,5,6\n".encode("latin-1"))
    return {"data": folder / "rows.csv"}


def parquet_columns_of_one_name(folder: Path) -> dict[str, Any]:
    inputs = pa.array([row["inputs"] for row in rows(4)])
    pq.write_table(pa.Table.from_arrays([inputs, inputs], names=["inputs", "inputs"]), folder / "rows.parquet")
    return {"data": folder / "rows.parquet"}


def empty_folder(folder: Path) -> dict[str, Any]:
    (folder / "rows").mkdir()
    return {"data": folder / "rows"}


def no_match(folder: Path) -> dict[str, Any]:
    return {"data": f"{folder}/*.parquet"}


def unknown_ending(folder: Path) -> dict[str, Any]:
    (folder / "rows.txt").write_text("a text\n")
    return {"data": folder / "rows.txt"}


def no_parquet(folder: Path) -> dict[str, Any]:
    (folder / "rows.parquet").write_text("PAR1, or not")
    return {"data": folder / "rows.parquet"}


def no_arrow(folder: Path) -> dict[str, Any]:
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000.arrow"}]}))
    (folder / "data-00000.arrow").write_text("nothing")
    return {"data": folder}


def splits(folder: Path) -> dict[str, Any]:
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    return {"data": folder}


def selection(folder: Path) -> dict[str, Any]:
    (folder / "state.json").write_text(json.dumps({"_data_files": [], "_indices_files": [{"filename": "x"}]}))
    return {"data": folder}


def utf_16(folder: Path) -> dict[str, Any]:
    (folder / "rows.jsonl").write_bytes('{"text": "a"}\n'.encode("utf-16"))
    return {"data": folder / "rows.jsonl"}


def of_rows(**how: Any) -> Callable[[Path], dict[str, Any]]:
    """Good rows, and something else wrong."""
    return lambda folder: {"data": written(folder / "rows.jsonl", 8), **how}


def spooled(*items: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {"data": iter(items)}


def out_is_a_file(folder: Path) -> dict[str, Any]:
    (folder / "out").write_text("")
    return {"data": written(folder / "rows.jsonl", 8), "out": folder / "out"}


def damaged_manifest(folder: Path) -> dict[str, Any]:
    (folder / "run").mkdir()
    (folder / "run" / "manifest.json").write_text('{"of": {"version": 1}}')
    return {"data": written(folder / "rows.jsonl", 8), "out": folder / "run"}


def foreign_plan(folder: Path) -> dict[str, Any]:
    (folder / "mine").mkdir()
    (folder / "mine" / "plan.jsonl").write_text("for the holidays")
    return {"data": written(folder / "rows.jsonl"), "out": folder / "mine"}


def foreign_folder(folder: Path) -> dict[str, Any]:
    (folder / "run" / "out").mkdir(parents=True)
    (folder / "run" / "out" / "precious.parquet").write_text("mine")
    return {"data": written(folder / "rows.jsonl", 8), "out": folder / "run"}


REFUSED: list[tuple[Callable[[Path], dict[str, Any]], type[Exception], str]] = [
    (missing, whence.FileError, "There is no data at .*nothing.jsonl"),
    (empty_file, whence.InputError, "rows.jsonl' has no row"),
    (blank_lines, whence.InputError, "rows.jsonl' has no row"),
    (only_a_header, whence.InputError, "rows.csv' has no row"),
    (empty_folder, whence.FileError, "There is no data at"),
    (no_match, whence.FileError, "There is no data at"),
    (unknown_ending, whence.InputError, "rows.txt' is not a file of rows.*\n.*.arrow, .csv, .jsonl"),
    (no_parquet, whence.InputError, "rows.parquet' is not a readable parquet file"),
    (no_arrow, whence.InputError, "data-00000.arrow' is not a readable arrow file"),
    (splits, whence.InputError, r"several data sets \(train, test\)"),
    (selection, whence.InputError, "flatten_indices"),
    (utf_16, whence.InputError, "is text in UTF-16"),
    (spooled(), whence.InputError, "The data set is empty"),
    (spooled({"inputs": [1.0]}, {"inputs": "x"}), whence.InputError, "The rows 0 to 1 cannot be written as a table"),
    (
        spooled({"text": "fine"}, {"text": ["x", "\ud800"]}),
        whence.InputError,
        "rows 0 to 1|Row 1 holds half of a surrog",
    ),
    (spooled("fine", "\ud800"), whence.InputError, "Row 1 holds half of a surrogate pair"),
    (spooled([1.0], {"a": {"b": ["\udfff"]}}), whence.InputError, "Row 1 holds half of a surrogate pair"),
    (spooled(object()), whence.InputError, "Row 0 holds object"),
    (lambda folder: {"data": 7}, whence.InputError, "data is int"),
    (of_rows(methods=["gradiant"]), whence.MethodError, "no method 'gradiant'. Did you mean 'gradient'"),
    (of_rows(methods=["gradient", "gradient"]), whence.MethodError, "listed twice"),
    (of_rows(steps=3), whence.ParameterError, "gradient has no parameter 'steps'"),
    (of_rows(output="odds"), whence.ParameterError, "output='odds' is not allowed"),
    (of_rows(target=[0, 1]), whence.ParameterError, "one target for every row"),
    (of_rows(shard_rows=0), whence.ParameterError, "shard_rows=0 is not allowed"),
    (of_rows(executor="threads"), whence.ParameterError, "executor='threads' is not allowed"),
    (of_rows(executor="process"), whence.ParameterError, "a model that each worker can load itself"),
    (of_rows(model=MODEL, executor="process", baseline=torch.zeros(6)), whence.ParameterError, r"\(baseline\)"),
    (
        of_rows(executor="process", model=MODEL, gpus_per_worker=-1),
        whence.ParameterError,
        "gpus_per_worker=-1 is not al",
    ),
    (of_rows(gpus_per_worker="x"), whence.ParameterError, "gpus_per_worker='x' is not allowed"),
    (of_rows(address="auto"), whence.ParameterError, "address= is that of a Ray cluster"),
    (of_rows(columns="inputs"), whence.ParameterError, "columns='inputs' is not allowed"),
    (of_rows(model=None), whence.ModelError, "The model is NoneType, which cannot be called"),
    (of_rows(out=7), whence.ParameterError, "7 is not the folder of a run"),
    (columns_of_one_name, whence.InputError, "rows.csv' has several columns named 'a'"),
    (parquet_columns_of_one_name, whence.InputError, "rows.parquet' has several columns named 'inputs'"),
    (names_in_latin_1, whence.InputError, "The names of the columns of .*rows.csv' are not text in UTF-8"),
    (of_rows(metrics=["nothing"]), whence.MethodError, "no metric 'nothing'"),
    (of_rows(model="tests.support.runs:nothing"), whence.ModelError, "cannot be imported: .*'nothing'"),
    (of_rows(model="tests.support.runs:failing"), whence.ModelError, "raised ZeroDivisionError"),
    (of_rows(model="tests.support.runs:seven"), whence.ModelError, "returned int"),
    (of_rows(model="./no/such/folder"), whence.FileError, "There is no folder"),
    (out_is_a_file, whence.FileError, "cannot write .*out"),
    (damaged_manifest, whence.FileError, "is not the manifest of a run"),
    (foreign_folder, whence.FileError, "has out/precious.parquet, but no manifest"),
    (foreign_plan, whence.FileError, "has plan.jsonl, but no manifest"),
]


@pytest.mark.parametrize(("bad", "error", "said"), REFUSED, ids=[said[:30] for _, _, said in REFUSED])
def test_what_cannot_be_run_is_one_error(tmp_path: Path, bad: Any, error: Any, said: str) -> None:
    given = {"out": tmp_path / "made", **bad(tmp_path)}
    with pytest.raises(error, match=f"(?s){said}"):
        run_of(given.pop("data"), given.pop("out"), **given)
    assert not list((tmp_path / "made").glob("out/*"))


# ---- rows that cannot be explained ----


def line(row: Any) -> str:
    return json.dumps(row)


ROWS = {  # a line of the file, and what is said about it
    "broken JSON": ('{"inputs": [1, 2', "The line is not JSON"),
    "no object": ("[1, 2]", "not a JSON object, but list"),
    "no such entry": ('{"label": 1}', "no entry 'inputs', but 'label'"),
    "null": (line({"inputs": None}), "'inputs' is not a list of numbers"),
    "texts": (line({"inputs": ["a", "b"]}), "'inputs' is not a list of numbers"),
    "ragged": (line({"inputs": [[1.0], [1.0, 2.0]]}), "'inputs' is not a list of numbers"),
    "one number": (line({"inputs": 3.0}), "'inputs' is not a list of numbers"),
    "other features": (line({"inputs": [1.0, 2.0]}), "mat1 and mat2 shapes"),
    "not a number": ('{"inputs": [NaN, 1, 1, 1, 1, 1]}', "(?i)nan|finite"),
    "infinite": ('{"inputs": [Infinity, 1, 1, 1, 1, 1]}', "(?i)finite|inf"),
    "features that are none": (line({"a": 1.0, "b": "x"}), "feature 'b' is 'x'"),
    "a huge number": ('{"inputs": [1e400, 1, 1, 1, 1, 1]}', "(?i)finite|inf"),
    "not UTF-8": ("\udcff\udcfe", "not text in UTF-8"),
    "half of a surrogate pair": ('{"inputs": [1, 1, 1, 1, 1, 1], "id": "\\ud800"}', "half of a surrogate pair"),
    "a text": ('"a film"', "feature 'text' is 'a film'|features 'text'|no entry 'inputs'"),
    "deep": ("[" * 100_000, "The line is not JSON"),
}


@pytest.mark.parametrize("kind", ROWS)
def test_a_bad_row_is_an_entry_in_errors(tmp_path: Path, kind: str) -> None:
    lines = [line(row) for row in rows(16)]
    lines[11], said = ROWS[kind]
    (tmp_path / "rows.jsonl").write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    whole = run_of(written(tmp_path / "good.jsonl", 16), tmp_path / "good").to_arrow().to_pylist()
    with pytest.warns(whence.WhenceWarning, match="1 rows could not be explained"):
        run = run_of(tmp_path / "rows.jsonl", tmp_path / "run")
    (error,) = run.errors()
    assert (error["row"], error["line"]) == (11, 12)
    assert re.search(said, error["error"]), error["error"]
    found = run.to_arrow().to_pylist()
    assert [row["row"] for row in found] == [n for n in range(16) if n != 11]
    for row in found:
        assert np.allclose(row["values_gradient"], whole[row["row"]]["values_gradient"], rtol=0, atol=1e-6)


def test_line_4711_is_broken(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", 4800)
    lines = path.read_text().splitlines()
    lines[4710] = lines[4710][:-3]
    path.write_text("\n".join(lines))
    with pytest.warns(whence.WhenceWarning, match="1 rows could not be explained"):
        run = run_of(path, tmp_path / "run", shard_rows=1000, batch_size=500)
    assert [(e["row"], e["line"]) for e in run.errors()] == [(4710, 4711)]
    assert len(run) == 4799


def test_csv_records_may_be_wrong_one_by_one(tmp_path: Path) -> None:
    good = "\n".join(",".join(map(str, row["inputs"])) for row in rows(6))
    bad = "1,2,3\n1,2,3,4,5,6,7\n1,2,x,4,5,6\n"
    (tmp_path / "rows.csv").write_text(f"a,b,c,d,e,f\n{good}\n{bad}1,2,3,4,5,6\n")
    with pytest.warns(whence.WhenceWarning, match="3 rows could not be explained"):
        run = run_of(tmp_path / "rows.csv", tmp_path / "run")
    assert [(e["row"], e["line"]) for e in run.errors()] == [(6, 8), (7, 9), (8, 10)]
    assert len(run) == 7
    assert run[0].units == [["a", "b", "c", "d", "e", "f"]]


def test_tables_with_text_that_is_not_utf_8(tmp_path: Path) -> None:
    texts = pa.array([b"r0", b"r1", b"\xff\xfe", b"r3"]).cast(pa.binary())
    ids = pa.StringArray.from_buffers(4, texts.buffers()[1], texts.buffers()[2])
    inputs = pa.array([row["inputs"] for row in rows(4)])
    pq.write_table(pa.table({"inputs": inputs, "id": ids}), tmp_path / "rows.parquet")
    with pytest.warns(whence.WhenceWarning, match="1 rows could not be explained"):
        run = run_of(tmp_path / "rows.parquet", tmp_path / "run")
    assert [(e["row"], e["error"]) for e in run.errors()] == [(2, "The row holds text that is not in UTF-8.")]
    assert run.to_arrow("id")["id"].to_pylist() == ["r0", "r1", "r3"]


def test_labels_that_are_not_finite_are_kept_as_they_are(tmp_path: Path) -> None:
    lines = [{**row, "label": label} for row, label in zip(rows(3), (float("nan"), float("inf"), "nan"), strict=True)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(line, lines)))
    assert run_of(tmp_path / "rows.jsonl", tmp_path / "run").to_pandas().label.tolist() == ["nan", "inf", "nan"]


def test_labels_as_targets_where_one_is_missing(tmp_path: Path) -> None:
    lines = rows(6)
    del lines[2]["label"]
    lines[4]["label"] = 9
    (tmp_path / "rows.jsonl").write_text("\n".join(map(line, lines)))
    with pytest.warns(whence.WhenceWarning, match="2 rows could not be explained"):
        run = run_of(tmp_path / "rows.jsonl", tmp_path / "run", target="label")
    assert [row["target"] for row in run.to_arrow().to_pylist()] == ["0", "1", "0", "2"]
    assert [e["row"] for e in run.errors()] == [2, 4]


class Picky(Small):
    """A model that refuses some rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0] > 1).any()):
            raise ValueError("these rows are not for me")
        return super().forward(x)


def test_a_model_that_fails_on_some_rows(tmp_path: Path) -> None:
    data = written(tmp_path / "rows.jsonl", 40)
    refused = [n for n, row in enumerate(rows(40)) if row["inputs"][0] > 1]
    with pytest.warns(whence.WhenceWarning, match=f"{len(refused)} rows could not be explained"):
        run = run_of(data, tmp_path / "run", model=Picky().eval(), methods=["gradient", "deeplift"])
    assert sorted({e["row"] for e in run.errors()}) == refused
    assert {e["method"] for e in run.errors()} == {"gradient", "deeplift"}
    assert len(run) == 40 - len(refused)


@pytest.mark.parametrize("size", [1e5, 1e-9], ids=["too large", "nothing left"])
@pytest.mark.parametrize("shape", [(2,), (1, 2)], ids=["features", "maps"])
def test_values_that_half_precision_cannot_hold_are_an_error(
    size: float, shape: tuple[int, ...], tmp_path: Path
) -> None:
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 1, bias=False))
    model[1].weight = torch.nn.Parameter(torch.ones(1, 2))
    data = [{"inputs": (torch.tensor([a, 2.0]).view(shape) * b).tolist()} for a, b in ((1, 1), (1, size), (0, 0))]
    how: dict[str, Any] = {"methods": ["input_x_gradient", "gradient"], "out": tmp_path / "run"}
    with pytest.warns(whence.WhenceWarning, match="1 rows could not be explained, or not by every method"):
        run = whence.run(model, data, dtype="float16", **how)
    (error,) = run.errors()
    assert (error["row"], error["method"]) == (1, "input_x_gradient")
    assert re.search(r'(?s)do not fit into float16: .*2e[+-]\d+\..*dtype="float32"', error["error"])
    assert [a.values.flatten().tolist() for a in run] == [[1.0, 2.0], [0.0, 0.0]]
    assert len(run["gradient"]) == 3


def test_rows_with_errors_are_tried_again_if_asked(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", 24)
    with pytest.warns(whence.WhenceWarning, match="rows could not"):
        run_of(path, tmp_path / "run", model=f"{MODELS}:moody")
    errors = {e["row"] for e in whence.open(tmp_path / "run").errors()}
    assert errors
    before = {name: content for name, content in parts(tmp_path / "run").items() if "out" in name}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WHENCE_TEST_MOOD", "good")
        again = run_of(path, tmp_path / "run", model=f"{MODELS}:moody", retry_errors=True)
        whole = run_of(path, tmp_path / "whole", model=f"{MODELS}:moody")
    assert not list(again.errors())
    assert len(again) == 24
    assert before != parts(tmp_path / "run")
    for a, b in zip(again, whole, strict=True):
        assert torch.allclose(a.values, b.values, rtol=0, atol=1e-6)


def test_data_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """A shard that has fewer rows than were planned is an error, and no part of it is written."""
    from whence.runs import plan
    from whence.runs.reading import Reader

    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows(20)), path)
    _, shards = plan.planned([(str(path), "parquet")], 8)
    pq.write_table(pa.Table.from_pylist(rows(10)), path)
    with pytest.raises(whence.FileError, match="has changed: it had 8 rows from 8 on, and now has 2"):
        list(Reader()(shards[1]))


def test_a_run_that_explains_nothing_is_no_success(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"comment": "fine"}\n{"comment": "dull"}\n')
    options = ["--model", MODEL, "--data", str(tmp_path / "rows.jsonl"), "--methods", "gradient"]
    assert main(["run", *options, "--out", str(tmp_path / "run")]) == 3
    out, err = capsys.readouterr()
    assert "0 of 2 rows explained" in out
    assert "the first error, in row 0: The row's feature 'comment'" in err
