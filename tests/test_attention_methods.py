"""Methods that read attention, on stock transformers of every kind: one answer whatever the attention is spelled as."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.attention import heads, joined
from tests.support.functions import W, explain
from tests.support.hf import FAMILIES, of
from tests.support.models import close
from tests.support.slow import mostly_slow
from whence.methods.attention.layout import grid
from whence.methods.attention.reading import read
from whence.methods.attention.windows import refit

METHODS = [name for name, entry in whence.methods.items() if entry.facts.get("needs") == "attention"]
FAST = [name for name in METHODS if name != "attention_flow"]
ATTENTIVE = [name for name, family in FAMILIES.items() if family.attends]
SINGLE = {"modernbert", "llama", "mistral", "qwen3", "t5", "vit", "deit", "swin", "beit", "clip"}  # in part

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def maps(values: Any) -> dict[str, Tensor]:
    return values if isinstance(values, dict) else {"": values}


@pytest.mark.slow
@pytest.mark.parametrize("name", mostly_slow(ATTENTIVE, ["bert", "t5", "vit"]))
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


@pytest.mark.parametrize("name", [name for name in ATTENTIVE if len(FAMILIES[name].kinds) == 2])
def test_maps_are_the_same_fused_and_eager(name: str) -> None:
    family = FAMILIES[name]
    fused, eager = (
        whence.explain(
            family.build(kind), family.inputs(), method="random", target=family.target, keep=("attention",)
        ).kept["attention"]
        for kind in ("sdpa", "eager")
    )
    assert len(fused) == len(eager) > 0
    for a, b in zip(fused, eager, strict=True):
        close(a, b, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", mostly_slow(["bert", "gpt2", "t5", "bart", "clip", "lxmert", "swin"], ["bert", "swin"])
)
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
        for method in METHODS if name != "bart" else FAST:
            a = whence.explain(family.build(family.kinds[0]), inputs, method=method, target=family.target)
            values = maps(a.values).get("input_ids", next(iter(maps(a.values).values())))
            assert bool((values[inputs["attention_mask"] == 0] == 0).all()), (name, method)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_without_attention_is_named(method: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(whence.NoAttention, match=f"{method} reads attention, but this model has none"):
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
    from whence.subject.targets import read_target

    subject = adapt(family.build("sdpa"), family.inputs(), method="test")
    subject = replace(subject, target=read_target(family.target, 2), seeds=(0, 0))
    with scope(subject.root):
        reading = read(subject, lambda m, a, g: a.mean(1), gradient=False)
    names = [("".join(m.query), "".join(m.key)) for m in reading.maps]
    encoder, decoder = "input_ids", "decoder_input_ids"
    assert names == [(encoder, encoder)] * 2 + [(decoder, decoder), (decoder, encoder)] * 2


def test_a_shifted_window_is_spread_to_the_tokens_it_holds() -> None:
    """Tokens of one window, and no others, act on each other in a block of Swin; so says its derivative."""
    from dataclasses import replace

    from whence.adapters.tensors import adapt
    from whence.engine.scope import scope
    from whence.subject.targets import read_target

    family = FAMILIES["swin"]
    model, inputs = family.build("sdpa"), family.inputs()
    subject = adapt(model, inputs, method="test")
    subject = replace(subject, target=read_target(0, 2), seeds=(0, 0))
    with scope(subject.root):
        reading = read(subject, lambda m, a, g: a.mean(1), gradient=False)
    block = model.swin.encoder.layers[0].blocks[1]
    assert block.shift_size == 2
    found = reading.maps[1].reduced[0]  # (rows, 64, 64)
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
    with pytest.raises(whence.InputError, match="do not form a grid of patches"):
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


# ---- what a reviewer found: one attention in many spellings ----


class Layer(nn.Module):
    def __init__(self, attend: Any) -> None:
        super().__init__()
        self.project, self.attend = nn.Linear(8, 24), attend

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attend(*self.project(x).chunk(3, -1))


class Small(nn.Module):
    """Two residual layers of attention, read at the first token by a head that may be a list's member."""

    def __init__(self, attend: Any, listed: bool = False, aside: bool = False) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed, self.layers = nn.Embedding(20, 8), nn.ModuleList([Layer(attend) for _ in range(2)])
        self.out, self.aside = nn.ModuleList([nn.Linear(8, 3)]) if listed else nn.Linear(8, 3), aside
        self.double().eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        if self.aside:  # attention that the score does not use
            self.layers[0](x)
        return (self.out[0] if isinstance(self.out, nn.ModuleList) else self.out)(x[:, 0])


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return joined((heads(q) @ heads(k).mT).softmax(-1) @ heads(v))


