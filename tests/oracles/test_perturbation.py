"""The perturbation family from its definitions: subsets, permutations and windows one by one, in float64."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import whence
from tests.support.models import CASES, close

ORACLE_OF = ("occlusion", "leave_one_out", "permutation", "shapley", "kernel_shap", "lime", "context_cite")

X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).double()
BASE = torch.randn(5, generator=torch.Generator().manual_seed(1)).double()
W = torch.randn(5, 7, generator=torch.Generator().manual_seed(2)).double()


def net(x: Tensor) -> Tensor:
    return torch.tanh(x @ W).prod(1) * 3 + torch.relu(x @ W).sum(1) * x[:, 0]


def explain(method: str, model: Any = net, x: Any = X, **options: Any) -> whence.Attribution:
    return whence.explain(model, x, method=method, **{"baseline": BASE, "target": 0, **options})


def game(model: Any, x: Tensor, base: Tensor) -> Any:
    """v(S) of one row, S a set of features."""

    @functools.cache
    def value(players: frozenset[int]) -> float:
        mixed = base.clone()
        for i in players:
            mixed[i] = x[i]
        with torch.no_grad():
            return float(model(mixed[None])[0])

    return lambda players: value(frozenset(players))


def by_subsets(v: Any, n: int) -> list[float]:
    found = []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        total = 0.0
        for size in range(n):
            for subset in itertools.combinations(others, size):
                weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
                total += weight * (v({*subset, i}) - v(subset))
        found.append(total)
    return found


def by_permutations(v: Any, n: int) -> list[float]:
    total = np.zeros(n)
    for order in itertools.permutations(range(n)):
        for place, i in enumerate(order):
            total[i] += v(order[: place + 1]) - v(order[:place])
    return list(total / math.factorial(n))


# ---- Shapley values ----


@pytest.mark.parametrize("method", ["shapley", "kernel_shap"])
def test_shapley_values_by_subsets_and_by_permutations(method: str) -> None:
    expected = [by_subsets(game(net, row, BASE), 5) for row in X]
    assert np.allclose(expected, [by_permutations(game(net, row, BASE), 5) for row in X])
    a = explain(method)
    close(a.values, torch.tensor(expected, dtype=torch.float64), 1e-12)
    assert a.receipt["evaluations"] == [32, 32, 32]
    if method == "shapley":
        assert not a.kept["standard_error"].any()


@pytest.mark.parametrize(("method", "more"), [("shapley", {}), ("kernel_shap", {"samples": 5000})])
def test_twelve_features_take_4096_evaluations(method: str, more: Any) -> None:
    rows: list[int] = []
    weights = torch.randn(12, 6, generator=torch.Generator().manual_seed(3)).double()

    def counted(x: Tensor) -> Tensor:
        rows.append(len(x))
        return torch.tanh(x @ weights).prod(1) + x.sum(1)

    x = torch.randn(1, 12, generator=torch.Generator().manual_seed(4)).double()
    a = explain(method, counted, x, baseline=0, batch_size=512, **more)
    assert a.receipt["evaluations"] == [4096]
    assert sum(n for n in rows if n == 512) == 4096
    expected = by_subsets(game(counted, x[0], torch.zeros(12).double()), 12)
    close(a.values, torch.tensor([expected], dtype=torch.float64), 1e-10)


def test_sampled_orders_tend_to_the_exact_values_within_their_standard_error() -> None:
    exact = explain("shapley").values
    a = explain("shapley", exact=1, samples=400, batch_size=4000)
    error = a.kept["standard_error"]
    assert bool((error > 0).all())
    assert bool(((a.values - exact).abs() < 5 * error).all())
    close(a.values.sum(1), a.output_value - a.baseline_value, 1e-12)
    assert a.receipt["evaluations"] == [2 + 2 * 400 * 4] * 3
    few = explain("shapley", exact=1, samples=25, batch_size=4000)
    ratio = few.kept["standard_error"].mean() / error.mean()
    assert 2.5 < float(ratio) < 6  # √(400 / 25) = 4


def test_an_order_and_its_mirror_are_exact_where_units_interact_in_pairs() -> None:
    def pairs(x: Tensor) -> Tensor:
        return torch.einsum("ri,ij,rj->r", x, W[:, :5], x)

    a = explain("shapley", pairs, exact=1, samples=2)
    close(a.values, explain("shapley", pairs).values, 1e-12)
    assert float(a.kept["standard_error"].max()) < 1e-12


def test_kernel_shap_draws_sizes_by_the_kernel_and_each_coalition_with_its_complement() -> None:
    sizes: list[int] = []

    def counted(x: Tensor) -> Tensor:
        sizes.extend(x.sum(1).long().tolist())
        return x.sum(1)

    explain("kernel_shap", counted, torch.ones(1, 12).double(), baseline=0, samples=4000, batch_size=4000)
    drawn = [sizes.count(s) for s in range(13)]  # x itself and x' are run a few times more
    assert drawn[0] < 6 > drawn[12] - 2
    assert drawn[1:12] == drawn[11:0:-1]
    kernel = [1 / (s * (12 - s)) for s in range(1, 12)]
    for s in range(1, 12):
        expected = 3998 * kernel[s - 1] / sum(kernel)
        assert abs(drawn[s] - expected) < 8 * math.sqrt(expected)


def test_the_standard_error_is_the_spread_of_the_estimates() -> None:
    seeds = [explain("shapley", exact=1, samples=10, seed=seed) for seed in range(40)]
    spread = torch.stack([a.values for a in seeds]).std(0)
    said = torch.stack([a.kept["standard_error"] for a in seeds]).square().mean(0).sqrt()
    assert bool(((said / spread) > 0.6).all())
    assert bool(((said / spread) < 1.7).all())


def test_sampled_kernel_shap_keeps_efficiency_and_tends_to_the_exact_values() -> None:
    weights = torch.randn(14, generator=torch.Generator().manual_seed(5)).double()
    x = torch.randn(2, 14, generator=torch.Generator().manual_seed(6)).double()

    def model(x: Tensor) -> Tensor:
        return torch.tanh((x * weights).sum(1)) * 5 + x[:, 0] * x[:, 1]

    exact = explain("shapley", model, x, baseline=0, batch_size=4096).values
    far = []
    for samples in (128, 8192):
        a = explain("kernel_shap", model, x, baseline=0, samples=samples, batch_size=4096)
        assert a.receipt["evaluations"] == [samples, samples]
        close(a.values.sum(1), a.output_value - a.baseline_value, 1e-12)
        far.append(float((a.values - exact).abs().max() / exact.abs().max()))
    assert far[1] < 0.03
    assert far[1] < far[0] / 2


# Captum gives its answers in float32


def test_captum_agrees_about_shapley_values_and_ablation() -> None:
    from captum.attr import FeatureAblation, ShapleyValues

    model, x = CASES["mlp_module"].make()
    base = torch.full_like(x[:1], 0.3)
    theirs = ShapleyValues(model).attribute(x, baselines=base, target=1)
    close(explain("shapley", model, x, baseline=base, target=1).values, theirs.double(), 1e-5)
    theirs = FeatureAblation(model).attribute(x, baselines=base, target=1)
    close(explain("leave_one_out", model, x, baseline=base, target=1).values, theirs.double(), 1e-5)


# ---- what Shapley values are defined by ----

numbers = st.floats(-3, 3, allow_nan=False, width=32)


@settings(max_examples=25, deadline=None)
@given(st.lists(numbers, min_size=3, max_size=6), st.integers(0, 1000))
def test_terms_of_a_linear_function(weights: list[float], seed: int) -> None:
    w = torch.tensor(weights).double()
    x = torch.randn(2, len(w), generator=torch.Generator().manual_seed(seed)).double()
    base = torch.randn(len(w), generator=torch.Generator().manual_seed(seed + 1)).double()
    terms = w * (x - base)
    for method in ("occlusion", "leave_one_out", "shapley", "kernel_shap", "lime"):
        for more in [{}, *([{"exact": 1, "samples": 2}] if method == "shapley" else [])]:
            found = explain(method, lambda x: x @ w + 1, x, baseline=base, **more).values
            assert torch.allclose(found, terms, atol=1e-9), method


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000))
def test_symmetry_dummy_and_efficiency(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    w = torch.randn(3, 4, generator=draw).double()
    x = torch.randn(2, 5, generator=draw).double()
    x[:, 1] = x[:, 0]  # two alike, and the last one plays no part

    def model(x: Tensor) -> Tensor:
        seen = torch.stack([x[:, 0] * x[:, 1], x[:, 0] + x[:, 1], x[:, 2] * x[:, 3]], 1)
        return torch.tanh(seen @ w).sum(1)

    for method in ("shapley", "kernel_shap"):
        a = explain(method, model, x, baseline=0)
        assert torch.allclose(a.values[:, 0], a.values[:, 1], atol=1e-10)
        assert torch.allclose(a.values[:, 4], torch.zeros(2).double(), atol=1e-10)
        assert torch.allclose(a.values.sum(1), a.output_value - a.baseline_value, atol=1e-10)


# ---- occlusion ----


def cnn() -> tuple[nn.Module, Tensor]:
    return CASES["residual_cnn"].make()


def test_leave_one_out_pixel_by_pixel() -> None:
    model, x = cnn()
    a = explain("leave_one_out", model, x, baseline=0.5, target=2)
    with torch.no_grad():
        for i, j in ((0, 0), (3, 8), (8, 5)):
            without = x.clone()
            without[:, :, i, j] = 0.5
            lost = (model(x) - model(without))[:, 2]
            close(a.values[:, :, i, j], lost[:, None].expand(-1, 2), 1e-10)


@pytest.mark.parametrize(
    ("window", "stride"), [(3, 1), (3, 3), (4, 3), ((2, 5), (1, 4)), ((1, 3, 3), None), ((9,), 1), (9, None)]
)
def test_occlusion_window_by_window(window: Any, stride: Any) -> None:
    model, x = cnn()
    sides = window if isinstance(window, tuple) else (window, window)
    steps = stride if isinstance(stride, tuple) else [stride or max(1, s // 2) for s in sides]
    shape = x.shape[-len(sides) :]
    starts = [[*range(0, n - s, t), n - s] for n, s, t in zip(shape, sides, steps, strict=True)]
    total, times = torch.zeros_like(x), torch.zeros_like(x)
    with torch.no_grad():
        full = model(x)[:, 1]
        for corner in itertools.product(*starts):
            where = (..., *[slice(c, c + s) for c, s in zip(corner, sides, strict=True)])
            without = x.clone()
            without[where] = 0.0
            total[where] += (full - model(without)[:, 1]).view(-1, *[1] * (x.dim() - 1))
            times[where] += 1
    found = explain("occlusion", model, x, baseline=0, target=1, window=window, stride=stride)
    close(found.values, total / times, 1e-10)
    assert found.receipt["evaluations"] == [1 + math.prod(map(len, starts))] * 3


def test_captum_agrees_about_occlusion() -> None:
    from captum.attr import Occlusion

    model, x = cnn()
    theirs = Occlusion(model).attribute(x, sliding_window_shapes=(2, 3, 3), strides=(2, 2, 2), target=1)
    close(explain("occlusion", model, x, baseline=0, target=1, window=3, stride=2).values, theirs.double(), 1e-5)


# ---- the lasso ----


@pytest.mark.parametrize("penalty", [0.0, 0.02, 0.5, 1.0])
def test_the_lasso_is_scikit_learns(penalty: float) -> None:
    """On four masks in five, in the order in which bits count; the others say how much of the variance it predicts."""
    from sklearn.linear_model import Lasso, LinearRegression

    masks = np.array([[number >> i & 1 for i in range(5)] for number in range(32)], float)
    held = np.array([number % 5 == 2 for number in range(32)])
    found = explain("context_cite", penalty=penalty)
    for row, x in enumerate(X):
        v = game(net, x, BASE)
        y = np.array([v(set(np.flatnonzero(mask))) for mask in masks])
        z = masks[~held] - masks[~held].mean(0)
        most = np.abs(z.T @ (y[~held] - y[~held].mean())).max() / len(z)  # at which all are 0
        model = Lasso(alpha=penalty * most, tol=1e-13, max_iter=10**6) if penalty else LinearRegression()
        model.fit(masks[~held], y[~held])
        close(found.values[row], torch.tensor(model.coef_), 1e-7)
        assert found.receipt["r_squared"][row] == pytest.approx(model.score(masks[held], y[held]), abs=1e-6)
    assert penalty < 1 or float(found.values.abs().max()) == 0


def test_the_lasso_finds_few_sources_among_many() -> None:
    """Two of forty units matter: both are found from 32 masks, and most others are exactly 0."""
    x = torch.ones(1, 40, dtype=torch.float64)
    found = explain("context_cite", lambda x: 3 * x[:, 7] - 2 * x[:, 30] + 0.5, x, baseline=0, samples=32)
    assert found.values[0].abs().argsort(descending=True)[:2].tolist() == [7, 30]
    assert int((found.values == 0).sum()) >= 25
    assert found.receipt["r_squared"][0] > 0.95


# ---- LIME ----


@pytest.mark.parametrize("ridge", [0.0, 0.7])
def test_lime_by_the_normal_equations(ridge: float) -> None:
    masks = np.array(list(itertools.product([0.0, 1.0], repeat=5)))
    distance = 1 - masks.sum(1) / (np.sqrt(5) * np.sqrt(masks.sum(1)).clip(1e-300))  # cosine distance to all ones
    weight = np.diag(np.exp(-(distance**2) / 0.4**2))
    design = np.concatenate([np.ones((32, 1)), masks], 1)
    expected = []
    for row in X:
        v = game(net, row, BASE)
        scores = np.array([v(set(np.flatnonzero(mask))) for mask in masks])
        penalty = ridge * np.diag([0.0] + [1.0] * 5)
        expected.append(np.linalg.solve(design.T @ weight @ design + penalty, design.T @ weight @ scores)[1:])
    close(explain("lime", width=0.4, ridge=ridge).values, torch.tensor(np.array(expected)), 1e-9)


def test_sampled_lime_tends_to_lime_on_all_masks() -> None:
    every = explain("lime", samples=32).values
    some = [explain("lime", samples=31, seed=seed).values for seed in range(60)]
    assert float((torch.stack(some).mean(0) - every).abs().max()) < 0.25 * float(every.abs().max())


@pytest.mark.parametrize("samples", [40, 400])
def test_ridge_on_either_side_of_the_matrix(samples: int) -> None:
    """More units than samples or fewer: the same formula, solved in the smaller space."""
    x = torch.randn(1, 60, generator=torch.Generator().manual_seed(7)).double()
    found = explain("lime", lambda x: x.sum(1), x, baseline=0, samples=samples, ridge=1e-9, width=1.0).values
    if samples > 60:
        close(found, x, 1e-6)
    else:
        assert float(found.norm()) < float(x.norm())  # the smallest of many solutions


# ---- LIME with parts of the user's own ----

MASKS = torch.tensor(list(itertools.product([0, 1], repeat=5)))[[1, 31, 7, 12, 19, 22, 5, 30, 9, 16]]


def near(x: Tensor, perturbed: Tensor, z: Tensor) -> Tensor:
    return torch.exp(-(x - perturbed).square().sum(1) / 10) + 0.1 * z[:, 0]


@pytest.mark.parametrize("alpha", [None, 0.01])
def test_lime_with_the_users_similarity_sampling_and_model(alpha: float | None) -> None:
    """The weighted regression by hand where there is no penalty; scikit-learn's own fit where there is one."""
    from sklearn.linear_model import Lasso, LinearRegression

    kept = Lasso(alpha=alpha) if alpha else LinearRegression()
    a = explain("lime", similarity=near, sample=lambda x, n, draw: MASKS, regressor=kept)
    assert not hasattr(kept, "coef_")  # copies are fitted
    for row, x in enumerate(X):
        v = game(net, x, BASE)
        mixed = torch.where(MASKS.bool(), x, BASE)
        weight = near(x[None], mixed, MASKS.double()).numpy()
        scores = np.array([v(set(np.flatnonzero(mask))) for mask in MASKS.numpy()])
        if alpha:
            expected = Lasso(alpha=alpha).fit(MASKS.double().numpy(), scores, sample_weight=weight).coef_
        else:
            design = np.concatenate([np.ones((len(MASKS), 1)), MASKS.numpy()], 1)
            normal = design.T @ (weight[:, None] * design)
            expected = np.linalg.solve(normal, design.T @ (weight * scores))[1:]
        close(a.values[row], torch.tensor(expected), 1e-9)
    assert a.receipt["evaluations"] == [len(MASKS)] * 3


