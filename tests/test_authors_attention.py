"""Attention methods against tensors from the authors' own programs, through `explain` on stock classes."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

import whence
from tests.support.authors import Truth
from tests.support.models import close
from tests.support.slow import mostly_slow
from whence.methods.attention.cross_attention import propagate

pytestmark = pytest.mark.shared
AUTHORS = {"preset": "authors-bert"}


# ---- BERT ----


@pytest.mark.parametrize("attention", mostly_slow(["sdpa", "eager"], ["sdpa"]))
@pytest.mark.parametrize("case", ["full", "pad", "maskspecial"])
def test_bert(authors_bert: tuple[Any, Truth], case: str, attention: str) -> None:
    build, truth = authors_bert
    model = build(attention)
    inputs = {name: truth[f"{case}.{name}"] for name in ("input_ids", "attention_mask")}

    def values(method: str, **options: Any) -> Tensor:
        return whence.explain(model, inputs, method=method, **options).values

    close(values("raw_attention", **AUTHORS), truth[f"{case}.raw_attention_last"], 1e-6)
    for start in (0, 1):
        close(values("rollout", start_layer=start, **AUTHORS), truth[f"{case}.rollout.start{start}"], 1e-6)
    for tag in ("pred", "other"):
        target = int(truth[f"{case}.target_{tag}"])
        theirs = {name: truth[f"{case}.{tag}.{name}"] for name in ("attn_gradcam", "cat", "attcat", "generic.R")}
        close(values("attention_gradcam", target=target, **AUTHORS), theirs["attn_gradcam"], 1e-6)
        close(values("cat", target=target, **AUTHORS)[0], theirs["cat"], 1e-6)
        close(values("attcat", target=target, **AUTHORS)[0], theirs["attcat"], 1e-6)
        for row in range(3):
            mine = values("generic_attention", target=target, readout=row, **AUTHORS)
            close(mine[0], theirs["generic.R"][row], 1e-6)
        kept = whence.explain(
            model, inputs, method="random", target=target, keep=("attention", "attention_gradient", "hidden")
        ).kept
        for layer in range(4):
            close(kept["attention"][layer], truth[f"{case}.attn.L{layer}"], 1e-6)
            close(kept["attention_gradient"][layer], truth[f"{case}.{tag}.attn_grad.L{layer}"], 1e-6)
            close(kept["hidden"][layer], truth[f"{case}.hidden.L{layer}"], 1e-6)


def test_bert_by_default_leaves_out_what_a_mask_hides(authors_bert: tuple[Any, Truth]) -> None:
    build, truth = authors_bert
    inputs = {name: truth[f"pad.{name}"] for name in ("input_ids", "attention_mask")}
    hidden = inputs["attention_mask"] == 0
    for method in ("raw_attention", "rollout", "generic_attention", "cat", "attcat", "attention_gradcam", "grad_sam"):
        values = whence.explain(build("sdpa"), inputs, method=method).values
        assert bool((values[hidden] == 0).all()), method
        close(values[~hidden], whence.explain(build("sdpa"), {k: v[:, ~hidden[0]] for k, v in inputs.items()},
                                              method=method).values[0], 1e-9)  # fmt: skip


# ---- ViT ----


@pytest.mark.parametrize("attention", mostly_slow(["sdpa", "eager"], ["sdpa"]))
def test_vit(authors_vit: tuple[Any, Truth], attention: str) -> None:
    build, truth = authors_vit
    model, inputs = build(attention), {"pixel_values": truth["x"]}

    def values(method: str, **options: Any) -> Tensor:
        found = whence.explain(model, inputs, method=method, **options).values
        assert found.shape == (1, 4, 4)
        return found.flatten()

    for start in (0, 1):
        close(values("rollout", start_layer=start), truth[f"rollout.start{start}"].flatten(), 1e-6)
    for tag in ("pred", "other"):
        target = int(truth[f"target_{tag}"])
        kept = whence.explain(
            model, inputs, method="random", target=target, keep=("attention", "attention_gradient")
        ).kept
        for layer in range(4):
            close(kept["attention"][layer], truth[f"attn.L{layer}"], 1e-6)
            close(kept["attention_gradient"][layer], truth[f"attn_grad.{tag}.L{layer}"], 1e-6)
        for row in range(17):
            mine = values("generic_attention", target=target, readout=row)
            close(mine, truth[f"generic.{tag}.R"][row, 1:], 1e-6)
        close(values("raw_attention", target=target), truth[f"raw_attention_last.{tag}"].flatten(), 1e-6)
        close(values("generic_attention", target=target), truth[f"generic.{tag}"].flatten(), 1e-6)
        close(
            values("attention_gradcam", target=target, preset="authors-vit"),
            truth[f"attn_gradcam.{tag}"].flatten(),
            1e-6,
        )


# ---- two streams ----


def positive(truth: Truth, site: str) -> Tensor:
    return (truth[f"{site}.grad"] * truth[f"{site}.attn"]).clamp(min=0).mean(1)


def lxmert_calls(truth: Truth) -> list[list[tuple[str, str, Tensor]]]:
    calls = [[("t", "t", positive(truth, f"lxmert.lang{i}"))] for i in range(3)]
    calls += [[("i", "i", positive(truth, f"lxmert.img{i}"))] for i in range(2)]
    for layer in range(3):
        site = f"lxmert.x{layer}"
        cross = [("t", "i", positive(truth, f"{site}.t_from_i")), ("i", "t", positive(truth, f"{site}.i_from_t"))]
        cross = cross if layer < 2 else cross[:1]  # what the image becomes in the end is not read
        calls += [cross, [("t", "t", positive(truth, f"{site}.t_self"))]]
        calls += [[("i", "i", positive(truth, f"{site}.i_self"))]] if layer < 2 else []
    return calls


@pytest.mark.parametrize(
    ("variant", "switches"),
    [("ours_no_lrp", {}), ("ours_no_norm", {"normalize": False}), ("ours_no_rule10_self", {"mix": False})],
)
def test_two_streams(oracle: Any, variant: str, switches: dict[str, bool]) -> None:
    truth, _ = oracle("chefer_mm")
    found = propagate(lxmert_calls(truth), **switches)
    found["t", "t"][:, 0, 0] = 0  # as the authors do in the end
    for query in "ti":
        for key in "ti":
            close(found[query, key][0], truth[f"lxmert.out.{variant}.R_{query}{key}"], 1e-5)


def test_encoder_and_decoder(oracle: Any) -> None:
    truth, _ = oracle("chefer_mm")
    calls = [[("i", "i", positive(truth, f"detr.enc{i}.self"))] for i in range(3)]
    for layer in range(3):
        calls += [[("q", "q", positive(truth, f"detr.dec{layer}.self"))]]
        calls += [[("q", "i", positive(truth, f"detr.dec{layer}.cross"))]]
    for variant, switches in (("ours_no_lrp", {}), ("ours_no_norm", {"normalize": False})):
        found = propagate(calls, **switches)
        close(found["q", "i"], truth[f"detr.out.{variant}.R_qi"], 1e-5)
        close(found["q", "i"][0, 1], truth[f"detr.out.{variant}"].flatten(), 1e-5)
