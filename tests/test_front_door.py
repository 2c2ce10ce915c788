"""explain: inputs, wrt, targets, outputs, at, baselines, and the form of the answer."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.models import CASES, close

G = torch.Generator().manual_seed(4)
W = torch.randn(5, 3, generator=G).double()
X = torch.randn(4, 5, generator=G).double()


def linear(x: Tensor) -> Tensor:
    return torch.tanh(x) @ W


def slope(target: Any) -> Tensor:
    return (1 - torch.tanh(X) ** 2) * W.T[target]


def gradient(model: Any, inputs: Any, **options: Any) -> whence.Attribution:
    return whence.explain(model, inputs, method="gradient", **options)


# ---- targets ----


ONES = [1, torch.tensor(1), [1, 1, 1, 1], torch.tensor([1] * 4), (1,), [(1,)] * 4, [1], torch.tensor([1]), [(1,)]]


@pytest.mark.parametrize("target", ONES)
def test_one_target_in_all_its_forms(target: Any) -> None:
    a = gradient(linear, X, target=target)
    close(a.values, slope(1), 1e-12)
    assert a.target.tolist() == [1] * 4
    close(a.output_value, linear(X)[:, 1], 1e-12)


def test_none_is_each_rows_prediction() -> None:
    a = gradient(linear, X)
    assert torch.equal(a.target, linear(X).argmax(1))
    close(a.values, slope(linear(X).argmax(1)), 1e-12)


@pytest.mark.parametrize("form", [torch.tensor, lambda t: t, lambda t: torch.tensor(t).numpy()])
def test_several_targets_come_from_one_forward_pass(form: Any) -> None:
    wanted = [[0, 1], [2, 0], [1, 1], [0, 2]]
    a = gradient(linear, X, target=form(wanted))
    assert a.values.shape == (4, 2, 5)
    assert a.receipt["forward_passes"] == 1
    for k in range(2):
        close(a.values[:, k], slope([t[k] for t in wanted]), 1e-12)
    assert a.several
    assert a[1].values.shape == (1, 2, 5)


def test_one_row_of_several_targets_is_for_all_rows() -> None:
    a = gradient(linear, X, target=[[0, 2]])
    assert a.target.tolist() == [[0, 2]] * 4
    close(a.values, gradient(linear, X, target=[[0, 2]] * 4).values, 1e-12)


def test_a_regressor_has_one_score_per_row() -> None:
    for model in (lambda x: linear(x)[:, 0], lambda x: linear(x)[:, :1]):
        for target in (None, 0):
            a = gradient(model, X, target=target)
            close(a.values, slope(0), 1e-12)
            assert a.target.tolist() == [0] * 4


def test_dense_outputs_take_tuples() -> None:
    def model(x: Tensor) -> Tensor:  # (rows, positions, classes)
        return x[:, :, None] * W[None]

    a = gradient(model, X, target=(2, 1))
    expected = torch.zeros(4, 5).double()
    expected[:, 2] = W[2, 1]
    close(a.values, expected, 1e-12)
    assert a.target == [(2, 1)] * 4
    per_row = gradient(model, X, target=[(0, 0), (1, 1), (2, 2), (-1, 0)])
    assert per_row.target[3] == (4, 0)
    assert [int(row.nonzero()[0]) for row in per_row.values] == [0, 1, 2, 4]


def test_minus_one_is_the_last_real_position() -> None:
    table = nn.Embedding(9, 4).double()

    def model(input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # (rows, n, 4)
        return table(input_ids).cumsum(1)

    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 7, 8]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]])
    a = gradient(model, {"input_ids": ids, "attention_mask": mask}, target=(-1, 2))
    assert a.target == [(3, 2), (1, 2), (3, 2)]


def test_segmentation_output_and_its_probability() -> None:
    conv = nn.Conv2d(2, 3, 3, padding=1).double()
    x = torch.randn(2, 2, 5, 5).double()
    a = gradient(conv, x, target=(1, 2, 3), output="probability")
    close(a.output_value, conv(x).softmax(1)[:, 1, 2, 3].detach(), 1e-12)
    assert a.values.shape == x.shape


def test_one_logit_is_a_binary_classifier() -> None:
    a = gradient(lambda x: linear(x)[:, :1], X, output="probability")
    close(a.output_value, linear(X)[:, 0].sigmoid(), 1e-12)


# ---- outputs ----


class Named(NamedTuple):
    loss: Tensor
    logits: Tensor


@dataclass
class Record:
    scores: Tensor
    loss: Tensor
    name: str = "a record"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: (y, "more"),
        lambda y: [y],
        lambda y: {"loss": y.mean(), "logits": y},
        lambda y: OrderedDict(hidden=y.long(), scores=y),
        lambda y: Named(y.mean(), y),
        lambda y: Record(y, y.mean(1)),
        lambda y: SimpleNamespace(scores=y, steps=3),
        lambda y: {"features": y * 2, "logits": y},
        lambda y: (y, y * 2),
    ],
)
def test_the_logits_are_found(wrap: Any) -> None:
    close(gradient(lambda x: wrap(linear(x)), X, target=2).values, slope(2), 1e-12)


def test_the_receipt_says_which_of_several_tensors_was_read() -> None:
    assert "scores_from" not in gradient(linear, X).receipt
    assert "scores_from" not in gradient(lambda x: {"logits": linear(x), "loss": linear(x).mean(1)}, X).receipt
    several = gradient(lambda x: (linear(x), x), X)
    assert several.receipt["scores_from"] == "0 (4, 3) of the tuple; not read: 1"
    named = gradient(lambda x: {"features": x, "logits": linear(x)}, X, batch_size=2)
    assert named.receipt["scores_from"] == "'logits' (2, 3) of the dict; not read: 'features'"


def test_a_function_gets_the_models_own_output() -> None:
    a = gradient(lambda x: {"a": linear(x), "b": x}, X, target=lambda out: out["a"][:, 0] + out["b"][:, 1])
    expected = slope(0)
    expected[:, 1] += 1
    close(a.values, expected, 1e-12)
    assert a.target == "<lambda>"


# ---- inputs and wrt ----


def two(a: Tensor, b: Tensor) -> Tensor:
    return (a * 2).sum(1, keepdim=True) + b.square().sum(1, keepdim=True)


def test_tuples_and_dicts_come_back_in_kind() -> None:
    as_tuple = gradient(two, (X, X[:, :2]))
    assert isinstance(as_tuple.values, tuple)
    close(as_tuple.values[1], 2 * X[:, :2], 1e-12)
    as_dict = gradient(two, {"a": X, "b": X[:, :2]})
    assert list(as_dict.values) == ["a", "b"]
    only = gradient(two, {"a": X, "b": X[:, :2]}, wrt="b")
    close(only.values, 2 * X[:, :2], 1e-12)
    close(gradient(two, (X, X[:, :2]), wrt=1).values, 2 * X[:, :2], 1e-12)
    assert list(gradient(two, {"a": X, "b": X[:, :2]}, wrt=["b", "a"]).values) == ["a", "b"]


def test_a_tuples_integers_and_a_dicts_masks_are_held() -> None:
    def model(x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return rnn(packed)[1][0][-1]

    torch.manual_seed(0)
    rnn = nn.LSTM(2, 3, batch_first=True).double()
    x = torch.randn(3, 4, 2).double()
    a = gradient(model, (x, torch.tensor([4, 2, 3])), target=0)
    assert a.values.shape == x.shape
    assert bool((a.values[1, 2:] == 0).all())

    def masked(x: Tensor, token_mask: Tensor, position_bias: Tensor) -> Tensor:
        return (x * token_mask + position_bias).sum(1, keepdim=True)

    held = gradient(masked, {"x": X, "token_mask": torch.ones_like(X) * 3, "position_bias": torch.ones_like(X)})
    close(held.values, torch.full_like(X, 3), 1e-12)


def test_rows_travel_with_what_is_held() -> None:
    scale = torch.arange(1.0, 5).double()[:, None]
    whole = gradient(lambda x, scale: (x * scale).sum(1, keepdim=True), {"x": X, "scale": scale}, wrt="x")
    split = gradient(lambda x, scale: (x * scale).sum(1, keepdim=True), {"x": X, "scale": scale}, wrt="x", batch_size=1)
    assert torch.equal(whole.values, split.values)
    assert torch.equal(whole.values, scale.expand(4, 5))


# ---- ids ----


class Tokens(nn.Module):
    """Looks ids up in the way that `look` says, and weighs positions."""

    def __init__(self, look: Any) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.table, self.position = nn.Embedding(10, 3).double(), nn.Embedding(6, 3).double()
        self.look = look

    def forward(self, ids: Tensor) -> Tensor:
        e = self.look(self.table, ids).reshape(len(ids), -1, 3)
        e = e + self.position(torch.arange(e.shape[1]))
        return (e**2).sum(2) @ torch.arange(1.0, e.shape[1] + 1).double()[:, None]


LOOKS = {
    "module": lambda table, ids: table(ids),
    "view": lambda table, ids: table(ids.view(-1, ids.shape[-1])),
    "cast and copy": lambda table, ids: table(ids.clone().int().to(torch.long).contiguous()),
    "flat": lambda table, ids: table(ids.flatten()),
    "transposed": lambda table, ids: table(ids.t()).transpose(0, 1),
    "index": lambda table, ids: table.weight[ids],
    "aten": lambda table, ids: torch.ops.aten.embedding(table.weight, ids),
    "keyword": lambda table, ids: F.embedding(input=ids, weight=table.weight),
}


@pytest.mark.parametrize("look", LOOKS)
def test_ids_are_explained_through_the_embedding_they_enter(look: str) -> None:
    model, ids = Tokens(LOOKS[look]), torch.tensor([[1, 2, 3, 1], [4, 0, 9, 2]])
    a = gradient(model, ids)
    e = model.table(ids) + model.position(torch.arange(4))
    expected = (2 * e * torch.arange(1.0, 5).double()[None, :, None]).detach()
    close(a.raw, expected, 1e-12)
    close(a.values, expected.square().sum(-1).sqrt(), 1e-12)
    close(gradient(model, ids, channels="sum").values, expected.sum(-1), 1e-12)
    close(gradient(model, ids, channels="sum_abs").values, expected.abs().sum(-1), 1e-12)


def test_a_slice_of_the_ids_leaves_the_rest_at_zero() -> None:
    model = Tokens(lambda table, ids: table(ids[:, 1:]))
    a = gradient(model, torch.tensor([[1, 2, 3, 1]]))
    assert a.values.shape == (1, 4)
    assert float(a.values[0, 0]) == 0
    assert bool((a.values[0, 1:] != 0).all())


def test_arithmetic_on_ids_is_not_the_ids() -> None:
    with pytest.raises(whence.IndependentError, match="enter no embedding"):
        gradient(Tokens(lambda table, ids: table(ids + 1)), torch.tensor([[1, 2]]))


def test_ids_that_enter_two_embeddings_count_for_both() -> None:
    first, second = nn.Embedding(5, 3).double(), nn.Embedding(5, 2).double()
    a = gradient(
        lambda ids: (first(ids) * 2).sum((1, 2))[:, None] + second(ids).sum((1, 2))[:, None],
        torch.tensor([[1, 2]]),
    )
    close(a.values, torch.full((1, 2), (3 * 2.0**2 + 2) ** 0.5, dtype=torch.float64), 1e-12)
    close(a.channels("sum").values, torch.full((1, 2), 3 * 2.0 + 2).double(), 1e-12)
    assert [tuple(part.shape) for part in a.raw] == [(1, 2, 3), (1, 2, 2)]


def test_gradients_whose_hidden_sum_is_nothing_but_rounding_say_so() -> None:
    model, inputs = CASES["bert_sdpa"].make()
    with pytest.warns(whence.WhenceWarning, match="sums to 0") as caught:
        a = gradient(model, inputs, channels="sum")
    assert len(caught) == 1
    assert bool((a.values == 0).all())
    assert float(a.raw.abs().max()) > 1e-3
    magnitudes = gradient(model, inputs, channels="sum_abs").values  # no warning: it was asked for
    assert float(magnitudes.max()) > 1e-3


@pytest.mark.parametrize("method", ["gradient", "smoothgrad", "guided_backprop", "deconvnet"])
def test_sensitivity_to_a_token_is_the_length_of_its_gradient(method) -> None:
    model, inputs = CASES["bert_sdpa"].make()
    a = whence.explain(model, inputs, method=method)
    assert a.receipt["channels"] == "l2"
    assert not a.signed()
    close(a.values, a.raw.square().sum(-1).sqrt() * a.real, 1e-6)
    assert float(a.values[a.real].min()) > 0
    several = whence.explain(model, inputs, method=method, target=torch.tensor([[0, 1]] * len(a)))
    close(several.values, several.raw.square().sum(-1).sqrt() * a.real[:, None], 1e-6)
    assert "L2 norm" in a.to_html()


def test_contributions_of_a_token_are_summed() -> None:
    model, inputs = CASES["bert_sdpa"].make()
    for method, params in {"input_x_gradient": {}, "smoothgrad": {"of": "input_x_gradient"}, "deeplift": {}}.items():
        a = whence.explain(model, inputs, method=method, **params)
        assert a.receipt["channels"] == "sum"
        assert a.signed()
        close(a.values, a.raw.sum(-1) * a.real, 1e-6)
    assert "channels" not in whence.explain(nn.Linear(4, 2), torch.ones(1, 4), method="gradient").receipt


# ---- at ----


def test_at_explains_a_modules_output() -> None:
    model, x = CASES["mlp_module"].make()
    a = gradient(model, x, at="2", target=0)
    h = model[:3](x).detach().requires_grad_()
    close(a.values, torch.autograd.grad(model[3:](h * 1)[:, 0].sum(), h)[0], 1e-12)
    b = whence.explain(model, x, method="input_x_gradient", at="2", target=0)
    close(b.values, a.values * h.detach(), 1e-12)


def test_at_a_module_that_runs_twice_needs_the_number_of_the_call() -> None:
    model, x = CASES["mlp_reused"].make()
    with pytest.raises(whence.InputError, match=r'runs 2 times(.|\n)*at="act@1" to at="act@2"'):
        gradient(model, x, at="act")
    second = gradient(model, x, at="act@2", target=0)
    close(second.values, model.c.weight[0].detach().expand(3, 8), 1e-12)
    assert gradient(model, x, at="act@1", target=0).values.shape == (3, 10)
    with pytest.raises(whence.InputError, match="ran 2 times"):
        gradient(model, x, at="act@3")


def test_at_one_tensor_in_a_tuple_or_a_model_output_is_that_tensor() -> None:
    bert, inputs = CASES["bert_sdpa"].make()
    assert gradient(bert, inputs, at="bert.encoder.layer.0").values.shape == (3, 7, 16)
    gpt2, inputs = CASES["gpt2_sdpa"].make()
    assert gradient(gpt2, inputs, at="transformer").values.shape == (3, 7, 16)  # a ModelOutput


# ---- baselines ----


def test_a_baseline_is_checked_and_its_score_reported() -> None:
    a = gradient(linear, X, target=1, baseline=0)
    close(a.baseline_value, torch.zeros(4).double() + linear(torch.zeros(1, 5).double())[0, 1], 1e-12)
    row = X[:1] / 2
    for form in (row, row[0], row.expand(4, 5), {"input": row}):
        close(gradient(linear, X, target=1, baseline=form).baseline_value, linear(row)[:, 1].expand(4), 1e-12)
    predicted = gradient(linear, X, baseline=row)  # the class is the input's, not the baseline's
    close(predicted.baseline_value, linear(row)[0][predicted.target], 1e-12)


def test_baselines_of_ids() -> None:
    model, ids = Tokens(LOOKS["module"]), torch.tensor([[1, 2, 3]])
    zero = gradient(model, ids, baseline=0).baseline_value
    position = (model.position(torch.arange(3)) ** 2).sum(1)
    close(zero, (position @ torch.arange(1.0, 4).double())[None].detach(), 1e-12)
    other = torch.tensor([[4, 5, 6]])
    close(gradient(model, ids, baseline=other).baseline_value, model(other)[:, 0].detach(), 1e-12)
    close(gradient(model, ids, baseline=model.table(other)).baseline_value, model(other)[:, 0].detach(), 1e-12)


# ---- channels ----


def test_channel_aggregation() -> None:
    model, x = CASES["residual_cnn"].make()
    full = gradient(model, x).values
    close(gradient(model, x, channels="max_abs").values, full.abs().amax(1), 1e-12)
    close(gradient(model, x, channels="sum_abs").values, full.abs().sum(1), 1e-12)
    close(gradient(model, x, channels="sum").values, full.sum(1), 1e-12)
    several = gradient(model, x, target=torch.tensor([[0, 1]] * 3), channels="sum")
    assert several.values.shape == (3, 2, 9, 9)
    assert several.raw.shape == (3, 2, 2, 9, 9)


# ---- compare ----


def test_compare_explains_with_each_method() -> None:
    model, x = CASES["residual_cnn"].make()
    c = whence.compare(model, x, methods=["gradient", "input_x_gradient"], target=1)
    assert list(c) == ["gradient", "input_x_gradient"]
    close(c["gradient"].values, gradient(model, x, target=1).values, 1e-12)
    assert c.agreement().shape == (2, 2)
    close(c.agreement().diagonal(), torch.ones(2).double(), 1e-9)
    with_params = whence.compare(model, x, methods={"smoothgrad": {"samples": 2}, "gradient": None})
    assert with_params["smoothgrad"].params["samples"] == 2


def test_agreement_is_spearmans_correlation() -> None:
    c = whence.compare(lambda x: (x**3).sum(1), X, methods=["gradient", "input_x_gradient"])
    a, b = (v.values.argsort(1).argsort(1).double() for v in c.values())
    expected = torch.stack([torch.corrcoef(torch.stack([u, v]))[0, 1] for u, v in zip(a, b, strict=True)]).mean()
    assert float(c.agreement("rank")[0, 1]) == pytest.approx(float(expected), abs=1e-12)


def test_agreement_is_the_share_in_common() -> None:
    """By hand: 1 − ½ Σ |a − b| of values over their sum; signed where both are, and beside it what chance has."""
    given = {"a": torch.tensor([[8.0, 1.0, -1.0, 0.0]]), "b": torch.tensor([[6.0, -2.0, 0.0, 2.0]])}
    made = {
        name: replace(whence.explain(lambda x: x.sum(1), x, method="input_x_gradient"), values=x)
        for name, x in given.items()
    }
    found = whence.Comparison(made)
    assert float(found.agreement()[0, 1]) == pytest.approx(1 - (0.2 + 0.3 + 0.1 + 0.2) / 2)
    magnitudes = replace(made["b"], values=given["b"].abs()).with_channels({"x": "norm"})
    mixed = whence.Comparison({**made, "b": magnitudes})
    assert float(mixed.agreement()[0, 1]) == pytest.approx(1 - (0.2 + 0.1 + 0.1 + 0.2) / 2)
    weights = replace(made["b"], values=given["b"].abs(), method="raw_attention")  # not for or against, as on the page
    assert torch.equal(whence.Comparison({**made, "b": weights}).agreement(), mixed.agreement())
    chance = found.agreement("chance")
    assert 0 < float(chance[0, 1]) < float(found.agreement()[0, 1])
    assert torch.equal(chance, found.agreement("chance"))
    with pytest.raises(whence.ParameterError, match='"common", "chance" or "rank"'):
        found.agreement("other")  # type: ignore[arg-type]


# ---- without a method, and by other names ----

RELU = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
TANH = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.trace(RELU, X)


@pytest.mark.parametrize(
    ("make", "method", "why"),
    [
        (lambda: (RELU, X), "deeplift", "kinks"),
        (lambda: (TANH, X), "integrated_gradients", "smooth"),
        (lambda: CASES["bert_sdpa"].make(), "deeplift", "tokens"),
        (lambda: CASES["vit_sdpa"].make(), "deeplift", "attention"),
        (lambda: CASES["residual_cnn"].make(), "deeplift", "kinks"),
        (lambda: (scripted(), X), "integrated_gradients", "no rule can reach"),
    ],
)
def test_without_a_method_one_is_taken_and_says_why(make: Any, method: str, why: str) -> None:
    model, x = make()
    a = whence.explain(model, x, target=0)
    assert a.method == method
    assert a.receipt["method_chosen"].startswith(f"{method}: ")
    assert why in a.receipt["method_chosen"]
    named = whence.explain(model, x, target=0, method=method)
    assert "method_chosen" not in named.receipt
    close(a.values, named.values, 1e-12)


def test_a_default_that_cannot_follow_the_model_makes_way(capsys: pytest.CaptureFixture[str]) -> None:
    def model(x: Tensor) -> Tensor:
        return RELU(x) if bool(x.detach().abs().sum() > 0) else TANH(x)

    a = whence.explain(model, X, target=0, baseline=0.0)
    assert a.method == "integrated_gradients"
    assert "another branch" in a.receipt["method_chosen"]
    a.show()
    assert (
        "no method was named, so Whence chose integrated_gradients: deeplift cannot follow" in capsys.readouterr().out
    )
    assert "no method was named" in a.to_html()


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("ig", "integrated_gradients"), ("IG", "integrated_gradients"),
        ("Integrated-Gradients", "integrated_gradients"),
        ("integrated gradients", "integrated_gradients"), ("sg", "smoothgrad"), ("shap", "kernel_shap"),
        ("Saliency", "gradient"), ("gbp", "guided_backprop"), ("LIME", "lime"), ("ablation", "leave_one_out"),
        ("InputXGradient", "input_x_gradient"), ("DeepLift", "deeplift"), ("lrp-eps", "lrp"),
    ],
)  # fmt: skip
def test_methods_have_their_usual_names_too(alias: str, name: str) -> None:
    a = whence.explain(RELU, X, method=alias, target=0)
    assert a.method == name
    composite = {"composite": "epsilon"} if alias == "lrp-eps" else {}
    close(a.values, whence.explain(RELU, X, method=name, target=0, **composite).values, 1e-12)
    assert whence.methods[alias].name == name
    assert alias in whence.methods


def test_attention_is_read_from_attention_and_gradcam_from_maps() -> None:
    model, inputs = CASES["bert_sdpa"].make()
    assert whence.methods["GradCAM"].name == "grad_cam"
    assert whence.explain(model, inputs, method="attention").method == "raw_attention"
    with pytest.raises(whence.MethodError, match="grad_cam lays a layer's maps over an image or a signal"):
        whence.explain(RELU, X, method="grad-cam")
    with pytest.raises(whence.MethodError, match=r"'input_ids' holds ids(.|\n)*attention_gradcam for attention"):
        whence.explain(model, inputs, method="gradcam")


def test_tables_know_aliases() -> None:
    c = whence.compare(RELU, X, methods=["ig", "lrp", "lrp-eps"])
    assert list(c) == ["integrated_gradients", "lrp", "lrp-eps"]
    assert c["ig"] is c["integrated_gradients"]
    assert c["lrp-eps"].params["composite"] == "epsilon"
    with pytest.raises(whence.ParameterError, match="'integrated_gradients' twice"):
        whence.compare(RELU, X, methods=["ig", "integrated_gradients"])
    call: dict[str, Any] = {"methods": ["ig", "saliency"], "progress": False}
    board = whence.evaluate(RELU, X, metrics=["comprehensiveness"], **call)
    assert board.methods[:2] == ("integrated_gradients", "gradient")
    assert board["IG", "comprehensiveness"] == board["integrated_gradients", "comprehensiveness"]
    with pytest.raises(whence.InputError, match="'gradient' is listed twice"):
        whence.evaluate(RELU, X, metrics=["comprehensiveness"], methods=["saliency", "gradient"])
    table = whence.axioms(RELU, X, only=["completeness"], **call)
    assert table.methods == ("integrated_gradients", "gradient")
    assert table["ig", "completeness"] is table["integrated_gradients", "completeness"]
    assert whence.trace(RELU, X, method="lrp-eps", show=False).method == "lrp"


def test_every_alias_is_of_one_method() -> None:
    assert set(whence.methods.aliases.values()) <= set(whence.methods)
    with pytest.raises(ValueError, match="There is a method 'IG' already"):
        whence.method("new", aliases=("IG",))(lambda subject: {})
    for alias, name in whence.methods.aliases.items():
        own, preset = whence.methods.resolve(alias)
        assert own == name
        whence.methods[name].check(preset)


# ---- what is no tensor yet ----


class Frame:
    """What is read of a DataFrame (pandas is no dependency)."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self._columns = {name: np.asarray(values) for name, values in columns.items()}
        self.columns = list(columns)

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def to_numpy(self) -> Any:
        return np.stack(list(self._columns.values()), 1)


