"""Metrics against what can be worked out by hand: a linear model, a known ranking; and what must not change them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.rows import IMAGES, MASKS, Linear, Pooled, W, X, every, image_model, small
from tests.support.slow import mostly_slow
from whence.evaluation.answers import logits
from whence.evaluation.imputation import imputed
from whence.evaluation.metrics.erasure import js
from whence.util.stats import spearman

LOGIT = {"output": "logit"}


def contributions() -> Tensor:
    return (X * W).double()


def one(metric: str, params: dict[str, Any] | None = None, method: str = "input_x_gradient", **given: Any) -> Tensor:
    """A metric's number for each row, under one method."""
    board = whence.evaluate(Linear(), X, methods=[method], metrics={metric: params}, target=0, controls=False, **given)
    found = board.results[method, metric]
    return torch.tensor([found[row].value for row in sorted(found)], dtype=torch.float64)


def taken(share: float, n: int = 10) -> int:
    return math.ceil(round(share * n, 9))


# ---- closed forms: on a linear model every removal takes away exactly w_i x_i ----


def test_comprehensiveness_is_the_sum_of_what_was_removed() -> None:
    ranked = contributions().sort(1, descending=True).values
    wanted = torch.stack([ranked[:, : taken(k / 100)].sum(1) for k in (1, 5, 10, 20, 50)]).mean(0)
    assert torch.allclose(one("comprehensiveness", LOGIT), wanted, atol=1e-5)


def test_sufficiency_is_the_sum_of_what_is_missing() -> None:
    ranked = contributions().sort(1, descending=True).values
    wanted = torch.stack([ranked[:, taken(k / 100) :].sum(1) for k in (1, 5, 10, 20, 50)]).mean(0)
    assert torch.allclose(one("sufficiency", LOGIT), wanted, atol=1e-5)


def test_log_odds_by_hand() -> None:
    ranked = contributions().sort(1, descending=True).values
    whole = ranked.sum(1)
    wanted = nn.functional.logsigmoid(whole - ranked[:, :2].sum(1)) - nn.functional.logsigmoid(whole)
    assert torch.allclose(one("log_odds"), wanted, atol=1e-5)


def test_aopc_is_the_mean_drop() -> None:
    ranked = contributions().sort(1, descending=True).values
    wanted = torch.stack([ranked[:, :k].sum(1) for k in range(1, 10)]).mean(0)
    assert torch.allclose(one("aopc", LOGIT), wanted, atol=1e-5)


@pytest.mark.parametrize("metric", ["deletion", "insertion"])
def test_deletion_and_insertion_are_areas(metric: str) -> None:
    ranked = contributions().sort(1, descending=True).values
    gone = torch.stack([ranked[:, :k].sum(1) for k in range(11)])
    curve = ranked.sum(1) - gone if metric == "deletion" else gone
    wanted = torch.trapezoid(curve, torch.linspace(0, 1, 11).double(), dim=0)
    assert torch.allclose(one(metric, {"steps": 10, **LOGIT}), wanted, atol=1e-5)


@pytest.mark.parametrize(("metric", "descending"), [("perturbation_positive", True), ("perturbation_negative", False)])
def test_perturbation_is_the_area_under_accuracy_and_is_not_divided(metric: str, descending: bool) -> None:
    ranked = contributions().sort(1, descending=descending).values
    left = ranked.sum(1) - torch.stack([ranked[:, :k].sum(1) for k in range(10)])
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    right = torch.where(left > 0, 0, 1) == labels
    wanted = 100 * torch.trapezoid(right.double(), torch.linspace(0, 0.9, 10).double(), dim=0)
    assert torch.allclose(one(metric, labels=labels), wanted, atol=1e-9)
    perfect = one(metric, labels=torch.where(left[0] > 0, 0, 1))
    assert float(perfect.max()) <= 90  # x ends at 0.9


