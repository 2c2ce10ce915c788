"""Composites: which LRP rule each op with weights gets, by op, by module and by depth."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from inspect import signature
from typing import Any

from whence.engine.call import Call
from whence.errors import ParameterError, nearest
from whence.rules.lrp import Composite
from whence.rules.lrp_division import NUDGED, Divide
from whence.rules.lrp_weights import RULES, Weighted, at_least_zero
from whence.util.checks import not_allowed

Table = Mapping[str, Any]

COMPOSITES: dict[str, Table] = {
    "chefer": {"linear": "chefer", "convolution": "chefer", "first": ("z_box", {"only": "convolution"})},
    "orig": {"linear": "orig", "convolution": "orig", "first": ("z_box", {"only": "convolution"})},
    **{name: {"linear": name, "convolution": name} for name in ("epsilon", "gamma", "alpha_beta", "z_plus")},
    "epsilon_plus": {"linear": "epsilon", "convolution": "z_plus"},
    "epsilon_plus_flat": {"linear": "epsilon", "convolution": "z_plus", "first": "flat"},
    "epsilon_alpha2_beta1": {"linear": "epsilon", "convolution": "alpha_beta"},
    "epsilon_alpha2_beta1_flat": {"linear": "epsilon", "convolution": "alpha_beta", "first": "flat"},
    "epsilon_gamma_box": {"linear": "epsilon", "convolution": "gamma", "first": ("z_box", {"only": "convolution"})},
}
_AUTHORS = ("chefer", "orig")
_DEPTH = re.compile(r"depth:(-?\d+)(?:-(-?\d+))?$")
Choice = tuple[Callable[[Call], bool], Weighted]  # which ops, and the rule that they get


def composite_of(given: Any, options: Mapping[str, Any], stabilizer: float = 1e-6) -> Composite:
    """A composite by name, or of a user's table; `options` are the parameters of its rules."""
    if not isinstance(given, Mapping) and not (isinstance(given, str) and given in COMPOSITES):
        raise ParameterError(
            f"composite={given!r} is not known. {nearest(str(given), COMPOSITES)}".rstrip()
            + f"\n  Give one of {', '.join(COMPOSITES)}, or a table."
        )
    at_least_zero("stabilizer", stabilizer)
    table: dict[str, Any] = dict(given if isinstance(given, Mapping) else COMPOSITES[given])
    if not all(isinstance(key, str) for key in table):
        raise _unknown(next(key for key in table if not isinstance(key, str)))
    add = table.pop("add", "proportional" if given == "orig" else "share")
    if add not in ("share", "proportional"):
        raise not_allowed("composite", {"add": add}, '"share" or "proportional"')
    keys = sorted(table, key=_order)
    choices = [(key, *_choice(key, table[key], options)) for key in keys]
    _check_read(given, table, {**options, "stabilizer": stabilizer})
    unmet = {key for key in keys if key.startswith("path:")}
    otherwise = _rule("epsilon", options)

    def weigh(call: Call) -> Weighted:
        unmet.difference_update([key for key, fits, _ in choices if key in unmet and fits(call)])
        return next((rule for _, fits, rule in choices if fits(call)), otherwise)

    name = given if isinstance(given, str) else "composite"
    authors = given in _AUTHORS if isinstance(given, str) else False
    return Composite(
        name,
        weigh,
        NUDGED if authors else Divide(stabilizer),
        shares=add == "share",
        late=any(key.startswith("depth:-") for key in keys),
        unmet=unmet,
        authors=authors,
    )


_PARAMETERS = {name: signature(rule).parameters for name, rule in RULES.items()}
_DEFAULTS = {p.name: p.default for parameters in _PARAMETERS.values() for p in parameters.values()}


def _check_read(given: Any, table: Table, options: Mapping[str, Any]) -> None:
    """A parameter that no rule of the composite reads is a mistake, unless it is the default."""
    read = _read(given, table)
    for name, value in options.items():
        default = {**_DEFAULTS, "stabilizer": 1e-6}[name]
        if name in read or value is default or (default is not None and value == default):
            continue
        shown = repr(given) if isinstance(given, str) else "{...}"
        others = [other for other, rules in COMPOSITES.items() if name in _read(other, rules)]
        raise ParameterError(
            f"composite={shown} has no rule that reads {name!r}.\n"
            f"  Leave {name} out, or give composite= one of {', '.join(others)}."
        )


def _read(given: Any, table: Table) -> set[str]:
    """The parameters that a composite's rules leave to the method."""
    rules = [value if isinstance(value, tuple) else (value, {}) for key, value in table.items() if key != "add"]
    rules += [("epsilon", {})] * (not {"linear", "convolution"} <= table.keys())  # for what no key names
    parameters = {p for rule, own in rules for p in _PARAMETERS[rule] if p not in own}
    return parameters if isinstance(given, str) and given in _AUTHORS else {*parameters, "stabilizer"}


def _order(key: str) -> int:
    """The input layer first, then modules, depths, and families."""
    return 0 if key == "first" else 1 if key.startswith("path:") else 2 if key.startswith("depth:") else 3


def _choice(key: Any, value: Any, options: Mapping[str, Any]) -> Choice:
    depth = _DEPTH.match(str(key))
    if key == "first":
        name, own = value if isinstance(value, tuple) else (value, {})
        only = dict(own).pop("only", None)
        rule = _rule((name, {k: v for k, v in own.items() if k != "only"}), options)
        pixels = only is not None  # z_box is for pixels: a convolution over time may read embedded words
        return (
            lambda call: call.origins[0].fresh and only in (None, call.family) and not (pixels and call.x[0].dim() < 4),
            rule,
        )
    if str(key).startswith("path:"):
        glob = key.removeprefix("path:")
        return lambda call: fnmatchcase(call.path, glob), _rule(value, options)
    if depth:
        low, high = int(depth[1]), int(depth[2] or depth[1])
        if low > high or (low < 0) != (high < 0):
            raise ParameterError(
                f"composite={{{key!r}: ...}} is not a range.\n"
                '  Give "depth:A-B" with A ≤ B, both from the input (0, 1, …) or both from the end ("depth:-2--1").'
            )
        return lambda call: low <= _depth(call, low < 0) <= high, _rule(value, options)
    if key not in ("linear", "convolution"):
        raise _unknown(key)
    return lambda call: call.family == key, _rule(value, options)


def _unknown(key: Any) -> ParameterError:
    return ParameterError(
        f"composite={{{key!r}: ...}} is not known.\n"
        '  Give "linear", "convolution", "first", "path:GLOB", "depth:A-B" or "add".'
    )


def _depth(call: Call, from_the_end: bool) -> int:
    return int(call.note.depth - (call.note.ledger.deepest + 1 if from_the_end else 0))


def _rule(given: Any, options: Mapping[str, Any]) -> Weighted:
    """A rule by name, with its own options over the composite's."""
    name, own = given if isinstance(given, tuple) and len(given) == 2 else (given, {})
    if name not in RULES:
        raise ParameterError(
            f"The rule {name!r} is not known. {nearest(str(name), RULES)}".rstrip()
            + f"\n  Give one of {', '.join(RULES)}."
        )
    known = _PARAMETERS[name]
    if not isinstance(own, Mapping) or any(key not in known for key in own):
        raise ParameterError(f"The rule {name!r} got {own!r}.\n  It takes {', '.join(known) or 'no options'}.")
    return RULES[name](**{key: own.get(key, options[key]) for key in known if key in own or key in options})
