"""DeepLIFT from the papers' formulas: explicit matrices, row by row, in float64; then numbers by hand and a peer.

A layer of the oracle takes what it is given in both passes, and gives its own output and how it sends multipliers back.
Every neuron has a positive and a negative part of its difference, and a multiplier for each.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import captum.attr
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import whence
from tests.support.models import close
from tests.support.slow_deeplift import windows_of

ORACLE_OF = ("deeplift", "deepshap")
RTOL = 1e-10
RULES = ("rescale", "reveal_cancel", "convolution_rescale_dense_reveal_cancel")
EVERY_RULE = pytest.mark.parametrize("rule", RULES)


class Units(NamedTuple):
    now: Tensor
    before: Tensor
    up: Tensor  # Δx⁺
    down: Tensor  # Δx⁻


Back = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Layer = Callable[[Units], tuple[Units, Back]]


def dense(weight: Tensor, bias: Tensor) -> Layer:
    """The Linear rule; `weight` is (outputs, inputs)."""

    def layer(x: Units) -> tuple[Units, Back]:
        delta = x.now - x.before
        half = torch.where(delta == 0, weight / 2, 0.0)
        plus = half + torch.where(weight * delta > 0, weight, 0.0)
        minus = half + torch.where(weight * delta < 0, weight, 0.0)

        def back(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
            m = up @ plus + down @ minus
            return m, m

        return Units(weight @ x.now + bias, weight @ x.before + bias, plus @ delta, minus @ delta), back

    return layer


def slope(g: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    return torch.autograd.grad(g(x).sum(), x)[0]


def rescaled(g: Callable[[Tensor], Tensor]) -> Layer:
    def layer(x: Units) -> tuple[Units, Back]:
        now, before = g(x.now), g(x.before)
        rate = torch.where(x.now == x.before, slope(g, x.before), (now - before) / (x.now - x.before))

        def back(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
            m = rate * torch.where(now > before, up, torch.where(now < before, down, (up + down) / 2))
            return m, m

        return Units(now, before, (now - before).clamp(min=0), (now - before).clamp(max=0)), back

    return layer


def revealed(g: Callable[[Tensor], Tensor]) -> Layer:
    def layer(x: Units) -> tuple[Units, Back]:
        none, plus, minus, both = g(x.before), g(x.before + x.up), g(x.before + x.down), g(x.now)
        up, down = (plus - none + both - minus) / 2, (minus - none + both - plus) / 2
        at_none = slope(g, x.before)
        to_up = torch.where(x.up == 0, (at_none + slope(g, x.before + x.down)) / 2, up / x.up)
        to_down = torch.where(x.down == 0, (at_none + slope(g, x.before + x.up)) / 2, down / x.down)
        return Units(both, none, up, down), lambda m_up, m_down: (m_up * to_up, m_down * to_down)

    return layer


def largest(windows: list[list[int]]) -> Layer:
    """The cross rule, window by window; where windows overlap, what they send back adds."""

    def layer(x: Units) -> tuple[Units, Back]:
        now = torch.stack([x.now[w].max() for w in windows])
        before = torch.stack([x.before[w].max() for w in windows])

        def back(up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
            m, signal = torch.zeros_like(x.now), torch.where(now > before, up, down)
            for j, window in enumerate(windows):
                cross = max(now[j], before[j])
                at_now, at_before = (window[int(v[window].argmax())] for v in (x.now, x.before))
                for at, share in ((at_now, cross - before[j]), (at_before, now[j] - cross)):
                    if share != 0:
                        m[at] += signal[j] * share / (x.now[at] - x.before[at])
            return m, m

        return Units(now, before, (now - before).clamp(min=0), (now - before).clamp(max=0)), back

    return layer


class Expected(NamedTuple):
    values: Tensor
    positive: Tensor
    negative: Tensor
    multiplier: Tensor


def slowly(layers: list[Layer], x: Tensor, before: Tensor, target: int) -> Expected:
    """Row by row: all layers forward, then (1, 1), (1, 0) and (0, 1) at the target back through them."""
    rows: list[list[Tensor]] = []
    for now, then in zip(x.flatten(1), before.expand_as(x).flatten(1), strict=True):
        units = start = Units(now, then, (now - then).clamp(min=0), (now - then).clamp(max=0))
        backs = []
        for layer in layers:
            units, back = layer(units)
            backs.append(back)
        one = torch.zeros_like(units.now)
        one[target] = 1
        sent = []
        for up, down in ((one, one), (one, 0 * one), (0 * one, one)):
            for back in reversed(backs):
                up, down = back(up, down)
            sent.append(up * start.up + down * start.down)
            if len(sent) == 1:
                multiplier = torch.where(now >= then, up, down)
        rows.append([*sent, multiplier])
    return Expected(*(torch.stack(kind).view_as(x) for kind in zip(*rows, strict=True)))


# ---- models, and the same models as matrices ----


def matrix(module: nn.Module, shape: torch.Size) -> tuple[Tensor, Tensor, torch.Size]:
    """Unit vectors pushed through without the bias are the columns."""
    units = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    if isinstance(module, nn.Linear):
        columns = F.linear(units, module.weight)
    else:
        assert isinstance(module, nn.Conv2d)
        columns = F.conv2d(units, module.weight, None, module.stride, module.padding)
    bias = module.bias.view(-1, *[1] * (columns.dim() - 2)).expand(columns.shape[1:])
    return columns.flatten(1).T.detach(), bias.flatten().detach(), columns.shape[1:]


def written(model: nn.Sequential, shape: torch.Size, rule: str) -> list[Layer]:
    """An activation reveals under reveal_cancel, and under the mixture when a dense layer comes before it."""
    layers: list[Layer] = []
    after_dense = False
    for module in model:
        if isinstance(module, nn.Linear | nn.Conv2d):
            after_dense = isinstance(module, nn.Linear)
            weight, bias, shape = matrix(module, shape)
            layers.append(dense(weight, bias))
        elif isinstance(module, nn.MaxPool2d):
            windows, shape = windows_of(module, shape)
            layers.append(largest(windows))
        elif isinstance(module, nn.Flatten):
            shape = torch.Size((math.prod(shape),))
        else:
            reveal = rule == "reveal_cancel" or (rule.startswith("convolution") and after_dense)
            layers.append((revealed if reveal else rescaled)(module))
    return layers


def mlp(*activations: nn.Module) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(3)
    sizes = (5, 9, 7, 6)
    layers: list[nn.Module] = []
    for n, act in enumerate(activations):
        layers += [nn.Linear(sizes[n], sizes[n + 1]), act]
    model = nn.Sequential(*layers, nn.Linear(sizes[len(activations)], 3)).double().requires_grad_(False)
    return model, torch.randn(4, 5).double() * 2


def cnn(*pools: nn.Module) -> tuple[nn.Sequential, Tensor]:
    torch.manual_seed(4)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), *pools, nn.Conv2d(4, 3, 2, stride=2), nn.ReLU(), nn.Flatten(),
        nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 3),
    )  # fmt: skip
    x = torch.randn(3, 2, 7, 7)
    model(x)
    return model.double().requires_grad_(False), x.double() * 2


def baseline_for(x: Tensor, kind: str) -> Tensor:
    if kind == "zero":
        return torch.zeros_like(x)
    generator = torch.Generator().manual_seed(11)
    shape = x.shape if kind == "per_row" else (1, *x.shape[1:])
    return torch.randn(shape, generator=generator, dtype=torch.float64).expand_as(x)


def agree(model: nn.Sequential, x: Tensor, before: Tensor, rule: str) -> Expected:
    expected = slowly(written(model, x.shape[1:], rule), x, before, target=1)
    a = whence.explain(model, x, method="deeplift", baseline=before, target=1, rule=rule, signed=True)
    close(a.values, expected.values, RTOL)
    close(a.positive, expected.positive, RTOL)
    close(a.negative, expected.negative, RTOL)
    close(a.kept["multiplier"], expected.multiplier, RTOL)
    delta = (model(x) - model(before))[:, 1]
    close(expected.values.flatten(1).sum(1), delta, RTOL)  # what the oracle itself must do
    close(a.output_value - a.baseline_value, delta, RTOL)
    return expected


def differ(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) > 0.05 * float(b.abs().max())


BASELINES = pytest.mark.parametrize("kind", ["zero", "one_row", "per_row"])
ACTIVATIONS = {
    "relu": (nn.ReLU(), nn.ReLU()),
    "tanh": (nn.Tanh(), nn.Sigmoid()),
    "leaky": (nn.LeakyReLU(0.2), nn.ELU()),
    "gelu": (nn.GELU(), nn.SiLU()),  # not monotonic
    "deep": (nn.ReLU(), nn.Tanh(), nn.ReLU()),
}


@BASELINES
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_rescale_on_dense_layers(name: str, kind: str) -> None:
    model, x = mlp(*ACTIVATIONS[name])
    agree(model, x, baseline_for(x, kind), "rescale")


def test_rescale_is_the_product_of_the_matrices() -> None:
    """m = Wᵀ diag(Δa/Δh) Wᵀ diag(Δa/Δh) w, written out without the oracle's layers."""
    model, x = mlp(nn.ReLU(), nn.Tanh())
    before = baseline_for(x, "per_row")
    first, second, last = (model[n].weight for n in (0, 2, 4))
    rows = []
    for n in range(len(x)):
        h, h0 = model[0](x[n]), model[0](before[n])
        k, k0 = model[:3](x[n]), model[:3](before[n])
        outer = torch.diag((k.tanh() - k0.tanh()) / (k - k0))
        inner = torch.diag((h.relu() - h0.relu()) / (h - h0))
        rows.append(first.T @ inner @ second.T @ outer @ last[2])
    a = whence.explain(model, x, method="deeplift", baseline=before, target=2)
    close(a.kept["multiplier"], torch.stack(rows), RTOL)
    close(a.values, torch.stack(rows) * (x - before), RTOL)


