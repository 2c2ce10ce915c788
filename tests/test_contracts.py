"""What every method keeps on every model; driven by the registry, so a new method is checked without a new line."""

from __future__ import annotations

import copy
import gc
import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.models import (
    CASES,
    CLASSES,
    FEW,
    Case,
    close,
    first_tensor,
    fits,
    fitting,
    reads_attention,
    row_of,
)
from tests.support.slow import mostly_slow


def pairs(few: tuple[str, ...]) -> pytest.MarkDecorator:
    """Every method on every model; what is beyond the few is for `make test-all`."""
    return pytest.mark.parametrize(
        ("method", "case"),
        [
            pytest.param(method, CASES[name], id=f"{method}-{name}", marks=() if name in few else pytest.mark.every)
            for method in whence.methods
            for name in CASES
            if fits(method, name)
        ],
    )


ON_EVERY_PAIR = pairs(FEW)
ON_EVERY_PAIR_AGAIN = pairs(("residual_cnn", "bert_sdpa"))  # three passes and more: fewer of them in `make test`
METHODS = pytest.mark.parametrize("method", list(whence.methods))
FEW_METHODS = ["gradient", "smoothgrad", "integrated_gradients", "deeplift", "lrp", "rollout", "kernel_shap"]
A_FEW_METHODS = pytest.mark.parametrize("method", mostly_slow(whence.methods, FEW_METHODS))

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*hidden dimension of each token.*:whence.WhenceWarning"),
    # half precision, and zero embeddings under an RMS norm: what is promised holds for such rows too
    pytest.mark.filterwarnings("ignore:.*did not reach the tolerance.*:whence.WhenceWarning"),
    pytest.mark.filterwarnings("ignore:.*the baseline there is the mean embedding.*:whence.WhenceWarning"),
]


FEWER: dict[str, dict[str, int]] = {  # samples than by default: what is checked here holds for any number
    "smoothgrad": {"samples": 4},
    "expected_gradients": {"samples": 8},
    "shapley": {"exact": 8, "samples": 2},
}


def explain(model: Any, inputs: Any, method: str, **options: Any) -> whence.Attribution:
    return whence.explain(model, inputs, method=method, **{**FEWER.get(method, {}), **options})


@ON_EVERY_PAIR
def test_values_have_the_shape_and_dtype_of_the_input_and_are_finite(method: str, case: Case) -> None:
    model, inputs = case.make()
    a = explain(model, inputs, method)
    assert a.values.shape == shape_of(method, case, inputs)
    assert a.values.dtype == torch.float64
    assert bool(torch.isfinite(a.values).all())
    assert a.output_value.shape == a.target.shape == (len(first_tensor(inputs)),)


def shape_of(method: str, case: Case, inputs: Any) -> tuple[int, ...]:
    """The input's; for what reads attention or maps, one number per position."""
    shape = tuple(first_tensor(inputs).shape)
    if method == "grad_cam":
        return (3, 2, 2) if case.name.startswith("vit") else (3, 5, 5)
    if not reads_attention(method):
        return shape
    return (3, 2, 2) if case.name.startswith("vit") else shape[:2]


@ON_EVERY_PAIR
def test_a_row_alone_equals_the_row_in_a_padded_batch(method: str, case: Case) -> None:
    model, inputs = case.make()
    whole = explain(model, inputs, method)
    if whence.methods[method].facts.get("permutes"):
        return  # what a row gets comes from the other rows
    for row in range(len(whole)):
        alone = explain(model, row_of(inputs, row), method)
        inside = whole[row]
        close(alone.values, inside.values, case.rtol)
        close(alone.raw, inside.raw, case.rtol)
        close(alone.output_value, inside.output_value, case.rtol)


@ON_EVERY_PAIR
def test_everything_is_left_as_it_was(method: str, case: Case) -> None:
    model, inputs = case.make()
    model.train()
    model.register_forward_hook(lambda *_: None)
    parameter = next(model.parameters())
    parameter.grad = torch.ones_like(parameter)
    next(reversed(list(model.parameters()))).requires_grad_(False)
    torch.manual_seed(3)
    before = fingerprint(model, inputs)
    explain(model, inputs, method)
    assert_same(before, fingerprint(model, inputs))


