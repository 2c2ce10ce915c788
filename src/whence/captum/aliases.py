"""Captum's names of modules: `install()` lets `captum.attr` and its usual submodules mean this package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

_PARTS = """
    base gradients paths layers neurons perturbation features surrogates noise_tunnel relevance statistics embeddings
    data_loader interpretable language_models providers helpers metrics visualization
""".split()  # where names are looked up

SUBMODULES = {
    "_core": """
        dataloader_attr deep_lift feature_ablation feature_permutation gradient_shap guided_backprop_deconvnet
        guided_grad_cam input_x_gradient integrated_gradients kernel_shap lime llm_attr lrp noise_tunnel occlusion
        remote_provider saliency shapley_value layer layer.grad_cam layer.internal_influence layer.layer_activation
        layer.layer_conductance layer.layer_deep_lift layer.layer_feature_ablation layer.layer_feature_permutation
        layer.layer_gradient_shap layer.layer_gradient_x_activation layer.layer_integrated_gradients layer.layer_lrp
        neuron neuron.neuron_conductance neuron.neuron_deep_lift neuron.neuron_feature_ablation neuron.neuron_gradient
        neuron.neuron_gradient_shap neuron.neuron_guided_backprop_deconvnet neuron.neuron_integrated_gradients
    """.split(),
    "_utils": """
        approximation_methods attribution baselines batching class_summarizer common custom_modules
        input_layer_wrapper interpretable_input lrp_rules stat summarizer visualization
    """.split(),
    "_models": ["base"],
}

BESIDE = ("_utils", "_utils.common", "_utils.gradient", "_utils.models", "_utils.models.linear_model")  # of `captum`


class Alias(ModuleType):
    """A module of Captum's, whose names are looked up in all of this package."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            for part in _PARTS:
                module = importlib.import_module(f"whence.captum.{part}")
                if name in vars(module):
                    return vars(module)[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def register(package: str) -> None:
    """Make the submodules of a package of Captum's importable, such as "captum.attr._core"."""
    for name in SUBMODULES[package.rpartition(".")[2]]:
        full = f"{package}.{name}"
        if full in sys.modules:
            continue
        module = Alias(full)
        if "." not in name and any(other.startswith(f"{name}.") for other in SUBMODULES["_core"]):
            module.__path__ = []
        _put(module)


def _put(module: ModuleType) -> None:
    """Make a module importable, and an attribute of the one above it."""
    sys.modules[module.__name__] = module
    above, _, last = module.__name__.rpartition(".")
    if above in sys.modules:
        setattr(sys.modules[above], last, module)


def install() -> None:
    """Let `captum.attr` and `captum.metrics` be this package, also where Captum is not installed, for this process."""
    import whence.captum
    from whence.captum import metrics, visualization

    if "captum" not in sys.modules and importlib.util.find_spec("captum") is None:
        sys.modules["captum"] = ModuleType("captum")
        sys.modules["captum"].__path__ = []
        for name in BESIDE:
            beside = Alias(f"captum.{name}")
            beside.__path__ = []
            _put(beside)
    captum = importlib.import_module("captum")
    for name in [name for name in sys.modules if name.startswith(("captum.attr.", "captum.metrics."))]:
        del sys.modules[name]
    for name, module in {"attr": whence.captum, "metrics": metrics}.items():
        sys.modules[f"captum.{name}"] = module
        setattr(captum, name, module)
    sys.modules["captum.attr.visualization"] = visualization
    for package in SUBMODULES:
        importlib.import_module(f"captum.attr.{package}")