def test_lime_with_the_users_weights_and_its_own_regression() -> None:
    from sklearn.linear_model import LinearRegression

    ours = explain("lime", similarity=near, sample=lambda x, n, draw: MASKS)
    theirs = explain("lime", similarity=near, sample=lambda x, n, draw: MASKS, regressor=LinearRegression())
    close(ours.values, theirs.values, 1e-9)
    assert torch.equal(explain("lime", sample=drawn, seed=3).values, explain("lime", sample=drawn, seed=3).values)
    assert not torch.equal(explain("lime", sample=drawn, seed=3).values, explain("lime", sample=drawn, seed=4).values)


def drawn(x: Tensor, n: int, draw: torch.Generator) -> Tensor:
    return torch.rand(40, n, generator=draw) < 0.5


def test_captum_agrees_about_lime_with_the_same_masks() -> None:
    from captum.attr import Lime
    from captum.attr._core.lime import SkLearnLasso
    from sklearn.linear_model import Lasso

    def rows(*_: Any, **__: Any) -> Any:
        for mask in MASKS:
            yield mask[None]

    def similar(x: Tensor, perturbed: Tensor, z: Tensor, **_: Any) -> float:
        return float(near(x, perturbed, z.double()))

    peer = Lime(net, SkLearnLasso(alpha=0.01), similarity_func=similar, perturb_func=rows)
    theirs = torch.cat([peer.attribute(x[None], baselines=BASE[None], n_samples=len(MASKS)) for x in X])
    ours = explain("lime", similarity=near, sample=lambda x, n, draw: MASKS, regressor=Lasso(alpha=0.01)).values
    close(ours, theirs.double(), 1e-6)


