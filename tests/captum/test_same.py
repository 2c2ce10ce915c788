"""Every class on tensors, tuples, several inputs, layers and neurons: Captum's shapes, and its numbers to 1e-6."""

from __future__ import annotations

import copy
from typing import Any

import captum.attr
import pytest
import torch
from captum.testing.attr.helpers.gen_test_utils import get_target_layer, parse_test_config
from captum.testing.attr.helpers.test_config import config
from torch import Tensor, nn

import whence.captum
from tests.support.captum import BOTH, check_same, draw, models
from tests.support.slow import mostly_slow

pytestmark = pytest.mark.filterwarnings("ignore")  # Captum's own, and random models whose parts cancel

X, Y, PICTURE, MANY = draw(2, 3), draw(2, 2), draw(2, 1, 6, 6), draw(4, 3)
MASK = torch.tensor([[0, 0, 1]])
SCALE = torch.tensor([[1.0], [2.0]])
GRADIENTS = "Saliency InputXGradient GuidedBackprop Deconvolution IntegratedGradients DeepLift".split()
LAYERS = """
    LayerGradientXActivation LayerGradCam LayerIntegratedGradients LayerConductance InternalInfluence LayerDeepLift
    LayerFeatureAblation
""".split()
NEURONS = """
    NeuronGradient NeuronGuidedBackprop NeuronDeconvolution NeuronDeepLift NeuronIntegratedGradients
    NeuronFeatureAblation
""".split()
METHODS = "riemann_left riemann_right riemann_middle riemann_trapezoid gausslegendre".split()
Case = tuple[str, str, str | None, tuple[Any, ...], dict[str, Any]]  # class, model, layer, arguments, keywords


def inputs_by_gradients() -> list[Case]:
    cases: list[Case] = []
    for name in GRADIENTS:
        cases += [
            (name, "dense", None, (X,), {"target": 1}),
            (name, "dense", None, ((X,),), {"target": torch.tensor([0, 1])}),
            (name, "dense", None, (X.double().float(),), {"target": [(0,), (1,)]}),
            (name, "two", None, ((X, Y),), {"target": [0, 1]}),
            (name, "two", None, ((X, Y),), {"target": (1,), "additional_forward_args": SCALE}),
            (name, "two", None, ((X, Y),), {"target": 0, "additional_forward_args": (2.5, "word")}),
        ]
        if name != "DeepLift":  # max-pooling shares differently: see whence.captum.differences
            cases.append((name, "pictures", None, (PICTURE,), {"target": torch.tensor(1)}))
    for method in METHODS:
        options = {"target": 1, "n_steps": 7, "method": method, "return_convergence_delta": True}
        cases.append(("IntegratedGradients", "dense", None, (X, draw(2, 3) + 1), options))
        for rows in (0, 4):
            sized = {**options, "internal_batch_size": rows}
            cases.append(("IntegratedGradients", "two", None, ((X, Y), (0, Y[:1])), sized))
    cases += [
        ("Saliency", "dense", None, (X,), {"target": 1, "abs": False}),
        ("DeepLift", "dense", None, (X, MANY[:1]), {"target": 1, "return_convergence_delta": True}),
        ("DeepLift", "dense", None, (X,), {"target": 1, "custom_attribution_func": lambda m, x, b: m}),
        ("DeepLiftShap", "dense", None, (X, MANY), {"target": 1, "return_convergence_delta": True}),
        ("DeepLiftShap", "two", None, ((X, Y), (MANY, draw(4, 2))), {"target": [0, 1]}),
        ("DeepLiftShap", "dense", None, (X, lambda: MANY), {"target": 1}),
        ("LRP", "dense", None, (X,), {"target": 1, "return_convergence_delta": True}),
        ("LRP", "pictures", None, (PICTURE,), {"target": 1}),
        ("GuidedGradCam", "pictures", "conv", (PICTURE,), {"target": 1}),
        ("GuidedGradCam", "pictures", "relu", (PICTURE,), {"target": 1, "interpolate_mode": "bilinear"}),
    ]
    return cases


