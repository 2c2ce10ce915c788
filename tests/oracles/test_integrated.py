"""Path methods against closed forms, explicit sums and Captum."""

from __future__ import annotations

from collections.abc import Callable

import captum.attr
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import whence
from tests.support.models import close

ORACLE_OF = ("integrated_gradients", "path_integrated_gradients", "expected_gradients")
FIXED = ("right", "left", "midpoint", "trapezoid", "gauss_legendre")
EVERY_RULE = pytest.mark.parametrize("rule", ["adaptive", *FIXED])


def ig(model: Callable[..., Tensor], x: Tensor, **options: object) -> whence.Attribution:
    return whence.explain(model, x, method="integrated_gradients", target=lambda y: y, **options)


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


# ---- closed forms ----


@EVERY_RULE
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_a_sum_gives_exactly_the_difference(rule: str, steps: int) -> None:
    x, before = row(3.0, -1.0, 0.5), row(1.0, 1.0, 1.0)
    a = ig(lambda t: t.sum(1), x, rule=rule, steps=None if rule == "adaptive" else steps, baseline=before)
    close(a.values, x - before, 1e-15)
    assert float(a.gap) <= 1e-15


@pytest.mark.parametrize("degree", range(1, 8))
def test_gauss_legendre_is_exact_up_to_its_degree(degree: int) -> None:
    x, before = row(2.0), row(-1.0)
    exact = 2.0**degree - (-1.0) ** degree
    points = -(-degree // 2)  # the gradient's degree is one less, and n points integrate degree 2n − 1
    close(ig(lambda t: t[:, 0] ** degree, x, steps=points, baseline=before).values, row(exact), 1e-12)
    if points > 1:
        off = ig(lambda t: t[:, 0] ** degree, x, steps=points - 1, baseline=before).values
        assert abs(float(off) - exact) > 1e-3


@pytest.mark.parametrize("rule", ["midpoint", "trapezoid"])
def test_midpoint_and_trapezoid_are_exact_for_squares_and_of_second_order(rule: str) -> None:
    x = row(1.5)
    close(ig(lambda t: t[:, 0] ** 2, x, rule=rule, steps=1).values, row(2.25), 1e-15)
    errors = [abs(float(ig(lambda t: t[:, 0].exp(), x, rule=rule, steps=n).residual)) for n in (8, 16)]
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize(("rule", "nodes"), [("right", (1, 2, 3, 4)), ("left", (0, 1, 2, 3))])
def test_riemann_sums_are_the_papers(rule: str, nodes: tuple[int, ...]) -> None:
    x = row(1.5, -0.5)
    expected = x * sum(torch.cos(x * k / 4) for k in nodes) / 4
    close(ig(lambda t: t.sin().sum(1), x, rule=rule, steps=4).values, expected, 1e-15)


def test_the_trapezoid_is_the_explicit_sum() -> None:
    x, weights = row(1.5, -0.5), (0.125, 0.25, 0.25, 0.25, 0.125)
    expected = x * sum(w * torch.cos(x * k / 4) for k, w in enumerate(weights))
    close(ig(lambda t: t.sin().sum(1), x, rule="trapezoid", steps=4).values, expected, 1e-15)


@EVERY_RULE
def test_symmetric_inputs_get_the_same(rule: str) -> None:
    a = ig(lambda t: (t[:, 0] * t[:, 1]).tanh() + t[:, 0] + t[:, 1], row(0.8, 0.8, 3.0), rule=rule)
    assert float(a.values[0, 0]) == float(a.values[0, 1])
    assert float(a.values[0, 2]) == 0


def test_the_seeds_saturated_unit_gets_1() -> None:
    a = ig(lambda t: 1 - torch.relu(1 - t[:, 0]), row(2.0))
    close(a.values, row(1.0), 1e-12)
    assert float(a.output_value - a.baseline_value) == 1
    smooth = ig(lambda t: 1 - torch.relu(1 - t[:, 0]), row(2.0), rule="midpoint", steps=100)
    close(smooth.values, row(1.0), 1e-12)


def test_logistic_regression_splits_equally() -> None:
    a = ig(lambda t: torch.sigmoid(t.sum(1)), row(0.7, 0.7), tolerance=1e-8)
    half = (torch.sigmoid(torch.tensor(1.4)) - 0.5) / 2
    close(a.values, row(float(half), float(half)), 1e-6)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from([-3.0, -0.1, 0.0, 0.5, 2.0]), min_size=3, max_size=3),
    st.sampled_from([-2.0, 0.0, 1e-3, 7.0]),
)
def test_a_linear_function_gives_its_terms_and_a_product_splits(weights: list[float], shift: float) -> None:
    x, w = row(1.0, -2.0, 0.5), torch.tensor(weights, dtype=torch.float64)
    close(ig(lambda t: t @ w + shift, x).values, x * w, 1e-12)
    pair = ig(lambda t: t[:, 0] * t[:, 1] * shift, x).values
    close(pair, row(-shift, -shift, 0.0), 1e-12)


