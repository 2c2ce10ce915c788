"""Methods that read attention: raw maps, rollout, flow, gradients of maps, and attentive class activation tokens.

Maps are (rows, heads, query, key). The later layer stands on the left, so only the read-out row is multiplied through
the layers, from the last to the first. In models of several streams (encoder and decoder, text and image) each call
acts on its queries' positions and reads its keys'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from whence.engine.trackers.modality import Modality
from whence.engine.trackers.tokens import LEARNED, LOST
from whence.errors import InputError, ParameterError
from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.attention.cross_attention import two_stream
from whence.methods.attention.layout import on_inputs
from whence.methods.attention.max_flow import max_flows
from whence.methods.attention.reading import Map, Reading, real_positions
from whence.methods.attention.reading import readout as readout_of
from whence.methods.attention.windows import moved
from whence.registry import Bounds
from whence.subject import Subject
from whence.util.checks import not_allowed

Preset = Literal["authors-bert", "authors-vit"] | None  # as the authors' code does it, where that is not the paper
Rows = Literal["real", "all"]
Start = Annotated[int, Bounds(low=0)]
State = dict[Modality, Tensor]  # (rows, targets or 1, n) for each stream's positions
Places = dict[Modality, Tensor | None]  # (rows, n), the tokens that these positions stand for


def _heads(m: Map, a: Tensor, g: Tensor | None) -> Tensor:
    return a.mean(1)


def needs_attention(**facts: Any) -> dict[str, Any]:
    return {"needs": "attention", "at": False, **facts}


# ---- maps alone ----


@method(
    "raw_attention",
    paper="Abnar & Zuidema 2020, arXiv:2005.00928",
    aliases=("attention", "attention_weights"),
    order=80,
    **needs_attention(),
)
def raw_attention(subject: Subject, *, layer: Any = -1, readout: Any = "auto", preset: Preset = None) -> Answer:
    """The attention of one layer, mean over its heads, at the read-out row.

    `layer="mean"` averages all layers. `readout` is the position whose row is read: "auto" (where the score depends on
    the last layer), "first", "last", "mean", or an index. The authors' BERT code gives the first token 0.
    """
    reading = Reading(subject, _heads, gradient=False).run(readout)
    return _first_is_zero(one_layer(reading, layer, readout, preset), preset)


@method(
    "rollout",
    paper="Abnar & Zuidema 2020, arXiv:2005.00928",
    aliases=("attention_rollout",),
    order=80,
    **needs_attention(),
)
def rollout(
    subject: Subject, *, normalize: bool = True, start_layer: Start = 0, readout: Any = "auto", preset: Preset = None
) -> Answer:
    """The product over layers of E_h(a) + I, each row normalised, at the read-out row.

    The authors' BERT code gives the first token 0: `preset="authors-bert"`.
    """
    reading = Reading(subject, _heads, gradient=False).run(readout)
    return _first_is_zero(through(reading, with_residual(normalize), start_layer, readout, preset), preset)


@method("attention_flow", paper="Abnar & Zuidema 2020, arXiv:2005.00928", order=80, **needs_attention())
def attention_flow(subject: Subject, *, readout: Any = "auto") -> Answer:
    """The maximum flow from the read-out row to each token through layers of capacity (E_h(a) + I) / 2."""
    reading = Reading(subject, _heads, gradient=False).run(readout)
    read = readout_of(reading, readout)
    sizes = {n for m in reading.maps for n in m.found[0].shape[-2:] if m.query in read}
    if len(sizes) > 1 or any(m.crosses and m.query in read for m in reading.maps):
        raise InputError(
            "attention_flow is defined for one stream of as many tokens in every layer.\n  Choose rollout instead."
        )
    flows = _flows(reading, read)
    return on_inputs(reading, flows, _first_at(reading, flows))


# ---- maps and their gradients ----


@method(
    "generic_attention",
    paper="Chefer, Gur & Wolf 2021, arXiv:2103.15679",
    aliases=("gae",),
    order=80,
    **needs_attention(),
)
def generic_attention(
    subject: Subject, *, identity: bool = True, readout: Any = "auto", preset: Preset = None
) -> Answer:
    """R ← R + M·R over layers, M = E_h((g ⊙ a)⁺), at the read-out row; `identity=False` multiplies M alone.

    Encoder–decoder and two-stream models take the paper's rules for cross-attention. The authors' code gives scores to
    tokens that a mask hides, too.
    """
    reading = Reading(subject, _positive, gradient=True).run()
    if any(m.crosses for m in reading.maps):
        if not identity:
            raise ParameterError("identity=False is defined for one stream of tokens.\n  Leave it out here.")
        state = two_stream(reading, readout)
        return on_inputs(reading, state, _first_at(reading, state), padding=preset is not None)
    step = with_residual(False) if identity else _alone
    return through(reading, step, 0, readout, preset)


@method(
    "attention_gradients",
    paper="Barkan et al. 2021, arXiv:2204.11073",
    aliases=("attgrads",),
    order=80,
    **needs_attention(),
)
def attention_gradients(
    subject: Subject, *, combine: Literal["product", "sum"] = "product", readout: Any = "auto"
) -> Answer:
    """AttGrads: E_h(g ⊙ a) without a positive part, multiplied or summed over layers, at the read-out row."""
    reading = Reading(subject, _product, gradient=True).run()
    if combine == "product":
        return through(reading, _alone, 0, readout)
    return one_layer(reading, "sum", readout)


@method("attention_x_gradient", paper="Serrano & Smith 2019, arXiv:1906.03731", order=80, **needs_attention())
def attention_x_gradient(subject: Subject, *, layer: Any = -1, readout: Any = "auto") -> Answer:
    """One layer's attention times its gradient, E_h(a ⊙ ∂f/∂a), at the read-out row.

    `output="probability"` ranks as the paper does, by the gradient of the decision's probability.
    """
    return one_layer(Reading(subject, _product, gradient=True).run(), layer, readout)


@method("attention_gradient", paper="Serrano & Smith 2019, arXiv:1906.03731", order=80, **needs_attention())
def attention_gradient(subject: Subject, *, layer: Any = -1, readout: Any = "auto") -> Answer:
    """One layer's gradient by its attention, E_h(∂f/∂a), at the read-out row."""
    return one_layer(Reading(subject, lambda m, a, g: g.mean(1), gradient=True).run(), layer, readout)  # type: ignore[union-attr]


