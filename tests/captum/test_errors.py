"""Calls that Captum refuses are refused with an error of the same kind; states are as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import whence.captum
from tests.support.captum import BOTH, check_same, draw, models

pytestmark = pytest.mark.filterwarnings("ignore")
X = draw(2, 3)


def _neuron(package: Any) -> Any:
    """A neuron's gradient in the model of pictures."""
    model = models()["pictures"]
    return package.NeuronGradient(model, model.conv)


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "a list of inputs": lambda c, m: c.Saliency(m).attribute([X], target=0),
    "no target": lambda c, m: c.Saliency(m).attribute(X),
    "no such class": lambda c, m: c.InputXGradient(m).attribute(X, target=7),
    "too deep a target": lambda c, m: c.Saliency(m).attribute(X, target=(0, 1)),
    "too few targets": lambda c, m: c.Saliency(m).attribute(X, target=[0]),
    "too many targets": lambda c, m: c.IntegratedGradients(m).attribute(X, target=torch.tensor([0, 1, 1])),
    "targets in two dimensions": lambda c, m: c.Saliency(m).attribute(X, target=torch.tensor([[0], [1]])),
    "a target by name": lambda c, m: c.Saliency(m).attribute(X, target="cat"),
    "floating targets": lambda c, m: c.Saliency(m).attribute(X, target=[0.5, 1.0]),
    "one step": lambda c, m: c.IntegratedGradients(m).attribute(X, target=0, method="riemann_left", n_steps=1),
    "half a step": lambda c, m: c.IntegratedGradients(m).attribute(X, target=0, n_steps=2.5),
    "a layer that is none": lambda c, m: c.LayerGradCam(m, None).attribute(X, target=0),
    "a mask of another shape": lambda c, m: c.ShapleyValues(m).attribute(
        X, target=0, feature_mask=torch.zeros(1, 5, dtype=torch.long)
    ),
    "no such rule": lambda c, m: c.IntegratedGradients(m).attribute(X, target=0, method="simpson"),
    "baselines of other rows": lambda c, m: c.IntegratedGradients(m).attribute(X, torch.zeros(3, 3), target=0),
    "too many baselines": lambda c, m: c.IntegratedGradients(m).attribute(X, (0, 0), target=0),
    "one baseline is no distribution": lambda c, m: c.DeepLiftShap(m).attribute(X, X[:1], target=0),
    "a future": lambda c, m: c.Saliency(m).attribute_future(),
    "a future of a plain function": lambda c, m: c.FeatureAblation(m).attribute_future(X, target=0),
    "too deep a neuron": lambda c, m: c.NeuronGradient(m, m[0]).attribute(X, (0, 1)),
    "too few indices of a neuron": lambda c, m: _neuron(c).attribute(draw(2, 1, 6, 6), (0, 1)),
    "a layer that is not used": lambda c, m: c.LayerGradientXActivation(
        lambda x: (m[0](x), x.sum(1))[1], m[0]
    ).attribute(X),
    "no such neuron": lambda c, m: c.NeuronGradient(m, m[0]).attribute(X, 9),
    "a neuron by name": lambda c, m: c.NeuronGradient(m, m[0]).attribute(X, "f"),
    "several neurons": lambda c, m: c.NeuronGradient(m, m[0]).attribute(X, lambda values: values),
    "no such noise": lambda c, m: c.NoiseTunnel(c.Saliency(m)).attribute(X, nt_type="pink", target=0),
    "one number in batches": lambda c, m: c.FeatureAblation(lambda x: m(x).sum()).attribute(
        X, perturbations_per_eval=2
    ),
    "no perturbations": lambda c, m: c.FeatureAblation(m).attribute(X, target=0, perturbations_per_eval=0),
    "no output": lambda c, m: c.FeatureAblation(lambda x: None).attribute(X),
    "several scores": lambda c, m: c.KernelShap(m).attribute(X),
    "too large a window": lambda c, m: c.Occlusion(m).attribute(X, (9,), target=0),
    "too large a stride": lambda c, m: c.Occlusion(m).attribute(X, (2,), 3, target=0),
    "too many sides": lambda c, m: c.Occlusion(m).attribute(X, (2, 2), target=0),
    "a window that is a number": lambda c, m: c.Occlusion(m).attribute(X, 2, target=0),
    "a function and not a module": lambda c, m: c.GuidedBackprop(lambda x: x),
    "no such target of a language model": lambda c, m: c.LLMAttribution(c.FeatureAblation(m), None, attr_target="x"),
    "a gradient for a language model": lambda c, m: c.LLMAttribution(c.Saliency(m), None),
    "baselines of another form": lambda c, m: c.TextTemplateInput("{}", ["a"], baselines={"a": "b"}),
    "configured twice": lambda c, m: [c.configure_interpretable_embedding_layer(m, "0") for _ in range(2)],
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_same_kind_of_error(what: str) -> None:
    kinds = []
    for package in BOTH:
        with pytest.raises(Exception) as caught:  # noqa: PT011  (the kinds are compared)
            REFUSED[what](package, models()["dense"])
        kinds.append(caught.type)
    assert kinds[0] is kinds[1]