def layers_and_neurons() -> list[Case]:
    cases: list[Case] = [
        ("LayerActivation", "dense", "0", (X,), {}),
        ("LayerActivation", "pairs", "pair", (X,), {}),
        ("LayerActivation", "pairs", "pair", (X,), {"attribute_to_layer_input": True}),
        ("LayerDeepLiftShap", "dense", "0", (X, MANY), {"target": 1, "return_convergence_delta": True}),
        ("LayerLRP", "dense", "0", (X,), {"target": 1, "return_convergence_delta": True}),
        ("LayerLRP", "pictures", "pool", (PICTURE,), {"target": 1, "attribute_to_layer_input": True}),
        ("LayerConductance", "dense", "0", (X,), {"target": 1, "n_steps": 9, "return_convergence_delta": True}),
        ("LayerIntegratedGradients", "two", "a", ((X, Y),), {"target": 1, "return_convergence_delta": True}),
        ("NeuronDeepLiftShap", "dense", "0", (X, 1, MANY), {}),
        ("NeuronConductance", "two", "relu", ((X, Y), 2), {"target": [0, 1], "internal_batch_size": 4}),
        ("NeuronGradient", "dense", "0", (X, (slice(0, 2),)), {}),
        ("NeuronGradient", "dense", "0", (X, [1]), {}),
        ("NeuronConductance", "pictures", "conv", (PICTURE, (0, slice(0, 2), slice(1, 3))), {"target": 1}),
        ("NeuronGradient", "pairs", "pair", (X, lambda both: both[0].sum(1) + both[1][:, 0]), {}),
    ]
    for name in LAYERS:
        few = {} if name in ("LayerGradientXActivation", "LayerGradCam", "LayerDeepLift") else {"n_steps": 6}
        few = {} if name == "LayerFeatureAblation" else few
        cases += [
            (name, "dense", "0", (X,), {"target": 1, **few}),
            (name, "dense", "2", ((X,),), {"target": [0, 1], "attribute_to_layer_input": True, **few}),
            (name, "two", "relu", ((X, Y),), {"target": 1, "additional_forward_args": SCALE, **few}),
            (name, "pictures", "relu", (PICTURE,), {"target": 1, **few}),
        ]
        if name != "LayerDeepLift":  # Captum knows the layer's relu by its module alone
            cases.append((name, "pairs", "pair", (X,), {"target": 1, **few}))
    for name in NEURONS:
        cases += [
            (name, "dense", "0", (X, 1), {}),
            (name, "dense", "2", (X, (1,)), {"attribute_to_neuron_input": True}),
            (name, "two", "relu", ((X, Y), lambda values: values.sum(1)), {}),
            (name, "pictures", "relu", (PICTURE, (0, 1, 2)), {}),
        ]
    for method in METHODS:
        options = {"n_steps": 7, "method": method}
        cases += [(name, "dense", "0", (X, X + 1), {"target": 1, **options}) for name in LAYERS[2:5]]
        cases.append(("NeuronConductance", "dense", "0", (X, 2), {"target": 1, **options}))
        cases.append(("NeuronIntegratedGradients", "dense", "0", (X, 2), options))
    return cases


def perturbations() -> list[Case]:
    cases: list[Case] = []
    both = {"target": 1, "feature_mask": (MASK, torch.tensor([[1, 2]]))}
    for name in ("FeatureAblation", "ShapleyValues"):
        cases += [
            (name, "dense", None, (X,), {"target": 1}),
            (name, "dense", None, (X,), {}),
            (name, "dense", None, ((X,),), {"target": [0, 1], "baselines": X + 1, "perturbations_per_eval": 3}),
            (name, "dense", None, (X,), {"target": 1, "feature_mask": MASK}),
            (name, "two", None, ((X, Y),), both),
            (name, "sum", None, (X,), {}),
            (name, "number", None, (X,), {}),
        ]
    cases += [
        ("FeatureAblation", "dense", None, (X,), {"target": 0, "feature_mask": torch.tensor([[0, 0, 1], [1, 0, 2]])}),
        ("FeatureAblation", "dense", None, (X,), {"target": 0, "baselines": X.mean(0)}),
        ("FeatureAblation", "whole", None, (torch.arange(6).view(2, 3),), {}),
        ("FeatureAblation", "whole", None, (X > 0,), {"baselines": True}),
        ("FeatureAblation", "lengths", None, ((X, torch.empty(2, 0)),), {}),
        ("Occlusion", "dense", None, (X,), {"sliding_window_shapes": (2,), "target": 1}),
        (
            "Occlusion",
            "two",
            None,
            ((X, Y),),
            {"sliding_window_shapes": ((2,), (1,)), "strides": (2, (1,)), "target": 1},
        ),
        ("Occlusion", "pictures", None, (PICTURE, (1, 3, 2), (1, 2, 1)), {"target": 1, "perturbations_per_eval": 4}),
        ("FeaturePermutation", "dense", None, (X,), {"target": 1}),  # two rows have one other order
        ("FeaturePermutation", "two", None, ((X, Y),), both),
        ("Lime", "dense", None, (X,), {"target": 1, "n_samples": 40}),
        ("Lime", "two", None, ((X[:1], Y[:1]),), {**both, "n_samples": 40, "perturbations_per_eval": 3}),
        ("Lime", "dense", None, (X,), {"target": 0, "n_samples": 40, "return_input_shape": False}),
        ("Lime", "sum", None, (X,), {"n_samples": 40}),
    ]
    return cases


