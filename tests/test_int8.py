"""Layers in int8 have no derivative: what propagates refuses them, what only runs the model does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch.ao


def dense() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def in_int8(model: nn.Module) -> Any:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear, nn.LSTM}, dtype=torch.qint8)


class Beside(nn.Module):
    """A float branch and one in int8: without a word, only the first would be explained."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = dense(), in_int8(dense())

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.lstm = nn.Linear(6, 4), in_int8(nn.Sequential(nn.LSTM(1, 3, batch_first=True)))

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.first(x)[..., None])[0][:, -1]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "all": lambda: in_int8(dense()),
    "after a float layer": lambda: nn.Sequential(nn.Linear(6, 6), in_int8(dense())),
    "beside a float layer": Beside,
    "an LSTM": Recurrent,
}
RUNS = ("leave_one_out", "occlusion", "permutation", "shapley", "kernel_shap", "lime", "random")
PROPAGATES = [name for name, entry in whence.methods.items() if name not in RUNS and "needs" not in entry.facts]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("method", PROPAGATES)
def test_what_propagates_refuses_int8(kind: str, method: str) -> None:
    with pytest.raises(whence.WhenceError, match=r"quantized.* has no derivative(.|\n)*shapley"):
        whence.explain(MODELS[kind](), torch.randn(2, 6), method=method, target=0)


@pytest.mark.parametrize("kind", MODELS)
def test_what_only_runs_the_model_explains_int8(kind: str) -> None:
    model, x = MODELS[kind](), torch.randn(2, 6)
    a = whence.explain(model, x, method="shapley", target=0, batch_size=1)  # its scale is that of a whole batch
    assert float(a.gap.max()) < 1e-5
    assert float(a.values.abs().max()) > 0


def test_a_kernel_without_a_backward_is_refused_too_unless_a_rule_is_given() -> None:
    library = torch.library.Library("whence_tests", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x.detach() * 2, "CPU")
    weight = torch.randn(3, 4)

    def model(x: Tensor) -> Tensor:
        return torch.ops.whence_tests.twice(x) @ weight.T

    x = torch.randn(2, 4)
    with pytest.raises(whence.ModelError, match="'whence_tests::twice'.*has no derivative"):
        whence.explain(model, x, method="gradient", target=0)
    a = whence.explain(model, x, method="gradient", target=0, rules={"whence_tests::twice": lambda call, m: 2 * m})
    assert torch.allclose(a.values, 2 * weight[:1].expand(2, -1))
