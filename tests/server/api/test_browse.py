"""Browsing a run: pages of rows, sorted and filtered, its summary, and single rows with their explanations."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest

import whence
from tests.support.runs import repeated
from tests.support.server import Server, served
from whence.runs.opened import Run
from whence.runs.samples import rows as read_rows
from whence.server.browse import Browsed

WORDS = ("warm dull funny clumsy moving tedious", "film plot story drama", "bores shines fails delights")
METHODS = ["integrated_gradients", "attnlrp"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("run")
    a, b, c = (words.split() for words in WORDS)
    lines = [{"text": f"This {a[i % 6]} {b[i % 4]} {c[i % 3]}.", "label": i % 2, "id": f"r{i}"} for i in range(40)]
    lines[7]["text"] = None  # which cannot be explained
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.warns(whence.WhenceWarning, match="1 rows could not be explained"):
        return whence.run(
            "zoo:sentiment", str(folder / "rows.jsonl"), methods=METHODS, out=str(folder / "run"), shard_rows=16
        )


@pytest.fixture(scope="module")
def browsing(run: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = ("--model", "zoo:sentiment", "--run", run.storage.address)
    with served(tmp_path_factory.mktemp("browsing"), *arguments) as found:
        for _ in range(600):
            if not found.get("/api/run")["pending"]:
                break
            time.sleep(0.1)
        yield found


def rows(server: Server, **wanted: Any) -> Any:
    return server.get(f"/api/run/rows?{urlencode(wanted)}")


def test_the_run_as_a_whole(browsing: Server, run: Any) -> None:
    about = browsing.get("/api/run")
    assert (about["rows"], about["failed"], about["served"]) == (40, 1, "zoo:sentiment")
    assert [one["name"] for one in about["methods"]] == METHODS
    assert about["labels"] == {"negative": 20, "positive": 19}
    own = run.summary()
    assert about["summary"]["rows"] == own.rows == 39
    target = own.target(None)
    units = about["summary"]["units"][target]["attnlrp"]["for"]
    assert [unit["name"] for unit in units] == [
        unit.name for unit in own.units(target, "attnlrp", side="for", count=12)
    ]
    (pair,) = about["summary"]["agreement"]
    assert pair["mean"] == pytest.approx(own.agreement["integrated_gradients", "attnlrp"].mean)


def test_rows_come_in_pages(browsing: Server) -> None:
    whole = rows(browsing, limit=500)
    assert whole["total"] == 40
    assert [row["row"] for row in whole["rows"]] == list(range(40))
    paged = [row for offset in range(0, 40, 16) for row in rows(browsing, offset=offset, limit=16)["rows"]]
    assert paged == whole["rows"]
    assert rows(browsing, offset=1000)["rows"] == []
    assert whole["rows"][7]["error"]
    assert whole["rows"][7]["probability"] is None


@pytest.mark.parametrize("name", ["probability", "gap", "in_common", "score", "label", "text"])
@pytest.mark.parametrize("descending", [False, True])
def test_rows_are_sorted_with_what_is_missing_last(browsing: Server, name: str, descending: bool) -> None:
    found = [row[name] for row in rows(browsing, sort=name, descending=descending, limit=500)["rows"]]
    there = [value for value in found if value is not None]
    assert len(found) == 40
    assert found[: len(there)] == sorted(there, reverse=descending)


def test_rows_are_filtered(browsing: Server) -> None:
    every = rows(browsing, limit=500)["rows"]

    def same(wanted: dict[str, Any], fits: Any) -> None:
        found = [row["row"] for row in rows(browsing, limit=500, **wanted)["rows"]]
        assert found == [row["row"] for row in every if row["error"] is None and fits(row)]
        assert found

    same({"label": "positive"}, lambda row: row["label"] == "positive")
    same({"prediction": "negative"}, lambda row: row["prediction"] == "negative")
    same({"wrong": "true"}, lambda row: row["label"] != row["prediction"])
    same({"word": "CLUMSY"}, lambda row: "clumsy" in row["text"])
    middle = sorted(row["probability"] for row in every if row["probability"])[20]
    same({"probability_above": middle}, lambda row: row["probability"] >= middle)
    same({"probability_below": middle, "label": "negative"},
         lambda row: row["probability"] <= middle and row["label"] == "negative")  # fmt: skip
    gap = sorted(row["gap"] for row in every if row["gap"] is not None)[20]
    same({"gap_above": gap}, lambda row: row["gap"] > gap)
    common = sorted(row["in_common"] for row in every if row["in_common"] is not None)[20]
    same({"in_common_below": common}, lambda row: row["in_common"] < common)
    assert [row["row"] for row in rows(browsing, failed="true")["rows"]] == [7]
    assert rows(browsing, word="(?i)[")["total"] == 0  # a text, not a pattern


def test_a_row_has_its_explanations(browsing: Server, run: Any) -> None:
    found = browsing.get("/api/run/rows/20")
    for one in found["results"]:
        a = next(a for a in run[one["method"]] if a.receipt["row"] == 20).merge_words()
        assert one["values"] == pytest.approx(a.values[0].tolist(), rel=1e-6)
        assert [unit["text"] for unit in one["units"]] == a.units[0]
        assert one["targets"][0]["label"] == found["target"]
    assert len(found["results"]) == 2
    assert browsing.get("/api/run/rows/7")["results"] == []
    for row in (40, -1, 10**12):
        assert browsing.refused("GET", f"/api/run/rows/{row}")[0] == 422


def test_rows_may_come_with_their_words_values(browsing: Server) -> None:
    lines = rows(browsing, sort="probability", limit=30, values="true")["rows"]
    for line in lines[::7]:
        one = browsing.get(f"/api/run/rows/{line['row']}")["results"][0]
        plain = [(unit["start"], unit["end"], value) for unit, value in zip(one["units"], one["values"], strict=True)
                 if not unit["special"]]  # fmt: skip
        assert [(start, end, value) for start, end, _, value in line["values"]] == [
            (start, end, pytest.approx(value, rel=1e-5)) for start, end, value in plain
        ]


def test_values_cost_one_look_at_each_part_and_only_at_what_is_shown(run: Any, monkeypatch: Any) -> None:
    reads: list[tuple[int, Any]] = []
    plain = Run._read

    def read(self: Run, shard: Any, columns: Any) -> Any:
        reads.append((shard.shard, columns))
        return plain(self, shard, columns)

    browsed = Browsed(run)
    _ = browsed.table
    monkeypatch.setattr(Run, "_read", read)
    there = [39, 0, 7, 17, 1]  # of all three parts; 7 could not be explained
    found = browsed._values(there)
    assert sorted(found) == [0, 1, 17, 39]
    own = [columns for _, columns in reads if columns is not None and "gap_attnlrp" not in columns]
    assert sorted(number for number, columns in reads if columns in own) == [0, 1, 2]
    assert not {name for columns in own for name in columns} & {"values_attnlrp", "label", "prediction", "image"}
    by_row = {row.about["row"]: row for row in read_rows(run, "word")}
    for number, words in found.items():
        row = by_row[number]
        plain_words = np.c_[row.spans, row.values[run.method]][~row.special]
        assert np.array(words) == pytest.approx(plain_words)
    before = len([1 for _, columns in reads if columns in own])
    assert browsed._values(there) == found  # kept
    assert len([1 for _, columns in reads if columns in own]) == before


@pytest.mark.parametrize(
    "wanted", [{"sort": "values_attnlrp"}, {"sort": "nothing"}, {"limit": 501}, {"offset": -1}, {"path": "/etc"}]
)
def test_what_is_not_offered_is_refused(browsing: Server, wanted: Any) -> None:
    assert browsing.refused("GET", f"/api/run/rows?{urlencode(wanted)}")[0] == 422


@pytest.mark.parametrize("row", [-1, 10**6, 10**30])
def test_rows_that_are_not_there(browsing: Server, row: int) -> None:
    status, _, text = browsing.refused("GET", f"/api/run/rows/{row}")
    assert status == 422
    assert f"The run has no row {row}." in text


def test_a_server_without_a_run(server: Server) -> None:
    assert server.get("/api/run") is None
    assert server.refused("GET", "/api/run/rows")[:2] == (404, "unknown")


@pytest.mark.slow
def test_a_hundred_thousand_rows_are_browsed(run: Any, tmp_path: Path) -> None:
    """Each page costs little: far less than reading the table once."""
    big = repeated(Path(run.storage.address), tmp_path / "big", 2500)
    with served(tmp_path, "--model", "zoo:sentiment", "--run", str(big)) as own:
        assert own.get("/api/run")["rows"] == 100_000
        start = time.perf_counter()
        opened = own.cpu()
        for offset in range(0, 100_000, 2500):
            page = rows(own, offset=offset, limit=100)
            assert [row["row"] for row in page["rows"]] == list(range(offset, offset + 100))
        by_gap = rows(own, sort="gap", descending=True, offset=50_000)
        assert (by_gap["total"], len(by_gap["rows"])) == (100_000, 100)
        assert rows(own, word="clumsy", label="negative")["total"] == 2500 * len(
            [i for i in range(40) if i % 6 == 3 and i % 2 == 0 and i != 7]
        )
        assert own.get("/api/run/rows/99999")["row"] == 99_999
        print(f"45 requests: {time.perf_counter() - start:.2f} s, CPU {own.cpu() - opened:.2f} s (with the summary)")