@BASELINES
@pytest.mark.parametrize("size", [(3, 2, 1), (3, 1, 0), (2, 2, 0)])
def test_rescale_on_convolutions_and_overlapping_maxima(size: tuple[int, int, int], kind: str) -> None:
    model, x = cnn(nn.MaxPool2d(*size))
    agree(model, x, baseline_for(x, kind), "rescale")


def test_a_maximum_of_raw_inputs_takes_the_cross_rule() -> None:
    """Negative values, padding, and arg-maxima that differ between the passes."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Flatten(), nn.Linear(18, 2)).double().requires_grad_(False)
    x = torch.randn(4, 2, 6, 6).double() - 1
    agree(model, x, baseline_for(x, "per_row") - 1, "rescale")


@BASELINES
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_reveal_cancel_on_dense_layers(name: str, kind: str) -> None:
    model, x = mlp(*ACTIVATIONS[name])
    revealing = agree(model, x, baseline_for(x, kind), "reveal_cancel")
    plain = slowly(written(model, x.shape[1:], "rescale"), x, baseline_for(x, kind), target=1)
    assert differ(revealing.values, plain.values)


@BASELINES
def test_reveal_cancel_on_convolutions(kind: str) -> None:
    model, x = cnn()
    agree(model, x, baseline_for(x, kind), "reveal_cancel")


def test_reveal_cancel_takes_a_batch_norm_as_part_of_the_layer_before() -> None:
    """The scale, negative for some units, belongs to the weights: up and down change places."""
    torch.manual_seed(6)
    first, norm, last = nn.Linear(5, 8).double(), nn.BatchNorm1d(8).double().eval(), nn.Linear(8, 3).double()
    x = torch.randn(4, 5).double()
    with torch.no_grad():
        norm.weight.normal_(), norm.bias.normal_(), norm.running_mean.normal_(), norm.running_var.uniform_(0.5, 2)
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        fused = nn.Linear(5, 8).double()
        fused.weight.copy_(scale[:, None] * first.weight)
        fused.bias.copy_(scale * (first.bias - norm.running_mean) + norm.bias)
    assert bool((scale < 0).any())
    model = nn.Sequential(first, norm, nn.ReLU(), last).requires_grad_(False)
    same = nn.Sequential(fused, nn.ReLU(), last).requires_grad_(False)
    expected = slowly(written(same, x.shape[1:], "reveal_cancel"), x, torch.zeros_like(x), target=1)
    a = whence.explain(model, x, method="deeplift", baseline=0.0, target=1, rule="reveal_cancel")
    close(a.values, expected.values, RTOL)
    close(a.positive, expected.positive, RTOL)


def weighed(weight: Tensor, bias: Tensor) -> Layer:
    """Products with constants, and sums, keep what goes up apart from what goes down; a negative factor swaps them."""
    plus, minus = weight.clamp(min=0), weight.clamp(max=0)

    def layer(x: Units) -> tuple[Units, Back]:
        up, down = plus @ x.up + minus @ x.down, minus @ x.up + plus @ x.down
        return (
            Units(weight @ x.now + bias, weight @ x.before + bias, up, down),
            lambda m_up, m_down: (m_up @ plus + m_down @ minus, m_up @ minus + m_down @ plus),
        )

    return layer


@BASELINES
def test_reveal_cancel_keeps_the_parts_through_scalings_and_sums(kind: str) -> None:
    model, x = mlp(nn.ReLU(), nn.GELU())
    before = baseline_for(x, kind)
    linears = [module for module in model if isinstance(module, nn.Linear)]

    def spelled(t: Tensor) -> Tensor:
        first, second, last = ((lambda t, m=m: (t[:, None] * m.weight).sum(-1) + m.bias) for m in linears)
        return last(F.gelu(second(F.relu(first(t)))))

    first, second, last = (weighed(module.weight, module.bias) for module in linears)
    expected = slowly([first, revealed(F.relu), second, revealed(F.gelu), last], x, before, target=1)
    a = whence.explain(spelled, x, method="deeplift", baseline=before, target=1, rule="reveal_cancel")
    close(a.values, expected.values, RTOL)
    close(a.positive, expected.positive, RTOL)


@BASELINES
@pytest.mark.parametrize("pool", [None, nn.MaxPool2d(3, 2, 1)])
def test_the_authors_mixture(pool: nn.Module | None, kind: str) -> None:
    model, x = cnn(*([pool] if pool else []))
    before = baseline_for(x, kind)
    mixed = agree(model, x, before, RULES[2])
    for other in RULES[:2]:
        assert differ(mixed.values, slowly(written(model, x.shape[1:], other), x, before, target=1).values)


@BASELINES
@pytest.mark.parametrize("name", ACTIVATIONS)
@EVERY_RULE
def test_positive_and_negative_sum_to_those_of_the_last_layer(rule: str, name: str, kind: str) -> None:
    model, x = mlp(*ACTIVATIONS[name])
    before = baseline_for(x, kind)
    a = whence.explain(model, x, method="deeplift", baseline=before, target=2, rule=rule, signed=True)
    terms = model[-1].weight[2] * (model[:-1](x) - model[:-1](before))
    close(a.positive.sum(1), terms.clamp(min=0).sum(1), RTOL)
    close(a.negative.sum(1), terms.clamp(max=0).sum(1), RTOL)


def test_a_last_activation_goes_to_one_side_under_rescale() -> None:
    """Δy⁺ = 1{Δy > 0} Δy."""
    model, x = mlp(nn.ReLU())
    model = nn.Sequential(*model, nn.Sigmoid())
    before = baseline_for(x, "per_row")
    expected = agree(model, x, before, "rescale")
    rises = (model(x) > model(before))[:, 1]
    assert rises.unique().tolist() == [False, True]
    assert bool((expected.negative[rises] == 0).all() and (expected.positive[~rises] == 0).all())


# ---- a recurrent network ----


def middle(now: Tensor, before: Tensor) -> Tensor:
    return (now + before) / 2


def secant(g: Callable[[Tensor], Tensor], now: Tensor, before: Tensor) -> Tensor:
    return (g(now) - g(before)) / (now - before)


class Steps(nn.Module):
    """A recurrent network of three steps, and a score from its last state; as one module, or cell by cell."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.rnn, self.last, self.fused = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 2), fused
        self.cell = nn.LSTMCell(4, 5)
        self.cell.load_state_dict({name.removesuffix("_l0"): w for name, w in self.rnn.state_dict().items()})

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return self.last(self.rnn(x)[0][:, -1])
        h = c = x.new_zeros(len(x), 5)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return self.last(h)

    def trajectory(self, x: Tensor) -> list[dict[str, Tensor]]:
        """What one row, (steps, inputs), computes at each step; `i`, `f`, `g`, `o` are before their activations."""
        h = c = torch.zeros(5, dtype=torch.float64)
        seen = []
        for t in range(len(x)):
            gates = self.cell.weight_ih @ x[t] + self.cell.bias_ih + self.cell.weight_hh @ h + self.cell.bias_hh
            i, f, g, o = gates.chunk(4)
            new = f.sigmoid() * c + i.sigmoid() * g.tanh()
            seen.append({"i": i, "f": f, "g": g, "o": o, "old": c, "new": new})
            h, c = o.sigmoid() * new.tanh(), new
        return seen


