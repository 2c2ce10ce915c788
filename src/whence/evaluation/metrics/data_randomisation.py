"""Whether an explanation depends on what the labels were (Adebayo et al. 2018)."""

from __future__ import annotations

from typing import Any

from whence.errors import ParameterError
from whence.evaluation.metrics import Asking, metric
from whence.evaluation.requests import Result, Under, View
from whence.util.stats import spearman


@metric("data_randomisation", order=72, paper="Adebayo et al. 2018, arXiv:1810.03292", better="lower", within=(0, 1))
def data_randomisation(view: View, *, model: Any = None, absolute: bool = True) -> Asking:
    """|ρ|, the rank correlation of |φ| with |φ| under `model`, of the same form but trained on permuted labels.

    A method that depends on what was learnt falls to 0. `absolute=False` ranks φ; the signed ρ is given beside it.
    """
    if model is None or not callable(model):
        raise ParameterError(
            "data_randomisation needs a second model.\n"
            '  Give {"data_randomisation": {"model": …}}, the same network trained on permuted labels.'
        )
    (scores,) = yield [Under(model)]
    here, there = view.settled(view.scores), view.settled(scores)
    signed = spearman(here, there)
    rho = spearman(here.abs(), there.abs()) if absolute else signed
    return Result(abs(rho), {} if signed != signed else {"signed correlation": signed})
