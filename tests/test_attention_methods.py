"""Methods that read attention, on stock transformers of every kind: one answer whatever the attention is spelled as."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.hf import FAMILIES, of
from tests.models import close
from whence.grids import grid
from whence.maps import Reading
from whence.windows import refit

METHODS = [name for name, entry in whence.methods.items() if entry.facts.get("needs") == "attention"]
FAST = [name for name in METHODS if name != "attention_flow"]
ATTENTIVE = [name for name, family in FAMILIES.items() if family.attends]
SINGLE = {"modernbert", "llama", "mistral", "qwen3", "t5", "vit", "deit", "swin", "beit", "clip"}  # in part

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def maps(values: Any) -> dict[str, Tensor]:
    return values if isinstance(values, dict) else {"": values}


@pytest.mark.parametrize("name", ATTENTIVE)
def test_every_family_with_fused_and_with_eager_attention(name: str) -> None:
    family = FAMILIES[name]
    for method in FAST:
        found = [
            maps(whence.explain(family.build(kind), family.inputs(), method=method, target=family.target).values)
            for kind in family.kinds
        ]
        for key, value in found[0].items():
            assert bool(torch.isfinite(value).all())
            for other in found[1:]:
                close(other[key], value, 1e-5 if name in SINGLE else 1e-9)
        silent = method == "attention_gradcam"  # all its heads may speak against the class
        assert silent or any(bool(value.abs().sum() > 0) for value in found[0].values())


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "bart", "clip", "lxmert", "swin"])
def test_a_batch_equals_its_rows(name: str) -> None:
    family = FAMILIES[name]
    model, inputs = family.build(family.kinds[0]), family.inputs()
    for method in FAST:
        whole = maps(whence.explain(model, inputs, method=method, target=family.target).values)
        for row in range(2):
            one = {key: value[row : row + 1] for key, value in inputs.items()}
            alone = maps(whence.explain(model, one, method=method, target=family.target).values)
            for key, value in alone.items():
                close(whole[key][row : row + 1], value, 1e-5 if name in SINGLE else 1e-9)


def test_padding_is_exactly_0() -> None:
    for name in ("bert", "gpt2", "llama", "deberta_v2", "bart"):
        family = FAMILIES[name]
        inputs = family.inputs()
        for method in METHODS:
            a = whence.explain(family.build(family.kinds[0]), inputs, method=method, target=family.target)
            values = maps(a.values).get("input_ids", next(iter(maps(a.values).values())))
            assert bool((values[inputs["attention_mask"] == 0] == 0).all()), (name, method)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_without_attention_is_named(method: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(whence.NoAttention, match=f"{method} reads attention, and this model has none"):
        whence.explain(model, torch.randn(2, 4), method=method)


@pytest.mark.parametrize("method", METHODS)
def test_modules_are_refused(method: str) -> None:
    family = FAMILIES["bert"]
    with pytest.raises(whence.MethodError, match="explains inputs only"):
        whence.explain(family.build("sdpa"), family.inputs(), method=method, at="bert.encoder.layer.0")


def test_parameters_that_make_no_sense_are_said() -> None:
    family = FAMILIES["bert"]
    model, inputs = family.build("sdpa"), family.inputs()
    with pytest.raises(whence.ParameterError, match="readout='middle' is not allowed"):
        whence.explain(model, inputs, method="rollout", readout="middle")
    with pytest.raises(whence.ParameterError, match="readout=70 is not allowed"):
        whence.explain(model, inputs, method="generic_attention", readout=70)
    with pytest.raises(whence.ParameterError, match="layer=5 is not allowed"):
        whence.explain(model, inputs, method="raw_attention", layer=5)


# ---- streams, windows, grids ----


def test_streams_are_told_apart_by_where_positions_come_from() -> None:
    family = FAMILIES["t5"]
    from dataclasses import replace

    from whence.adapters.tensors import adapt
    from whence.engine.scope import scope
    from whence.targets import read_target

    subject = adapt(family.build("sdpa"), family.inputs(), method="test")
    subject = replace(subject, target=read_target(family.target, 2), seeds=(0, 0))
    with scope(subject.root):
        reading = Reading(subject, lambda m, a, g: a.mean(1), gradient=False).run()
    names = [("".join(m.query), "".join(m.key)) for m in reading.maps]
    encoder, decoder = "input_ids", "decoder_input_ids"
    assert names == [(encoder, encoder)] * 2 + [(decoder, decoder), (decoder, encoder)] * 2


def test_a_shifted_window_is_spread_to_the_tokens_it_holds() -> None:
    """Tokens of one window, and no others, act on each other in a block of Swin; so says its derivative."""
    from dataclasses import replace

    from whence.adapters.tensors import adapt
    from whence.engine.scope import scope
    from whence.targets import read_target

    family = FAMILIES["swin"]
    model, inputs = family.build("sdpa"), family.inputs()
    subject = adapt(model, inputs, method="test")
    subject = replace(subject, target=read_target(0, 2), seeds=(0, 0))
    with scope(subject.root):
        reading = Reading(subject, lambda m, a, g: a.mean(1), gradient=False).run()
    block = model.swin.encoder.layers[0].blocks[1]
    assert block.shift_size == 2
    found = reading.maps[1].found[0]  # (rows, 64, 64)
    close(found.sum(-1), torch.ones(2, 64).double(), 1e-6)
    x = torch.randn(1, 64, 8).double()
    slope = torch.autograd.functional.jacobian(lambda t: block(t, (8, 8))[0].sum((0, 2)), x)[:, 0].abs().sum(-1)
    assert torch.equal(slope > 0, found[0] > 0)


def test_merged_tokens_share_what_they_have() -> None:
    row = torch.rand(2, 1, 4)
    whole = refit(row, 16)
    close(whole.sum(-1), row.sum(-1), 1e-6)
    close(whole[0, 0].view(4, 4)[:2, 2:], torch.full((2, 2), float(row[0, 0, 1]) / 4), 1e-6)


def test_grids_of_patches() -> None:
    assert grid(197, 224, 224) == (1, 14, 14)
    assert grid(198, 224, 224) == (2, 14, 14)
    assert grid(49, 224, 224) == (0, 7, 7)
    assert grid(33, 32, 64) == (1, 4, 8)
    with pytest.raises(whence.InputError, match="no grid of patches"):
        grid(30, 32, 32)


def test_the_grid_is_the_images_own() -> None:
    """What is bright in one corner of an image that is not square is found there."""
    family = of(
        "ViTForImageClassification", "ViTConfig", hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, image_size=(16, 32), patch_size=4, num_labels=3,
    )  # fmt: skip
    x = torch.zeros(1, 3, 16, 32).double()
    x[:, :, 4:8, 24:28] = 3.0  # patch (1, 6)
    a = whence.explain(family("sdpa"), {"pixel_values": x}, method="cat", target=0)
    assert a.values.shape == (1, 4, 8)
    b = whence.explain(family("sdpa"), {"pixel_values": x * 0}, method="cat", target=0)
    assert int((a.values - b.values).abs().flatten().argmax()) == 1 * 8 + 6
    assert a.to_image_size().values.shape == (1, 16, 32)


# ---- attention of other kinds ----


class Aligned(nn.Module):
    """A recurrent encoder whose states are weighted by one query."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.query, self.out = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        states, last = self.rnn(x)
        weights = torch.softmax(torch.bmm(self.query(last[-1])[:, None], states.mT), -1)  # (rows, 1, n)
        return self.out(torch.bmm(weights, states)[:, 0])


