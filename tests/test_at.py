"""at= a module with several outputs: all floating ones are explained, by name."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.functions import explain
from tests.support.models import CASES, close
from whence.engine.modules import floating


def gradient(model: Any, inputs: Any, **options: Any) -> whence.Attribution:
    return whence.explain(model, inputs, method="gradient", **options)


class Recurrent(nn.Module):
    """A head on all three outputs of an LSTM: the sequence, the last hidden state and the cell."""

    def __init__(self, batch_first: bool = True, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.rnn = kind(3, 5, num_layers=2, batch_first=batch_first)
        self.head = nn.Linear(5, 4)
        self.double()

    def read(self, sequence: Tensor, *states: Tensor) -> Tensor:
        """From what has the rows first."""
        return self.head((sequence.mean(1) + sum((i + 1) * (s * s).sum(1) for i, s in enumerate(states))).tanh())

    def forward(self, x: Tensor) -> Tensor:
        first = self.rnn.batch_first
        sequence, states = self.rnn(x if first else x.transpose(0, 1))
        states = states if isinstance(states, tuple) else (states,)
        return self.read(sequence if first else sequence.transpose(0, 1), *(s.transpose(0, 1) for s in states))


WIDE = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(5)).double()
AT_METHODS = (
    "gradient", "input_x_gradient", "smoothgrad", "guided_backprop", "integrated_gradients", "expected_gradients",
    "path_integrated_gradients", "deeplift", "deepshap", "lrp", "attnlrp", "cp_lrp", "random",
)  # fmt: skip


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_at_a_recurrent_layer_explains_all_that_it_gives(kind: type[nn.RNNBase], batch_first: bool) -> None:
    model = Recurrent(batch_first, kind)
    names = ["output", "h_n", "c_n"] if kind is nn.LSTM else ["output", "h_n"]
    sequence, states = model.rnn(WIDE if batch_first else WIDE.transpose(0, 1))
    states = states if isinstance(states, tuple) else (states,)
    parts = [sequence if batch_first else sequence.transpose(0, 1), *(s.transpose(0, 1) for s in states)]
    parts = [part.detach().requires_grad_() for part in parts]
    wanted = torch.autograd.grad(model.read(*parts)[:, 1].sum(), parts)
    a = gradient(model, WIDE, at="rnn", target=1)
    assert list(a.values) == names
    for name, expected in zip(names, wanted, strict=True):
        close(a.values[name], expected, 1e-12)
    several = gradient(model, WIDE, at="rnn", target=torch.tensor([[0, 1]] * 3))
    for name, expected in zip(names, wanted, strict=True):
        close(several.values[name][:, 1], expected, 1e-12)
    assert "h_n" in a.to_html()


@pytest.mark.parametrize("method", AT_METHODS)
def test_every_method_is_complete_at_several_outputs_and_rows_do_not_meet(method: str) -> None:
    model = Recurrent()
    params = {"samples": 4} if method == "smoothgrad" else {}
    a = whence.explain(model, WIDE, method=method, at="rnn", target=1, **params)
    assert {name: tuple(v.shape) for name, v in a.values.items()} == {
        "output": (3, 4, 5), "h_n": (3, 2, 5), "c_n": (3, 2, 5)
    }  # fmt: skip
    if whence.methods[method].facts.get("complete"):
        assert float(a.gap.max()) < 1e-2
        total = sum(v.flatten(1).sum(1) for v in a.values.values())
        zero = model.rnn(torch.zeros_like(WIDE))
        rise = model(WIDE)[:, 1] - model.read(zero[0], *(s.transpose(0, 1) for s in zero[1]))[:, 1]
        close(total, rise.detach(), 1e-2)
    alone = whence.explain(model, WIDE[1:2], method=method, at="rnn", target=1, seed=0, **params)
    for name, value in alone.values.items():
        close(a.values[name][1:2], value, 1e-6)
    assert list(a[1].values) == ["output", "h_n", "c_n"]


class Several(nn.Module):
    """A block whose output has the given form, and a head that reads all of it."""

    def __init__(self, form) -> None:
        super().__init__()
        self.block, self.form = Block(form), form

    def forward(self, x: Tensor) -> Tensor:
        found = floating(self.block(x))
        return sum((i + 1.0) * t.sum(1, keepdim=True) for i, (_, t, _) in enumerate(found) if t.dim() > 1)


class Block(nn.Module):
    def __init__(self, form) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: Tensor) -> Any:
        return self.form(x * 2, x * 3)


Pair = namedtuple("Pair", "near far")


@dataclass
class Record:
    near: Tensor
    far: Tensor


FORMS = {
    "tuple": (lambda a, b: (a, b), ["0", "1"]),
    "nested": (lambda a, b: (a, (torch.ones(1).long(), [b])), ["0", "1.1.0"]),
    "named tuple": (Pair, ["near", "far"]),
    "dict": (lambda a, b: {"x": a, "y": b}, ["x", "y"]),
    "dict of tuples": (lambda a, b: {"x": (a,), "y": b}, ["x.0", "y"]),
    "dataclass": (Record, ["near", "far"]),
}


@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_every_form_are_explained_by_name(form: str) -> None:
    make, names = FORMS[form]
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1)).double()  # whose sums nearly cancel
    a = whence.explain(Several(make), x, method="integrated_gradients", at="block", target=0)
    assert list(a.values) == names
    close(a.values[names[0]], x * 2, 1e-12)
    close(a.values[names[1]], x * 6, 1e-12)
    assert float(a.gap.max()) < 1e-12


def test_a_tensor_that_is_given_twice_is_explained_once_and_one_without_rows_is_held_and_said() -> None:
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    a = whence.explain(Several(lambda a, b: (a, a)), x, method="gradient", at="block", target=0)
    close(a.values, torch.ones(2, 3), 1e-6)
    with pytest.warns(
        whence.WhenceWarning, match=r"at='block' has outputs whose first dimension is not the rows \('1'\)"
    ):
        a = whence.explain(Several(lambda a, b: (a, b.mean())), x, method="gradient", at="block", target=0)
    assert a.receipt["held"] == ["1"]
    close(a.values, torch.ones(2, 3), 1e-6)


def test_at_a_model_output_of_several_tensors() -> None:
    bert, inputs = CASES["bert_sdpa"].make()
    a = gradient(bert, inputs, at="bert")  # its classifier reads the pooled one
    assert list(a.values) == ["last_hidden_state", "pooler_output"]
    assert not a.values["last_hidden_state"].any()
    assert a.values["pooler_output"].any()


def test_hidden_axes_are_known_without_a_mask() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.dense = nn.Embedding(9, 4).double(), nn.Linear(4, 5).double()

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.dense(self.table(input_ids)).square().sum((1, 2))

    a = explain(Text(), {"input_ids": torch.ones(2, 3).long()}, at="dense", channels="sum")
    assert a.values.shape == (2, 3)


# ---- what modules give ----


def test_activations_are_what_a_module_gives() -> None:
    model, x = CASES["residual_cnn"].make()
    model.train()
    seen: list[Tensor] = []
    handle = model.relu.register_forward_hook(lambda module, args, output: seen.append(output.clone()))
    with torch.no_grad():
        model.eval()(x)
    handle.remove()
    model.train()
    found = whence.activations(model, x, at=["relu@1", "relu@2", "norm"])
    assert list(found) == ["relu@1", "relu@2", "norm"]
    close(found["relu@1"], seen[0], 1e-14)
    close(found["relu@2"], seen[1], 1e-14)
    assert float(found["norm"].min()) < 0  # before the ReLU that overwrites it
    assert not found["norm"].requires_grad
    assert all(module.training and not module._forward_hooks for module in model.modules())


def test_activations_of_several_outputs_come_by_name() -> None:
    model = Recurrent(batch_first=False)
    found = whence.activations(model, WIDE, at="rnn")
    sequence, (h, _) = model.rnn(WIDE.transpose(0, 1))
    assert list(found) == ["output", "h_n", "c_n"]
    close(found["output"], sequence.transpose(0, 1).detach(), 1e-14)
    close(found["h_n"], h.transpose(0, 1).detach(), 1e-14)
    clf = whence.load("zoo:sentiment")
    assert whence.activations(clf, ["good", "a dull film"], at="bert.embeddings").shape[:1] == (2,)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("relu", r'The module .relu. runs 2 times(.|\n)*"relu@1" to "relu@2"'),
        ("relu@3", "'relu@3': the module 'relu' ran 2 times"),
        ("nothing", "at='nothing' is not a module"),
        ("relu@x", "after @ comes the number of the call"),
        (3, "at=3 is not a module path"),
    ],
)
def test_a_place_that_is_not_there_has_no_activations(at: Any, message: str) -> None:
    model, x = CASES["residual_cnn"].make()
    with pytest.raises(whence.InputError, match=message):
        whence.activations(model, x, at=at)


def test_a_model_that_raises_on_the_way_to_its_module_is_left_as_it_was() -> None:
    model, x = CASES["residual_cnn"].make()
    with pytest.raises(whence.ModelError, match="The model raised"):
        whence.activations(model, x[:, :1], at="out")
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("method", ["gradient", "integrated_gradients", "deeplift", "lrp"])
def test_a_modules_values_are_kept_beside_its_explanation(method: str) -> None:
    model, x = CASES["residual_cnn"].make()
    a = whence.explain(model, x, method=method, at="pool", keep="activation", target=0, batch_size=2)
    (kept,) = a.kept["activation"]
    close(kept, whence.activations(model, x, at="pool"), 1e-12)
    a = whence.explain(model, x, method="grad_cam", at="relu@2", keep=("activation",), target=0)
    close(a.kept["activation"][0], whence.activations(model, x, at="relu@2"), 1e-12)
    assert len(gradient(Recurrent(), WIDE, at="rnn", target=1, keep="activation").kept["activation"]) == 3
    with pytest.raises(whence.ParameterError, match='keep="activation" keeps what a module gives, but none is named'):
        whence.explain(model, x, method=method, keep="activation", target=0)


# ---- what enters modules ----


class Crossed(nn.Module):
    """A module with two floating arguments and a mask, of which one is given by name; and a way past it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.mix, self.head = nn.Linear(3, 5), Mix(), nn.Linear(5, 4)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).tanh()
        return self.head(self.mix(y, other=x @ x.new_ones(3, 5), mask=torch.ones_like(y)) + y)


