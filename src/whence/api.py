"""The front door: explain, activations, compare, trace. The whole flow is on this page."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, overload

from whence.adapters.collect import collect
from whence.adapters.options import (
    Options,
    by_method,
    check_options,
    named_rules,
    seeds_of,
    several_places,
    subject_of,
)
from whence.adapters.reachable import modules_behind
from whence.adapters.requests import Request
from whence.adapters.wrapped import Wrapped
from whence.engine.call import Rule
from whence.engine.custom_functions import suspended
from whence.engine.scope import scope
from whence.errors import DivergedError, InputError, MethodError, ParameterError, TargetError, emit, gathered
from whence.methods import Method, sensitivity
from whence.methods import methods as known_methods
from whence.methods.answer import Answer
from whence.methods.defaults import OTHERWISE, default
from whence.methods.kept import check, kept
from whence.registry import Entry
from whence.results.assemble import Part, join
from whence.results.attribution import Attribution, with_warnings
from whence.results.caveats import warn_of_caveats
from whence.results.comparison import Comparison
from whence.results.features import with_feature_names
from whence.results.trace import Trace
from whence.rules.ledger import RowsLost
from whence.subject import Record, Subject, at_baseline
from whence.subject.record import row_entries
from whence.subject.targets import Output, several
from whence.util.progress import steps
from whence.util.receipt import Receipt
from whence.util.terminal import say

_log = logging.getLogger("whence")
_TRACED = {field.name for field in fields(Options)} - {"method", "params", "rules", "keep", "channels", "memory"}


@overload
def explain(model: Any, inputs: Any, *, at: list[str] | tuple[str, ...], **options: Any) -> dict[str, Attribution]: ...
@overload
def explain(model: Any, inputs: Any, *, at: str | None = None, **options: Any) -> Attribution: ...
def explain(
    model: Any,
    inputs: Any,
    *,
    method: str | None = None,
    target: Any = None,
    baseline: Any = None,
    at: str | list[str] | tuple[str, ...] | None = None,
    wrt: Any = None,
    output: Output = "logit",
    rules: Mapping[str, Rule] | str | None = None,
    unruled: str | None = None,
    keep: Sequence[str] = (),
    batch_size: int | None = None,
    memory: str | int | None = None,
    seed: int | Sequence[int] = 0,
    progress: bool | None = None,
    channels: str | None = None,
    names: Any = None,
    **params: Any,
) -> Attribution | dict[str, Attribution]:
    """Attribute the model's score for each row of the inputs to those inputs, or to a module's output (`at`).

    `method` is a name or a usual alias; None takes one by what the model is made of (`methods.defaults.DEFAULTS`), and
    `receipt["method_chosen"]` says why. `names` are the features' names; a DataFrame's columns are its own. With a list
    of modules `at` there is one Attribution for each of them, in a dict. `memory`, such as "4GB", is what a pass may
    take: one that would take more goes layer by layer, which `receipt["memory"]` says.

    >>> import torch, whence
    >>> model = torch.nn.Linear(3, 2)
    >>> whence.explain(model, torch.ones(1, 3), method="gradient", target=0).values.shape
    torch.Size([1, 3])
    """
    if isinstance(rules, str):
        rules, params = named_rules(rules, params)
    one, paths = (None, several_places(at)) if isinstance(at, list | tuple) else (at, None)
    options = Options(
        method, target, baseline, one, wrt, output, rules, unruled, keep, batch_size, memory, seed, progress,
        channels, names, params,
    )  # fmt: skip
    if paths is not None:
        return {path: _asked(model, inputs, replace(options, at=path)) for path in paths}
    return _asked(model, inputs, options)


def _asked(model: Any, inputs: Any, options: Options) -> Attribution:
    """By the method that the options name, or the default."""
    if options.method is None:
        return _by_default(model, inputs, options)
    return _explained(model, inputs, options, options.method)


def _by_default(model: Any, inputs: Any, options: Options) -> Attribution:
    """The default method for this kind of model; where it cannot follow the model's branches, the one that can."""
    request = Request(model, inputs, options.target, [0])
    if isinstance(model, Wrapped):
        first, *_ = getattr(options.target, "spans", [options.target])  # of two answers that are compared
        request = model.requests(inputs, first, options.batch_size, bool(options.keep))[0]
    probe = Options("gradient", request.target, at=options.at, wrt=options.wrt, output=options.output)
    with gathered(), suspended():
        subject = subject_of(request.model, request.inputs, probe, {})
        with scope(subject.root, *modules_behind(subject.target).values()):
            method, reason = default(subject)
    try:
        attribution = _explained(model, inputs, options, method)
    except DivergedError:
        if method == OTHERWISE:
            raise
        reason = f"{method} cannot follow the model, which takes another branch for the baseline than for the input"
        attribution = _explained(model, inputs, options, OTHERWISE)
    _log.info("whence: %s was chosen: %s", attribution.method, reason)
    return replace(
        attribution, receipt=Receipt(attribution.receipt, {"method_chosen": f"{attribution.method}: {reason}"})
    )


