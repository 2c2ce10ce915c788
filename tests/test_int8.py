"""Layers in int8: linear ones are explained as the maps that they compute, others are refused; removal runs them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.slow import mostly_slow

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch.ao


def dense() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def in_int8(model: nn.Module) -> Any:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear, nn.LSTM}, dtype=torch.qint8)


class Beside(nn.Module):
    """A float branch and one in int8: without a word, only the first would be explained."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = dense(), in_int8(dense())

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(6, 4), in_int8(nn.Sequential(nn.LSTM(1, 3, batch_first=True)))

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.first(x)[..., None])[0][:, -1]


class Rounded(torch.autograd.Function):
    """A dense layer as libraries of 8-bit layers write it: values and weights in int8, and a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return in_bytes(x, weight, scale, bias)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Any:
        weight, scale = ctx.saved_tensors
        return signals[0] @ (weight * scale[:, None]), None, None, None


def in_bytes(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    most = x.abs().amax(-1, keepdim=True).clamp(min=1e-9)
    rounded = (x * (127 / most)).round().to(torch.int8)
    return (rounded.int() @ weight.int().T).to(x.dtype) * scale * most / 127 + bias


class InBytes(nn.Module):
    """A layer with a weight in int8, which computes a linear map by `run`."""

    def __init__(self, layer: nn.Linear, run: Callable[..., Tensor]) -> None:
        super().__init__()
        scale = layer.weight.detach().abs().amax(1) / 127
        self.weight = nn.Parameter((layer.weight.detach() / scale[:, None]).round().to(torch.int8), requires_grad=False)
        self.bias, self.run = layer.bias, run
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, self.weight, self.scale, self.bias)


def layers_in_bytes(run: Callable[..., Tensor]) -> nn.Module:
    first, relu, last = dense()
    return nn.Sequential(InBytes(first, run), relu, InBytes(last, run))


def dequantised(model: nn.Module) -> nn.Module:
    """The same model with its weights in floating point."""
    if isinstance(model, torch.ao.nn.quantized.dynamic.Linear | InBytes):
        weight = model.weight() if callable(model.weight) else model.weight * model.scale[:, None]
        bias = model.bias() if callable(model.bias) else model.bias
        made = nn.Linear(weight.shape[1], weight.shape[0])
        made.weight, made.bias = nn.Parameter(weight.dequantize()), nn.Parameter(bias.detach())
        return made
    copied = copy.copy(model)
    copied._modules = {name: dequantised(child) for name, child in model._modules.items() if child is not None}
    return copied


MODELS: dict[str, Callable[[], nn.Module]] = {
    "all": lambda: in_int8(dense()),
    "after a float layer": lambda: nn.Sequential(nn.Linear(6, 6), in_int8(dense())),
    "beside a float layer": Beside,
    "a function of its own": lambda: layers_in_bytes(lambda *given: Rounded.apply(*given)),
    "a function that the model holds": lambda: layers_in_bytes(Rounded.apply),
}
REFUSED: dict[str, Callable[[], nn.Module]] = {
    "an LSTM": Recurrent,
    "values cast to int8": lambda: layers_in_bytes(in_bytes),
}
RUNS = ("leave_one_out", "occlusion", "permutation", "shapley", "kernel_shap", "lime", "context_cite", "random")
PROPAGATES = [name for name, entry in whence.methods.items() if name not in RUNS and "needs" not in entry.facts]
A_FEW = [name for name in PROPAGATES if name in ("gradient", "attnlrp", "lrp", "deeplift", "integrated_gradients")]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", mostly_slow(PROPAGATES, A_FEW))
def test_layers_in_int8_are_the_linear_maps_that_they_compute(kind: str, method: str) -> None:
    model, x = MODELS[kind](), torch.randn(2, 6)
    a = whence.explain(model, x, method=method, target=0)
    b = whence.explain(dequantised(model), x, method=method, target=0)
    assert torch.allclose(a.values, b.values, atol=1e-5), "as with the weights in floating point"
    assert float(a.values.abs().max()) > 0
    assert len(a.receipt["quantised"]) == 2
    assert torch.allclose(a.output_value, model(x)[:, 0], atol=0.05)


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("method", mostly_slow(PROPAGATES, A_FEW))
def test_what_propagates_refuses_what_has_no_derivative(kind: str, method: str) -> None:
    with pytest.raises(whence.WhenceError, match=r"(quantized|int8).* has no derivative(.|\n)*shapley"):
        whence.explain(REFUSED[kind](), torch.randn(2, 6), method=method, target=0)


@pytest.mark.parametrize("composite", ["epsilon", "gamma", "z_plus"])
def test_lrp_takes_its_rules_to_weights_in_int8(composite: str) -> None:
    model, x = layers_in_bytes(lambda *given: Rounded.apply(*given)), torch.randn(2, 6)
    a, b = (whence.explain(m, x, method="lrp", target=0, rules=composite) for m in (model, dequantised(model)))
    assert torch.allclose(a.values, b.values, atol=1e-5)


class Bent(torch.autograd.Function):
    """Weights in int8, but not a linear map."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, scale)
        return in_bytes(x.square(), weight, scale, bias)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Any:
        x, weight, scale = ctx.saved_tensors
        return 2 * x * (signals[0] @ (weight * scale[:, None])), None, None, None


@pytest.mark.parametrize("method", ["gradient", "attnlrp"])
def test_a_function_that_is_not_linear_keeps_its_own_derivative(method: str) -> None:
    model, x = layers_in_bytes(lambda *given: Bent.apply(*given)), torch.randn(2, 6)
    a = whence.explain(model, x, method=method, target=0)
    assert "quantised" not in a.receipt
    given = x.clone().requires_grad_()
    model(given)[:, 0].sum().backward()
    assert torch.allclose(a.values, given.grad if method == "gradient" else x * given.grad, atol=1e-5)


@pytest.mark.parametrize("kind", [*MODELS, *REFUSED])
def test_what_only_runs_the_model_explains_int8(kind: str) -> None:
    model, x = {**MODELS, **REFUSED}[kind](), torch.randn(2, 6)
    a = whence.explain(model, x, method="shapley", target=0, batch_size=1)  # its scale is that of a whole batch
    assert float(a.gap.max()) < 1e-5
    assert float(a.values.abs().max()) > 0


def test_a_kernel_without_a_backward_is_refused_too_unless_a_rule_is_given() -> None:
    library = torch.library.Library("whence_tests", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x.detach() * 2, "CPU")
    weight = torch.randn(3, 4)

    def model(x: Tensor) -> Tensor:
        return torch.ops.whence_tests.twice(x) @ weight.T

    x = torch.randn(2, 4)
    with pytest.raises(whence.ModelError, match="'whence_tests::twice'.*has no derivative"):
        whence.explain(model, x, method="gradient", target=0)
    a = whence.explain(model, x, method="gradient", target=0, rules={"whence_tests::twice": lambda call, m: 2 * m})
    assert torch.allclose(a.values, 2 * weight[:1].expand(2, -1))
