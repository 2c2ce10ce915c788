"""Metrics of classes, subsets, superpixels, sparseness and retraining, against closed forms and peers' definitions.

Where Quantus has the metric, its definition is written out here by hand, loop by loop.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Tensor, nn

import whence
from tests.support.rows import IMAGES, Linear, W, X, every, image_model
from whence.evaluation.removal import rise_blurred
from whence.evaluation.superpixels import grid, slic

LOGIT = {"output": "logit"}


def board(model: Any, x: Any, methods: Any, metrics: Any, **given: Any) -> whence.Scoreboard:
    return whence.evaluate(model, x, methods=methods, metrics=metrics, **{"target": 0, "controls": False, **given})


def values(found: whence.Scoreboard, method: str, metric: str) -> Tensor:
    rows = found.results[method, metric]
    return torch.tensor([rows[row].value for row in sorted(rows)], dtype=torch.float64)


def given(phi: Tensor) -> dict[str, Any]:
    """A method that gives these values, row by row, whatever order they come in."""
    return {"given": lambda model, x, t: torch.stack([phi[int((row == X).all(1).nonzero()[0, 0])] for row in x])}


# ---- other classes ----


class Classes(nn.Module):
    """f_c = w_c · x for three classes."""

    def __init__(self) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(2)
        self.w = nn.Parameter(torch.randn(3, 10, generator=draw))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.T


@pytest.mark.parametrize("ranks", [True, False])
def test_class_sensitivity_of_a_linear_model(ranks: bool) -> None:
    model = Classes()
    found = values(board(model, X, ["input_x_gradient"], {"class_sensitivity": {"ranks": ranks}}),
                   "input_x_gradient", "class_sensitivity")  # fmt: skip
    phi = (X[:, None] * model.w.detach()).double().numpy()  # (rows, classes, units)
    rho = stats.spearmanr if ranks else stats.pearsonr
    wanted = [np.mean([rho(row[0], row[c]).statistic for c in (1, 2)]) for row in phi]
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)


def test_one_other_class_is_the_next_one_and_one_score_has_none() -> None:
    model = Classes()
    found = values(
        board(model, X, ["input_x_gradient"], {"class_sensitivity": {"classes": 1}}, target="predicted"),
        "input_x_gradient", "class_sensitivity",
    )  # fmt: skip
    phi, order = (X[:, None] * model.w.detach()).double().numpy(), model(X).argsort(1, descending=True)
    wanted = [stats.spearmanr(row[o[0]], row[o[1]]).statistic for row, o in zip(phi, order.tolist(), strict=True)]
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)
    one = board(lambda x: model(x)[:, 0], X, ["gradient"], ["class_sensitivity"])
    assert values(one, "gradient", "class_sensitivity").isnan().all()


def test_what_does_not_hear_of_the_class_is_1_and_random_is_drawn_anew() -> None:
    clf = whence.load("zoo:sentiment")
    texts = ["a clever piece of cinema", "dull and too long to bear", "the film is not bad at all", "no one laughed"]
    found = board(
        clf, texts, ["rollout", "transformer_attribution"], ["class_sensitivity"], target="predicted", controls=True
    )
    assert values(found, "rollout", "class_sensitivity").tolist() == pytest.approx([1.0] * 4)
    assert found["transformer_attribution", "class_sensitivity"].value < 0.8
    assert found["random", "class_sensitivity"].value < 0.9


# ---- removal by noise, RISE's blur, the pointing game's tolerance, AOPC with k = 0 ----


def test_noise_lies_between_the_rows_extremes_and_is_the_same_along_a_curve() -> None:
    seen: list[Tensor] = []

    class Watched(Linear):
        def forward(self, x: Tensor) -> Tensor:
            seen.extend(x.detach().clone())
            return super().forward(x)

    found = board(Watched(), X[:1], ["input_x_gradient"], {"aopc": {"operator": "noise", **LOGIT}})
    copies = torch.stack([x for x in seen if not torch.equal(x, X[0])])
    low, high = X[0].min(), X[0].max()
    assert bool(((copies >= low) & (copies <= high)).all())
    changed = [copies[:, i][copies[:, i] != X[0, i]].unique() for i in range(10)]
    assert max(map(len, changed)) == 1  # one draw for each unit, whatever else has gone
    assert sum(len(c) for c in changed) == 9  # the least relevant one stays
    drop = [float(W @ (X[0] - x)) for x in copies]
    assert found["input_x_gradient", "aopc"].value == pytest.approx(
        np.mean(sorted(set(drop), key=drop.index)), rel=1e-4
    )
    other = board(Linear(), X[:1], ["input_x_gradient"], {"aopc": {"operator": "noise", **LOGIT}}, seed=1)
    assert other["input_x_gradient", "aopc"].value != found["input_x_gradient", "aopc"].value


def test_noise_of_images_keeps_to_each_channel_and_on_average_is_its_middle() -> None:
    image = torch.cat([IMAGES[:1], 10 + IMAGES[1:2]], 1)  # two channels, far apart
    weight = torch.linspace(-1, 1, 72)
    call: dict[str, Any] = {
        "methods": ["input_x_gradient"],
        "metrics": {"aopc": {"k": 100, "operator": "noise", **LOGIT}},
    }
    drops = [board(Linear(weight), image, seed=seed, **call)["input_x_gradient", "aopc"].value for seed in range(40)]
    middle = (image.amin((2, 3), keepdim=True) + image.amax((2, 3), keepdim=True)) / 2
    wanted = float(weight @ (image - middle).flatten())
    assert abs(np.mean(drops) - wanted) < 4 * np.std(drops) / math.sqrt(40)


def test_noise_is_refused_for_ids() -> None:
    clf = whence.load("zoo:sentiment")
    with pytest.raises(whence.ParameterError, match="operator='noise' does not apply to token ids"):
        board(clf, ["a film"], ["gradient"], ["aopc"], operator="noise", target="predicted")


def test_rises_blur_is_that_of_its_own_program() -> None:
    """scipy's filter of one pixel in 11 × 11 is its kernel, and black is beyond the border."""
    pixel = np.zeros((11, 11))
    pixel[5, 5] = 1
    kernel = torch.from_numpy(ndimage.gaussian_filter(pixel, 5))
    image = torch.rand(2, 3, 20, 17, generator=torch.Generator().manual_seed(0)).double()
    wanted = nn.functional.conv2d(image.flatten(0, 1)[:, None], kernel[None, None], padding=5).view_as(image)
    assert torch.allclose(rise_blurred(image), wanted, atol=1e-12)
    found = board(
        image_model(), IMAGES, ["input_x_gradient"], {"insertion": {"operator": "rise_blur", "steps": 36, **LOGIT}}
    )
    weight = torch.linspace(-1, 1, 36).double()
    blurred = rise_blurred(IMAGES.double()).flatten(1)
    flat = IMAGES.double().flatten(1)
    for row in range(4):
        order = (flat[row] * weight).argsort(descending=True)
        gain = (weight * (flat[row] - blurred[row]))[order]
        curve = weight @ blurred[row] + torch.cat([torch.zeros(1).double(), gain.cumsum(0)])
        wanted_area = float(torch.trapezoid(curve, dx=1 / 36))
        assert found.results["input_x_gradient", "insertion"][row].value == pytest.approx(wanted_area, abs=1e-5)