def test_infidelity_of_the_true_answer_is_0() -> None:
    assert float(one("infidelity", {"scaled": False}).max()) < 1e-9
    noise = {"kind": "noise", "scaled": False}
    assert float(one("infidelity", noise, "gradient").max()) < 1e-9
    assert float(one("infidelity", noise).min()) > 1e-3  # the paper's φ is that of gradients


def test_infidelity_scales_if_asked() -> None:
    assert float(one("infidelity", method="input_x_gradient", operator=0.0).max()) < 1e-9
    doubled = whence.evaluate(
        Linear(), X, methods={"twice": lambda model, x, target: 2 * x * W}, controls=False, target=0,
        metrics={"scaled": {"metric": "infidelity"}, "plain": {"metric": "infidelity", "scaled": False}},
    )  # fmt: skip
    assert doubled["twice", "scaled"].value < 1e-9
    assert doubled["twice", "plain"].value > 0.1


def test_sensitivity_of_a_constant_gradient_is_0_and_of_x_times_it_is_known() -> None:
    assert float(one("sensitivity_max", method="gradient").max()) < 1e-6
    found = one("sensitivity_max", {"radius": 0.1})
    bound = 0.1 * W.norm() / (X * W).norm(dim=1).double()
    assert bool((found > 0.3 * bound).all())
    assert bool((found <= bound + 1e-6).all())


def test_completeness_gap_by_hand() -> None:
    assert float(one("completeness_gap", method="integrated_gradients").max()) < 1e-5
    gaps = one("completeness_gap", {"relative": False}, method="gradient", baseline=0.0)
    assert torch.allclose(gaps, (W.sum() - contributions().sum(1)).abs(), atol=1e-4)
    assert one("completeness_gap", method="gradient").isnan().all()  # no baseline, nothing to add up to


def test_a_broken_gap_is_a_number_and_no_verdict() -> None:
    board = whence.evaluate(
        Linear(), X, methods=["input_x_gradient"], metrics=["completeness_gap"], target=0, baseline=0.0
    )
    assert board["random", "completeness_gap"].value > 0.1
    assert set(board["random", "completeness_gap"].parts) == {"absolute", "relative"}


def test_the_random_control_removes_what_anybody_would() -> None:
    """Within 3 standard errors of k · mean(w_i x_i), over many rows."""
    x = X[:1].repeat(400, 1)
    board = whence.evaluate(
        Linear(), x, methods=["random"], metrics={"comprehensiveness": {"k": 30, **LOGIT}}, target=0, seed=5
    )
    found = [r.value for r in board.results["random", "comprehensiveness"].values()]
    values = torch.tensor(found, dtype=torch.float64)
    error = float(values.std()) / math.sqrt(len(values))
    assert abs(float(values.mean()) - 3 * float(contributions()[0].mean())) < 3 * error


# ---- images ----


@pytest.mark.parametrize(("metric", "least"), [("road_morf", False), ("road_lerf", True)])
def test_road_by_a_dense_solution(metric: str, least: bool) -> None:
    board = whence.evaluate(
        image_model(), IMAGES, methods=["input_x_gradient"], target=0,
        metrics={metric: {"k": [30], "noise": 0.0, **LOGIT}},
    )  # fmt: skip
    w = torch.linspace(-1, 1, 36).double()
    for row, image in enumerate(IMAGES.double().view(4, 36)):
        order = (image * w).argsort(descending=not least)
        gone = torch.zeros(36, dtype=torch.bool)
        gone[order[:11]] = True  # 30 % of 36, rounded
        wanted = float((dense(image, gone) * w).sum())
        assert board.results["input_x_gradient", metric][row].value == pytest.approx(wanted, abs=1e-5)


def dense(image: Tensor, gone: Tensor) -> Tensor:
    """ROAD's system of equations as a matrix."""
    matrix = torch.eye(36, dtype=torch.float64)
    for i in range(36):
        if not gone[i]:
            continue
        y, x = divmod(i, 6)
        near = {
            (y + b) * 6 + x + a: 1 / 6 if a == 0 or b == 0 else 1 / 12
            for a in (-1, 0, 1)
            for b in (-1, 0, 1)
            if (a or b) and 0 <= y + b < 6 and 0 <= x + a < 6
        }
        for j, weight in near.items():
            matrix[i, j] = -weight / sum(near.values())
    return torch.linalg.solve(matrix, torch.where(gone, 0.0, image))


