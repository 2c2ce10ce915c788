"""What an evaluation concludes: intervals, who is told apart, the recommendation, and the evidence behind a table."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from whence.evaluation import bootstrap, permutation
from whence.evaluation.trial import OutOfTime, stopped


def mlp(inputs: int = 12) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 3)).eval()


X = torch.randn(24, 12, generator=torch.Generator().manual_seed(0))
GOOD = ["input_x_gradient", "integrated_gradients", "lrp"]


def noise(model: Any, x: Tensor, target: Tensor) -> Tensor:
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(3))


# ---- intervals ----


def test_wilson_is_newcombes_and_nothing_of_forty_is_no_certainty() -> None:
    """Newcombe 1998, table I: 81 of 263 and 15 of 148, method 4; 0 of 20 and 29 of 29."""
    cases = {(81, 263): (0.2535, 0.3682), (15, 148): (0.0598, 0.1644), (0, 20): (0.0, 0.2005), (29, 29): (0.8544, 1.0)}
    for (hits, rows), wanted in cases.items():
        assert bootstrap.wilson(hits / rows, rows) == pytest.approx(wanted, abs=5e-5)
    assert bootstrap.wilson(0, 40)[1] > 0.08


def test_an_interval_holds_its_mean_and_is_seeded() -> None:
    values = np.random.default_rng(0).lognormal(size=(20, 3))
    low, high = bootstrap.interval(values)
    assert (low < values.mean(0)).all()
    assert (values.mean(0) < high).all()
    assert (high - values.mean(0) > values.mean(0) - low).all()  # skewed to the right: it reaches farther there
    assert np.array_equal(bootstrap.interval(values)[0], low)
    assert not np.array_equal(bootstrap.interval(values, seed=1)[1], high)
    scaled = bootstrap.interval(7 - 3 * values)
    assert scaled[1] == pytest.approx(7 - 3 * low)


def test_rows_decide_whether_there_is_an_interval() -> None:
    draw = np.random.default_rng(0)
    for rows, given in ((1, False), (2, False), (3, False), (4, True), (5, True)):
        low, _ = bootstrap.interval(draw.normal(size=(rows, 1)))
        assert bool(np.isnan(low[0])) is not given
    assert np.isnan(bootstrap.interval(np.full((40, 1), 0.25))[0][0])  # no spread
    assert np.isnan(bootstrap.interval(np.eye(16)[:, :1])[0][0])  # one row tells all


def test_copies_of_rows_make_no_interval_narrower() -> None:
    values = np.random.default_rng(0).normal(size=(12, 1))
    once = bootstrap.interval(values)
    thrice = bootstrap.interval(values, np.full(12, 3.0))
    assert np.concatenate(once) == pytest.approx(np.concatenate(thrice))
    assert bootstrap.effective(12, np.full(12, 3.0)) == pytest.approx(12)
    assert bootstrap.effective(2, np.array([1.0, 3.0])) == pytest.approx(16 / 10)


def test_students_quantile() -> None:
    for freedom, wanted in ((1, 12.7062), (3, 3.18245), (7, 2.36462), (15, 2.13145), (63, 1.99834), (1000, 1.96234)):
        assert bootstrap.student_quantile(freedom) == pytest.approx(wanted, rel=2e-4)


def test_a_mean_by_the_jackknife_is_the_mean() -> None:
    parts = np.stack([np.random.default_rng(0).normal(size=9), np.ones(9)], 1)
    own = bootstrap.pseudo_values(lambda sums: float(sums[0] / sums[1]), parts)
    assert own == pytest.approx(parts[:, 0])


@pytest.mark.parametrize("rows", [8, 16])
@pytest.mark.parametrize(("kind", "least"), [("normal", 0.93), ("lognormal", 0.87)])
def test_intervals_cover(kind: str, rows: int, least: float) -> None:
    """1,000 data sets at once; benchmarks/simulations.py has the table."""
    values = getattr(np.random.default_rng(rows), kind)(size=(rows, 1000))
    low, high = bootstrap.interval(values)
    mean = 0.0 if kind == "normal" else math.exp(0.5)
    assert ((low <= mean) & (mean <= high)).mean() > least


# ---- who is told apart ----


def test_equals_are_seldom_told_apart() -> None:
    """200 data sets of 12 equal methods on 16 rows: 10 expected at most, and 20 are beyond chance (p < 0.003)."""
    draw, wrong = np.random.default_rng(0), np.zeros(3)
    for i in range(200):
        scores = draw.lognormal(size=(16, 16))
        own, control = scores[:, :12], scores[:, 12:]
        wrong += [
            (permutation.behind_best(own, seed=i, draws=199) <= 0.05).any(),
            (permutation.above_control(own, control, seed=i, draws=199) <= 0.05).any(),
            (permutation.pairs(own, seed=i, draws=199)[0] <= 0.05).any(),
        ]
    assert (wrong < 20).all()


def test_a_better_method_is_told_apart() -> None:
    """Better by 0.5 deviations of the paired difference, among 12 on 64 rows; 16 of 20 is the goal."""
    draw, told = np.random.default_rng(0), 0
    for i in range(20):
        scores = draw.normal(size=(64, 12))
        scores[:, 3] += 0.5 * math.sqrt(2)
        p = permutation.behind_best(scores, seed=i, draws=199)
        told += bool((np.delete(p, 3) <= 0.05).all())
        assert p[3] > 0.05
    assert told >= 14


def test_steps_follow_who_is_left() -> None:
    """Bad methods leave first; two that are equally good stay, whatever the others were."""
    draw = np.random.default_rng(0)
    scores = draw.normal(size=(32, 6)) * 0.1 - np.array([0, 0, 1, 2, 3, 9])
    p = permutation.behind_best(scores)
    assert (p[2:] <= 0.05).all()
    assert (p[:2] > 0.05).all()
    alone = permutation.behind_best(np.hstack([scores[:, :1], scores[:, 2:]]))
    assert alone[0] == 1
    assert (alone[1:] <= 0.05).all()


def test_five_rows_tell_nothing_apart_and_six_may() -> None:
    apart = np.arange(8.0)[:, None] * 0.01 + np.array([0.0, 9.0])
    apart[:, 1] += np.random.default_rng(0).normal(size=8)
    assert (permutation.behind_best(apart[:5]) > 0.05).all()
    assert permutation.behind_best(apart)[0] <= 0.05
    assert (permutation.behind_best(np.zeros((20, 4))) == 1).all()
    p, effect = permutation.pairs(np.zeros((20, 3)))
    assert (p == 1).all()
    assert (effect == 0).all()


def test_weights_are_copies() -> None:
    """A row of weight 2 has the mean and the effect of two rows, and not their certainty."""
    scores = np.random.default_rng(0).normal(size=(10, 4))
    weights = np.array([2.0, *[1.0] * 9])
    _, effect = permutation.pairs(scores, weights)
    first, second = np.triu_indices(4, 1)
    apart = (scores[:, first] - scores[:, second]).T
    mean = (apart @ weights) / weights.sum()
    assert np.sign(effect) == pytest.approx(np.sign(mean))
    same = np.random.default_rng(1).normal(size=(1, 4)).repeat(16, 0)
    assert (permutation.behind_best(same[:1], np.array([16.0])) > 0.05).all()


# ---- the recommendation ----


def test_the_answer_fits_on_a_screen_and_says_what_it_promises() -> None:
    shown = str(whence.recommend(mlp(), X, seconds=60))
    assert len(shown.splitlines()) <= 20
    assert max(map(len, shown.splitlines())) <= 100
    flat = " ".join(shown.split())
    assert "In at most 5 % of data sets is a method called better than random that is not" in flat
    many = {f"a name that is rather long for a method, {i}": noise for i in range(30)}
    shown = str(whence.recommend(mlp(), X[:8], methods=many))
    assert len(shown.splitlines()) <= 20
    assert max(map(len, shown.splitlines())) <= 100


def test_sixteen_copies_of_a_row_are_one() -> None:
    found = whence.recommend(mlp(), X[:1].repeat(16, 1), methods=GOOD)
    assert found.best is None
    assert found.rows == 1
    assert "On this row no method can be told" in str(found)
    assert json.loads(found.to_json())["ranking"][0]["low"] is None


def test_a_slow_method_is_stopped_in_its_trial() -> None:
    model = mlp()

    def slow(module: Any, x: Tensor, target: Tensor) -> Tensor:
        for _ in range(10**9):
            module(x)
        return x

    found = whence.recommend(model, X[:8], methods={"input_x_gradient": None, "slow": slow}, seconds=4)
    assert "do not fit into the budget" in found.left_out["slow"]
    assert not model._forward_pre_hooks
    with pytest.raises(OutOfTime), stopped(model, -1.0):
        model(X)
    assert not model._forward_pre_hooks


@pytest.mark.slow
def test_fresh_noise_is_not_recommended() -> None:
    """12 methods of noise on 16 rows, 200 seeds: at most 16."""
    from benchmarks.simulations import noise as share

    assert share(200) <= 0.08


# ---- the control ----


def test_the_control_is_drawn_anew_whenever_a_method_is_asked_again() -> None:
    board = whence.evaluate(
        mlp(),
        X,
        methods={"gradient": None, "input": lambda m, x, t: x},
        metrics=["sensitivity_max", "model_randomisation"],
    )
    assert board["random", "sensitivity_max"].value > 1
    assert abs(board["random", "model_randomisation"].value) < 0.2
    assert board["input", "model_randomisation"].value == pytest.approx(1)
    assert board.star("sensitivity_max") != "random"
    assert "model_randomisation →0" in str(board)
    assert board.best("model_randomisation") != "input"
    again = whence.evaluate(mlp(), X, methods=["gradient"], metrics=["sensitivity_max"], chunk=5, batch_size=3)
    assert again["random", "sensitivity_max"].value == pytest.approx(board["random", "sensitivity_max"].value, abs=1e-6)


def test_nearer_to_zero_is_better() -> None:
    column = whence.evaluate(mlp(), X[:2], methods=["gradient"], metrics=["model_randomisation"]).columns[0]
    assert column.better == "nearer to 0"
    assert column.gain(-0.5) < column.gain(0.1) < column.gain(0.0)


def test_ties_and_controls_have_no_star() -> None:
    same = {"one": {"method": "lrp"}, "two": {"method": "lrp"}}
    board = whence.evaluate(mlp(), X, methods=same, metrics=["comprehensiveness"])
    assert board.star("comprehensiveness") is None
    assert "*" not in str(board).split("\n\n")[0]
    worst = whence.evaluate(
        mlp(), X, methods={"turned": lambda m, x, t: -whence.explain(m, x, method="ig", target=t.tolist()).values},
        metrics=["comprehensiveness"],
    )  # fmt: skip
    assert worst.best("comprehensiveness") == "random"
    assert worst.star("comprehensiveness") is None
    clear = whence.evaluate(mlp(), X, methods={"ig": None, "noise": noise}, metrics=["comprehensiveness"])
    assert clear.star("comprehensiveness") == "integrated_gradients"
    assert "<b>" in clear.to_html()


# ---- batches ----


SEEN: list[int] = []  # not the module's own, which is put back as it was


class Counted(nn.Module):
    """Notes the batches that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        SEEN.clear()

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(len(x))
        return self.net(x)


