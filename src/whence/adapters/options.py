"""The options of a call in one record, checked, and the Subject that they make of a model and its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from whence.adapters import arrays
from whence.adapters.tensors import adapt
from whence.engine.ops import known_names
from whence.engine.places import place
from whence.errors import BaselineError, InputError, MethodError, ParameterError, RuleError, did_you_mean
from whence.methods import Method, methods
from whence.registry import Entry
from whence.subject import Record, Subject, baselines
from whence.subject.modules import canonical
from whence.subject.neurons import Neuron, up_to
from whence.subject.targets import read_target
from whence.util.checks import check_choice, check_count, is_whole, not_allowed

_OUTPUTS = ("logit", "probability", "log_probability")


@dataclass(frozen=True, eq=False)
class Options:
    """What a call of `explain` or `trace` asks for, apart from the model and its inputs."""

    method: str | None = None  # None: the default for this kind of model
    target: Any = None
    baseline: Any = None
    at: str | None = None
    wrt: Any = None
    output: Any = "logit"
    rules: Any = None
    unruled: Any = None
    keep: Sequence[str] = ()
    batch_size: Any = None
    memory: Any = None  # bytes that a pass may take, or "4GB"
    seed: Any = 0
    progress: bool | None = None
    channels: str | None = None
    names: Any = None  # of features
    params: Mapping[str, Any] = field(default_factory=dict)  # the method's own


def by_method(options: Options, name: str) -> tuple[Options, Entry[Method]]:
    """The options with a method by its own name and its parameters complete, and what is known of the method."""
    own, preset = methods.resolve(name)  # an alias may bring parameters
    entry = methods[own]
    given = {key: value for key, value in options.params.items() if key != "units" or value is not None}  # for all
    return replace(options, method=own, params=entry.check({**preset, **given})), entry


def named_rules(rules: str, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """LRP's rules by name are its composite."""
    if "composite" in params:
        raise ParameterError(
            f"rules={rules!r} and composite={params['composite']!r} mean the same.\n  Give one of them."
        )
    return None, {"composite": rules, **params}


def subject_of(
    model: Any, inputs: Any, options: Options, facts: Mapping[str, Any], record: Record | None = None
) -> Subject:
    """The subject of a call, every option checked; `facts` are the method's."""
    method = str(options.method)
    check_options(options, facts)
    if options.at is not None and not facts.get("at", True):
        raise MethodError(f"{method} explains inputs only, but at={options.at!r} names a module.\n  Leave at= out.")
    reads = facts.get("at") == "read"
    at = None if reads else options.at
    removes = removes_units(facts)
    adapted = adapt(model, inputs, method=method, wrt=options.wrt, at=at, names=options.names, flags=removes)
    if isinstance(options.target, Neuron):
        unit = options.target
        adapted = up_to(adapted, unit, place(canonical(adapted.root, unit.path, "neuron")))
    if options.memory is not None:
        from whence.subject.memory import read, without_cache

        own = without_cache(adapted.root, adapted.inputs, adapted.form)
        adapted = replace(adapted, inputs={**adapted.inputs, **own}, memory=read(options.memory))
    subject = replace(
        adapted,
        layer=canonical(adapted.root, options.at) if reads and options.at is not None else None,
        target=read_target(options.target, adapted.rows),
        output=options.output,
        seeds=(options.seed,) * adapted.rows if type(options.seed) is int else seeds_of(options.seed, adapted.rows),
        batch_size=None if options.batch_size is None else int(options.batch_size),
        progress=options.progress,
        rules=options.rules or {},
        refuse=options.unruled == "error",
        reads=removes,
        needs_attention=facts.get("needs") == "attention",
        record=record or Record(),
    )
    left = [name for name in inputs if str(name) not in subject.inputs] if isinstance(inputs, Mapping) else []
    if left:
        subject.record.overall["left_out"] = left  # labels that came with the batch
    if facts.get("permutes"):
        if options.baseline is not None:
            raise BaselineError(
                f"{method} takes values from other rows, so it has no baseline.\n  Leave baseline= out."
            )
        from whence.subject.permuting import permuted

        return replace(subject, baselines=(permuted(subject, options.params),))
    if options.baseline is None and not facts.get("reference") and not facts.get("background"):
        return subject
    baseline = arrays.baseline(baselines.called(subject, options.baseline), subject.root)
    if facts.get("background"):
        baseline = baselines.background(baseline)
    if baseline is None and facts.get("reference"):
        return replace(subject, baselines=baselines.default(subject, facts))
    parsed = baselines.parse(subject, baseline, 0.0 if facts.get("reference") else None)
    if len(parsed) > 1 and facts.get("reference") and not facts.get("several"):
        raise BaselineError(f"{method} takes one baseline, but {len(parsed)} were given.\n  Explain with each of them.")
    return replace(subject, baselines=parsed)


def several_places(at: Sequence[Any]) -> list[Any]:
    """The places of a list, each once; there has to be one."""
    if not at:
        raise InputError("at= is an empty list.\n  Name at least one module, or leave it out.")
    twice = next((path for path in at if list(at).count(path) > 1), None)
    if twice is not None:
        raise InputError(f"at= names {twice!r} twice.\n  Name each module once.")
    return list(at)


def removes_units(facts: Mapping[str, Any]) -> bool:
    """Whether a method with these facts removes units and reads the scores."""
    return bool(facts.get("reference")) and not facts.get("propagates", True)


def seeds_of(seed: Any, rows: int) -> tuple[int, ...]:
    """One seed for each row."""
    given = seed.tolist() if hasattr(seed, "tolist") else seed
    if is_whole(given):
        return (int(given),) * rows
    seeds = tuple(given) if isinstance(given, list | tuple | range) else ()
    if len(seeds) != rows or not all(map(is_whole, seeds)):
        raise not_allowed("seed", seed, f"an int, or one int for each of the {rows} rows")
    return tuple(map(int, seeds))


def check_options(options: Options, facts: Mapping[str, Any]) -> None:
    """Raise where an option that every method shares has a value that is not allowed; `facts` are the method's."""
    if options.output not in _OUTPUTS:
        check_choice("output", options.output, _OUTPUTS)
    if options.unruled not in (None, "error"):
        raise not_allowed("unruled", options.unruled, '"error", or leave it out')
    if options.batch_size is not None:
        check_count("batch_size", options.batch_size)
    if options.rules is None:
        return
    if options.rules and not facts.get("propagates", True):
        raise ParameterError(
            f"{options.method} does not propagate anything, so rules= has no meaning for it.\n  Leave it out."
        )
    if not isinstance(options.rules, Mapping):
        raise RuleError(
            f"rules is {type(options.rules).__name__}.\n  Give a dict from families of ops to functions of (call, m)."
        )
    for name, rule in options.rules.items():
        if name != "*" and "::" not in str(name) and name not in known_names():
            raise RuleError(f"rules={{{name!r}: ...}}: there is no such op. {did_you_mean(str(name), known_names())}")
        if not callable(rule):
            raise RuleError(f"The rule for {name!r} is {rule!r}.\n  Give a function of (call, m): see CONTRIBUTING.md.")
