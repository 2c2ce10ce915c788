"""What a run does with each row: the model by its name, the methods, the options; the same for every worker."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from whence.adapters.options import Options, by_method, check_options
from whence.errors import MethodError, ParameterError
from whence.evaluation.data import named
from whence.util.checks import check_choice, check_count, is_whole, not_allowed

BATCH = 32  # rows that are explained together, unless batch_size says otherwise
_OPTIONS = {one.name for one in fields(Options)} - {"method", "params", "progress", "names", "batch_size"}


@dataclass(frozen=True)
class Job:
    """All that a worker has to know."""

    model: str
    methods: Mapping[str, Mapping[str, Any]]  # by the name of its columns: the method and its parameters
    options: Mapping[str, Any] = field(default_factory=dict)  # of `explain`
    metrics: Any = None
    columns: Mapping[str, str] = field(default_factory=dict)
    task: str | None = None
    long: str = "error"
    batch_size: int | None = None
    dtype: str = "float32"  # of the values in the files

    def packed(self) -> str:
        """As text, for a worker elsewhere."""
        text = repr(asdict(self))
        try:
            same = ast.literal_eval(text) == asdict(self)
        except (ValueError, SyntaxError, TypeError, RuntimeError):  # RuntimeError: a tensor is neither true nor false
            same = False
        if not same:
            raise ParameterError(
                "Workers get options as plain values: numbers, texts, and lists and dicts of them.\n"
                f'  Leave the others out ({_odd(self)}), or run with executor="inline".'
            )
        return text


def unpacked(text: str) -> Job:
    return Job(**ast.literal_eval(text))


def _odd(job: Job) -> str:
    """The options that are not plain."""
    return ", ".join(name for name, value in job.options.items() if not _is_plain(value)) or "parameters of methods"


def _is_plain(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, RuntimeError):
        return False


def job_of(model: str, methods: Any, options: Mapping[str, Any], **settings: Any) -> Job:
    """A job, everything checked that can be checked without the model."""
    wanted = _methods(methods, {name: value for name, value in options.items() if name not in _OPTIONS})
    own = {name: value for name, value in options.items() if name in _OPTIONS and not _is_default(name, value)}
    for label, method in wanted.items():
        asked, entry = by_method(Options(**own, params=method["params"]), method["method"])
        check_options(asked, entry.facts)
        if not label or "/" in label:
            raise MethodError(f"{label!r} cannot be the name of a column.\n  Name the method without a slash.")
    _check_target(own.get("target"))
    if isinstance(own.get("at"), list | tuple):
        raise ParameterError("A run explains one module, but at= is a list.\n  Run for each of them.")
    if not is_whole(own.get("seed", 0)):
        raise not_allowed("seed", own["seed"], "a whole number")
    if own.get("keep"):
        raise ParameterError("A run stores values and no intermediate ones.\n  Leave keep= out.")
    if settings.get("batch_size") is not None:
        check_count("batch_size", settings["batch_size"])
    check_choice("dtype", settings.get("dtype", "float32"), ("float32", "float16"))
    check_choice("long", settings.get("long", "error"), ("error", "truncate", "window"))
    if settings.get("metrics") is not None:
        _check_metrics(settings["metrics"])
    return Job(model, wanted, own, **settings)


def _is_default(name: str, value: Any) -> bool:
    default = next(one.default for one in fields(Options) if one.name == name)
    return value is default or (isinstance(value, str | int) and type(value) is type(default) and value == default)


def _methods(given: Any, shared: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each method with its parameters: its own, and those which were given for all."""
    found: dict[str, dict[str, Any]] = {}
    for label, params in named(given, "method", MethodError).items():
        own = dict(params)
        method = own.pop("method", label)
        found[label] = {"method": method, "params": {**shared, **own}}
    return found


def _check_target(target: Any) -> None:
    if isinstance(target, list) or hasattr(target, "tolist"):
        raise ParameterError(
            "A run explains one target for every row, but target= is a list.\n"
            '  Give None for the prediction, a class, or "label" for the label of each row.'
        )


def _check_metrics(given: Any) -> None:
    from whence.evaluation.metrics import metrics as known

    for name, params in named(given, "metric", ParameterError).items():
        own = dict(params)
        entry = known[own.pop("metric", name)]
        entry.check(own)