def test_the_model_sees_no_larger_batch_than_is_allowed() -> None:
    methods = {"ig": {"steps": 4}, "smoothgrad": {"samples": 3}, "occlusion": None, "gradient": None,
               "own": lambda m, x, t: m(x).sum(1, keepdim=True).detach() * x}  # fmt: skip
    metrics = ["comprehensiveness", "deletion", "infidelity", "sensitivity_max"]
    small = whence.evaluate(Counted(), X[:3], methods=methods, metrics=metrics, batch_size=2)
    assert max(SEEN) == 2
    free = whence.evaluate(Counted(), X[:3], methods=methods, metrics=metrics)
    for method in ("integrated_gradients", "gradient", "own"):
        for metric in metrics:
            assert small[method, metric].value == pytest.approx(free[method, metric].value, abs=1e-5)
    whence.evaluate(Counted(), X, methods=["gradient"], metrics=["completeness_gap"], chunk=4)
    assert max(SEEN) == 4
    with pytest.raises(whence.ParameterError, match="chunk"):
        whence.evaluate(mlp(), X, methods=["gradient"], metrics=["aopc"], chunk=0)


# ---- the evidence ----


@pytest.fixture(scope="module")
def board() -> whence.Scoreboard:
    return whence.evaluate(
        mlp(), torch.cat([X, X[:4]]), methods=[*GOOD, "gradient"], metrics=["comprehensiveness", "deletion"],
        operator=["zero", 1.0],
    )  # fmt: skip