def test_imputation_keeps_a_flat_image_and_adds_its_noise() -> None:
    flat, keep = torch.full((1, 3, 8, 8), 0.7), torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)) > 0.6
    draws = [torch.Generator().manual_seed(n) for n in range(5)]
    assert torch.allclose(imputed(flat, keep, 0.0, draws), flat.expand(5, -1, -1, -1), atol=1e-6)
    noisy = imputed(flat, keep, 0.1, draws)
    gone = ~keep.expand(-1, 3, -1, -1)
    assert bool((noisy[~gone] == 0.7).all())
    assert 0.07 < float((noisy - 0.7)[gone].std()) < 0.13
    assert torch.isfinite(imputed(flat, torch.zeros(1, 1, 8, 8, dtype=torch.bool), 0.0, draws[:1])).all()


def test_the_noise_of_an_imputed_image_is_its_own() -> None:
    call: dict[str, Any] = {"methods": ["input_x_gradient"], "target": 0, "controls": False}
    alone = whence.evaluate(image_model(), IMAGES, metrics={"road_morf": {"noise": 0.5}}, **call)
    among = whence.evaluate(
        image_model(), IMAGES, metrics={"road_lerf": {"noise": 0.5}, "road_morf": {"noise": 0.5}}, **call
    )
    for row in range(4):
        one, other = (board.results["input_x_gradient", "road_morf"][row].value for board in (alone, among))
        assert one == pytest.approx(other, abs=1e-6)


def on_masks(values: Tensor, metric: str, masks: Tensor = MASKS) -> Any:
    """A metric under a method whose map is given."""
    board = whence.evaluate(
        image_model(), IMAGES, methods={"given": lambda model, x, target: values.expand(len(x), 6, 6)},
        metrics=[metric], masks=masks, controls=False,
    )  # fmt: skip
    return board["given", metric]


def test_segmentation_by_hand() -> None:
    upper = MASKS[0]
    assert [on_masks(upper, m).value for m in ("segmentation_accuracy", "segmentation_iou", "segmentation_ap")] == [
        1,
        1,
        1,
    ]
    quarter = upper.clone()
    quarter[:, 3:] = 0  # half of the object, nothing else
    assert on_masks(quarter, "segmentation_accuracy").value == pytest.approx(0.75)
    assert on_masks(quarter, "segmentation_iou").value == pytest.approx((9 / 18 + 18 / 27) / 2)
    assert on_masks(1 - upper, "segmentation_accuracy").value == 0


def test_intersections_and_unions_are_summed_over_the_data_set() -> None:
    masks = MASKS.clone()
    masks[0, :] = 0
    masks[0, 0, 0] = 1  # a small object: a mean over images would weigh it like the others
    found = on_masks(MASKS[0], "segmentation_iou", masks)
    inside, union = 1 + 3 * 18, 18 + 3 * 18
    outside, all_but = 18 + 3 * 18, 35 + 3 * 18
    assert found.value == pytest.approx((inside / union + outside / all_but) / 2)


def test_average_precision_of_both_sides_is_that_of_scikit_learn() -> None:
    from sklearn.metrics import average_precision_score

    values = torch.rand(6, 6, generator=torch.Generator().manual_seed(3)).double()
    scaled = ((values - values.min()) / (values.max() - values.min())).flatten()
    gold = MASKS[0].flatten().bool()
    wanted = average_precision_score(
        torch.stack([~gold, gold]).flatten().numpy(), torch.stack([1 - scaled, scaled]).flatten().numpy()
    )
    assert on_masks(values, "segmentation_ap").value == pytest.approx(wanted, abs=1e-6)


