"""Evaluations as users run them: texts, interrupted runs, bad input, the table; and other libraries' numbers."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.rows import IMAGES, MASKS, Linear, Pooled, X, every, image_model, small
from whence.evaluation import scheduler


def texts(**more: Any) -> list[dict[str, Any]]:
    found = [
        "A warm, funny and beautifully acted little film.",
        "The plot is dull, and nothing in it is worth the time.",
        "Not bad at all, though the ending drags on and on.",
    ]
    return [{"text": text, **more} for text in found]


# ---- texts ----


@pytest.fixture(scope="module")
def sentiment() -> Any:
    return whence.load("zoo:sentiment")


def test_texts_with_labels_and_rationales(sentiment: Any) -> None:
    rows = texts(label="positive", rationale=[(2, 6)])
    names = ["comprehensiveness", "log_odds", "perturbation_negative", "rationale_f1", "rationale_ap", "erasure_set"]
    board = whence.evaluate(sentiment, rows, methods=["attcat", "integrated_gradients"], metrics=names)
    assert board.methods == ("attcat", "integrated_gradients", "random")
    assert not board.failures
    assert all(board[m, c].rows == 3 for m in board.methods for c in names)


def test_a_token_is_deleted_by_its_id_and_special_ones_stay(sentiment: Any) -> None:
    """Comprehensiveness of one text, by hand on its ids."""
    text = texts()[0]["text"]
    board = whence.evaluate(sentiment, [text], methods=["attcat"], metrics={"comprehensiveness": {"k": 20}})
    a = whence.explain(sentiment, text, method="attcat")
    ids = torch.tensor(sentiment.tokenizer(text)["input_ids"])
    free = (~torch.tensor(a.special[0])).nonzero().flatten()
    order = free[a.values[0][free].argsort(descending=True)]
    keep = torch.ones(len(ids), dtype=torch.bool)
    keep[order[: math.ceil(0.2 * len(free))]] = False
    with torch.no_grad():
        p = [sentiment.model(input_ids=some[None]).logits.softmax(1)[0, int(a.target)] for some in (ids, ids[keep])]
    assert board["attcat", "comprehensiveness"].value == pytest.approx(float(p[0] - p[1]), abs=1e-5)


@pytest.mark.parametrize("operator", ["delete", "mask", "pad", "zero", 5])
def test_every_way_to_remove_a_token(sentiment: Any, operator: Any) -> None:
    board = whence.evaluate(sentiment, texts(), methods=["integrated_gradients"], metrics=["aopc"], operator=operator)
    assert board["integrated_gradients", "aopc"].rows == 3
    assert board["integrated_gradients", "aopc"].value > 0
    assert board.columns[0].params["operator"] == operator


def test_intervals_and_bands_stay_within_what_a_metric_can_be(sentiment: Any) -> None:
    """Few rows near the end of the range: a bootstrap-t interval alone would reach beyond it."""
    names = ["deletion", "insertion", "perturbation_positive", "perturbation_negative", "rationale_ap", "rationale_f1"]
    names += ["comprehensiveness", "sparseness"]
    words = "warm funny dull fine bad lovely weak bold sad rich".split()
    rows = [
        {"text": f"A {word} little film.", "label": "positive", "rationale": [(2, 2 + len(word))]} for word in words
    ]
    board = whence.evaluate(sentiment, rows, methods=["attnlrp", "raw_attention"], metrics=names)
    free = 0
    for column in board.columns:
        low, high = column.facts.get("within") or column.facts["within_probability"]
        for method in board.methods:
            score = board[method, column.name]
            assert not score.low < low, (method, column.name)
            assert not score.high > high, (method, column.name)
            free += score.low == low or score.high == high
            band = board.band(method, column.name)
            if band is not None:
                assert not min(band[0]) < min(low, 0), (method, column.name)
                assert not max(band[1]) > 1, (method, column.name)
    assert free > 0  # some interval would have left the range
    logits = whence.evaluate(
        sentiment, rows, methods=["attnlrp"], metrics={"insertion": {"output": "logit"}}, progress=False
    )
    assert logits["attnlrp", "insertion"].high > 1  # a logit has no range


def test_squares_and_correlations_of_logits_have_a_range_all_the_same() -> None:
    """Infidelity is a mean of squares, whatever output it reads: its interval does not begin below 0."""
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    given = {name: {"output": "logit"} for name in ("infidelity", "faithfulness_correlation", "sensitivity_n")}
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
    rows[0] *= 30  # one large square among small ones: a bootstrap-t interval alone would reach below 0
    board = whence.evaluate(model, rows, methods=["gradient", "input_x_gradient"], metrics=given)
    for column in board.columns:
        low, high = column.facts["within"]
        for method in board.methods:
            score = board[method, column.name]
            assert score.low >= low, (method, column.name)
            assert high is None or score.high <= high, (method, column.name)
    assert any(board[method, "infidelity"].low == 0 for method in board.methods)


def test_the_interval_of_a_pointing_game_with_ties_is_one_of_shares() -> None:
    """A map of equal values is a hit by chance, so that rows are no longer yes and no, and Wilson's does not apply."""
    images = torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    masks, maps = torch.zeros(5, 6, 6), torch.zeros(5, 6, 6)
    masks[:, :3] = 1
    maps[:2, 0, 0] = maps[2:4, 5, 5] = 1  # two hits, two misses, and a map that is 0 everywhere
    board = whence.evaluate(
        image_model(), images, methods={"given": lambda m, x, t: maps[: len(x)]}, metrics=["pointing_game"],
        masks=masks, controls=False,
    )  # fmt: skip
    score = board["given", "pointing_game"]
    assert (score.low, score.value, score.high) == (0, 0.5, 1)


