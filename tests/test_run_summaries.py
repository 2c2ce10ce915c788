"""What a run says over all its rows: the numbers against slow ones, the bounds, the page, and other readers."""

from __future__ import annotations

import itertools
import json
import math
import re
import tracemalloc
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import torch

import whence
from tests.support.browser import chromium
from tests.support.runs import MODEL, rows, small, written
from whence.evaluation.bootstrap import student_quantile
from whence.runs.opened import Run
from whence.runs.shares import by_chance
from whence.runs.streamed import Extremes, Histogram, Moments, Vocabulary

METHODS = ["integrated_gradients", "input_x_gradient", "gradient"]
HOSTILE = '<script>alert(1)</script> & "quotes" \x1b[31m red'
TEXTS = [
    "a warm and moving film", "a dull and lifeless film", "moving , if a little dull", HOSTILE, "dull , dull , dull",
    "A warm film", "lifeless", "the film is moving and warm", "not a dull moment", "a film", "warm", "Dull.",
]  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("texts")
    lines = [{"text": text, "label": "negative" if i % 2 else "positive"} for i, text in enumerate(TEXTS)]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    methods = ["integrated_gradients", "attnlrp", "gradient"]
    return whence.run(
        "zoo:sentiment", folder / "rows.jsonl", methods=methods, out=folder / "run", target="positive", shard_rows=5
    )


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("features")
    return whence.run(MODEL, written(folder / "rows.jsonl"), methods=METHODS, out=folder / "run", shard_rows=7)


# ---- the numbers ----


def words_of(a: whence.Attribution) -> dict[str, float]:
    """Slowly: the sum of each word's values in one row."""
    merged = a.merge_words()
    assert merged.units is not None
    assert merged.special is not None
    found: dict[str, float] = {}
    for unit, value, special in zip(merged.units[0], merged.values[0].tolist(), merged.special[0], strict=True):
        if not special:
            name = " ".join(unit.split()).lower()
            found[name] = found.get(name, 0.0) + value
    return found


