"""What Whence is compared with: plain autograd, and the attention that the eager model itself reports.

Nothing here uses Whence. Embeddings are met by standing in for `F.embedding`, attention by `output_attentions`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Values = dict[str, Tensor]
Parts = dict[str, tuple[Tensor, ...]]  # of ids, one for each embedding that they enter


class Unable(Exception):
    """The model itself cannot be asked in this way."""


@contextmanager
def its_own() -> Iterator[None]:
    """What goes wrong here is the model's own doing, without Whence."""
    try:
        yield
    except Exception as error:
        raise Unable(f"plain autograd fails on this model: {error}") from error


def call(model: nn.Module, inputs: Any, **more: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs, **more)
    return model(*inputs, **more) if isinstance(inputs, tuple) else model(inputs, **more)


def score(output: Any, target: Any) -> Tensor:
    """One number per row, as the target asks."""
    if callable(target):
        return target(output)
    if not isinstance(output, Tensor):
        output = output["logits"] if isinstance(output, Mapping) else output[0]
    return output[(slice(None), *target)] if isinstance(target, tuple) else output[:, target]


def named(inputs: Any) -> Values:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return {str(n): t for n, t in enumerate(inputs)} if isinstance(inputs, tuple) else {"x": inputs}


def like(inputs: Any, values: Values) -> Any:
    if isinstance(inputs, Mapping):
        return values
    return tuple(values.values()) if isinstance(inputs, tuple) else values["x"]


