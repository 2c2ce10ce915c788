"""The front door: explain, compare, trace. The whole flow is on this page."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from whence.adapters import arrays
from whence.adapters.collect import collect
from whence.adapters.reachable import modules_behind
from whence.adapters.requests import Request
from whence.adapters.tensors import adapt
from whence.adapters.wrapped import Wrapped
from whence.engine.call import Rule
from whence.engine.flow import suspended
from whence.engine.ops import known_names
from whence.engine.scope import scope
from whence.errors import (
    BaselineError,
    DivergedError,
    MethodError,
    ParameterError,
    RuleError,
    did_you_mean,
    gathered,
    shown,
)
from whence.methods import answer_of, methods, sensitivity
from whence.methods import methods as known_methods
from whence.methods.answer import Answer
from whence.methods.defaults import OTHERWISE, default
from whence.methods.kept import check, kept
from whence.results.assemble import Part, join
from whence.results.attribution import Attribution, told
from whence.results.caveats import doubt
from whence.results.comparison import Comparison
from whence.results.trace import Trace
from whence.rules.ledger import RowsLost
from whence.subject import Record, Subject, at_baseline, baselines
from whence.subject.record import row_entries
from whence.subject.targets import Output, read_target, several
from whence.util.checks import check_choice, check_count, is_whole, not_allowed
from whence.util.progress import steps
from whence.util.terminal import say

_log = logging.getLogger("whence")
_OUTPUTS = ("logit", "probability", "log_probability")


def explain(
    model: Any,
    inputs: Any,
    *,
    method: str | None = None,
    target: Any = None,
    baseline: Any = None,
    at: str | None = None,
    wrt: Any = None,
    output: Output = "logit",
    rules: Mapping[str, Rule] | str | None = None,
    unruled: str | None = None,
    keep: Sequence[str] = (),
    batch_size: int | None = None,
    seed: int | Sequence[int] = 0,
    progress: bool | None = None,
    channels: str | None = None,
    names: Any = None,
    **params: Any,
) -> Attribution:
    """Attribute the model's score for each row of the inputs to those inputs.

    `method` is a name or a usual alias; None takes one by what the model is made of (`choosing.DEFAULTS`), and
    `receipt["method_chosen"]` says why. `names` are the features' names; a DataFrame's columns are its own.

    >>> import torch, whence
    >>> model = torch.nn.Linear(3, 2)
    >>> whence.explain(model, torch.ones(1, 3), method="gradient", target=0).values.shape
    torch.Size([1, 3])
    """
    rules, params = _named_rules(rules, params)
    options: dict[str, Any] = {
        "at": at, "wrt": wrt, "output": output, "rules": rules, "unruled": unruled, "keep": keep,
        "batch_size": batch_size, "channels": channels, "names": names,
    }  # fmt: skip
    given = {"target": target, "baseline": baseline, "seed": seed}
    if method is None:
        return _by_default(model, inputs, given, {**options, "progress": progress, **params})
    name, preset = methods.resolve(method)
    options, params = {**options, "method": name}, {**preset, **params}
    with gathered() as said:
        if isinstance(model, Wrapped):
            found = _of_wrapped(model, inputs, progress, given, params, options)
        else:
            found = _of_tensors(model, inputs, progress=progress, **given, **options, **params)
        doubt(found, methods[method].facts, own=bool(rules))
    return told(found, said)


def _by_default(model: Any, inputs: Any, given: Mapping[str, Any], options: Mapping[str, Any]) -> Attribution:
    """The documented method for this kind of model; where it cannot follow the model's branches, the one that can."""
    how = {name: options[name] for name in ("at", "wrt", "output")}
    target = given["target"]
    request = model.requests(inputs, target, options["batch_size"], bool(options["keep"]))[0] if isinstance(
        model, Wrapped
    ) else Request(model, inputs, target, [0])  # fmt: skip
    with gathered(), suspended():
        subject = _subject(request.model, request.inputs, method="gradient", target=request.target, **how)
        with scope(subject.root, *modules_behind(subject.target).values()):
            method, why = default(subject)
    try:
        found = explain(model, inputs, method=method, **given, **options)
    except DivergedError:
        if method == OTHERWISE:
            raise
        why = f"{method} cannot follow the model, which takes another branch for the baseline than for the input"
        found = explain(model, inputs, method=OTHERWISE, **given, **options)
    _log.info("whence: %s was chosen: %s", found.method, why)
    return replace(found, receipt={**found.receipt, "method_chosen": f"{found.method}: {why}"})