@pytest.mark.parametrize(("tolerance", "hits"), [(0, [0, 0, 0]), (1, [1, 0, 0]), (1.5, [1, 1, 0]), (3, [1, 1, 1])])
def test_the_pointing_games_tolerance_is_a_distance_in_pixels(tolerance: float, hits: list[float]) -> None:
    masks = torch.zeros(3, 6, 6)
    masks[:, 2, 2] = 1
    maps = torch.zeros(3, 6, 6)
    for row, (i, j) in enumerate([(2, 3), (3, 3), (2, 5)]):  # 1, √2 and 3 away
        maps[row, i, j] = 1
    found = whence.evaluate(
        image_model(), IMAGES[:3], methods={"given": lambda m, x, t: maps[: len(x)] if len(x) == 3 else maps[:1]},
        metrics={"pointing_game": {"tolerance": tolerance}}, masks=masks, controls=False,
    )  # fmt: skip
    assert values(found, "given", "pointing_game").tolist() == hits


def test_aopc_counts_k_0_on_request() -> None:
    """Samek et al. 2017, eq. 12: 1 / (L + 1) Σ over k = 0 … L."""
    metrics = {"plain": {"metric": "aopc", **LOGIT}, "samek": {"metric": "aopc", "count_zero": True, **LOGIT}}
    found = board(Linear(), X, ["input_x_gradient"], metrics)
    ranked = (X * W).double().sort(1, descending=True).values
    wanted = torch.stack([ranked[:, :k].sum(1) for k in range(10)]).sum(0) / 10
    assert torch.allclose(values(found, "input_x_gradient", "samek"), wanted, atol=1e-5)
    assert torch.allclose(values(found, "input_x_gradient", "plain") * 0.9, wanted, atol=1e-5)