@ON_EVERY_PAIR
def test_everything_is_left_as_it_was_when_the_model_raises(method: str, case: Case) -> None:
    model, inputs = case.make()
    model.train()

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("in the middle")

    list(model.children())[-1].register_forward_hook(fail)
    before = fingerprint(model, inputs)
    with pytest.raises(whence.ModelError, match="The model raised ZeroDivisionError.*: in the middle") as caught:
        explain(model, inputs, method)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert_same(before, fingerprint(model, inputs))


@ON_EVERY_PAIR_AGAIN
def test_several_targets_at_once_equal_each_alone(method: str, case: Case) -> None:
    model, inputs = case.make()
    rows = len(first_tensor(inputs))
    targets = torch.tensor([[0, 2], [1, 1], [3, 0]])[:rows]
    both = explain(model, inputs, method, target=targets)
    assert both.values.shape == (rows, 2, *shape_of(method, case, inputs)[1:])
    assert torch.equal(both.target, targets)
    if method == "random":
        return  # a fresh draw for each target
    for k in range(2):
        one = explain(model, inputs, method, target=targets[:, k])
        close(both.values[:, k], one.values, case.rtol)
        close(both.output_value[:, k], one.output_value, case.rtol)


@ON_EVERY_PAIR_AGAIN
def test_batch_size_changes_nothing(method: str, case: Case) -> None:
    model, inputs = case.make()
    whole, split = explain(model, inputs, method), explain(model, inputs, method, batch_size=2)
    close(split.raw, whole.raw, case.rtol)
    assert torch.equal(split.target, whole.target)


@ON_EVERY_PAIR_AGAIN
def test_the_same_seed_gives_the_same_numbers(method: str, case: Case) -> None:
    model, inputs = case.make()
    first, again = explain(model, inputs, method, seed=5), explain(model, inputs, method, seed=5)
    assert torch.equal(first.raw, again.raw)
    other = explain(model, inputs, method, seed=6)
    per_row = explain(model, inputs, method, seed=[5, 6, 5])
    close(per_row.raw[0], first.raw[0], 1e-12)
    close(per_row.raw[1], other.raw[1], 1e-12)
    sampled = ("shapley", "kernel_shap", "lime", "context_cite")
    drawn = case.name == "residual_cnn" and method in sampled  # the others have few units
    if method in ("random", "smoothgrad") or drawn:
        assert not torch.equal(first.raw, other.raw)


@METHODS
@pytest.mark.parametrize("name", mostly_slow(["residual_cnn", "bert_sdpa"], ["residual_cnn"]))
def test_the_callers_modes_do_not_matter(method: str, name: str) -> None:
    model, inputs = fitting(method, name).make()
    plain = explain(model, inputs, method).raw
    with torch.no_grad():
        close(explain(model, inputs, method).raw, plain, 1e-14)
    with torch.inference_mode():
        close(explain(model, inputs, method).raw, plain, 1e-14)
        created = copy.deepcopy(inputs) if isinstance(inputs, Tensor) else {k: v.clone() for k, v in inputs.items()}
        close(explain(model, created, method).raw, plain, 1e-14)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(explain(model, inputs, method).raw, plain, 1e-14)
    with torch.inference_mode():
        born_there = copy.deepcopy(model)
    close(explain(born_there, inputs, method).raw, plain, 1e-14)


