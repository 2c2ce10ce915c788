"""AttnLRP, CP-LRP, partial LRP and Transformer Attribution from the papers' formulas: one row, one op at a time.

A model says what it is made of once (`written`), in the words of a kit: `Uniform` sends back the multiplier of AttnLRP
and CP-LRP, `Shares` the relevance of LRP's composites, by the messages of `test_lrp`, and keeps attention on the way.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support import slow_lrp as lrp
from tests.support.models import close
from tests.support.slow_lrp import Back, Layer, sequence

ORACLE_OF = ("attnlrp", "cp_lrp", "partial_lrp", "transformer_attribution")
RTOL = 1e-8
HEADS = 2
Function = Callable[[Tensor], Tensor]


def split(x: Tensor) -> Tensor:
    """(tokens, hidden) → (heads, tokens, hidden / heads)."""
    return x.unflatten(-1, (HEADS, -1)).transpose(-2, -3)


def joined(x: Tensor) -> Tensor:
    return x.transpose(-2, -3).flatten(-2)


# ---- AttnLRP and CP-LRP: relevance is x ⊙ m ----


def transposed(function: Function, x: Tensor, m: Tensor) -> Tensor:
    """m by the transpose of an affine map's matrix, whose columns are the images of unit vectors."""
    units = torch.eye(x.numel()).double().view(-1, *x.shape)
    columns = torch.stack([function(unit) - function(torch.zeros_like(x)) for unit in units]).flatten(1)
    return (columns @ m.flatten()).view_as(x)


def affine(function: Function) -> Layer:
    return lambda x: (function(x), lambda m: transposed(function, x, m))


@dataclass
class Uniform:
    """`held`: attention and gates are constants (CP-LRP)."""

    held: bool

    def linear(self, module: nn.Module) -> Layer:
        return affine(module)

    moved = averaged = staticmethod(lambda function: affine(lambda x: function(x[None])[0]))

    def shifted(self, constant: Tensor) -> Layer:
        return affine(lambda x: x + constant)

    def scaled(self, factor: float) -> Layer:
        return affine(lambda x: x * factor)

    def pointwise(self, g: Function) -> Layer:
        return lambda x: (g(x), lambda m: m * (g(x) - g(torch.zeros_like(x))) / x)

    def norm(self, norm: nn.LayerNorm | nn.RMSNorm) -> Layer:
        """diag(weight / σ) · (1 − 11ᵀ/n), or without the mean: σ is a constant."""
        centred = isinstance(norm, nn.LayerNorm)

        def layer(x: Tensor) -> tuple[Tensor, Back]:  # (tokens, hidden) or (hidden)
            n = x.shape[-1]
            taken = torch.eye(n).double() - (1 / n if centred else 0)
            sigma = ((x @ taken.T).square().mean(-1, keepdim=True) + norm.eps).sqrt()  # type: ignore[operator]
            return norm(x), lambda m: (m * norm.weight / sigma) @ taken

        return layer

    def residual(self, inner: Layer) -> Layer:
        def layer(x: Tensor) -> tuple[Tensor, Back]:
            y, inside = inner(x)
            return x + y, lambda m: m + inside(m)

        return layer

    def gated(self, gate: Layer, up: Layer) -> Layer:
        def layer(x: Tensor) -> tuple[Tensor, Back]:
            (a, to_gate), (b, to_up) = gate(x), up(x)
            return a * b, lambda m: to_up(m * a) if self.held else to_gate(m * b / 2) + to_up(m * a / 2)

        return layer

    def attention(self, query: Layer, key: Layer, value: Layer, near: Tensor | None) -> Layer:
        def layer(x: Tensor) -> tuple[Tensor, Back]:
            (q, to_q), (k, to_k), (v, to_v) = query(x), key(x), value(x)
            parts = [one_head(*qkv, near, self.held) for qkv in zip(split(q), split(k), split(v), strict=True)]

            def back(m: Tensor) -> Tensor:
                found = [part(one) for (_, part), one in zip(parts, split(m), strict=True)]
                m_q, m_k, m_v = (joined(torch.stack(each)) for each in zip(*found, strict=True))
                return to_q(m_q) + to_k(m_k) + to_v(m_v)

            return joined(torch.stack([y for y, _ in parts])), back

        return layer