class Mix(nn.Module):
    def forward(self, this: Tensor, other: Tensor, mask: Tensor) -> Tensor:
        return (this * other * mask).sin()


@pytest.mark.parametrize("method", [*AT_METHODS, "leave_one_out", "occlusion", "shapley", "kernel_shap", "lime"])
def test_what_enters_a_module_is_what_left_the_one_before(method: str) -> None:
    model, x = CASES["mlp_module"].make()
    entering, leaving = whence.explain(model, x, method=method, at=["3@input", "2"], target=1).values()
    close(entering.values, leaving.values, 1e-12)
    close(entering.output_value, leaving.output_value, 1e-12)


def test_all_that_enters_a_module_is_explained_by_name_and_only_as_far_as_it_enters() -> None:
    model, x = Crossed(), WIDE[:, 0]
    y = model.first(x).tanh().detach().requires_grad_()
    other = (x @ x.new_ones(3, 5)).requires_grad_()
    wanted = torch.autograd.grad(model.head((y * other).sin() + y.detach())[:, 2].sum(), [y, other])
    found = gradient(model, x, at="mix@input", target=2).values
    assert list(found) == ["this", "other"]
    close(found["this"], wanted[0], 1e-12)
    close(found["other"], wanted[1], 1e-12)
    seen = whence.activations(model, x, at="mix@input")
    close(seen["this"], y.detach(), 1e-14)
    close(seen["other"], other.detach(), 1e-14)
    ig = whence.explain(model, x, method="integrated_gradients", at="mix@input", target=2, keep="activation")
    assert float(ig.gap.max()) < 1e-2
    close(ig.kept["activation"][0], y.detach(), 1e-14)


