"""Names and signatures are Captum's; scripts that import Captum's modules find this package after `install()`."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import captum.attr
import captum.metrics
import pytest

import whence.captum
from whence.captum.differences import DIFFERENCES

NAMES = [name for name in dir(captum.attr) if not name.startswith("_")]
LITERAL = (int, float, str, bool, tuple, type(None))


def parameters(function: Any) -> list[tuple[Any, ...]]:
    """Names, kinds and literal defaults of a function's parameters."""
    return [
        (p.name, p.kind, p.default if isinstance(p.default, LITERAL) else p.default is inspect.Parameter.empty)
        for p in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_captums_signatures(name: str) -> None:
    theirs, ours = getattr(captum.attr, name), getattr(whence.captum, name)
    if inspect.isfunction(theirs):
        assert parameters(ours) == parameters(theirs)
    if not inspect.isclass(theirs):
        return
    above = {base.__name__ for base in ours.__mro__}
    assert {base.__name__ for base in theirs.__mro__} - {"Generic", "ABC"} <= above
    for member in ("__init__", "attribute", "compute_convergence_delta", "interpolate", "update", "get"):
        function = getattr(theirs, member, None)
        if inspect.isfunction(function) or inspect.ismethod(function):
            assert parameters(getattr(ours, member)) == parameters(function), member
    if hasattr(theirs, "get_name"):
        assert ours.get_name() == theirs.get_name()


def test_metrics_have_captums_signatures() -> None:
    for name in ("infidelity", "sensitivity_max"):
        assert parameters(getattr(whence.captum, name)) == parameters(getattr(captum.metrics, name))


def test_facts_about_methods() -> None:
    model = __import__("torch").nn.Linear(2, 2)
    for name in "IntegratedGradients Saliency DeepLift InputXGradient FeatureAblation GradientShap LRP Lime".split():
        ours, theirs = (getattr(package, name)(model) for package in (whence.captum, captum.attr))
        assert ours.has_convergence_delta() == theirs.has_convergence_delta(), name
        assert ours.multiplies_by_inputs == theirs.multiplies_by_inputs, name
    assert not whence.captum.IntegratedGradients(model, multiply_by_inputs=False).multiplies_by_inputs


SCRIPT = """if True:
    import sys
    {before}
    import captum.attr
    from captum.attr import IntegratedGradients, visualization
    from captum.attr._core.deep_lift import DeepLift
    from captum.attr._core.layer.layer_integrated_gradients import LayerIntegratedGradients
    from captum.attr._core.neuron.neuron_gradient import NeuronGradient
    from captum.attr._models.base import configure_interpretable_embedding_layer, _get_deep_layer_name
    from captum.attr._utils.approximation_methods import approximation_parameters
    from captum.attr._utils.attribution import GradientAttribution
    from captum.attr._utils.common import _format_input_baseline
    from captum.attr._utils.lrp_rules import EpsilonRule
    from captum.attr._utils.stat import Max
    import whence.captum
    assert captum.attr is whence.captum and DeepLift is whence.captum.DeepLift
    assert issubclass(LayerIntegratedGradients, GradientAttribution)
    {after}
"""


def run(before: str, after: str = "pass") -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(before=before, after=after)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # three processes; without Captum stays in make test
def test_captums_modules_mean_this_package() -> None:
    run("import whence.captum; whence.captum.install()", "from captum.metrics import infidelity; assert "
        "infidelity is whence.captum.infidelity")  # fmt: skip
    run("import whence.captum; sys.modules['captum.attr'] = whence.captum")


def test_it_works_without_captum() -> None:
    hidden = "sys.modules.pop('captum', None); import importlib.util as u; found = u.find_spec; " \
        "u.find_spec = lambda name, *more: None if name == 'captum' else found(name, *more)"  # fmt: skip
    run(f"{hidden}; import whence.captum; whence.captum.install()", "assert captum.attr.__name__ == 'whence.captum'")
    run(f"{hidden}; import whence.captum; whence.captum.install()", "from captum._utils.models.linear_model import "
        "SkLearnLasso; assert SkLearnLasso is whence.captum.surrogates.SkLearnLasso")  # fmt: skip


def test_captum_is_not_imported() -> None:
    code = "import sys, whence.captum; assert 'captum' not in sys.modules and 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_differences_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    whence.captum.differences()
    printed = capsys.readouterr().out
    for where, here, there in DIFFERENCES:
        assert where in printed
        assert here.endswith(".")
        assert there.endswith(".")