@method("grad_sam", paper="Barkan et al. 2021, arXiv:2204.11073", order=80, **needs_attention())
def grad_sam(subject: Subject, *, axis: Literal["query", "key"] = "query", rows: Rows = "real") -> Answer:
    """The mean over layers, heads and query rows of a ⊙ ReLU(g); `axis` is the one that is averaged away.

    `rows="all"` counts padding among them.
    """
    reading = Reading(subject, _where_raised, gradient=True).run()
    total: State = {}
    at: Places = {}
    count: dict[Modality, int] = {}
    for m in reading.maps:
        stream = m.key if axis == "query" else m.query
        here = m.key_at if axis == "query" else m.query_at
        found = _mean(m.stacked(), _real(reading, m, rows, axis), -2 if axis == "query" else -1)
        _add(reading, total, at, stream, found, here)
        count[stream] = count.get(stream, 0) + 1
    return on_inputs(reading, {stream: value / count[stream] for stream, value in total.items()}, at)


@method(
    "attention_gradcam",
    paper="Selvaraju et al. 2017, arXiv:1610.02391",
    aliases=("gradcam",),
    order=80,
    **needs_attention(),
)
def attention_gradcam(subject: Subject, *, rows: Rows = "real", readout: Any = "auto", preset: Preset = None) -> Answer:
    """The last layer's maps, each head weighted by its mean gradient, (E_h w_h·a_h)⁺, at the read-out row.

    The authors' BERT code stretches the whole map to [0, 1] and gives the first token 0 (`preset="authors-bert"`), and
    their ViT code looks at the class token's row of patches alone and stretches that (`preset="authors-vit"`).
    """
    everything = bool(preset) or rows == "all"
    reading = Reading(subject, lambda m, a, g: _gradcam(reading, everything, preset, m, a, g), gradient=True)
    reading.run()
    reading.reduce = _heads  # which held the reading, and the reading it
    return _first_is_zero(one_layer(reading, -1, readout, preset), preset)


# ---- hidden states ----


@method("cat", paper="Qiang et al. 2022, AttCAT", order=80, **needs_attention())
def cat(subject: Subject, *, preset: Preset = None) -> Answer:
    """Class activation tokens: Σ over layers of the hidden states that enter them times their gradients, Σ_h ∇h ⊙ h.

    The authors' code gives scores to tokens that a mask hides, too.
    """
    reading = Reading(subject, lambda m, a, g: a.new_zeros(len(a)), gradient=True, hidden=True).run()
    return _activations(reading, None, preset)


@method("attcat", paper="Qiang et al. 2022, AttCAT", order=80, **needs_attention())
def attcat(subject: Subject, *, rows: Rows = "real", preset: Preset = None) -> Answer:
    """Class activation tokens of each layer, weighted by the attention that each token receives there on average.

    `rows="all"` (and the authors' preset) counts padding among the tokens that give attention.
    """
    reading = Reading(subject, _heads, gradient=True, hidden=True).run()
    return _activations(reading, "all" if preset else rows, preset)


# ---- what is made of a map ----