@pytest.mark.parametrize("batch_first", [True, False])
def test_what_enters_a_recurrent_layer_has_its_rows_first(batch_first: bool) -> None:
    model = Recurrent(batch_first)
    close(whence.activations(model, WIDE, at="rnn@input"), WIDE, 1e-14)
    inner = gradient(model, WIDE, at="rnn@input", target=1).values
    close(inner, gradient(model, WIDE, target=1).values, 1e-12)


def test_calls_units_and_maps_are_counted_for_what_enters_too() -> None:
    model, x = CASES["residual_cnn"].make()
    close(whence.activations(model, x, at="relu@1@input"), whence.activations(model, x, at="norm"), 1e-14)
    unit = whence.explain(model, x, method="gradient", target=whence.neuron("relu@1@input", (2, 1, 1)))
    close(unit.output_value, whence.activations(model, x, at="norm")[:, 2, 1, 1], 1e-14)
    several = whence.neuron("mix@input", lambda given: given[0][:, 0] + given[1][:, 1])
    assert gradient(Crossed(), WIDE[:, 0], target=several).values.shape == (3, 3)
    maps = [whence.explain(model, x, method="grad_cam", at=at, target=0).values for at in ("pool@input", "relu@1")]
    close(*maps, 1e-12)
    with pytest.raises(whence.InputError, match='at="relu@1@input" to at="relu@2@input"'):
        gradient(model, x, at="relu@input")
    with pytest.raises(whence.InputError, match=r"the module 'relu' ran 2 times"):
        gradient(model, x, at="relu@3@input")
    with pytest.raises(whence.InputError, match=r'after @ comes the number of the call, from 1, or "input"'):
        gradient(model, x, at="relu@input@1")
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_ids_enter_no_gradient() -> None:
    bert, inputs = CASES["bert_sdpa"].make()
    with pytest.raises(whence.InputError, match="this module gets no floating tensor"):
        gradient(bert, inputs, at="bert.embeddings.word_embeddings@input")
    with pytest.raises(whence.InputError, match="gets no floating tensor"):
        whence.activations(bert, inputs, at="bert.embeddings.word_embeddings@input")
    found = gradient(bert, inputs, at="bert.encoder.layer.0@input").values
    close(found, gradient(bert, inputs, at="bert.embeddings").values, 1e-12)