def _of_wrapped(
    model: Wrapped, inputs: Any, progress: bool | None, given: Mapping[str, Any], params: Mapping[str, Any],
    options: Mapping[str, Any],
) -> Attribution:  # fmt: skip
    """What a wrapped model's rows become: requests, each explained in tensors, and their answers collected."""
    method, output, target = options["method"], options["output"], given["target"]
    _check_options(methods[method].facts, output, options["rules"], options["unruled"], options["batch_size"], method)
    if output != "logit" and not model.exclusive and not callable(target):
        raise ParameterError(
            f"output={output!r} is a softmax, and a row of this model may have several labels.\n"
            "  Explain the logit, or give target=lambda output: output[:, i].sigmoid()."
        )
    requests = model.requests(inputs, target, options["batch_size"], bool(options["keep"]))
    seeds = _seeds(given["seed"], requests[0].total)

    def answer(r: Request) -> Attribution:
        own = {"target": r.target, "baseline": r.baseline(given["baseline"]), "seed": r.seeds(seeds)}
        with r.row_numbers():
            return _of_tensors(r.model, r.inputs, progress=False, **own, **r.params(params), **options)

    answers = (answer(request) for request in steps(requests, progress, repr(model)))
    found = _named(collect(model, requests, answers, options["wrt"]), model.name or _name(model.model))
    return found if model.exclusive else _several_labels(found)


def _of_tensors(
    model: Any, inputs: Any, *, method: str, keep: Sequence[str], channels: str | None, progress: bool | None,
    target: Any, baseline: Any, at: Any, wrt: Any, output: Any, rules: Any, unruled: Any, batch_size: Any, seed: Any,
    names: Any, **params: Any,
) -> Attribution:  # fmt: skip
    with suspended():
        params = methods[method].check(params)
        wanted = check(keep)
        subject = _subject(
            model, inputs, method=method, target=target, baseline=baseline, at=at, wrt=wrt, output=output, rules=rules,
            unruled=unruled, batch_size=batch_size, seed=seed, progress=progress, feature_names=names,
        )  # fmt: skip
        with scope(subject.root, *modules_behind(target).values()):
            rows = list(subject.split(subject.batch_size))
            parts = [done for part in steps(rows, progress, method) for done in _answers(part, params, wanted)]
        complete = methods[method].facts.get("complete", False)
        per_token = "l2" if sensitivity(method, params) else "sum"
        found = join(subject, parts, several(target), params, channels, per_token, complete)
        return _named(_with_names(found, subject), _name(model))


def _with_names(found: Attribution, subject: Subject) -> Attribution:
    """The features' names as the units of the inputs that have some, where values are one per feature."""
    known = {} if subject.at is not None else subject.feature_names
    values = (
        found.values if isinstance(found.values, Mapping) else dict(zip(subject.roles, _listed(found), strict=False))
    )
    units = {
        name: [list(known[name])] * len(found)
        for name, value in values.items()
        if name in known and value.dim() == 2 + found.several and value.shape[-1] == len(known[name])
    }
    if not units:
        return found
    alone = isinstance(found.values, Tensor)
    told = {**found.receipt, "names": list(units)}
    return replace(found, units=next(iter(units.values())) if alone else units, receipt=told)  # type: ignore[arg-type]


def _listed(found: Attribution) -> tuple[Tensor, ...]:
    return found.values if isinstance(found.values, tuple) else (found.values,)