def back_through_time(model: Steps, x: Tensor, before: Tensor) -> Tensor:
    """Multipliers of one row: products by midpoints, gates by secants."""
    now, then = model.trajectory(x), model.trajectory(before)
    m_h, m_c, found = model.last.weight[1], torch.zeros(5, dtype=torch.float64), []
    for a, b in zip(reversed(now), reversed(then), strict=True):
        i, f, o = (middle(a[gate].sigmoid(), b[gate].sigmoid()) for gate in "ifo")
        g, tanh_c = (middle(a[name].tanh(), b[name].tanh()) for name in ("g", "new"))
        old = middle(a["old"], b["old"])
        m_c = m_c + m_h * o * secant(torch.tanh, a["new"], b["new"])
        m_gates = torch.cat(
            [
                m_c * g * secant(torch.sigmoid, a["i"], b["i"]),
                m_c * old * secant(torch.sigmoid, a["f"], b["f"]),
                m_c * i * secant(torch.tanh, a["g"], b["g"]),
                m_h * tanh_c * secant(torch.sigmoid, a["o"], b["o"]),
            ]
        )
        found.append(m_gates @ model.cell.weight_ih)
        m_h, m_c = m_gates @ model.cell.weight_hh, m_c * f
    return torch.stack(found[::-1])