# ---- several modules ----


@pytest.mark.parametrize("method", ["gradient", "deeplift", "integrated_gradients", "lrp", "leave_one_out", None])
def test_a_list_of_modules_has_one_answer_each(method: str | None) -> None:
    model, x = CASES["mlp_module"].make()
    together = whence.explain(model, x, method=method, at=["0", "1", "2@input"], target=1)
    assert list(together) == ["0", "1", "2@input"]
    for path, a in together.items():
        alone = whence.explain(model, x, method=method, at=path, target=1)
        close(a.values, alone.values, 1e-12)
        close(a.output_value, alone.output_value, 1e-14)
    clf = whence.load("zoo:sentiment")
    found = whence.explain(clf, ["good", "a dull film"], method="gradient", at=["bert.embeddings", "bert.pooler"])
    assert [len(a) for a in found.values()] == [2, 2]


@pytest.mark.parametrize(
    ("at", "message"),
    [([], "at= is an empty list"), (["0", "1", "0"], "at= names '0' twice"), (["0", 3], "at=3 is not a module path")],
)
def test_a_list_of_modules_names_each_once(at: Any, message: str) -> None:
    model, x = CASES["mlp_module"].make()
    with pytest.raises(whence.InputError, match=message):
        gradient(model, x, at=at)
    with pytest.raises(whence.InputError, match=message):
        whence.activations(model, x, at=at)
    with pytest.raises(whence.ParameterError, match="compare explains one module"):
        whence.compare(model, x, methods=["gradient"], at=["0", "1"])


# ---- units of a module's output, removed ----

REMOVING = ("leave_one_out", "occlusion", "shapley", "kernel_shap", "lime")


def behind(model: Any, x: Tensor, first: int) -> tuple[Any, Tensor, Tensor]:
    """The layers after some, what they get, and what they would get for an input of zeros."""
    return model[first:], model[:first](x).detach(), model[:first](torch.zeros_like(x)).detach()


@pytest.mark.parametrize("method", REMOVING)
@pytest.mark.parametrize("own", [False, True])
def test_units_of_a_module_are_removed_as_if_the_model_began_there(method: str, own: bool) -> None:
    model, x = CASES["mlp_module"].make()
    rest, y, there = behind(model, x, 2)
    given, reference = ({"at": 0.0}, 0.0) if own else (None, there)
    found = whence.explain(model, x, method=method, at="1", target=1, baseline=given)
    wanted = whence.explain(rest, y, method=method, target=1, baseline=reference)
    close(found.values, wanted.values, 1e-12)
    close(found.baseline_value, wanted.baseline_value, 1e-12)