@pytest.mark.xdist_group("evidence")
def test_all_pairs_are_tested_together(board: whence.Scoreboard) -> None:
    found = board.tests("deletion (zero)")
    assert len(found) == 10
    assert found.rows == 24  # equal rows count once
    pair = found["lrp", "random"]
    sign = 1 if pair.first == "lrp" else -1
    apart = board.difference("deletion (zero)", "lrp", "random")
    assert sign * pair.value == pytest.approx(apart.value)
    assert sorted(sign * v for v in (pair.low, pair.high)) == pytest.approx([apart.low, apart.high])
    assert np.sign(pair.effect) == np.sign(pair.value)
    assert found["gradient", "integrated_gradients"].told_apart
    assert "told apart" in str(found)
    assert found.to_csv().count("\n") == 11
    with pytest.raises(whence.ParameterError, match="no pair"):
        found["lrp", "lrp"]


@pytest.mark.xdist_group("evidence")
def test_equal_rows_count_once_in_a_table(board: whence.Scoreboard) -> None:
    assert board.copies == {24 + i: i for i in range(4)}
    assert "4 rows equal others" in str(board)
    cell = board["lrp", "deletion (zero)"]
    assert cell.rows == 28
    values = [r.value for r in board.results["lrp", "deletion (zero)"].values()]
    assert cell.value == pytest.approx(sum(values) / 28)
    copies = whence.evaluate(mlp(), X[:1].repeat(16, 1), methods=["lrp"], metrics=["aopc"])
    assert math.isnan(copies["lrp", "aopc"].low)
    assert "±–" in str(copies)


