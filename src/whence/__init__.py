"""Where did that prediction come from? Attribution for unmodified PyTorch models."""

# The names below are imported when they are first used: `whence --help` needs none of them, and torch takes a second.

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whence.adapters.answers import contrast, span
    from whence.adapters.load import load
    from whence.adapters.wrapped import wrap
    from whence.api import activations, compare, explain, trace
    from whence.engine.call import Call, derivative
    from whence.errors import (
        BaselineError,
        DivergedError,
        FileError,
        IndependentError,
        InputError,
        MethodError,
        ModelError,
        NoAttention,
        NoRule,
        ParameterError,
        RuleError,
        TargetError,
        WhenceError,
        WhenceWarning,
    )
    from whence.evaluation.axioms import AxiomTable, axioms
    from whence.evaluation.evaluate import evaluate
    from whence.evaluation.metrics import metric, metrics
    from whence.evaluation.own_values import infidelity, sensitivity_max
    from whence.evaluation.recommend import Recommendation, recommend
    from whence.evaluation.scoreboard import Scoreboard
    from whence.methods import method, methods
    from whence.results.attribution import Attribution
    from whence.results.comparison import Comparison
    from whence.results.trace import Trace
    from whence.runs.diff import Diff, diff
    from whence.runs.opened import Run, open
    from whence.runs.run import run
    from whence.runs.summary import Summary
    from whence.subject.named_baselines import neutral
    from whence.subject.neurons import neuron

__version__ = "1.0.0"

__all__ = [  # noqa: RUF022  (in four groups)
    # verbs
    "load", "wrap", "explain", "activations", "compare", "trace", "evaluate", "recommend", "axioms",
    "infidelity", "sensitivity_max", "run", "open", "diff",
    # results
    "Attribution", "Comparison", "Trace", "Scoreboard", "Recommendation", "AxiomTable", "Run", "Summary",
    "Diff",
    # extension points
    "method", "methods", "metric", "metrics", "Call", "derivative", "neutral", "neuron", "span", "contrast",
    # errors
    "WhenceError", "BaselineError", "DivergedError", "FileError", "IndependentError", "InputError", "MethodError",
    "ModelError", "NoAttention", "NoRule", "ParameterError", "RuleError", "TargetError", "WhenceWarning",
]  # fmt: skip

_MODULES = {  # where each name is defined; errors are in whence.errors, `methods` and `metrics` see below
    "load": "adapters.load", "wrap": "adapters.wrapped",
    "explain": "api", "activations": "api", "compare": "api", "trace": "api",
    "infidelity": "evaluation.own_values", "sensitivity_max": "evaluation.own_values",
    "evaluate": "evaluation.evaluate", "recommend": "evaluation.recommend", "axioms": "evaluation.axioms",
    "Attribution": "results.attribution", "Comparison": "results.comparison", "Trace": "results.trace",
    "Scoreboard": "evaluation.scoreboard", "Recommendation": "evaluation.recommend", "AxiomTable": "evaluation.axioms",
    "method": "methods", "metric": "evaluation.metrics",
    "Call": "engine.call", "derivative": "engine.call", "neutral": "subject.named_baselines",
    "neuron": "subject.neurons", "run": "runs.run", "open": "runs.opened", "Run": "runs.opened",
    "span": "adapters.answers", "contrast": "adapters.answers",
    "diff": "runs.diff", "Diff": "runs.diff", "Summary": "runs.summary",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name, or a module of the package, at its first use."""
    if name in __all__:
        value = getattr(importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
        globals()[name] = value
        return value
    missing = AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name.startswith("_"):
        raise missing
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise missing from None


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Front(ModuleType):
    """The package itself, in which `methods` and `metrics` are the registries and not the folders of those names."""

    @property
    def methods(self) -> Any:
        return importlib.import_module("whence.methods").methods

    @methods.setter
    def methods(self, folder: Any) -> None:
        """Python binds a folder to its name when it imports it."""

    @property
    def metrics(self) -> Any:
        return importlib.import_module("whence.evaluation.metrics").metrics

    @metrics.setter
    def metrics(self, folder: Any) -> None:
        """As above."""


sys.modules[__name__].__class__ = _Front
