"""What long prompts take: logits at the answer alone, and passes that go layer by layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from benchmarks.measure import peak
from tests.support.language import DECODERS, EXPERTS, TRANSLATORS, language_model
from tests.support.models import close
from tests.support.slow import mostly_slow

pytestmark = pytest.mark.filterwarnings("ignore::whence.WhenceWarning")
PROMPT, ANSWER = "It is hot. Is it?", "Yes it is."
METHODS = ("gradient", "attnlrp", "lrp", "generic_attention")
TARGETS: dict[str, Any] = {
    "each token": ANSWER, "span": whence.span("is", of=ANSWER), "answer": whence.span(of=ANSWER), "next": None,
}  # fmt: skip
CASES = mostly_slow(
    [(name, method) for name in (*DECODERS, *TRANSLATORS) for method in METHODS],
    [("llama", method) for method in METHODS] + [("t5", "attnlrp"), ("bart", "lrp")],
)


# ---- logits ----


@pytest.mark.parametrize("method", ["gradient", "attnlrp", "leave_one_out"])
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", mostly_slow(DECODERS, ["llama"]))
def test_there_are_no_logits_for_the_prompt(name: str, kind: str, method: str) -> None:
    lm, target = language_model(name), TARGETS[kind]
    seen: list[int] = []
    handle = lm.model.get_output_embeddings().register_forward_hook(lambda m, args, out: seen.append(out.shape[1]))
    try:
        a = whence.explain(lm, PROMPT, method=method, target=target)
    finally:
        handle.remove()
    assert seen
    assert max(seen) <= (1 if target is None else len(ANSWER))
    if kind == "next":
        assert a.target[0][0] == len(PROMPT) - 1  # its position in the text


def test_rows_of_different_lengths_have_logits_from_the_shortest_ones_end_on() -> None:
    lm = language_model("llama")
    both = whence.explain(lm, [PROMPT, "Hot day?"], method="gradient")
    for row, text in enumerate([PROMPT, "Hot day?"]):
        alone = whence.explain(lm, text, method="gradient")
        close(both.values[row, : len(text)], alone.values[0], 1e-9)
        assert both.target[row] == alone.target[0]


# ---- layer by layer ----


@pytest.mark.parametrize(("name", "method"), CASES)
def test_layer_by_layer_gives_the_same_values(name: str, method: str) -> None:
    lm = language_model(name)
    fine = 1e-5 if name in EXPERTS else 1e-10
    for target in (ANSWER, whence.span(of=ANSWER)):
        whole = whence.explain(lm, PROMPT, method=method, target=target)
        cut = whence.explain(lm, PROMPT, method=method, target=target, memory="1kB")
        count = 4 if name in TRANSLATORS else 2
        assert cut.receipt["memory"]["way"] == f"layer by layer, {count} layers"
        for key, raw in whole.by_name("raw").items():
            close(cut.by_name("raw")[key], raw, fine)
        close(cut.output_value, whole.output_value, fine)
        if "relevance" in whole.receipt:
            same_account(cut.receipt["relevance"], whole.receipt["relevance"])
        assert cut.receipt["ops"] == whole.receipt["ops"]


def same_account(a: Any, b: Any) -> None:
    """Two receipts of relevance: the same entries in the same order, the numbers up to rounding."""
    if isinstance(b, dict):
        assert list(a) == list(b)
        for key in b:
            same_account(a[key], b[key])
    elif isinstance(b, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            same_account(one, other)
    elif isinstance(b, float):
        assert a == pytest.approx(b, rel=1e-5, abs=1e-5)
    else:
        assert a == b


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("input_x_gradient", {}), ("cp_lrp", {}), ("lrp", {"composite": "orig"}), ("attcat", {}),
        ("integrated_gradients", {"rule": "midpoint", "steps": 4}), ("smoothgrad", {"samples": 3}),
        ("guided_backprop", {}),
    ],
)  # fmt: skip
def test_other_methods_that_go_layer_by_layer(method: str, more: dict[str, Any]) -> None:
    lm = language_model("llama")
    whole = whence.explain(lm, PROMPT, method=method, target=whence.span(of=ANSWER), **more)
    cut = whence.explain(lm, PROMPT, method=method, target=whence.span(of=ANSWER), memory=1, **more)
    assert cut.receipt["memory"]["way"].startswith("layer by layer")
    close(cut.raw, whole.raw, 1e-10)


def test_a_pass_that_fits_stays_whole() -> None:
    lm = language_model("llama")
    a = whence.explain(lm, PROMPT, method="attnlrp", target=ANSWER, memory="1GB")
    assert a.receipt["memory"]["way"] == "in one piece"
    assert a.receipt["memory"]["allowed"] == "1 GB"
    assert a.receipt["forward_passes"] == 1


class Deep(nn.Module):
    """A list of layers and a head."""

    def __init__(self, depth: int = 2, width: int = 32, layer: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        make = layer or Layer
        self.layers = nn.ModuleList(make(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor, use: Any = None) -> Tensor:
        for layer in self.layers:
            x = layer(x) if use is None else layer(x, use)
        return self.head(x).sum(1)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.nn.functional.gelu(self.up(x)).tanh())


@pytest.mark.parametrize("method", ["gradient", "attnlrp", "lrp"])
def test_memory_is_that_of_one_layer(method: str) -> None:
    """Sixteen layers: bytes of tensors at one time, as the profiler counts them."""
    model, x = Deep(16), torch.randn(2, 400, 32)
    target = torch.tensor([[0, 1], [1, 2]])

    def job(**more: Any) -> whence.Attribution:
        return whence.explain(model, x, method=method, target=target, **more)

    close(job(memory=1).values, job().values, 1e-5)
    assert peak(lambda: job(memory=1)) < 0.4 * peak(job)


def test_sizes_are_read() -> None:
    model, x = Deep(2), torch.randn(1, 5, 32)
    for given, shown in (("2 GB", "2 GB"), ("1.5mb", "1.5 MB"), (64_000, "64 kB")):
        assert whence.explain(model, x, method="gradient", target=0, memory=given).receipt["memory"]["allowed"] == shown
    for wrong in ("much", -1, 2.5, "4XB"):
        with pytest.raises(whence.ParameterError, match="memory"):
            whence.explain(model, x, method="gradient", target=0, memory=wrong)


@pytest.mark.filterwarnings("default::whence.WhenceWarning")
def test_a_budget_that_cannot_be_kept_is_told() -> None:
    model, x = Deep(2), torch.randn(1, 5, 32)
    with pytest.warns(whence.WhenceWarning, match="layer by layer the pass takes about"):
        whence.explain(model, x, method="gradient", target=0, memory=10)
    with pytest.warns(whence.WhenceWarning, match="no list of layers"):
        whence.explain(nn.Linear(3, 2), torch.ones(1, 3), method="gradient", target=0, memory=1)
    with pytest.warns(whence.WhenceWarning, match="deeplift: memory= has no effect"):
        whence.explain(model, x, method="deeplift", target=0, memory=10)
    a = whence.explain(model, x, method="leave_one_out", target=0, memory=10)
    assert a.receipt["memory"]["way"] == "1 rows in a pass"


# ---- what cannot be run again ----


class Counting(Layer):
    """Gives something else every time."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class Taking(Layer):
    """Takes what the first layer has left, and not as an argument."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.left: Any = None
        self.first: list[Taking] = []

    def forward(self, x: Tensor) -> Tensor:
        self.left = self.up(x)
        return super().forward(x) * (self.first[0].left[..., :32] if self.first else 1.0)


def taking() -> Deep:
    model = Deep(2, layer=Taking)
    model.layers[1].first = [model.layers[0]]
    return model


class Holder:
    def __init__(self, value: Tensor) -> None:
        self.value = value

    def update(self) -> None:
        """As a cache has it."""


class Given(Layer):
    def forward(self, x: Tensor, use: Any = None) -> Tensor:
        return super().forward(x) * use.value


class Around(Deep):
    """The score depends on what a layer keeps to itself."""

    def forward(self, x: Tensor, use: Any = None) -> Tensor:
        return super().forward(x) + self.layers[0].kept.sum((1, 2))[:, None]


class Keeping(Layer):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.up(x)
        return x + self.down(self.kept.tanh())


@pytest.mark.parametrize("method", ["gradient", "attnlrp"])
@pytest.mark.parametrize(
    ("model", "told"),
    [
        (Deep(2, layer=Counting), "'layers.1' gives something else when it is run again"),
        (taking(), "'layers.1' takes a value of the shape"),
        (Around(2, layer=Keeping), "'layers.0' leaves something behind that the score depends on"),
    ],
    ids=["stateful", "taken", "left"],
)
def test_layers_that_cannot_be_run_again_are_refused_by_name(model: nn.Module, told: str, method: str) -> None:
    with pytest.raises(whence.ModelError, match=told):
        whence.explain(model, torch.randn(1, 5, 32), method=method, target=0, memory=1)


def test_objects_that_layers_may_write_to_are_refused_by_name() -> None:
    model = Deep(2, layer=Given)
    inputs = {"x": torch.randn(1, 5, 32), "use": Holder(torch.ones(32))}
    with pytest.raises(whence.ModelError, match="'layers.0' gets 'argument 1', a Holder"):
        whence.explain(model, inputs, method="gradient", target=0, memory=1)


class InPlace(Layer):
    """Overwrites what it gets and what it made."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(self.up(x).tanh_())
        x += y
        return x


def test_layers_that_overwrite_what_they_get() -> None:
    model, x = Deep(3, layer=InPlace), torch.randn(2, 5, 32)
    for method in ("gradient", "attnlrp"):
        whole = whence.explain(model, x, method=method, target=0)
        close(whence.explain(model, x, method=method, target=0, memory=1).values, whole.values, 1e-5)


class Drawn(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * torch.rand(32)


def test_layers_that_draw_numbers_draw_the_same_ones() -> None:
    model, x = Deep(3, layer=Drawn), torch.randn(2, 5, 32)
    whole = whence.explain(model, x, method="gradient", target=0)
    close(whence.explain(model, x, method="gradient", target=0, memory=1).values, whole.values, 1e-5)
