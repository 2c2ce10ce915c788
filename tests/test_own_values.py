"""whence.infidelity and whence.sensitivity_max: of attributions from anywhere, against the formulas and Captum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import whence
from tests.support.models import CASES, close

DRAW = torch.Generator().manual_seed(2)
X, Y = torch.randn(3, 4, generator=DRAW).double(), torch.randn(3, 2, generator=DRAW).double()


def square(x: Tensor) -> Tensor:
    return (x**2).sum(1)


def both(x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([(x**2).sum(1) + y.prod(1), y.sum(1)], 1)


def test_infidelity_of_a_square_by_hand() -> None:
    """f(x) − f(x − I) = 2 I·x − |I|², so that the gradient misses it by |I|²."""
    steps = [0.1, 0.3]
    turns = iter(steps)
    found = whence.infidelity(square, X, 2 * X, perturb=lambda x: torch.full_like(x, next(turns)), samples=2)
    wanted = torch.tensor(sum((4 * s**2) ** 2 for s in steps) / 2).double().expand(3)
    close(found, wanted, 1e-6)
    exact = whence.infidelity(lambda x: x @ X[0], X, X[0].expand(3, 4))
    assert float(exact.max()) < 1e-20


def test_the_best_scale_is_each_rows_own() -> None:
    scaled = whence.infidelity(lambda x: x @ X[0], X, X[0] * torch.tensor([[1.0], [-7.0], [0.01]]), scaled=True)
    assert float(scaled.max()) < 1e-20
    nothing = whence.infidelity(square, X, torch.zeros_like(X), scaled=True)
    close(nothing, whence.infidelity(square, X, torch.zeros_like(X)), 1e-12)


def test_several_inputs_by_place_and_by_name_and_functions() -> None:
    def phi(given: Any) -> whence.Attribution:
        return whence.explain(both, given, method="gradient", target=0)

    turned = whence.infidelity(both, (X, Y), phi, target=0, samples=7)
    close(turned, whence.infidelity(both, (X, Y), phi((X, Y)), target=0, samples=7), 1e-14)
    close(turned, whence.infidelity(both, (X, Y), (2 * X, Y.flip(1)), target=0, samples=7), 1e-10)
    named = whence.infidelity(both, {"x": X, "y": Y}, {"x": 2 * X, "y": Y.flip(1)}, target=0, samples=7)
    close(turned, named, 1e-10)
    alone = whence.infidelity(both, (X[1:2], Y[1:2]), (2 * X[1:2], Y[1:2].flip(1)), target=0, samples=7)
    close(turned[1:2], alone, 1e-10)
    assert not torch.equal(turned, whence.infidelity(both, (X, Y), (2 * X, Y.flip(1)), target=0, samples=7, seed=1))


def halves(given: Any) -> Any:
    """Gaussian noise in one form or the other."""
    return (
        tuple(0.1 * torch.randn_like(t) for t in given) if isinstance(given, tuple) else 0.1 * torch.randn_like(given)
    )


def test_captum_gives_the_same_infidelity() -> None:
    metrics = pytest.importorskip("captum.metrics")
    model, x = CASES["mlp_module"].make()
    phi = whence.explain(model, x, method="gradient", target=1).values
    steps = [0.1 * torch.randn(x.shape, generator=DRAW).double() for _ in range(5)]
    for scaled in (False, True):
        queue = list(steps)
        mine = whence.infidelity(
            model, x, phi, target=1, perturb=lambda _, queue=queue: queue.pop(0), samples=5, scaled=scaled
        )
        shift = lambda many: (s := torch.stack(steps, 1).flatten(0, 1), many - s)  # noqa: E731
        theirs = metrics.infidelity(
            model, shift, x, phi, target=1, n_perturb_samples=5, normalize=scaled, max_examples_per_batch=None
        )
        close(mine, theirs.detach().double(), 1e-6)


def test_sensitivity_of_a_square_by_hand() -> None:
    """φ = 2x moves by 2δ, whatever x is."""
    delta = torch.linspace(0.01, 0.04, 4, dtype=torch.float64)
    found = whence.sensitivity_max(lambda x: 2 * x, X, perturb=lambda x: x + delta, samples=2)
    close(found, delta.norm() / X.norm(dim=1), 1e-12)
    largest = whence.sensitivity_max(lambda x: 2 * x, X, perturb=lambda x: x + delta, samples=1, norm=float("inf"))
    close(largest, 0.04 / X.abs().amax(1), 1e-12)
    within = whence.sensitivity_max(lambda x: x, X, radius=0.5, samples=50, norm=float("inf")) * X.abs().amax(1)
    assert 0.4 < float(within.min()) <= float(within.max()) <= 0.5
    assert torch.isnan(whence.sensitivity_max(torch.zeros_like, X)).all()


def test_sensitivity_of_several_inputs_is_repeated_by_its_seed() -> None:
    def phi(given: Any) -> whence.Attribution:
        return whence.explain(both, given, method="input_x_gradient", target=0)

    found = whence.sensitivity_max(phi, (X, Y), samples=3)
    assert torch.equal(found, whence.sensitivity_max(phi, (X, Y), samples=3))
    assert not torch.equal(found, whence.sensitivity_max(phi, (X, Y), samples=3, seed=1))
    close(found[2:], whence.sensitivity_max(phi, (X[2:], Y[2:]), samples=3), 1e-10)
    state = torch.get_rng_state()
    drawn = [whence.sensitivity_max(phi, (X, Y), perturb=nudge, samples=3) for _ in range(2)]
    assert torch.equal(*drawn)
    assert torch.equal(state, torch.get_rng_state())


def nudge(given: Any) -> Any:
    return tuple(t + h for t, h in zip(given, halves(given), strict=True))


def test_captum_gives_the_same_sensitivity() -> None:
    metrics = pytest.importorskip("captum.metrics")
    model, x = CASES["mlp_module"].make()

    def phi(x: Tensor) -> Tensor:
        return whence.explain(model, x, method="input_x_gradient", target=1).values

    delta = 0.02 * torch.randn(1, *x.shape[1:], generator=DRAW).double()
    mine = whence.sensitivity_max(phi, x, perturb=lambda x: x + delta, samples=1)
    theirs = metrics.sensitivity_max(
        lambda x: (phi(*x),), x, perturb_func=lambda x, _: (x + delta,), n_perturb_samples=1
    )
    close(mine, theirs.double(), 1e-6)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(whence.InputError, match=r"attributions: there is \(3, 2\) for the input 'input'"):
        whence.infidelity(square, X, Y)
    with pytest.raises(whence.InputError, match=r"perturb: there is \(3, 2\)"):
        whence.infidelity(square, X, X, perturb=lambda x: Y)
    with pytest.raises(whence.InputError, match="the rows are ids"):
        whence.sensitivity_max(lambda x: x, torch.ones(2, 3).long())
    with pytest.raises(whence.ParameterError, match="samples=0"):
        whence.infidelity(square, X, X, samples=0)
    bert, inputs = CASES["bert_sdpa"].make()
    with pytest.raises(whence.InputError, match="the rows are ids"):
        whence.infidelity(bert, inputs, inputs)
