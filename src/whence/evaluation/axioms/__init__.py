"""The properties of attribution methods, measured on the user's own model: `whence.axioms`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from whence.errors import MethodError, ParameterError, WhenceError
from whence.evaluation.answers.explanations import CONTROLS, Ranker, rankers
from whence.evaluation.axioms.asker import Asker, NotMeasured
from whence.evaluation.axioms.points import prepare
from whence.evaluation.axioms.registry import axiom, properties
from whence.evaluation.axioms.table import AxiomTable, Cell, Finding, Witness
from whence.evaluation.axioms.toys import TOYS, Toy, textbook_table
from whence.methods import methods as known
from whence.util.checks import check_count, not_allowed
from whence.util.progress import steps

__all__ = ["TOYS", "AxiomTable", "Cell", "Toy", "Witness", "axiom", "axioms", "properties", "textbook_table"]


def axioms(
    model: Any,
    inputs: Any,
    *,
    baseline: Any = None,
    methods: Sequence[str] | Mapping[str, Any] | None = None,
    target: Any = None,
    seed: int = 0,
    progress: bool | None = None,
    wrt: Any = None,
    output: Any = "logit",
    only: Sequence[str] | None = None,
    equivalents: Sequence[Any] = (),
    tolerance: float = 0.02,
    rows: int = 4,
    features: int = 6,
    batch_size: int = 32,
) -> AxiomTable:
    """The property table of attribution methods, measured on this model: a number, a verdict and a witness per cell.

    `methods` is a list of names, or a dict from a line's name to a method's parameters ("method" among them, if the
    line has another name; a path is a function of α, the input and the baseline) or to a function of your own,
    `f(model, inputs, targets)` or `f(model, inputs, targets, baseline)`; None is every method. `only` names the
    properties to measure, `equivalents` are models that compute the same scores. A violation up to `tolerance` (a share
    of the largest attribution, or of the score's change) counts as rounding. At most `rows` rows are taken, the first
    ones, and in each at most `features` units; `batch_size` points are explained at once.
    """
    chosen = _chosen(methods)
    names = _properties(only)
    _check(tolerance, seed=seed, rows=rows, features=features, batch_size=batch_size)
    probe = prepare(
        model, inputs, baseline=baseline, target=target, wrt=wrt, output=output, seed=seed, rows=rows,
        features=features, equivalents=tuple(equivalents), chunk=batch_size,
    )  # fmt: skip
    cells = {}
    for method in steps(list(chosen), progress, "axioms"):
        ask = Asker(probe, chosen[method], seed, tolerance)
        reason = _runs(ask)
        for name in names:
            found = Finding(None, "–", None, reason) if reason else _measured(ask, name)
            cells[method, name] = Cell(method, name, found.verdict, found.number, found.witness, found.note)
    reference = {name: _reference(line) for name, line in chosen.items()}
    facts = {"tolerance": tolerance, "rows": len(probe.rows), "features": features, "seed": seed}
    return AxiomTable(tuple(chosen), tuple(names), cells, reference, facts)


def _runs(ask: Asker) -> str:
    """Why a method gives no answer for this model at all, or nothing."""
    if ask.facts.get("permutes"):
        return "its values of a row depend on the rows beside it; the properties are about one row"
    try:
        ask.rows()
    except Exception as error:
        return _reason(error)
    return ""


def _measured(ask: Asker, name: str) -> Finding:
    try:
        return properties[name].function(ask)
    except NotMeasured as error:
        return Finding(None, "–", None, str(error))
    except WhenceError as error:
        if "equivalents[" in str(error):
            raise
        return Finding(None, "–", None, _reason(error))
    except Exception as error:  # a method that cannot do this must not keep the others from it
        return Finding(None, "–", None, _reason(error))


def _reason(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return first if isinstance(error, WhenceError | NotMeasured) else f"{type(error).__name__}: {first}"


# ---- checks ----


def _chosen(methods: Any) -> dict[str, Ranker]:
    given = list(known) if methods is None else [methods] if isinstance(methods, str) else methods
    if not isinstance(given, Mapping | Sequence) or not given:
        raise MethodError(
            "There is no method to measure.\n  Give methods=[...] with at least one name, or leave it out."
        )
    if not isinstance(given, Mapping) and any(callable(one) for one in given):
        raise MethodError('A function has no name in the table.\n  Give methods={"mine": function}.')
    chosen = {line.name: line for line in rankers(given)}
    for line in chosen.values():
        if line.method in CONTROLS:
            raise MethodError(f"{line.method!r} is a control of images, not a method.\n  Leave it out.")
        if line.function is None:
            known[line.method].check(line.params or {})
            _check_path((line.params or {}).get("path"))
    return chosen


def _check_path(path: Any) -> None:
    if path is not None and not (callable(path) and _takes_three(path)):
        raise ParameterError(
            "path= must lead to every point that is tried.\n"
            "  Give a function of α, the input and the baseline, with the baseline at 0 and the input at 1."
        )


def _takes_three(function: Any) -> bool:
    try:
        inspect.signature(function).bind(0, 0, 0)
    except (TypeError, ValueError):
        return False
    return True


def _reference(line: Ranker) -> bool:
    """Whether a line compares with a baseline: as the registry knows, or as a function's signature says."""
    if line.function is not None:
        return "baseline" in inspect.signature(line.function).parameters
    return bool(known[line.method].facts.get("reference")) or (line.params or {}).get("path") is not None


def _properties(only: Sequence[str] | None) -> list[str]:
    names = list(properties) if only is None else [only] if isinstance(only, str) else list(only)
    if not names:
        raise ParameterError("only= names no property.\n  Give at least one, or leave it out.")
    return [properties[name].name for name in names]


def _check(tolerance: Any, **numbers: Any) -> None:
    for name, value in numbers.items():
        check_count(name, value, 0 if name == "seed" else 1, "axioms")
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
        raise not_allowed("tolerance", tolerance, "a number between 0 and 1", "axioms")