NAMES = ["age", "income", "height", "weight", "pulse"]


@pytest.mark.parametrize("form", [lambda x: x.numpy(), lambda x: x.float().numpy(), lambda x: x.tolist(), list])
def test_arrays_and_lists_are_taken_in_the_models_dtype(form: Any) -> None:
    given = form(X) if form is not list else list(X.numpy())
    a = gradient(RELU, given, target=0)
    close(a.values, gradient(RELU, X, target=0).values, 1e-5)
    assert a.values.dtype == torch.float64
    assert gradient(RELU.float(), given, target=0).values.dtype == torch.float32
    RELU.double()
    close(gradient(two, (X.numpy(), X[:, :2].numpy())).values[1], 2 * X[:, :2], 1e-12)
    before = gradient(RELU, X, target=0, baseline=np.zeros(5)).baseline_value
    close(before, gradient(RELU, X, target=0, baseline=0).baseline_value, 1e-12)


def test_integer_arrays_are_ids() -> None:
    ids = torch.tensor([[1, 2, 3]])
    model = Tokens(LOOKS["module"])
    for form in (ids.numpy(), ids.numpy().astype("uint16"), ids.tolist()):
        close(gradient(model, form, channels="sum").values, gradient(model, ids, channels="sum").values, 1e-12)


