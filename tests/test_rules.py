"""Rules by name: what they meet, what they may give, and what the engine cannot see."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.functions import TRUTH, V, W, X, explain, own
from tests.support.models import close


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.clamp_(min=0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (ctx.saved_tensors[0] > 0)


def test_an_unseen_op_that_writes_in_place_is_named() -> None:
    def ignores_result(x: Tensor) -> Tensor:
        h = x @ W
        InPlace.apply(h)
        return h @ V

    for model in (lambda x: InPlace.apply(x @ W) @ V, ignores_result):
        with pytest.raises(whence.NoRule, match="InPlaceBackward"):
            explain(model, method="guided_backprop", target=0, unruled="error")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_parts_are_run_as_they_were_written() -> None:
    part = torch.compile(lambda x: F.relu(x @ W), backend="eager")
    close(explain(lambda x: part(x) @ V, method="guided_backprop", target=0).values, TRUTH, 1e-12)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    plain = explain(model, method="guided_backprop", target=0).values
    model[1].compile(backend="eager")
    close(explain(model, method="guided_backprop", target=0).values, plain, 1e-12)


@pytest.mark.parametrize(
    "relu",
    [
        F.relu,
        lambda x: x.clamp(min=0),
        lambda x: x.clamp_min(0),
        lambda x: torch.maximum(x, torch.zeros_like(x)),
        lambda x: torch.maximum(input=x, other=torch.zeros_like(x)),
        lambda x: x.max(other=torch.zeros_like(x)),
        lambda x: x.clamp(min=np.float32(0)),
        lambda x: torch.relu_(input=x * 1),
        F.relu6,
        lambda x: x.clamp(0, 6),
        F.leaky_relu,
    ],
)
def test_exact_zeros_pass_nothing_in_any_spelling(relu: Any) -> None:
    x = torch.tensor([[0.0, 1.0, -1.0]]).double()
    a = explain(lambda z: relu(z).sum(1), x, method="guided_backprop", unruled="error")
    assert a.values.tolist() == [[0.0, 1.0, 0.0]]


def test_rectifiers_that_broadcast_or_whose_slope_is_live() -> None:
    wide = explain(lambda x: torch.maximum(x[:, :1], torch.zeros(3, 8).double()).sum(1), method="deconvnet")
    assert wide.values.shape == X.shape
    explain(lambda x: F.prelu(x, x.mean().reshape(1)).sum(1), method="guided_backprop")


def test_clamp_between_tensors() -> None:
    low, high = torch.zeros(8).double(), torch.ones(8).double()
    explain(lambda x: (x @ W).clamp(low, high) @ V, method="guided_backprop")


@pytest.mark.parametrize("key", ["view", "index", "cast", "*", "linear", "add", "scale"])
def test_a_rule_on_views_or_in_place_sums_keeps_memory_tied(key: str) -> None:
    def writes_to_a_slice(x: Tensor) -> Tensor:
        h = x @ W
        h[:, :4].mul_(3)
        h.T[0].mul_(5)
        y = h.view(-1, 8).contiguous()
        y.mul_(2)
        return h @ V

    def adds_itself(x: Tensor) -> Tensor:
        y = x * 1
        y += y
        y.t_()
        y.t_()
        return y

    for model in (writes_to_a_slice, adds_itself):
        plain = explain(model, target=0).values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", whence.WhenceWarning)
            close(explain(model, target=0, rules={key: own}).values, plain, 1e-12)


def test_rules_by_spelling_group_and_qualified_name() -> None:
    def stop(call: Any, m: Any) -> Any:
        return [torch.zeros_like(x) for x in call.inputs]

    conv = nn.Conv1d(1, 2, 3).double()
    assert not explain(lambda x: conv(x[:, None]).sum((1, 2)), rules={"conv1d": stop}).values.any()
    assert not explain(lambda x: (x * 2).sum(1), rules={"mul": stop}).values.any()
    a = explain(lambda x: F.relu(x @ W) @ V, method="guided_backprop", target=0, rules={"elementwise": stop})
    assert not a.values.any()
    assert not explain(lambda x: torch.linalg.norm(x, dim=1), rules={"linalg_norm": stop}).values.any()


def test_rules_from_the_narrowest_name_and_groups_apart_from_ops() -> None:
    def stop(call: Any, m: Any) -> Any:
        return [torch.zeros_like(x) for x in call.inputs]

    conv = nn.Conv1d(1, 2, 3).double()
    found = explain(lambda x: conv(x[:, None]).sum((1, 2)), rules={"conv1d": stop, "linear": own})
    assert not found.values.any()
    with pytest.warns(whence.WhenceWarning, match="'norm'"):  # the group of layer norms, not the length of a vector
        assert explain(lambda x: x.norm(dim=1), rules={"norm": stop}).values.all()


def test_a_rule_that_meets_no_op_is_said() -> None:
    with pytest.warns(whence.WhenceWarning, match=r"'gelu'.* met no op here"):
        explain(lambda x: F.relu(x @ W) @ V, target=0, rules={"gelu": own})


@pytest.mark.parametrize("given", [None, 1.0, "no", [1.0], lambda x: [x, x, x]])
def test_what_a_rule_gives_is_checked(given: Any) -> None:
    def rule(call: Any, m: Tensor) -> Any:
        return given(m) if callable(given) else given

    with pytest.raises(whence.RuleError, match="'rule' for 'relu'"):
        explain(lambda x: F.relu(x @ W) @ V, target=0, rules={"relu": rule})


def test_constants_and_our_own_scoring_are_not_unruled() -> None:
    def model(x: Tensor) -> Tensor:
        h = F.relu(x @ W)
        h = h + torch.zeros_like(h) * (h > 0) + h.new_zeros(8)
        with torch.no_grad():
            h.logsumexp(1)
        return h @ V

    a = explain(model, method="guided_backprop", unruled="error", output="probability")
    assert a.receipt["unruled"] == []


def test_receipts_say_what_was_done() -> None:
    def zero(call: Any, m: Tensor) -> Tensor:
        return torch.zeros_like(m)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a = explain(lambda x: x @ W[:, :3], output="probability", rules={"softmax": zero}, target=0)
    assert not a.values.any()
    with pytest.warns(whence.WhenceWarning, match="'gelu'"):
        explain(lambda x: F.relu(x @ W) @ V, rules={"relu": own, "gelu": own}, target=0)

    def overwrites(x: Tensor) -> Tensor:
        h = torch.sigmoid(x @ W)
        h *= 2
        return h

    assert [s.op for s in whence.trace(overwrites, X, method="gradient", target=0, show=False)] == [
        "matmul",
        "sigmoid",
        "mul",
    ]
