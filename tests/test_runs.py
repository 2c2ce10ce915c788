"""Data-set runs: what is written, what is read back, and that every executor writes the same."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import whence
from tests.support.runs import MODEL, parts, rows, small, written
from whence.cli import main
from whence.runs.rows import read

METHODS = ["gradient", "integrated_gradients"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path / "rows.jsonl")


def test_a_run_holds_what_explain_gives(data: Path, tmp_path: Path) -> None:
    run = whence.run(MODEL, data, methods=METHODS, out=tmp_path / "run", shard_rows=16, batch_size=8)
    x = torch.tensor([row["inputs"] for row in rows(40)])
    assert (len(run), run.complete, run.methods) == (40, True, METHODS)
    for method in METHODS:
        whole = whence.explain(small(), x, method=method)
        for number, a in enumerate(run[method]):
            assert torch.allclose(a.values, whole.values[number][None].float(), rtol=0, atol=1e-6)
            assert int(a.target) == int(whole.target[number])
            assert abs(float(a.output_value) - float(whole.output_value[number])) < 1e-6
    assert torch.equal(run["integrated_gradients"][-1].values, a.values)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [".lock", "manifest.json", "out", "plan.jsonl"]


def test_processes_write_the_same_bytes_as_this_one(data: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    for name, how in (("a", {}), ("b", {"executor": "process", "workers": 2})):
        whence.run(MODEL, data, methods=METHODS, out=tmp_path / name, shard_rows=7, **how)
    assert parts(tmp_path / "a") == parts(tmp_path / "b")
    assert len(parts(tmp_path / "a")) == 6


def test_slices_and_filters_are_read_as_streams(data: Path, tmp_path: Path) -> None:
    run = whence.run(MODEL, data, methods=METHODS, out=tmp_path / "run", shard_rows=9)
    table = run.to_pandas()
    assert [int(a.receipt["row"]) for a in run[3:30:5]] == [3, 8, 13, 18, 23, 28]
    assert len(run[10:][5:8]) == 3
    assert run[10:][5].receipt["row"] == 15
    ones = run.filter(label=1)
    assert [a.receipt["row"] for a in ones] == list(range(1, 40, 3))
    assert len(ones.filter(prediction=2)) == int(((table.label == "1") & (table.prediction == "2")).sum())
    assert len(run.filter(wrong=True)) + len(run.filter(wrong=False)) == 40
    largest = table.gap_integrated_gradients.max()
    assert len(run["integrated_gradients"].filter(gap_above=largest)) == 0
    assert len(run["integrated_gradients"].filter(gap_above=largest * 0.999)) == 1
    assert run.compare(4)["gradient"].values.shape == (1, 6)
    with pytest.raises(IndexError, match="There are 40 rows, and none at 40"):
        run[40]
    with pytest.raises(whence.ParameterError, match="no column 'values_gradien'. Did you mean 'values_gradient'"):
        run.to_arrow(["values_gradien"])


def test_a_broken_line_is_one_error(tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in rows(20)]
    lines[7], lines[11] = '{"inputs": [1, 2', json.dumps({"inputs": "x"})
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    with pytest.warns(whence.WhenceWarning, match="2 rows could not be explained"):
        run = whence.run(MODEL, tmp_path / "rows.jsonl", methods="gradient", out=tmp_path / "run", shard_rows=6)
    assert len(run) == 18
    assert [(e["row"], e["line"]) for e in run.errors()] == [(7, 8), (11, 12)]
    assert sum(batch.num_rows for batch in run.batches(failed=True)) == 20


def test_what_is_done_is_not_done_again(data: Path, tmp_path: Path) -> None:
    whence.run(MODEL, data, methods=METHODS, out=tmp_path / "run", shard_rows=16)
    files = sorted((tmp_path / "run" / "out").iterdir())
    before = [path.stat().st_mtime_ns for path in files]
    files[1].unlink()
    whence.run(MODEL, data, methods=METHODS, out=tmp_path / "run")
    after = [path.stat().st_mtime_ns for path in files]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False, True]


# ---- kinds of data ----


def as_parquet(folder: Path, given: list[dict[str, Any]]) -> Any:
    for name, some in (("a.parquet", given[:25]), ("b.parquet", given[25:])):
        pq.write_table(pa.Table.from_pylist(some), folder / name, row_group_size=10)
    return folder


def as_glob(folder: Path, given: list[dict[str, Any]]) -> Any:
    for name, some in (("a-1.jsonl", given[:3]), ("a-2.jsonl", given[3:])):
        (folder / name).write_text("\n\n".join(map(json.dumps, some)))
    (folder / "b.jsonl").write_text("nothing")
    return f"{folder}/a-*.jsonl"


def as_csv(folder: Path, given: list[dict[str, Any]]) -> Any:
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8-sig") as file:
        write = csv.writer(file)
        write.writerow([*"abcdef", "label", "id"])
        write.writerows([*row["inputs"], row["label"], f'{row["id"]}\n, of "two" lines'] for row in given)
    return folder / "rows.csv"


def as_data_set(folder: Path, given: list[dict[str, Any]]) -> Any:
    """What Hugging Face's `Dataset.save_to_disk` writes."""
    names = []
    for number, some in enumerate((given[:22], given[22:])):
        names.append({"filename": f"data-{number:05d}-of-00002.arrow"})
        table = pa.Table.from_pylist(some)
        with pa.OSFile(str(folder / names[-1]["filename"]), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table, max_chunksize=6)
    (folder / "state.json").write_text(json.dumps({"_data_files": names, "_indices_data_files": None}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def as_iterable(folder: Path, given: list[dict[str, Any]]) -> Any:
    return ({**row, "inputs": np.array(row["inputs"], np.float32)} for row in given)


@pytest.mark.parametrize("kind", [as_parquet, as_glob, as_csv, as_data_set, as_iterable])
def test_every_kind_of_data_gives_the_same_rows(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "data").mkdir()
    whole = whence.explain(small(), torch.tensor([row["inputs"] for row in rows(40)]), method="gradient").values
    run = whence.run(
        MODEL, kind(tmp_path / "data", rows(40)), methods="gradient", out=tmp_path / "run", shard_rows=9, batch_size=4
    )
    found = run.to_arrow(["row", "id", "label", "values_gradient"]).to_pylist()
    assert [(row["row"], row["id"][:2]) for row in found] == [(n, f"r{n}"[:2]) for n in range(40)]
    assert [row["label"] for row in found] == [str(n % 3) for n in range(40)]
    assert np.allclose([row["values_gradient"] for row in found], whole.numpy(), rtol=0, atol=1e-6)


def test_an_iterable_of_other_rows_is_refused(tmp_path: Path) -> None:
    for count, fails in ((20, False), (20, False), (21, True)):
        if not fails:
            run = whence.run(MODEL, iter(rows(count)), methods="gradient", out=tmp_path / "run", shard_rows=9)
            continue
        with pytest.raises(whence.FileError, match="data: .* has other contents"):
            whence.run(MODEL, iter(rows(count)), methods="gradient", out=tmp_path / "run")
    assert len(run) == 20
    assert len(list((tmp_path / "run" / "data").iterdir())) == 1


@pytest.mark.slow
def test_files_open_in_duckdb_polars_and_pandas(data: Path, tmp_path: Path) -> None:
    duckdb, polars, pandas = map(pytest.importorskip, ("duckdb", "polars", "pandas"))
    for dtype in ("float32", "float16"):
        run = whence.run(MODEL, data, methods="gradient", out=tmp_path / dtype, shard_rows=16, dtype=dtype)
        first = run[0].values[0].tolist()
        places = f"{tmp_path / dtype}/out/*.parquet"
        found = duckdb.sql(f"select values_gradient from '{places}' where row = 0").fetchall()[0][0]
        assert np.allclose(found, first)
        assert np.allclose(polars.read_parquet(places).filter(polars.col("row") == 0)["values_gradient"][0], first)
        assert np.allclose(pandas.read_parquet(tmp_path / dtype / "out").values_gradient[0], first)


def test_metrics_are_columns(data: Path, tmp_path: Path) -> None:
    run = whence.run(MODEL, data, methods=METHODS, metrics=["sparseness"], out=tmp_path / "run", shard_rows=40)
    x = torch.tensor([row["inputs"] for row in rows(40)])
    board = whence.evaluate(small(), x, methods=METHODS, metrics=["sparseness"])
    table = run.to_pandas()
    for method in METHODS:
        mean = table[f"sparseness_{method}"].mean()
        assert abs(mean - board[method, "sparseness"].value) < 1e-6


# ---- texts and images of bundled models ----


def test_texts_come_back_as_they_were(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    texts = ["A warm little film.", "dull", "not so bad, not so good", "" * 3 + "it moves"]
    run = whence.run("zoo:sentiment", texts, methods=["input_x_gradient"], out=tmp_path / "run", target="positive")
    model = whence.load("zoo:sentiment")
    for text, a in zip(texts, run, strict=True):
        b = whence.explain(model, text, method="input_x_gradient", target="positive")
        assert (a.text, a.units, a.spans, a.words, a.special) == (b.text, b.units, b.spans, b.words, b.special)
        assert a.labels == ["positive"]
        assert torch.allclose(a.values, b.values.float(), rtol=0, atol=1e-5 * float(b.values.abs().max()))
        assert a.merge_words().units == b.merge_words().units
        assert "<" in a.to_html()
    found = run.to_pandas(["prediction", "probability", "target"])
    assert found.prediction.tolist() == [whence.explain(model, t, method="gradient").labels[0] for t in texts]


def test_maps_of_images_are_in_a_file_beside(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("transformers")
    for label, seed in (("Coat", 0), ("Bag", 1)):
        (tmp_path / "images" / label).mkdir(parents=True)
        drawn = np.random.default_rng(seed).integers(0, 255, (28, 28), dtype=np.uint8)
        image.fromarray(drawn).save(tmp_path / "images" / label / "one.png")
    run = whence.run("zoo:fashion-cnn", tmp_path / "images", methods=METHODS, out=tmp_path / "run")
    assert [row["label"] for row in run.to_arrow().to_pylist()] == ["Bag", "Coat"]
    assert (tmp_path / "run" / "out" / "part-00000.safetensors").exists()
    a = run["integrated_gradients"][1]
    b = whence.explain(
        whence.load("zoo:fashion-cnn"), [str(tmp_path / "images" / "Coat" / "one.png")], method="integrated_gradients"
    )
    assert a.values.shape == b.values.shape
    assert torch.allclose(a.values, b.values.float(), rtol=0, atol=1e-6)
    (tmp_path / "run" / "out" / "part-00000.safetensors").write_bytes(b"")
    again = whence.run("zoo:fashion-cnn", tmp_path / "images", methods=METHODS, out=tmp_path / "run")
    assert torch.equal(again["integrated_gradients"][1].values, a.values)


# ---- the command line ----


def test_the_command_runs_and_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "rows.csv").write_text('comment,y\ngood film,1\n"bad, bad",0\n')
    base = ["run", "--model", "zoo:sentiment", "--data", str(tmp_path / "rows.csv"), "--out", str(tmp_path / "run")]
    base += ["--columns", "text=comment,label=y"]
    assert main([*base, "--methods", "gradient,deeplift"]) == 0
    assert "2 of 2 rows explained, 0 with errors" in capsys.readouterr().out
    assert main([*base, "--methods", "gradient,deeplift", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []
    assert main([*base, "--methods", "gradient"]) == 2
    assert "holds a run that differs from this one:\n  methods: deeplift was" in capsys.readouterr().err
    assert [a.receipt["label"] for a in whence.open(tmp_path / "run")] == [["positive"], ["negative"]]


def test_features_are_read_by_name(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "e": 2}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.warns(whence.WhenceWarning, match="1 rows could not be explained"):
        run = whence.run(
            torch.nn.Linear(2, 2), tmp_path / "rows.jsonl", methods=["input_x_gradient"], out=tmp_path / "run"
        )
    assert torch.equal(run[0].values, run[1].values)
    assert "has the features 'a', 'e', but the first row has 'a', 'b'" in (
        next((tmp_path / "run" / "errors").iterdir()).read_text()
    )


def test_an_entry_that_is_renamed_is_in_its_place_and_not_there_twice(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,beta,label,y\n1,2,7,1\n3,4,7,0\n")
    model = torch.nn.Linear(2, 2)
    columns = {"b": "beta", "label": "y"}
    run = whence.run(model, tmp_path / "rows.csv", methods=["gradient"], out=tmp_path / "run", columns=columns)
    assert run[0].units == [["a", "b"]]
    assert torch.equal(run[1].output_value, model(torch.tensor([[3.0, 4.0]])).max(1).values.detach())
    assert run.to_arrow("label")["label"].to_pylist() == ["1", "0"]


def test_a_pair_that_is_stored_the_other_way_round(tmp_path: Path) -> None:
    columns = {"text": "second", "second": "text"}
    row = read({"text": "one", "second": "two"}, 0, "text", columns, "")
    assert row.inputs == ("two", "one")


@pytest.mark.parametrize("before", [b"\xef\xbb\xbf", b"\n", b"\xef\xbb\xbf\r\n"])
def test_names_of_columns_are_read_behind_a_mark_and_empty_lines(before: bytes, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(before + b'"a,\r\n1","b"\r\n1,2\r\n3,4\r\n')
    run = whence.run(
        torch.nn.Linear(2, 2), tmp_path / "rows.csv", methods=["gradient"], out=tmp_path / "run", shard_rows=1
    )
    assert [a.units for a in run] == [[["a,\r\n1", "b"]]] * 2


def test_data_sets_of_torch_are_rows_and_labels(tmp_path: Path) -> None:
    x, labels = torch.randn(5, 2, generator=torch.Generator().manual_seed(0)), [0, 1, 1, 0, 1]
    data = torch.utils.data.TensorDataset(x, torch.tensor(labels))
    pairs = [(row.numpy(), np.int64(label)) for row, label in zip(x, labels, strict=True)]
    for name, given in (("set", data), ("pairs", pairs)):
        run = whence.run(torch.nn.Linear(2, 2), given, methods=["gradient"], out=tmp_path / name)
        assert run.to_arrow("label")["label"].to_pylist() == list(map(str, labels))


def test_data_frames_may_miss_entries_and_hold_dates(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"text": ["a warm film", None, "dull"], "label": [1, 0, None], "id": ["x", None, "z"], "n": [1, 2, 3]}
    )
    frame["day"] = pandas.to_datetime(["2020-01-01", None, "2021-01-01"])
    frame["n"] = frame["n"].astype("Int64").where([True, False, True])
    with pytest.warns(whence.WhenceWarning, match="The first of them, row 1: The row's text is NoneType"):
        run = whence.run("zoo:sentiment", frame, methods=["gradient"], out=tmp_path / "run")
    assert run.to_arrow(["row", "label", "id"]).to_pylist() == [
        {"row": 0, "label": "positive", "id": "x"}, {"row": 2, "label": None, "id": "z"},
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_data_frames_are_rows(kind: str, tmp_path: Path) -> None:
    library = pytest.importorskip(kind)
    frame = getattr(library, "table" if kind == "pyarrow" else "DataFrame")({"a": [1.0, 3.0], "b": [2.0, 4.0]})
    run = whence.run(torch.nn.Linear(2, 2), frame, methods=["gradient"], out=tmp_path / "run")
    assert len(run) == 2
    assert run.complete
