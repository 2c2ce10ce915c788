"""Each bad input raises its named error, whose text states the fact and the way out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.functions import X as FOUR
from tests.support.functions import explain, own
from tests.support.models import CASES, close
from whence.registry import Registry

X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).double()
MLP = CASES["mlp_functional"].make()[0]
DENSE = nn.Unflatten(1, (2, 2))


def nan_at(row: int, column: int) -> Tensor:
    x = X.clone()
    x[row, column] = float("nan")
    return x


def fails(model: Tensor) -> Tensor:
    return torch.full((3, 2), float("nan")) * model.sum()


Call = dict[str, Any]
BAD: list[tuple[str, Call, type[whence.WhenceError], str]] = [
    # inputs
    ("NaN", {"inputs": nan_at(1, 2)}, whence.InputError, r"'input' holds nan at \[1, 2\]"),
    ("infinite", {"inputs": X / 0}, whence.InputError, "holds -?inf at"),
    (
        "empty batch",
        {"inputs": X[:0]},
        whence.InputError,
        r"is empty: its shape is \(0, 6\)(.|\n)*at least one row",
    ),
    ("no rows", {"inputs": torch.tensor(1.0)}, whence.InputError, r"first dimension is rows: give x\[None\]"),
    ("text", {"inputs": "a clever film"}, whence.InputError, "is text(.|\n)*wrap the model"),
    ("array of words", {"inputs": X.numpy().astype(str)}, whence.InputError, "an array of <U.*torch cannot hold"),
    ("flat list", {"inputs": [1.0, 2.0]}, whence.InputError, r"flat list of 2 numbers(.|\n)*\[\[1.0"),
    ("ragged list", {"inputs": [[1.0], [1.0, 2.0]]}, whence.InputError, "different lengths"),
    ("object", {"inputs": object()}, whence.InputError, "The input is object"),
    (
        "too few names",
        {"names": ["a", "b"]},
        whence.InputError,
        r"2 names, but the input 'input' has the shape \(3, 6\)",
    ),
    ("names of no input", {"names": {"x": ["a"]}}, whence.InputError, "'x', which is not an input(.|\n)*'input'"),
    ("names that are none", {"names": [1, 2, 3, 4, 5, 6]}, whence.InputError, "other than strings"),
    ("empty dict", {"inputs": {}}, whence.InputError, "nothing to explain"),
    ("only masks", {"inputs": {"attention_mask": X}}, whence.InputError, "nothing to explain(.|\n)*wrt="),
    (
        "different rows",
        {"inputs": (X, X[:2])},
        whence.InputError,
        "'1' has the shape .* the others have 3 rows",
    ),
    ("wrt unknown", {"inputs": {"pixels": X}, "wrt": "pixel"}, whence.InputError, "Did you mean 'pixels'"),
    ("wrt not a tensor", {"inputs": {"x": X, "n": 3}, "wrt": "n"}, whence.InputError, "'n' is not a tensor"),
    ("wrt empty", {"wrt": []}, whence.InputError, "wrt is empty"),
    # targets
    ("target too large", {"target": 4}, whence.TargetError, r"target 4 of row 0 is out of range.*\(0 to 3\)"),
    ("target negative", {"target": -1}, whence.TargetError, "target -1 of row 0 is out of range"),
    ("target of one row", {"target": [0, 1, 9]}, whence.TargetError, "target 9 of row 2"),
    ("too few targets", {"target": [0, 1]}, whence.TargetError, "has 2 entries, but there are 3 rows"),
    ("target 3-D", {"target": torch.zeros(3, 1, 1).long()}, whence.TargetError, r"shape \(3, 1, 1\)"),
    ("target float", {"target": 1.5}, whence.TargetError, "whole numbers"),
    ("target bool", {"target": True}, whence.TargetError, "whole numbers"),
    ("target None in a list", {"target": [None, 1, 2]}, whence.TargetError, "whole numbers"),
    ("target name", {"target": "positive"}, whence.TargetError, "label name(.|\n)*index"),
    ("target tuple too long", {"target": (1, 1)}, whence.TargetError, "2 indices per row.*needs 1 index"),
    (
        "no single prediction",
        {"model": lambda x: DENSE(MLP(x))},
        whence.TargetError,
        "no single predicted class",
    ),
    (
        "int into dense",
        {"model": lambda x: DENSE(MLP(x)), "target": 1},
        whence.TargetError,
        "needs 2 indices",
    ),
    ("function gives a number", {"target": lambda y: 1.0}, whence.TargetError, "returned float"),
    ("function gives a matrix", {"target": lambda y: y}, whence.TargetError, r"shape \(3, 4\) for 3 rows"),
    # baselines
    (
        "baseline shape",
        {"baseline": torch.zeros(3, 5)},
        whence.BaselineError,
        r"\(3, 5\), but the input has \(3, 6\)",
    ),
    ("baseline rows", {"baseline": torch.zeros(2, 6)}, whence.BaselineError, r"\(2, 6\), but the input"),
    ("baseline NaN", {"baseline": nan_at(0, 0)}, whence.BaselineError, "not finite"),
    ("baseline kind", {"baseline": object()}, whence.BaselineError, "Give a number, a tensor"),
    ("baseline name", {"baseline": {"inputt": 0}}, whence.BaselineError, "Did you mean 'input'"),
    ("baseline parts", {"baseline": (0, 0)}, whence.BaselineError, "2 parts, but 1 inputs"),
    # dependence
    ("detached", {"model": lambda x: MLP(x.detach())}, whence.IndependentError, "does not depend on 'input'"),
    (
        "constant",
        {"model": lambda x: torch.ones(3, 2)},
        whence.IndependentError,
        "does not depend on 'input'",
    ),
    ("arg-max", {"model": lambda x: MLP(x).argmax(1).double()}, whence.IndependentError, "arg-max"),
    # the model
    ("no scores", {"model": lambda x: "nothing"}, whence.ModelError, "returned str"),
    (
        "a dict of several",
        {"model": lambda x: {"heads": MLP(x), "features": x, "loss": x.mean((0,))}},
        whence.ModelError,
        r"any of 'heads', 'features' may be the scores(.|\n)*target=lambda out: out\[\"heads\"\]\[:, 0\]",
    ),
    (
        "a namespace of several",
        {"model": lambda x: SimpleNamespace(heads=MLP(x), features=x)},
        whence.ModelError,
        r"'heads' \(3, 4\), 'features' \(3, 6\)(.|\n)*out.heads\[:, 0\]",
    ),
    (
        "function raises",
        {"target": lambda y: y["heads"]},
        whence.TargetError,
        "function raised IndexError(.|\n)*float64",
    ),
    ("width", {"inputs": X[:, :5]}, whence.ModelError, r"in 'a': mat1 and mat2(.|\n)*input \(float64, \(3, 5\)\)"),
    ("dtype", {"inputs": X.float()}, whence.ModelError, "raised RuntimeError in 'a': (.|\n)*input .float32, "),
    ("integers", {"inputs": X.long()}, whence.ModelError, "raised RuntimeError in 'a': (.|\n)*int64"),
    ("keyword", {"inputs": {"y": X}}, whence.ModelError, r"unexpected keyword argument 'y'(.|\n)*It takes \(x\)"),
    (
        "integer features",
        {"inputs": X.long(), "model": lambda x: MLP(x.double())},
        whence.IndependentError,
        r"'input' \(int64\) holds integers, which have no gradient, and they enter no embedding(.|\n)*x.float\(\)",
    ),
    ("rows lost", {"model": lambda x: MLP(x).mean(0, keepdim=True)}, whence.ModelError, "one score for all 3 rows"),
    ("NaN score", {"model": fails}, whence.ModelError, r"score is \[nan\] for row 0"),
    ("not callable", {"model": 3}, whence.ModelError, "int, which cannot be called"),
    ("lazy", {"model": nn.LazyLinear(2)}, whence.ModelError, "Run it once"),
    # at
    ("at unknown", {"at": "bb"}, whence.InputError, "is not a module of the model"),
    ("at on a function", {"model": torch.tanh, "at": "x"}, whence.InputError, "plain function"),
    ("at call 0", {"at": "b@0"}, whence.InputError, "number of the call, from 1"),
    # methods and parameters
    ("unknown method", {"method": "gradiant"}, whence.MethodError, "Did you mean 'gradient'"),
    ("unknown alias", {"method": "saliensy"}, whence.MethodError, "Did you mean 'saliency'"),
    ("unknown parameter", {"absolut": True}, whence.ParameterError, "'absolut'. Did you mean 'absolute'"),
    ("no parameters", {"method": "deconvnet", "steps": 3}, whence.ParameterError, "It takes none"),
    ("wrong type", {"absolute": 1}, whence.ParameterError, "absolute=1 is not allowed.*\n.*True or False"),
    ("wrong choice", {"relu": "soft"}, whence.ParameterError, "one of 'derivative', 'softplus'"),
    ("out of bounds", {"method": "smoothgrad", "samples": 0}, whence.ParameterError, "at least 1"),
    ("beta", {"relu": "softplus", "beta": 0}, whence.ParameterError, "above 0"),
    (
        "smooth of what",
        {"method": "smoothgrad", "of": "gradients"},
        whence.MethodError,
        "Did you mean 'gradient'",
    ),
    ("smooth of itself", {"method": "smoothgrad", "of": "smoothgrad"}, whence.MethodError, "Name another"),
    ("output", {"output": "logits"}, whence.ParameterError, "one of 'logit', 'probability'"),
    ("batch size", {"batch_size": 0}, whence.ParameterError, "batch_size=0"),
    ("seed", {"seed": [1, 2]}, whence.ParameterError, "each of the 3 rows"),
    ("seed kind", {"seed": 1.5}, whence.ParameterError, "Give an int"),
    ("unruled", {"unruled": "warn"}, whence.ParameterError, "unruled='warn'"),
    ("keep unknown", {"keep": ("atention",)}, whence.ParameterError, "'atention' is not known"),
    ("keep without attention", {"keep": "attention"}, whence.NoAttention, "no attention"),
    ("channels", {"channels": "mean"}, whence.ParameterError, "'l2', 'max_abs', 'sum_abs', 'sum'"),
    ("channels of no image", {"channels": "sum"}, whence.InputError, "neither images nor ids"),
    ("rule name", {"rules": {"rellu": whence.derivative}}, whence.RuleError, "Did you mean 'relu'"),
    ("rule kind", {"rules": {"relu": 3}}, whence.RuleError, r"function of \(call, m\)"),
    (
        "rules for random",
        {"method": "random", "rules": {"relu": whence.derivative}},
        whence.ParameterError,
        "no meaning",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input(call: Call, error: type[whence.WhenceError], text: str) -> None:
    options = {"model": MLP, "inputs": X, "method": "gradient", **call}
    with pytest.raises(error, match=text) as caught:
        whence.explain(options.pop("model"), options.pop("inputs"), **options)
    assert type(caught.value) is error
    assert isinstance(caught.value, whence.WhenceError)


def test_a_method_that_needs_attention_says_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check is the front door's; the methods that need it register the fact."""
    registry: Registry[Any] = Registry("method")
    registry.register("reader", needs="attention", slope=True)(lambda subject: subject.run().pull())
    for module in ("whence.adapters.options", "whence.methods"):
        monkeypatch.setattr(importlib.import_module(module), "methods", registry)
    with pytest.raises(whence.NoAttention, match="reader reads attention, but this model has none"):
        whence.explain(MLP, X, method="reader")
    for name in ("multihead", "vit_sdpa", "vit_eager", "bert_eager"):
        model, inputs = CASES[name].make()
        whence.explain(model, inputs, method="reader", channels="sum_abs" if "bert" in name else None)