# ---- subsets: sensitivity-n and faithfulness correlation ----

SUBSETS = ("sensitivity_n", "faithfulness_correlation")


@pytest.mark.parametrize("metric", SUBSETS)
def test_on_a_linear_model_the_contributions_are_perfect(metric: str) -> None:
    phi = X * W
    call: dict[str, Any] = {metric: dict(LOGIT)}
    assert torch.allclose(values(board(Linear(), X, given(phi), call), "given", metric), torch.ones(6).double())
    assert torch.allclose(values(board(Linear(), X, given(5 * phi), call), "given", metric), torch.ones(6).double())
    assert torch.allclose(values(board(Linear(), X, given(-phi), call), "given", metric), -torch.ones(6).double())
    assert values(board(Linear(), X, given(torch.ones_like(phi)), call), "given", metric).isnan().all()


@pytest.mark.parametrize("metric", SUBSETS)
def test_of_subsets_of_one_or_of_all_but_one_the_correlation_is_that_of_the_units(metric: str) -> None:
    """With n = 1, and as many draws as it takes, it is the correlation of φ and w ⊙ x over units, by closed form."""
    phi = torch.randn(6, 10, generator=torch.Generator().manual_seed(3))
    params = {"k": 10, "samples": 20000, **LOGIT} if metric == SUBSETS[1] else {"k": [10], "samples": 20000, **LOGIT}
    found = values(board(Linear(), X[:2], given(phi), {metric: params}), "given", metric)
    wanted = [stats.pearsonr(phi[row].numpy(), (X * W)[row].numpy()).statistic for row in range(2)]
    assert found.tolist() == pytest.approx(wanted, abs=0.02)


def test_faithfulness_correlation_by_quantus_definition() -> None:
    """For each run: draw S units, sum their attributions, put the baseline there, take the score's fall; then ρ."""
    phi = torch.randn(6, 10, generator=torch.Generator().manual_seed(3)).double()
    model = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2))
    drawn: list[Tensor] = []
    from whence.evaluation.metrics import faithfulness_correlation as own

    plain, patched = own.drawn, pytest.MonkeyPatch()
    patched.setattr(own, "drawn", lambda *a: drawn.extend(plain(*a)) or drawn[-100:])
    found = values(board(model, X[:1], given(phi), {"faithfulness_correlation": {"k": 30}}), "given",
                   "faithfulness_correlation")  # fmt: skip
    patched.undo()
    x, sums, falls = X[:1], [], []
    with torch.no_grad():
        whole = model(x).softmax(1)[0, 0]
        for units in drawn:
            changed = x.clone()
            for unit in units.tolist():
                changed[0, unit] = 0.0
            sums.append(sum(float(phi[0, unit]) for unit in units.tolist()))
            falls.append(float(whole - model(changed).softmax(1)[0, 0]))
    assert {len(units) for units in drawn} == {3}
    assert len(drawn) == 100
    assert float(found[0]) == pytest.approx(stats.pearsonr(sums, falls).statistic, abs=1e-5)


# ---- superpixels ----


def test_irof_of_a_linear_model_is_the_area_over_its_falling_score() -> None:
    weight = torch.linspace(0.1, 1, 36)
    metrics = {"irof": {"segmentation": "grid", "segments": 9, "operator": 0.0, **LOGIT}}
    found = board(Linear(weight), IMAGES, ["input_x_gradient"], metrics)
    parts = grid((6, 6), 9).flatten()
    assert parts.bincount().tolist() == [4] * 9
    for row in range(4):
        own = (IMAGES[row].flatten() * weight).double()
        sums = torch.stack([own[parts == n].sum() for n in range(9)]).sort(descending=True).values
        left = 1 - torch.cat([torch.zeros(1).double(), sums.cumsum(0)]) / sums.sum()
        wanted = 1 - float(torch.trapezoid(left, dx=1 / 9))
        assert found.results["input_x_gradient", "irof"][row].value == pytest.approx(wanted, abs=1e-6)


