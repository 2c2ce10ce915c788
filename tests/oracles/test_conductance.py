"""Conductance and internal influence from their formulas: explicit matrices, dense sums over α, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.models import CASES, close

ORACLE_OF = ("conductance", "internal_influence")

DRAW = torch.Generator().manual_seed(4)
A, B, C = (torch.randn(shape, generator=DRAW).double() for shape in ((4, 6), (6, 5), (5, 3)))
X, X0 = (torch.randn(3, 4, generator=DRAW).double() for _ in range(2))


class Layers(nn.Module):
    """tanh(tanh(x A) B) C, with a module at each hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Tanh(), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x @ A) @ B) @ C


def moments(points: int = 20_000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """At the middle of each of many pieces: ∂f/∂y by the first layer's y, dy/dα, ∂f/∂z by the second's z, dz/dα."""
    alpha = ((torch.arange(points).double() + 0.5) / points)[:, None, None]
    y = torch.tanh((X0 + alpha * (X - X0)) @ A)  # (points, rows, 6)
    z = torch.tanh(y @ B)
    dy = (1 - y**2) * ((X - X0) @ A)
    dz = (1 - z**2) * (dy @ B)
    by_z = C[:, 1].expand_as(z)
    by_y = ((1 - z**2) * by_z) @ B.T
    return by_y, dy, by_z, dz


def explain(method: str, **options: Any) -> whence.Attribution:
    return whence.explain(Layers(), X, method=method, target=1, baseline=X0, **options)


RULES: list[dict[str, Any]] = [
    {"tolerance": 1e-6, "max_steps": 4096},
    {"steps": 64},
    {"rule": "midpoint", "steps": 4000},
]


@pytest.mark.parametrize("rule", RULES)
def test_conductance_of_two_layers(rule: dict[str, Any]) -> None:
    by_y, dy, by_z, dz = moments()
    for at, expected in (("one", (by_y * dy).mean(0)), ("two", (by_z * dz).mean(0))):
        a = explain("conductance", at=at, **rule)
        close(a.values, expected, 1e-5)
        assert float(a.gap.max()) < 1e-5
        close(a.values.sum(1), a.output_value - a.baseline_value, 1e-5)
    exact = C[:, 1] * (torch.tanh(torch.tanh(X @ A) @ B) - torch.tanh(torch.tanh(X0 @ A) @ B))  # f is linear in z
    close(explain("conductance", at="two", **rule).values, exact, 1e-5)


def test_internal_influence_of_two_layers() -> None:
    by_y, _, by_z, _ = moments()
    close(explain("internal_influence", at="one").values, by_y.mean(0), 1e-7)
    close(explain("internal_influence", at="two").values, by_z.mean(0), 1e-12)
    a = explain("internal_influence")
    close(a.values * (X - X0), explain("integrated_gradients", steps=50).values, 1e-12)
    assert a.gap is None


def test_conductance_through_a_unit_sums_to_the_units() -> None:
    by_y, _, _, _ = moments()
    points = len(by_y)
    alpha = ((torch.arange(points).double() + 0.5) / points)[:, None, None]
    slope = 1 - torch.tanh((X0 + alpha * (X - X0)) @ A) ** 2
    through = lambda j: (X - X0) * (by_y[..., j] * slope[..., j]).mean(0)[:, None] * A[:, j]  # noqa: E731
    a = explain("conductance", through=whence.neuron("one", 2), steps=64)
    close(a.values, through(2), 1e-6)
    close(a.values.sum(1), explain("conductance", at="one", steps=64).values[:, 2], 1e-9)
    assert a.gap is None
    several = explain("conductance", through=whence.neuron("one", slice(1, 4)), steps=64)
    close(several.values, through(1) + through(2) + through(3), 1e-6)
    whole = explain("conductance", through=whence.neuron("one", slice(None)), steps=64)
    close(whole.values, explain("integrated_gradients", steps=64).values, 1e-10)


def test_at_the_inputs_conductance_is_integrated_gradients() -> None:
    close(explain("conductance").values, explain("integrated_gradients").values, 1e-14)


def test_several_baselines_and_targets_are_taken_apart() -> None:
    options = {"target": torch.tensor([[0, 2]] * 3), "at": "one", "steps": 40}
    both = whence.explain(Layers(), X, method="conductance", baseline=[X0, 0.0], **options).values
    each = [whence.explain(Layers(), X, method="conductance", baseline=b, **options).values for b in (X0, 0.0)]
    close(both, (each[0] + each[1]) / 2, 1e-12)
    one = whence.explain(Layers(), X, method="conductance", baseline=0.0, target=2, at="one", steps=40).values
    close(each[1][:, 1], one, 1e-12)


@pytest.mark.parametrize("case", ["mlp_module", "residual_cnn", "bert_sdpa", "lstm"])
def test_every_kind_of_model_is_complete_inside(case: str) -> None:
    model, inputs = CASES[case].make()
    at = {"mlp_module": "3", "residual_cnn": "norm", "bert_sdpa": "bert.encoder.layer.0", "lstm": "rnn"}[case]
    a = whence.explain(model, inputs, method="conductance", at=at)
    assert float(a.gap.max()) < 0.011
    rows = {k: v[1:2] for k, v in inputs.items()} if isinstance(inputs, dict) else inputs[1:2]
    alone = whence.explain(model, rows, method="conductance", at=at)
    values, one = (v if isinstance(v, dict) else {"": v} for v in (a.values, alone.values))
    for name, value in values.items():
        close(value[1:2], one[name], 1e-6)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("act", [nn.ReLU, nn.Tanh])
def test_captum_gives_the_same(act: type[nn.Module]) -> None:
    captum = pytest.importorskip("captum.attr")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), act(), nn.Linear(6, 5), act(), nn.Linear(5, 3)).double()

    def mine(method: str, **options: Any) -> Tensor:
        return whence.explain(model, X, method=method, target=1, baseline=X0, **options).values

    theirs = captum.InternalInfluence(model, model[1]).attribute(X, X0, target=1, n_steps=30)
    close(mine("internal_influence", at="1", steps=30), theirs, 1e-6)
    theirs = captum.InternalInfluence(model, model[2]).attribute(X, X0, target=1, attribute_to_layer_input=True)
    close(mine("internal_influence", at="2@input", steps=50), theirs, 1e-6)
    for rule, name in (("gauss_legendre", "gausslegendre"), ("midpoint", "riemann_middle")):
        theirs = captum.NeuronConductance(model, model[1]).attribute(X, 2, X0, target=1, n_steps=30, method=name)
        close(mine("conductance", through=whence.neuron("1", 2), rule=rule, steps=30), theirs, 1e-6)
    theirs = captum.LayerConductance(model, model[3]).attribute(X, X0, target=1, n_steps=4000, method="riemann_middle")
    close(mine("conductance", at="3", tolerance=1e-4), theirs.detach(), 2e-3)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"through": 3}, "through=3 names no unit"),
    ({"through": whence.neuron("1", lambda y: y)}, "names no unit"),
    ({"through": whence.neuron("9", 0)}, "through='9' is not a module of the model"),
    ({"through": whence.neuron("1", 0), "at": "1"}, "through= explains the inputs, but at='1'"),
    ({"through": whence.neuron("1", 99)}, "is out of range"),
    ({"at": "1", "baseline": {"at": 0.0}}, "conductance moves the inputs, but the baseline has values for '1'"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_conducts_nothing_is_refused(options: dict[str, Any], message: str) -> None:
    model, x = CASES["mlp_module"].make()
    with pytest.raises(whence.WhenceError, match=message):
        whence.explain(model, x, method="conductance", target=1, **options)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_unit_below_a_module_and_a_unit_that_is_overwritten() -> None:
    model, x = CASES["mlp_module"].make()
    unit = whence.neuron("2", 3)  # what it gives is overwritten by the ReLU behind it
    inner = whence.explain(model, x, method="conductance", target=unit, at="0", steps=200)
    cut = whence.explain(model[:3], x, method="conductance", target=3, at="0", steps=200)
    close(inner.values, cut.values, 1e-12)
    a = whence.explain(model, x, method="conductance", target=1, through=unit, steps=50)
    whole = whence.explain(model, x, method="conductance", target=1, at="2", steps=50)
    close(a.values.sum(1), whole.values[:, 3], 1e-9)
