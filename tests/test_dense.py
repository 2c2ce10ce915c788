"""Dense layers whose derivative is taken where there is a signal give what autograd gives."""

import pytest
import torch
from torch import nn

import whence
from tests.support.models import close
from whence.engine import dense
from whence.engine.trackers import Op


class LastToken(nn.Module):
    """Dense layers over positions, of which the score reads one: in each spelling."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(5, 6).double(), nn.Linear(4, 3).double()
        self.weight, self.bias = (nn.Parameter(torch.randn(*size).double()) for size in ((6, 4), (4,)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x)).cumsum(1)
        x = torch.tanh(torch.addmm(self.bias, x.flatten(0, 1), self.weight)).view(*x.shape[:2], 4)
        return self.last(torch.tanh(x) @ self.weight.T @ self.weight)


@pytest.mark.parametrize("method", ["attnlrp", "cp_lrp"])
def test_the_signal_of_few_positions(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = LastToken(), torch.randn(2, 20, 5).double()
    found, looked = {}, []
    for work in (0, 1 << 60):
        monkeypatch.setattr(dense, "_WORK", work)
        monkeypatch.setattr(dense, "positions", lambda signal, own=dense.positions: _noted(looked, own(signal)))
        found[work] = whence.explain(model, x, method=method, target=(-2, 1))
        monkeypatch.undo()
    assert [len(seen) for seen in looked if seen is not None] == [2, 2, 2]  # one position of each of two rows
    assert sum(seen is None for seen in looked) == 1  # the first layer's, of which all positions but one count
    close(found[0].values, found[1 << 60].values, 1e-14)
    assert found[0].receipt["ops"] == found[1 << 60].receipt["ops"]


def _noted(looked: list, seen: torch.Tensor | None) -> torch.Tensor | None:
    looked.append(seen)
    return seen


def test_a_dense_layer_can_be_differentiated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "_WORK", 0)
    weight, one = torch.randn(3, 4).double(), torch.eye(10).double()[3].view(1, 10, 1)

    def at_one(x: torch.Tensor) -> torch.Tensor:
        y = dense.run(Op("linear", "linear", "", nn.functional.linear, (x, weight), {}, [x], []))
        assert y.grad_fn.name() == "_DenseBackward"
        return (y * one).pow(3)

    x = torch.randn(2, 10, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(at_one, x)
    assert torch.autograd.gradgradcheck(at_one, x)