def test_alignment_weights_of_a_recurrent_decoder() -> None:
    torch.manual_seed(0)
    model, x = Aligned().double(), torch.randn(2, 5, 4).double()
    states, last = model.rnn(x)
    weights = torch.softmax(torch.bmm(model.query(last[-1])[:, None], states.mT), -1)[:, 0]
    close(whence.explain(model, x, method="raw_attention", target=1).values, weights.detach(), 1e-10)
    a = whence.explain(model, x, method="attention_x_gradient", target=1, output="probability")
    free = weights.detach().requires_grad_()
    p = model.out(torch.bmm(free[:, None], states.detach())[:, 0]).softmax(1)[:, 1]
    (slope,) = torch.autograd.grad(p.sum(), free)
    close(a.values, slope * free.detach(), 1e-10)


class ByHand(nn.Module):
    """Attention without a module list around it, spelled with einsum."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / 2, -1)
            mixed = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        return self.out(mixed.transpose(1, 2).flatten(2))[:, 0]


@pytest.mark.parametrize("method", METHODS)
def test_attention_by_hand(method: str) -> None:
    torch.manual_seed(0)
    fused, plain, x = ByHand(True).double(), ByHand(False).double(), torch.randn(2, 5, 8).double()
    plain.load_state_dict(fused.state_dict())
    a = whence.explain(fused, x, method=method, target=1).values
    assert a.shape == (2, 5)
    close(whence.explain(plain, x, method=method, target=1).values, a, 1e-10)