@contextmanager
def embeddings(of: Values, leaf: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """While this lasts, what an embedding gives for one of these ids is what `leaf` makes of it."""
    plain = F.embedding

    def stand_in(ids: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found = plain(ids, *args, **kwargs)
        for name, t in of.items():
            if t.shape == ids.shape and torch.equal(t, ids):
                return leaf(name, found)
            for place in (
                range(t.shape[-1]) if t.shape[:-1] == ids.shape else ()
            ):  # LayoutLM: one side of a box at a time
                if torch.equal(t[..., place], ids):
                    laid = F.one_hot(torch.tensor(place), t.shape[-1])[:, None] * found.unsqueeze(-2)
                    return leaf(name, laid)[..., place, :]
            if t.mT.shape == ids.shape and torch.equal(t.mT, ids):  # XLNet has the rows second
                return leaf(name, found.transpose(0, 1)).transpose(0, 1)
        return found

    with mock.patch.object(F, "embedding", stand_in):
        yield


def gradient(model: nn.Module, inputs: Any, target: Any, names: Sequence[str]) -> Parts:
    """∂f/∂x for floating inputs, and for ids what their embeddings got."""
    given = named(inputs)
    leaves = {name: [given[name].clone().requires_grad_()] for name in names if given[name].is_floating_point()}
    ids = {name: given[name] for name in names if name not in leaves}

    def leaf(name: str, found: Tensor) -> Tensor:
        leaves.setdefault(name, []).append(found.detach().requires_grad_())
        return leaves[name][-1].clone()  # some models add to it in place

    with its_own(), embeddings(ids, leaf):
        plain = {name: leaves[name][0] for name in names if name not in ids}
        total = score(call(model, like(inputs, {**given, **plain})), target).sum()
        flat = [t for group in leaves.values() for t in group]
        grads = dict(zip(map(id, flat), torch.autograd.grad(total, flat, allow_unused=True), strict=True))
    return {
        name: tuple(torch.zeros_like(t) if grads[id(t)] is None else grads[id(t)] for t in group)
        for name, group in leaves.items()
    }


def padding(given: Values, name: str) -> Tensor | None:
    """1 for what is real of an input's tokens."""
    return given.get("decoder_attention_mask" if name.startswith("decoder") else "attention_mask")


def at_zero(model: nn.Module, inputs: Any, target: Any, names: Sequence[str]) -> Tensor:
    """The score with every explained value 0; padding stays as it is."""
    given = named(inputs)
    zeros = {name: torch.zeros_like(given[name]) for name in names if given[name].is_floating_point()}
    ids = {name: given[name] for name in names if name not in zeros}

    def zero(name: str, found: Tensor) -> Tensor:
        mask = padding(given, name)
        if mask is None or mask.shape != found.shape[:2]:
            return torch.zeros_like(found)
        return torch.where(mask.view(*mask.shape, *[1] * (found.dim() - 2)) == 0, found, 0.0)

    with torch.no_grad(), embeddings(ids, zero):
        return score(call(model, like(inputs, {**given, **zeros})), target)


# ---- attention ----


@contextmanager
def same_lots() -> Iterator[None]:
    """A model that draws lots draws the same ones each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@dataclass
class Told:
    """What an eager model reports of itself, in the order of its layers; each tensor with its gradient, or None."""

    maps: list[Tensor]
    map_grads: list[Tensor | None]
    states: list[tuple[Tensor, Tensor | None]]  # what enters each layer
    read: Tensor  # (rows, n): how much of each position the score reads
    crossing: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)
    encoder: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)


def tell(eager: nn.Module, inputs: Any, target: Any, part: Callable[[Any], Any] = lambda output: output) -> Told:
    """Run it once with its own `output_attentions`, and back; `part` is where its output has the maps."""
    entered: dict[int, list[Tensor]] = {}  # by the list that holds the layers
    left: list[Tensor] = []
    with ExitStack() as hooks:
        for holder in eager.modules():
            for member in holder if isinstance(holder, nn.ModuleList) else ():
                before = functools.partial(_enter, entered.setdefault(id(holder), []))
                hooks.callback(member.register_forward_pre_hook(before, with_kwargs=True).remove)
                hooks.callback(member.register_forward_hook(lambda m, args, out: _keep(left, out)).remove)
        hooks.enter_context(same_lots())
        output = call(eager, inputs, output_attentions=True, output_hidden_states=True)
    total = score(output, target).sum()
    output = part(output)
    both = bool(output.get("cross_attentions"))
    maps = list(output["decoder_attentions" if both else "attentions"])
    rows, queries = len(maps[-1]), maps[-1].shape[-2]
    fits = [t for t in left if _axis(t, rows, queries) is not None]
    if not fits:
        raise Unable("no layer of this model gives one state per position")
    states = next((g for g in entered.values() if len(g) == len(maps) and _axis(g[-1], rows, queries) is not None), [])
    crossing, encoder = (list(output[key]) if both else [] for key in ("cross_attentions", "encoder_attentions"))
    flat = [*maps, *states, *crossing, *encoder, fits[-1]]
    found = list(zip(flat, torch.autograd.grad(total, flat, allow_unused=True), strict=True))
    pairs = [(t.detach(), g) for t, g in found]
    a, b = len(maps), len(maps) + len(states)
    c = b + len(crossing)
    if pairs[-1][1] is None:
        raise Unable("the score does not read the last layer of this model")
    norms = _axis(pairs[-1][1], rows, queries).norm(dim=-1)
    read = norms / norms.sum(-1, keepdim=True)
    return Told([t for t, _ in pairs[:a]], [g for _, g in pairs[:a]], pairs[a:b], read, pairs[b:c], pairs[c:-1])


def _enter(entered: list[Tensor], module: nn.Module, args: Any, kwargs: Any) -> None:
    first = args[0] if args else kwargs.get("hidden_states")
    if isinstance(first, Tensor) and first.dim() == 3 and first.requires_grad:
        entered.append(first)


def _axis(t: Tensor, rows: int, n: int) -> Any:
    """A state as (rows, n, hidden), or None where it is none of these positions."""
    for way in ((0, 1, 2), (1, 0, 2), (0, 2, 1)):
        turned = t.permute(way)
        if turned.shape[:2] == (rows, n):
            return turned
    return None


def _keep(left: list[Tensor], out: Any) -> None:
    out = tuple(out.values()) if isinstance(out, Mapping) else out
    first = out[0] if isinstance(out, tuple | list) and out else out
    if isinstance(first, Tensor) and first.dim() == 3 and first.requires_grad:
        left.append(first)


def rollout(told: Told) -> list[Tensor]:
    """E_h(a) + I, row-normalised, the last layer on the left, at the read-out row: of one sequence, or of two."""
    row = told.read
    n = row.shape[-1]
    if not told.crossing:
        for a in reversed(told.maps):
            row = _step(row, a.mean(1), residual=torch.eye(n).to(a))
        return [row]
    m = told.encoder[0][0].shape[-1]
    whole = torch.cat([row, row.new_zeros(len(row), m)], 1)  # decoder, then encoder
    for own, (cross, _) in reversed(list(zip(told.maps, told.crossing, strict=True))):
        for block, place in ((cross, slice(n, None)), (own, slice(0, n))):
            a = block.new_zeros(len(row), n + m, n + m)
            a[:, :n, place] = block.mean(1)
            whole = _step(whole, a, torch.eye(n + m).to(a))
    for own, _ in reversed(told.encoder):
        a = own.new_zeros(len(row), n + m, n + m)
        a[:, n:, n:] = own.mean(1)
        whole = _step(whole, a, torch.eye(n + m).to(a))
    return [whole[:, :n], whole[:, n:]]


def _step(row: Tensor, a: Tensor, residual: Tensor) -> Tensor:
    a = a + residual
    return (row[:, None] @ (a / a.sum(-1, keepdim=True)))[:, 0]


def generic(told: Told) -> list[Tensor]:
    """R ← R + M R with M = E_h((g ⊙ a)⁺), whole matrices, first layer first; with a decoder, by the paper's rules."""

    def positive(a: Tensor, g: Tensor | None) -> Tensor:
        if g is None:
            raise Unable("the maps that this model reports are copies, which no gradient reaches")
        return (a * g).clamp(min=0).mean(1)

    n = told.read.shape[-1]
    own = torch.eye(n).to(told.read).expand(len(told.read), n, n)
    if not told.crossing:
        for a, g in zip(told.maps, told.map_grads, strict=True):
            own = own + positive(a, g) @ own
        return [(told.read[:, None] @ own)[:, 0]]
    m = told.encoder[0][0].shape[-1]
    encoder = torch.eye(m).to(told.read).expand(len(own), m, m)
    for a, g in told.encoder:
        encoder = encoder + positive(a, g) @ encoder
    across = own.new_zeros(len(own), n, m)
    for a, g, (cross, cross_g) in zip(told.maps, told.map_grads, told.crossing, strict=True):
        step = positive(a, g)
        own, across = own + step @ own, across + step @ across
        across = across + _normal(own).mT @ positive(cross, cross_g) @ _normal(encoder)
    return [(told.read[:, None] @ r)[:, 0] for r in (own, across)]


def _normal(r: Tensor) -> Tensor:
    """I + (R − I) with rows of sum 1, or 0."""
    eye = torch.eye(r.shape[-1]).to(r)
    rest = r - eye
    total = rest.sum(-1, keepdim=True)
    return eye + torch.where(total != 0, rest / torch.where(total != 0, total, 1.0), 0.0)


def attcat(told: Told, real: Tensor) -> list[Tensor]:
    """Σ over layers of Σ_hidden ∇h ⊙ h of what enters a layer, times the mean attention that a token receives there."""
    total = torch.zeros_like(told.read)
    if told.crossing or not told.states:
        raise Unable("what enters its layers is not told")
    for a, (h, g) in zip(told.maps, told.states, strict=True):
        received = (a.mean(1) * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)
        total = total + (0 if g is None else received * _axis(h * g, *total.shape).sum(-1))
    return [total]