@BASELINES
@pytest.mark.parametrize("fused", [True, False])
def test_rescale_on_a_recurrent_network(fused: bool, kind: str) -> None:
    model = Steps(fused).double().requires_grad_(False)
    x = torch.randn(3, 3, 4).double()
    before = baseline_for(x, kind)
    m = torch.stack([back_through_time(model, *rows) for rows in zip(x, before, strict=True)])
    close((m * (x - before)).sum((1, 2)), (model(x) - model(before))[:, 1], RTOL)
    a = whence.explain(model, x, method="deeplift", baseline=before, target=1)
    close(a.values, m * (x - before), RTOL)
    close(a.kept["multiplier"], m, RTOL)


# ---- attention and norms ----

HEADS, WIDTH = 2, 6


class Attention(nn.Module):
    def __init__(self, spelling: str) -> None:
        super().__init__()
        torch.manual_seed(9)
        self.spelling, self.module = spelling, nn.MultiheadAttention(WIDTH, HEADS, bias=False, batch_first=True)
        self.module.in_proj_weight.data.normal_()
        self.module.out_proj.weight.data.copy_(torch.eye(WIDTH))
        self.read = nn.Parameter(torch.randn(4, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.spelling == "module":
            mixed = self.module(x, x, x, need_weights=False)[0]
        else:
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.projected(x))  # (rows, heads, n, d)
            if self.spelling == "fused":
                mixed = F.scaled_dot_product_attention(q, k, v)
            else:
                mixed = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS), -1) @ v
            mixed = mixed.transpose(1, 2).flatten(2)
        return (mixed * self.read).sum((1, 2))

    def projected(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x @ self.module.in_proj_weight.T).chunk(3, -1)


