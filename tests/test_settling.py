"""Methods that remove units on models with one score for all rows, and on integers and booleans as values."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.models import close

METHODS = ("occlusion", "leave_one_out", "shapley", "kernel_shap", "lime")
EVERY = pytest.mark.parametrize("method", METHODS)
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).double()
W = torch.tensor([1.0, -2.0, 3.0]).double()
COUNTS = torch.tensor([[0, 3, 2], [4, 1, 1], [2, 2, 0], [1, 0, 3]])


def explain(model: Any, x: Any, method: str, **options: Any) -> whence.Attribution:
    return whence.explain(model, x, method=method, **options)


def curved(x: Tensor) -> Tensor:
    return torch.tanh(x @ W).sum() * x[:, 0].mean()


# ---- one score for all rows ----

ONE_FOR_ALL: dict[str, Any] = {
    "0-d": curved,
    "(1,)": lambda x: curved(x)[None],
    "(1, 1)": lambda x: curved(x).view(1, 1),
    "a number": lambda x: float(curved(x.detach())),
}


def without(kept: tuple[int, ...]) -> Tensor:
    x = torch.full_like(X, 0.25)
    x[:, list(kept)] = X[:, list(kept)]
    return curved(x)


def slow(method: str) -> Tensor:
    """Each feature's value, taken from all rows at once."""
    found = []
    for i in range(3):
        others = [j for j in range(3) if j != i]
        if method in ("leave_one_out", "occlusion"):
            found.append(without((0, 1, 2)) - without(tuple(others)))
            continue
        total = torch.zeros(()).double()
        for size in range(3):
            for some in itertools.combinations(others, size):
                weight = math.factorial(size) * math.factorial(2 - size) / math.factorial(3)
                total = total + weight * (without((*some, i)) - without(some))
        found.append(total)
    return torch.stack(found)[None]


@pytest.mark.parametrize("name", ONE_FOR_ALL)
@pytest.mark.parametrize("method", METHODS[:-1])
def test_one_score_for_all_rows_has_one_answer(method: str, name: str) -> None:
    a = explain(ONE_FOR_ALL[name], X, method, baseline=0.25)
    close(a.values, slow(method), 1e-9)
    close(a.output_value, curved(X)[None], 1e-12)
    close(a.baseline_value, without(())[None], 1e-12)
    assert len(a) == 1


def test_lime_of_one_score_for_all_rows_is_that_of_a_linear_score() -> None:
    close(explain(lambda x: (x @ W).sum(), X, "lime").values, (X.sum(0) * W)[None], 1e-9)


def test_captum_agrees_about_one_score_for_all_rows() -> None:
    from captum.attr import FeatureAblation, Occlusion, ShapleyValues

    for method, peer in {"leave_one_out": FeatureAblation, "shapley": ShapleyValues}.items():
        close(explain(curved, X, method, baseline=0.25).values, peer(curved).attribute(X, baselines=0.25), 1e-6)
    theirs = Occlusion(curved).attribute(X, sliding_window_shapes=(2,))
    close(explain(curved, X, "occlusion", window=2, stride=1).values, theirs.double(), 1e-6)


@EVERY
def test_images_inputs_and_units_of_one_score(method: str) -> None:
    image = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1)).double()
    found = explain(lambda i, x: i.sum() + 2 * x.sum(), (image, X[:2]), method).values
    assert found[0].shape == (1, 3, 4, 4)
    assert found[1].shape == (1, 3)
    close(found[1], 2 * X[:2].sum(0, keepdim=True), 1e-9)
    halves = torch.tensor([0, 0, 1])
    a = explain(lambda x: x.sum(), X, method, units=halves).values
    assert a[0, 0] == a[0, 1] != 0
    with pytest.raises(whence.InputError, match="differs from row to row(.|\n)*one row of units"):
        explain(lambda x: x.sum(), X, method, units=torch.arange(12).view(4, 3))
    with pytest.raises(whence.TargetError, match="one score for all rows, but the target differs"):
        explain(lambda x: x.sum(0, keepdim=True), X, method, target=[0, 1, 2, 0])
    close(explain(lambda x: x.sum(0, keepdim=True), X, method, target=1).values[0, 1], X[:, 1].sum(), 1e-9)


@pytest.mark.parametrize("method", ["gradient", "deeplift", "integrated_gradients", "shapley"])
def test_what_one_score_needs_is_said(method: str) -> None:
    options = {"batch_size": 2} if method == "shapley" else {}
    with pytest.raises(
        whence.ModelError, match="one score for all . rows(.|\n)*removes units(.|\n)*without batch_size"
    ):
        explain(curved, X, method, **options)


