"""Where did that prediction come from? Attribution for unmodified PyTorch models."""

from whence.adapters.loading import load
from whence.adapters.wrapped import wrap
from whence.api import compare, explain, trace
from whence.attribution import Attribution
from whence.comparison import Comparison, Trace
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
from whence.evaluation.recommending import Recommendation, recommend
from whence.evaluation.run import evaluate
from whence.evaluation.scoreboard import Scoreboard
from whence.methods import method, methods
from whence.metrics import metric, metrics
from whence.properties import AxiomTable, axioms
from whence.references import neutral

__version__ = "0.1.0.dev0"

__all__ = [
    "Attribution",
    "AxiomTable",
    "BaselineError",
    "Call",
    "Comparison",
    "DivergedError",
    "FileError",
    "IndependentError",
    "InputError",
    "MethodError",
    "ModelError",
    "NoAttention",
    "NoRule",
    "ParameterError",
    "Recommendation",
    "RuleError",
    "Scoreboard",
    "TargetError",
    "Trace",
    "WhenceError",
    "WhenceWarning",
    "axioms",
    "compare",
    "derivative",
    "evaluate",
    "explain",
    "load",
    "method",
    "methods",
    "metric",
    "metrics",
    "neutral",
    "recommend",
    "trace",
    "wrap",
]
