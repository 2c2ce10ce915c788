"""Data-set runs: what is written, what is read back, and that every executor writes the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import whence
from tests.support.runs import MODEL, parts, rows, small, written

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
    assert len(run.filter(gap_above=largest)) == 0
    assert len(run.filter(gap_above=largest * 0.999)) == 1
    assert run.compare(4)["gradient"].values.shape == (1, 6)
    with pytest.raises(IndexError, match="Row 40 does not exist"):
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