def test_rationales_by_words(sentiment: Any) -> None:
    """The marked word is the highest one: F1 with k words is 2 / (k + 1); the score of a word is its best piece's."""
    text = texts()[0]["text"]
    start = text.index("beautifully")
    span = (start, start + len("beautifully"))
    tokens = whence.explain(sentiment, text, method="random")
    high = torch.tensor([[float(a >= span[0] and b <= span[1] and b > a) for a, b in tokens.spans[0]]])  # type: ignore[index]
    board = whence.evaluate(
        sentiment, [{"text": text, "rationale": [span]}], methods={"given": lambda m, x, t: high}, controls=False,
        metrics={"rationale_f1": {"k": [1, 3]}, "rationale_ap": None},
    )  # fmt: skip
    assert board["given", "rationale_f1"].value == pytest.approx((1 + 2 / 4) / 2)
    assert board["given", "rationale_ap"].value == 1


def test_marks_by_token_and_rows_without_marks(sentiment: Any) -> None:
    rows = texts()
    count = len(whence.explain(sentiment, rows[0]["text"], method="random").units[0])  # type: ignore[index]
    rows[0]["rationale"] = [0, 1, *[0] * (count - 2)]
    rows[1]["rationale"] = []
    rows[2]["rationale"] = [1, 0]
    board = whence.evaluate(sentiment, rows, methods=["attcat"], metrics=["rationale_ap"])
    assert board["attcat", "rationale_ap"].rows == 1
    assert "row 2 (attcat, rationale_ap): The rationale of row 2 has 2 entries" in str(board.failures[0])


# ---- interrupted runs ----


class Stopped(BaseException):
    """Like Ctrl-C."""


def run(path: Path | None, **more: Any) -> whence.Scoreboard:
    x = torch.randn(7, 10, generator=torch.Generator().manual_seed(0))
    names = ["comprehensiveness", "aopc", "infidelity", "sensitivity_max"]
    given = {"methods": ["integrated_gradients", "smoothgrad"], "metrics": names, "resume": path, **more}
    return whence.evaluate(small(), x, **given)


def test_an_interrupted_run_goes_on_and_its_table_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whence.evaluation.evaluate.CHUNK", 2)
    whole = run(None)
    file = tmp_path / "run.jsonl"
    real, calls = scheduler.Work.chunk, []

    def chunk(self: Any, cases: Any, first: bool) -> Any:
        calls.append(len(cases))
        if len(calls) == 3:
            raise Stopped
        return real(self, cases, first)

    monkeypatch.setattr(scheduler.Work, "chunk", chunk)
    with pytest.raises(Stopped):
        run(file)
    with file.open("a") as half:
        half.write('{"chunk": 2, "rows": [["integr')  # cut short as it was written
    resumed = run(file)
    assert calls == [2, 2, 2, 2, 1]
    assert resumed.to_csv() == whole.to_csv()
    assert torch.equal(every(resumed), every(whole))
    assert run(file).to_csv() == whole.to_csv()  # everything is there
    assert len(calls) == 5


