"""LRP from the papers' formulas: one row, explicit matrices, every message from input j to output i written down.

A layer of the oracle takes its input and gives its output and how it sends relevance back. `products[i, j] = w_ij x_j`:
a rule says which messages leave output i, and by what their sum is divided.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import whence
from tests.support.models import close
from tests.support.slow_lrp import (
    COMPOSITES,
    Back,
    Layer,
    Rules,
    Weighted,
    averaged,
    copied,
    largest,
    moved,
    multiplied,
    passed,
    residual,
    sequence,
    shared,
    shifted,
    slowly,
    weighted,
    written,
)

ORACLE_OF = ("lrp",)
RTOL = 1e-8


# ---- ops with weights ----


# ---- other ops ----


def attention(query: Layer, key: Layer, value: Layer, near: Tensor, rules: Rules) -> Layer:
    """One head, to whose scores a constant is added."""

    def layer(x: Tensor) -> tuple[Tensor, Back]:  # (tokens, hidden)
        (q, to_q), (k, to_k), (v, to_v) = query(x), key(x), value(x)
        scores = q @ k.T / math.sqrt(q.shape[1])
        a = (scores + near).softmax(1)

        def back(relevance: Tensor) -> Tensor:
            r_a, r_v = multiplied(a, v, relevance, rules)
            r_scores, _ = shared(scores, near, r_a, rules)
            r_q, r_k = multiplied(q, k.T, r_scores, rules)
            return to_q(r_q) + to_k(r_k.T) + to_v(r_v)

        return a @ v, back

    return layer


def gated(left: Layer, right: Layer, rules: Rules) -> Layer:
    def layer(x: Tensor) -> tuple[Tensor, Back]:
        (a, to_a), (b, to_b) = left(x), right(x)

        def back(relevance: Tensor) -> Tensor:
            half = a * b * rules.divided(relevance, a * b) / 2
            return to_a(half) + to_b(half)

        return a * b, back

    return layer


# ---- models, and the same models as layers ----


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 8), nn.GELU(), nn.Linear(8, 3)
    )


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 5, 2), nn.AvgPool2d(2, 1),
        nn.ReLU(), nn.Flatten(), nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 3),
    )  # fmt: skip


class Skipping(nn.Module):
    """A convolutional net in functions: a residual block, a maximum, a mean of signed values."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.hidden, self.out = nn.Linear(16, 6), nn.Linear(6, 3)
        with torch.no_grad():
            self.right.weight.mul_(5), self.right.bias.sub_(1)  # the branches should cancel in part

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        x = x + self.right(F.relu(self.left(x)))
        return self.out(F.relu(self.hidden(F.avg_pool2d(x, 2).flatten(1))))

    def written(self, rules: Rules) -> Layer:
        at = {name: weighted(m, name, rules, name == "stem") for name, m in self.named_children()}
        return sequence(
            at["stem"], passed(F.relu), largest(nn.MaxPool2d(2, 2)),
            residual(sequence(at["left"], passed(F.relu), at["right"]), rules),
            averaged(lambda t: F.avg_pool2d(t, 2), rules), moved(lambda t: t.flatten(1)),
            at["hidden"], passed(F.relu), at["out"],
        )  # fmt: skip