def test_one_row_with_a_scalar_is_explained_by_every_method() -> None:
    close(explain(lambda x: (x @ W).sum(), X[:1], "gradient").values, W[None], 1e-12)
    close(explain(lambda x: (x @ W).sum(), X[:1], "shapley").values, X[:1] * W, 1e-12)


# ---- integers and booleans ----


@EVERY
@pytest.mark.parametrize("size", [None, 3])
def test_integers_that_enter_no_embedding_are_values(method: str, size: int | None) -> None:
    a = explain(lambda x: x.double() @ W, COUNTS, method, baseline=1, batch_size=size)
    close(a.values, (COUNTS - 1) * W, 1e-9)
    assert a.values.dtype == torch.float64
    assert "enter no embedding" in a.receipt["integers"]
    whole = explain(lambda x: (2 * x).sum(1), COUNTS, method, baseline=COUNTS[:1], batch_size=size)  # and whole scores
    close(whole.values, 2.0 * (COUNTS - COUNTS[:1]).double(), 1e-9)


@EVERY
def test_booleans_are_values(method: str) -> None:
    flags = COUNTS > 1
    close(explain(lambda x: x.double() @ W, flags, method).values, flags * W, 1e-9)
    found = explain(lambda f, x: f.double() @ W + x.sum(1), (flags, X), method, wrt=["0", "1"], baseline=(True, 0.0))
    close(found.values[0], (flags.double() - 1) * W, 1e-9)
    close(found.values[1], X, 1e-9)
    with pytest.raises(whence.InputError, match="nothing to explain"):
        explain(lambda x: x.double() @ W, flags, "gradient")


@EVERY
def test_ids_beside_integer_columns(method: str) -> None:
    table = nn.Embedding(5, 2).double()

    def model(ids: Tensor, counts: Tensor, x: Tensor) -> Tensor:
        return table(ids).sum((1, 2)) + counts.double() @ W + x.sum(1)

    a = explain(model, (COUNTS, COUNTS, X), method, wrt=["0", "1", "2"])
    close(a.values[0], table.weight[COUNTS].sum(-1).detach(), 1e-9)
    close(a.values[1], COUNTS * W, 1e-9)
    close(a.values[2], X, 1e-9)
    assert a.receipt["integers"].startswith("'1'")


def test_ids_that_are_used_for_more_than_their_embedding_are_in_the_receipt() -> None:
    table = nn.Embedding(5, 2).double()
    a = explain(lambda ids: table(ids).sum((1, 2)) + ids.double().sum(1), COUNTS, "leave_one_out")
    assert "what else the model does with them stays as it is" in a.receipt["ids"]


def test_captum_agrees_about_integers() -> None:
    from captum.attr import FeatureAblation, ShapleyValues

    def model(x: Tensor) -> Tensor:
        return torch.tanh(x.double() @ W) * x[:, 0]

    for method, peer in {"leave_one_out": FeatureAblation, "shapley": ShapleyValues}.items():
        theirs = peer(model).attribute(COUNTS, baselines=1)
        close(explain(model, COUNTS, method, baseline=1).values, theirs.double(), 1e-6)


def test_a_baseline_that_integers_cannot_hold_is_named() -> None:
    for given in (0.5, torch.tensor([0.0, 0.5, 1.0])):
        with pytest.raises(whence.BaselineError, match=r"does not fit its dtype torch.int64(.|\n)*x.float\(\)"):
            explain(lambda x: x.double() @ W, COUNTS, "shapley", baseline=given)
    with pytest.raises(whence.IndependentError, match="holds integers(.|\n)*removes units(.|\n)*takes them as values"):
        explain(lambda x: x.double() @ W, COUNTS, "gradient")


# ---- empty tensors ----


@pytest.mark.parametrize("method", ["gradient", "integrated_gradients", "deeplift", "lrp", *METHODS])
@pytest.mark.parametrize("shape", [(0,), (4, 0)])
def test_an_empty_input_has_empty_values(method: str, shape: tuple[int, ...]) -> None:
    empty = torch.zeros(shape).double()
    a = explain(lambda x, e: x @ W + e.sum(), (X, empty), method)
    close(a.values[0], explain(lambda x: x @ W, X, method).values, 1e-9)
    assert a.values[1].shape == shape
    named = explain(lambda e, x: x @ W + e.sum(), {"e": empty, "x": X}, method)
    close(named.values["x"], a.values[0], 1e-12)
    assert named.values["e"].shape == shape


def test_nothing_but_an_empty_input_is_named() -> None:
    with pytest.raises(whence.InputError, match="is empty"):
        explain(lambda x: x.sum(1), torch.zeros(4, 0), "shapley")