@pytest.mark.parametrize("method", REMOVING)
def test_units_of_several_outputs_of_maps_and_of_tokens(method: str) -> None:
    few = {"units": 3} if method in ("leave_one_out", "occlusion") else {"units": 3, "samples": 20}
    a = whence.explain(Recurrent(), WIDE, method=method, at="rnn", target=1, **few)
    assert {name: tuple(v.shape) for name, v in a.values.items()} == {
        "output": (3, 4, 5), "h_n": (3, 2, 5), "c_n": (3, 2, 5)
    }  # fmt: skip
    model, x = CASES["residual_cnn"].make()
    a = whence.explain(model, x, method=method, at="pool", target=0, **few)
    assert a.values.shape == whence.activations(model, x, at="pool").shape
    assert torch.equal(a.values[:, 0], a.values[:, 1])  # places, with all their channels
    bert, inputs = CASES["bert_sdpa"].make()
    a = whence.explain(bert, inputs, method=method, at="bert.encoder.layer.0", **few)
    row = {name: value[1:2] for name, value in inputs.items()}
    alone = whence.explain(bert, row, method=method, at="bert.encoder.layer.0", **few)
    close(a.values[1:2], alone.values, 1e-8)
    assert not a.values[~inputs["attention_mask"].bool()].any()


def test_leave_one_out_and_shapley_at_a_layer_are_captums() -> None:
    captum = pytest.importorskip("captum.attr")
    model, x = CASES["mlp_module"].make()
    there = captum.LayerFeatureAblation(model, model[2]).attribute(x, target=1)
    close(whence.explain(model, x, method="leave_one_out", at="2", target=1, baseline={"at": 0.0}).values, there, 1e-6)
    there = captum.LayerFeatureAblation(model, model[2]).attribute(x, 0.5, target=1, attribute_to_layer_input=True)
    mine = whence.explain(model, x, method="leave_one_out", at="2@input", target=1, baseline={"at": 0.5})
    close(mine.values, there, 1e-6)


@pytest.mark.parametrize("method", ["integrated_gradients", "deeplift", "expected_gradients", "shapley"])
def test_a_baseline_may_be_given_where_the_explained_values_are(method: str) -> None:
    model, x = CASES["mlp_module"].make()
    rest, y, _ = behind(model, x, 1)
    for value in (0.3, torch.linspace(-1, 1, y.shape[1]).double(), y.flip(0)):
        found = whence.explain(model, x, method=method, at="0", target=1, baseline={"at": value}, batch_size=2)
        wanted = whence.explain(rest, y, method=method, target=1, baseline=value, batch_size=2)
        close(found.values, wanted.values, 1e-9)
    for value, message in ((torch.ones(3), "has the shape"), ("mean", "Give a number or a tensor like its values")):
        with pytest.raises(whence.BaselineError, match=message):
            whence.explain(model, x, method=method, at="0", target=1, baseline={"at": value})
    with pytest.raises(whence.BaselineError, match="'at', which is not an input"):
        whence.explain(model, x, method=method, target=1, baseline={"at": 0.0})


def test_one_of_several_outputs_may_have_a_baseline_of_its_own() -> None:
    model = Recurrent()
    zero = model.rnn(torch.zeros_like(WIDE))
    a = whence.explain(model, WIDE, method="integrated_gradients", at="rnn", target=1, baseline={"at.output": 0.0})
    there = model.read(torch.zeros_like(zero[0]), *(s.transpose(0, 1) for s in zero[1]))[:, 1]
    close(a.baseline_value, there.detach(), 1e-10)


# ---- models that are functions, and inputs of every form ----


def test_modules_of_functions_and_of_models_with_several_inputs() -> None:
    model, x = CASES["mlp_module"].make()
    wanted = gradient(model, x, at="1", target=1).values
    close(gradient(lambda t: model(t), x, at="1", target=1).values, wanted, 1e-14)
    close(gradient(lambda t: model(t) * 2, x, at="1@input", target=1).values,
          2 * gradient(model, x, at="0", target=1).values, 1e-14)  # fmt: skip

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, a: Tensor, *, b: Tensor, scale: float = 1.0) -> Tensor:
            return self.inner(a + b) * scale

    both = {"a": x * 0.25, "b": x * 0.75, "scale": 3.0}
    close(gradient(Two(), both, at="inner.1", target=1).values, 3 * wanted, 1e-12)
    tuples = gradient(lambda a, b: model(a + b), (x * 0.25, x * 0.75), at="1", target=1)
    close(tuples.values, wanted, 1e-12)
    ig = whence.explain(Two(), both, method="integrated_gradients", at="inner.1", target=1, baseline={"a": 0.1})
    start = 3 * model(torch.full_like(x, 0.1))[:, 1]
    close(ig.baseline_value, start.detach(), 1e-12)