def test_features_have_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    frame = Frame(dict(zip(NAMES, X.T.numpy(), strict=True)))
    a = whence.explain(RELU, frame, method="input_x_gradient", target=0)
    b = whence.explain(RELU, X, method="input_x_gradient", target=0, names=NAMES)
    close(a.values, b.values, 1e-12)
    for found in (a, b):
        assert found.units == [NAMES] * 4
        assert {name for name, _ in found.top(5)[0]} == set(NAMES)
        found.show()
        assert "income" in capsys.readouterr().out
        assert "income" in found.to_html()
        found.save(tmp_path / "a.csv")
        assert "income" in (tmp_path / "a.csv").read_text()
        found.save(tmp_path / "a.safetensors")
        assert whence.Attribution.load(tmp_path / "a.safetensors")[1].units == [NAMES]
    several = whence.explain(RELU, X, method="gradient", target=[[0, 1]], names=NAMES)
    assert several.units == [NAMES] * 4
    assert "income: " in several.to_html()
    both = gradient(two, {"a": X, "b": X[:, :2]}, names={"b": ["low", "high"]})
    assert both.units == {"b": [["low", "high"]] * 4}
    assert "high: " in both.to_html()
    assert gradient(RELU, frame, at="1", target=0).units is None


def test_a_frames_integers_are_features_and_its_words_are_an_error() -> None:
    numbers = Frame({"a": [1, 2], "b": [True, False], "c": [0.5, 1.5], "d": [3, 4], "e": [0, 0]})
    assert gradient(RELU, numbers, target=0).values.shape == (2, 5)
    with pytest.raises(whence.InputError, match="The column 'b' holds <U1, not numbers"):
        gradient(RELU, Frame({"a": [1.0], "b": ["x"]}))


