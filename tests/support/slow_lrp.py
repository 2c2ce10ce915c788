"""LRP, slowly: every rule on an explicit matrix, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.slow_deeplift import windows_of

Back = Callable[[Tensor], Tensor]


Layer = Callable[[Tensor], tuple[Tensor, Back]]


Weighted = nn.Linear | nn.Conv2d


@dataclass(frozen=True)
class Rules:
    """Which rule an op gets: by its path, as the first one, by its family; and what holds for the other ops."""

    linear: str
    convolution: str
    first: str | None = None
    first_convolution: str | None = None
    add: str = "share"
    at: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    def of(self, module: nn.Module, path: str, first: bool) -> str:
        convolution = isinstance(module, nn.Conv2d)
        if first and (self.first or (self.first_convolution and convolution)):
            return self.first or str(self.first_convolution)
        return self.at.get(path, self.convolution if convolution else self.linear)

    @property
    def authors(self) -> bool:
        return self.linear in ("chefer", "orig")

    def option(self, name: str) -> Any:
        known = {"epsilon": 1e-6, "gamma": 0.25, "alpha": 2.0, "beta": 1.0, "stabilizer": 1e-6}
        return self.options.get(name, known.get(name))

    def divided(self, relevance: Tensor, z: Tensor, by: str = "stabilizer") -> Tensor:
        if self.authors:
            return torch.where(z == 0, 0.0, relevance / (z + 1e-9))
        return relevance / (z + self.option(by) * torch.where(z < 0, -torch.ones_like(z), 1.0))


COMPOSITES = {
    "chefer": Rules("chefer", "chefer", first_convolution="z_box"),
    "orig": Rules("orig", "orig", first_convolution="z_box", add="proportional"),
    "epsilon": Rules("epsilon", "epsilon"),
    "gamma": Rules("gamma", "gamma"),
    "alpha_beta": Rules("alpha_beta", "alpha_beta"),
    "z_plus": Rules("z_plus", "z_plus"),
    "epsilon_plus": Rules("epsilon", "z_plus"),
    "epsilon_plus_flat": Rules("epsilon", "z_plus", first="flat"),
    "epsilon_alpha2_beta1": Rules("epsilon", "alpha_beta"),
    "epsilon_alpha2_beta1_flat": Rules("epsilon", "alpha_beta", first="flat"),
    "epsilon_gamma_box": Rules("epsilon", "gamma", first_convolution="z_box"),
}


def matrix(module: Weighted, shape: torch.Size, weight: Tensor) -> Tensor:
    """(outputs, inputs): unit vectors pushed through without the bias are the columns."""
    units = torch.eye(math.prod(shape)).double().view(-1, *shape)
    if isinstance(module, nn.Linear):
        return F.linear(units, weight).flatten(1).T
    return F.conv2d(units, weight, None, module.stride, module.padding).flatten(1).T


def messages(rule: str, module: Weighted, x: Tensor, rules: Rules) -> list[tuple[float, Tensor, Tensor]]:
    """(factor, messages (outputs, inputs), what they are divided by (outputs))."""
    w, wired = (matrix(module, x.shape, weight) for weight in (module.weight, torch.ones_like(module.weight)))
    b, v = module(torch.zeros_like(x)[None]).flatten(), x.flatten()
    products = w * v
    up, down, y = products.clamp(min=0), products.clamp(max=0), products.sum(1) + b
    if rule == "epsilon":
        return [(1, products, y)]
    if rule == "z_plus":
        return [(1, up, up.sum(1) + b.clamp(min=0))]
    if rule == "alpha_beta":
        negative = (-rules.option("beta"), down, down.sum(1) + b.clamp(max=0))
        return [(rules.option("alpha"), up, up.sum(1) + b.clamp(min=0)), negative]
    if rule == "gamma":
        gamma, above = rules.option("gamma"), y > 0
        found = products + gamma * torch.where(above[:, None], up, down)
        bias = b + gamma * torch.where(above, b.clamp(min=0), b.clamp(max=0))
        return [(1, found * (y != 0)[:, None], found.sum(1) + bias)]  # an output of exactly 0 sends nothing
    if rule == "flat":
        return [(1, wired, wired.sum(1))]
    if rule == "w_square":
        return [(1, w**2, (w**2).sum(1) + b**2)]
    if rule == "z_box":
        low, high = (default if given is None else given for given, default in (
            (rules.option("low"), v.min()), (rules.option("high"), v.max())))  # fmt: skip
        boxed = products - low * w.clamp(min=0) - high * w.clamp(max=0)
        return [(1, boxed, boxed.sum(1))]
    if rule == "chefer":
        return [(1, up, up.sum(1))]
    assert rule == "orig"
    return [(1, up * side, (up * side).sum(1)) for side in (v > 0, v < 0)]


def weighted(module: Weighted, path: str, rules: Rules, first: bool = False) -> Layer:
    def layer(x: Tensor) -> tuple[Tensor, Back]:
        rule = rules.of(module, path, first)
        by = "epsilon" if rule == "epsilon" else "stabilizer"

        def back(relevance: Tensor) -> Tensor:
            sent = torch.zeros_like(x).flatten()
            for factor, found, z in messages(rule, module, x, rules):
                sent += factor * (rules.divided(relevance.flatten(), z, by) @ found)
            return sent.view_as(x)

        return module(x[None])[0], back

    return layer


def passed(function: Callable[[Tensor], Tensor]) -> Layer:
    """The identity: functions of one element, softmax, norms, scalings."""
    return lambda x: (function(x[None])[0], lambda relevance: relevance)


def moved(function: Callable[[Tensor], Tensor]) -> Layer:
    """Views, choices, and constants put beside: each output is one input, or a constant."""

    def layer(x: Tensor) -> tuple[Tensor, Back]:
        zero = torch.zeros_like(x)[None]
        where = (function(torch.eye(x.numel()).double().view(-1, *x.shape)) - function(zero)).flatten(1)
        return function(x[None])[0], lambda relevance: (where @ relevance.flatten()).view_as(x)

    return layer


def averaged(function: Callable[[Tensor], Tensor], rules: Rules) -> Layer:
    """Equation 1 on a linear map."""

    def layer(x: Tensor) -> tuple[Tensor, Back]:
        found = function(torch.eye(x.numel()).double().view(-1, *x.shape)).flatten(1).T * x.flatten()
        y = function(x[None])[0]
        return y, lambda relevance: (rules.divided(relevance.flatten(), found.sum(1)) @ found).view_as(x)

    return layer


def largest(pool: nn.MaxPool2d) -> Layer:
    def layer(x: Tensor) -> tuple[Tensor, Back]:
        windows, shape = windows_of(pool, x.shape)
        winners = torch.tensor([w[int(x.flatten()[w].argmax())] for w in windows])

        def back(relevance: Tensor) -> Tensor:
            return torch.zeros_like(x).flatten().index_add(0, winners, relevance.flatten()).view_as(x)

        return x.flatten()[winners].view(shape), back

    return layer


def sequence(*layers: Layer) -> Layer:
    def layer(x: Tensor) -> tuple[Tensor, Back]:
        backs = []
        for each in layers:
            x, back = each(x)
            backs.append(back)

        def all_back(relevance: Tensor) -> Tensor:
            for back in reversed(backs):
                relevance = back(relevance)
            return relevance

        return x, all_back

    return layer


@torch.no_grad()
def slowly(layer: Layer, x: Tensor, targets: list[int], start: str = "one") -> Tensor:
    rows = []
    for row, target in zip(x, targets, strict=True):
        y, back = layer(row)
        one = torch.zeros_like(y)
        one[target] = 1 if start == "one" else y[target]
        rows.append(back(one))
    return torch.stack(rows)


def written(model: nn.Sequential, rules: Rules) -> Layer:
    layers: list[Layer] = []
    first = True
    for path, module in model.named_children():
        if isinstance(module, Weighted):
            layers.append(weighted(module, path, rules, first))
            first = False
        elif isinstance(module, nn.MaxPool2d):
            layers.append(largest(module))
        elif isinstance(module, nn.AvgPool2d):
            layers.append(averaged(module, rules))
        else:
            layers.append((moved if isinstance(module, nn.Flatten) else passed)(module))
    return sequence(*layers)


def shared(a: Tensor, b: Tensor, relevance: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """The sum of two branches: |Σr_a| / (|Σr_a| + |Σr_b|) of ΣR for a."""
    s = rules.divided(relevance, a + b)
    parts = (a * s, b * s)
    if rules.add == "proportional":
        return parts
    sums = [part.sum() for part in parts]
    size = sum(total.abs() for total in sums)
    return tuple(part * (total.sign() * relevance.sum() / size) for part, total in zip(parts, sums, strict=True))  # type: ignore[return-value]


def residual(inner: Layer, rules: Rules) -> Layer:
    def layer(x: Tensor) -> tuple[Tensor, Back]:
        y, inside = inner(x)

        def back(relevance: Tensor) -> Tensor:
            to_x, to_y = shared(x, y, relevance, rules)
            return to_x + inside(to_y)

        return x + y, back

    return layer


def shifted(constant: Tensor, rules: Rules) -> Layer:
    """A constant takes its share, which is dropped."""
    return lambda x: (x + constant, lambda relevance: shared(x, constant.expand_as(x), relevance, rules)[0])


def copied(rules: Rules) -> Layer:
    """A sum taken twice: the authors of chefer divide what comes back by the sum, and multiply by it again."""
    return lambda x: (x, lambda relevance: rules.divided(relevance, x) * x if rules.authors else relevance)


def multiplied(a: Tensor, b: Tensor, relevance: Tensor, rules: Rules) -> tuple[Tensor, Tensor]:
    """a @ b: message (i, j, k) is a_ij b_jk; one half of each for either operand."""
    found = a[:, :, None] * b[None]
    sent = found * rules.divided(relevance, found.sum(1))[:, None] / 2
    return sent.sum(2), sent.sum(0)