@pytest.mark.xdist_group("evidence")
def test_operators_may_rank_otherwise(board: whence.Scoreboard) -> None:
    assert board.metrics == tuple(f"{m} ({o})" for m in ("comprehensiveness", "deletion") for o in ("zero", "1.0"))
    found = board.operator_sensitivity("deletion")
    assert -1 <= found.low <= found.tau <= found.high <= 1
    names = [m for m in board.methods if m != "random"]
    by = [[board[m, f"deletion ({o})"].value for m in names] for o in ("zero", "1.0")]
    pairs = [(i, j) for i in range(4) for j in range(i)]
    by_hand = sum(np.sign(by[0][i] - by[0][j]) * np.sign(by[1][i] - by[1][j]) for i, j in pairs) / len(pairs)
    assert found.tau == pytest.approx(by_hand)
    assert "Kendall's τ" in str(found)
    with pytest.raises(whence.ParameterError, match="several operators"):
        board.operator_sensitivity("deletion (zero)")


@pytest.mark.xdist_group("evidence")
def test_the_rows_behind_a_cell(board: whence.Scoreboard) -> None:
    rows = board.rows("lrp", "deletion (zero)")
    worst = rows.worst(3)
    assert list(worst.values) == sorted(rows.values(), reverse=True)[:3]
    place = worst.rows[0]
    data = torch.cat([X, X[:4]])
    target = int(mlp()(data[place : place + 1]).argmax())
    again = whence.explain(mlp(), data[place : place + 1], method="lrp", target=target)
    assert worst.attributions[0].values == pytest.approx(again.values, abs=1e-6)
    assert f"row {place}" in str(worst)
    assert "<section>" in worst.to_html()
    assert list(rows.best(1).values) == [min(rows.values())]