class Transformer(nn.Module):
    """One block before which a learned position is added; tokens by a dense layer, or patches by a convolution."""

    def __init__(self, patches: bool) -> None:
        super().__init__()
        self.patches = patches
        self.embed = nn.Conv2d(2, 6, 2, stride=2) if patches else nn.Linear(5, 6)
        self.cls, self.position = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(1, 5, 6))
        self.q, self.k, self.v, self.mix = (nn.Linear(6, 6) for _ in range(4))
        self.up, self.down, self.out = nn.Linear(6, 10), nn.Linear(10, 6), nn.Linear(6, 3)
        self.register_buffer("near", -(torch.arange(5)[:, None] - torch.arange(5)).abs() / 3)
        self.before, self.between, self.after = (nn.LayerNorm(6) for _ in range(3))

    def placed(self, x: Tensor) -> Tensor:
        """A class token before the patches."""
        return torch.cat([self.cls.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = (self.placed(x) if self.patches else x) + self.position
        y = self.before(x)
        q, k, v = self.q(y), self.k(y), self.v(y)
        x = x + self.mix((q @ k.transpose(1, 2) / math.sqrt(6) + self.near).softmax(-1) @ v)
        x = x + self.down(F.gelu(self.up(self.between(x))))
        x = self.after(x)
        return self.out(x[:, 0] if self.patches else x.mean(1))

    def written(self, rules: Rules) -> Layer:
        at = {
            name: weighted(m, name, rules, name == "embed")
            for name, m in self.named_children()
            if isinstance(m, Weighted)
        }
        attend = attention(at["q"], at["k"], at["v"], self.near, rules)
        return sequence(
            at["embed"], moved(self.placed if self.patches else lambda t: t), shifted(self.position[0], rules),
            copied(rules), residual(sequence(passed(self.before), attend, at["mix"]), rules),
            copied(rules), residual(sequence(passed(self.between), at["up"], passed(F.gelu), at["down"]), rules),
            passed(self.after), moved(lambda t: t[:, 0]) if self.patches else averaged(lambda t: t.mean(1), rules),
            at["out"],
        )  # fmt: skip


class Gated(nn.Module):
    """A gated MLP after an RMS norm in its formula; a residual; a scaling and a negation."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gate, self.up = nn.Linear(5, 6), nn.Linear(6, 8), nn.Linear(6, 8)
        self.down, self.out = nn.Linear(8, 6), nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.randn(6))

    def norm(self, x: Tensor) -> Tensor:
        return self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y = self.norm(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return self.out(-0.5 * x)

    def written(self, rules: Rules) -> Layer:
        at = {name: weighted(m, name, rules, name == "embed") for name, m in self.named_children()}
        inner = gated(sequence(at["gate"], passed(F.silu)), at["up"], rules)
        return sequence(
            at["embed"], residual(sequence(passed(self.norm), inner, at["down"]), rules),
            passed(lambda t: -0.5 * t), at["out"],
        )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (5,)),
    "cnn": (cnn, (2, 8, 8)),
    "residual cnn": (Skipping, (2, 10, 10)),
    "transformer": (lambda: Transformer(False), (5, 5)),
    "vision transformer": (lambda: Transformer(True), (2, 4, 4)),
    "gated": (Gated, (5,)),
}
TARGETS = [1, 2, 0]


def built(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(8)
    build, shape = MODELS[name]
    return build().double().eval().requires_grad_(False), torch.randn(3, *shape).double() * 2


def expected(model: nn.Module, x: Tensor, rules: Rules, start: str = "one") -> Tensor:
    layer = written(model, rules) if isinstance(model, nn.Sequential) else model.written(rules)
    close(torch.stack([layer(row)[0] for row in x]), model(x), 1e-12)  # the same model
    return slowly(layer, x, TARGETS, start)


def agree(model: nn.Module, x: Tensor, rules: Rules, **options: Any) -> None:
    """Row by row, as rows differ in size."""
    wanted = expected(model, x, rules, options.get("start", "one"))
    values = whence.explain(model, x, method="lrp", target=TARGETS, **options).values
    assert values.shape == x.shape
    for found, row in zip(values, wanted, strict=True):
        close(found, row, RTOL)


EVERY_MODEL = pytest.mark.parametrize("model", MODELS)
EVERY_COMPOSITE = pytest.mark.parametrize("composite", COMPOSITES)


@EVERY_MODEL
@EVERY_COMPOSITE
def test_every_composite_on_every_model(composite: str, model: str) -> None:
    net, x = built(model)
    agree(net, x, COMPOSITES[composite], composite=composite)


OPTIONS: dict[str, dict[str, float]] = {
    "chefer": {},
    "epsilon": {"epsilon": 0.1, "stabilizer": 0.03},
    "gamma": {"gamma": 0.7, "stabilizer": 1e-3},
    "alpha_beta": {"alpha": 1.5, "beta": 0.5},
    "epsilon_gamma_box": {"low": -6.0, "high": 7.0, "gamma": 2.0},
}


@pytest.mark.parametrize("model", ["residual cnn", "transformer"])
@pytest.mark.parametrize("composite", OPTIONS)
def test_options_and_a_start_at_the_logit(composite: str, model: str) -> None:
    net, x = built(model)
    options = OPTIONS[composite]
    agree(net, x, replace(COMPOSITES[composite], options=options), composite=composite, start="logit", **options)


def test_the_default_is_chefer_from_one() -> None:
    net, x = built("residual cnn")
    agree(net, x, COMPOSITES["chefer"])


FAMILIES = {"linear": "epsilon", "convolution": "z_plus"}
EPSILON_PLUS = COMPOSITES["epsilon_plus"]
TABLES: dict[str, tuple[dict[str, Any], Rules]] = {
    "families": (FAMILIES, EPSILON_PLUS),
    "options": (
        {"linear": ("gamma", {"gamma": 0.5}), "convolution": ("alpha_beta", {"alpha": 3.0, "beta": 2.0})},
        Rules("gamma", "alpha_beta", options={"gamma": 0.5, "alpha": 3.0, "beta": 2.0}),
    ),
    "first": ({**FAMILIES, "first": "w_square"}, replace(EPSILON_PLUS, first="w_square")),
    "box": (
        {**FAMILIES, "first": ("z_box", {"low": -7.0, "high": 7.0})},
        replace(EPSILON_PLUS, first="z_box", options={"low": -7.0, "high": 7.0}),
    ),
    "own box": ({**FAMILIES, "first": "z_box"}, replace(EPSILON_PLUS, first="z_box")),
    "path": (
        {**FAMILIES, "path:*t": "gamma"},
        replace(EPSILON_PLUS, at={"left": "gamma", "right": "gamma", "out": "gamma"}),
    ),
    "last": ({**FAMILIES, "depth:-1": "z_plus"}, replace(EPSILON_PLUS, at={"out": "z_plus"})),
    "depth": (
        {**FAMILIES, "depth:1-2": "gamma"},
        replace(EPSILON_PLUS, at={"left": "gamma", "right": "gamma"}),
    ),
    "precedence": (
        {"depth:0-3": "gamma", "first": "flat", **FAMILIES, "path:right": "alpha_beta", "path:stem": "epsilon"},
        replace(EPSILON_PLUS, first="flat", at={"left": "gamma", "right": "alpha_beta", "hidden": "gamma"}),
    ),
    "proportional": ({**FAMILIES, "add": "proportional"}, replace(EPSILON_PLUS, add="proportional")),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_ones_own(name: str) -> None:
    net, x = built("residual cnn")
    table, rules = TABLES[name]
    agree(net, x, rules, composite=table)
    if name != "families":
        assert float((expected(net, x, rules) - expected(net, x, EPSILON_PLUS)).abs().max()) > 1e-3


class Rotated(nn.Module):
    """Rotary positions: constant images of one tensor are one linear op, not two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out, self.angle = nn.Linear(5, 6), nn.Linear(6, 3), torch.randn(6).double()

    def rotate(self, x: Tensor) -> Tensor:
        turned = torch.cat([-x[:, 3:], x[:, :3]], 1)
        return x * self.angle.cos() + turned * self.angle.sin()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rotate(self.embed(x)))

    def written(self, rules: Rules) -> Layer:
        at = {name: weighted(m, name, rules, name == "embed") for name, m in self.named_children()}
        return sequence(at["embed"], averaged(self.rotate, rules), at["out"])


@pytest.mark.parametrize("composite", ["chefer", "epsilon", "z_plus"])
def test_rotary_positions(composite: str) -> None:
    torch.manual_seed(9)
    net, x = Rotated().double().requires_grad_(False), torch.randn(3, 5).double()
    agree(net, x, COMPOSITES[composite], composite=composite)


# ---- numbers by hand ----

X, W, B = [2.0, -1.0, 1.0, -2.0], [1.0, 1.0, -3.0, -1.0], 1.0  # products 2, −1, −3, 2; y = 1
BY_HAND: dict[str, tuple[Any, list[float]]] = {
    "epsilon": ("epsilon", [2, -1, -3, 2]),
    "z_plus": ("z_plus", [2 / 5, 0, 0, 2 / 5]),
    "alpha_beta": ("alpha_beta", [4 / 5, -1 / 4, -3 / 4, 4 / 5]),
    "gamma": (("gamma", {"gamma": 1.0}), [4 / 6, -1 / 6, -3 / 6, 4 / 6]),
    "flat": ("flat", [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
    "w_square": ("w_square", [1 / 13, 1 / 13, 9 / 13, 1 / 13]),
    "z_box": ("z_box", [4 / 12, 1 / 12, 3 / 12, 4 / 12]),
    "chefer": ("chefer", [1 / 2, 0, 0, 1 / 2]),
    "orig": ("orig", [1, 0, 0, 1]),
}


@pytest.mark.parametrize("rule", BY_HAND)
def test_one_neuron_by_hand(rule: str) -> None:
    neuron, x = nn.Linear(4, 1).double(), torch.tensor([X]).double()
    with torch.no_grad():
        neuron.weight.copy_(torch.tensor([W])), neuron.bias.fill_(B)
    entry, numbers = BY_HAND[rule]
    found = whence.explain(
        neuron, x, method="lrp", target=0, composite={"linear": entry}, epsilon=1e-12, stabilizer=1e-12
    )
    wanted = torch.tensor([numbers], dtype=torch.float64)
    close(found.values, wanted, RTOL)
    rules = Rules(rule, rule, options={"epsilon": 1e-12, "stabilizer": 1e-12, "gamma": 1.0})
    close(slowly(weighted(neuron, "", rules), x, [0]), wanted, RTOL)  # what the oracle itself must do


def test_a_neuron_below_zero_by_hand() -> None:
    """Products 1, −4; y = −3: the gamma rule favours what is negative, and an empty positive set gives nothing."""
    neuron, x = nn.Linear(2, 1, bias=False).double(), torch.tensor([[1.0, 2.0], [-1.0, 2.0]]).double()
    with torch.no_grad():
        neuron.weight.copy_(torch.tensor([[1.0, -2.0]]))

    def by(rule: Any) -> list[list[float]]:
        return whence.explain(neuron, x, method="lrp", target=0, composite={"linear": rule}).values.tolist()

    assert by(("gamma", {"gamma": 0.5})) == [pytest.approx([-1 / 5, 6 / 5]), pytest.approx([1 / 5, 4 / 5])]
    assert by("chefer") == [pytest.approx([1, 0]), [0, 0]]


def test_two_branches_by_hand() -> None:
    """3 and −2 make 1: in proportion 3 and −2 of it; by shares 3/5 and 2/5."""
    a, b = torch.tensor([[3.0], [3.0]]).double(), torch.tensor([[-2.0], [1.0]]).double()

    def by(add: str) -> list[list[float]]:
        composite = {"linear": "epsilon", "add": add}
        found = whence.explain(lambda a, b: a.tanh().atanh() + b, (a, b), method="lrp", target=0, composite=composite)
        return [v.flatten().tolist() for v in found.values]

    assert by("proportional") == [pytest.approx([3, 3 / 4], rel=1e-5), pytest.approx([-2, 1 / 4], rel=1e-5)]
    assert by("share") == [pytest.approx([3 / 5, 3 / 4], rel=1e-5), pytest.approx([2 / 5, 1 / 4], rel=1e-5)]


@pytest.mark.parametrize(
    "model", [name for name in MODELS if name != "vision transformer"]
)  # its class token is a constant
@pytest.mark.parametrize("composite", ["epsilon", "gamma"])
def test_the_oracle_conserves_where_nothing_is_lost(composite: str, model: str) -> None:
    """Without biases, constants or a stabilizer to speak of, these two rules lose nothing."""
    net, x = built(model)
    for name, constant in [*net.named_parameters(), *net.named_buffers()]:
        if name.endswith(("bias", "position", "near")):
            constant.zero_()
    rules = replace(COMPOSITES[composite], options={"epsilon": 1e-13, "stabilizer": 1e-13})
    close(expected(net, x, rules).flatten(1).sum(1), torch.ones(3).double(), 1e-8)


# ---- the three conditions of Chefer, Gur & Wolf (2021) on the sum of two branches ----


class Joined(nn.Module):
    """f(a) + g(b), then maps without bias whose weights are positive: nothing is lost after the sum."""

    def __init__(self, f: Callable[[Tensor], Tensor], g: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.f, self.g = f, g
        self.hidden, self.out = nn.Linear(4, 5, bias=False), nn.Linear(5, 2, bias=False)
        self.double().requires_grad_(False)
        for layer in (self.hidden, self.out):
            layer.weight.copy_(torch.rand(layer.weight.shape, generator=torch.Generator().manual_seed(1)) + 0.1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        joined = F.relu(self.f(a) + self.g(b))  # (rows, tokens, 4)
        return self.out(F.relu(self.hidden(joined))).mean(1)


def mixing(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(4, 4, bias=False).double()


PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "elementwise": (lambda t: 2 * t, torch.sinh),
    "linear": (mixing(2), mixing(3)),
}
ROWS = st.lists(st.lists(st.integers(-16, 16), min_size=16, max_size=16), min_size=2, max_size=4)


@pytest.mark.slow
@pytest.mark.parametrize(("composite", "pair"), [
    ("chefer", "elementwise"), ("z_plus", "elementwise"), ("gamma", "elementwise"),
    ("epsilon", "elementwise"), ("epsilon", "linear"),
])  # fmt: skip
@pytest.mark.parametrize("start", ["one", "logit"])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(rows=ROWS)
@example(rows=[[8] * 8 + [-8] * 8, [16] * 8 + [0] * 8])
@example(rows=[[8, -8] * 4 + [16] * 8, [1] * 16])
def test_the_sum_of_two_branches(composite: str, pair: str, start: str, rows: list[list[int]]) -> None:
    model = Joined(*PAIRS[pair])
    a, b = (torch.tensor(rows).double() / 8).view(len(rows), 2, 2, 4).unbind(1)  # each (rows, tokens, 4)
    with torch.no_grad():
        logits = model(a, b)[:, 1]
        joined = model.f(a) + model.g(b)
    assume(bool((joined.flatten(1).max(1).values > 0.05).all()))
    small = {"chefer": [], "epsilon": ["epsilon", "stabilizer"]}.get(composite, ["stabilizer"])  # what it reads
    options = {"composite": composite, "start": start, **dict.fromkeys(small, 1e-10)}
    values = whence.explain(model, (a, b), method="lrp", target=1, **options).values
    to_a, to_b = (v.flatten(1).sum(1) for v in values)
    total = torch.ones_like(to_a) if start == "one" else logits
    assert torch.allclose(to_a + to_b, total, rtol=1e-5)  # conserved, and equal to the start
    for part in (to_a, to_b):
        assert bool((part >= -1e-6 * total).all())
        assert bool((part <= (1 + 1e-6) * total).all())
    for row in range(len(rows)):
        alone = whence.explain(model, (a[row : row + 1], b[row : row + 1]), method="lrp", target=1, **options).values
        for one, batch in zip(alone, values, strict=True):
            assert torch.allclose(one[0], batch[row], rtol=1e-9, atol=1e-12)


# ---- numbers that are not numbers, and numbers of fewer bits ----


class Causal(nn.Module):
    """Attention of one head under a causal mask that is added, or given to torch."""

    def __init__(self, hidden: float, torchs: bool) -> None:
        super().__init__()
        self.inner, self.out, self.torchs = nn.MultiheadAttention(4, 1, batch_first=True), nn.Linear(4, 3), torchs
        self.register_buffer("mask", torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), hidden))

    def forward(self, x: Tensor) -> Tensor:
        if self.torchs:
            return self.out(self.inner(x, x, x, attn_mask=self.mask, need_weights=False)[0][:, 2])
        q, k, v = F.linear(x, self.inner.in_proj_weight, self.inner.in_proj_bias).chunk(3, -1)
        return self.out(((q @ k.transpose(1, 2) / 2 + self.mask).softmax(-1) @ v)[:, 2])


@pytest.mark.parametrize("torchs", [True, False])
@pytest.mark.parametrize("composite", ["chefer", "orig", "epsilon"])
def test_a_mask_of_minus_infinity_is_one_of_a_large_number(composite: str, torchs: bool) -> None:
    found = []
    for hidden in (-1e9, -math.inf):
        torch.manual_seed(10)
        net, x = Causal(hidden, torchs).double().eval(), torch.randn(3, 5, 4).double()
        found.append(whence.explain(net, x, method="lrp", target=TARGETS, composite=composite).values)
    close(found[1], found[0], 1e-12)
    assert not found[1][:, 3:].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@EVERY_COMPOSITE
def test_fewer_bits(composite: str, dtype: torch.dtype) -> None:
    torch.manual_seed(11)
    net, x = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)), torch.randn(3, 2, 5, 5)
    for layer in (net[0], net[3]):
        nn.init.uniform_(layer.bias, 0.5, 1.0)
    a = whence.explain(net.to(dtype), x.to(dtype), method="lrp", target=TARGETS, composite=composite)
    exact = whence.explain(net.double(), x.to(dtype).double(), method="lrp", target=TARGETS, composite=composite)
    assert a.values.dtype == torch.float32
    close(a.values.double(), exact.values, 0.1)
