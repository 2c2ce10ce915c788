"""The matrix of families, methods and forms of targets, and models that are split over a processor and a disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import whence
from tests.support.language import DECODERS, EXPERTS, TRANSLATORS, language_model
from tests.support.models import close
from tests.support.slow import mostly_slow

pytestmark = pytest.mark.filterwarnings("ignore::whence.WhenceWarning")
PROMPT, ANSWER, OTHER = "It is hot.", "Yes.", "No"
FAMILIES = [*DECODERS, *TRANSLATORS]
OTHERS = ("integrated_gradients", "deeplift", "lrp", "generic_attention")
METHODS = ("gradient", "attnlrp", "leave_one_out")


def last_logit(output: Any) -> Tensor:
    return output.logits[:, -1, 40]


FORMS: dict[str, Any] = {
    "each token": OTHER, "span": whence.span("es", of=ANSWER), "answer": whence.span(of=ANSWER),
    "contrast": whence.contrast(ANSWER, OTHER), "function": last_logit,
}  # fmt: skip
CELLS = mostly_slow(
    [(name, method) for name in FAMILIES for method in OTHERS],
    [("llama", "lrp"), ("t5", "integrated_gradients"), ("qwen3_moe", "deeplift"), ("gemma2", "generic_attention")],
)


@pytest.mark.parametrize(("name", "method"), CELLS)
def test_other_methods_run_for_every_form_of_target_or_say_why_not(name: str, method: str) -> None:
    lm = language_model(name)
    for form, target in FORMS.items():
        if form == "contrast" and method in ("lrp", "generic_attention"):
            with pytest.raises(whence.TargetError, match=f"{method} is not linear in the score"):
                whence.explain(lm, PROMPT, method=method, target=target)
            continue
        a = whence.explain(lm, PROMPT, method=method, target=target)
        for values in a.by_name().values():
            assert bool(values.isfinite().all()), form
        assert float(next(iter(a.by_name().values())).abs().max()) > 0, form


@pytest.mark.parametrize("name", mostly_slow(FAMILIES, ["gpt2", "t5"]))
@pytest.mark.parametrize("method", METHODS)
def test_a_function_of_the_output(name: str, method: str) -> None:
    """It gets what the model gives for the text, and of an encoder–decoder for what that writes."""
    lm = language_model(name)
    a = whence.explain(lm, PROMPT, method=method, target=last_logit)
    inputs = {"input_ids": torch.tensor([lm.tokenizer(PROMPT)["input_ids"]])}
    if name in TRANSLATORS:
        start = lm.model.config.decoder_start_token_id
        inputs["decoder_input_ids"] = torch.tensor([[start, *lm.complete(PROMPT).ids[:-1]]])
    with torch.no_grad():
        close(a.output_value, last_logit(lm.model(**inputs)), 1e-5)
    assert bool(next(iter(a.by_name().values())).isfinite().all())


@pytest.mark.parametrize("name", mostly_slow(FAMILIES, ["mistral", "bart"]))
@pytest.mark.parametrize("method", ["attnlrp", "input_x_gradient"])
def test_sums_over_units_are_sums_over_tokens(name: str, method: str) -> None:
    lm, text = language_model(name), "It is hot. So is he.\nIs it?"
    tokens = whence.explain(lm, text, method=method, target=whence.span(of=ANSWER))
    if name in TRANSLATORS:
        for key, values in tokens.by_name().items():
            close(values.sum((1,)), tokens.by_name("raw")[key].sum((1, 2)), 1e-9)
        return
    for units in ("words", "sentences", "lines", {"heat": "It is hot."}):
        a = whence.explain(lm, text, method=method, target=whence.span(of=ANSWER), units=units)
        close(a.values.sum(), tokens.values.sum(), 1e-5 if name in EXPERTS else 1e-9)


@pytest.mark.parametrize("name", EXPERTS)
@pytest.mark.parametrize("text", mostly_slow(["A", "B", "Cc", "Hey"], ["A"]))
def test_experts_in_another_order_than_the_references(name: str, text: str) -> None:
    """Two experts of one token may change places, while the tokens stand as they did."""
    lm = language_model(name)
    for baseline in (None, "pad"):
        for target in (whence.span(of="Yes it is."), "No."):
            a = whence.explain(lm, text, method="deeplift", target=target, baseline=baseline)
            assert a.gap is not None
            assert float(a.gap.max()) < 1e-4


@pytest.mark.parametrize("name", TRANSLATORS)
def test_named_tokens_are_baselines_of_encoder_decoders(name: str) -> None:
    lm = language_model(name)
    a = whence.explain(lm, PROMPT, method="deeplift", target=whence.span(of=OTHER), baseline="pad")
    assert bool(a.values["input_ids"].isfinite().all())


def test_a_contrast_is_not_traced() -> None:
    with pytest.raises(whence.TargetError, match=r"the difference of two(.|\n)*span\(of='Yes.'\)"):
        whence.trace(language_model("llama"), PROMPT, method="attnlrp", target=whence.contrast(ANSWER, OTHER))


# ---- split over a processor and a disk ----

SPLIT: dict[str, dict[str, str]] = {
    "llama": {
        "model.embed_tokens": "cpu", "model.rotary_emb": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk",
        "model.norm": "cpu", "lm_head": "disk",
    },
    "gpt2": {
        "transformer.wte": "disk", "transformer.wpe": "cpu", "transformer.drop": "cpu", "transformer.h.0": "disk",
        "transformer.h.1": "cpu", "transformer.ln_f": "cpu", "lm_head": "disk",
    },
    "t5": {
        "shared": "cpu", "encoder.embed_tokens": "cpu", "encoder.block.0": "cpu", "encoder.block.1": "disk",
        "encoder.final_layer_norm": "cpu", "encoder.dropout": "cpu", "decoder.embed_tokens": "cpu",
        "decoder.block.0": "disk", "decoder.block.1": "cpu", "decoder.final_layer_norm": "cpu",
        "decoder.dropout": "cpu", "lm_head": "cpu",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", mostly_slow(list(SPLIT), ["llama"]))
def test_a_model_on_a_processor_and_a_disk(name: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    lm = language_model(name)
    lm.model.save_pretrained(tmp_path / "model")
    split = type(lm.model).from_pretrained(
        tmp_path / "model", device_map=SPLIT[name], offload_folder=tmp_path / "offloaded", dtype=torch.float64
    )
    assert any(p.is_meta for p in split.parameters())
    ours = whence.wrap(split, lm.tokenizer)
    assert ours.device.type == "cpu"
    for method in (*METHODS, *OTHERS):
        whole = whence.explain(lm, PROMPT, method=method, target=OTHER)
        for more in ({}, {"memory": 1}):
            if more and method in ("leave_one_out", "deeplift"):
                continue
            parts = whence.explain(ours, PROMPT, method=method, target=OTHER, **more)
            for key, raw in whole.by_name("raw").items():
                close(parts.by_name("raw")[key], raw, 1e-9)
    assert any(p.is_meta for p in split.parameters())
    assert split.get_submodule(next(iter(SPLIT[name]))) is not None