FUNCTIONS: dict[str, Any] = {
    "sum": lambda model: lambda x: model(x).sum(),
    "number": lambda model: lambda x: model(x).sum().item(),
    "whole": lambda model: lambda x: x.float().sum(1),
    "lengths": lambda model: lambda x, y: x.sum(1) + y.sum(1),
}


def answer(package: Any, case: Case) -> Any:
    name, model, layer, args, options = case
    made = models()
    function = FUNCTIONS[model](made["dense"]) if model in FUNCTIONS else made[model]
    constructed = (function,) if layer is None else (function, function.get_submodule(layer))
    torch.manual_seed(1)
    return getattr(package, name)(*constructed).attribute(*copy.deepcopy(args), **options)


EVERY = [*inputs_by_gradients(), *layers_and_neurons(), *perturbations()]


@pytest.mark.parametrize("case", EVERY, ids=lambda case: f"{case[0]}-{case[1]}")
def test_same_numbers(case: Case) -> None:
    theirs, ours = (answer(package, case) for package in BOTH)
    check_same(ours, theirs)


RANDOM = "ShapleyValueSampling KernelShap GradientShap LayerGradientShap NeuronGradientShap Lime".split()
OWN = ("LRP",)  # of products and sums: see whence.captum.differences


@pytest.mark.parametrize("case", mostly_slow(config, config[::6]), ids=lambda case: case["name"])
def test_captums_own_table_of_calls(case: dict[str, Any]) -> None:
    algorithms, model, args, layer, noise, _ = parse_test_config(case)
    model.eval()
    for algorithm in algorithms:
        found = []
        for package in BOTH:
            torch.manual_seed(0)
            made = (model,) if layer is None else (model, get_target_layer(model, layer))
            method = getattr(package, algorithm.__name__)(*made)
            found.append((package.NoiseTunnel(method) if noise else method).attribute(**args))
        loose = algorithm.__name__ in (*RANDOM, *OWN)
        check_same(found[1], found[0], None if loose else 1e-5 if noise else 2e-6)


@pytest.mark.slow
def test_random_methods_come_to_the_same_mean() -> None:
    dense = models()["dense"]
    baselines = {"baselines": MANY, "n_samples": 4000, "target": 1}
    for name, options in {"GradientShap": baselines, "ShapleyValueSampling": {"n_samples": 2000, "target": 1},
                          "KernelShap": {"n_samples": 3000, "target": 1}}.items():  # fmt: skip
        torch.manual_seed(0)
        theirs, ours = (getattr(package, name)(dense).attribute(X, **options) for package in BOTH)
        assert float((ours - theirs).abs().max()) < 0.02, name


@pytest.mark.parametrize("at_once", [None, 3])
@pytest.mark.parametrize("kind", ["smoothgrad", "smoothgrad_sq", "vargrad"])
def test_noise_tunnel_draws_as_captum(kind: str, at_once: int | None) -> None:
    found = []
    for package in BOTH:
        torch.manual_seed(0)
        tunnel = package.NoiseTunnel(package.IntegratedGradients(models()["two"]))
        found.append(
            tunnel.attribute(
                (X, Y),
                nt_type=kind,
                nt_samples=4,
                nt_samples_batch_size=at_once,
                stdevs=(0.1, 0.2),
                target=[0, 1],
                n_steps=5,
                return_convergence_delta=True,
            )
        )
    check_same(found[1], found[0])
    assert found[1][1].shape == (8,)