def test_pixels_that_nobody_labelled_do_not_count() -> None:
    masks = MASKS.clone()
    masks[:, 2:4] = 255
    middle = MASKS[0].clone()
    middle[2], middle[3] = 0, 1  # wrong there only
    assert on_masks(middle, "segmentation_accuracy", masks).value == 1


def test_an_empty_mask_is_no_hit_in_the_pointing_game() -> None:
    masks = MASKS.clone()
    masks[1] = 0
    point = torch.zeros(6, 6)
    point[1, 4] = 1
    assert (on_masks(point, "pointing_game", masks).value, on_masks(point, "pointing_game", masks).rows) == (1, 3)
    assert on_masks(point.flip(0), "pointing_game", masks).value == 0


def test_images_have_a_row_of_edges() -> None:
    board = whence.evaluate(image_model(), IMAGES, methods=["gradient"], metrics=["aopc"])
    assert board.methods == ("gradient", "random", "edges")
    assert whence.evaluate(Linear(), X, methods=["gradient"], metrics=["aopc"]).methods == ("gradient", "random")


# ---- model randomisation ----


def test_rank_correlation_is_that_of_scipy_and_nan_without_an_order() -> None:
    from scipy.stats import spearmanr

    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 30, generator=generator).round(decimals=1).double()
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    assert spearman(a, -a) == pytest.approx(-1)
    assert math.isnan(spearman(a, torch.zeros(30)))


def test_a_method_that_does_not_hear_of_weights_keeps_its_answer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    board = whence.evaluate(
        model, X, methods={"input": lambda m, x, target: x, "gradient": None},
        metrics={
            "model_randomisation": {"stages": 2}, "alone": {"metric": "model_randomisation", "order": "independent"}
        },
    )  # fmt: skip
    assert board["input", "model_randomisation"].value == pytest.approx(1)
    assert abs(board["random", "model_randomisation"].value) < 0.5  # drawn anew for every model
    assert board["gradient", "model_randomisation"].value < 0.8
    assert board["gradient", "alone"].value < 0.9
    assert board.curve("input", "model_randomisation") == ([0, 0.5, 1], pytest.approx([1, 1, 1]))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# ---- attention erasure ----


IDS = torch.randint(0, 12, (8, 7), generator=torch.Generator().manual_seed(2))


def erased(model: Pooled, ids: Tensor, gone: list[int]) -> Tensor:
    weights = model.weights(ids[None])[0, :, 0].clone()
    weights[gone] = 0
    weights = weights / weights.sum() if float(weights.sum()) else weights
    return model.out((weights[:, None] * model.embed(ids)).sum(0)).double()


@torch.no_grad()
def test_erasing_single_weights_by_hand() -> None:
    model = Pooled()
    board = whence.evaluate(
        model, {"input_ids": IDS}, methods=["raw_attention"], metrics=["erasure_single"], controls=False
    )
    for row, ids in enumerate(IDS):
        first = int(model.weights(ids[None])[0, :, 0].argmax())
        p, top = erased(model, ids, []), js(erased(model, ids, []), erased(model, ids, [first]))
        possible = [top - js(p, erased(model, ids, [other])) for other in range(7) if other != first]
        found = board.results["raw_attention", "erasure_single"][row].value
        assert min(abs(found - one) for one in possible) < 1e-6
    parts = board["raw_attention", "erasure_single"].parts
    table = ("both flip", "only the first flips", "only the other flips", "neither flips")
    assert sum(parts[name] for name in table) == pytest.approx(100)


