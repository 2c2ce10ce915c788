"""SmoothGrad says what noise each row got."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.models import close


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def rows() -> Tensor:
    x = torch.randn(3, 4).double()
    x[1] = 0.7
    return x


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}])
def test_a_row_of_range_0_gets_no_noise_and_that_is_said(options: dict[str, int]) -> None:
    net, x = model(), rows()
    with pytest.warns(whence.WhenceWarning, match=r"'input' are the same in rows \[1\].*no noise was added"):
        a = whence.explain(net, x, method="smoothgrad", target=0, **options)
    spread = 0.15 * (x.amax(1) - x.amin(1))
    close(torch.tensor(a.receipt["noise_deviation"], dtype=torch.float64), spread, 1e-12)
    assert a.receipt["noise_deviation"][1] == 0
    assert a[0].receipt["noise_deviation"] == a.receipt["noise_deviation"][:1]
    plain = whence.explain(net, x, method="gradient", target=0)
    close(a.values[1], plain.values[1], 1e-12)


def test_rows_with_noise_and_no_noise_at_all_are_not_warned_of() -> None:
    net, x = model(), rows()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whence.explain(net, x[::2], method="smoothgrad", target=0)
        whence.explain(net, x, method="smoothgrad", target=0, noise=0)


def test_of_several_inputs_the_one_without_a_range_is_named() -> None:
    net, x = model(), rows()[:1]
    with pytest.warns(
        whence.WhenceWarning, match=r"'b' are the same in rows \[0\].*integrated_gradients without noise"
    ):
        a = whence.explain(
            lambda a, b: net(a + b), {"a": x, "b": torch.ones_like(x)}, method="smoothgrad", target=0, samples=2,
            of="integrated_gradients",
        )  # fmt: skip
    assert a.receipt["noise_deviation"][0]["b"] == 0 < a.receipt["noise_deviation"][0]["a"]


def test_a_row_that_a_mask_hides_altogether_stays_finite() -> None:
    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, inputs_embeds: Tensor, attention_mask: Tensor) -> Tensor:
            return self.inner((inputs_embeds * attention_mask[..., None]).sum(1) + inputs_embeds.mean(1))

    inputs = {"inputs_embeds": torch.randn(2, 3, 4).double(), "attention_mask": torch.tensor([[1, 1, 0], [0, 0, 0]])}
    with pytest.warns(whence.WhenceWarning, match=r"rows \[1\]"):
        a = whence.explain(Pooled(), inputs, method="smoothgrad", target=0, samples=2)
    assert bool(torch.isfinite(a.raw).all())
