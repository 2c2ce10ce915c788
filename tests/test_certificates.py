"""What integrated gradients say of their errors is true; benchmarks/certificates.py has more models and rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from benchmarks.certificates import KINKED, SMOOTH, Case, Held, held, mlp, noise, randomly

WIDTHS = [
    (6, 24, 24),
    (8, 32, 32),
    (12, 48, 48, 48),
    (5, 16, 16, 16),
    (16, 64, 64),
    (10, 20, 20, 20),
    (30, 64, 64),
    (4, 64, 64),
]
FEW = {
    **{
        f"random MLP {i}": lambda n, i=i: Case(
            randomly(lambda: mlp(*WIDTHS[i], 3), 100 + i), noise(n, WIDTHS[i][0], seed=200 + i, scale=1.0 + i % 3)
        )
        for i in range(len(WIDTHS))
    },
    **{name: KINKED[name] for name in ("MLP, 5 layers, random", "MLP, digits, random", "max-pool CNN, random")},
    **{
        name: SMOOTH[name]
        for name in (
            "tanh MLP, 6 inputs, random",
            "tanh MLP, digits, random",
            "GELU MLP, digits, random",
            "GRU, random",
        )
    },
}


def measured(make: Callable[[int], Case], tolerance: float) -> Held:
    return held(replace(make(8), points=5000), tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0.05, 0.01])
def test_rows_are_within_the_tolerance_and_below_what_the_receipt_says(tolerance: float) -> None:
    found = [measured(make, tolerance) for make in FEW.values()]
    assert all(len(one.receipt[name]) == 8 for one in found for name in ("converged", "tolerance_reached"))
    assert all(all(one.receipt["converged"]) for one in found)
    within, covered = (
        torch.cat([getattr(one, name) for one in found]).double().mean() for name in ("within", "covered")
    )
    assert float(within) >= 0.99
    assert float(covered) >= 0.95


def test_rows_that_cannot_be_brought_there_are_said_not_to_have_converged() -> None:
    from whence import WhenceWarning, explain

    case = KINKED["MLP, 5 layers, random"](4)
    with pytest.warns(WhenceWarning, match=r"rows \[0, 1, 2, 3\] did not reach the tolerance of 0.001"):
        a = explain(
            case.model, case.x, method="integrated_gradients", baseline=case.before, target=0, tolerance=1e-3,
            max_steps=40,
        )  # fmt: skip
    assert a.receipt["converged"] == [False] * 4
    assert min(a.receipt["tolerance_reached"]) > 1e-3
    assert max(a.receipt["gradient_evaluations"]) <= 40