def _positive(m: Map, a: Tensor, g: Tensor | None) -> Tensor:
    assert g is not None
    return (g * a).clamp(min=0).mean(1)


def _where_raised(m: Map, a: Tensor, g: Tensor | None) -> Tensor:
    assert g is not None
    return (a * g.clamp(min=0)).mean(1)


def _product(m: Map, a: Tensor, g: Tensor | None) -> Tensor:
    assert g is not None
    return (g * a).mean(1)


def _gradcam(reading: Reading, everything: bool, preset: Preset, m: Map, a: Tensor, g: Tensor | None) -> Tensor:
    assert g is not None
    query = real_positions(reading, m.query, m.query_at, a.shape[2])
    key = real_positions(reading, m.key, m.key_at, a.shape[3])
    if everything:
        query, key = torch.ones_like(query), torch.ones_like(key)
    pairs = (query[:, :, None] * key[:, None])[:, None]  # (rows, 1, q, k)
    if preset == "authors-vit":
        pairs = torch.zeros_like(pairs)
        pairs[:, :, 0, 1:] = 1
    weight = (g * pairs).sum((2, 3), keepdim=True) / pairs.sum((2, 3), keepdim=True)
    cam = (weight * a).mean(1).clamp(min=0)
    if preset is None:
        return cam
    seen = cam if preset == "authors-bert" else cam[:, :1, 1:]
    low, high = seen.amin((1, 2), keepdim=True), seen.amax((1, 2), keepdim=True)
    return (cam - low) / (high - low)


# ---- what is made of all maps ----

Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # a row and a map → what stays, what goes to the keys