def _explained(model: Any, inputs: Any, options: Options, name: str) -> Attribution:
    """The answer of a method that is named, with what a reader should know about it."""
    model_name = _name(model)
    with gathered() as warnings:
        if isinstance(model, Wrapped):
            attribution, method = _of_rows(model, inputs, options, name)
        else:
            options, method = by_method(options, name)
            attribution = _of_tensors(model, inputs, options, method)
        warn_of_caveats(attribution, method.facts, own=bool(options.rules))
    return with_warnings(attribution, warnings, model=model_name)


def _of_rows(model: Wrapped, inputs: Any, options: Options, name: str) -> tuple[Attribution, Entry[Method]]:
    """A wrapped model's answer: of one target, or the difference of two; by token, or by larger units of the text."""
    from whence.adapters.answers import Contrast, check_linear
    from whence.adapters.collect import difference
    from whence.results.text_units import is_text_unit, merged

    units = options.params.get("units")
    if is_text_unit(units) and "units" not in known_methods[known_methods.resolve(name)[0]].parameters:
        options = replace(options, params={key: value for key, value in options.params.items() if key != "units"})
    options, method = by_method(options, name)
    if isinstance(options.target, Contrast):
        check_linear(method.name, options.params)
        both = [_of_wrapped(model, inputs, replace(options, target=one), method) for one in options.target.spans]
        attribution = difference(both[0], both[1])
    else:
        attribution = _of_wrapped(model, inputs, options, method)
    removed = "units" in method.parameters
    if is_text_unit(units) and not (removed and units == "words" and attribution.words is not None):
        attribution = merged(attribution, units, removed=removed)
    return attribution, method


def _of_wrapped(model: Wrapped, inputs: Any, options: Options, method: Entry[Method]) -> Attribution:
    """What a wrapped model's rows become: requests, each explained in tensors, and their answers collected."""
    check_options(options, method.facts)
    model.check_output(options.output, options.target)
    requests = model.requests(inputs, options.target, options.batch_size, bool(options.keep))
    seeds = seeds_of(options.seed, requests[0].total)

    def answer(r: Request) -> Attribution:
        own = {"target": r.target, "baseline": r.baseline(options.baseline), "seed": r.seeds(seeds)}
        with r.row_numbers():
            own |= {"params": method.check(r.params(options.params, options.wrt)), "progress": False}
            return _of_tensors(r.model, r.inputs, replace(options, **own), method)

    answers = (answer(request) for request in steps(requests, options.progress, repr(model)))
    collected = collect(model, requests, answers, options.wrt)
    given = {"units": options.params["units"]} if "units" in options.params else {}  # and not those of a request
    return replace(collected, params={**collected.params, **given})


def _of_tensors(model: Any, inputs: Any, options: Options, method: Entry[Method]) -> Attribution:
    """The subject, the method's answer for each part of its rows, and one Attribution of all."""
    with suspended():
        params, keep = options.params, check(options.keep) if options.keep else ()
        subject = subject_of(model, inputs, options, method.facts)
        k_shown = several(options.target)
        behind = modules_behind(options.target).values() if callable(options.target) else ()
        with scope(subject.root, *behind):
            subject = _settled(subject) if subject.reads else subject
            rows: Iterable[Subject] = (subject,)
            if subject.batch_size is not None:
                rows = steps(list(subject.split(subject.batch_size)), options.progress, method.name)
            parts = [answer for some in rows for answer in _answers(method, some, params, keep)]
        if subject.memory is not None:
            from whence.subject.memory import check_used

            check_used(subject)
        slopes = sensitivity(method, params["of"]) if "of" in params else method.facts.get("slope", False)
        slopes = slopes or params.get("multiply_by_inputs") is False
        per_token, complete = "l2" if slopes else "sum", method.facts.get("complete", False)
        attribution = join(subject, parts, k_shown, params, options.channels, per_token, complete)
        return with_feature_names(attribution, subject) if subject.feature_names else attribution


def _settled(subject: Subject) -> Subject:
    from whence.subject.settling import settled

    return settled(subject)


def activations(model: Any, inputs: Any, *, at: str | Sequence[str]) -> Any:
    """What a module gives for these inputs: its tensor with rows first, or a dict by name where it has several.

    `at` is its path ("path@2": in its second call; "path@input": what it gets); a list of paths gives a dict by path.
    Nothing after it is run.

    >>> import torch, whence
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> whence.activations(model, torch.ones(1, 3), at="1").shape
    torch.Size([1, 4])
    """
    if isinstance(at, list | tuple):
        return {path: activations(model, inputs, at=path) for path in several_places(at)}
    if isinstance(model, Wrapped):
        (request, *others) = model.requests(inputs, None, None, True)
        if others:
            raise InputError("These rows take several forward passes.\n  Give one row, or rows of like length.")
        return activations(request.model, request.inputs, at=at)
    from whence.adapters.activations import activations_of

    with suspended():
        return activations_of(model, inputs, at)