def back_through_softmax(m: Tensor, x: Tensor, before: Tensor) -> Tensor:
    """One row of scores. p S = e gives Δp = (Δe − p̄ ΔS) / S̄, at a shift that both passes share."""
    shift = max(x.max(), before.max())
    e, e0 = (x - shift).exp(), (before - shift).exp()
    total, mean = middle(e.sum(), e0.sum()), middle(e / e.sum(), e0 / e0.sum())
    found = torch.zeros_like(m)
    for j in range(len(x)):
        rate = (e[j] - e0[j]) / (x[j] - before[j])
        for i in range(len(x)):
            found[j] += m[i] * (float(i == j) - mean[i]) * rate / total
    return found


def back_through_attention(model: Attention, x: Tensor, before: Tensor) -> Tensor:
    """Multipliers of one row, (positions, width), head by head."""
    d = WIDTH // HEADS
    weights = model.module.in_proj_weight.chunk(3)
    found = torch.zeros_like(x)
    for head in range(HEADS):
        cut = slice(head * d, (head + 1) * d)
        (q, k, v), (q0, k0, v0) = ([t[:, cut] for t in model.projected(side)] for side in (x, before))
        scores, scores0 = q @ k.T / math.sqrt(d), q0 @ k0.T / math.sqrt(d)
        m = model.read[:, cut]
        m_v = middle(scores.softmax(-1), scores0.softmax(-1)).T @ m
        m_p = m @ middle(v, v0).T
        m_s = torch.stack([back_through_softmax(*rows) for rows in zip(m_p, scores, scores0, strict=True)])
        m_q, m_k = m_s @ middle(k, k0) / math.sqrt(d), m_s.T @ middle(q, q0) / math.sqrt(d)
        for m_side, weight in zip((m_q, m_k, m_v), weights, strict=True):
            found += m_side @ weight[cut]
    return found


@BASELINES
@pytest.mark.parametrize("spelling", ["by_hand", "fused", "module"])
def test_rescale_on_self_attention(spelling: str, kind: str) -> None:
    model = Attention(spelling).double().requires_grad_(False)
    x = torch.randn(3, 4, WIDTH).double()
    before = baseline_for(x, kind)
    m = torch.stack([back_through_attention(model, *rows) for rows in zip(x, before, strict=True)])
    close((m * (x - before)).sum((1, 2)), model(x) - model(before), RTOL)
    a = whence.explain(model, x, method="deeplift", baseline=before, target=lambda y: y)
    close(a.values, m * (x - before), RTOL)
    close(a.kept["multiplier"], m, RTOL)


EPS = 1e-6
NORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "layer_norm": lambda x: F.layer_norm(x, (7,), eps=EPS),
    "rms_norm": lambda x: F.rms_norm(x, (7,), eps=EPS),
    "rsqrt_by_hand": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS),
    "rsqrt_first": lambda x: torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * x,
    "sqrt_by_hand": lambda x: x / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS),
}


