"""Models that nobody's library wrote: recurrent, graph, compiled, scripted, quantised, adapted, of experts, fused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint

from benchmarks.families.case import Case, draw, ids

ROWS = 3


class PackedLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(30, 8), nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.out = nn.Linear(12, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        lengths = attention_mask.sum(1)
        packed = rnn.pack_padded_sequence(self.words(input_ids), lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.rnn(packed)
        return self.out(last.transpose(0, 1).flatten(1))


class UNet(nn.Module):
    """Down, up and a skip between, one class score per pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(2, 6, 3, padding=1), nn.Conv2d(6, 8, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 6, 2, stride=2), nn.Conv2d(12, 3, 1)
        self.norm = nn.GroupNorm(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        high = F.relu(self.norm(self.down(x)))
        low = F.silu(self.deep(F.max_pool2d(high, 2)))
        return self.out(torch.cat([high, self.up(low)], 1))


class GraphNet(nn.Module):
    """Messages by index_add over the edges of a batch of graphs, then their mean by graph."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update, self.out = nn.Linear(4, 8), nn.Linear(12, 8), nn.Linear(8, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        rows, n, _ = nodes.shape
        flat = nodes.flatten(0, 1)
        shift = (torch.arange(rows) * n)[:, None]
        source, goal = (edges[:, 0] + shift).flatten(), (edges[:, 1] + shift).flatten()
        heard = torch.zeros(rows * n, 8, dtype=nodes.dtype).index_add(0, goal, F.relu(self.message(flat[source])))
        state = F.relu(self.update(torch.cat([flat, heard], -1)))
        return self.out(state.unflatten(0, (rows, n)).mean(1))


class Experts(nn.Module):
    """The best two of four, each over its own rows by index: as users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.inner = nn.Linear(6, 4), nn.Linear(6, 6)
        self.each = nn.ModuleList(nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)) for _ in range(4))
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.inner(x))
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        found = torch.zeros_like(x)
        for number, expert in enumerate(self.each):
            row, place = torch.where(chosen == number)
            if len(row):
                found.index_add_(0, row, expert(x[row]) * weight[row, place, None])
        return self.out(found + x)


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width))

    def forward(self, h: Tensor, tell: list[Tensor] | None = None) -> Tensor:
        n = self.norm(h)
        found, weights = self.attend(n, n, n, need_weights=tell is not None, average_attn_weights=False)
        if tell is not None:
            tell.append(weights)
        return h + found + self.mlp(h + found)


class EarlyFusion(nn.Module):
    """Image patches and words in one sequence, read out at the first word."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.words = nn.Conv2d(2, 8, 4, stride=4), nn.Embedding(30, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.out = nn.Linear(8, 3)

    def forward(
        self, image: Tensor, input_ids: Tensor, output_attentions: bool = False, output_hidden_states: bool = False
    ) -> Any:
        h = torch.cat([self.patches(image).flatten(2).transpose(1, 2), self.words(input_ids)], 1)
        maps: list[Tensor] | None = [] if output_attentions else None
        states = []
        for block in self.blocks:
            states.append(h)
            h = block(h, maps)
        logits = self.out(h[:, 4])
        return {"logits": logits, "attentions": maps, "hidden_states": states} if output_attentions else logits


class Encoder(nn.Module):
    """nn.TransformerEncoder with a padding mask, mean over what is real."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.encoder(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
        real = attention_mask[..., None].to(h)
        return self.out((h * real).sum(1) / real.sum(1))


class LowRank(nn.Module):
    """A frozen layer and what was learnt beside it, as adapters have it."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, layer.in_features) * 0.3)
        self.b = nn.Parameter(torch.randn(layer.out_features, rank) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + (x @ self.a.T @ self.b.T) * 2.0


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 10), nn.Linear(10, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(lambda t: F.gelu(self.b(F.relu(self.a(t)))), x, use_reentrant=False)
        return self.out(h)


class Several(nn.Module):
    """An image and numbers, a dict of answers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense, self.out = nn.Conv2d(2, 4, 3), nn.Linear(5, 4), nn.Linear(8, 3)

    def forward(self, image: Tensor, numbers: Tensor) -> dict[str, Tensor]:
        seen = F.relu(self.conv(image)).amax((2, 3))
        return {"logits": self.out(torch.cat([seen, torch.tanh(self.dense(numbers))], 1)), "seen": seen}


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(1.7 * x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(1.7 * x)
        return grads[0] * (s + 1.7 * x * s * (1 - s))


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(OwnFunction.apply(self.a(x)))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 8), nn.GELU(), nn.Linear(8, 3))