def test_captum_agrees_about_kernel_shap_where_all_coalitions_are_taken() -> None:
    from captum.attr import KernelShap

    theirs = torch.cat([KernelShap(net).attribute(x[None], baselines=BASE[None], n_samples=4000) for x in X])
    assert float((explain("kernel_shap").values - theirs).abs().max()) < 0.05 * float(theirs.abs().max())


# ---- permutation ----


def test_permutation_unit_by_unit() -> None:
    """Each feature gets the values of other rows, by one order, and nothing else changes."""
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(8)).double()
    a = whence.explain(net, x, method="permutation", target=0, seed=2)
    orders = list(itertools.permutations(range(6)))
    for i in range(5):
        fitting = []
        for order in orders:
            moved = x.clone()
            moved[:, i] = x[list(order), i]
            if torch.allclose(a.values[:, i], net(x) - net(moved), atol=1e-10):
                fitting.append(order)
        assert len(fitting) == 1, i
        assert fitting[0] != tuple(range(6))
    assert torch.equal(a.values, whence.explain(net, x, method="permutation", target=0, seed=2).values)
    assert not torch.equal(a.values, whence.explain(net, x, method="permutation", target=0, seed=3).values)


def test_captum_agrees_about_permutations_of_the_users() -> None:
    from captum.attr import FeaturePermutation

    def rolled(x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask, x.roll(1, 0), x)

    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(8)).double()
    for units in (None, torch.tensor([[0, 1, 1, 0, 2]])):
        theirs = FeaturePermutation(net, perm_func=rolled).attribute(x, feature_mask=units)
        given = {} if units is None else {"units": units}
        ours = whence.explain(net, x, method="permutation", target=0, function=rolled, batch_size=4, **given)
        close(ours.values, theirs.double(), 1e-6)
    pair = (x[:, :2], x[:, 2:])
    masks = (torch.tensor([[0, 1]]), torch.tensor([[1, 2, 0]]))
    both = FeaturePermutation(lambda a, b: net(torch.cat([a, b], 1)), perm_func=rolled)
    joined = whence.explain(
        lambda a, b: net(torch.cat([a, b], 1)), pair, method="permutation", target=0, function=rolled, units=masks
    )
    for ours, theirs in zip(joined.values, both.attribute(pair, feature_mask=masks), strict=True):
        close(ours, theirs.double(), 1e-6)