def back_through_norm(m: Tensor, x: Tensor, before: Tensor, centred: bool) -> Tensor:
    """Δ(c r) = Δc · min(r, r') + c_other · Δr, with r = 1/s and Δs = mean((c + c') Δc) / (s + s')."""
    n = len(x)
    centre = torch.eye(n).double() - (1 / n if centred else 0)
    c, c0 = centre @ x, centre @ before
    s, s0 = (c.square().mean() + EPS).sqrt(), (c0.square().mean() + EPS).sqrt()
    other = c if s < s0 else c0  # of the pass with the larger r
    found = torch.zeros_like(m)
    for k in range(n):
        found[k] += m[k] / max(s, s0)
        for i in range(n):
            found[k] -= m[i] * other[i] * (c[k] + c0[k]) / n / (s + s0) / (s * s0)
    return found @ centre


@pytest.mark.parametrize("kind", ["zero", "small", "per_row"])
@pytest.mark.parametrize("name", NORMS)
def test_rescale_on_norms(name: str, kind: str) -> None:
    torch.manual_seed(10)
    first, last, x = torch.randn(5, 7).double(), torch.randn(7).double(), torch.randn(4, 5).double()
    before = baseline_for(x, "per_row") * 1e-2 if kind == "small" else baseline_for(x, kind)

    def model(t: Tensor) -> Tensor:
        return NORMS[name](t @ first) @ last

    rows = zip(x @ first, before @ first, strict=True)
    m = torch.stack([back_through_norm(last, *pair, centred=name == "layer_norm") for pair in rows]) @ first.T
    close((m * (x - before)).sum(1), model(x) - model(before), 1e-9)
    a = whence.explain(model, x, method="deeplift", baseline=before, target=lambda y: y)
    close(a.values, m * (x - before), 1e-9)
    close(a.kept["multiplier"], m, 1e-9)


# ---- numbers by hand ----

relu = torch.relu


def split(f: Callable[[Tensor, Tensor], Tensor], at: tuple[float, float], rule: str) -> list[float]:
    """What f's two inputs get, from 0."""
    x = torch.tensor([at], dtype=torch.float64)
    model = lambda t: f(t[:, 0], t[:, 1])  # noqa: E731
    return (
        whence.explain(model, x, method="deeplift", baseline=0.0, target=lambda y: y, rule=rule, signed=True)
        .values[0]
        .tolist()
    )


def test_the_network_of_seed_004() -> None:
    """y = β₁ a₁ + β₂ a₂, a = relu(h): C₁ = (w₁₁ Δa₁/Δh₁ β₁ + w₁₂ Δa₂/Δh₂ β₂) Δx₁.

    From (1, 0) to (3, 1): h₁ = 2x₁ − 3x₂ − 1 goes from 1 to 2, h₂ = −x₁ + x₂ + 1.5 from ½ to −½. So Δa/Δh is 1 and ½,
    and with β = (4, −6), C₁ = (2·1·4 + 1·½·6)·2 = 22, C₂ = (−3·1·4 − 1·½·6)·1 = −15, Δy = 4 + 3 = 7.
    """
    first, last = nn.Linear(2, 2), nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[2.0, -3.0], [-1.0, 1.0]]))
        first.bias.copy_(torch.tensor([-1.0, 1.5]))
        last.weight.copy_(torch.tensor([[4.0, -6.0]]))
    model = nn.Sequential(first, nn.ReLU(), last).double()
    x, before = torch.tensor([[3.0, 1.0]]).double(), torch.tensor([[1.0, 0.0]]).double()
    a = whence.explain(model, x, method="deeplift", baseline=before, target=0, signed=True)
    close(a.kept["multiplier"], torch.tensor([[11.0, -15.0]]).double(), 1e-14)
    close(a.values, torch.tensor([[22.0, -15.0]]).double(), 1e-14)
    close(a.positive, a.values, 1e-14)  # both hidden units raise y, by 4 and by 3
    assert float(a.negative.abs().max()) == 0
    # RevealCancel: h₁ has Δ⁺ = 4 (of x₁) and Δ⁻ = −3 (of x₂) from 1: up (4 + 2)/2 = 3, down (−1 − 3)/2 = −2;
    # h₂ has Δ⁺ = 1 (of x₂) and Δ⁻ = −2 (of x₁) from ½: up (1 + 0)/2 = ½, down (−½ − 1½)/2 = −1
    b = whence.explain(model, x, method="deeplift", baseline=before, target=0, rule="reveal_cancel")
    close(b.values, torch.tensor([[4 * 3 + 6 * 1, -4 * 2 - 6 * 0.5]]).double(), 1e-14)


def test_a_minimum_is_shared_by_reveal_cancel_only() -> None:
    """relu(x₁ − x₂) from 0 at 3 − 1: up (3 + 2)/2 = 2½, down (0 − 1)/2 = −½."""
    f = lambda a, b: a - relu(a - b)  # noqa: E731
    assert split(f, (3, 1), "rescale") == pytest.approx([0, 1], abs=1e-14)
    assert split(f, (3, 1), "reveal_cancel") == pytest.approx([0.5, 0.5], abs=1e-14)