UNCLEAR: dict[str, tuple[Callable[[Any, Any], Any], str]] = {  # Captum's errors come from somewhere else, or never
    "no inputs": (lambda c, m: c.Saliency(m).attribute((), target=0), "empty tuple"),
    "a dict as output": (lambda c, m: c.Saliency(lambda x: {"logits": m(x)}).attribute(X, target=0), "picks one"),
    "a list as layer": (lambda c, m: c.LayerConductance(m, [m[0]]).attribute(X, target=0), "Give an nn.Module"),
    "no stride": (lambda c, m: c.Occlusion(m).attribute(X, (2,), (0,), target=0), "below 1"),
    "no noise": (lambda c, m: c.NoiseTunnel(c.Saliency(m)).attribute(X, nt_samples=0, target=0), "nt_samples=0"),
    "samples backwards": (lambda c, m: c.Lime(m).attribute(X, target=0, perturbations_per_eval=-1), "at least 1"),
}


@pytest.mark.parametrize("what", UNCLEAR)
def test_errors_say_the_fact_and_the_way_out(what: str) -> None:
    call, says = UNCLEAR[what]
    with pytest.raises((AssertionError, TypeError), match=says):
        call(whence.captum, models()["dense"])


TRAINED = {
    "IntegratedGradients": {"return_convergence_delta": True}, "DeepLift": {"return_convergence_delta": True},
    "LRP": {}, "FeatureAblation": {}, "Occlusion": {"sliding_window_shapes": (1,)}, "ShapleyValues": {}, "Lime": {},
    "LayerDeepLift": {}, "LayerConductance": {}, "LayerFeatureAblation": {}, "LayerActivation": {},
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_models_in_train_mode_are_explained_in_eval_mode_and_not_trained(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    options = TRAINED[name] | ({} if name == "LayerActivation" else {"target": 1})
    found = []
    for mode in (True, False):
        made = getattr(whence.captum, name)(model.train(mode), *([model[2]] if name.startswith("Layer") else []))
        torch.manual_seed(1)
        found.append(made.attribute(X, **options))
        assert model[1].training is mode
    check_same(found[0], found[1], 0.0)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_errors_of_a_model_are_its_own() -> None:
    class Cross(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("by the model")

    for name in ("Saliency", "IntegratedGradients", "FeatureAblation"):
        with pytest.raises(ZeroDivisionError, match="by the model"):
            getattr(whence.captum, name)(Cross()).attribute(X)


def test_what_has_no_counterpart_names_the_nearest_thing() -> None:
    with pytest.raises(NotImplementedError, match=r"(?s)no connection.*RemoteLLMProvider"):
        whence.captum.VLLMProvider("address")
    with pytest.raises(NotImplementedError, match="use attribute"):
        whence.captum.IntegratedGradients(models()["dense"]).attribute_future()


@pytest.mark.parametrize("wrong", [False, True])
def test_models_and_inputs_are_as_before(wrong: bool) -> None:
    model = models()["pictures"].train()
    x, other = draw(2, 1, 6, 6).requires_grad_(), draw(2, 1, 6, 6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    target = 7 if wrong else 1
    for made in (
        whence.captum.Saliency(model), whence.captum.DeepLift(model), whence.captum.GuidedBackprop(model),
        whence.captum.LayerGradCam(model, model.conv), whence.captum.LayerDeepLift(model, model.relu),
        whence.captum.FeatureAblation(model), whence.captum.LRP(model),
    ):  # fmt: skip
        for given in (x, other):
            try:
                made.attribute(given, target=target)
            except IndexError:
                assert wrong
            else:
                assert not wrong
    assert x.requires_grad
    assert not other.requires_grad
    assert x.grad is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]
    assert sum(hooks) == 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_values_within_tuples_are_refused_not_dropped() -> None:
    """An LSTM gives its states in a tuple of their own; Captum raises too."""

    class Last(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(3, 4, batch_first=True)
            self.out = torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.lstm(x)[0][:, -1])

    model, x = Last().eval(), torch.randn(2, 5, 3)
    for name in ("LayerActivation", "LayerGradientXActivation", "LayerIntegratedGradients"):
        method = getattr(whence.captum, name)(model, model.lstm)
        with pytest.raises(AssertionError, match="within tuples"):
            method.attribute(x) if name == "LayerActivation" else method.attribute(x, target=0)