@pytest.mark.parametrize("method", ["integrated_gradients", "attnlrp"])
def test_words_have_the_mean_and_the_interval_of_their_rows(texts: Run, method: str) -> None:
    summary = texts.summary()
    slow: dict[str, list[float]] = {}
    for a in texts[method]:
        for name, value in words_of(a).items():
            slow.setdefault(name, []).append(value)
    found = {unit.name: unit for unit in summary.units("positive", method, least=2, count=None)}
    assert set(found) == {name for name, values in slow.items() if len(values) >= 2}
    for name, unit in found.items():
        values = np.array(slow[name])
        reach = student_quantile(len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
        expected = (values.mean(), values.mean() - reach, values.mean() + reach)
        assert np.allclose((unit.mean, unit.low, unit.high), expected, atol=1e-6), name
        assert unit.rows == len(values)
    assert found["dull"].places == 7  # of which three are in one row
    assert found["dull"].rows == 5
    assert found["dull"].mean < 0 < found["warm"].mean
    nearest = [unit.low if unit.low > 0 else -unit.high if unit.high < 0 else 0.0 for unit in found.values()]
    assert nearest == sorted(nearest, reverse=True)


def test_tokens_are_units_too(texts: Run) -> None:
    every = texts.summary(unit="token").vocabulary.index["positive"]
    words = texts.summary().vocabulary.index["positive"]
    assert any(name.startswith("##") for name in every)
    assert not any(name.startswith("##") for name in words)
    assert not {"[CLS]", "[SEP]", "[PAD]"} & {*every, *words}


def test_words_of_pairs_are_those_of_both_texts(tmp_path: Path) -> None:
    lines = [{"text": first, "second": "it is <i>dull</i>"} for first in ("a warm film", "a dull film")]
    run = whence.run("zoo:sentiment", lines, methods="input_x_gradient", out=tmp_path / "run", target="positive")
    slow = [words_of(a) for a in run]
    vocabulary = run.summary().vocabulary
    for name, place in vocabulary.index["positive"].items():
        values = [row[name] for row in slow if name in row]
        assert vocabulary.moments.at((place, 0)).mean == pytest.approx(np.mean(values), abs=1e-6), name
    assert vocabulary.places[vocabulary.index["positive"]["dull"]] == 3
    assert {"warm", "it"} < set(vocabulary.index["positive"]) == {*slow[0], *slow[1]}
    page = re.sub(r"</?span[^>]*>", "", run.report())
    assert page.count("it is &lt;i&gt;dull&lt;/i&gt;</p>") >= 2
    assert '<p class="reading small" dir="auto">a warm film</p>' in page


def test_features_are_units_by_their_number(features: Run) -> None:
    summary = features.summary()
    x = torch.tensor([row["inputs"] for row in rows(40)])
    whole = whence.explain(small(), x, method="input_x_gradient")
    assert (summary.unit, summary.rows, sum(summary.classes.values())) == ("feature", 40, 40)
    for target in summary.classes:
        mine = whole.values[whole.target == int(target)].double()
        for unit in summary.units(target, "input_x_gradient", least=2, count=None):
            assert abs(unit.mean - float(mine[:, int(unit.name)].mean())) < 1e-6


def test_agreement_is_the_share_in_common(texts: Run) -> None:
    summary = texts.summary()
    assert summary.signed == {"integrated_gradients": True, "attnlrp": True, "gradient": False}
    for (a, b), mean in summary.agreement.items():
        slow = []
        for x, y in zip(texts[a], texts[b], strict=True):
            shares = []
            for one in (x.merge_words(), y.merge_words()):
                assert one.special is not None
                values = one.values[0][~torch.tensor(one.special[0])].double()
                shares.append(values / values.abs().sum())
            if "gradient" in (a, b):
                shares = [share.abs() for share in shares]
            slow.append(1 - float((shares[0] - shares[1]).abs().sum()) / 2)
        assert abs(mean.mean - np.mean(slow)) < 1e-6
    least = summary.disagree[0]
    assert all(note.value >= least.value for note in summary.disagree)
    assert 0 <= least.value <= 1


def test_chance_is_the_mean_over_all_orders() -> None:
    own = np.array([0.5, -0.2, 0.2, 0.1])
    slow = np.mean([1 - np.abs(own - np.array(other)).sum() / 2 for other in itertools.permutations(own)])
    owner, plain = np.zeros(4, dtype=int), np.ones(4, dtype=bool)
    assert abs(by_chance(own, owner, 1, plain, True)[0] - slow) < 1e-12


def test_rows_that_stand_out_are_those_of_the_table(features: Run) -> None:
    summary, table = features.summary(rows=4), features.to_pandas()
    gaps = table.sort_values("gap_integrated_gradients", ascending=False, kind="stable")
    assert [note.row for note in summary.largest_gaps] == gaps.row.tolist()[:4]
    wrong = table[table.prediction != table.label].sort_values("probability", ascending=False, kind="stable")
    assert [note.row for note in summary.confident_wrong] == wrong.row.tolist()[:4]
    assert (summary.wrong, summary.labelled) == (len(wrong), 40)
    counts = summary.gaps["integrated_gradients"].counts
    assert counts.sum() == 40
    assert summary.gaps["gradient"].counts.sum() == 0


# ---- a stream ----


def test_each_part_is_read_once(features: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    before = Run._read

    def counted(self: Run, shard: Any, columns: Any) -> Any:
        read.append(shard.shard)
        return before(self, shard, columns)

    monkeypatch.setattr(Run, "_read", counted)
    features.summary()
    assert read == list(range(6))


@pytest.mark.slow
def test_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    run = whence.run(
        MODEL, written(tmp_path / "rows.jsonl", 6000), methods=["gradient", "input_x_gradient"], out=tmp_path / "run",
        shard_rows=200, batch_size=200,
    )  # fmt: skip
    run[:200].summary()  # whatever is loaded at first use
    peaks = []
    for some in (run[:400], run):
        tracemalloc.start()
        assert some.summary().rows == len(some)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0], peaks


def test_moments_are_merged_exactly() -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(1e6, 1.0, (3, 500))
    values[1, ::7] = np.nan
    moments = Moments((3,))
    for part in np.array_split(values, 9, axis=1):
        moments.add(part)
    assert np.allclose(moments.mean, np.nanmean(values, 1), rtol=1e-14)
    assert np.allclose(moments.squares / (moments.rows - 1), np.nanvar(values, 1, ddof=1), rtol=1e-6)


def test_a_vocabulary_is_bounded_and_what_it_keeps_is_exact() -> None:
    draw = np.random.default_rng(0)
    whole, bounded = Vocabulary(1, 10_000), Vocabulary(1, 50)
    for _ in range(20):
        owner = np.sort(draw.integers(0, 30, 400))
        names = [f"w{int(n)}" for n in draw.zipf(1.3, 400).clip(max=2000)]
        values = draw.normal(size=(1, 400))
        for one in (whole, bounded):
            one.add(["c"] * 30, owner, names, values)
    assert len(bounded.index["c"]) == bounded.size == len(bounded.places) == 50
    assert bounded.left_out == 8000 - bounded.places.sum() > 0
    for name, place in bounded.index["c"].items():
        other = whole.index["c"][name]
        assert bounded.moments.at((place, 0)) == whole.moments.at((other, 0))


def test_a_bound_that_is_met_is_told(texts: Run) -> None:
    summary = texts.summary(bound=4)
    assert summary.vocabulary.size == 4
    (note,) = summary.notes
    assert re.match(r"The first 4 pairs of a class and a unit were kept, and are exact; \d+ places", note)
    assert note in texts.report(bound=4)
    assert texts.summary().notes == []


def test_extremes_are_the_largest_and_the_earliest() -> None:
    numbers = np.random.default_rng(1).integers(0, 50, 500).astype(float)
    numbers[::11] = np.nan
    found = Extremes(20)
    for part in np.array_split(np.arange(500), 7):
        found.add(numbers[part], [{"row": int(row)} for row in part])
    order = sorted((i for i in range(500) if not np.isnan(numbers[i])), key=lambda i: (-numbers[i], i))
    assert [row["row"] for _, row in found.found()] == order[:20]


def test_a_histogram_counts_what_lies_outside() -> None:
    histogram = Histogram(np.array([1.0, 2.0, 3.0]))
    histogram.add(np.array([0.5, 1.0, 1.5, 2.5, 3.0, 9.0, np.nan]))
    assert histogram.counts.tolist() == [1, 2, 1, 2]
    assert histogram.quantile(0.5) == 2.0


# ---- maps ----


class Pixels(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.conv, self.head = torch.nn.Conv2d(2, 3, 3, padding=1), torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


def test_maps_have_a_mean_map_by_class(tmp_path: Path) -> None:
    x = torch.randn(12, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    lines = [{"inputs": row} for row in x.tolist()]
    methods = ["input_x_gradient", "integrated_gradients"]
    run = whence.run(Pixels(), lines, methods=methods, out=tmp_path / "run", shard_rows=5)
    summary = run.summary()
    whole = whence.explain(Pixels(), x, method="input_x_gradient")
    assert summary.unit == "pixel"
    for target in summary.classes:
        mine = whole.values[whole.target == int(target)].double()
        if mine.dim() == 4:
            mine = mine.sum(1)
        found = summary.maps[target, "input_x_gradient"]
        assert found.rows == len(mine)
        assert np.allclose(found.mean, mine.mean(0).numpy(), atol=1e-6)
        reach = student_quantile(len(mine) - 1) * mine.std(0) / math.sqrt(len(mine))
        assert np.allclose(found.high - found.mean, reach.numpy(), atol=1e-6)
    page = run.report()
    assert page.count('class="map"') >= 12
    assert "Where it matters on average" in page
    ax = run.plot("map")
    assert "mean over" in ax.get_title(loc="left")
    with pytest.raises(whence.InputError, match="No pixel occurs in enough rows"):
        run.plot("units")


# ---- the page ----


def test_the_report_is_one_static_page_with_every_row(texts: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    page = texts.report(path)
    assert path.read_text() == page
    assert [int(n) for n in re.findall(r'id="r(\d+)"', page)] == list(range(len(TEXTS)))
    assert set(map(int, re.findall(r'href="#r(\d+)"', page))) <= set(range(len(TEXTS)))
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in re.sub(r"</?span[^>]*>", "", page)
    assert "\x1b" not in page
    assert not re.search(r"""(src|href)=["']?(https?:|//)|url\((?!data:)""", page)
    assert "Speak against “positive”" in page
    assert page.count('class="swarm"') >= 2
    assert "Do the values add up?" in page
    assert '<h2 class="part">Do the methods agree?' in page


def test_a_report_lists_at_most_so_many_rows(texts: Run) -> None:
    page = texts.report(rows=3)
    assert len(re.findall(r'id="r\d+"', page)) == 3
    assert f"{len(TEXTS) - 3} more rows are not on this page" in page
    listed = set(re.findall(r'id="r(\d+)"', page))
    assert set(re.findall(r'href="#r(\d+)"', page)) <= listed


def test_all_rows_are_on_pages_beside_a_report(texts: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whence.runs.report._PAGE", 5)
    page = texts.report(tmp_path / "a report#1.html", rows=3, pages=True)
    links = re.findall(r'<a href="([^"#]+)">Rows', page)
    files = [tmp_path / unquote(link) for link in links]
    assert [file.name for file in files] == ["000000.html", "000001.html", "000002.html"]
    found = [int(n) for file in files for n in re.findall(r'id="r(\d+)"', file.read_text())]
    assert found == list(range(len(TEXTS)))
    (back,) = re.findall(r'<a href="([^"]+)">To the report', files[0].read_text())
    assert (files[0].parent / unquote(back)).resolve() == tmp_path / "a report#1.html"
    assert "<script" not in "".join(file.read_text() for file in files)
    with pytest.raises(whence.ParameterError, match="Give a path"):
        texts.report(pages=True)


@pytest.mark.slow
def test_a_browser_asks_for_nothing_and_complains_about_nothing(texts: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    texts.report(path)
    _, console, outside = chromium(path, tmp_path, "--dump-dom")
    assert (console, outside) == ("", [])


def test_a_selection_is_summed_up_by_itself(texts: Run) -> None:
    some = texts.filter(label="negative")
    assert some.summary().rows == len(some) == len(TEXTS) // 2
    with pytest.raises(whence.InputError, match=r"The selection from .* has no explained rows.\n  .*: .*positive"):
        texts.filter(label="no such label").summary()


def test_questions_that_cannot_be_answered_are_refused(texts: Run, tmp_path: Path) -> None:
    summary = texts.summary()
    with pytest.raises(whence.InputError, match="No row was explained for 'positiv'. Did you mean 'positive'"):
        summary.units("positiv")
    with pytest.raises(whence.MethodError, match="no method 'gradien'. Did you mean 'gradient'"):
        summary.units("positive", "gradien")
    with pytest.raises(whence.ParameterError, match="kind"):
        texts.plot("pie")
    with pytest.raises(whence.ParameterError, match=r"does not end in \.html"):
        texts.report(tmp_path / "report.pdf")


@pytest.mark.parametrize("kind", ["units", "swarm", "gaps", "agreement"])
def test_plots_are_drawn(features: Run, kind: str) -> None:
    import matplotlib.pyplot as plt

    ax = features.plot(kind)
    try:
        assert ax.get_title(loc="left")
        ax.figure.canvas.draw()
    finally:
        plt.close(ax.figure)


# ---- other readers ----


def test_the_files_open_in_duckdb_polars_and_pandas(texts: Run) -> None:
    duckdb, pandas, polars = (pytest.importorskip(name) for name in ("duckdb", "pandas", "polars"))
    parts = f"{texts.storage.address}/out/*.parquet"
    mine = texts.to_pandas()
    ((count, tokens, score),) = duckdb.sql(
        f"select count(*), sum(len(tokens)), sum(score) from '{parts}' where label = 'negative'"
    ).fetchall()
    chosen = mine[mine.label == "negative"]
    assert (count, tokens) == (len(chosen), sum(map(len, chosen.tokens)))
    assert abs(score - chosen.score.sum()) < 1e-9
    frame = polars.read_parquet(parts)
    assert frame["row"].to_list() == list(range(len(TEXTS)))
    assert frame["values_attnlrp"].to_list()[0] == pytest.approx(list(mine.values_attnlrp[0]))
    first = pandas.read_parquet(f"{texts.storage.address}/out")
    assert first.text.tolist() == mine.text.tolist() == TEXTS
    assert texts.to_arrow(["row", "text"]).column_names == ["row", "text"]


# ---- signs ----


@pytest.mark.parametrize("shape", [(3,), (1, 3)], ids=["features", "maps"])
def test_the_sign_of_a_method_is_that_of_all_rows(shape: tuple[int, ...], tmp_path: Path) -> None:
    """And not that of the rows that happen to come first."""
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    x[0] = 1.0
    weight = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 2, bias=False))
    model[1].weight = torch.nn.Parameter(weight)
    methods = ["input_x_gradient", "gradient"]
    lines = [{"inputs": row} for row in x.view(-1, *shape).tolist()]
    run = whence.run(model, lines, methods=methods, out=tmp_path / "run", target=0, shard_rows=1)
    other = whence.run(model, lines, methods=methods, out=tmp_path / "other", target=1, shard_rows=1)
    expected = {"input_x_gradient": True, "gradient": False}
    for found in (run.summary(), run[:5].summary()):
        assert found.signed == expected
    values = (x * weight[0]).numpy()
    shares = values / np.abs(values).sum(1, keepdims=True)
    dealt = [1 - np.abs(own[:, None] - own[None]).sum() / 3 / 2 for own in shares]
    assert abs(run.summary().chance["input_x_gradient"].mean - np.mean(dealt)) < 1e-6
    assert whence.diff(run, run).signed == expected
    assert whence.diff(run, run).agreement["input_x_gradient"].mean > 1 - 1e-6
    assert whence.diff(run, other).signed == expected
