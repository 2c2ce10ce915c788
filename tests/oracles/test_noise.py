"""SmoothGrad and the random control against what statistics says of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import whence
from tests.support.models import CASES, close

ORACLE_OF = ("smoothgrad", "random")

X = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).double()
RANGE = X.amax(1) - X.amin(1)
N = 4000


def cube(x: Tensor) -> Tensor:
    return (x**3).sum(1) / 3  # gradient x²


def smooth(**params: object) -> Tensor:
    return whence.explain(cube, X, method="smoothgrad", batch_size=3000, **params).values


def test_without_noise_it_is_the_method_itself() -> None:
    close(smooth(noise=0.0, samples=3), X**2, 1e-12)
    guided = whence.explain(*CASES["residual_cnn"].make(), method="guided_backprop")
    model, x = CASES["residual_cnn"].make()
    wrapped = whence.explain(model, x, method="smoothgrad", of="guided_backprop", noise=0.0, samples=2)
    close(wrapped.values, guided.values, 1e-12)


def test_mean_and_variance_of_a_cube() -> None:
    """E[(x+ε)²] = x² + s², Var[(x+ε)²] = 4x²s² + 2s⁴, s = noise · the row's own range."""
    s = (0.15 * RANGE)[:, None]
    mean, variance = X**2 + s**2, 4 * X**2 * s**2 + 2 * s**4
    error = (variance / N).sqrt()
    assert bool(((smooth(samples=N) - mean).abs() < 5 * error).all())
    assert torch.allclose(smooth(samples=N, kind="variance"), variance, rtol=0.2)


def test_the_square_is_the_variance_plus_the_squared_mean() -> None:
    square = smooth(samples=40, kind="square")
    close(square, smooth(samples=40, kind="variance") + smooth(samples=40) ** 2, 1e-12)


def test_the_mean_does_not_depend_on_how_samples_are_grouped() -> None:
    whole = smooth(samples=10)
    for size in (1, 4, 7):
        found = whence.explain(cube, X, method="smoothgrad", samples=10, batch_size=size).values
        close(found, whole, 1e-12)


def test_the_explained_class_is_the_clean_inputs() -> None:
    w = torch.tensor([[1.0, -1.0], [0.0, 0.0]]).double()
    x = torch.tensor([[0.1, 1.1]]).double()  # a range of 1, so that the noise turns the first feature's sign over
    found = whence.explain(lambda x: x @ w, x, method="smoothgrad", noise=0.5, samples=50)
    assert found.target.tolist() == [0]
    assert found.values.tolist() == [[pytest.approx(1.0), 0.0]]


