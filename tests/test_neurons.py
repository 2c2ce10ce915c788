"""target=whence.neuron(…): a unit inside the model, by every kind of method, against the model cut there by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.models import CASES, close

PLAIN = [name for name, entry in whence.methods.items() if "needs" not in entry.facts]
FEWER: dict[str, dict[str, int]] = {
    "smoothgrad": {"samples": 4},
    "expected_gradients": {"samples": 8},
    "shapley": {"units": 3, "samples": 2, "exact": 8},
    "kernel_shap": {"units": 3, "samples": 32},
    "lime": {"units": 3, "samples": 32},
    "context_cite": {"units": 3, "samples": 32},
    "leave_one_out": {"units": 3},
    "occlusion": {"units": 3},
}


class Pooled(nn.Module):
    """The residual CNN up to its second convolution of the block, by hand."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: Tensor) -> Tensor:
        w = self.whole
        return w.left(w.pool(w.relu(w.norm(w.conv(x)))))


@pytest.mark.parametrize("method", PLAIN)
def test_every_method_explains_a_unit_as_if_the_model_ended_there(method: str) -> None:
    model, x = CASES["residual_cnn"].make()
    more = FEWER.get(method, {})
    found = whence.explain(model, x, method=method, target=whence.neuron("left", (5, 2, 2)), **more)
    cut = whence.explain(Pooled(model), x, method=method, target=lambda out: out[:, 5, 2, 2], **more)
    close(found.values, cut.values, 1e-10)
    close(found.output_value, whence.activations(model, x, at="left")[:, 5, 2, 2], 1e-12)
    assert found.target == "neuron left (5, 2, 2)"
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("method", ["rollout", "generic_attention", "transformer_attribution", "attcat"])
def test_attention_above_a_unit_is_not_read(method: str) -> None:
    model, inputs = CASES["bert_sdpa"].make()
    unit = whence.neuron("bert.encoder.layer.0", (0, 3))
    found = whence.explain(model, inputs, method=method, target=unit).values
    below = CASES["bert_sdpa"].make()[0]
    below.bert.encoder.layer = below.bert.encoder.layer[:1]
    cut = whence.explain(
        lambda input_ids, attention_mask: below.bert(input_ids, attention_mask).last_hidden_state, inputs,
        method=method, target=(0, 3),
    ).values  # fmt: skip
    close(found, cut, 1e-10)


def test_slices_are_summed_and_functions_see_the_modules_output() -> None:
    model, x = CASES["residual_cnn"].make()
    truth = whence.activations(model, x, at="relu@2")
    whole = slice(None)
    for index, score in (
        ((2, whole, whole), truth[:, 2].sum((1, 2))),
        ((slice(1, 3), 0, -1), truth[:, 1:3, 0, -1].sum(1)),
        ((..., 1), truth[..., 1].sum((1, 2))),
        (lambda out: out.amax((1, 2, 3)), truth.amax((1, 2, 3))),
    ):
        a = whence.explain(model, x, method="gradient", target=whence.neuron("relu@2", index))
        close(a.output_value, score, 1e-12)
    inner = whence.explain(model, x, method="gradient", target=whence.neuron("relu@2", (2, 1, 1)), at="pool")
    assert inner.values.shape == (3, 6, 5, 5)
    recurrent, steps = CASES["lstm"].make()
    a = whence.explain(recurrent, steps, method="deeplift", target=whence.neuron("rnn", (3, 7)))
    close(a.output_value, whence.activations(recurrent, steps, at="rnn")["output"][:, 3, 7], 1e-12)
    assert float(a.gap.max()) < 1e-8
    a = whence.explain(recurrent, steps, method="gradient", target=whence.neuron("rnn", lambda out: out[1][0][0, :, 2]))
    close(a.output_value, whence.activations(recurrent, steps, at="rnn")["h_n"][:, 0, 2], 1e-12)
    clf = whence.load("zoo:sentiment")
    unit = whence.neuron("bert.embeddings", (0, 3))
    assert whence.explain(clf, ["a dull film", "good"], method="input_x_gradient", target=unit).values.shape[0] == 2
    assert whence.explain(model, x, target=whence.neuron("left", (0, 0, 0))).method  # the default method


REFUSED: list[tuple[Any, Any, str]] = [
    ("left", 3, r"this module's output is \(3, 6, 5, 5\), so one of its units has 3 indices(.|\n)*slice\(None\)"),
    ("left", (9, 0, 0), r"is out of range: this module's output is \(3, 6, 5, 5\)"),
    ("left", (slice(7, 9), 0, 0), "selects nothing"),
    ("left", "a", "names no unit"),
    ("left", True, "names no unit"),
    ("left", (), "names no unit"),
    ("relu", (0, 0, 0), r'.relu. runs 2 times(.|\n)*"relu@1" to "relu@2"'),
    ("relu@3", (0, 0, 0), "'relu@3': the module 'relu' ran 2 times"),
    ("nothing", 0, "neuron='nothing' is not a module of the model"),
    ("left", lambda out: out, "The target function returned the shape"),
]


@pytest.mark.parametrize(("path", "index", "message"), REFUSED)
def test_what_names_no_unit_is_refused(path: str, index: Any, message: str) -> None:
    model, x = CASES["residual_cnn"].make()
    with pytest.raises(whence.WhenceError, match=message):
        whence.explain(model, x, method="gradient", target=whence.neuron(path, index))
    assert not any(module._forward_hooks for module in model.modules())


def test_a_function_has_no_modules_to_name() -> None:
    with pytest.raises(whence.InputError, match="names a module, but the model is a plain function"):
        whence.explain(lambda x: x * 2, torch.ones(2, 3), method="gradient", target=whence.neuron("a", 0))


def test_a_model_that_raises_is_left_as_it_was() -> None:
    model, x = CASES["residual_cnn"].make()
    with pytest.raises(whence.ModelError, match="The model raised RuntimeError"):
        whence.explain(model, x[:, :1], method="gradient", target=whence.neuron("left", (0, 0, 0)))
    assert not any(module._forward_hooks for module in model.modules())