def one_head(
    q: Tensor, k: Tensor, v: Tensor, near: Tensor | None, held: bool
) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
    """Each factor of a product has half of the derivative, and softmax its Jacobian diag(a) − aaᵀ."""
    size = math.sqrt(q.shape[1])
    a = (q @ k.T / size + (0 if near is None else near)).softmax(1)

    def back(m: Tensor) -> tuple[Tensor, ...]:
        m_v = transposed(lambda t: a @ t, v, m)
        if held:
            return torch.zeros_like(q), torch.zeros_like(k), m_v
        m_a = transposed(lambda t: t @ v, a, m) / 2
        m_scores = torch.stack([(p.diag() - p[:, None] * p) @ one for p, one in zip(a, m_a, strict=True)])
        m_q = transposed(lambda t: t @ k.T / size, q, m_scores) / 2
        return m_q, transposed(lambda t: q @ t.T / size, k, m_scores) / 2, m_v / 2

    return a @ v, back


# ---- relevance by a composite's messages, of which attention is kept ----


@dataclass
class Shares:
    rules: lrp.Rules
    maps: list[Tensor] = field(default_factory=list)  # (heads, query, key) of each layer
    relevance: list[Tensor] = field(default_factory=list)  # theirs, the last layer's first
    states: list[Tensor] = field(default_factory=list)  # what each sum of two branches gave

    def linear(self, module: Any) -> Layer:
        return lrp.weighted(module, "", self.rules)

    moved = staticmethod(lrp.moved)

    def averaged(self, function: Function) -> Layer:
        return lrp.averaged(function, self.rules)

    def shifted(self, constant: Tensor) -> Layer:
        return lrp.shifted(constant, self.rules)

    def scaled(self, factor: float) -> Layer:
        return lrp.passed(lambda x: x * factor)

    pointwise = norm = staticmethod(lrp.passed)

    def residual(self, inner: Layer) -> Layer:
        both = sequence(lrp.copied(self.rules), lrp.residual(inner, self.rules))

        def layer(x: Tensor) -> tuple[Tensor, Back]:
            y, back = both(x)
            self.states.append(y)
            return y, back

        return layer

    def attention(self, query: Layer, key: Layer, value: Layer, near: Tensor | None) -> Layer:
        def layer(x: Tensor) -> tuple[Tensor, Back]:
            (q, to_q), (k, to_k), (v, to_v) = query(x), key(x), value(x)
            q, k, v = split(q), split(k).transpose(1, 2), split(v)
            scores = torch.stack([one @ other / math.sqrt(q.shape[2]) for one, other in zip(q, k, strict=True)])
            a = (scores if near is None else scores + near).softmax(2)
            self.maps.append(a)

            def back(relevance: Tensor) -> Tensor:
                r_a, r_v = self.halves(a, v, split(relevance))
                self.relevance.append(r_a)
                r_scores = r_a if near is None else lrp.shared(scores, near.expand_as(scores), r_a, self.rules)[0]
                r_q, r_k = self.halves(q, k, r_scores)
                return to_q(joined(r_q)) + to_k(joined(r_k.transpose(1, 2))) + to_v(joined(r_v))

            return joined(torch.stack([p @ one for p, one in zip(a, v, strict=True)])), back

        return layer

    def halves(self, a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
        found = [lrp.multiplied(*each, self.rules) for each in zip(a, b, relevance, strict=True)]
        return torch.stack([to_a for to_a, _ in found]), torch.stack([to_b for _, to_b in found])


# ---- models ----


class Block(nn.Module):
    """`kind`: torch's attention or a softmax, in front of which a mask is filled in, or added with what is near."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.q, self.k, self.v, self.mix = (nn.Linear(8, 8) for _ in range(4))
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)
        self.before, self.between = nn.LayerNorm(8), nn.LayerNorm(8)

    def attend(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (split(m(x)) for m in (self.q, self.k, self.v))  # (rows, heads, tokens, size)
        real = torch.ones(1, x.shape[1]) if mask is None else mask
        real, near = real[:, None, None].bool(), self.near(x.shape[1])
        if near is not None:
            near = near.masked_fill(~real, -math.inf if "sdpa" in self.kind else -1e9)
        if "sdpa" in self.kind:
            return joined(F.scaled_dot_product_attention(q, k, v, attn_mask=real if near is None else near))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~real, -math.inf) if near is None else scores + near
        return joined(scores.softmax(-1) @ v)

    def near(self, tokens: int) -> Tensor | None:
        places = torch.arange(tokens).double()
        return -(places[:, None] - places).abs() / 3 if "added" in self.kind else None

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.mix(self.attend(self.before(x), mask))
        return x + self.down(F.gelu(self.up(self.between(x))))

    def written(self, kit: Any, tokens: int) -> Layer:
        attend = kit.attention(*(kit.linear(m) for m in (self.q, self.k, self.v)), self.near(tokens))
        return sequence(
            kit.residual(sequence(kit.norm(self.before), attend, kit.linear(self.mix))),
            kit.residual(sequence(kit.norm(self.between), kit.linear(self.up), kit.pointwise(F.gelu),
                                  kit.linear(self.down))),
        )  # fmt: skip


class Encoder(nn.Module):
    """Tokens of which the first is read, or their mean; or patches behind a class token."""

    def __init__(self, pool: str, kind: str) -> None:
        super().__init__()
        self.pool = pool
        self.embed = nn.Conv2d(2, 8, 2, stride=2) if pool == "patches" else nn.Linear(6, 8)
        self.cls, self.position = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(5, 8))
        self.layers = nn.ModuleList([Block(kind) for _ in range(3)])
        self.after, self.out = nn.LayerNorm(8), nn.Linear(8, 3)
        for norm in (m for m in self.modules() if isinstance(m, nn.LayerNorm)):
            nn.init.normal_(norm.weight, 1, 0.5), nn.init.normal_(norm.bias)

    def placed(self, x: Tensor) -> Tensor:
        if self.pool != "patches":
            return x
        return torch.cat([self.cls.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.placed(self.embed(x))
        x = x + self.position[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, attention_mask)
        return self.out(self.pooled(self.after(x), attention_mask))

    def pooled(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True) if self.pool == "mean" else x[:, 0]

    def read(self, kit: Any, tokens: int) -> tuple[Layer, ...]:
        mean = kit.averaged(lambda x: x.sum(1)), kit.scaled(1 / tokens)
        return mean if self.pool == "mean" else (kit.moved(lambda x: x[:, 0]),)

    def written(self, kit: Any, tokens: int) -> Layer:
        return sequence(
            kit.linear(self.embed), kit.moved(self.placed), kit.shifted(self.position[:tokens]),
            *(layer.written(kit, tokens) for layer in self.layers), kit.norm(self.after),
            *self.read(kit, tokens), kit.linear(self.out),
        )  # fmt: skip


LENGTHS = (5, 3, 4)
TARGETS = torch.tensor([[1, 0], [2, 2], [0, 1]])  # (rows, k)
POOLS = ("first", "mean", "patches")
EVERY_KIND = pytest.mark.parametrize("kind", ["sdpa", "filled", "added", "added sdpa"])
EVERY_POOL = pytest.mark.parametrize("pool", POOLS)


@functools.cache
def encoder(pool: str, kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    torch.manual_seed(21)
    model = Encoder(pool, kind).double().eval().requires_grad_(False)
    if pool == "patches":
        return model, {"x": torch.randn(3, 2, 4, 4).double()}
    real = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    return model, {"x": torch.randn(3, 5, 6).double() * 2, "attention_mask": real.long()}


def alone(pool: str, row: int) -> tuple[Tensor, int]:
    """A row without its padding, and how many tokens there are."""
    x = encoder(pool, "sdpa")[1]["x"][row]
    return (x, 5) if pool == "patches" else (x[: LENGTHS[row]], LENGTHS[row])


def same(pool: str, kind: str, row: int, y: Tensor) -> None:
    """The oracle's own forward pass is the model's, in the batch."""
    model, inputs = encoder(pool, kind)
    close(y.detach(), model(**inputs)[row], 1e-12)


def padded(found: Tensor, like: Tensor) -> Tensor:
    """Padding gets 0."""
    whole = torch.zeros_like(like)
    whole[: len(found)] = found
    return whole


# ---- AttnLRP and CP-LRP ----


@torch.no_grad()
def multiplied(layer: Layer, x: Tensor, target: int) -> tuple[Tensor, Tensor]:
    y, back = layer(x)
    return y, x * back(F.one_hot(torch.tensor(target), len(y)).double())


@functools.cache
def of_encoder(pool: str, kind: str, held: bool, row: int, target: int) -> Tensor:
    x, tokens = alone(pool, row)
    y, found = multiplied(encoder(pool, kind)[0].written(Uniform(held), tokens), x, target)
    same(pool, kind, row, y)
    return found


UNIFORM = pytest.mark.parametrize("method", ["attnlrp", "cp_lrp"])


@UNIFORM
@EVERY_POOL
@EVERY_KIND
def test_a_padded_batch_through_a_transformer(kind: str, pool: str, method: str) -> None:
    model, inputs = encoder(pool, kind)
    values = whence.explain(model, inputs, method=method, target=TARGETS).values
    for row, targets in enumerate(TARGETS.tolist()):
        for k, target in enumerate(targets):
            wanted = of_encoder(pool, kind, method == "cp_lrp", row, target)
            close(values[row, k], padded(wanted, inputs["x"][row]), RTOL)


class Gated(nn.Module):
    """A gated MLP between two kinds of norms; `formulas`: the second and the gate are written out."""

    def __init__(self, act: Function, formulas: bool) -> None:
        super().__init__()
        self.act, self.formulas = act, formulas
        self.embed, self.gate, self.up = nn.Linear(5, 6), nn.Linear(6, 9), nn.Linear(6, 9)
        self.down, self.wide, self.out = nn.Linear(9, 6), nn.Linear(6, 7), nn.Linear(7, 3)
        self.before, self.after = nn.LayerNorm(6), nn.RMSNorm(6, eps=1e-3)
        for each in (self.before.weight, self.before.bias, self.after.weight):
            nn.init.normal_(each)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        y = self.before(x)
        g = self.gate(y)
        x = x + self.down((g * g.sigmoid() if self.formulas else F.silu(g)) * self.up(y))
        if self.formulas:
            x = self.after.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3))
        return self.out(self.act(self.wide(x if self.formulas else self.after(x))))

    def written(self, kit: Uniform) -> Layer:
        gate = sequence(kit.linear(self.gate), kit.pointwise(F.silu))
        inner = sequence(kit.norm(self.before), kit.gated(gate, kit.linear(self.up)), kit.linear(self.down))
        return sequence(
            kit.linear(self.embed), kit.residual(inner), kit.norm(self.after), kit.linear(self.wide),
            kit.pointwise(self.act), kit.linear(self.out),
        )  # fmt: skip


@UNIFORM
@pytest.mark.parametrize("act", [F.gelu, F.relu, torch.tanh, torch.sigmoid, F.softplus], ids=lambda f: f.__name__)
@pytest.mark.parametrize("formulas", [False, True])
def test_a_gated_mlp(formulas: bool, act: Function, method: str) -> None:
    torch.manual_seed(22)
    model, x = Gated(act, formulas).double().requires_grad_(False), torch.randn(3, 5).double()
    values = whence.explain(model, x, method=method, target=[1, 2, 0]).values
    for row, target in enumerate([1, 2, 0]):
        y, wanted = multiplied(model.written(Uniform(method == "cp_lrp")), x[row], target)
        close(y, model(x[row : row + 1])[0], 1e-12)
        close(values[row], wanted, RTOL)


TANH = math.tanh(2)
BY_HAND: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], list[float], list[float]]] = {  # at a = 2, b = 3
    "a gate": (lambda a, b: a.tanh() * b, [1.5 * TANH, 1.5 * TANH], [0, 3 * TANH]),
    "a gate and a bias": (lambda a, b: a.tanh() * (b + 1), [2 * TANH, 1.5 * TANH], [0, 3 * TANH]),
    "a view of a gate": (lambda a, b: (a.tanh()[None] * b[None])[0], [1.5 * TANH, 1.5 * TANH], [0, 3 * TANH]),
    "a product": (lambda a, b: (a + b) * (a - b), [-2 / 2 + 10 / 2, -3 / 2 - 15 / 2], [4, -9]),
    "at 0": (lambda a, b: F.gelu(3 * a - 2 * b), [3, -3], [3, -3]),  # y/x is the derivative there, ½
    "not 0 at 0": (lambda a, b: (a - b).exp(), [2 - 2 / math.e, 3 / math.e - 3], [2 - 2 / math.e, 3 / math.e - 3]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_two_numbers_by_hand(name: str) -> None:
    function, *wanted = BY_HAND[name]
    inputs = torch.tensor([[2.0]]).double(), torch.tensor([[3.0]]).double()
    for method, numbers in zip(("attnlrp", "cp_lrp"), wanted, strict=True):
        found = whence.explain(function, inputs, method=method, target=0).values
        assert [float(v) for v in found] == pytest.approx(numbers, rel=1e-7), method


# ---- the relevance of attention ----


@dataclass(frozen=True)
class Slow:
    """Maps of one row, their gradients and relevance (heads, query, key), and how the score reads the last state."""

    a: list[Tensor]
    g: list[Tensor]
    r: list[Tensor]
    sizes: Tensor  # ‖∂f/∂h‖ of each position

    @property
    def tokens(self) -> int:
        return len(self.sizes)

    def read(self, where: Any) -> Tensor:
        """How much of each row is read, with sum 1."""
        if where == "auto":
            return self.sizes / self.sizes.sum()
        if where == "mean":
            return torch.ones(self.tokens).double() / self.tokens
        position = {"first": 0, "last": self.tokens - 1}.get(where, where)
        return torch.eye(self.tokens).double()[position]


@functools.cache
def slow(pool: str, kind: str, composite: str, row: int, target: int) -> Slow:
    x, tokens = alone(pool, row)
    kit = Shares(lrp.COMPOSITES[composite])
    y, back = encoder(pool, kind)[0].written(kit, tokens)(x.clone().requires_grad_())
    same(pool, kind, row, y)
    *g, last = torch.autograd.grad(y[target], [*kit.maps, kit.states[-1]])
    with torch.no_grad():
        back(F.one_hot(torch.tensor(target), 3).double())
    return Slow([a.detach() for a in kit.maps], g, kit.relevance[::-1], last.norm(dim=1))


def over_heads(x: Tensor) -> Tensor:
    return sum(x[head] for head in range(HEADS)) / HEADS  # type: ignore[return-value]


def partial(s: Slow, *, positive: bool = False, layer: Any = -1, readout: Any = "auto") -> Tensor:
    maps = [over_heads(r.clamp(min=0) if positive else r) for r in s.r]
    return s.read(readout) @ (sum(maps) / len(maps) if layer == "mean" else maps[layer])  # type: ignore[return-value]


def attribution(
    s: Slow, *, weight: str | None = "gradient", blocks: str = "all", normalize: bool = False, start_layer: int = 0,
    readout: Any = "auto",
) -> Tensor:  # fmt: skip
    factors = {"gradient": s.g, "attention": s.a, None: [1.0] * len(s.r)}[weight]
    maps = [over_heads((factor * r).clamp(min=0)) for factor, r in zip(factors, s.r, strict=True)]
    if blocks != "all":
        return s.read(readout) @ maps[{"last": -1, "first": 0}[blocks]]
    c = torch.eye(s.tokens).double()
    for m in maps[start_layer:]:
        layer = torch.eye(s.tokens).double() + m
        c = (layer / layer.sum(1, keepdim=True) if normalize else layer) @ c  # the later layer on the left
    return s.read(readout) @ c


SWITCHES: dict[str, tuple[Callable[..., Tensor], list[dict[str, Any]]]] = {
    "partial_lrp": (partial, [
        {}, {"positive": True}, {"layer": 0}, {"layer": 1, "positive": True}, {"layer": -2, "readout": 1},
        {"layer": "mean"}, {"readout": "first"}, {"readout": 2}, {"readout": "last"}, {"readout": "mean"},
    ]),
    "transformer_attribution": (attribution, [
        {}, {"weight": "attention"}, {"weight": None}, {"normalize": True}, {"start_layer": 1},
        {"start_layer": 2, "normalize": True}, {"blocks": "last"}, {"blocks": "first"},
        {"blocks": "last", "weight": None, "readout": 1}, {"blocks": "first", "weight": "attention", "readout": "mean"},
        {"readout": "first"}, {"readout": 2}, {"readout": "last"}, {"readout": "mean"},
        {"readout": 1, "normalize": True, "weight": None, "start_layer": 1},
    ]),
}  # fmt: skip
CASES = [(method, options) for method, (_, every) in SWITCHES.items() for options in every]
EVERY_SWITCH = pytest.mark.parametrize(("method", "options"), CASES, ids=str)


def agree(pool: str, kind: str, method: str, options: dict[str, Any], composite: str = "chefer") -> None:
    model, inputs = encoder(pool, kind)
    chosen = {} if composite == "chefer" else {"composite": composite}
    values = whence.explain(model, inputs, method=method, target=TARGETS, **options, **chosen).values
    assert values.shape == ((3, 2, 2, 2) if pool == "patches" else (3, 2, 5))
    for row, targets in enumerate(TARGETS.tolist()):
        for k, target in enumerate(targets):
            s = slow(pool, kind, composite, row, target)
            wanted = SWITCHES[method][0](s, **options)
            if pool == "patches":
                close(values[row, k].flatten(), wanted[1:], RTOL)
            else:
                close(values[row, k], padded(wanted, values[row, k]), RTOL)


@EVERY_SWITCH
@pytest.mark.parametrize(("pool", "kind"), [("first", "sdpa"), ("mean", "added"), ("patches", "filled")])
def test_every_switch(pool: str, kind: str, method: str, options: dict[str, Any]) -> None:
    agree(pool, kind, method, options)


@pytest.mark.parametrize("composite", ["chefer", "epsilon", "orig"])
@pytest.mark.parametrize("method", SWITCHES)
@EVERY_POOL
@EVERY_KIND
def test_every_composite(kind: str, pool: str, method: str, composite: str) -> None:
    agree(pool, kind, method, {}, composite)


@pytest.mark.parametrize("method", [*SWITCHES, "attnlrp", "cp_lrp"])
def test_one_target_of_each_row(method: str) -> None:
    model, inputs = encoder("mean", "sdpa")
    both, one = (whence.explain(model, inputs, method=method, target=t).values for t in (TARGETS, TARGETS[:, 0]))
    close(one, both[:, 0], 1e-12)