@EVERY_RULE
def test_gates_share_what_they_need(rule: str) -> None:
    both = lambda a, b: relu(a + b - 1)  # noqa: E731
    either = lambda a, b: 1 - relu(1 - a - b)  # noqa: E731
    assert split(both, (1, 1), rule) == pytest.approx([0.5, 0.5], abs=1e-14)
    assert split(both, (1, 0), rule) == [0, 0]
    assert split(either, (1, 1), rule) == pytest.approx([0.5, 0.5], abs=1e-14)
    assert split(either, (1, 0), rule) == pytest.approx([1, 0], abs=1e-14)
    assert split(either, (0, 1), rule) == pytest.approx([0, 1], abs=1e-14)


def test_rescale_depends_on_how_a_function_is_written() -> None:
    """Both are relu(x₁ − 1 − x₂) where x₁ ≥ 1 and x₂ ≥ 0; here RevealCancel gives the same for both."""
    one = lambda a, b: relu(relu(a) - 1 - relu(b))  # noqa: E731
    other = lambda a, b: relu(relu(a - 1) - relu(b))  # noqa: E731
    assert split(one, (3, 1), "rescale") == pytest.approx([1.5, -0.5], abs=1e-14)
    assert split(other, (3, 1), "rescale") == pytest.approx([2, -1], abs=1e-14)
    assert split(one, (3, 1), "reveal_cancel") == pytest.approx([1.5, -0.5], abs=1e-14)
    assert split(other, (3, 1), "reveal_cancel") == pytest.approx([1.5, -0.5], abs=1e-14)


def test_differences_that_cancel_exactly() -> None:
    """relu(x₁ − x₂ + 1) at (2, 2): the slope is 1 where Δh = 0; revealed, up is (2 + 1)/2 and down its opposite."""
    f = lambda a, b: relu(a - b + 1)  # noqa: E731
    assert split(f, (2, 2), "rescale") == pytest.approx([2, -2], abs=1e-14)
    assert split(f, (2, 2), "reveal_cancel") == pytest.approx([1.5, -1.5], abs=1e-14)


def test_swish_falls_and_rises() -> None:
    """RevealCancel keeps its definition: silu from −1, Δ⁺ = 3 and Δ⁻ = −2, so through −1, 2, −3 and 0."""
    at = {v: v / (1 + math.exp(-v)) for v in (-1, 2, -3, 0)}
    up = (at[2] - at[-1] + at[0] - at[-3]) / 2
    down = (at[-3] - at[-1] + at[0] - at[2]) / 2
    found = split(lambda a, b: F.silu(a - b - 1), (3, 2), "reveal_cancel")
    assert found == pytest.approx([up, down], abs=1e-14)
    assert sum(found) == pytest.approx(at[0] - at[-1], abs=1e-14)


# ---- peers ----