@pytest.mark.xdist_group("evidence")
def test_tables_for_papers(board: whence.Scoreboard) -> None:
    tex, md = board.to_latex(), board.to_markdown()
    assert r"input\_x\_gradient &" in tex
    assert tex.count(r"\\") == 6
    assert r"\toprule" in tex
    assert "_" not in tex.split(r"\begin{tabular}")[1].replace(r"\_", "")
    lines = [line for line in md.splitlines() if line.startswith("|")]
    assert len(lines) == 7
    assert len({line.count("|") for line in lines}) == 1
    assert "× fb" in md


@pytest.mark.xdist_group("evidence")
def test_what_methods_cost(board: whence.Scoreboard) -> None:
    assert board.passes("gradient") == (1, 1)
    assert board.passes("integrated_gradients")[0] > 1
    assert board.times_fb("gradient") > 0


@pytest.mark.xdist_group("evidence")
def test_bands_hold_their_curves(board: whence.Scoreboard) -> None:
    _, y = board.curve("lrp", "deletion (zero)")  # type: ignore[misc]
    low, high = board.band("lrp", "deletion (zero)")  # type: ignore[misc]
    known = [(a, b, c) for a, b, c in zip(low, y, high, strict=True) if not math.isnan(a)]
    assert len(known) >= len(y) - 1
    assert all(a <= b <= c for a, b, c in known)
    assert board.to_html().count("<polygon") == 4  # chance's, by metric; those of five lines would hide one another
    few = dataclasses.replace(board, methods=("lrp", "gradient", "random"))
    assert few.to_html().count("<polygon") == 12
    assert "of the random order" in board.to_html()
    assert "of the random order" not in few.to_html()
    alone = dataclasses.replace(board, methods=tuple(m for m in board.methods if m != "random") * 2)
    assert "Shaded" not in alone.to_html()


def styles(axes: Any) -> Iterator[tuple[Any, Any]]:
    for line in axes.lines:
        yield line.get_color(), str(line._unscaled_dash_pattern)


def test_many_lines_can_be_told_apart() -> None:
    import matplotlib

    matplotlib.use("Agg")
    many = {f"method {i}": (lambda m, x, t, i=i: x.roll(i, 1)) for i in range(20)}
    found = whence.evaluate(mlp(), X[:6], methods=many, metrics=["deletion"])
    axes = found.plot("deletion")
    drawn = list(styles(axes))
    assert len(drawn) == len(set(drawn)) == 21
    assert [text.get_text() for text in axes.get_legend().get_texts()] == list(found.methods)
    assert len(axes.collections) == 21
    assert axes.get_xlabel()
    assert axes.get_ylabel()


def test_draws_without_spread_give_no_interval_or_a_finite_one() -> None:
    """Three of fifteen rows differ: the 97.5 % point lay between a draw with a spread and one without."""
    for rows in range(2, 20):
        for few in range(1, rows):
            values = np.repeat([5.0, 0.0], [few, rows - few])[:, None]
            low, high = (float(side[0]) for side in bootstrap.interval(values))
            assert np.isnan(low) == np.isnan(high)
            assert not high - low > 100