def compare(model: Any, inputs: Any, *, methods: Any, **options: Any) -> Comparison:
    """Explain the same rows with several methods, for the same target.

    `methods` is a list of names, or a dict from a name to that method's own parameters.
    """
    given = [methods] if isinstance(methods, str) else methods
    labels = [known_methods.label(name) for name in given]
    twice = next((name for name in labels if labels.count(name) > 1), None)
    if twice is not None:
        raise ParameterError(f"compare was given {twice!r} twice.\n  Name each method once.")
    chosen = given if isinstance(given, Mapping) else dict.fromkeys(given)
    if not chosen or "method" in options:
        raise ParameterError("compare takes its methods as methods=[...], at least one of them.")
    found = {}
    for label, (name, params) in zip(labels, chosen.items(), strict=True):
        found[label] = explain(model, inputs, method=name, **options, **(params or {}))
    return Comparison(found)


def trace(model: Any, inputs: Any, *, method: str, show: bool = True, **options: Any) -> Trace:
    """Every op that an explanation met: its module, family, rule and shape, and the relevance that it carried and lost.

    Printed, and given back as rows; `plot()` draws the relevance from layer to layer.
    """
    if isinstance(model, Wrapped):
        first = model.requests(inputs, options.pop("target", None), options.get("batch_size"))[0]
        return trace(first.model, first.inputs, method=method, show=show, target=first.target, **options)
    entry = methods[method]
    method, options = entry.name, {**methods.resolve(method)[1], **options}
    rules, options = _named_rules(options.pop("rules", None), options)
    known = set(inspect.signature(_subject).parameters) - {"record", "method"}
    own = entry.check({key: options.pop(key) for key in list(options) if key not in known})
    with gathered() as said, suspended():
        subject = _subject(model, inputs, method=method, record=Record(steps=[]), rules=rules, **options)
        with scope(subject.root, *modules_behind(subject.target).values()):
            record = _traced(subject, own)
    found = Trace(method, tuple(record.steps or ()), record.summary())
    for one in said:
        shown(one)
    if show:
        say(found)
    return found


def _traced(subject: Subject, params: Mapping[str, Any]) -> Record:
    """What the passes of all rows did; row after row, where a rule sums per row and nobody knows where the rows are."""
    try:
        _answer_of(subject.resolved(), params)
    except RowsLost as lost:
        subject = replace(subject, record=Record(steps=[], overall={"row_by_row": str(lost)}))
        for row in subject.split(1):
            _answer_of(row.resolved(), params)
    return subject.record


def _answers(subject: Subject, params: Mapping[str, Any], keep: Sequence[str]) -> list[Part]:
    """One answer for all rows, or one each where a rule sums per row and nobody knows where the rows are."""
    try:
        return [_answer(subject, params, keep)]
    except RowsLost as lost:
        if subject.rows == 1:
            raise
        subject.record.overall["row_by_row"] = str(lost)
        return [_answer(row, params, keep) for row in subject.split(1)]


def _answer(subject: Subject, params: Mapping[str, Any], keep: Sequence[str]) -> Part:
    subject = subject.resolved()
    answer = _answer_of(subject, params)
    facts = subject.measured
    assert facts.score is not None
    if facts.probability is not None:
        subject.record.say(probability=row_entries(facts.probability))
    there = answer.baseline_score
    if there is None and subject.baselines:
        there, per_row = at_baseline.score(subject)
        subject.record.say(**per_row)
    before = there if answer.start_score is None else answer.start_score
    return Part(answer, facts.score, facts.index, before, kept(subject.pinned(), keep, params))


def _answer_of(subject: Subject, params: Mapping[str, Any]) -> Answer:
    """What the method answers; its receipt entries are noted."""
    answer = answer_of(subject.method, subject, params)
    subject.record.overall |= answer.overall
    subject.record.say(**answer.per_row)
    return answer