def test_a_real_dataframe() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X.numpy(), columns=NAMES)
    a = gradient(RELU, frame, target=0)
    assert a.units == [NAMES] * 4
    close(a.values, gradient(RELU, X, target=0).values, 1e-12)
    with pytest.raises(whence.InputError, match="is a Series"):
        gradient(RELU, frame.iloc[0])


class Keyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = RELU

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_batches_with_labels_in_them() -> None:
    expected = gradient(RELU, X, target=0).values
    a = gradient(Keyword(), {"x": X.numpy(), "y": np.arange(4)}, target=0)
    close(a.values, expected, 1e-12)
    assert a.receipt["left_out"] == ["y"]
    whole = gradient(lambda batch: RELU(batch["x"]), {"x": X, "y": torch.arange(4)}, target=0, wrt="x")
    close(whole.values, expected, 1e-12)
    with pytest.raises(whence.ModelError, match="unexpected keyword argument 'z'"):
        gradient(Keyword(), {"x": X, "z": X})


def test_data_sets_are_arrays_and_frames_too() -> None:
    call: dict[str, Any] = {"methods": ["gradient"], "metrics": ["comprehensiveness"], "progress": False}
    expected = whence.evaluate(RELU, X, **call)["gradient", "comprehensiveness"].value
    for data in (X.numpy(), X.tolist(), Frame(dict(zip(NAMES, X.T.numpy(), strict=True)))):
        assert whence.evaluate(RELU, data, **call)["gradient", "comprehensiveness"].value == pytest.approx(expected)


@pytest.mark.parametrize("names", [5, {"input": 7}, "abc", [1, 2, 3]])
def test_names_that_are_none(names):
    with pytest.raises(whence.InputError, match="names= holds something other than strings"):
        whence.explain(lambda x: x, torch.ones(2, 3), method="gradient", target=0, names=names)


@pytest.mark.parametrize("target", [0, [0, 1], (0,), None], ids=str)
@pytest.mark.parametrize("method", ["gradient", "deeplift", "lrp"])
def test_a_target_that_is_made_in_inference_mode(method: str, target: Any) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)), torch.ones(2, 4)
    outside = whence.explain(model, x, method=method, target=target)
    with torch.inference_mode():
        inside = whence.explain(model, x, method=method, target=target)
    assert torch.equal(inside.values, outside.values)


@pytest.mark.parametrize("method", [m for m, e in whence.methods.items() if not e.facts.get("propagates", True)])
def test_a_method_that_propagates_nothing_has_no_trace(method: str) -> None:
    with pytest.raises(
        whence.MethodError, match=f"{method} reads scores and propagates nothing(.|\n)*such as gradient"
    ):
        whence.trace(torch.nn.Linear(3, 2), torch.ones(1, 3), method=method, target=0)