def theirs(model: nn.Module, x: Tensor, before: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of the hooks that it sets
        return captum.attr.DeepLift(model).attribute(x.clone(), before, target=1).detach()


def pooled() -> tuple[nn.Sequential, Tensor]:
    """No ReLU next to the pooling: where hooks meet, Captum's contributions do not sum to the difference."""
    model, x = cnn(nn.MaxPool2d(2))
    return nn.Sequential(model[0], *model[2:]), x


PEERS = {"mlp": lambda: mlp(nn.ReLU(), nn.ReLU()), "cnn": cnn, "pooled": pooled}


@BASELINES
@pytest.mark.parametrize("name", PEERS)
def test_rescale_agrees_with_captum(name: str, kind: str) -> None:
    model, x = PEERS[name]()
    before = baseline_for(x, kind)
    a = whence.explain(model, x, method="deeplift", baseline=before, target=1)
    close(a.values, theirs(model, x, before), 1e-8)


# ---- references and rows ----


@EVERY_RULE
def test_deepshap_is_the_mean_over_references(rule: str) -> None:
    model, x = mlp(nn.ReLU(), nn.GELU())
    several = torch.randn(6, 5).double()
    parts = [
        whence.explain(model, x, method="deeplift", baseline=one, target=1, rule=rule, signed=True) for one in several
    ]
    for baseline in (several, list(several)):
        whole = whence.explain(model, x, method="deepshap", baseline=baseline, target=1, rule=rule, signed=True)
        close(whole.values, torch.stack([part.values for part in parts]).mean(0), 1e-12)
        close(whole.positive, torch.stack([part.positive for part in parts]).mean(0), 1e-12)
        close(whole.kept["multiplier"], torch.stack([part.kept["multiplier"] for part in parts]).mean(0), 1e-12)
        close(whole.baseline_value, model(several)[:, 1].mean().expand(len(x)), 1e-12)
        assert float(whole.gap.max()) < 1e-12


def test_deepshap_by_the_oracle() -> None:
    model, x = cnn()
    several = torch.randn(3, *x.shape[1:]).double()
    layers = written(model, x.shape[1:], "rescale")
    mean = torch.stack([slowly(layers, x, one[None], target=1).values for one in several]).mean(0)
    close(whence.explain(model, x, method="deepshap", baseline=several, target=1).values, mean, RTOL)


@EVERY_RULE
def test_one_reference_for_all_rows_and_rows_alone(rule: str) -> None:
    model, x = cnn(nn.MaxPool2d(3, 2, 1))
    one = baseline_for(x, "one_row")[0]
    whole = whence.explain(model, x, method="deeplift", baseline=one, target=1, rule=rule, signed=True)
    repeated = whence.explain(model, x, method="deeplift", baseline=one.expand_as(x), target=1, rule=rule, signed=True)
    close(whole.values, repeated.values, 1e-13)
    close(whole.positive, repeated.positive, 1e-13)
    before = baseline_for(x, "per_row")
    whole = whence.explain(model, x, method="deeplift", baseline=before, target=1, rule=rule, signed=True)
    for n in range(len(x)):
        alone = whence.explain(
            model, x[n : n + 1], method="deeplift", baseline=before[n : n + 1], target=1, rule=rule, signed=True
        )
        close(alone.values, whole.values[n : n + 1], 1e-12)
        close(alone.negative, whole.negative[n : n + 1], 1e-12)


# ---- any network ----

COARSE = [-2.0, -1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 3.0]  # differences are often 0, sums and products exact
FINE = [*COARSE, -0.7, 0.1, 0.1 + 1e-15, 0.1 + 1e-9, 1e-5]
KINDS = [nn.ReLU(), nn.LeakyReLU(0.1), nn.Tanh(), nn.GELU(), nn.SiLU(), nn.Hardtanh(), nn.Softplus()]


@st.composite
def networks(draw: st.DrawFn, kinds: list[nn.Module], some: list[float]) -> tuple[nn.Sequential, Tensor, Tensor]:
    def numbers(*shape: int) -> Tensor:
        count = math.prod(shape)
        drawn = draw(st.lists(st.sampled_from(some), min_size=count, max_size=count))
        return torch.tensor(drawn, dtype=torch.float64).view(shape)

    sizes = [3, *draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)), 2]
    layers: list[nn.Module] = []
    for n in range(len(sizes) - 1):
        linear = nn.Linear(sizes[n], sizes[n + 1]).double().requires_grad_(False)
        linear.weight.copy_(numbers(*linear.weight.shape))
        linear.bias.copy_(numbers(*linear.bias.shape))
        layers += [linear, draw(st.sampled_from(kinds))]
    return nn.Sequential(*layers[:-1]), numbers(2, 3), numbers(2, 3)


@settings(max_examples=100, deadline=None)
@given(networks(KINDS, FINE), st.sampled_from(RULES))
def test_contributions_always_sum_to_the_difference(case: tuple[nn.Sequential, Tensor, Tensor], rule: str) -> None:
    model, x, before = case
    a = whence.explain(model, x, method="deeplift", baseline=before, target=1, rule=rule, signed=True)
    delta = (model(x) - model(before))[:, 1]
    scale = 1 + delta.abs() + a.values.abs().sum(1)
    assert bool(((a.values.sum(1) - delta).abs() <= 1e-10 * scale).all())
    assert bool(((a.positive + a.negative - a.values).abs() <= 1e-10 * scale[:, None]).all())
    assert bool((a.values[x == before] == 0).all())
    terms = model[-1].weight[1] * (model[:-1](x) - model[:-1](before))
    assert bool(((a.positive.sum(1) - terms.clamp(min=0).sum(1)).abs() <= 1e-10 * scale).all())


@settings(max_examples=100, deadline=None)
@given(networks([nn.ReLU(), nn.LeakyReLU(0.25)], COARSE), st.sampled_from(RULES))
def test_ties_are_the_papers(case: tuple[nn.Sequential, Tensor, Tensor], rule: str) -> None:
    model, x, before = case
    a = whence.explain(model, x, method="deeplift", baseline=before, target=1, rule=rule, signed=True)
    expected = slowly(written(model, x.shape[1:], rule), x, before, target=1)
    scale = 1 + expected.values.abs().max()
    for found, wanted in ((a.values, expected.values), (a.positive, expected.positive)):
        assert float((found - wanted).abs().max()) <= 1e-12 * scale