@torch.no_grad()
def test_erasing_sets_by_hand_and_no_subset_does_with_less() -> None:
    from itertools import combinations

    model = Pooled()
    board = whence.evaluate(
        model, {"input_ids": IDS}, methods=["raw_attention", "attention_gradient", "attention_x_gradient"],
        metrics={"erasure_set": None, "dropped": {"metric": "erasure_set", "never": "drop"}}, output="probability",
    )  # fmt: skip
    for row, ids in enumerate(IDS):
        decision = int(erased(model, ids, []).argmax())
        order = model.weights(ids[None])[0, :, 0].argsort(descending=True).tolist()
        flips = (k for k in range(1, 8) if int(erased(model, ids, order[:k]).argmax()) != decision)
        needed = next(flips, None)
        found = board.results["raw_attention", "erasure_set"][row]
        assert found.value == pytest.approx(1.0 if needed is None else needed / 7)
        assert math.isnan(board.results["raw_attention", "dropped"][row].value) == (needed is None)
        sets = (s for k in range(1, 8) for s in combinations(range(7), k))
        least = next((len(s) for s in sets if int(erased(model, ids, list(s)).argmax()) != decision), 7)
        for method in board.methods:
            assert board.results[method, "erasure_set"][row].value >= least / 7 - 1e-9


def test_erasing_nothing_changes_nothing_and_the_divergence_is_right() -> None:
    p, q = torch.tensor([1.0, 2.0, 0.5]).double(), torch.tensor([-1.0, 0.3, 2.0]).double()
    a, b = p.softmax(0), q.softmax(0)
    m = (a + b) / 2
    assert js(p, q) == pytest.approx(float((a * (a / m).log()).sum() + (b * (b / m).log()).sum()) / 2)
    assert js(p, p) == pytest.approx(0, abs=1e-15)
    assert js(p, q) == pytest.approx(js(q, p))
    far = torch.tensor([1000.0, -1000.0]).double()
    assert js(far, -far) == pytest.approx(math.log(2))


@torch.no_grad()
def test_what_is_told_beside_erasure_is_about_attention_itself() -> None:
    from whence.evaluation.metrics.erasure import by_difference

    model = Pooled()
    board = whence.evaluate(
        model, {"input_ids": IDS}, methods=["raw_attention", "random"], metrics=["erasure_single", "erasure_set"]
    )
    for row, ids in enumerate(IDS):
        weights = model.weights(ids[None])[0, :, 0].double()
        single = board.results["raw_attention", "erasure_single"][row].parts["difference of weights"]
        gaps = [float(weights.max() - weights[i]) for i in range(7)]
        assert min(abs(single - gap) for gap in gaps) < 1e-6
        found = board.results["raw_attention", "erasure_set"][row]
        if "mass erased" in found.parts:
            top = weights.sort(descending=True).values[: round(found.value * 7)]
            assert found.parts["mass erased"] == pytest.approx(float(top.sum()), abs=1e-6)
    lines = by_difference(board, "raw_attention")
    assert sum(count for _, _, count, _ in lines) == len(IDS)
    shares = torch.tensor([r.value for r in board.results["raw_attention", "erasure_set"].values()])
    assert board["raw_attention", "erasure_set"].median == pytest.approx(float(shares.quantile(0.5)))


def test_layers_and_heads_to_erase_are_chosen() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = BertForSequenceClassification(BertConfig(**sizes, vocab_size=60, initializer_range=0.5)).eval()
    columns = {
        "all": {"metric": "erasure_single"}, "first": {"metric": "erasure_single", "layers": [0]},
        "head": {"metric": "erasure_single", "layers": [0], "heads": [1]},
    }  # fmt: skip
    ids = {"input_ids": torch.tensor([[5, 6, 7, 8, 9]])}
    board = whence.evaluate(model, ids, methods=["raw_attention"], metrics=columns, controls=False)
    assert len({board["raw_attention", name].value for name in columns}) == 3
    with pytest.raises(whence.ParameterError, match="the model attends 2 times"):
        whence.evaluate(
            model, ids, methods=["raw_attention"], metrics={"erasure_single": {"layers": [2]}}, controls=False
        )


def test_rows_of_one_token_are_excluded() -> None:
    rows = [{"inputs": {"input_ids": ids}} for ids in (torch.tensor([3]), torch.tensor([3, 4, 5]))]
    board = whence.evaluate(Pooled(), rows, methods=["raw_attention"], metrics=["erasure_single", "erasure_set"])
    assert board["raw_attention", "erasure_single"].rows == 1


