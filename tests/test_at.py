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
from whence.engine.outputs import floating


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
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    a = whence.explain(Several(make), x, method="integrated_gradients", at="block", target=0)
    assert list(a.values) == names
    close(a.values[names[0]], x * 2, 1e-6)
    close(a.values[names[1]], x * 6, 1e-6)
    assert float(a.gap.max()) < 1e-5


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
