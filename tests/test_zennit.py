"""LRP rules beside zennit's, on the plain networks which its hooks can follow."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.models import close
from tests.support.slow_lrp import COMPOSITES, Rules, slowly, written

RTOL = 1e-8

spec = importlib.util.find_spec("zennit")
if spec is None:
    pytest.skip("zennit is not installed (pip install --no-deps zennit)", allow_module_level=True)
# its __init__ imports torchvision, which must not be here; what is needed of it does not
sys.modules.setdefault("zennit", importlib.util.module_from_spec(spec))
rules = importlib.import_module("zennit.rules")
composites = importlib.import_module("zennit.composites")
types = importlib.import_module("zennit.types")


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.AvgPool2d(2),
        nn.ReLU(), nn.Flatten(), nn.Linear(24, 8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip


def strided() -> nn.Sequential:
    """Windows that overlap, strides, and a mean of what may be negative before the output."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.LeakyReLU(0.1), nn.MaxPool2d(3, 1, 1), nn.Conv2d(4, 5, 2),
        nn.AvgPool2d(3), nn.Flatten(), nn.Linear(5, 3),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "mlp": (mlp, (6,)),
    "cnn": (cnn, (2, 8, 8)),
    "strided": (strided, (2, 8, 8)),
}
TARGETS = [2, 0, 1, 1]
EVERY_MODEL = pytest.mark.parametrize("model", MODELS)


def built(name: str) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(12)
    build, shape = MODELS[name]
    return build().double().eval(), torch.randn(len(TARGETS), *shape).double() * 2


def by_zennit(model: nn.Sequential, x: Tensor, composite: Any, start: str = "one") -> Tensor:
    x = x.clone().requires_grad_()
    with composite.context(model):
        out = model(x)
        one = torch.nn.functional.one_hot(torch.tensor(TARGETS), out.shape[1]).to(out)
        (found,) = torch.autograd.grad(out, x, one if start == "one" else one * out.detach())
    return found


def by_whence(model: nn.Sequential, x: Tensor, composite: Any, **options: Any) -> Tensor:
    return whence.explain(model, x, method="lrp", target=TARGETS, composite=composite, **options).values


def every(rule: Any, first: Any = None, stabilizer: float = 1e-6) -> Any:
    """One rule for all ops with weights, perhaps another one for the first."""
    ops = [*composites.layer_map_base(stabilizer), (types.Linear, rule)]
    return composites.SpecialFirstLayerMapComposite(ops, [(types.Linear, first or rule)])


ONE_RULE: dict[str, tuple[Callable[[], Any], str, dict[str, float]]] = {
    "epsilon": (lambda: rules.Epsilon(), "epsilon", {}),
    "epsilon 0.1": (lambda: rules.Epsilon(0.1), "epsilon", {"epsilon": 0.1}),
    "gamma": (lambda: rules.Gamma(), "gamma", {}),
    "gamma 0": (lambda: rules.Gamma(0.0), "gamma", {"gamma": 0.0}),
    "gamma 1.5": (lambda: rules.Gamma(1.5), "gamma", {"gamma": 1.5}),
    "gamma 100": (lambda: rules.Gamma(100.0), "gamma", {"gamma": 100.0}),
    "alpha 2, beta 1": (lambda: rules.AlphaBeta(2.0, 1.0), "alpha_beta", {"alpha": 2.0, "beta": 1.0}),
    "alpha 1, beta 0": (lambda: rules.AlphaBeta(1.0, 0.0), "alpha_beta", {"alpha": 1.0, "beta": 0.0}),
    "z_plus": (lambda: rules.ZPlus(), "z_plus", {}),
    "z_plus, stabilizer": (lambda: rules.ZPlus(0.01), "z_plus", {"stabilizer": 0.01}),
}


@EVERY_MODEL
@pytest.mark.parametrize("start", ["one", "logit"])
@pytest.mark.parametrize("name", ONE_RULE)
def test_one_rule_everywhere(name: str, start: str, model: str) -> None:
    net, x = built(model)
    rule, composite, options = ONE_RULE[name]
    theirs = by_zennit(net, x, every(rule(), stabilizer=options.get("stabilizer", 1e-6)), start)
    close(slowly(written(net, Rules(composite, composite, options=options)), x, TARGETS, start), theirs, RTOL)
    close(by_whence(net, x, composite, start=start, **options), theirs, RTOL)
    rest = {key: options[key] for key in options if key == "stabilizer"}  # which is not a rule's own
    table = dict.fromkeys(("linear", "convolution"), (composite, {k: options[k] for k in options if k not in rest}))
    close(by_whence(net, x, table, start=start, **rest), theirs, RTOL)


FIRST: dict[str, tuple[Callable[[], Any], str, dict[str, float]]] = {
    "flat": (lambda: rules.Flat(), "flat", {}),
    "w_square": (lambda: rules.WSquare(), "w_square", {}),
    "z_box": (lambda: rules.ZBox(-9.0, 8.0), "z_box", {"low": -9.0, "high": 8.0}),
}


@EVERY_MODEL
@pytest.mark.parametrize("name", FIRST)
def test_rules_of_the_first_layer(name: str, model: str) -> None:
    net, x = built(model)
    rule, first, options = FIRST[name]
    theirs = by_zennit(net, x, every(rules.Gamma(), rule()))
    close(slowly(written(net, Rules("gamma", "gamma", first=first, options=options)), x, TARGETS), theirs, RTOL)
    close(by_whence(net, x, {"linear": "gamma", "convolution": "gamma", "first": (first, options)}), theirs, RTOL)


def test_a_box_of_each_rows_own_limits() -> None:
    net, x = built("cnn")
    low, high = (limit.view(-1, 1, 1, 1) for limit in (x.flatten(1).min(1).values, x.flatten(1).max(1).values))
    close(by_whence(net, x, "epsilon_gamma_box"), by_zennit(net, x, composites.EpsilonGammaBox(low, high)), RTOL)


NAMED: dict[str, tuple[Callable[[], Any], dict[str, float]]] = {
    "epsilon_plus": (lambda: composites.EpsilonPlus(), {}),
    "epsilon_plus_flat": (lambda: composites.EpsilonPlusFlat(), {}),
    "epsilon_alpha2_beta1": (lambda: composites.EpsilonAlpha2Beta1(), {}),
    "epsilon_alpha2_beta1_flat": (lambda: composites.EpsilonAlpha2Beta1Flat(), {}),
    "epsilon_gamma_box": (lambda: composites.EpsilonGammaBox(-9.0, 8.0), {"low": -9.0, "high": 8.0}),
}


@EVERY_MODEL
@pytest.mark.parametrize("name", NAMED)
def test_named_composites(name: str, model: str) -> None:
    net, x = built(model)
    composite, options = NAMED[name]
    theirs = by_zennit(net, x, composite())
    known = COMPOSITES[name]
    oracle = Rules(known.linear, known.convolution, known.first, known.first_convolution, options=options)
    close(slowly(written(net, oracle), x, TARGETS), theirs, RTOL)
    close(by_whence(net, x, name, **options), theirs, RTOL)


def test_norms_pass_relevance_on() -> None:
    torch.manual_seed(13)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 3),
    ).double().eval()  # fmt: skip
    norm = net[1]
    norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
    x = torch.randn(len(TARGETS), 2, 6, 6).double()
    close(by_whence(net, x, "epsilon_plus"), by_zennit(net, x, composites.EpsilonPlus()), RTOL)