# ---- kinks ----


def exact_of_one_layer(first: nn.Linear, last: nn.Linear, x: Tensor, before: Tensor) -> Tensor:
    """Each hidden unit is open for a known part of the line."""
    a, b = first(before), first(x)  # (rows, hidden)
    crossing = (a / (a - b)).clamp(0, 1)
    open_for = torch.where((a > 0) & (b > 0), 1.0, torch.where((a <= 0) & (b <= 0), 0.0, 0.0))
    open_for = torch.where((a > 0) & (b <= 0), crossing, torch.where((a <= 0) & (b > 0), 1 - crossing, open_for))
    return (x - before) * ((open_for * last.weight[0]) @ first.weight)


@pytest.mark.parametrize("tolerance", [0.1, 0.01, 0.001])
def test_one_hidden_layer_is_within_the_tolerance_of_its_closed_form(tolerance: float) -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(6, 32).double(), nn.Linear(32, 1).double()
    x, before = torch.randn(8, 6, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)
    a = ig(lambda t: last(first(t).relu())[:, 0], x, baseline=before, tolerance=tolerance)
    exact = exact_of_one_layer(first, last, x, before).detach()
    error = (a.values - exact).abs().sum(1) / exact.abs().sum(1)
    assert a.receipt["scheme"] == "chords"
    assert all(a.receipt["converged"])
    assert float(error.max()) <= 1e-12  # each unit's kink is known, and there is no second layer to disagree
    own = {"relu": whence.derivative}  # a user's own rule leaves gradients at points
    by_jumps = ig(lambda t: last(first(t).relu())[:, 0], x, baseline=before, tolerance=tolerance, rules=own)
    assert by_jumps.receipt["scheme"] == "jumps"
    assert float(((by_jumps.values - exact).abs().sum(1) / exact.abs().sum(1)).max()) <= tolerance


def test_a_single_kink_is_found_where_tangents_meet() -> None:
    w = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    x = row(1.0, 2.0, 3.0)
    a = ig(lambda t: (t @ w - 1.3).relu() + t[:, 0], x)
    share = 1 - 1.3 / float(x @ w)  # of the line, during which it is open
    close(a.values, x * (share * w + row(1.0, 0.0, 0.0)), 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AdaptiveMaxPool2d(3), nn.LeakyReLU(0.1)])
def test_deep_nets_with_maxima_are_within_the_tolerance(pool: nn.Module) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), pool, nn.Conv2d(6, 6, 3, padding=1), nn.ReLU6(), nn.Flatten(),
        nn.LazyLinear(1),
    )  # fmt: skip
    x = torch.randn(3, 1, 8, 8)
    model(x)
    model, x = model.double().eval(), x.double()
    fine = ig(lambda t: model(t)[:, 0], x, rule="midpoint", steps=8000).values
    for tolerance in (0.01, 0.002):
        a = ig(lambda t: model(t)[:, 0], x, tolerance=tolerance)
        error = (a.values - fine).flatten(1).abs().sum(1) / fine.flatten(1).abs().sum(1)
        assert all(a.receipt["converged"])
        assert float(error.max()) <= tolerance
        assert float(a.gap.max()) <= tolerance


# ---- other paths ----