@METHODS
@pytest.mark.parametrize("dtype", mostly_slow([torch.bfloat16, torch.float16], [torch.bfloat16]))
@pytest.mark.parametrize("name", ["mlp_module", "residual_cnn", "bert_sdpa"])
def test_half_precision_models_work(method: str, dtype: torch.dtype, name: str) -> None:
    model, inputs = fitting(method, name).make()
    model = model.to(dtype).double()  # the same model: with its weights unrounded, LRP gives other answers
    inputs = inputs.to(dtype).double() if isinstance(inputs, Tensor) else inputs
    exact = explain(model, inputs, method)
    model = model.to(dtype)
    half = inputs.to(dtype) if isinstance(inputs, Tensor) else inputs
    with warnings.catch_warnings():
        if method == "lrp":  # which divides by sums that are coarse in half precision
            warnings.filterwarnings("ignore", message=".*depend on rounding")
        a = explain(model, half, method, target=exact.target)
    assert a.raw.dtype == a.output_value.dtype == torch.float32  # whatever the type of the weights
    assert bool(torch.isfinite(a.raw).all())
    flat, true = a.raw.double().flatten(), exact.raw.flatten()
    if method in ("occlusion", "leave_one_out", "permutation"):  # a difference of two scores, rounded to this dtype
        rounding = torch.finfo(dtype).eps * float(exact.output_value.abs().max())
        assert float((flat - true).abs().max()) <= 2 * rounding
        return
    if float((flat - true).abs().max()) <= 2 * torch.finfo(dtype).eps * float(true.abs().max()):
        return  # as near as this dtype can tell
    assert float(torch.corrcoef(torch.stack([flat, true]))[0, 1]) > 0.95


@A_FEW_METHODS
def test_four_threads_give_bit_equal_results(method: str) -> None:
    model, inputs = fitting(method, "residual_cnn").make()
    model.train()
    alone = explain(model, inputs, method).raw
    found: list[Tensor] = []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        for _ in range(3):
            found.append(explain(model, inputs, method).raw)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 12
    assert all(torch.equal(one, alone) for one in found)
    assert all(module.training for module in model.modules())


@METHODS
def test_a_nested_explain_works(method: str) -> None:
    model, x = fitting(method, "mlp_functional").make()
    inner_alone = explain(model, x, "guided_backprop", target=0).values
    seen: list[Tensor] = []

    def target(output: Tensor) -> Tensor:
        seen.append(explain(model, x, "guided_backprop", target=0).values)
        return output[:, 1]

    outer = explain(model, x, method, target=target)
    assert torch.equal(seen[0], inner_alone)
    close(outer.raw, explain(model, x, method, target=1).raw, 1e-14)


@METHODS
def test_output_space_and_callables(method: str) -> None:
    model, x = fitting(method, "mlp_functional").make()
    probability = explain(model, x, method, target=1, output="probability")
    close(probability.output_value, model(x).softmax(1)[:, 1].detach(), 1e-12)
    by_hand = explain(model, x, method, target=lambda y: y.softmax(1)[:, 1])
    close(probability.raw, by_hand.raw, 1e-12)
    logged = explain(model, x, method, target=1, output="log_probability")
    close(logged.output_value, model(x).log_softmax(1)[:, 1].detach(), 1e-12)


def test_every_case_has_the_promised_number_of_classes() -> None:
    for case in CASES.values():
        model, inputs = case.make()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert explain(model, inputs, "gradient", target=CLASSES - 1).target.tolist() == [CLASSES - 1] * 3


# ---- state ----


def fingerprint(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """Everything that an explanation could disturb."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for key, value in module.__dict__.items():
            found[f"{path}.{key}"] = dict(value) if isinstance(value, dict) else value
    for name, parameter in model.named_parameters():
        grad = None if parameter.grad is None else parameter.grad.clone()
        found[f"parameter {name}"] = (parameter.detach().clone(), parameter.requires_grad, grad)
    for name, buffer in model.named_buffers():
        found[f"buffer {name}"] = (buffer.clone(), buffer.requires_grad)
    for i, tensor in enumerate([inputs] if isinstance(inputs, Tensor) else inputs.values()):
        found[f"input {i}"] = (tensor.clone(), tensor.requires_grad, tensor.grad, dict(tensor.__dict__))
    found["random"] = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy())
    found["modes"] = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    return found


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for key in before:
        assert _same(before[key], after[key]), key


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return a is b or a == b


@pytest.mark.slow
@A_FEW_METHODS
def test_nothing_waits_for_the_garbage_collector(method: str) -> None:
    """A graph that holds its pass, which holds the graph, would fill the memory of a long run."""
    model, inputs = fitting(method, "bert_sdpa").make()
    explain(model, inputs, method, target=0)
    gc.collect()
    gc.disable()
    try:
        before = sum(type(item) is Tensor for item in gc.get_objects())
        explain(model, inputs, method, target=0)
        after = sum(type(item) is Tensor for item in gc.get_objects())
    finally:
        gc.enable()
    assert after <= before