def test_a_result_file_is_of_one_evaluation(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    run(file)
    with pytest.raises(whence.FileError, match="belongs to an evaluation with other seed"):
        run(file, seed=1)
    with pytest.raises(whence.FileError, match="with other methods"):
        run(file, methods=["gradient"])
    with pytest.raises(whence.FileError, match="with other rows"):
        whence.evaluate(
            small(), torch.zeros(7, 10), methods=["integrated_gradients", "smoothgrad"], resume=file,
            metrics=["comprehensiveness", "aopc", "infidelity", "sensitivity_max"],
        )  # fmt: skip
    other = tmp_path / "other"
    other.write_bytes(b"\x80\x04 not JSON")
    with pytest.raises(whence.FileError, match="not a result file"):
        run(other)
    assert other.read_bytes() == b"\x80\x04 not JSON"
    with pytest.raises(whence.FileError, match="not a place for a result file"):
        run(tmp_path)


# ---- bad input ----


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"metrics": ["perturbation_positive"]}, whence.InputError, "needs labels, but the rows have none"),
        ({"metrics": ["segmentation_iou"]}, whence.InputError, "needs masks, but the rows have none"),
        ({"metrics": ["rationale_f1"]}, whence.InputError, "needs rationales"),
        ({"metrics": ["road_morf"]}, whence.InputError, "road_morf is for images"),
        ({"metrics": ["erasure_set"], "methods": ["gradient"]}, whence.NoAttention, "this model has none"),
        ({"metrics": ["comprehensivness"]}, whence.MethodError, "Did you mean 'comprehensiveness'"),
        ({"methods": ["gradeint"]}, whence.MethodError, "Did you mean 'gradient'"),
        ({"methods": ["raw_attention"]}, whence.NoAttention, "raw_attention"),
        ({"methods": []}, whence.InputError, "There is no method"),
        ({"methods": ["gradient", "gradient"]}, whence.InputError, "listed twice"),
        ({"metrics": []}, whence.ParameterError, "There is no metric"),
        ({"metrics": {"aopc": {"k": [0]}}}, whence.ParameterError, "percentages above 0"),
        ({"metrics": {"aopc": {"bogus": 1}}}, whence.ParameterError, "has no parameter 'bogus'"),
        ({"data": []}, whence.InputError, "The data set is empty"),
        ({"data": X[:0]}, whence.InputError, "The data set is empty"),
        ({"data": 7}, whence.InputError, "data is int"),
        ({"data": [{"inputs": X[0], "lable": 1}]}, whence.InputError, "Row 0 has an entry 'lable'"),
        ({"labels": [1]}, whence.InputError, "has 1 entries, but there are 6 rows"),
        ({"labels": ["yes"] * 6, "metrics": ["perturbation_positive"]}, whence.TargetError, "The label of row 0"),
        ({"target": "label"}, whence.InputError, "needs labels"),
        ({"target": 7}, whence.TargetError, "there is no class 7: the output has 2 classes"),
        ({"labels": [7] * 6, "metrics": ["perturbation_positive"]}, whence.InputError, "The label is 7"),
        ({"target": "best"}, whence.TargetError, 'Give "predicted"'),
        ({"operator": "blurr"}, whence.ParameterError, "does not apply to numbers"),
        ({"operator": "blur"}, whence.ParameterError, "is for images"),
        ({"operator": torch.zeros(3)}, whence.InputError, "Give one of the row's shape"),
        ({"batch_size": 0}, whence.ParameterError, "at least 1"),
    ],
)  # fmt: skip
def test_bad_input_gets_a_name(given: dict[str, Any], error: type[Exception], said: str) -> None:
    call: dict[str, Any] = {"data": X, "methods": ["gradient"], "metrics": ["aopc"], **given}
    with pytest.raises(error, match=said):
        whence.evaluate(Linear(), call.pop("data"), **call)


def test_masks_of_another_form() -> None:
    with pytest.raises(whence.InputError, match="with another aspect ratio"):
        whence.evaluate(
            image_model(), IMAGES, methods=["gradient"], metrics=["segmentation_iou"], masks=torch.ones(4, 3, 9)
        )
    with pytest.raises(whence.InputError, match=r"The mask of row 0 is \(36,\)"):
        whence.evaluate(image_model(), IMAGES, methods=["gradient"], metrics=["pointing_game"], masks=MASKS.flatten(1))