def test_registering_a_name_twice_raises() -> None:
    with pytest.raises(ValueError, match="There is a method 'gradient' already"):
        whence.method("gradient")(lambda subject: {})


def test_wrt_on_ids_that_enter_nothing() -> None:
    def model(ids: Tensor, x: Tensor) -> Tensor:
        return MLP(x) + ids.double()[:, :1]

    with pytest.raises(whence.InputError, match="'ids': these ids enter no embedding"):
        whence.explain(model, {"ids": torch.ones(3, 2).long(), "x": X}, method="gradient", wrt=["ids", "x"])


@pytest.mark.parametrize("method", ["gradient", "deeplift", "integrated_gradients", "lrp", "leave_one_out"])
def test_what_a_model_raises_is_its_own_and_what_we_raise_is_not(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for inputs in (X[:, :5], X.float()):
        with pytest.raises(whence.ModelError, match="The model raised RuntimeError in 'a'") as caught:
            whence.explain(MLP, inputs, method=method)
        assert isinstance(caught.value.__cause__, RuntimeError)

    monkeypatch.setattr("whence.engine.flow.family_of", complex)  # a mistake of the engine's
    with pytest.raises(TypeError, match="complex"):
        whence.explain(MLP, X, method=method)


def test_an_error_that_the_model_raises_at_the_baseline_alone_is_the_models() -> None:
    def model(x: Tensor) -> Tensor:
        if not bool(x.detach().any(1).all()):
            raise ArithmeticError("a row of nothing but 0")
        return MLP(x)

    with pytest.raises(whence.ModelError, match="ArithmeticError: a row of nothing but 0") as caught:
        whence.explain(model, X, method="deeplift")
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_an_interrupt_and_a_want_of_memory_pass() -> None:
    for kind in (KeyboardInterrupt, MemoryError, torch.OutOfMemoryError):

        def model(x: Tensor, kind: type[BaseException] = kind) -> Tensor:
            raise kind("no")

        with pytest.raises(kind):
            whence.explain(model, X, method="gradient")


def test_a_model_that_fails_in_an_evaluation_says_so() -> None:
    with pytest.raises(whence.ModelError, match="The model raised RuntimeError in 'a'"):
        whence.evaluate(MLP, X[:, :5], methods=["gradient"], metrics=["comprehensiveness"])


@pytest.mark.parametrize("method", ["gradient", "integrated_gradients", "smoothgrad", "guided_backprop"])
@pytest.mark.parametrize("op", ["heaviside", "floor_divide"])
def test_an_op_that_torch_cannot_differentiate_is_named(op, method):
    def model(x):
        return x + getattr(torch, op)(2 * x, torch.tensor(0.5))

    with pytest.raises(whence.ModelError, match=f"{method} needs the derivative of '{op}'.*\n.*deeplift"):
        whence.explain(model, torch.randn(2, 3), method=method, target=0)
    whence.explain(model, torch.randn(2, 3), method="leave_one_out", target=0)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Linear(4, 3).double()
        self.words = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)


