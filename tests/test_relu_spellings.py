"""A ReLU is a ReLU however it is written: modified backprop must not depend on the spelling."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captum.attr import Deconvolution, GuidedBackprop
from torch import Tensor, nn

import whence
from tests.support.models import close


class Cnn(nn.Module):
    """The same network for any spelling of ReLU; each use gets its own module where the spelling is a class."""

    def __init__(self, spelling: Callable[[], Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(2, 5, 3), nn.Conv2d(5, 6, 3, padding=1)
        self.c, self.d = nn.Linear(6 * 9, 12), nn.Linear(12, 4)
        self.pool = nn.MaxPool2d(2)
        self.acts = [spelling() for _ in range(3)]
        for i, act in enumerate(self.acts):
            if isinstance(act, nn.Module):
                self.add_module(f"act{i}", act)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.acts[1](self.b(self.acts[0](self.a(x)))))
        return self.d(self.acts[2](self.c(x.flatten(1))))


def net(spelling: Callable[[], Any]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Cnn(spelling).double().eval()


ONE = nn.ReLU()


class Script(nn.Module):
    """Rectifies half of its input through a view, in place, and ignores the result."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.clone()
        x[:, :2].relu_()
        x[:, 2:].clamp_(min=0)
        return x


SPELLINGS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "F.relu": lambda: F.relu,
    "F.relu(inplace)": lambda: lambda x: F.relu(x, inplace=True),
    "torch.relu": lambda: torch.relu,
    "x.relu": lambda: lambda x: x.relu(),
    "x.relu_": lambda: lambda x: x.relu_(),
    "torch.relu_": lambda: torch.relu_,
    "reused module": lambda: ONE,
    "inplace module": lambda: nn.ReLU(inplace=True),
    "clamp(min=0)": lambda: lambda x: x.clamp(min=0),
    "torch.clamp(0)": lambda: lambda x: torch.clamp(x, 0),
    "clamp_": lambda: lambda x: x.clamp_(min=0.0),
    "clamp_min": lambda: lambda x: x.clamp_min(0),
    "clip": lambda: lambda x: torch.clip(x, min=0),
    "threshold": lambda: lambda x: F.threshold(x, 0.0, 0.0),
    "nn.Threshold": lambda: nn.Threshold(0, 0),
    "maximum": lambda: lambda x: torch.maximum(x, torch.zeros((), dtype=x.dtype)),
    "aten": lambda: torch.ops.aten.relu,
    "aten.default": lambda: torch.ops.aten.relu.default,
    "views in place": lambda: Script(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(("method", "peer"), [("guided_backprop", GuidedBackprop), ("deconvnet", Deconvolution)])
def test_every_spelling_gives_captums_values_on_nn_relu(spelling: str, method: str, peer: Any) -> None:
    x = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(2)).double()
    by_modules = net(nn.ReLU)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        truth = peer(by_modules).attribute(x.clone(), target=[0, 3, 1]).detach()
    close(whence.explain(by_modules, x, method=method, target=[0, 3, 1]).values, truth, 1e-12)
    close(whence.explain(net(SPELLINGS[spelling]), x, method=method, target=[0, 3, 1]).values, truth, 1e-12)
    plain = whence.explain(by_modules, x, method="gradient", target=[0, 3, 1]).values
    assert float((truth - plain).abs().max()) > 0.1 * float(plain.abs().max())  # the rule does something


def test_captum_itself_gives_the_plain_gradient_without_relu_modules() -> None:
    """Why this file exists."""
    x = torch.randn(2, 2, 8, 8).double()
    model = net(SPELLINGS["F.relu"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = GuidedBackprop(model).attribute(x.clone(), target=0).detach()
    close(peer, whence.explain(model, x, method="gradient", target=0).values, 1e-12)


ACTIVATIONS = {
    "relu6": (F.relu6, lambda x: ((x > 0) & (x < 6)).double()),
    "hardtanh": (lambda x: F.hardtanh(x, 0.0, 2.0), lambda x: ((x > 0) & (x < 2)).double()),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), lambda x: (x > 0).double()),
    "prelu": (lambda x: F.prelu(x, torch.full((1,), 0.3).double()), lambda x: (x > 0).double()),
    "gelu": (F.gelu, None),
    "silu": (F.silu, None),
    "elu": (F.elu, None),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_other_activations_by_definition(name: str) -> None:
    """Guided: m⁺ times 1[x>0] at rectifiers, times the derivative at smooth ones; DeconvNet: m⁺."""
    act, gate = ACTIVATIONS[name]
    torch.manual_seed(0)
    w, v = torch.randn(5, 7).double(), torch.randn(7, 3).double()
    x = torch.randn(4, 5).double()
    h = (x @ w).requires_grad_()
    slope = gate(h.detach()) if gate else torch.autograd.grad(act(h).sum(), h)[0]
    m = v[:, 1].clamp(min=0).expand(4, 7)
    guided = whence.explain(lambda x: act(x @ w) @ v, x, method="guided_backprop", target=1, unruled="error")
    close(guided.values, (m * slope) @ w.T, 1e-12)
    deconv = whence.explain(lambda x: act(x @ w) @ v, x, method="deconvnet", target=1, unruled="error")
    close(deconv.values, m @ w.T, 1e-12)


WRITTEN_OUT = {
    "where": lambda: lambda x: torch.where(x > 0, x, 0.0),
    "times a comparison": lambda: lambda x: x * (x > 0),
    "masked_fill": lambda: lambda x: x.masked_fill(x < 0, 0.0),
    "half of a sum": lambda: lambda x: (x + x.abs()) / 2,
    "the larger of two": lambda: lambda x: torch.stack([x, torch.zeros_like(x)]).amax(0),
}


@pytest.mark.parametrize("method", ["guided_backprop", "deconvnet", "guided_grad_cam"])
@pytest.mark.parametrize("spelling", WRITTEN_OUT)
def test_rectifiers_that_are_written_out_are_warned_about(spelling: str, method: str) -> None:
    x = torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(2)).double()
    more = {"at": "pool"} if method == "guided_grad_cam" else {}
    model = net(WRITTEN_OUT[spelling])
    with pytest.warns(whence.WhenceWarning, match=r"met no ReLU .* write torch\.relu\(x\)"):
        e = whence.explain(model, x, method=method, target=0, **more)
    if not more:
        close(e.values, whence.explain(model, x, method="gradient", target=0).values, 1e-12)


def test_a_rule_of_the_users_own_makes_up_for_a_rectifier_that_is_written_out() -> None:
    x = torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(2)).double()
    rules = {"where": lambda call, m: call.vjp(m.clamp(min=0))}
    e = whence.explain(net(WRITTEN_OUT["where"]), x, method="guided_backprop", target=0, rules=rules)
    close(e.values, whence.explain(net(nn.ReLU), x, method="guided_backprop", target=0).values, 1e-12)
    assert not e.receipt["warnings"]


@pytest.mark.parametrize("between", [nn.Softplus, nn.Tanh, nn.Identity])
def test_a_model_without_rectifiers_is_not_warned_about(between: Callable[[], nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(4, 5), between(), nn.Linear(5, 2))
    assert not whence.explain(model, torch.randn(2, 4), method="guided_backprop", target=0).receipt["warnings"]
