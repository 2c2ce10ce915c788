"""Verdicts that are known by argument: each entry is a function, a method, a property, the verdict, and why."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.evaluation.axioms.toys import TOYS, along_axes


def seeded(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(7)
    for layer in layers:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
    return nn.Sequential(*layers).double().eval()


def pooled(x: Tensor) -> Tensor:
    """max(x1, x2) + 2·max(x3, x4), by max-pools."""
    windows = torch.nn.functional.max_pool1d(x[:, None], 2)[:, 0]
    return windows @ x.new_tensor([[1.0], [2.0]])


FUNCTIONS: dict[str, Any] = {
    "max-pools": pooled,
    "max of four": lambda x: torch.nn.functional.max_pool1d(x[:, None], 4)[:, 0],
    "amax": lambda x: x.amax(1, keepdim=True),
    "product": lambda x: (x[:, :1] * x[:, 1:2]) * (1 + 0 * x[:, 2:3]) + x[:, 2:3] + x[:, 3:4],
    "sum": lambda x: x.sum(1, keepdim=True),
    "weighted sum": lambda x: x @ x.new_tensor([[1.0], [-2.0], [3.0], [0.5]]),
    "logistic": lambda x: torch.sigmoid(x.sum(1, keepdim=True)),
    "deaf": lambda x: torch.tanh(x[:, :1]) * x[:, 1:2] + x[:, 3:4],
    "bias-free ReLU net": seeded(nn.Linear(4, 12, bias=False), nn.ReLU(), nn.Linear(12, 1, bias=False)),
    "ReLU net": seeded(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 1)),
    "tanh net": seeded(nn.Linear(4, 12), nn.Tanh(), nn.Linear(12, 1)),
    **TOYS,
}
ROWS = torch.tensor([[0.9, -0.4, 1.3, 0.2], [-0.7, 1.1, 0.3, 1.6]], dtype=torch.float64)


def bend(alpha: Tensor, x: Tensor, baseline: Tensor) -> Tensor:
    """Each feature moves at its own pace: γ_i = x'_i + α^(i+1)·(x_i − x'_i)."""
    power = torch.arange(1, x[0].numel() + 1, dtype=x.dtype, device=x.device).view(1, *x.shape[1:])
    return baseline + alpha.to(x) ** power * (x - baseline)


def together(alpha: Tensor, x: Tensor, baseline: Tensor) -> Tensor:
    return baseline + alpha.to(x) * (x - baseline)


def first_takes_all(model: Any, inputs: Tensor, targets: Tensor, baseline: Tensor) -> Tensor:
    found = torch.zeros_like(inputs)
    found[:, 0] = (model(inputs) - model(baseline))[:, 0].detach()
    return found


def own_gradient(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    x = inputs.clone().requires_grad_()
    return torch.autograd.grad(model(x).gather(1, targets[:, None]).sum(), x)[0]


def constant(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    return torch.ones_like(inputs)


AXES = {"method": "path_integrated_gradients", "path": along_axes}
BENT = {"method": "path_integrated_gradients", "path": bend}
STRAIGHT = {"method": "path_integrated_gradients", "path": together}
CANCEL = {"method": "deeplift", "rule": "reveal_cancel"}

KNOWN: list[tuple[str, Any, str, str, str]] = [
    # symmetry
    ("max-pools", "shapley", "symmetry", "yes", "Shapley values are symmetric (Shapley 1953), and 4 units are exact"),
    ("max of four", "shapley", "symmetry", "yes", "likewise"),
    ("max-pools", "gradient", "symmetry", "no", "at a tie max_pool hands its derivative to the first of the two"),
    ("max of four", "gradient", "symmetry", "no", "likewise"),
    ("max-pools", "integrated_gradients", "symmetry", "no", "the line from 0 to a tie is a tie: the first gets all"),
    ("amax", "gradient", "symmetry", "yes", "amax hands its derivative to equal maxima in equal parts"),
    ("logistic", "gradient", "symmetry", "yes", "∂f/∂x1 = ∂f/∂x2 wherever f is symmetric and smooth"),
    ("logistic", "integrated_gradients", "symmetry", "yes", "the line is symmetric (Sundararajan et al. 2017)"),
    ("logistic", STRAIGHT, "symmetry", "yes", "the same line"),
    ("logistic", AXES, "symmetry", "no", "σ is concave above 0: what comes first gets more, σ(1) − σ(0) > σ(2) − σ(1)"),
    ("logistic", BENT, "symmetry", "no", "what moves early meets the steep part of σ"),
    ("product", AXES, "symmetry", "no", "x1·x2 along the axes: 0 for the first and x1·x2 for the second"),
    ("product", BENT, "symmetry", "no", "∫ α² dα = 1/3 for the first, ∫ α·2α dα = 2/3 for the second"),
    ("product", "integrated_gradients", "symmetry", "yes", "∫ α dα = 1/2 for both"),
    ("sum", AXES, "symmetry", "yes", "of a linear function every path gives w·(x − x')"),
    ("minimum", "deeplift", "symmetry", "no", "Rescale gives a − relu(a − b) at a = b to a alone"),
    ("minimum", CANCEL, "symmetry", "yes", "RevealCancel gives each a half"),
    ("minimum", "shapley", "symmetry", "yes", "the value depends on min(a, b) only, however it is written"),
    ("sum", first_takes_all, "symmetry", "no", "the first feature gets everything, its twin nothing"),
    # continuity
    ("bias-free ReLU net", "gradient", "continuity", "no", "the gradient is constant on rays and jumps between them"),
    ("bias-free ReLU net", "integrated_gradients", "continuity", "no", "f is homogeneous: IG from 0 is x ⊙ ∇f"),
    ("ReLU net", "integrated_gradients", "continuity", "yes", "where the line crosses a kink moves with x: b ≠ 0"),
    ("ReLU net", "gradient", "continuity", "no", "it jumps at each kink"),
    ("ReLU net", own_gradient, "continuity", "no", "likewise, as a function"),
    ("ReLU net", "shapley", "continuity", "yes", "a sum of values of f, which is continuous"),
    ("ReLU net", constant, "continuity", "yes", "a constant"),
    ("tanh net", "gradient", "continuity", "not refuted", "f is smooth: there is no kink to be met"),
    ("threshold", "gradient", "continuity", "no", "0 below 10 and 1 above"),
    ("threshold", "deeplift", "continuity", "yes", "all of max(0, x − 10), which is continuous"),
    ("max-pools", "gradient", "continuity", "no", "(1, 0) on one side of the tie, (0, 1) on the other"),
    ("max-pools", "integrated_gradients", "continuity", "no", "(x1, 0) on one side of the tie, (0, x2) on the other"),
    ("max-pools", "shapley", "continuity", "yes", "a sum of values of f, which is continuous"),
    ("minimum", "deeplift", "continuity", "no", "relu(a − b) has the multiplier 1 or 0, times b"),
    # sensitivity
    ("saturated", "gradient", "sensitivity_a", "no", "flat at 2, and 1 above the baseline"),
    ("saturated", "deconvnet", "sensitivity_a", "no", "the signal −1 at the ReLU is cut"),
    ("saturated", "integrated_gradients", "sensitivity_a", "yes", "completeness, with one feature apart"),
    ("deaf", "gradient", "sensitivity_b", "yes", "the derivative by what is not read is 0"),
    ("deaf", constant, "sensitivity_b", "no", "1 for what is not read, too"),
    ("deaf", "shapley", "sensitivity_b", "yes", "a dummy adds nothing to any coalition"),
    # completeness
    ("weighted sum", "gradient", "completeness", "no", "Σw is not w·x"),
    ("weighted sum", "input_x_gradient", "completeness", "yes", "w·x from 0"),
    ("bias-free ReLU net", "input_x_gradient", "completeness", "yes", "Euler: f(x) = x·∇f(x)"),
    ("product", AXES, "completeness", "yes", "the gradient theorem, for every path"),
    ("max-pools", "shapley", "completeness", "yes", "efficiency (Shapley 1953)"),
    ("weighted sum", first_takes_all, "completeness", "yes", "by its definition"),
    # implementation invariance
    ("equal layers", "lrp", "implementation_invariance", "no", "(1/2, 1/2) of x1 + x2 and (1/3, 2/3) of the other"),
    ("equal networks", "deeplift", "implementation_invariance", "no", "(1.5, −0.5) and (2, −1) at (3, 1)"),
    ("equal networks", "gradient", "implementation_invariance", "yes", "the chain rule"),
    ("equal networks", "shapley", "implementation_invariance", "yes", "it asks for values of f only"),
    # linearity
    ("ReLU net", "gradient", "linearity_negative", "yes", "the derivative is linear"),
    ("ReLU net", "guided_backprop", "linearity_negative", "no", "a negative signal is cut at the ReLU"),
    ("ReLU net", "lrp", "linearity", "no", "relevance starts as 1 whatever the factor before f"),
]  # fmt: skip


def verdict(function: str, method: Any, name: str, seed: int) -> str:
    f = FUNCTIONS[function]
    toy = TOYS.get(function)
    x = ROWS if toy is None else toy.inputs
    chosen = [method] if isinstance(method, str) else {"line": method}
    line = method if isinstance(method, str) else "line"
    table = whence.axioms(
        f, x, baseline=0.0, methods=chosen, only=[name], target=0, seed=seed, progress=False,
        equivalents=() if toy is None else toy.equivalents,
    )  # fmt: skip
    cell = table[line, name]
    return f"{cell.verdict} ({cell.number}, {cell.witness}, {cell.note})"


def named(entry: tuple[Any, ...]) -> str:
    function, method, name, *_ = entry
    line = method if isinstance(method, str) else getattr(method, "__name__", None)
    line = line or getattr(method.get("path"), "__name__", None) or method["rule"]
    return f"{function}-{line}-{name}".replace(" ", "_")


def test_there_are_enough_of_them() -> None:
    assert len(KNOWN) >= 30
    assert len({named(entry) for entry in KNOWN}) == len(KNOWN)


@pytest.mark.parametrize("entry", KNOWN, ids=named)
def test_a_verdict_known_by_argument(entry: tuple[Any, ...]) -> None:
    function, method, name, wanted, why = entry
    for seed in (0, 1, 2):
        assert verdict(function, method, name, seed).startswith(f"{wanted} ("), (seed, why)


@pytest.mark.slow
@pytest.mark.parametrize("entry", KNOWN, ids=named)
def test_a_verdict_known_by_argument_whatever_the_seed(entry: tuple[Any, ...]) -> None:
    function, method, name, wanted, why = entry
    for seed in range(3, 23):
        assert verdict(function, method, name, seed).startswith(f"{wanted} ("), (seed, why)
