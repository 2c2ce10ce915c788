"""Names of features, as the units of the inputs that have them."""

from __future__ import annotations

from dataclasses import replace

from whence.results.attribution import Attribution
from whence.subject import Subject
from whence.util.receipt import Receipt


def with_feature_names(a: Attribution, subject: Subject) -> Attribution:
    """The features' names as the units of the inputs that have them, where values are one per feature."""
    known = {} if subject.at is not None else subject.feature_names
    by_name = a.by_name()
    names = by_name if subject.form == "dict" and not a.one_input else subject.roles
    units = {
        name: [list(known[name])] * len(a)
        for name, value in zip(names, by_name.values(), strict=False)
        if name in known and value.dim() == 2 + a.several and value.shape[-1] == len(known[name])
    }
    if not units:
        return a
    own = next(iter(units.values())) if a.one_input else units
    return replace(a, units=own, receipt=Receipt(a.receipt, {"names": list(units)}))  # type: ignore[arg-type]