@pytest.mark.parametrize("kind", ["tensor", "numpy", "list", "pairs", "dicts", "generator", "dataset", "loader"])
def test_data_comes_in_many_forms(kind: str) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    rows = {"inputs": X, "labels": labels}
    forms: dict[str, Any] = {
        "tensor": rows,
        "numpy": {"inputs": X.numpy(), "labels": labels.numpy()},
        "list": {"inputs": list(X), "labels": labels.tolist()},
        "pairs": list(zip(X, labels.tolist(), strict=True)),
        "dicts": [{"inputs": x, "label": y} for x, y in zip(X, labels, strict=True)],
        "generator": ({"inputs": x, "label": y} for x, y in zip(X, labels, strict=True)),
        "dataset": TensorDataset(X, labels),
        "loader": DataLoader(TensorDataset(X, labels), batch_size=4),
    }
    names = ["aopc", "perturbation_positive"]
    found = whence.evaluate(Linear(), forms[kind], methods=["gradient"], metrics=names)
    assert torch.equal(every(found), every(whence.evaluate(Linear(), rows, methods=["gradient"], metrics=names)))


def test_one_class_only() -> None:
    """A regression, or a model of one logit: its score is measured as it is, or as a binary probability."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 1))
    board = whence.evaluate(model, X, methods=["input_x_gradient"], metrics={"aopc": {"output": "logit"}})
    assert board["input_x_gradient", "aopc"].value > board["random", "aopc"].value
    flat = whence.evaluate(lambda x: model(x)[:, 0], X, methods=["input_x_gradient"], metrics=["aopc"])
    assert flat["input_x_gradient", "aopc"].rows == 6


def test_a_row_that_fails_is_reported_and_the_rest_go_on() -> None:
    rows = X.clone()
    rows[2, 3] = float("nan")
    board = whence.evaluate(Linear(), list(rows), methods=["gradient"], metrics=["aopc"])
    assert [failure.row for failure in board.failures] == [2]
    assert "holds nan" in board.failures[0].why
    assert board["gradient", "aopc"].rows == 5


def test_attributions_that_are_not_finite_are_reported() -> None:
    def sometimes(model: Any, x: Tensor, target: Tensor) -> Tensor:
        return torch.where(x[:, :1] == X[1, 0], float("nan"), x)

    board = whence.evaluate(Linear(), X, methods={"sometimes": sometimes, "gradient": None}, metrics=["aopc"])
    assert [(f.row, f.method) for f in board.failures] == [(1, "sometimes")]
    assert (board["sometimes", "aopc"].rows, board["gradient", "aopc"].rows) == (5, 6)
    with pytest.raises(whence.InputError, match="not finite"):
        whence.evaluate(Linear(), X, methods={"never": lambda m, x, t: x * float("nan")}, metrics=["aopc"])


def test_a_model_that_raises_for_one_row_fails_for_that_row() -> None:
    class Fragile(Linear):
        def forward(self, x: Tensor) -> Tensor:
            if bool((x.flatten(1) == X[4, 0]).any()):
                raise RuntimeError("boom")
            return super().forward(x)

    board = whence.evaluate(Fragile(), X, methods=["gradient"], metrics=["aopc"])
    assert {(f.row, f.why) for f in board.failures} == {(4, "The model raised RuntimeError: boom")}
    assert board["gradient", "aopc"].rows == 5


def test_erasure_needs_attention_over_the_units() -> None:
    board = whence.evaluate(
        Pooled(), {"input_ids": torch.tensor([[1, 2, 3]])}, methods=["gradient"], metrics=["erasure_set"]
    )
    assert board["gradient", "erasure_set"].rows == 1


def test_erasure_is_drawn_as_boxes_and_points() -> None:
    import matplotlib

    matplotlib.use("Agg")
    ids = {"input_ids": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])}
    board = whence.evaluate(Pooled(), ids, methods=["raw_attention"], metrics=["erasure_single", "erasure_set"])
    points, boxes = board.plot()
    assert len(points.collections) == 2
    assert boxes.get_ylabel() == "share erased"
    assert "both flip" in str(board)


# ---- the table ----


@pytest.fixture(scope="module")
def board() -> whence.Scoreboard:
    hostile = {"<script>alert(1)</script>": lambda m, x, t: x, "gradient": None}
    return whence.evaluate(small(), X, methods=hostile, metrics=["comprehensiveness", "sufficiency", "log_odds"])


@pytest.mark.xdist_group("board")
def test_the_table_says_what_is_better_and_how_it_was_measured(board: whence.Scoreboard) -> None:
    shown = str(board)
    assert "comprehensiveness ↑" in shown
    assert "sufficiency ↓" in shown
    assert "operator=zero" in shown
    assert "95 % interval (bootstrap-t" in shown
    assert repr(board) == "Scoreboard(3 methods × 3 metrics, 6 rows)"


@pytest.mark.xdist_group("board")
def test_hostile_names_are_text(board: whence.Scoreboard) -> None:
    for page in (board.to_html(), board._repr_html_()):
        assert "<script>" not in page
        assert "&lt;script&gt;" in page


@pytest.mark.xdist_group("board")
def test_csv_and_json(board: whence.Scoreboard, tmp_path: Path) -> None:
    lines = list(csv.DictReader(io.StringIO(board.to_csv(tmp_path / "b.csv"))))
    assert len(lines) == 9
    assert float(lines[1]["value"]) == board["gradient", "comprehensiveness"].value
    told = json.loads(board.to_json())
    assert told["metrics"]["log_odds"]["better"] == "lower"
    assert {cell["metric"] for cell in told["scores"] if cell["curve"]} == {"comprehensiveness", "sufficiency"}
    assert (tmp_path / "b.csv").read_text() == board.to_csv()
    for kind in ("html", "csv", "json"):
        board.save(tmp_path / f"again.{kind}")
        assert (tmp_path / f"again.{kind}").read_text() == getattr(board, f"to_{kind}")(tmp_path / f"b.{kind}")
        assert (tmp_path / f"again.{kind}").read_text() == (tmp_path / f"b.{kind}").read_text()
    with pytest.raises(
        whence.ParameterError, match=r"b.safetensors' ends in none of html, csv, json, md, tex, png, svg, pdf"
    ):
        board.save(tmp_path / "b.safetensors")


@pytest.mark.xdist_group("board")
def test_curves_are_drawn(board: whence.Scoreboard, tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    axes = board.plot("comprehensiveness")
    assert len(axes.lines) == 3
    assert len(board.plot()) == 2
    with pytest.raises(whence.ParameterError, match="no curve"):
        board.plot("log_odds")
    assert board.to_html().count("<polyline") == 6
    board.save(tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.xdist_group("board")
def test_intervals_hold_the_score_and_differences_are_paired(board: whence.Scoreboard) -> None:
    cell = board["gradient", "comprehensiveness"]
    assert cell.low <= cell.value <= cell.high
    same = board.difference("comprehensiveness", "gradient", "gradient")
    assert (same.value, same.low, same.high) == (0, 0, 0)
    apart = board.difference("comprehensiveness", "gradient", "random")
    assert apart.value == pytest.approx(cell.value - board["random", "comprehensiveness"].value)
    assert board.best("comprehensiveness") in board.methods
    with pytest.raises(whence.ParameterError, match="Did you mean 'gradient'"):
        board["gradeint", "comprehensiveness"]


def test_rows_that_do_not_count_for_one_take_no_part_in_a_difference() -> None:
    ids = {"input_ids": torch.randint(0, 12, (8, 5), generator=torch.Generator().manual_seed(1))}
    metrics = {"erasure_set": {"never": "drop"}}
    board = whence.evaluate(Pooled(), ids, methods=["raw_attention"], metrics=metrics)
    both = [
        row
        for row in range(8)
        if not any(math.isnan(board.results[m, "erasure_set"][row].value) for m in ("raw_attention", "random"))
    ]
    found = board.difference("erasure_set", "raw_attention", "random")
    assert 0 < found.rows == len(both) < 8
    assert not math.isnan(found.value)


def test_one_row_has_no_interval() -> None:
    cell = whence.evaluate(small(), X[:1], methods=["gradient"], metrics=["aopc"])["gradient", "aopc"]
    assert math.isnan(cell.low)
    assert not math.isnan(cell.value)


# ---- other libraries ----


def given_noise(monkeypatch: pytest.MonkeyPatch, draws: Tensor) -> None:
    """The same noise for both: one draw after the other."""
    left = list(draws)
    monkeypatch.setattr(torch, "randn", lambda *a, **k: left.pop(0))
    monkeypatch.setattr(torch, "rand", lambda *a, **k: left.pop(0))


@pytest.mark.parametrize("scaled", [False, True])
def test_infidelity_is_captums(scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from captum.metrics import infidelity

    model, x = small().double(), X[:1].double()
    draws = torch.randn(12, 1, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    target = int(model(x).argmax())
    phi = whence.explain(model, x, method="gradient", target=target).raw
    steps = iter(0.2 * draws)

    def perturb(inputs: Tensor) -> tuple[Tensor, Tensor]:
        step = torch.cat([next(steps) for _ in range(len(inputs))])
        return step, inputs - step

    wanted = infidelity(model, perturb, x, phi, target=target, n_perturb_samples=12, normalize=scaled)
    given_noise(monkeypatch, draws)
    found = whence.evaluate(
        model, x, methods={"given": lambda m, x, t: phi}, controls=False,
        metrics={"infidelity": {"kind": "noise", "samples": 12, "scaled": scaled}},
    )  # fmt: skip
    assert found["given", "infidelity"].value == pytest.approx(float(wanted), abs=1e-6)


def test_sensitivity_max_is_captums(monkeypatch: pytest.MonkeyPatch) -> None:
    from captum.metrics import sensitivity_max

    model, x = small().double(), X[:1].double()
    draws = torch.rand(10, 1, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    steps = iter(0.3 * (2 * draws - 1))
    target = int(model(x).argmax())

    def perturb(inputs: Any) -> Tensor:
        given = inputs[0] if isinstance(inputs, tuple) else inputs
        return given + torch.cat([next(steps) for _ in range(len(given))])

    def phi(inputs: Any) -> Any:
        given = inputs[0] if isinstance(inputs, tuple) else inputs
        return (whence.explain(model, given, method="input_x_gradient", target=target).raw,)

    wanted = sensitivity_max(phi, x, perturb_func=perturb, n_perturb_samples=10, norm_ord=2)
    given_noise(monkeypatch, draws)
    found = whence.evaluate(
        model, x, methods=["input_x_gradient"], metrics={"sensitivity_max": {"radius": 0.3}}, controls=False
    )
    assert found["input_x_gradient", "sensitivity_max"].value == pytest.approx(float(wanted), abs=1e-6)


# ---- what a second look found ----


def ranked(model: Any, x: Any, target: Any) -> Tensor:
    """The first unit is the most relevant, and so on."""
    given = next(iter(x.values())) if isinstance(x, dict) else x
    return -torch.arange(given.shape[1], dtype=torch.float32).expand(len(given), -1)


def test_rows_without_a_label_do_not_count() -> None:
    model = small()
    x = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    right = model(x).argmax(1).tolist()
    board = whence.evaluate(
        model, x, methods=["gradient"], metrics=["perturbation_positive"], labels=[*right[:4], None, 7], controls=False
    )
    cell = board["gradient", "perturbation_positive"]
    assert (cell.rows, cell.parts["base accuracy"]) == (4, 1)
    assert [f.why for f in board.failures] == ["The row has no label.", "The label is 7, but the model has 3 classes."]


def test_a_single_logit_decides_by_its_sign() -> None:
    torch.manual_seed(0)
    model = nn.Linear(10, 1)
    x = torch.randn(12, 10, generator=torch.Generator().manual_seed(0))
    labels = (model(x)[:, 0] > 0).long()
    board = whence.evaluate(model, x, methods=["gradient"], metrics=["perturbation_positive"], labels=labels)
    assert board["gradient", "perturbation_positive"].parts["base accuracy"] == 1

    class One(Pooled):
        def forward(self, input_ids: Tensor) -> Tensor:
            return super().forward(input_ids)[:, :1] - super().forward(input_ids)[:, 1:2]

    class Two(Pooled):
        def forward(self, input_ids: Tensor) -> Tensor:
            one = super().forward(input_ids)[:, :1] - super().forward(input_ids)[:, 1:2]
            return torch.cat([torch.zeros_like(one), one], 1)

    ids = {"input_ids": torch.randint(0, 12, (8, 5), generator=torch.Generator().manual_seed(1))}
    found = [
        whence.evaluate(m, ids, methods={"r": ranked}, metrics=["erasure_single", "erasure_set"], controls=False)
        for m in (One(), Two())
    ]
    assert torch.allclose(every(found[0]), every(found[1]), atol=1e-7)


def test_deleting_a_token_leaves_other_inputs_alone() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.out = nn.Embedding(9, 4), nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.out(self.a(a).mean(1) + self.b(b).mean(1))

    model = Two()
    a, b = torch.randint(0, 9, (2, 3, 8), generator=torch.Generator().manual_seed(0))
    board = whence.evaluate(
        model, {"a": a, "b": b}, methods={"r": ranked}, metrics={"comprehensiveness": {"k": 50, "operator": "delete"}},
        wrt="a", target=0, controls=False,
    )  # fmt: skip
    with torch.no_grad():
        wanted = (model(a, b).softmax(1) - model(a[:, 4:], b).softmax(1))[:, 0].double()
    assert torch.allclose(every(board).flatten(), wanted, atol=1e-6)


def test_rows_are_padded_only_for_models_that_do_not_mind() -> None:
    class Minds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.states, self.out = nn.Embedding(20, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.out(self.states(self.embed(input_ids))[0][:, -1])  # the mask is not looked at

    generator = torch.Generator().manual_seed(0)
    rows = []
    for length in (4, 9, 6):
        ids = torch.randint(1, 20, (length,), generator=generator)
        rows.append({"inputs": {"input_ids": ids, "attention_mask": torch.ones_like(ids)}})
    call: dict[str, Any] = {"methods": {"r": ranked}, "metrics": {"aopc": {"operator": "delete", "k": [20, 50]}}}
    model = Minds()
    found = [every(whence.evaluate(model, rows, batch_size=size, **call)) for size in (None, 1)]
    assert torch.allclose(*found, atol=1e-6)


@pytest.mark.parametrize("size", [None, 1, 2])
def test_a_row_of_which_nothing_would_be_left_is_reported_at_every_batch_size(size: int | None) -> None:
    rows = [{"inputs": {"input_ids": torch.arange(1, n)}} for n in (4, 9, 11)]
    board = whence.evaluate(
        Pooled(), rows, methods={"r": ranked}, controls=False, batch_size=size,
        metrics={"aopc": {"operator": "delete"}},
    )  # fmt: skip
    assert [(f.row, f.why) for f in board.failures] == [(0, "Nothing would be left of the row.")]
    assert board["r", "aopc"].rows == 2


def test_segmentation_takes_the_mean_of_the_whole_map_and_counts_pixels() -> None:
    masks = torch.full((4, 6, 6), 255)
    masks[:, :2], masks[:, 2] = 1, 0
    slope = torch.arange(36.0).view(6, 6)  # its mean lies in the ignored half
    call: dict[str, Any] = {"metrics": ["segmentation_accuracy"], "controls": False}
    board = whence.evaluate(
        image_model(), IMAGES, methods={"g": lambda m, x, t: slope.expand(len(x), 6, 6)}, masks=masks, **call
    )
    assert board["g", "segmentation_accuracy"].value == pytest.approx(6 / 18)  # all labelled ones lie below
    masks[0] = 255
    masks[0, 5, 5] = 1  # one labelled pixel, and it is right
    board = whence.evaluate(
        image_model(), IMAGES, methods={"g": lambda m, x, t: slope.expand(len(x), 6, 6)}, masks=masks, **call
    )
    assert board["g", "segmentation_accuracy"].value == pytest.approx((1 + 3 * 6) / (1 + 3 * 18))


def test_masks_of_0_and_255_show_the_object() -> None:
    call: dict[str, Any] = {"methods": ["gradient"], "metrics": ["segmentation_iou", "pointing_game"]}
    found = [
        whence.evaluate(image_model(), IMAGES, masks=masks, **call) for masks in (MASKS.bool(), (MASKS * 255).byte())
    ]
    assert torch.equal(every(found[0]), every(found[1]))


def test_masks_of_cropped_images_have_the_size_that_the_model_sees() -> None:
    from dataclasses import replace

    import whence.evaluation.examples as cases

    case = cases.example_of(image_model(), {"inputs": IMAGES[:1], "mask": torch.ones(12, 12)}, 0, None)
    from whence.evaluation.metrics.segmentation import on_mask
    from whence.evaluation.requests import View

    view = View(case, "g", torch.zeros(36).double(), 0, None, torch.zeros(2), 0)  # type: ignore[arg-type]
    assert on_mask(view, 255)[0].shape == (12, 12)
    with pytest.raises(whence.InputError, match="sees only a part"):
        on_mask(replace(view, example=replace(case, cropped=True)), 255)


def test_another_call_does_not_get_the_results_of_this_one(tmp_path: Path) -> None:
    file = tmp_path / "r.jsonl"
    metrics = ["aopc"]
    whence.evaluate(Linear(), X, methods={"m": lambda m, x, t: x}, metrics=metrics, resume=file)
    with pytest.raises(whence.FileError, match="other methods"):
        whence.evaluate(Linear(), X, methods={"m": lambda m, x, t: -x}, metrics=metrics, resume=file)
    whence.evaluate(Linear(), X, methods={"m": lambda m, x, t: x}, metrics=metrics, resume=file)  # the same
    other = tmp_path / "o.jsonl"
    base = torch.zeros(10)
    whence.evaluate(Linear(), X, methods=["gradient"], metrics=metrics, operator=base, resume=other)
    with pytest.raises(whence.FileError, match="other metrics"):
        whence.evaluate(Linear(), X, methods=["gradient"], metrics=metrics, operator=base + 1e-6, resume=other)


def test_spans_of_a_pair_say_which_text_they_are_of(sentiment: Any) -> None:
    rows = [{"text": ("you fool", "nice day"), "rationale": [(0, 4, 8)]}, {"text": ("a b", "c"), "rationale": [(0, 1)]}]
    board = whence.evaluate(sentiment, rows, methods=["attcat"], metrics=["rationale_ap"], controls=False)
    assert board["attcat", "rationale_ap"].rows == 1
    assert "(text, start, end)" not in board.failures[0].why
    assert "The rationale of row 1" in board.failures[0].why


def test_the_order_of_rows_does_not_matter_even_to_chance() -> None:
    x = torch.randn(9, 10, generator=torch.Generator().manual_seed(0))
    names = ["comprehensiveness", "infidelity", "sensitivity_max"]
    here, there = (
        every(whence.evaluate(small(), rows, methods=["smoothgrad"], metrics=names)) for rows in (x, x.flip(0))
    )
    assert torch.allclose(here, there.flip(2), atol=1e-6)


def test_a_later_chunk_may_fail_whole() -> None:
    rows = [{"inputs": torch.randn(10)} for _ in range(32)] + [{"inputs": torch.randn(7)}]
    board = whence.evaluate(small(), rows, methods=["gradient"], metrics=["aopc"])
    assert {f.row for f in board.failures} == {32}
    assert board["gradient", "aopc"].rows == 32


def test_scores_that_are_not_finite_for_a_changed_row_are_reported() -> None:
    class Fragile(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x.sum(1, keepdim=True).log(), torch.zeros(len(x), 1)], 1)

    x = torch.tensor([[2.0, -1.0, 0.5], [3.0, 1.0, 1.0]])
    board = whence.evaluate(
        Fragile(), x, methods={"r": ranked}, metrics={"aopc": {"k": [34]}}, target=0, controls=False
    )
    assert [f.row for f in board.failures] == [0]
    assert "not finite" in board.failures[0].why


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": torch.tensor(1.0)}, "The first dimension is rows"),
        ({"data": torch.randint(0, 5, (2, 3, 4, 4))}, "which are not token ids"),
        ({"labels": 3}, "labels= is int"),
        ({"methods": None}, "names none"),
        ({"methods": {"a": "gradient"}}, "has the parameters 'gradient'"),
        ({"metrics": None}, "names none"),
        ({"metrics": ["aopc", "aopc"]}, "listed twice"),
        ({"metrics": {"a": 5}}, "has the parameters 5"),
        ({"operator": [0.0] * 10}, "is not allowed"),
        ({"operator": float("nan")}, "is not allowed"),
        ({"seed": "a"}, "seed='a'"),
        ({"resume": 5}, "not a file name"),
        ({"methods": {"random": {"method": "gradient"}}}, "that of the control"),
    ],
)
def test_other_bad_input_gets_a_name_too(given: dict[str, Any], said: str) -> None:
    call: dict[str, Any] = {"data": X, "methods": ["gradient"], "metrics": ["aopc"], **given}
    with pytest.raises(whence.WhenceError, match=said):
        whence.evaluate(Linear(), call.pop("data"), **call)


def test_a_label_by_name_is_a_target(sentiment: Any) -> None:
    board = whence.evaluate(sentiment, texts(), methods=["attcat"], metrics=["aopc"], target="negative")
    number = whence.evaluate(sentiment, texts(), methods=["attcat"], metrics=["aopc"], target=0)
    assert torch.equal(every(board), every(number))
    with pytest.raises(whence.TargetError):
        whence.evaluate(sentiment, texts(), methods=["attcat"], metrics=["aopc"], target="toxic")
