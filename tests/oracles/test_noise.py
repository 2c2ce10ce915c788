"""SmoothGrad and the random control against what statistics says of them."""

from __future__ import annotations

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
