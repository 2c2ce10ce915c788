"""Models that compute with complex numbers: each is a pair of real ones, of which both have relevance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import whence
from tests.support.models import close

SEED = torch.Generator().manual_seed(0)
X = torch.randn(2, 6, dtype=torch.float64, generator=SEED)
W = torch.randn(6, 3, dtype=torch.float64, generator=SEED)
V = torch.randn(6, 3, dtype=torch.float64, generator=SEED)
C = torch.complex(W[:, 0], V[:, 0])
Model = Callable[[Tensor], Tensor]


def z(x: Tensor) -> Tensor:
    return torch.complex(x, x.tanh())


def u(x: Tensor) -> Tensor:
    return torch.complex(x.relu(), -x)


MODELS: dict[str, Model] = {
    "parts": lambda x: z(x).imag @ W + z(x).real @ V,
    "product": lambda x: (z(x) * u(x)).imag @ W,
    "conjugate": lambda x: (z(x).conj() * u(x)).real @ W,
    "real times complex": lambda x: (x * z(x)).real @ W,
    "complex by real": lambda x: (z(x) / (x.abs() + 1)).real @ W,
    "real by complex": lambda x: (x / torch.complex(x + 3, x.tanh())).real @ W,
    "constant": lambda x: (z(x) * C).imag @ W,
    "pairs": lambda x: torch.view_as_real(z(x) * C).flatten(1) @ torch.cat([W, V]),
    "sum": lambda x: (z(x) + u(x) + x + C).real @ W,
    "size": lambda x: z(x).abs() @ W,
    "exponential": lambda x: z(x).exp().imag @ W,
    "matrix": lambda x: (z(x) @ torch.complex(W, V)).imag,
    "cumsum": lambda x: z(x).cumsum(1).imag @ W,
    "concatenated": lambda x: torch.cat([z(x)[:, :3], u(x)[:, 3:]], 1).imag @ W,
    "chosen": lambda x: torch.where(x > 0.2, z(x), u(x)).imag @ W,
    "filtered": lambda x: torch.fft.irfft(torch.fft.rfft(x.tanh()) * C[:4], n=6) @ W,
    "convolved": lambda x: torch.fft.irfft(torch.fft.rfft(x.tanh()) * torch.fft.rfft(x), n=6) @ W,
}


@pytest.mark.parametrize("rule", ["rescale", "reveal_cancel"])
@pytest.mark.parametrize("name", MODELS)
def test_deeplift_sums_to_the_delta(name: str, rule: str) -> None:
    model = MODELS[name]
    a = whence.explain(model, X, method="deeplift", target=0, rule=rule, baseline=0.1, signed=True)
    rise = model(X)[:, 0] - model(torch.full_like(X, 0.1))[:, 0]
    close(a.values.sum(1), rise, 1e-10)
    close(a.positive.sum(1) + a.negative.sum(1), rise, 1e-10)


@pytest.mark.parametrize("composite", ["chefer", "epsilon", "z_plus", "alpha_beta", "gamma"])
@pytest.mark.parametrize("name", MODELS)
def test_relevance_is_accounted_for(name: str, composite: str) -> None:
    a = whence.explain(MODELS[name], X, method="lrp", target=0, composite=composite)
    for row, line in enumerate(a.receipt["relevance"]):
        assert line["end"] == pytest.approx(float(a.values[row].sum()), abs=1e-9)
        assert line["start"] == pytest.approx(line["end"] + sum(line["lost"].values()), abs=1e-9)
        alone = whence.explain(MODELS[name], X[row : row + 1], method="lrp", target=0, composite=composite)
        close(alone.values[0], a.values[row], 1e-9)


TWINS: dict[str, tuple[Model, Model]] = {  # and what is the same in real numbers
    "product": (MODELS["product"], lambda x: (x * -x + x.tanh() * x.relu()) @ W),
    "matrix": (MODELS["matrix"], lambda x: torch.cat([x, x.tanh()], 1) @ torch.cat([V, W])),
    "real times complex": (MODELS["real times complex"], lambda x: (x * x) @ W),
}


@pytest.mark.parametrize("name", TWINS)
def test_complex_numbers_get_what_pairs_of_real_ones_get(name: str) -> None:
    ours, plain = (whence.explain(model, X, method="deeplift", target=0, baseline=0.1).values for model in TWINS[name])
    close(ours, plain, 1e-10)


def test_a_complex_matrix_gets_the_epsilon_rule_of_the_real_one() -> None:
    both = torch.cat([torch.cat([W, V], 1), torch.cat([-V, W], 1)])  # (real, imaginary) to (real, imaginary)

    def model(x: Tensor) -> Tensor:
        return torch.view_as_real(z(x) @ torch.complex(W, V)).mT.flatten(1)

    twins = (model, lambda x: torch.cat([x, x.tanh()], 1) @ both)
    options = {"composite": "epsilon", "epsilon": 1e-10, "stabilizer": 1e-10}
    ours, plain = (whence.explain(f, X, method="lrp", target=4, **options).values for f in twins)
    close(ours, plain, 1e-8)
