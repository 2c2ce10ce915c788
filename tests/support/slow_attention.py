"""Attention methods, slowly: on a model's own maps, as matrices."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.support.hf import FAMILIES


def product(layers: list[Tensor]) -> Tensor:
    """The later layer on the left."""
    found = torch.eye(len(layers[0])).double()
    for layer in layers:
        found = layer @ found
    return found


def mean_over_heads(a: Tensor) -> Tensor:
    return sum(a[head] for head in range(len(a))) / len(a)  # type: ignore[return-value]


def normalised(r: Tensor) -> Tensor:
    rest = r - torch.eye(len(r)).double()
    total = rest.sum(1, keepdim=True)
    return torch.eye(len(r)).double() + torch.where(total > 0, rest / total.clamp(min=1e-300), torch.zeros_like(rest))


TEXT = FAMILIES["bert"]


class Slow:
    """Maps, their gradients, hidden states and theirs, of one row without padding, as the model itself gives them."""

    def __init__(self, row: int, target: int) -> None:
        model = TEXT.build("eager")
        self.inputs = {key: value[row : row + 1] for key, value in TEXT.inputs().items()}
        real = int(self.inputs["attention_mask"].sum())
        self.inputs = {key: value[:, :real] for key, value in self.inputs.items()}
        out = model(**self.inputs, output_attentions=True, output_hidden_states=True)
        score = out.logits[0, target]
        maps, hidden = out.attentions, out.hidden_states[:-1]
        self.a = [a[0].detach() for a in maps]
        self.g = [g[0] for g in torch.autograd.grad(score, maps, retain_graph=True)]
        self.h = [h[0].detach() for h in hidden]
        self.dh = [d[0] for d in torch.autograd.grad(score, hidden)]


def residual(slow: Slow, normalize: bool) -> list[Tensor]:
    layers = [mean_over_heads(a) + torch.eye(a.shape[-1]).double() for a in slow.a]
    return [layer / layer.sum(1, keepdim=True) for layer in layers] if normalize else layers


def sam(slow: Slow, axis: int) -> Tensor:
    layers = [mean_over_heads(a * g.clamp(min=0)).mean(axis) for a, g in zip(slow.a, slow.g, strict=True)]
    return sum(layers) / len(layers)  # type: ignore[return-value]


def tokens(slow: Slow, weighted: bool) -> Tensor:
    total = torch.zeros(len(slow.h[0])).double()
    for a, h, d in zip(slow.a, slow.h, slow.dh, strict=True):
        for i in range(len(h)):
            received = mean_over_heads(a)[:, i].mean() if weighted else 1.0
            total[i] += received * (h[i] * d[i]).sum()
    return total


def both(slow: Slow) -> list[Tensor]:
    return [mean_over_heads(a * g) for a, g in zip(slow.a, slow.g, strict=True)]


def positive(slow: Slow) -> list[Tensor]:
    return [mean_over_heads((a * g).clamp(min=0)) for a, g in zip(slow.a, slow.g, strict=True)]