def with_residual(normalize: bool) -> Step:
    def step(row: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        row = row / (a.sum(-1) + 1) if normalize else row
        return row, _times(row, a)

    return step


def _alone(row: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(row), _times(row, a)


def _times(row: Tensor, a: Tensor) -> Tensor:
    """A row vector times a matrix, for each row and target."""
    return (row.unsqueeze(-2) @ a).squeeze(-2)


def through(reading: Reading, step: Step, start_layer: int, where: Any, preset: Preset = None) -> Answer:
    """The read-out row through the layers, from the last to the one to start with."""
    if start_layer and start_layer >= max(sum(m.query == n.query for n in reading.maps) for m in reading.maps):
        raise not_allowed("start_layer", start_layer, "a layer that the model has")
    state: State = dict(readout_of(reading, where))
    at: Places = {m.query: m.query_at for m in reading.maps}
    for m in reversed(_from_layer(reading.maps, start_layer)):
        _gather(reading, state, at, m)
        if m.query in state:
            row = moved(state[m.query], at[m.query], m.query_at, m.found[0].shape[-2], reading.tokens, reading.subject)
            gone = (state[m.query].abs().sum((1, 2)) - row.abs().sum((1, 2))).clamp(min=0)
            reading.dropped = gone if reading.dropped is None else reading.dropped + gone
            at[m.query] = m.query_at
            stays, goes = step(row, m.stacked())
            if m.crosses:
                state[m.query] = row if step is _alone else stays
                _add(reading, state, at, m.key, goes, m.key_at)
            elif row.shape[-1] == 1 < goes.shape[-1]:
                state[m.query], at[m.query] = _times(row, m.stacked()), m.key_at  # one query: nothing of it stays
            else:
                state[m.query] = stays + moved(
                    goes, m.key_at, m.query_at, row.shape[-1], reading.tokens, reading.subject
                )
    return on_inputs(reading, state, at, padding=preset is not None)


def _gather(reading: Reading, state: State, at: Places, m: Map) -> None:
    """Learned tokens go from stream to stream: what the queries of a map have got in another one is brought here."""
    here = m.query_at
    if here is None or not any(name.startswith(LEARNED) for name in m.query):
        return
    learned = torch.zeros_like(here, dtype=torch.bool)
    for source in reading.tokens.sources:
        learned |= source.holds(here) if source.name.startswith(LEARNED) else False
    ours = torch.where(learned, here, LOST - 1)  # like no other
    for stream, scores in list(state.items()):
        there = at.get(stream)
        if stream == m.query or not stream & m.query or there is None or there.shape[1] != scores.shape[-1]:
            continue
        same = (there[:, :, None] == ours[:, None]).to(scores)
        old = state.get(m.query, scores.new_zeros(*scores.shape[:2], here.shape[1]))
        state[m.query], at[m.query] = old + scores @ same, here
        state[stream] = scores * (1 - same.sum(-1))[:, None]


def _add(reading: Reading, total: State, at: Places, stream: Modality, found: Tensor, here: Tensor | None) -> None:
    """Add scores of a stream's positions to those that it has, at the first positions that were met."""
    if stream in total:
        total[stream] = total[stream] + moved(
            found, here, at.get(stream), total[stream].shape[-1], reading.tokens, reading.subject
        )
    else:
        total[stream], at[stream] = found, here


def _from_layer(maps: list[Map], start: int) -> list[Map]:
    """Each stream's maps without its first ones."""
    seen: dict[tuple[Modality, Modality], int] = {}
    kept = []
    for m in maps:
        seen[m.query, m.key] = seen.get((m.query, m.key), -1) + 1
        if seen[m.query, m.key] >= start:
            kept.append(m)
    return kept


def one_layer(reading: Reading, layer: Any, where: Any, preset: Preset = None) -> Answer:
    """The read-out row of one layer's map onto each stream, or the mean or sum over layers."""
    state: State = {}
    at: Places = {}
    lasts = {m.query: m.query_at for m in reading.maps}
    for stream, row in readout_of(reading, where).items():
        for key in {m.key: None for m in reading.maps if m.query == stream}:
            maps = [m for m in reading.maps if (m.query, m.key) == (stream, key)]
            chosen = maps if layer in ("mean", "sum") else [_pick(maps, layer)]
            for m in chosen:
                there = moved(row, lasts[stream], m.query_at, m.found[0].shape[-2], reading.tokens, reading.subject)
                found = _times(there, m.stacked()) / (len(chosen) if layer == "mean" else 1)
                _add(reading, state, at, key, found, m.key_at)
    return on_inputs(reading, state, at, padding=preset is not None)


def _pick(maps: list[Map], layer: Any) -> Map:
    if not isinstance(layer, int) or isinstance(layer, bool) or not -len(maps) <= layer < len(maps):
        raise not_allowed("layer", layer, f'"mean" or a layer from {-len(maps)} to {len(maps) - 1}')
    return maps[layer]


def _first_at(reading: Reading, state: State) -> Places:
    """The tokens of each stream's first positions."""
    found: Places = {}
    for m in reading.maps:
        for stream, here in ((m.query, m.query_at), (m.key, m.key_at)):
            if stream in state and here is not None and here.shape[1] == state[stream].shape[-1]:
                found.setdefault(stream, here)
    return found


def _flows(reading: Reading, read: State) -> State:
    state: State = {}
    for stream, row in read.items():
        maps = [m.stacked()[:, 0].double() for m in reading.maps if m.query == m.key == stream]
        layers = [(a + torch.eye(a.shape[-1], device=a.device)) / 2 for a in maps]
        found = [[max_flows([a[i] for a in layers], one.double()) for one in each] for i, each in enumerate(row)]
        state[stream] = torch.stack([torch.stack(each) for each in found]).to(row)
    return state


def _activations(reading: Reading, rows: str | None, preset: Preset) -> Answer:
    """Σ over layers of h·∇h, weighted by the attention received if rows are given."""
    total: State = {}
    at: Places = {}
    done = set()
    for m in reading.maps:
        place = (m.layer, m.run)
        entered = m.entered or reading.entered.get(place, [])
        if m.crosses or (m.query, m.depth) in done or not entered or entered[0].dim() != 2:
            continue
        done.add((m.query, m.depth))
        found = torch.stack(entered, 1)  # (rows, k, n)
        if rows is not None:
            received = _mean(m.stacked(), _real(reading, m, rows, "query"), -2)
            found = found * moved(received, m.key_at, m.query_at, found.shape[-1], reading.tokens, reading.subject)
        _add(reading, total, at, m.query, found, m.query_at)
    if not total:
        raise InputError(
            f"{reading.subject.method} reads the hidden states that enter layers of attention, and found none.\n"
            "  Choose a method that reads maps, such as generic_attention."
        )
    return on_inputs(reading, total, at, padding=preset is not None)


# ---- real units ----


def _real(reading: Reading, m: Map, rows: str, side: str) -> Tensor:
    """1 for the queries (or keys) that count, (rows, 1, n)."""
    query, n = side == "query", m.found[0].shape[-2 if side == "query" else -1]
    found = real_positions(reading, m.query if query else m.key, m.query_at if query else m.key_at, n)[:, None]
    return torch.ones_like(found) if rows == "all" else found


def _mean(a: Tensor, weight: Tensor, dim: int) -> Tensor:
    """The mean of (rows, k, q, key) over one axis, of those that count."""
    weight = weight.unsqueeze(-1) if dim == -2 else weight.unsqueeze(-2)
    return (a * weight).sum(dim) / weight.sum(dim)


def _first_is_zero(answer: Answer, preset: str | None) -> Answer:
    """What the authors' BERT code does to the class token."""
    if preset != "authors-bert":
        return answer
    values = {key: torch.cat([torch.zeros_like(v[..., :1]), v[..., 1:]], -1) for key, v in answer.values.items()}
    return replace(answer, values=values)
