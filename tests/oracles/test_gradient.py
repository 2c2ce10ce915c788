"""The gradient family from the papers' formulas: explicit matrices, one row and one entry at a time, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import whence
from tests.support.models import CASES, close

ORACLE_OF = ("gradient", "input_x_gradient", "deconvnet", "guided_backprop")

RNG = np.random.default_rng(0)
A, B, C = (RNG.normal(size=s) for s in ((6, 9), (9, 7), (7, 3)))  # a net of three dense layers
X = RNG.normal(size=(4, 6))


def net(x: Tensor) -> Tensor:
    a, b, c = (torch.tensor(w) for w in (A, B, C))
    return F.relu(F.relu(x @ a) @ b) @ c


def backward(x: np.ndarray, target: int, rule: Any) -> np.ndarray:
    """One row, back through the matrices; `rule(m, h)` is what a ReLU does to the signal m of its input h."""
    first = x @ A
    second = np.maximum(first, 0) @ B
    m = C[:, target]
    m = B @ np.array([rule(mi, hi) for mi, hi in zip(m, second, strict=True)])
    return A @ np.array([rule(mi, hi) for mi, hi in zip(m, first, strict=True)])


RULES = {
    "gradient": lambda m, h: m * (h > 0),
    "deconvnet": lambda m, h: m * (m > 0),
    "guided_backprop": lambda m, h: m * (h > 0) * (m > 0),
}


@pytest.mark.parametrize("method", RULES)
def test_rules_by_hand(method: str) -> None:
    expected = np.stack([backward(row, 2, RULES[method]) for row in X])
    found = whence.explain(net, torch.tensor(X), method=method, target=2).values
    close(found, torch.tensor(expected), 1e-12)


def test_input_x_gradient_and_options_by_hand() -> None:
    plain = np.stack([backward(row, 1, RULES["gradient"]) for row in X])
    x = torch.tensor(X)
    close(whence.explain(net, x, method="input_x_gradient", target=1).values, torch.tensor(X * plain), 1e-12)
    close(
        whence.explain(net, x, method="gradient", target=1, absolute=True).values,
        torch.tensor(abs(plain)),
        1e-12,
    )
    for beta in (1.0, 4.0):
        soft = np.stack([backward(row, 1, lambda m, h, b=beta: m / (1 + np.exp(-b * h))) for row in X])
        found = whence.explain(net, x, method="gradient", target=1, relu="softplus", beta=beta).values
        close(found, torch.tensor(soft), 1e-12)


def test_softplus_tends_to_the_gradient() -> None:
    plain = whence.explain(net, torch.tensor(X), method="gradient", target=1).values
    steep = whence.explain(net, torch.tensor(X), method="gradient", target=1, relu="softplus", beta=1e6).values
    close(steep, plain, 1e-9)


# eager HF attention computes its softmax in float32, which differences cannot see through
CONTINUOUS = [
    name for name in CASES if not name.endswith("_eager") and name not in ("bert_sdpa", "gpt2_sdpa", "llama_sdpa")
]


@pytest.mark.parametrize("name", CONTINUOUS)
def test_the_gradient_is_the_limit_of_differences(name: str) -> None:
    model, inputs = CASES[name].make()
    if not isinstance(inputs, Tensor):
        inputs = inputs["pixel_values"]
    found = whence.explain(model, inputs, method="gradient", target=1).values
    step = 1e-6
    for flat in range(0, inputs[0].numel(), max(1, inputs[0].numel() // 7)):
        moved = torch.zeros_like(inputs[0]).flatten()
        moved[flat] = step
        moved = moved.view_as(inputs[0])
        with torch.no_grad():
            up, down = (_logits(model(inputs + sign * moved))[:, 1] for sign in (1, -1))
        assert torch.allclose(found.flatten(1)[:, flat], (up - down) / (2 * step), atol=1e-6)


def _logits(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.logits


def test_the_toy_of_seed_004() -> None:
    """f(x) = 1 − relu(1 − x): the gradient is 1 below 1 and 0 above."""
    found = whence.explain(lambda x: 1 - F.relu(1 - x), torch.tensor([[0.0], [2.0]]), method="gradient")
    assert found.values.tolist() == [[1.0], [0.0]]
