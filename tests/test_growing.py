"""Language models under removal in the order of the text: passes that begin where something was removed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch.overrides import TorchFunctionMode

import whence
from tests.support.language import language_model, of_bytes
from tests.support.models import close
from tests.support.slow import mostly_slow
from whence.methods.perturbation import growing

pytestmark = pytest.mark.filterwarnings("ignore::whence.WhenceWarning")
PROMPT, ANSWER = "It is hot. So is he. Is it? Nobody knows. But we do.", "Yes it is."
GROWN = "grown in the order of the text"
ASKED: list[dict[str, Any]] = [
    {"method": "leave_one_out", "units": "sentences", "target": whence.span(of=ANSWER)},
    {"method": "leave_one_out", "target": whence.span("it", of=ANSWER)},
    {"method": "leave_one_out", "target": ANSWER},
    {"method": "leave_one_out", "units": "words", "target": whence.contrast(ANSWER, "No")},
    {"method": "occlusion", "window": 3, "target": ANSWER},
]


class Wide(TorchFunctionMode):
    """float64 throughout: the norms and attention of these classes go through float32, whatever the weights are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double

        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        return func(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def twice(monkeypatch: pytest.MonkeyPatch, lm: Any, prompt: Any = PROMPT, **asked: Any) -> list[whence.Attribution]:
    """An explanation without the cache and with it."""
    found = []
    for worth in (10**9, 0):
        monkeypatch.setattr(growing, "WORTH", worth)
        with Wide():
            found.append(whence.explain(lm, prompt, **asked))
    return found


@pytest.mark.parametrize("name", mostly_slow(["gpt2", "llama", "qwen3", "mistral", "gemma2", "gemma3"], ["mistral"]))
@pytest.mark.parametrize("asked", ASKED)
def test_the_cache_changes_no_value(monkeypatch: pytest.MonkeyPatch, name: str, asked: dict[str, Any]) -> None:
    plain, grown = twice(monkeypatch, language_model(name), **asked)
    assert "prefix_cache" not in plain.receipt
    assert grown.receipt["prefix_cache"] == GROWN
    assert float(plain.values.abs().max()) > 1e-3
    close(grown.values, plain.values, 1e-10)
    close(grown.output_value, plain.output_value, 1e-10)


def test_what_stands_before_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in tokens: half of the square of the text's length, where all passes together had the square."""
    lm, tokens = language_model("llama"), []
    lm.model.register_forward_pre_hook(
        lambda model, args, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    counts = []
    for worth in (10**9, 0):
        monkeypatch.setattr(growing, "WORTH", worth)
        text = " ".join(f"It is {i:02} now." for i in range(12))
        whence.explain(lm, text, method="leave_one_out", units="sentences", target=whence.span(of=ANSWER))
        counts.append(sum(tokens))
        tokens.clear()
    assert counts[1] < 0.75 * counts[0]


def test_nothing_of_a_cache_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "WORTH", 0)
    lm = language_model("mistral")
    first = whence.explain(lm, PROMPT, method="leave_one_out", target=ANSWER)
    again = whence.explain(lm, PROMPT, method="leave_one_out", target=ANSWER)
    assert torch.equal(first.values, again.values)
    assert "past_key_values" not in vars(lm.model)


def test_short_texts_go_in_one_pass() -> None:
    a = whence.explain(language_model("llama"), PROMPT, method="leave_one_out", target=ANSWER)
    assert "prefix_cache" not in a.receipt
    assert a.receipt["forward_passes"] <= 3


class Odd(hf.LlamaForCausalLM):
    """Its scores depend on how many tokens it gets at once."""

    def forward(
        self, input_ids: Any = None, past_key_values: Any = None, logits_to_keep: Any = 0, **kwargs: Any
    ) -> Any:
        given = super().forward(input_ids, past_key_values=past_key_values, logits_to_keep=logits_to_keep, **kwargs)
        given.logits = given.logits * (1 + 0.1 * input_ids.shape[1])
        return given


def test_a_model_that_minds_is_run_without(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = language_model("llama")
    odd = Odd(lm.model.config).double().eval()
    odd.load_state_dict(lm.model.state_dict())
    plain, grown = twice(
        monkeypatch,
        whence.wrap(odd, of_bytes(), task="text-generation"),
        method="leave_one_out",
        target=whence.span(of=ANSWER),
    )
    assert grown.receipt["prefix_cache"] == "none: with it the model gives other scores"
    assert torch.equal(plain.values, grown.values)


def test_other_architectures_are_run_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "WORTH", 0)
    a = whence.explain(language_model("t5"), PROMPT, method="leave_one_out", target=whence.span(of=ANSWER))
    assert a.receipt["prefix_cache"] == "none: an encoder reads the whole text before the decoder begins"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hybrid = hf.LlamaForCausalLM(language_model("llama").model.config).eval()
    monkeypatch.setattr(growing, "_LAYERS", frozenset())
    b = whence.explain(whence.wrap(hybrid, of_bytes()), PROMPT, method="leave_one_out", target=whence.span(of=ANSWER))
    assert b.receipt["prefix_cache"] == "none: its cache is DynamicCache, which does not hold every token"
    function = whence.explain(
        language_model("llama"), PROMPT, method="leave_one_out", target=lambda output: output.logits[:, -1].amax(-1)
    )
    assert function.receipt["prefix_cache"] == "none: a target function may read any position"
