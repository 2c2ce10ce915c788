"""Attention methods, slowly: from the maps that Hugging Face's eager models give and autograd's gradients by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.hf import FAMILIES
from tests.support.models import close
from tests.support.slow_attention import (
    TEXT,
    Slow,
    both,
    mean_over_heads,
    normalised,
    positive,
    product,
    residual,
    sam,
    tokens,
)
from whence.methods.attention.max_flow import max_flows

ORACLE_OF = (
    "raw_attention rollout attention_flow generic_attention attention_gradients attention_x_gradient "
    "attention_gradient grad_sam attention_gradcam cat attcat"
).split()


def gradcam(slow: Slow) -> Tensor:
    a, g = slow.a[-1], slow.g[-1]
    return mean_over_heads(torch.stack([g[h].mean() * a[h] for h in range(len(a))])).clamp(min=0)[0]


def generic(slow: Slow, eye: bool) -> Tensor:
    one = torch.eye(len(slow.h[0])).double()
    return product([m + one if eye else m for m in positive(slow)])[0]


ORACLES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "raw": ("raw_attention", {}, lambda s: mean_over_heads(s.a[-1])[0]),
    "raw, first layer": ("raw_attention", {"layer": 0}, lambda s: mean_over_heads(s.a[0])[0]),
    "raw, mean": ("raw_attention", {"layer": "mean"}, lambda s: mean_over_heads((s.a[0] + s.a[1]) / 2)[0]),
    "raw, another row": ("raw_attention", {"readout": 2}, lambda s: mean_over_heads(s.a[-1])[2]),
    "rollout": ("rollout", {}, lambda s: product(residual(s, True))[0]),
    "rollout, not normalised": ("rollout", {"normalize": False}, lambda s: product(residual(s, False))[0]),
    "rollout, from layer 1": ("rollout", {"start_layer": 1}, lambda s: residual(s, True)[1][0]),
    "rollout, last row": ("rollout", {"readout": "last"}, lambda s: product(residual(s, True))[-1]),
    "rollout, mean of rows": ("rollout", {"readout": "mean"}, lambda s: product(residual(s, True)).mean(0)),
    "generic": ("generic_attention", {}, lambda s: generic(s, True)),
    "generic, without the identity": ("generic_attention", {"identity": False}, lambda s: generic(s, False)),
    "AttGrads": ("attention_gradients", {}, lambda s: product(both(s))[0]),
    "AttGrads, summed": ("attention_gradients", {"combine": "sum"}, lambda s: sum(both(s))[0]),  # type: ignore[index]
    "a × gradient": ("attention_x_gradient", {}, lambda s: both(s)[-1][0]),
    "gradient": ("attention_gradient", {}, lambda s: mean_over_heads(s.g[-1])[0]),
    "Grad-SAM": ("grad_sam", {}, lambda s: sam(s, 0)),
    "Grad-SAM by key": ("grad_sam", {"axis": "key"}, lambda s: sam(s, 1)),
    "Grad-CAM": ("attention_gradcam", {}, gradcam),
    "CAT": ("cat", {}, lambda s: tokens(s, False)),
    "AttCAT": ("attcat", {}, lambda s: tokens(s, True)),
    "flow": (
        "attention_flow",
        {},
        lambda s: max_flows([a / 2 for a in residual(s, False)], torch.eye(len(s.h[0])).double()[0]),
    ),
}


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ORACLES)
def test_each_row_of_a_padded_batch(name: str, kind: str) -> None:
    method, options, oracle = ORACLES[name]
    model = TEXT.build(kind)
    for target in (0, 2):
        a = whence.explain(model, TEXT.inputs(), method=method, target=target, **options)
        for row in range(2):
            slow = oracle(Slow(row, target))
            close(a.values[row, : len(slow)], slow, 1e-9)
            assert bool((a.values[row, len(slow) :] == 0).all())


# ---- encoder and decoder ----


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_generic_attention_of_an_encoder_and_a_decoder(name: str) -> None:
    family = FAMILIES[name]
    model = family.build("eager")
    inputs = {key: value[:1] for key, value in family.inputs().items()}
    position, token = family.target
    out = model(**inputs, output_attentions=True)
    kinds = [out.encoder_attentions, out.decoder_attentions, out.cross_attentions]
    flat = [a for kind in kinds for a in kind]
    grads = torch.autograd.grad(out.logits[0, position, token], flat)
    m = [mean_over_heads((a[0] * g[0]).clamp(min=0)).detach() for a, g in zip(flat, grads, strict=True)]
    encoder, decoder, cross = m[:2], m[2:4], m[4:]
    ee = product([layer + torch.eye(len(layer)).double() for layer in encoder])
    dd, de = torch.eye(len(decoder[0])).double(), torch.zeros(len(decoder[0]), len(ee)).double()
    for self_, across in zip(decoder, cross, strict=True):
        dd, de = dd + self_ @ dd, de + self_ @ de
        de = de + normalised(dd).T @ across @ normalised(ee)
    for kind in ("eager", "sdpa"):
        a = whence.explain(family.build(kind), inputs, method="generic_attention", target=family.target)
        close(a.values["decoder_input_ids"][0], dd[position], 1e-5)
        close(a.values["input_ids"][0], de[position], 1e-5)


def test_generic_attention_of_two_streams() -> None:
    """LXMERT from its maps in the order of their calls: 1 text layer, 1 image layer, 1 cross layer."""
    family = FAMILIES["lxmert"]
    model = family.build("eager")
    inputs = {key: value[:1] for key, value in family.inputs().items()}
    kept = whence.explain(
        model, inputs, method="random", target=family.target, keep=("attention", "attention_gradient")
    ).kept
    m = [
        mean_over_heads((a[0] * g[0]).clamp(min=0))
        for a, g in zip(kept["attention"], kept["attention_gradient"], strict=True)
    ]
    text, image, across, _, again = m[:5]
    tt, ii = text + torch.eye(len(text)).double(), image + torch.eye(len(image)).double()
    ti = normalised(tt).T @ across @ normalised(ii)
    tt, ti = tt + again @ tt, ti + again @ ti
    a = whence.explain(model, inputs, method="generic_attention", target=family.target)
    close(a.values["input_ids"][0], tt[0], 1e-9)
    close(a.values["visual_feats"][0], ti[0], 1e-9)


# ---- where the answer is read ----


class Pooled(nn.Module):
    """One attention, then a mean over positions, weighted."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)])
        self.weights, self.out = weights, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.layers[0](x) * self.weights[:, None]).sum(1))


def test_the_readout_goes_by_the_gradient_of_the_last_state() -> None:
    torch.manual_seed(0)
    weights = torch.tensor([0.125, 0.375, 0.0, 0.5]).double()
    model, x = Pooled(weights).double().eval(), torch.randn(2, 4, 8).double()
    auto = whence.explain(model, x, method="raw_attention", target=1).values
    rows = [whence.explain(model, x, method="raw_attention", target=1, readout=i).values for i in range(4)]
    close(auto, sum(w * row for w, row in zip(weights, rows, strict=True)), 1e-12)  # type: ignore[arg-type]
