"""Fused ops written out: the same output, the same gradient, whatever the options."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.engine import EVERY, OWN, all_equal, gradients, run
from tests.support.models import close


def g(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def check(model: Any, inputs: Any, *, hidden: str | None = None, target: Any = None) -> None:
    """Expanded and as it is agree to rounding; `hidden` is an op that must be gone from the expanded pass."""
    target = target or (lambda y: _first(y).flatten(1).sin().sum(1))
    plain_score, plain = gradients(model, inputs, target=target)
    score, expanded = gradients(model, inputs, OWN, target=target, expand=EVERY)
    close(score, plain_score, 1e-10)
    all_equal(expanded, plain, 1e-12)
    if hidden:
        done = run(model, inputs, target=target, expand=EVERY)
        assert hidden not in {family for family, _ in done.flow.log.ops}


def _first(y: Any) -> Tensor:
    return y if isinstance(y, Tensor) else y[0]


# ---- scaled_dot_product_attention ----

Q, K, V = g(2, 4, 5, 6), g(2, 4, 7, 6, seed=1), g(2, 4, 7, 3, seed=2)
SOME = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(3)) > 0.4
SOME[..., 0] = True
EMPTY = SOME.clone()
EMPTY[0, 0, 2] = False
ATTENTIONS: dict[str, dict[str, Any]] = {
    "no mask": {},
    "bool": {"attn_mask": SOME},
    "bool with an empty row": {"attn_mask": EMPTY},
    "additive": {"attn_mask": g(5, 7, seed=4)},
    "minus infinity": {"attn_mask": torch.zeros(SOME.shape).double().masked_fill(~SOME, float("-inf"))},
    "minus infinity, empty row": {"attn_mask": torch.zeros(SOME.shape).double().masked_fill(~EMPTY, float("-inf"))},
    "finfo.min": {"attn_mask": torch.zeros(SOME.shape).double().masked_fill(~SOME, torch.finfo(torch.float64).min)},
    "causal": {"is_causal": True},
    "causal and scale": {"is_causal": True, "scale": 0.3},
    "dropout off": {"dropout_p": 0.0},
}


@pytest.mark.parametrize("kind", ATTENTIONS)
def test_scaled_dot_product_attention(kind: str) -> None:
    options = ATTENTIONS[kind]
    check(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options),
        (Q, K, V),
        hidden="scaled_dot_product_attention",
    )


def test_grouped_queries_and_keyword_spelling() -> None:
    k, v = g(2, 2, 7, 6, seed=1), g(2, 2, 7, 3, seed=2)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (Q, k, v))
    check(lambda q, k, v: F.scaled_dot_product_attention(query=q, key=k, value=v), (Q, K, V))
    with_two = torch.rand(5, 7) > 0.1
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, with_two, enable_gqa=True), (Q, k, v))


def test_attention_as_one_rule_has_its_queries_keys_values_and_rebuilds_its_maps() -> None:
    from whence.engine.expand.attention import attention_maps

    seen = []

    def one(call: Any, m: Tensor) -> Any:
        v = call.x[2]
        maps = attention_maps(call)
        seen.append(maps)
        close(maps @ v, call.y, 1e-12)
        return call.vjp(m)

    model = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=SOME)  # noqa: E731
    target = lambda y: y.flatten(1).sum(1)  # noqa: E731
    _, plain = gradients(model, (Q, K, V), target=target)
    _, ruled = gradients(model, (Q, K, V), {"attention": one, "*": OWN["*"]}, target=target)
    all_equal(ruled, plain, 1e-12)
    assert seen[0].shape == (2, 4, 5, 7)
    close(seen[0].sum(-1), torch.ones(2, 4, 5).double(), 1e-12)


def test_attention_as_one_rule_keeps_its_inputs_and_no_graph() -> None:
    """Nothing of the size queries × keys lives between the passes: the node has q, k, v and its result."""

    def one(call: Any, m: Tensor) -> Any:
        assert call.outputs[0].grad_fn is None
        assert [tuple(t.shape) for t in call.inputs] == [(1, 2, 30, 4)] * 3
        return call.vjp(m)

    def model(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q * 1, q * 2, q * 3).sin().sum((1, 2, 3))

    q = g(1, 2, 30, 4)
    _, plain = gradients(model, q)
    _, ruled = gradients(model, q, {"attention": one})
    all_equal(ruled, plain, 1e-12)


# ---- nn.MultiheadAttention ----

FLAGS = ["bias", "add_bias_kv", "add_zero_attn", "need_weights", "batch_first"]
OPTIONS = [dict(zip(FLAGS, on, strict=True)) for on in itertools.product([False, True], repeat=len(FLAGS))]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(k for k, v in o.items() if v) or "none")
@pytest.mark.parametrize("mask", ["none", "padding", "causal", "both", "float", "per head"])
def test_multihead_attention(options: dict[str, bool], mask: str) -> None:
    torch.manual_seed(0)
    flags = {k: v for k, v in options.items() if k != "need_weights"}
    mha = nn.MultiheadAttention(8, 2, **flags).double().eval()
    for p in mha.parameters():
        nn.init.normal_(p, std=0.4)
    x = g(3, 5, 8) if options["batch_first"] else g(5, 3, 8)
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    extra: dict[str, Any] = {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "causal": {"attn_mask": causal, "is_causal": True},
        "both": {"attn_mask": causal, "key_padding_mask": padding},
        "float": {"attn_mask": g(5, 5, seed=5)},
        "per head": {"attn_mask": g(6, 5, 5, seed=6)},
    }[mask]

    def model(rows: Tensor) -> Tensor:
        x = rows if options["batch_first"] else rows.transpose(0, 1)
        y, _ = mha(x, x, x, need_weights=options["need_weights"], **extra)
        return y if options["batch_first"] else y.transpose(0, 1)

    rows = x if options["batch_first"] else x.transpose(0, 1).contiguous()
    check(model, rows, hidden="multi_head_attention")


def test_multihead_attention_with_other_widths_unbatched_and_averaged() -> None:
    torch.manual_seed(0)
    mha = nn.MultiheadAttention(8, 2, kdim=5, vdim=3, batch_first=True).double().eval()
    check(lambda q, k, v: mha(q, k, v)[0], (g(2, 4, 8), g(2, 6, 5), g(2, 6, 3)), hidden="multi_head_attention")
    one = nn.MultiheadAttention(8, 2).double().eval()
    check(lambda x: torch.stack([one(row, row, row)[0] for row in x]), g(2, 4, 8), hidden="multi_head_attention")
    for average in (True, False):
        check(lambda x, a=average: one(x, x, x, average_attn_weights=a)[1].flatten(0, -2).unsqueeze(0), g(1, 3, 8))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_transformer_encoder_with_padding_and_mask(norm_first: bool, activation: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, activation=activation, norm_first=norm_first, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).double().eval()
    padding = torch.zeros(3, 5, dtype=torch.bool)
    padding[2, 2:] = True
    x = g(3, 5, 8)
    model = lambda x: encoder(x, src_key_padding_mask=padding)  # noqa: E731
    check(model, x, hidden="multi_head_attention", target=lambda y: y[:, 0].sin().sum(1))
    score, _ = gradients(model, x, target=lambda y: y[:, 0].sin().sum(1))
    leaf = x.clone().requires_grad_()
    close(score[:, 0], model(leaf)[:, 0].sin().sum(1).detach(), 1e-10)  # a run in grad mode, where the fast path is off


def test_transformer() -> None:
    torch.manual_seed(0)
    whole = nn.Transformer(8, 2, 1, 1, 12, batch_first=True).double().eval()
    causal = nn.Transformer.generate_square_subsequent_mask(4).double()
    check(lambda s, t: whole(s, t, tgt_mask=causal), (g(2, 5, 8), g(2, 4, 8)), hidden="multi_head_attention")


# ---- recurrent networks ----

KINDS: dict[str, Callable[..., nn.Module]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn": nn.RNN,
    "rnn relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
    "projected": lambda *a, **k: nn.LSTM(*a, proj_size=3, **k),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_recurrent_networks(kind: str, layers: int, bidirectional: bool, bias: bool) -> None:
    torch.manual_seed(0)
    rnn = KINDS[kind](4, 5, num_layers=layers, bidirectional=bidirectional, bias=bias, dropout=0.2 if layers > 1 else 0)
    rnn = rnn.double().eval()
    x = g(3, 6, 4)

    def everything(y: Any, h: Any) -> Tensor:
        states = h if isinstance(h, tuple) else (h,)
        return torch.cat([y.reshape(3, -1), *(s.transpose(0, 1).reshape(3, -1) for s in states)], 1)

    def time_first(x: Tensor) -> Tensor:
        y, h = rnn(x.transpose(0, 1))
        return everything(y.transpose(0, 1), h)

    check(time_first, x, hidden=kind.split()[0].replace("projected", "lstm"))
    rnn.batch_first = True
    check(lambda x: everything(*rnn(x)), x)

    def packed(x: Tensor) -> Tensor:
        lengths = torch.tensor([4, 6, 2])
        y, h = rnn(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return everything(nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0], h)

    check(packed, x)


def test_recurrent_networks_with_a_start_and_without_a_batch() -> None:
    torch.manual_seed(0)
    rnn = nn.LSTM(4, 5).double()
    check(lambda x, h, c: rnn(x.transpose(0, 1), (h[None], c[None]))[0][-1], (g(2, 3, 4), g(2, 5), g(2, 5)))
    check(lambda x: torch.stack([rnn(row)[0][-1] for row in x]), g(2, 3, 4))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "cell",
    [nn.LSTMCell, nn.GRUCell, nn.RNNCell, lambda *a, **k: nn.RNNCell(*a, nonlinearity="relu", **k)],
    ids=["lstm", "gru", "rnn", "rnn relu"],
)
def test_cells(cell: Any, bias: bool) -> None:
    torch.manual_seed(0)
    made = cell(4, 5, bias=bias).double()

    def model(x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = made(step, state)
        return torch.cat(state, 1) if isinstance(state, tuple) else state

    check(model, g(3, 4, 4), hidden=None)


# ---- products, norms, bags ----


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bi,bj,bk->bijk", [(2, 3), (2, 4), (2, 5)]),
        ("bij,bjk,bkl->bil", [(2, 3, 4), (2, 4, 5), (2, 5, 2)]),
        ("b i j, b j -> b i", [(2, 3, 4), (2, 4)]),
        ("bij,cj", [(2, 3, 4), (2, 4)]),
        ("b...i,bi...,bk->b...k", [(2, 4, 3), (2, 3, 4), (2, 5)]),
        ("bii->bi", [(2, 3, 3)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    inputs = tuple(g(*shape, seed=i) for i, shape in enumerate(shapes))
    check(lambda *xs: torch.einsum(equation, *xs), inputs)
    check(lambda *xs: torch.einsum(equation, list(xs)), inputs)


NORMS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "layer": (nn.LayerNorm(6), (3, 4, 6)),
    "layer, two axes": (nn.LayerNorm((4, 6), elementwise_affine=False), (3, 4, 6)),
    "rms": (nn.RMSNorm(6), (3, 4, 6)),
    "rms, eps": (nn.RMSNorm(6, eps=1e-3), (3, 4, 6)),
    "group": (nn.GroupNorm(3, 6), (3, 6, 4, 4)),
    "instance": (nn.InstanceNorm2d(6, affine=True), (3, 6, 4, 4)),
    "instance, running": (nn.InstanceNorm1d(6, affine=True, track_running_stats=True), (3, 6, 4)),
    "normalize": (F.normalize, (3, 6, 4)),
    "normalize, last": (lambda x: F.normalize(x, dim=-1), (3, 6, 4)),
    "normalize, p=1": (lambda x: F.normalize(x, p=1.0), (3, 6, 4)),
    "torch.layer_norm": (lambda x: torch.layer_norm(x, (6,)), (3, 4, 6)),
}


@pytest.mark.parametrize("kind", NORMS)
def test_norms(kind: str) -> None:
    norm, shape = NORMS[kind]
    if isinstance(norm, nn.Module):
        norm = norm.double().eval()
        for p in norm.parameters():
            nn.init.normal_(p)
    check(norm, g(*shape))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0])
def test_embedding_bag_explains_its_ids(mode: str, padding: int | None) -> None:
    torch.manual_seed(0)
    bag = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=padding).double()
    ids = torch.tensor([[1, 2, 0, 5], [3, 3, 8, 0], [0, 0, 0, 0]])
    done = run(bag, ids, target=2)
    close(done.score[:, 0].detach(), bag(ids)[:, 2].detach(), 1e-12)
    found = done.pull()["input"][:, 0]  # (rows, n, hidden)
    assert found.shape == (3, 4, 4)
    if mode == "sum":
        expected = torch.zeros(3, 4, 4).double()
        expected[..., 2] = (ids != 0).double() if padding == 0 else 1.0
        close(found, expected, 1e-12)


def test_embedding_bag_with_offsets_and_weights() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(9, 4).double().weight
    ids, offsets = torch.tensor([1, 2, 4, 5, 4, 3]), torch.tensor([0, 2, 2])

    def model(weights: Tensor) -> Tensor:
        return F.embedding_bag(ids, table, offsets, mode="sum", per_sample_weights=weights.flatten()).sum()[None, None]

    check(model, g(1, 6), hidden=None)


# ---- what a reviewer found ----


def test_calls_of_another_form_stay_fused_and_right() -> None:
    from torch.nn.attention.bias import causal_upper_left

    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal_upper_left(5, 7)), (Q, K, V))
    check(lambda x: torch.layer_norm(x, (6,), cudnn_enable=False), g(3, 4, 6))
    ones = torch.ones(6).double()
    check(lambda x: torch.instance_norm(x, ones, ones, None, None, True, 0.1, 1e-5, False), g(3, 6, 4))
    values = g(2, 2, 7, 3, seed=2)
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), (Q, K, values))


def test_normalizing_nothing_and_a_negative_padding_index() -> None:
    x = g(3, 6)
    x[1] = 0
    check(F.normalize, x)
    table, ids = nn.Embedding(9, 4).double().weight, torch.tensor([[1, 8, 2], [8, 8, 3]])
    for mode in ("sum", "mean", "max"):
        expected = F.embedding_bag(ids, table, mode=mode, padding_idx=-1)[:, 0].detach()
        done = run(lambda i, mode=mode: F.embedding_bag(i, table, mode=mode, padding_idx=-1), ids)
        close(done.score[:, 0].detach(), expected, 1e-12)


def test_maps_are_rebuilt_without_dropout() -> None:
    from whence.engine.expand.attention import attention_maps

    def one(call: Any, m: Tensor) -> Any:
        close(attention_maps(call).sum(-1), torch.ones(2, 4, 5).double(), 1e-12)
        return call.vjp(m)

    model = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).sum((1, 2, 3))  # noqa: E731
    with pytest.warns(whence.WhenceWarning, match="draws random numbers in eval mode"):
        run(model, (Q, K, V), {"attention": one}).pull()