def one_by_one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    three = zip(q.chunk(2, -1), k.chunk(2, -1), v.chunk(2, -1), strict=True)
    return torch.cat([(a @ b.mT).softmax(-1) @ c for a, b, c in three], -1)


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->hbqk", heads(q), heads(k))
    return torch.einsum("hbqk,bhkd->bqhd", scores.softmax(-1), heads(v)).flatten(2)


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, b, c = (heads(t).flatten(0, 1) for t in (q, k, v))
    return joined(torch.bmm(torch.bmm(a, b.mT).softmax(-1), c).unflatten(0, (-1, 2)))


SPELLED = {
    "keys times queries": lambda q, k, v: joined((heads(v).mT @ (heads(k) @ heads(q).mT).softmax(-2)).mT),
    "heads first": heads_first,
    "heads one by one": one_by_one,
    "heads in the batch": merged,
    "fused": lambda q, k, v: joined(F.scaled_dot_product_attention(heads(q), heads(k), heads(v), scale=1.0)),
}
IDS = torch.randint(0, 20, (2, 5), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("method", ["raw_attention", "rollout", "generic_attention", "grad_sam", "cat", "attcat"])
@pytest.mark.parametrize("name", SPELLED)
def test_spellings_of_one_attention(name: str, method: str) -> None:
    expected = whence.explain(Small(plain), IDS, method=method, target=0).values
    close(whence.explain(Small(SPELLED[name]), IDS, method=method, target=0).values, expected, 1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_what_comes_after_the_layers_changes_nothing(method: str) -> None:
    expected = whence.explain(Small(plain), IDS, method=method, target=0).values
    for model in (Small(plain, listed=True), Small(plain, aside=True)):
        close(whence.explain(model, IDS, method=method, target=0).values, expected, 1e-9)


@pytest.mark.parametrize("method", ["raw_attention", "rollout", "generic_attention", "cat", "attcat", "grad_sam"])
def test_tokens_first_or_rows_first(method: str) -> None:
    class Encoder(nn.Module):
        def __init__(self, rows_first: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=rows_first)
            self.embed, self.inner = nn.Embedding(25, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out, self.rows_first = nn.Linear(8, 3), rows_first
            self.double().eval()

        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.embed(input_ids)
            return self.out(self.inner(x)[:, 0] if self.rows_first else self.inner(x.transpose(0, 1))[0])

    for rows in (2, 5):
        ids = torch.arange(25).view(5, 5)[:rows]
        expected = whence.explain(Encoder(True), ids, method=method, target=0).values
        close(whence.explain(Encoder(False), ids, method=method, target=0).values, expected, 1e-9)


def test_pooling_by_one_query() -> None:
    class Pooling(Small):
        def __init__(self) -> None:
            super().__init__(plain)
            self.weigh = nn.Linear(8, 1).double()

        def forward(self, input_ids: Tensor) -> Tensor:
            x = self.embed(input_ids)
            for layer in self.layers:
                x = layer(x)
            return self.out((self.weigh(x).softmax(1).mT @ x)[:, 0])

    a = whence.explain(Pooling(), IDS, method="rollout", target=0)
    close(a.values.sum(1), torch.ones(2).double(), 1e-9)


def test_switches_that_do_not_apply_are_said() -> None:
    t5, bert = FAMILIES["t5"], FAMILIES["bert"]
    with pytest.raises(whence.ParameterError, match="identity=False is defined for models without cross-attention"):
        whence.explain(t5.build("sdpa"), t5.inputs(), method="generic_attention", target=t5.target, identity=False)
    with pytest.raises(whence.InputError, match="attention_flow is defined for one sequence"):
        whence.explain(t5.build("sdpa"), t5.inputs(), method="attention_flow", target=t5.target)
    with pytest.raises(whence.ParameterError, match="start_layer=5 is not allowed"):
        whence.explain(bert.build("sdpa"), bert.inputs(), method="rollout", start_layer=5)


def test_positions_that_are_no_tokens_of_the_input_are_said() -> None:
    class Led(Small):
        def forward(self, input_ids: Tensor) -> Tensor:
            x = torch.cat([self.embed.weight[:1].expand(len(input_ids), 1, 8), self.embed(input_ids)], 1)
            return self.out(self.layers[0](x)[:, 0])

    a = whence.explain(Led(plain), IDS, method="rollout", target=0)
    assert a.values.shape == (2, 5)
    close(a.values.sum(1) + torch.tensor(a.receipt["other_positions"]).double(), torch.ones(2).double(), 1e-5)


def test_a_gate_is_no_attention() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.one, self.two = (nn.Linear(6, n) for n in (2, 4, 4))

        def forward(self, x: Tensor) -> Tensor:
            g = self.gate(x).softmax(-1)
            return g[:, :1] * self.one(x) + g[:, 1:] * self.two(x)

    with pytest.raises(whence.NoAttention):
        whence.explain(Gated(), torch.randn(2, 6), method="rollout", target=0)
    with pytest.raises(whence.NoAttention):
        whence.explain(lambda x: x * x.softmax(-1), torch.randn(2, 6), method="rollout", target=0)


def test_a_text_mask_is_not_an_images() -> None:
    family = FAMILIES["lxmert"]
    inputs = family.inputs()
    g = torch.Generator().manual_seed(0)
    inputs |= {"visual_feats": torch.randn(2, 7, 10, generator=g).double()}
    inputs |= {"visual_pos": torch.rand(2, 7, 4, generator=g).double()}  # as many objects as tokens
    for method in ("rollout", "generic_attention", "grad_sam"):
        both = whence.explain(family.build("eager"), inputs, method=method, target=family.target)
        alone = whence.explain(
            family.build("eager"), {k: v[1:] for k, v in inputs.items()}, method=method, target=family.target
        )
        close(both.values["visual_feats"][1:], alone.values["visual_feats"], 1e-9)
        assert bool((both.values["visual_feats"][1] != 0).all())


def test_patches_of_any_size() -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    for image, patch, expected in (((18, 18), 4, (4, 4)), ((8, 16), (4, 8), (2, 2))):
        build = of("ViTForImageClassification", "ViTConfig", **small, image_size=image, patch_size=patch, num_labels=3)
        x = torch.randn(1, 3, *image).double()
        assert whence.explain(build("eager"), {"pixel_values": x}, method="rollout").values.shape == (1, *expected)


# ---- one model, whatever holds its modules ----


class Attention(nn.Module):
    """A residual layer of attention and a feed-forward one, each normalised after it."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out, self.norm, self.mlp = (
            nn.Linear(8, 24),
            nn.Linear(8, 8),
            nn.LayerNorm(8),
            nn.Linear(8, 8),
        )

    def forward(self, x: Tensor) -> Tensor:
        return layer_by_hand(self, x)


def layer_by_hand(layer: nn.Module, x: Tensor) -> Tensor:
    x = layer.norm(x + layer.out(plain(*layer.project(x).chunk(3, -1))))  # type: ignore[operator]
    return x + torch.tanh(layer.mlp(x))  # type: ignore[operator]


class Holder(nn.Module):
    """The same two layers and the same head, held and called in any way; `beside` is something else that it holds."""

    def __init__(self, held: str, head: str, beside: str, pooled: bool) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed, layers, out = nn.Embedding(25, 8), [Attention(), Attention()], nn.Linear(8, 3)
        self.held, self.pooled = held, pooled
        if held == "list":
            self.layers: Any = nn.ModuleList(layers)
        elif held == "sequence":
            self.layers = nn.Sequential(*layers)
        elif held == "dict":
            self.layers = nn.ModuleDict({"a": layers[0], "b": layers[1]})
        else:  # as attributes, called as modules or by a function
            self.one, self.two = layers
        lead: list[nn.Module] = [nn.Identity()]
        self.out: Any = {"plain": out, "sequence": nn.Sequential(out), "deep": nn.Sequential(*lead, out)}.get(head)
        self.out = self.out or {"list": nn.ModuleList([out]), "dict": nn.ModuleDict({"out": out})}[head]
        if beside != "nothing":
            self.beside = {"list": nn.ModuleList, "sequence": lambda m: nn.Sequential(*m)}[beside]([nn.Linear(8, 8)])
        self.double().eval()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        held = [self.one, self.two] if self.held in ("attributes", "function") else self.layers
        for layer in held.values() if isinstance(held, nn.ModuleDict) else held:
            x = layer_by_hand(layer, x) if self.held == "function" else layer(x)
        x = x.mean(1) if self.pooled else x[:, 0]
        if hasattr(self, "beside"):
            x = x + 0 * (self.beside[0](x))
        head = self.out
        head = head[0] if isinstance(head, nn.ModuleList) else head["out"] if isinstance(head, nn.ModuleDict) else head
        return head(x)


@pytest.mark.parametrize("pooled", [False], ids=["first"])
@pytest.mark.parametrize("held", ["list", "sequence", "dict", "attributes", "function"])
def test_the_answer_does_not_depend_on_what_holds_the_modules(held: str, pooled: bool) -> None:
    ids = torch.arange(10).view(2, 5)
    for method in ("raw_attention", "rollout", "attention_flow", "generic_attention", "attention_gradients"):
        expected = whence.explain(Holder("list", "plain", "nothing", pooled), ids, method=method, target=0).values
        for head, beside in (
            ("plain", "nothing"), ("sequence", "nothing"), ("list", "sequence"), ("dict", "list"), ("deep", "list"),
        ):  # fmt: skip
            model = Holder(held, head, beside, pooled)
            close(whence.explain(model, ids, method=method, target=0).values, expected, 1e-9)


def test_methods_that_read_attention_take_a_baseline_to_compare_with() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = BertForSequenceClassification(BertConfig(**sizes, vocab_size=60)).eval()
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    with_one = whence.explain(model, ids, method="rollout", baseline=0.0)
    assert torch.equal(with_one.values, whence.explain(model, ids, method="rollout").values)
    assert with_one.baseline_value is not None
    with pytest.raises(whence.NoAttention):
        explain(lambda x: x @ W, method="rollout", baseline=0.0, target=0)