def test_padding_takes_no_part_in_range_or_noise() -> None:
    table = torch.randn(9, 4, generator=torch.Generator().manual_seed(1)).double()
    table[0] = 100.0  # the padding's embedding would blow the range up

    def model(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return (torch.nn.functional.embedding(input_ids, table) ** 2 * attention_mask[..., None]).sum((1, 2))

    ids, mask = torch.tensor([[3, 4, 5, 0, 0]]), torch.tensor([[1, 1, 1, 0, 0]])
    padded = whence.explain(model, {"input_ids": ids, "attention_mask": mask}, method="smoothgrad", samples=4)
    alone = whence.explain(
        model, {"input_ids": ids[:, :3], "attention_mask": mask[:, :3]}, method="smoothgrad", samples=4
    )
    close(padded[0].values, alone.values, 1e-12)
    left = {"input_ids": ids.flip(1), "attention_mask": mask.flip(1)}
    turned = whence.explain(
        model, {**left, "input_ids": torch.tensor([[0, 0, 3, 4, 5]])}, method="smoothgrad", samples=4
    )
    close(turned[0].values, alone.values, 1e-12)


def test_random_is_standard_normal_and_independent_of_the_input() -> None:
    x = torch.zeros(2, 20_000).double()
    found = whence.explain(lambda x: x.sum(1), x, method="random", seed=[1, 2]).values
    assert float(found.mean().abs()) < 0.03
    assert float(found.var()) == pytest.approx(1, abs=0.03)
    assert abs(float(torch.corrcoef(found)[0, 1])) < 0.03
    moved = whence.explain(lambda x: x.sum(1), x + 1, method="random", seed=[1, 2]).values
    assert torch.equal(found, moved)


# ---- absolute noise, inner parameters, noise of expected gradients ----


def test_absolute_noise_is_the_deviation_itself_and_may_differ_between_inputs() -> None:
    a = smooth_of((X, 10 * X), noise=(0.5, {"0": 0.5, "1": 2.0}), samples=4)
    assert a[0].receipt["noise_deviation"][0] == {"0": 0.5, "1": 0.5}
    assert a[1].receipt["noise_deviation"][0] == {"0": 0.5, "1": 2.0}
    many = whence.explain(cube, X, method="smoothgrad", noise=0.5, relative=False, samples=4000, kind="mean").values
    assert float((many - (X**2 + 0.25)).abs().max()) < 0.15  # E[(x+ε)²] = x² + s²


def smooth_of(inputs: Any, noise: Any, samples: int) -> list[whence.Attribution]:
    model = lambda a, b: (a**3 / 3).sum(1) + b.sum(1)  # noqa: E731
    return [
        whence.explain(model, inputs, method="smoothgrad", relative=False, noise=one, samples=samples) for one in noise
    ]


@pytest.mark.parametrize(
    "noise", [-1.0, float("nan"), "much", True, None, (0.1, 0.2), {"other": 0.1}, {"input": -0.1}, [None]]
)
@pytest.mark.parametrize("method", ["smoothgrad", "expected_gradients"])
def test_noise_that_is_no_deviation_is_refused(method: str, noise: Any) -> None:
    with pytest.raises(whence.ParameterError, match=f"{method}: noise="):
        whence.explain(cube, X, method=method, noise=noise)


def test_the_inner_method_has_parameters() -> None:
    model, x = CASES["mlp_module"].make()
    own = {"rule": "midpoint", "steps": 3}
    wrapped = whence.explain(
        model, x, method="smoothgrad", of="ig", of_params=own, noise=0, samples=2, target=1, baseline=0.3
    )
    inner = whence.explain(model, x, method="integrated_gradients", target=1, baseline=0.3, **own)
    close(wrapped.values, inner.values, 1e-12)
    squared = whence.explain(model, x, method="smoothgrad", noise=0, samples=2, kind="square", target=1)
    close(squared.values, whence.explain(model, x, method="gradient", target=1).values ** 2, 1e-12)
    with pytest.raises(whence.ParameterError, match="integrated_gradients has no parameter 'stps'"):
        whence.explain(model, x, method="smoothgrad", of="ig", of_params={"stps": 3})
    with pytest.raises(whence.ParameterError, match="of_params=3"):
        whence.explain(model, x, method="smoothgrad", of_params=3)


def test_captums_noise_tunnel_agrees_in_the_mean() -> None:
    captum = pytest.importorskip("captum.attr")
    model, x = CASES["mlp_module"].make()
    x = x[:1]
    torch.manual_seed(0)
    tunnel = captum.NoiseTunnel(captum.Saliency(model))
    for kind, name in (("mean", "smoothgrad"), ("square", "smoothgrad_sq"), ("variance", "vargrad")):
        options = {"of_params": {"absolute": True}, "noise": 0.3, "relative": False, "samples": 3000, "kind": kind}
        mine = whence.explain(model, x, method="smoothgrad", target=1, **options).values
        close(mine, tunnel.attribute(x, nt_type=name, nt_samples=3000, stdevs=0.3, target=1), 0.1)


def test_expected_gradients_with_noise_is_the_mean_over_noisy_inputs() -> None:
    """f = Σ x³/3: E_{α,ε}[(x+ε)·(α(x+ε))²] = E[(x+ε)³]/3 = x³/3 + x s²."""
    s = 0.4
    found = whence.explain(cube, X, method="expected_gradients", noise=s, relative=False, samples=6000).values
    assert float((found - (X**3 / 3 + X * s**2)).abs().max()) < 0.12
    alone = whence.explain(cube, X[1:], method="expected_gradients", noise=s, relative=False, samples=50).values
    whole = whence.explain(cube, X, method="expected_gradients", noise=s, relative=False, samples=50).values
    close(whole[1:], alone, 1e-12)
    none = whence.explain(cube, X, method="expected_gradients", noise=0.0, samples=50).values
    close(none, whence.explain(cube, X, method="expected_gradients", samples=50).values, 1e-14)
    assert float((whole - none).abs().max()) > 0.01


def test_gradients_without_the_inputs_difference() -> None:
    """f = Σ x³/3 from x' = 0: the mean gradient is x²/3."""
    for method, params in (("integrated_gradients", {}), ("expected_gradients", {"samples": 4000})):
        a = whence.explain(cube, X, method=method, multiply_by_inputs=False, **params)
        close(a.values, X**2 / 3, 2e-3)
        assert a.gap is None
    a = whence.explain(cube, X, method="deeplift", multiply_by_inputs=False, baseline=[0.0, 1.0])
    multiplier = (X**2 / 3 + (X**2 + X + 1) / 3) / 2  # Δ(x³/3)/Δx, the mean over both references
    close(a.values, multiplier, 1e-10)
    close(a.kept["multiplier"], multiplier, 1e-10)
    assert a.gap is None
    summed = whence.explain(cube, X, method="deeplift", baseline=[0.0, 1.0])
    close(summed.values, (X * X**2 / 3 + (X - 1) * (X**2 + X + 1) / 3) / 2, 1e-10)
    with pytest.raises(whence.ParameterError, match="signed=True parts contributions"):
        whence.explain(cube, X, method="deepshap", multiply_by_inputs=False, signed=True, baseline=[0.0, 1.0])


@pytest.mark.filterwarnings(
    "ignore:.*(require gradients|Setting forward, backward hooks).*:UserWarning"
)  # Captum's own
def test_captum_without_the_inputs_difference() -> None:
    captum = pytest.importorskip("captum.attr")
    model, x = CASES["mlp_module"].make()
    there = captum.IntegratedGradients(model, multiply_by_inputs=False).attribute(x, 0.2, target=1, n_steps=40)
    mine = whence.explain(
        model, x, method="integrated_gradients", multiply_by_inputs=False, steps=40, baseline=0.2, target=1
    )
    close(mine.values, there, 1e-6)
    plain = torch.nn.Sequential(model[0], torch.nn.ReLU(), model[2], torch.nn.ReLU(), model[4])  # none in place
    there = captum.DeepLift(plain, multiply_by_inputs=False).attribute(x, x.flip(0), target=1)
    mine = whence.explain(plain, x, method="deeplift", multiply_by_inputs=False, baseline=x.flip(0), target=1)
    close(mine.values, there.detach(), 1e-6)