@pytest.mark.parametrize("name", ["Saliency", "IntegratedGradients", "DeepLift", "LRP", "FeatureAblation"])
def test_what_is_not_random_draws_nothing(name: str) -> None:
    dense, before = models()["dense"], torch.get_rng_state()
    getattr(whence.captum, name)(dense).attribute(X, target=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_lists_of_layers() -> None:
    dense = models()["dense"]
    for name in ("LayerActivation", "LayerGradientXActivation", "LayerLRP"):
        layers = [dense[0], dense[2]]
        options = {} if name == "LayerActivation" else {"target": 1}
        theirs, ours = (getattr(package, name)(dense, layers).attribute(X, **options) for package in BOTH)
        check_same(ours, theirs)
    two = models()["two"]
    theirs, ours = (
        package.LayerIntegratedGradients(two, [two.a, two.b]).attribute((X, Y), target=1, n_steps=5) for package in BOTH
    )
    check_same(ours, theirs)


def test_layers_that_are_not_used_have_zeros_where_that_is_allowed() -> None:
    dense = models()["dense"]

    def function(x: Tensor) -> Tensor:
        dense[0](x)
        return (x @ dense[0].weight.T).sum(1)

    for name in ("LayerGradientXActivation", "LayerIntegratedGradients", "InternalInfluence"):
        theirs, ours = (
            getattr(package, name)(function, dense[0]).attribute(X, grad_kwargs={"materialize_grads": True})
            for package in BOTH
        )
        check_same(ours, theirs)


def test_embeddings_and_their_references() -> None:
    from captum.testing.helpers.basic_models import BasicEmbeddingModel

    model = BasicEmbeddingModel().eval()
    ids = (torch.tensor([[3, 1, 0], [4, 2, 1]]), torch.tensor([[1, 2, 3], [0, 2, 1]]))
    for name in ("LayerDeepLift", "LayerIntegratedGradients", "LayerFeatureAblation"):
        theirs, ours = (getattr(package, name)(model, model.embedding1).attribute(ids) for package in BOTH)
        check_same(ours, theirs)


def test_deltas_of_values_from_elsewhere() -> None:
    dense, values = models()["dense"], draw(2, 3)
    theirs, ours = (
        package.IntegratedGradients(dense).compute_convergence_delta(values, 0, X, target=1) for package in BOTH
    )
    check_same(ours, theirs)


def test_batch_norm_differs_by_its_shift_alone() -> None:
    from captum.attr._utils.lrp_rules import IdentityRule

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.last = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Linear(48, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.norm(self.conv(x)).flatten(1))

    torch.manual_seed(0)
    model = Normed().eval()
    norm = model.norm
    for value in (norm.running_mean, norm.weight.data, norm.bias.data):
        value.normal_()

    def apart() -> float:
        theirs, ours = (package.LRP(model).attribute(PICTURE, target=1) for package in BOTH)
        return float((ours - theirs).abs().max() / theirs.abs().max())

    assert apart() > 0.1
    norm.rule = IdentityRule()
    theirs = captum.attr.LRP(model).attribute(PICTURE, target=1)  # which removes the rule
    torch.testing.assert_close(whence.captum.LRP(model).attribute(PICTURE, target=1), theirs.detach())
    norm.bias.data = norm.running_mean * norm.weight.data / (norm.running_var + norm.eps).sqrt()
    assert apart() < 1e-5


def test_at_a_rectifiers_input_captum_takes_its_gradient() -> None:
    dense = models()["dense"]
    other = X.flip(1) - 0.5
    theirs, ours = (
        package.LayerDeepLift(dense, dense[1]).attribute(X, other, target=1, attribute_to_layer_input=True)
        for package in BOTH
    )
    x, start = (dense[0](value).detach() for value in (X, other))
    weight = dense[2].weight.detach()[1]
    torch.testing.assert_close(theirs.detach(), weight * (x > 0) * (x - start))
    torch.testing.assert_close(ours, weight * (x.relu() - start.relu()))
    assert float((ours - theirs).abs().max()) > 0.01


def test_distributions_of_different_lengths() -> None:
    for package in BOTH:
        found = package.GradientShap(models()["two"]).attribute((X, Y), (MANY, Y[:1].repeat(9, 1)), 20, target=1)
        assert [value.shape for value in found] == [X.shape, Y.shape]


def test_rules_on_modules() -> None:
    from captum.attr._utils import lrp_rules

    from whence.captum import relevance

    found: list[Tensor] = []
    for package, rules in ((captum.attr, lrp_rules), (whence.captum, relevance)):
        model = models()["pictures"]
        model.conv.rule, model.last.rule = rules.Alpha1_Beta0_Rule(), rules.EpsilonRule(1e-3)
        found.append(package.LRP(model).attribute(PICTURE.abs(), target=1))
    torch.testing.assert_close(found[1], found[0].detach(), rtol=1e-3, atol=1e-5)