def along(path: object, **options: object) -> whence.Attribution:
    """The product of two inputs, from 0 to 1."""
    product, x = (lambda t: t[:, 0] * t[:, 1]), row(1.0, 1.0)
    return whence.explain(product, x, method="path_integrated_gradients", target=lambda y: y, path=path, **options)


@EVERY_RULE
def test_another_path_completes_and_breaks_symmetry(rule: str) -> None:
    corner = [row(0.0, 0.0), row(1.0, 0.0), row(1.0, 1.0)]
    a = along(corner, rule=rule)
    close(a.values, row(0.0, 1.0), 1e-12)
    assert float(a.gap) < 1e-12
    assert float(a.baseline_value) == 0
    straight = along([row(0.0, 0.0), row(1.0, 1.0)], rule=rule)
    close(straight.values, row(0.5, 0.5), 0.021 if rule in ("left", "right") else 1e-12)


def test_a_curved_path_takes_its_own_speed() -> None:
    a = along(lambda alpha: torch.stack([alpha, alpha**2])[None], tolerance=1e-6)
    close(a.values, row(1 / 3, 2 / 3), 1e-6)
    assert float(a.gap) < 1e-6


def test_without_a_path_it_is_the_straight_line() -> None:
    model, x = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).double(), torch.randn(4, 3).double()
    straight = whence.explain(model, x, method="integrated_gradients", target=0, baseline=0.5)
    same = whence.explain(model, x, method="path_integrated_gradients", target=0, baseline=0.5)
    close(same.values, straight.values, 1e-14)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4))
def test_every_polyline_completes(seed: int, corners: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = [torch.randn(2, 3, generator=generator, dtype=torch.float64) for _ in range(corners + 1)]
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    a = whence.explain(model, points[-1], method="path_integrated_gradients", target=0, path=points)
    assert float(a.gap.max()) <= 0.01
    close(a.baseline_value, model(points[0])[:, 0].detach(), 1e-12)


# ---- several baselines ----


def smooth_model() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3)).double(), torch.randn(4, 5).double()


def test_a_list_of_baselines_gives_the_mean_over_them() -> None:
    model, x = smooth_model()
    several = [0.0, 0.5, torch.randn(5).double()]
    parts = [
        whence.explain(model, x, method="integrated_gradients", target=1, steps=20, baseline=one) for one in several
    ]
    whole = whence.explain(model, x, method="integrated_gradients", target=1, steps=20, baseline=several)
    close(whole.values, torch.stack([part.values for part in parts]).mean(0), 1e-12)
    close(whole.baseline_value, torch.stack([part.baseline_value for part in parts]).mean(0), 1e-12)
    fine = whence.explain(model, x, method="integrated_gradients", target=1, baseline=several)
    close(fine.values, whole.values, 0.01)


def test_expected_gradients_tend_to_the_mean_over_baselines() -> None:
    model, x = smooth_model()
    several = list(torch.randn(8, 5, generator=torch.Generator().manual_seed(0)).double())
    exact = whence.explain(model, x, method="integrated_gradients", target=1, steps=32, baseline=several)
    errors = []
    for samples in (32, 2048):
        a = whence.explain(model, x, method="expected_gradients", target=1, baseline=several, samples=samples)
        errors.append(float((a.values - exact.values).abs().sum() / exact.values.abs().sum()))
        close(a.baseline_value, exact.baseline_value, 1e-12)
    assert errors[1] < 0.03
    assert errors[1] < errors[0] / 4  # noise alone would give a factor of 8
    w = torch.randn(5).double()
    linear = whence.explain(
        lambda t: t @ w, x, method="expected_gradients", target=lambda y: y, baseline=several, samples=16
    )
    close(linear.values, (x - torch.stack(several).mean(0)) * w, 1e-12)  # each baseline is used twice


# ---- a peer ----


@pytest.mark.parametrize("steps", [5, 50])
def test_gauss_legendre_agrees_with_captum(steps: int) -> None:
    model, x = smooth_model()
    before = torch.randn_like(x)
    theirs = captum.attr.IntegratedGradients(model).attribute(x, before, target=2, n_steps=steps)
    ours = whence.explain(model, x, method="integrated_gradients", target=2, baseline=before, steps=steps)
    close(ours.values, theirs, 1e-6)