def test_irof_by_quantus_definition() -> None:
    """Quantus: order segments by mean attribution, replace them one after the other by the channels' means, divide each
    prediction by the first; the area over that curve is the number of steps minus the area under it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3)).eval().requires_grad_(False)
    metrics = {"irof": {"segmentation": "grid", "segments": 4}}
    found = board(model, IMAGES, ["input_x_gradient"], metrics)
    maps = whence.explain(model, IMAGES, method="input_x_gradient", target=0).values.reshape(4, 36)
    parts = grid((6, 6), 4).flatten()
    for row in range(4):
        means = [float(maps[row][parts == n].mean()) for n in range(4)]
        image, ratios = IMAGES[row : row + 1].clone(), [1.0]
        whole = float(model(image).softmax(1)[0, 0])
        for n in sorted(range(4), key=lambda n: -means[n]):
            image.view(-1)[parts == n] = IMAGES[row].mean()
            ratios.append(float(model(image).softmax(1)[0, 0]) / whole)
        over = (len(ratios) - 1) - np.trapezoid(ratios, dx=1)
        assert found.results["input_x_gradient", "irof"][row].value == pytest.approx(over / 4, abs=1e-5)


def test_superpixels_follow_edges_and_cover_the_image() -> None:
    image = torch.zeros(3, 24, 24)
    image[0, :, 13:] = 1  # an edge that no cell of the grid has
    for segments in (4, 9, 16):
        found = slic(image, segments)
        assert found.shape == (24, 24)
        assert sorted(found.unique().tolist()) == list(range(int(found.max()) + 1))
        assert segments // 2 <= int(found.max()) + 1 <= segments
        left, right = set(found[:, :13].unique().tolist()), set(found[:, 13:].unique().tolist())
        assert not left & right
    assert int(slic(torch.ones(1, 6, 6), 4).max()) == 3  # a flat image is cut by place alone
    assert grid((5, 7), 100).unique().numel() == 35


# ---- sparseness ----


def test_sparseness_and_complexity_by_quantus_definition() -> None:
    draw = torch.Generator().manual_seed(5)
    phi = torch.randn(6, 10, generator=draw).double()
    phi[0], phi[1] = 0.0, 1.0
    phi[0, 3] = 2.0
    found = board(Linear(), X, given(phi), ["sparseness", "complexity"])
    for row in range(6):
        a = np.sort(np.abs(phi[row].numpy()))
        gini = sum((2 * (i + 1) - 10 - 1) * a[i] for i in range(10)) / (10 * a.sum())
        p = a / a.sum()
        assert found.results["given", "sparseness"][row].value == pytest.approx(gini, abs=1e-12)
        assert found.results["given", "complexity"][row].value == pytest.approx(stats.entropy(p), abs=1e-12)
    assert found.results["given", "sparseness"][0].value == pytest.approx(0.9)  # one unit has all: 1 − 1/n
    assert found.results["given", "complexity"][0].value == 0
    assert found.results["given", "sparseness"][1].value == pytest.approx(0)
    assert found.results["given", "complexity"][1].value == pytest.approx(math.log(10))
    nothing = board(Linear(), X, {"none": lambda m, x, t: torch.zeros_like(x)}, ["sparseness", "complexity"])
    assert every(nothing).isnan().all()


# ---- models trained again ----


def labelled() -> tuple[Tensor, Tensor]:
    """Rows whose label is the sign of feature 0; the others are noise."""
    x = torch.randn(240, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return x, (x[:, 0] > 0).long()


def fitted(x: Tensor, y: Tensor) -> nn.Module:
    """A linear classifier by ridge regression: training in closed form."""
    one = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    weight = torch.linalg.solve(one.T @ one + 1e-6 * torch.eye(7).double(), one.T @ (2.0 * y - 1).double())
    model = nn.Linear(6, 2).double()
    with torch.no_grad():
        model.weight.copy_(torch.stack([-weight[:6], weight[:6]]))
        model.bias.copy_(torch.stack([-weight[6], weight[6]]))
    return model.eval()


def test_roar_finds_who_marks_what_was_learnt() -> None:
    x, y = labelled()
    model = fitted(x[:200], y[:200])
    calls: list[Tensor] = []

    def train(remove: Any) -> nn.Module:
        calls.append(remove(x[:200]))
        return fitted(calls[-1], y[:200])

    def truth(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        return torch.eye(6)[0].expand(len(inputs), 6)

    def wrong(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        return torch.eye(6)[5].expand(len(inputs), 6)

    found = whence.evaluate(
        model, x[200:], methods={"truth": truth, "wrong": wrong}, labels=y[200:], controls=False,
        metrics={"roar": {"train": train, "k": [17], "operator": 0.0}}, seed=3,
    )  # fmt: skip
    assert len(calls) == 2  # once for each method and k, whatever the chunks
    assert [int((c == 0).all(0).nonzero()) for c in calls] == [0, 5]
    assert torch.equal(calls[0][:, 1:], x[:200, 1:])
    for line, gone in (("truth", 0), ("wrong", 5)):  # the definition, by hand
        train_x, test_x = x[:200].clone(), x[200:].clone()
        train_x[:, gone] = test_x[:, gone] = 0
        right = (fitted(train_x, y[:200])(test_x).argmax(1) == y[200:]).double()
        assert values(found, line, "roar").tolist() == right.tolist()
    assert found["truth", "roar"].value < 0.7 < 0.9 < found["wrong", "roar"].value
    assert found["wrong", "roar"].parts["base accuracy"] > 0.9


def test_roar_needs_a_function_and_labels() -> None:
    with pytest.raises(whence.ParameterError, match="roar trains models anew"):
        board(Linear(), X, ["gradient"], ["roar"], labels=[0] * 6)
    with pytest.raises(whence.InputError, match="roar needs labels"):
        board(Linear(), X, ["gradient"], {"roar": {"train": lambda remove: Linear()}})
    with pytest.raises(whence.InputError, match="roar is for values"):
        board(whence.load("zoo:sentiment"), [{"text": "a film", "label": 0}], ["gradient"], {"roar": {"train": len}})


def test_data_randomisation_is_the_correlation_with_the_other_models_map() -> None:
    x, y = labelled()
    model, other = fitted(x, y), fitted(x, y[torch.randperm(240, generator=torch.Generator().manual_seed(1))])
    metrics = {name: {"metric": "data_randomisation", "model": other, "absolute": name == "absolute"}
               for name in ("absolute", "signed")}  # fmt: skip
    found = board(model, x[:8], ["input_x_gradient"], metrics, controls=True)
    for row in range(8):
        a, b = ((x[row] * m.weight[0]).detach().double().numpy() for m in (model, other))
        rho, size = (stats.spearmanr(*pair).statistic for pair in ((a, b), (abs(a), abs(b))))
        assert found.results["input_x_gradient", "signed"][row].value == pytest.approx(abs(rho), abs=1e-6)
        assert found.results["input_x_gradient", "absolute"][row].value == pytest.approx(abs(size), abs=1e-6)
        assert found.results["random", "absolute"][row].value < 1  # the control is drawn anew
    blind = board(model, x[:8], {"edges of nothing": lambda m, x, t: x}, metrics)
    assert torch.allclose(every(blind), torch.ones(1, 2, 8).double())
    with pytest.raises(whence.ParameterError, match="data_randomisation needs a second model"):
        board(model, x[:8], ["gradient"], ["data_randomisation"])


def test_another_second_model_is_another_run(tmp_path: Any) -> None:
    x, y = labelled()
    model, other = fitted(x, y), fitted(x, 1 - y)
    call: dict[str, Any] = {"methods": ["gradient"], "resume": tmp_path / "run.jsonl"}
    whence.evaluate(model, x[:4], metrics={"data_randomisation": {"model": other}}, **call)
    with pytest.raises(whence.WhenceError):
        whence.evaluate(model, x[:4], metrics={"data_randomisation": {"model": fitted(x * 2, y)}}, **call)


# ---- texts in windows ----


def test_metrics_that_perturb_nothing_take_texts_in_windows() -> None:
    clf = replace(whence.load("zoo:sentiment"), long="window")
    long = "a clever piece of cinema that never ends " * 30
    rows = [{"text": long, "rationale": [(2, 8)]}, {"text": "a clever film", "rationale": [(2, 8)]}]
    metrics = ["sparseness", "complexity", "rationale_ap", "class_sensitivity", "completeness_gap"]
    found = whence.evaluate(clf, rows, methods=["integrated_gradients", "rollout"], metrics=metrics)
    assert not found.failures
    phi = whence.explain(clf, long, method="integrated_gradients").values[0].abs().double()
    inner = phi[1:-1].sort().values
    count = len(inner)
    rank = torch.arange(1, count + 1)
    gini = float(((2 * rank - count - 1) * inner).sum() / (count * inner.sum()))
    assert count > 200
    assert found.results["integrated_gradients", "sparseness"][0].value == pytest.approx(gini, abs=1e-4)
    assert found.results["rollout", "class_sensitivity"][0].value == pytest.approx(1)
    assert math.isnan(found.results["integrated_gradients", "completeness_gap"][0].value)
    assert found.results["integrated_gradients", "completeness_gap"][1].value < 0.05
    with pytest.raises(whence.InputError, match="or use metrics that perturb nothing"):
        whence.evaluate(clf, [long], methods=["rollout"], metrics=["aopc"])
    some = whence.evaluate(clf, rows, methods=["rollout"], metrics=["aopc", "sparseness"])
    assert {failure.row for failure in some.failures} == {0}


def test_a_table_with_images_of_different_numbers_of_superpixels_is_drawn() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 3)).eval()
    board = whence.evaluate(model, torch.rand(4, 3, 16, 16), methods=["gradient"], metrics=["irof"], controls=False)
    assert len({result.parts["segments"] for result in board.results["gradient", "irof"].values()}) > 1
    assert "irof" in board.to_html()
    x, y = board.curve("gradient", "irof")[:2]
    assert len(x) == len(y)


def test_a_training_that_fails_is_not_tried_again() -> None:
    calls: list[int] = []

    def train(remove: Any) -> Any:
        calls.append(1)
        raise ValueError("out of memory")

    model = nn.Linear(4, 2).eval()
    with pytest.raises(whence.WhenceError, match="train raised ValueError for gradient: out of memory"):
        whence.evaluate(
            model, torch.randn(8, 4), labels=[0] * 8, methods=["gradient"], controls=False,
            metrics={"roar": {"train": train, "k": [50]}},
        )  # fmt: skip
    assert len(calls) == 1


# ---- sources ----


def test_sources_of_a_linear_model() -> None:
    """Removed by zeros, a feature takes its contribution along: the ranks of what is left are those of the scores."""
    own = {"linear_datamodelling_score": {"operator": "zero"}, "source_ablation": {"k": (1, 3), "operator": "zero"}}
    found = board(Linear(), X, ["input_x_gradient"], own)
    assert values(found, "input_x_gradient", "linear_datamodelling_score").tolist() == pytest.approx(
        [1.0] * len(X), abs=1e-3
    )
    contributions = (X * W).double().sort(1, descending=True).values
    score = contributions.sum(1)
    logs = [torch.nn.functional.logsigmoid(score - contributions[:, :k].sum(1)) for k in (0, 1, 3)]
    expected = logs[0] - (logs[1] + logs[2]) / 2
    torch.testing.assert_close(values(found, "input_x_gradient", "source_ablation"), expected, atol=1e-5, rtol=1e-4)


# ---- models that end in a softmax ----


def by_size(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    return inputs.abs()


METRICS = ["comprehensiveness", "log_odds", "deletion", "faithfulness_correlation"]


def test_probabilities_that_a_model_gives_are_not_given_a_softmax_again() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    rows = torch.randn(6, 5)
    plain, ended = (
        whence.evaluate(model, rows, methods={"size": by_size}, metrics=METRICS, controls=False)
        for model in (net, nn.Sequential(net, nn.Softmax(-1)))
    )
    for metric in METRICS:
        assert ended["size", metric].value == pytest.approx(plain["size", metric].value, abs=1e-5)
    (one,) = whence.compare(nn.Sequential(net, nn.Softmax(-1)), rows[:1], methods=["gradient"], check=True).checks
    assert dict(one.classes)[one.target] == pytest.approx(float(net(rows[:1]).detach().softmax(-1).max()), abs=1e-5)


def test_single_logits_of_one_are_no_probabilities() -> None:
    one = nn.Linear(2, 1, bias=False)
    one.weight.data.fill_(0.5)
    (check,) = whence.compare(one, torch.ones(1, 2), methods=["gradient"], target=0, check=True).checks
    assert dict(check.classes)[check.target] == pytest.approx(float(torch.tensor(1.0).sigmoid()), abs=1e-5)


@pytest.mark.parametrize("output", ["probability", "log_probability"])
def test_a_softmax_of_probabilities_is_warned_about(output: str) -> None:
    ended = nn.Sequential(nn.Linear(5, 3), nn.Softmax(-1)).eval()
    with pytest.warns(whence.WhenceWarning, match="are probabilities already"):
        whence.explain(ended, torch.randn(2, 5), method="gradient", output=output)
    whence.explain(ended, torch.randn(2, 5), method="gradient")
    whence.explain(ended[:1], torch.randn(2, 5), method="gradient", output=output)
