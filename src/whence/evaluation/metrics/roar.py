"""ROAR: remove and retrain (Hooker et al. 2019)."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from whence.errors import InputError, ParameterError
from whence.evaluation.metrics import Asking, metric
from whence.evaluation.metrics.shares import count, percents
from whence.evaluation.requests import Result, Retrained, View, both_classes, decision


@metric(
    "roar", order=45, paper="Hooker et al. 2019, arXiv:1806.10758", better="lower", of="values", needs=("label",),
    within=(0, 1), operators=("mean", "zero"),
)  # fmt: skip
def roar(
    view: View, *, train: Any = None, k: Any = (10, 30, 50, 70, 90), operator: Any = None, absolute: bool = False
) -> Asking:
    """Mean accuracy of models that were trained without the top k % of every row, on rows without theirs.

    `train(remove)` is your own function: it trains a new model on `remove(inputs)`, which gives training rows without
    what the method marks in them, and gives the model. It is called once for each method and k.
    """
    if not callable(train):
        raise ParameterError(
            "roar trains models anew.\n"
            '  Give {"roar": {"train": f}}: f(remove) trains on remove(inputs) and gives the model.'
        )
    label, classes = view.example.label, len(both_classes(view.logits))
    if label is None or not 0 <= label < classes:
        raise InputError(f"The label is {label}, but the model has {classes} classes.\n  Give one of them.")
    shares = percents(k, "roar")
    answers = yield [Retrained(train, share, _rounded, operator, absolute) for share in shares]
    right = [float(decision(logits) == label) for logits in answers]
    whole = float(decision(view.logits) == label)
    return Result(fmean(right), {"base accuracy": whole}, ([0, *shares], [whole, *right]))


def _rounded(view: View, share: float) -> int:
    return count(view, share, "nearest")