# ---- what must not matter ----

MANY = [
    "comprehensiveness",
    "sufficiency",
    "log_odds",
    "aopc",
    "deletion",
    "insertion",
    "infidelity",
    "sensitivity_max",
]


def test_batches_chunks_and_other_metrics_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = ["integrated_gradients", "smoothgrad"]
    x = torch.randn(9, 10, generator=torch.Generator().manual_seed(0))
    whole = every(whence.evaluate(small(), x, methods=methods, metrics=MANY))
    pairs = every(whence.evaluate(small(), x, methods=methods, metrics=MANY, batch_size=2))
    assert torch.allclose(whole, pairs, atol=1e-6)
    single = every(whence.evaluate(small(), x, methods=methods[1:], metrics=MANY, batch_size=1))  # see docs/methods.md
    assert torch.allclose(every(whence.evaluate(small(), x, methods=methods[1:], metrics=MANY)), single, atol=1e-6)
    for number, metric in enumerate(MANY):
        alone = every(whence.evaluate(small(), x, methods=methods, metrics=[metric]))
        assert torch.allclose(whole[:, number : number + 1], alone, atol=1e-6)
    monkeypatch.setattr("whence.evaluation.evaluate.CHUNK", 2)
    assert torch.allclose(whole, every(whence.evaluate(small(), x, methods=methods, metrics=MANY)), atol=1e-6)


def test_the_order_of_rows_does_not_matter_to_methods_without_chance() -> None:
    x = torch.randn(9, 10, generator=torch.Generator().manual_seed(0))
    names = ["comprehensiveness", "sufficiency", "log_odds", "aopc", "deletion", "insertion"]
    here = every(whence.evaluate(small(), x, methods=["integrated_gradients"], metrics=names, controls=False))
    there = every(whence.evaluate(small(), x.flip(0), methods=["integrated_gradients"], metrics=names, controls=False))
    assert torch.allclose(here, there.flip(2), atol=1e-6)


def test_padding_does_not_matter() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = BertForSequenceClassification(BertConfig(**sizes, vocab_size=60, num_labels=3)).eval()
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    names = ["comprehensiveness", "sufficiency", "aopc", "infidelity"]
    options: dict[str, Any] = {"methods": ["attcat", "integrated_gradients"], "metrics": names, "controls": False}
    bare = whence.evaluate(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, **options)
    longer = {
        "input_ids": nn.functional.pad(ids, (0, 4)), "attention_mask": nn.functional.pad(torch.ones_like(ids), (0, 4))
    }  # fmt: skip
    assert torch.allclose(every(bare), every(whence.evaluate(model, longer, **options)), atol=1e-5)


def test_the_seed_decides() -> None:
    x = torch.randn(5, 10, generator=torch.Generator().manual_seed(0))
    boards = [whence.evaluate(small(), x, methods=["random"], metrics=["aopc"], seed=s) for s in (0, 0, 1)]
    assert torch.equal(every(boards[0]), every(boards[1]))
    assert not torch.equal(every(boards[0]), every(boards[2]))
    assert boards[0].to_csv() == boards[1].to_csv()


def test_the_model_is_left_as_it_was() -> None:
    model = small().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    whence.evaluate(model, X, methods=["gradient"], metrics=[*MANY, "model_randomisation"])
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not model._forward_hooks


# ---- every metric, whatever comes ----


def tiny_bert(seed: int = 0) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    return BertForSequenceClassification(BertConfig(**sizes, vocab_size=60, num_labels=3, initializer_range=0.5)).eval()


