"""LRP, Transformer Attribution and AttnLRP against tensors from the authors' own programs, on stock classes."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

import whence
from tests.support.authors import Truth
from tests.support.models import close
from tests.support.slow import mostly_slow

pytestmark = pytest.mark.shared
RULES = {"chefer": "ours.", "orig": ""}


@pytest.mark.slow
@pytest.mark.parametrize("attention", mostly_slow(["sdpa", "eager"], ["sdpa"]))
@pytest.mark.parametrize("tag", ["pred", "other"])
@pytest.mark.parametrize("case", ["full", "pad", "maskspecial"])
def test_bert(authors_bert: tuple[Any, Truth], case: str, tag: str, attention: str) -> None:
    build, truth = authors_bert
    model, theirs = build(attention), {k.removeprefix(f"{case}.{tag}."): v for k, v in truth.items()}
    inputs = {name: truth[f"{case}.{name}"] for name in ("input_ids", "attention_mask")}
    target = int(truth[f"{case}.target_{tag}"])

    def agrees(mine: Tensor, name: str) -> None:  # the authors write over the first token's score
        close(mine[:, 1:], theirs[name][:, 1:], 1e-6)

    for start in (0, 1, 3):
        a = whence.explain(model, inputs, method="transformer_attribution", target=target, normalize=True,
                           start_layer=start)  # fmt: skip
        agrees(a.values, f"transformer_attribution.start{start}")
    for rules, prefix in RULES.items():
        a = whence.explain(model, inputs, method="partial_lrp", target=target, rules=rules, positive=True)
        agrees(a.values, f"{prefix}partial_lrp")
        a = whence.explain(model, inputs, method="lrp", composite=rules, target=target, at="bert.embeddings",
                           keep=("attention_relevance", "head_relevance"))  # fmt: skip
        agrees(a.values.sum(-1), f"{prefix}full_lrp")
        for layer in range(4):
            relevance = theirs[f"{prefix or 'orig.'}attn_cam.L{layer}"]
            close(a.kept["attention_relevance"][layer], relevance, 1e-6)
            close(a.kept["head_relevance"][layer], 2 * relevance.sum((2, 3)), 1e-6)


@pytest.mark.parametrize("tag", ["pred", "other"])
def test_vit(authors_vit: tuple[Any, Truth], tag: str) -> None:
    build, truth = authors_vit
    model, target = build("sdpa"), int(truth[f"target_{tag}"])

    def values(method: str, **options: Any) -> Tensor:
        return whence.explain(model, truth["x"], method=method, target=target, **options).values.flatten(1)

    attribution = "transformer_attribution"
    for start in (0, 1, 2):
        close(values(attribution, start_layer=start), truth[f"{attribution}.{tag}.start{start}"], 1e-6)
    close(values(attribution, weight=None), truth[f"ours.lrp_rollout.{tag}"], 1e-6)
    close(values(attribution, blocks="last")[0], truth[f"ours.last_layer_ablation.{tag}"], 1e-6)
    close(values(attribution, blocks="last", weight=None)[0], truth[f"ours.last_layer.{tag}"], 1e-6)
    close(values("partial_lrp", positive=True)[0], truth[f"ours.last_layer.{tag}"], 1e-6)
    close(values("partial_lrp", positive=True, rules="orig")[0], truth[f"partial_lrp.{tag}"], 1e-6)
    for rules, prefix in RULES.items():
        a = whence.explain(model, truth["x"], method="lrp", target=target, composite=rules, channels="sum",
                           keep=("attention_relevance",))  # fmt: skip
        close(a.values, truth[f"{prefix}full_lrp.{tag}"], 1e-6)
        for layer in range(4):
            close(a.kept["attention_relevance"][layer], truth[f"{prefix or 'orig.'}attn_cam.{tag}.L{layer}"], 1e-6)


def test_two_classes_of_one_image_from_one_pass(authors_vit: tuple[Any, Truth]) -> None:
    """Class-agnostic maps are what Chefer, Gur & Wolf (2021) criticise: rollout has one for both classes."""
    import torch

    build, truth = authors_vit
    targets = torch.tensor([[int(truth["target_pred"]), int(truth["target_other"])]])
    a = whence.explain(build("sdpa"), truth["x"], method="transformer_attribution", target=targets)
    for k, tag in enumerate(("pred", "other")):
        close(a.values[0, k].flatten(), truth[f"transformer_attribution.{tag}.start0"][0], 1e-6)
    assert a.receipt["forward_passes"] == 1
    flat = whence.explain(build("sdpa"), truth["x"], method="rollout", target=targets).values[0]
    assert torch.equal(flat[0], flat[-1])
    assert float((a.values[0, 0] - a.values[0, 1]).abs().max()) > 0.1 * float(a.values.abs().max())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_llama(oracle: Any, attention: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    truth, config = oracle("lxt_llama")
    settings = LlamaConfig(**config)
    settings._attn_implementation = attention
    model = LlamaForCausalLM(settings).double().eval()
    model.load_state_dict({k.removeprefix("weights."): v for k, v in truth.items() if k.startswith("weights.")})
    inputs, target = {"input_ids": truth["input_ids"]}, (-1, int(truth["target_token"]))
    close(whence.explain(model, inputs, method="attnlrp", target=target).values[0], truth["relevance"], 1e-5)
    for layer in range(3):
        a = whence.explain(model, inputs, method="attnlrp", target=target, at=f"model.layers.{layer}")
        close(a.values.sum(-1)[0], truth[f"hidden_relevance.{layer + 1}"], 1e-5)