def normed() -> nn.Module:
    return nn.Sequential(
        parametrizations.weight_norm(nn.Conv1d(2, 6, 3)), nn.ReLU(), parametrizations.spectral_norm(nn.Conv1d(6, 4, 3)),
        nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def adapted() -> nn.Module:
    model = mlp()
    for place in (0, 2, 4):
        model[place] = LowRank(model[place])  # type: ignore[arg-type]
    return model


def numbers(dtype: torch.dtype = torch.float64) -> Tensor:
    return draw(ROWS, 6).to(dtype)


def words() -> dict[str, Tensor]:
    found = ids(ROWS, 6, low=1, high=30)
    mask = torch.ones_like(found)
    mask[1, 4:] = 0
    mask[2, 3:] = 0
    return {"input_ids": found * mask, "attention_mask": mask}


def graphs() -> dict[str, Tensor]:
    edges = torch.randint(0, 5, (ROWS, 2, 8), generator=torch.Generator().manual_seed(2))
    return {"nodes": draw(ROWS, 5, 4), "edges": edges}


def other(build: Callable[[], nn.Module], inputs: Callable[[], Any], **facts: Any) -> Case:
    """Built from one seed; `after` is done to the finished model."""
    after = facts.pop("after", lambda model: model)
    dtype = facts.get("dtype", torch.float64)

    def made(attention: str) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return after(build().to(dtype).eval())

    return Case(made, inputs, "own", kinds=("own",), **{"attends": False, "reports": False, **facts})


def quantised(model: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def fused_places(eager: Any, here: Any, theirs: list[Tensor]) -> dict[str, Tensor]:
    return {"image": theirs[0][:, :4].unflatten(1, (2, 2)), "input_ids": theirs[0][:, 4:]}


CASES: dict[str, Case] = {
    "packed lstm": other(PackedLstm, words),
    "unet": other(UNet, lambda: draw(ROWS, 2, 8, 8), target=(1, 3, 3)),
    "graph net": other(GraphNet, graphs),
    "experts by hand": other(Experts, numbers),
    "early fusion": other(EarlyFusion, lambda: {"image": draw(ROWS, 2, 8, 8), "input_ids": ids(ROWS, 5, 1, 30)},
                          attends=True, reports=True, lay=fused_places),
    "nn.TransformerEncoder": other(Encoder, words, attends=True),
    "low-rank adapters": other(adapted, numbers),
    "weight norm, spectral norm": other(normed, lambda: draw(ROWS, 2, 8)),
    "checkpointed": other(Checkpointed, numbers),
    "several inputs, dict out": other(Several, lambda: {"image": draw(ROWS, 2, 8, 8), "numbers": draw(ROWS, 5)}),
    "autograd.Function": other(Custom, numbers),
    "torch.compile": other(mlp, numbers, after=lambda m: torch.compile(m, backend="eager")),
    "scripted": other(mlp, numbers, after=torch.jit.script),
    "traced": other(mlp, numbers, after=lambda m: torch.jit.trace(m, numbers())),
    "bfloat16": other(Checkpointed, lambda: numbers(torch.bfloat16), dtype=torch.bfloat16, rtol=0.05),
    "bfloat16 attention": other(Encoder, words, attends=True, dtype=torch.bfloat16, rtol=0.05),
    "dynamic int8": other(mlp, lambda: numbers(torch.float32), after=quantised, dtype=torch.float32),
    "one number a row": other(lambda: nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, 4), nn.Tanh(),
                                                    nn.Linear(4, 2)), lambda: draw(ROWS)),
}  # fmt: skip