def compare(model: Any, inputs: Any, *, methods: Any, check: bool = False, **options: Any) -> Comparison:
    """Explain the same rows with several methods, for the same target.

    `methods` is a list of names, or a dict from a name to that method's own parameters. With `check`, the model is
    asked again without what each method puts first, beside random orders (for classifiers, the first rows): `checks`.
    """
    given = [methods] if isinstance(methods, str) else methods
    labels = [known_methods.label(name) for name in given]
    twice = next((name for name in labels if labels.count(name) > 1), None)
    if twice is not None:
        raise ParameterError(f"compare was given {twice!r} twice.\n  Name each method once.")
    chosen = given if isinstance(given, Mapping) else dict.fromkeys(given)
    if not chosen or "method" in options:
        raise ParameterError("compare takes its methods as methods=[...], at least one of them.")
    if isinstance(options.get("at"), list | tuple):
        raise ParameterError("compare explains one module, but at= is a list.\n  Compare at each of them.")
    found = {
        label: explain(model, inputs, method=name, **options, **(params or {}))
        for label, (name, params) in zip(labels, chosen.items(), strict=True)
    }
    if not check:
        return Comparison(found)
    from whence.evaluation.deletion_check import checked

    own = {name: options[name] for name in ("wrt", "batch_size") if name in options}
    return Comparison(found, checked(model, inputs, found, **own))


def trace(model: Any, inputs: Any, *, method: str, show: bool = True, **options: Any) -> Trace:
    """Every op that an explanation met: its module, family, rule and shape, and the relevance that it carried and lost.

    Printed, and given back as rows; `plot()` draws the relevance from layer to layer.
    """
    if isinstance(model, Wrapped):
        from whence.adapters.answers import Contrast

        target = options.pop("target", None)
        if isinstance(target, Contrast):
            raise TargetError(
                "trace follows one explanation, but a contrast is the difference of two.\n"
                f"  Trace each of them: target=whence.span(of={target.first!r}), then of={target.second!r}."
            )
        first = model.requests(inputs, target, options.get("batch_size"))[0]
        return trace(first.model, first.inputs, method=method, show=show, target=first.target, **options)
    rules = options.pop("rules", None)
    if isinstance(rules, str):
        rules, options = named_rules(rules, options)
    asked = {name: options.pop(name) for name in _TRACED if name in options}
    call, entry = by_method(Options(rules=rules, params=options, **asked), method)
    if not entry.facts.get("propagates", True):
        raise MethodError(
            f"{entry.name} reads scores and propagates nothing, so there is no op to trace.\n"
            "  Choose a method that propagates, such as gradient, deeplift or lrp."
        )
    with gathered() as warnings, suspended():
        subject = subject_of(model, inputs, call, entry.facts, Record(steps=[]))
        with scope(subject.root, *modules_behind(subject.target).values()):
            record = _traced(entry, subject, call.params)
    result = Trace(entry.name, tuple(record.steps or ()), record.summary())
    for message in warnings:
        emit(message)
    if show:
        say(result)
    return result


def _traced(method: Entry[Method], subject: Subject, params: Mapping[str, Any]) -> Record:
    """What the passes of all rows did; row after row, where a rule sums per row and nobody knows where the rows are."""
    try:
        _answer_of(method, subject.resolved(), params)
    except RowsLost as lost:
        subject = replace(subject, record=Record(steps=[], overall={"row_by_row": str(lost)}))
        for row in subject.split(1):
            _answer_of(method, row.resolved(), params)
    return subject.record


def _answers(method: Entry[Method], subject: Subject, params: Mapping[str, Any], keep: Sequence[str]) -> list[Part]:
    """One answer for all rows, or one each where a rule sums per row and nobody knows where the rows are."""
    try:
        return [_answer(method, subject, params, keep)]
    except RowsLost as lost:
        if subject.rows == 1:
            raise
        subject.record.overall["row_by_row"] = str(lost)
        return [_answer(method, row, params, keep) for row in subject.split(1)]


def _answer(method: Entry[Method], subject: Subject, params: Mapping[str, Any], keep: Sequence[str]) -> Part:
    subject = subject.resolved() if subject.baselines else subject
    answer = _answer_of(method, subject, params)
    facts = subject.measured
    assert facts.score is not None
    if facts.probability is not None:
        subject.record.note_per_row(probability=row_entries(facts.probability))
    there = answer.baseline_score
    if there is None and subject.baselines:
        there, per_row = at_baseline.score(subject)
        subject.record.note_per_row(**per_row)
    before = there if answer.start_score is None else answer.start_score
    also = kept(subject.pinned(), keep, params) if keep else {}
    return Part(answer, facts.score, facts.index, before, also)


def _answer_of(method: Entry[Method], subject: Subject, params: Mapping[str, Any]) -> Answer:
    """What the method answers; its receipt entries are noted."""
    returned = method.function(subject, **params)
    answer = returned if isinstance(returned, Answer) else Answer(returned)
    subject.record.overall |= answer.overall
    if answer.per_row:
        subject.record.note_per_row(**answer.per_row)
    return answer


def _name(model: Any) -> str:
    """A module's class, a function's own name, or the name under which a wrapped model was loaded."""
    if isinstance(model, Wrapped):
        return model.name or _name(model.model)
    return str(getattr(model, "__name__", type(model).__name__))