def _subject(
    model: Any, inputs: Any, *, method: str, target: Any = None, baseline: Any = None, at: Any = None, wrt: Any = None,
    output: Any = "logit", rules: Any = None, unruled: Any = None, batch_size: Any = None,
    seed: Any = 0, progress: bool | None = None, record: Record | None = None, feature_names: Any = None,
) -> Subject:  # fmt: skip
    """The subject of a call, every option checked."""
    facts = methods[method].facts
    _check_options(facts, output, rules, unruled, batch_size, method)
    if at is not None and not facts.get("at", True):
        raise MethodError(f"{method} explains inputs only, and at={at!r} names a module.\n  Leave at= out.")
    subject = adapt(model, inputs, method=method, wrt=wrt, at=at, names=feature_names)
    baseline = arrays.baseline(baseline, subject.root)
    subject = replace(
        subject,
        target=read_target(target, subject.rows),
        output=output,
        seeds=_seeds(seed, subject.rows),
        batch_size=None if batch_size is None else int(batch_size),
        progress=progress,
        rules=rules or {},
        refuse=unruled == "error",
        needs_attention=facts.get("needs") == "attention",
        record=record or Record(),
    )
    left = [name for name in inputs if str(name) not in subject.inputs] if isinstance(inputs, Mapping) else []
    if left:
        subject.record.overall["left_out"] = left  # labels that came with the batch
    if facts.get("background"):
        baseline = baselines.background(baseline)
    if baseline is None and facts.get("reference"):
        return replace(subject, baselines=baselines.default(subject, facts))
    given = baselines.parse(subject, baseline, 0.0 if facts.get("reference") else None)
    if len(given) > 1 and facts.get("reference") and not facts.get("several"):
        raise BaselineError(f"{method} takes one baseline, and {len(given)} were given.\n  Explain with each of them.")
    return replace(subject, baselines=given)


def _named(found: Attribution, name: str) -> Attribution:
    return replace(found, receipt={"model": name, **{key: v for key, v in found.receipt.items() if key != "model"}})


def _several_labels(found: Attribution) -> Attribution:
    """Labels that do not exclude each other have a probability each, not a softmax over all."""
    scores = {"probability": found.output_value, "baseline_probability": found.baseline_value}
    told = {
        name: score.double().sigmoid().tolist()
        for name, score in scores.items()
        if name in found.receipt and score is not None and found.receipt.get("output") == "logit"
    }
    return replace(found, receipt={**found.receipt, **told})


def _name(model: Any) -> str:
    """A module's class, or a function's own name."""
    return str(getattr(model, "__name__", type(model).__name__))


def _named_rules(rules: Any, params: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """LRP's rules by name are its composite."""
    if not isinstance(rules, str):
        return rules, params
    if "composite" in params:
        raise ParameterError(
            f"rules={rules!r} and composite={params['composite']!r} say the same.\n  Give one of them."
        )
    return None, {"composite": rules, **params}


# ---- checks ----


def _seeds(seed: Any, rows: int) -> tuple[int, ...]:
    given = seed.tolist() if hasattr(seed, "tolist") else seed
    seeds = tuple(given) if isinstance(given, list | tuple | range) else (given,) * rows
    if len(seeds) != rows or not all(map(is_whole, seeds)):
        raise not_allowed("seed", seed, f"an int, or one int for each of the {rows} rows")
    return tuple(map(int, seeds))


def _check_options(
    facts: Mapping[str, Any], output: Any, rules: Any, unruled: Any, batch_size: Any, method: str
) -> None:
    check_choice("output", output, _OUTPUTS)
    if unruled not in (None, "error"):
        raise not_allowed("unruled", unruled, '"error", or leave it out')
    if batch_size is not None:
        check_count("batch_size", batch_size)
    if rules and not facts.get("propagates", True):
        raise ParameterError(f"{method} does not propagate anything, so rules= has no meaning for it.\n  Leave it out.")
    if rules is not None and not isinstance(rules, Mapping):
        raise RuleError(
            f"rules is {type(rules).__name__}.\n  Give a dict from families of ops to functions of (call, m)."
        )
    for name, rule in (rules or {}).items():
        if name != "*" and "::" not in str(name) and name not in known_names():
            raise RuleError(f"rules={{{name!r}: ...}}: there is no such op. {did_you_mean(str(name), known_names())}")
        if not callable(rule):
            raise RuleError(f"The rule for {name!r} is {rule!r}.\n  Give a function of (call, m): see CONTRIBUTING.md.")