MORE: list[tuple[dict[str, Any], type[whence.WhenceError], str]] = [
    ({"method": ["gradient"]}, whence.MethodError, "no method"),
    ({"rules": [1]}, whence.RuleError, "rules is list"),
    ({"rules": {1: own}}, whence.RuleError, "no such op"),
    ({"at": 1}, whence.InputError, "not a module path"),
    ({"at": "a@²"}, whence.InputError, "number of the call"),
    ({"target": ([0, 1], [1, 0], [0, 0])}, whence.TargetError, "tuple of lists"),
    ({"inputs": FOUR.to_sparse()}, whence.InputError, "nothing to explain.*sparse"),
    ({"inputs": FOUR + 1j}, whence.InputError, "complex"),
    ({"method": "smoothgrad", "noise": float("inf")}, whence.ParameterError, "noise=inf"),
    ({"baseline": float("nan")}, whence.BaselineError, "finite number"),
]


@pytest.mark.parametrize(("call", "error", "text"), MORE)
def test_more_bad_input(call: dict[str, Any], error: type[whence.WhenceError], text: str) -> None:
    options = {"inputs": FOUR, "method": "gradient", **call}
    with pytest.raises(error, match=text):
        whence.explain(Shared(), options.pop("inputs"), **options)


def test_odd_calls_of_compare_trace_save_and_at(tmp_path: Any) -> None:
    with pytest.raises(whence.ParameterError, match="no parameter 'bogus'"):
        whence.trace(Shared(), FOUR, method="gradient", bogus=1)
    with pytest.raises(whence.ParameterError, match=r"methods=\[...\]"):
        whence.compare(Shared(), FOUR, methods=["gradient"], method="gradient")
    assert list(whence.compare(Shared(), FOUR, methods="gradient")) == ["gradient"]
    with pytest.raises(whence.FileError, match="cannot write .*a.safetensors: No such"):
        explain(Shared()).save(tmp_path / "no" / "a.safetensors")
    close(explain(Shared(), at="b", target=0).values, torch.tensor([[1.0, 0, 0]]).double().expand(3, 3), 1e-12)
    with pytest.raises(whence.InputError, match="ran 0 times"):
        explain(Shared(), at="words")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, "It needs frail, which is not installed.\n  pip install 'whence[x]'"),
        (
            "import no_such_thing",
            "which is installed, but cannot be imported: ModuleNotFoundError: No module named 'no_s",
        ),
        (
            "raise RuntimeError('operator nms does not exist')",
            "cannot be imported: RuntimeError: operator nms does not",
        ),
        (
            "raise ImportError('cannot import name x')",
            "cannot be imported: ImportError: cannot import name x\n  Install",
        ),
    ],
)
def test_a_library_that_is_broken_is_not_called_missing(
    code: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whence.util.libraries import imported

    if code is not None:
        (tmp_path / "frail.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(whence.ParameterError, match=re.escape(said)):
        imported("frail", "It needs", "'whence[x]'")


def test_an_error_on_the_way_back_is_the_models() -> None:
    def broken(g: Tensor) -> Tensor:
        raise ValueError("no gradient today")

    def hooked(x: Tensor) -> Tensor:
        y = x * 2
        y.register_hook(broken)
        return y

    with pytest.raises(whence.ModelError, match="(?s)way back from its score, ValueError.*today.*occlusion") as raised:
        whence.explain(hooked, torch.ones(2, 3), method="gradient", target=0)
    assert isinstance(raised.value.__cause__, ValueError)
    index = torch.tensor([[0, 1, 2], [2, 0, 1]])  # of two rows, as many as there are

    def placed(x: Tensor) -> Tensor:
        return torch.zeros(len(x), 3).scatter(1, index, x)

    with pytest.raises(whence.ModelError, match=r"Scatter.*\n.*\(8, 3\).*may run more rows at once"):
        whence.explain(placed, torch.ones(2, 3), method="smoothgrad", samples=4, target=0)


def test_an_error_of_a_rule_is_not_the_models() -> None:
    def mine(call: object, m: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        whence.explain(torch.relu, torch.ones(2, 3), method="deeplift", target=0, rules={"relu": mine})
