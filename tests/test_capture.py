"""Reading and replacing intermediate values: attention, hidden states, module outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.engine import EVERY, run
from tests.support.hf import FAMILIES
from tests.support.models import CASES, close
from whence.engine.captures import Site, layer_of, layers


def wants_attention(site: Site) -> bool:
    return site.kind == "attention"


def test_attention_by_hand_fused_and_in_a_decoder_is_found_by_its_computation() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 8, generator=g).double()
    w = [torch.randn(8, 8, generator=g).double() / 3 for _ in range(3)]

    def by_hand(x: Tensor) -> Tensor:
        q, k, v = (x @ m for m in w)
        weights = F.dropout(torch.softmax(q @ k.transpose(1, 2) / 8**0.5, -1), 0.5, training=False)
        return (weights.contiguous() @ v).sum((1, 2))

    def fused(x: Tensor) -> Tensor:
        q, k, v = (x @ m for m in w)
        return F.scaled_dot_product_attention(q, k, v).sum((1, 2))

    def alignment(x: Tensor) -> Tensor:  # one weight per position, multiplied and summed
        weights = torch.softmax((x @ w[0]).sum(-1), 1)
        return (weights.unsqueeze(-1) * x).sum((1, 2))

    def gate(x: Tensor) -> Tensor:  # a softmax that multiplies nothing live is no attention
        return torch.softmax(x.sum(2), 1) @ torch.ones(5).double()

    found = [
        [t.detach() for t in run(m, x, expand=EVERY, wants=wants_attention).captured.values()]
        for m in (by_hand, fused, alignment, gate)
    ]
    assert [len(maps) for maps in found] == [1, 1, 1, 0]
    close(found[0][0], found[1][0], 1e-12)
    assert found[0][0].shape == (2, 5, 5)
    assert found[2][0].shape == (2, 5, 1)
    close(found[0][0].sum(-1), torch.ones(2, 5).double(), 1e-12)


def test_sites_are_keyed_by_call() -> None:
    """LXMERT calls one attention module twice per layer."""
    family = FAMILIES["lxmert"]
    done = run(family.build("eager"), family.inputs(), target=family.target, expand=EVERY, wants=wants_attention)
    sites = list(done.captured)
    assert len(set(sites)) == len(sites)
    assert max(site.call for site in sites) == 2


def test_replacing_attention_changes_the_answer_as_it_should() -> None:
    """Erasing one key column and renormalising equals a mask on that key, in a model of one layer."""
    mha = nn.MultiheadAttention(8, 2, batch_first=True).double().eval()
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1)).double()
    hidden = torch.zeros(2, 5, dtype=torch.bool)
    hidden[:, 3] = True

    def erase(site: Site, weights: Tensor) -> Tensor | None:
        if site.kind != "attention":
            return None
        kept = weights * (~hidden)[:, None, None].to(weights)
        return kept / kept.sum(-1, keepdim=True)

    for gradient in (True, False):
        edited = run(lambda x: mha(x, x, x)[0].sum((1, 2)), x, expand=EVERY, edit=erase, gradient=gradient)
        masked = run(lambda x: mha(x, x, x, key_padding_mask=hidden)[0].sum((1, 2)), x)
        close(edited.score.detach(), masked.score.detach(), 1e-12)
    constant = run(
        lambda x: mha(x, x, x)[0].sum((1, 2)), x, expand=EVERY,
        edit=lambda site, t: torch.full_like(t.detach(), 0.2) if site.kind == "attention" else None,
    )  # fmt: skip
    assert constant.pull()["input"].isfinite().all()


def test_replacing_module_inputs_and_outputs() -> None:
    model, x = CASES["mlp_reused"].make()

    def double(kind: str, path: str, call: int) -> Any:
        return lambda site, t: t * 2 if (site.kind, site.path, site.call) == (kind, path, call) else None

    with torch.no_grad():
        h = model.act(model.a(x))
        expected = model.c(model.act(model.b(h)) * 2)[:, 0]
        entered = model.c(model.act(model.b(h * 2)))[:, 0]
    close(run(model, x, edit=double("output", "act", 2)).score[:, 0].detach(), expected, 1e-12)
    close(run(model, x, edit=double("input", "b", 1)).score[:, 0].detach(), entered, 1e-12)


def test_reading_changes_nothing() -> None:
    for name in ("bert", "gpt2", "vit"):
        family = FAMILIES[name]
        model, inputs = family.build("sdpa"), family.inputs()
        plain = run(model, inputs, target=family.target)
        read = run(model, inputs, target=family.target, wants=lambda site: True)
        assert torch.equal(plain.score, read.score)
        back = read.pull()
        assert all(torch.equal(value, back[key]) for key, value in plain.pull().items())


def test_layers_are_members_of_module_lists() -> None:
    model = FAMILIES["bert"].build("sdpa")
    assert layer_of(layers(model), "bert.encoder.layer.1.attention.self") == "bert.encoder.layer.1"
    assert layer_of(layers(model), "bert.pooler") == ""


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit"])
def test_keep(name: str) -> None:
    family = FAMILIES[name]
    model, inputs = family.build("sdpa"), family.inputs()
    a = whence.explain(
        model,
        inputs,
        method="input_x_gradient",
        target=0,
        keep=("attention", "attention_gradient", "hidden"),
        batch_size=1,
    )
    with torch.no_grad():
        own = family.build("eager")(**inputs, output_attentions=True, output_hidden_states=True)
    assert len(a.kept["attention"]) == len(own.attentions)
    for layer, theirs in enumerate(own.attentions):
        assert float((a.kept["attention"][layer] - theirs).abs().max()) <= 2e-6
        assert a.kept["attention_gradient"][layer].shape == theirs.shape
        close(a.kept["hidden"][layer], own.hidden_states[layer], 1e-6)
    several = whence.explain(
        model, inputs, method="input_x_gradient", target=[[0, 1], [1, 2]], keep="attention_gradient"
    )
    assert several.kept["attention_gradient"][0].shape[:2] == (2, 2)
    close(several.kept["attention_gradient"][1][0, 0], a.kept["attention_gradient"][1][0], 1e-9)


# ---- what a reviewer found ----


def test_values_are_kept_as_they_were_when_they_were_read() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)).double()
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(3)).double()
    done = run(model, x, wants=lambda site: site.kind == "output")
    close(done.captured[Site("output", "0", 1)], model[0](x).detach(), 1e-12)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(4, 4).double()

        def forward(self, x: Tensor) -> Tensor:
            weights = torch.softmax(self.dense(x) @ x.transpose(1, 2), -1)
            y = weights @ x
            weights.zero_()
            x += y
            return x

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x.sum((1, 2))

    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(4)).double()
    a = whence.explain(Stack(), x, method="gradient", keep=("attention", "attention_gradient", "hidden"))
    close(a.kept["hidden"][0], x, 1e-12)
    assert not torch.equal(a.kept["hidden"][1], x)
    for weights, gradient in zip(a.kept["attention"], a.kept["attention_gradient"], strict=True):
        close(weights.sum(-1), torch.ones(2, 3).double(), 1e-12)
        assert gradient.any()


def test_reading_does_not_change_what_is_live() -> None:
    def half(call: Any, m: Tensor) -> Any:
        return [None if v is None else v / 2 for v in call.vjp(m)]

    model = lambda x: (x / x.std(1, keepdim=True).detach()).sum(1, keepdim=True)  # noqa: E731
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(5)).double()
    plain = run(model, x, {"divide": half}).pull()["input"]
    read = run(model, x, {"divide": half}, wants=lambda site: True).pull()["input"]
    assert torch.equal(plain, read)


def test_shared_layers_are_kept_by_run() -> None:
    family = FAMILIES["albert"]
    model, inputs = family.build("sdpa"), family.inputs()
    a = whence.explain(model, inputs, method="random", keep="hidden", target=0)
    with torch.no_grad():
        own = model(**inputs, output_hidden_states=True).hidden_states
    for layer in range(2):
        close(a.kept["hidden"][layer], own[layer], 1e-9)