def token_rows() -> list[dict[str, Any]]:
    """Rows of several lengths, distinct ids, with labels and marks."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for number, length in enumerate((6, 9, 4, 7, 9)):
        ids = torch.randperm(50, generator=generator)[:length] + 5
        marks = [int(i % 3 == number % 3) for i in range(length)]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        found.append({"inputs": inputs, "label": number % 3, "rationale": marks})
    return found


def image_rows() -> list[dict[str, Any]]:
    return [{"inputs": x, "label": i % 2, "mask": MASKS[i].bool()} for i, x in enumerate(IMAGES)]


GIVEN: dict[str, Any] = {  # what some metrics cannot do without
    "roar": {"train": lambda remove: Linear(remove(IMAGES).mean(0).flatten())},
    "data_randomisation": {"model": Linear(torch.linspace(1, 3, 36).cos())},
}
LONG = ("erasure_set", "erasure_single", "rationale_f1", "model_randomisation", "deletion")


@pytest.mark.parametrize("metric", mostly_slow(whence.metrics, {*whence.metrics} - {*LONG}))
def test_no_metric_depends_on_batches_chunks_or_the_order_of_rows(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = whence.metrics[metric].facts.get("of", "")
    tokens = kind == "tokens"
    model, rows = (tiny_bert(), token_rows()) if tokens else (image_model(), image_rows())
    methods = ["input_x_gradient", "smoothgrad"] if not tokens else ["input_x_gradient", "raw_attention"]
    metrics = {metric: GIVEN.get(metric)}
    call: dict[str, Any] = {"methods": methods, "metrics": metrics, "baseline": 0.0, "target": 0}
    whole = every(whence.evaluate(model, rows, **call))
    same = {"atol": 1e-5, "rtol": 1e-5, "equal_nan": True}
    assert torch.allclose(whole, every(whence.evaluate(model, rows, batch_size=1, **call)), **same)
    assert torch.allclose(whole, every(whence.evaluate(model, rows, batch_size=3, **call)), **same)
    turned = every(whence.evaluate(model, rows[::-1], **call))
    assert torch.allclose(whole, turned.flip(2), **same)
    monkeypatch.setattr("whence.evaluation.evaluate.CHUNK", 2)
    assert torch.allclose(whole, every(whence.evaluate(model, rows, **call)), **same)


OF_TOKENS = [name for name, m in whence.metrics.items() if m.facts.get("of") in (None, "tokens")]


@pytest.mark.slow
@pytest.mark.parametrize("metric", mostly_slow(OF_TOKENS, {*OF_TOKENS} - {*LONG}))
def test_padding_matters_to_no_metric(metric: str) -> None:
    model, rows = tiny_bert(), token_rows()
    longer = [
        {**row, "inputs": {k: nn.functional.pad(v, (0, 3)) for k, v in row["inputs"].items()},
         "rationale": [*row["rationale"], 0, 0, 0]}
        for row in rows
    ]  # fmt: skip
    given = {"model": tiny_bert(1)} if metric == "data_randomisation" else None
    call: dict[str, Any] = {
        "methods": ["input_x_gradient", "raw_attention"], "metrics": {metric: given}, "baseline": 0.0, "target": 0,
        "controls": False,
    }  # fmt: skip
    found = [every(whence.evaluate(model, data, **call)) for data in (rows, longer)]
    assert torch.allclose(*found, atol=1e-4, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("spare", [0, 1, 2, 3])
def test_a_first_row_as_long_as_the_model_takes(spare: int) -> None:
    """Whether rows can be padded is tried on the first one, which may leave no room for more tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(**sizes, vocab_size=60, num_labels=3, initializer_range=0.5, max_position_embeddings=12)
    model = BertForSequenceClassification(config).eval()

    def row(length: int) -> dict[str, Tensor]:
        return {"input_ids": torch.arange(5, 5 + length), "attention_mask": torch.ones(length).long()}

    rows = [{"inputs": row(length)} for length in (12 - spare, 4, 2, 9)]
    call: dict[str, Any] = {"methods": ["input_x_gradient"], "metrics": ["comprehensiveness"], "progress": False}
    board = whence.evaluate(model, rows, **call)
    assert not board.failures
    turned = whence.evaluate(model, rows[::-1], **call)
    value = ("input_x_gradient", "comprehensiveness")
    assert board[value].value == pytest.approx(turned[value].value, abs=1e-6)
    assert logits._PADS[model]  # and such rows share passes
