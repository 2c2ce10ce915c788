"""Reading a model's attention in one pass: each call's map, reduced as it arrives, and where the answer is read out.

A map is (rows, heads, query, key). Gradients are met while they flow back: a method says what is to be made of one map
and its gradient, and nothing else of them is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Call, Gradients, derivative
from whence.engine.captures import Site, layer_of, layers, projected_from
from whence.engine.expand.attention import fused_back
from whence.engine.liveness import born_in_a_pass
from whence.engine.trackers.modality import Modality, both, depth_of, modality_of
from whence.engine.trackers.rows import row_axis_of
from whence.engine.trackers.tokens import LEARNED, NONE, Tokens, numbers_of
from whence.errors import InputError
from whence.methods.attention.windows import places, spread, spread_pairs
from whence.subject import Measured, Subject
from whence.subject.masks import real_units
from whence.subject.passes import Pass
from whence.util.checks import not_allowed

Reduce = Callable[["Map", Tensor, Tensor | None], Tensor]  # (rows, heads, q, k) and its gradient → (rows, …)
_FUSED = "scaled_dot_product_attention"


@dataclass(eq=False)
class Map:
    """One attention call, and what was made of it for each target, or once for all."""

    site: Site
    layer: str  # the innermost member of a module list around it, or its own module
    run: int  # which run of that layer it belongs to, from 0
    query: Modality
    key: Modality
    depth: int = 0  # how many attentions came before it, one after the other
    query_at: Tensor | None = None  # (rows, query), the token that each position stands for, where that is known
    key_at: Tensor | None = None
    pairs: tuple[Tensor, Tensor] | None = (
        None  # query's and key's token of every entry, where those of a row's lines differ
    )
    whole: bool = True  # whether its queries are all that there are at this depth
    turned: bool = False  # its softmax goes over the first of the two axes
    found: list[Tensor] = field(default_factory=list)  # each (rows, …)
    entered: list[Tensor] = field(default_factory=list)  # Σ h·∇h of what queries are projected from, by target
    read: list[Tensor] = field(default_factory=list)  # ‖gradient‖ of each query's row, (rows, query), by target

    @property
    def crosses(self) -> bool:
        return self.query != self.key

    def stacked(self) -> Tensor:
        """(rows, targets or 1, …), in at least single precision."""
        found = torch.stack(self.found, 1)
        return found.to(torch.promote_types(found.dtype, torch.float32))


class _Unsure(Exception):
    """Shapes do not say where the rows are: they have to be followed."""


class Reading:
    """What one pass showed: maps in the order of their calls, hidden states and where the score reads them."""

    def __init__(self, subject: Subject, reduce: Reduce, *, gradient: bool, hidden: bool = False) -> None:
        self.subject, self.reduce, self.gradient, self.hidden = subject, reduce, gradient, hidden
        self.members = layers(subject.root)
        self.extra: set[str] = set()  # modules around attention that no list has
        self._windows: dict[Site, Any] | None = None
        self.projections = False  # whether to look for the states that queries are projected from
        self._follows_rows = False  # which costs a little, and is done where shapes leave it open
        self.begin()

    def begin(self) -> None:
        self.maps: list[Map] = []
        self.tokens = Tokens(self.subject.rows)
        self.dropped: Tensor | None = None  # (rows,), scores of positions that are no longer there further down
        self.per_row: dict[str, list[Any]] = {}  # receipt entries of the pass
        self.entered: dict[tuple[str, int], list[Tensor]] = {}  # Σ h·∇h of what entered a layer's run, by target
        self.left: dict[str, tuple[Modality, list[Tensor]]] = {}  # ‖∇h‖ of what a layer gave last, by target
        self._runs: dict[str, int] = {}
        self._by_site: dict[Site, Map] = {}

    def run(self, readout: Any = "auto") -> Reading:
        """Run the model, and back if gradients or an automatic read-out need it."""
        auto = readout == "auto" and not self.gradient
        self.gradient |= auto and not self.members  # without layers, only the maps' own gradients tell
        for _ in range(4):
            try:
                self._pass(auto and not self.gradient)
            except _Unsure:
                self._follows_rows = True
                continue
            missing = {m.layer for m in self.maps} - self.members - self.extra
            unread = auto and not self.gradient and not all(_fits(self, m) for m in _last_maps(self.maps))
            if not (self.hidden and missing) and not unread:
                break
            self.extra |= missing
            self.projections |= self.hidden and bool(missing)
            self.gradient |= unread
        self.maps = _named_before(_as_heads(_as_one(self.maps, self.tokens)))
        return self

    def _pass(self, auto: bool) -> None:
        rules: dict[str, Any] = {_FUSED: self._fused} if self.gradient else {}
        done = self.subject.run(
            {**rules, "*": derivative},
            expand=frozenset(
                {"multi_head_attention_forward"} | (set() if self.gradient and not self.projections else {_FUSED})
            ),
            tell=self,
            gradient=self.gradient or auto,
            detach_at=self._bears_attention if auto else None,
            rows=self._follows_rows,
        )
        if self.gradient:
            done.pull()
            self.maps = [m for m in self.maps if m.found]  # the others do nothing for the score
        elif auto:
            self._pull_cuts(done)

    def _bears_attention(self, path: str) -> bool:
        """Whether this module is the layer of the attention that was met last; other modules give no states."""
        return bool(self.maps) and self.maps[-1].layer == path and path in self.members

    # ---- what the pass tells ----

    def fused(self, site: Site, streams: Any, depth: int, numbers: tuple[Tensor, ...]) -> None:
        self._by_site[site] = self._met(site, streams, depth, numbers)

    def value(self, site: Site, tensor: Tensor) -> None:
        if site.kind == "attention" or self._is_layer(site.path):
            self._be_sure(tensor)
        if site.kind == "attention" and _of_features(tensor):
            return
        if site.kind == "attention":
            found = self._met(site, modality_of(tensor), depth_of(tensor), numbers_of(tensor))
            self._look_back(found, tensor)
            kept, place = tensor.detach(), row_axis_of(tensor)
            if self.gradient:
                tensor.register_hook(lambda g: self._reduce(found, kept, g, place))
            else:
                self._reduce(found, kept, None, place)
        elif site.kind == "input" and self._is_layer(site.path):
            self._runs[site.path] = self._runs.get(site.path, -1) + 1
            if self.hidden and born_in_a_pass(tensor):
                run, kept, per_position = (site.path, self._runs[site.path]), tensor.detach(), self._summed(tensor)
                tensor.register_hook(lambda g: self.entered.setdefault(run, []).append(per_position(g * kept)))
        elif site.kind == "output" and site.path in self.members and self.gradient and born_in_a_pass(tensor):
            stream = self._state_of(tensor, modality_of(tensor))
            norms: list[Tensor] = []
            self.left[site.path] = (stream, norms)
            turn = _rows_first(tensor)
            tensor.register_hook(lambda g: self._norm(norms, lambda: turn(_norms(g))))

    def _look_back(self, found: Map, tensor: Tensor) -> None:
        """Attention that runs in no member of a list: its hidden state is what its queries are projected from."""
        state = projected_from(tensor)
        if state is None or found.layer in self.members or not born_in_a_pass(state) or state.dim() != 3:
            return
        kept, per_position = state.detach(), self._summed(state)
        state.register_hook(lambda g: found.entered.append(per_position(g * kept)))

    def _summed(self, state: Tensor) -> Callable[[Tensor], Tensor]:
        """How (rows, n) comes of what is laid out like a hidden state; positions may come last, or in parts."""
        rows, numbers = self.subject.rows, numbers_of(state)
        turn = _rows_first(state, rows)
        if len(numbers) != 1 or state.dim() != 3:
            return lambda t: turn(t.sum(-1))
        axis = -1 if bool((numbers[0] == numbers[0][..., :1]).all()) else 1
        at = numbers[0].select(axis, 0)
        every = None if rows in state.shape[:2] else self.tokens.every((at,))
        if every is None:
            return lambda t: turn(t.sum(axis)) if axis < 0 else t.sum(axis)
        ours = at > 0
        index = at[ours] - every[0, 0]
        return lambda t: t.new_zeros(every.numel()).index_add(0, index, t.sum(axis)[ours]).view(every.shape)

    def _norm(self, norms: list[Tensor], value: Callable[[], Tensor]) -> None:
        norms.append(value())

    def _be_sure(self, tensor: Tensor) -> None:
        """The rows are the first axis, unless another one has as many entries, or that one has not."""
        rows = self.subject.rows
        open_ = len(tensor) != rows or rows in tensor.shape[1 : tensor.dim() - 1]
        if rows > 1 and tensor.dim() > 2 and open_ and not self._follows_rows:
            raise _Unsure

    def _is_layer(self, path: str) -> bool:
        return path in self.members or path in self.extra

    def _met(self, site: Site, streams: Any, depth: int, numbers: tuple[Tensor, ...]) -> Map:
        layer = layer_of(self.members, site.path) or site.path
        query, key = both(streams)
        found = Map(site, layer, self._runs.get(layer, 0), query, key, depth)
        if len(numbers) == 2 and numbers[0].dim() > 2:
            found.query_at, found.key_at = (self.tokens.by_row(n) for n in (numbers[0][..., 0], numbers[1][..., 0, :]))
            if found.query_at is None or found.key_at is None:
                found.pairs = (numbers[0], numbers[1])
            found.key = self._stream(found.key_at) or key
            alone = found.query_at is not None and found.query_at.shape[1] == 1  # one query is about all of its keys
            found.query = (not alone and self._stream(found.query_at)) or (found.key if alone else query)
        self.maps.append(found)
        return found

    def _state_of(self, tensor: Tensor, tagged: Any) -> Modality:
        """The stream of a hidden state (rows, n, hidden)."""
        numbers = numbers_of(tensor)
        return (self._stream(numbers[0][..., 0]) if len(numbers) == 1 else frozenset()) or both(tagged)[0]

    def _stream(self, at: Tensor | None) -> Modality:
        """The inputs that positions belong to."""
        return frozenset() if at is None else self.tokens.names(at)

    def _fused(self, call: Call, m: Any) -> Gradients:
        """The rule of a fused attention: its own derivative, and a look at the map on the way."""
        return fused_back(call, m, lambda p, g: self._reduce(self._by_site[call.site], p, g))

    def _reduce(self, found: Map, weights: Tensor, gradient: Tensor | None, place: Any = None) -> None:
        a, g = self._turned(found, weights, gradient, place)
        found.found.append(self.reduce(found, a, g))
        if g is not None:
            found.read.append(g.square().sum((1, 3)).sqrt())

    def _turned(self, found: Map, weights: Tensor, signal: Tensor | None, place: Any) -> tuple[Tensor, Tensor | None]:
        """A map and its gradient as (rows, heads, query, key)."""
        a = self._whole(found, weights, place)
        g = None if signal is None else self._whole(found, signal, place)
        if not found.turned and _goes_down(a):
            found.turned, found.query, found.key = True, found.key, found.query
            found.query_at, found.key_at = found.key_at, found.query_at
        return (a.mT, None if g is None else g.mT) if found.turned else (a, g)

    def _whole(self, found: Map, a: Tensor, place: Any) -> Tensor:
        """(rows, heads, query, key), also of windows."""
        rows = self.subject.rows
        if place is not None and place.axis == 1 and a.dim() == 4 and a.shape[1] == rows:
            a = a.transpose(0, 1)  # heads first
        elif place is not None and place.axis == 0 and a.dim() == 3 and place.inner == 1 < rows < len(a):
            a = a.unflatten(0, (-1, rows)).transpose(0, 1)
        if found.pairs is not None and found.pairs[0].shape == a.shape and self.tokens.every(found.pairs) is not None:
            found.query_at = found.key_at = self.tokens.every(found.pairs)
            found.whole = False
            return spread_pairs(a, *found.pairs, self.tokens)
        if a.dim() != 4 or len(a) == rows:
            return by_head(a, rows)
        if self._windows is None:
            self._windows = places(replace(self.subject, measured=Measured()))
        return spread(a, self._windows.get(found.site), rows)

    def _pull_cuts(self, done: Pass) -> None:
        """How the score reads what the last layers gave: nothing before them was kept."""
        cuts = {m.layer: done.flow.detached[m.layer] for m in self.maps if m.layer in done.flow.detached}
        columns = done.columns([leaf for leaf, _ in cuts.values()]) if cuts else [[]]
        for place, (layer, (leaf, streams)) in enumerate(cuts.items()):
            if columns[0][place] is not None:
                turn = _rows_first(leaf, self.subject.rows)
                norms = [turn(_norms(column[place])) for column in columns]  # type: ignore[arg-type]
                if len(norms[0]) != self.subject.rows:
                    continue  # several states per row, as MobileViT has them: the maps' own gradients tell
                self.left[layer] = (self._state_of(leaf, streams), norms)
        for stream, _ in self.left.values():  # what came after the last state that is read does nothing for the score
            read = [n for n, m in enumerate(self.maps) if m.layer in self.left and m.query == stream]
            self.maps = [m for n, m in enumerate(self.maps) if m.query != stream or not read or n <= read[-1]]


def by_head(a: Tensor, rows: int) -> Tensor:
    """A map as (rows, heads, query, key)."""
    if a.dim() == 2 and len(a) == rows:
        return a[:, None, None]  # one query, as in a recurrent decoder
    if a.dim() == 3 and len(a) == rows:
        return a.unsqueeze(1)
    if a.dim() == 3 and len(a) % rows == 0:
        return a.unflatten(0, (rows, -1))
    if a.dim() == 4:
        return a
    raise InputError(
        f"This model's attention maps have the shape {tuple(a.shape)} for {rows} rows, not (rows, heads, query, key).\n"
        "  Choose a method that reads no attention."
    )


def _of_features(tensor: Tensor) -> bool:
    """Whether a softmax went over things of one token (the taps of a filter, say): that is no attention to tokens."""
    numbers = numbers_of(tensor)
    if len(numbers) != 1 or tensor.dim() < 2:
        return False
    n = numbers[0]
    return bool((n == n[..., :1, :1]).all()) and n.shape[-2:].numel() > 1


def _goes_down(a: Tensor) -> bool:
    """Whether a softmax went over the queries' axis, so that columns sum to 1 and rows do not."""
    near = 0.05 if torch.finfo(a.dtype).bits < 32 else 1e-3
    across, down = a.sum(-1), a.sum(-2)
    if bool((((across - 1).abs() < near) | (across == 0)).all()):
        return False
    if bool((((down - 1).abs() < near) | (down == 0)).all()):
        return True
    if bool((across < 1 + near).all()):
        return False  # some of it goes nowhere
    if bool(across.isnan().any()):
        raise InputError(
            "This model's attention is NaN in some rows: it has queries that may look at nothing.\n"
            '  Load it with attn_implementation="sdpa", or pad on the other side.'
        )
    raise InputError(
        f"This model has a softmax of the shape {tuple(a.shape)} that goes over neither of its last two axes.\n"
        "  Choose a method that reads no attention."
    )


def _as_one(maps: list[Map], tokens: Tokens) -> list[Map]:
    """Calls about some of a depth's queries and keys each (blocks, bands) as one map over all of them."""
    groups: dict[Any, list[Map]] = {}
    for m in maps:
        groups.setdefault((m.query, m.key, m.depth), []).append(m)
    for group in groups.values():
        if len(group) == 1 or all(m.whole and _same_tokens(m.query_at, group[0].query_at) for m in group):
            continue
        parts = [m.query_at for m in group if m.query_at is not None]
        every = tokens.every(parts) if len(parts) == len(group) else None
        reduced = all(m.found[0].dim() == 1 for m in group)  # nothing is asked of maps
        if every is None or not (reduced or all(m.found[0].dim() == 3 for m in group)):
            raise _in_pieces(group[0])
        maps = [m for m in maps if m not in group[1:]]
        if reduced:
            group[0].query_at = group[0].key_at = every
            continue
        for m in group:
            m.found = [_over_all(t, m, every) for t in m.found]
            m.read = [(r[:, None] @ _places(m.query_at, every).to(r))[:, 0] for r in m.read]
        first = group[0]
        first.found = [torch.stack(same).sum(0) for same in zip(*(m.found for m in group), strict=True)]
        first.read = [torch.stack(same).square().sum(0).sqrt() for same in zip(*(m.read for m in group), strict=True)]
        first.query_at = first.key_at = every
    return maps


def _same_tokens(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and a.shape == b.shape and torch.equal(a, b))


def _places(at: Tensor | None, every: Tensor) -> Tensor:
    """Which of all tokens each position is, (rows, n, all)."""
    assert at is not None
    return at[:, :, None] == every[:, None]


def _over_all(found: Tensor, m: Map, every: Tensor) -> Tensor:
    """(rows, query, key) for all tokens, 0 elsewhere."""
    return _places(m.query_at, every).to(found).mT @ found @ _places(m.key_at, every).to(found)


def _in_pieces(m: Map) -> InputError:
    return InputError(
        f"The model computes its attention (in {m.layer or 'the model itself'}) in pieces, and it cannot be told how "
        "they make one map.\n  Choose a method that reads no attention, or a configuration of the model that attends "
        "to all tokens at once."
    )


def _as_heads(maps: list[Map]) -> list[Map]:
    """Calls that act on the same tokens at the same depth are heads of one attention."""
    first: dict[Any, Map] = {}
    groups: dict[Any, list[Map]] = {}
    for m in maps:
        key = (m.query, m.key, m.depth)
        first.setdefault(key, m)
        groups.setdefault(key, []).append(m)
    for key, group in groups.items():
        alike = len({tuple(t.shape for t in m.found) for m in group}) == 1
        if len(group) > 1 and alike:
            first[key].found = [torch.stack(same).mean(0) for same in zip(*(m.found for m in group), strict=True)]
            maps = [m for m in maps if m not in group[1:]]
    return maps


def _rows_first(tensor: Tensor, rows: int | None = None) -> Callable[[Tensor], Tensor]:
    """How (rows, n) comes of what is laid out like the first two axes of this tensor."""
    place = row_axis_of(tensor)
    second = place is not None and place.axis == 1
    second |= rows is not None and tensor.shape[0] != rows and tensor.dim() > 1 and tensor.shape[1] == rows
    return (lambda t: t.transpose(0, 1)) if second else (lambda t: t)


def _norms(g: Tensor) -> Tensor:
    """The size of each position's gradient, (rows, n)."""
    return g.flatten(2).norm(dim=2) if g.dim() > 2 else g.abs()


# ---- where the answer is read ----


def readout(reading: Reading, where: Any) -> dict[Modality, Tensor]:
    """How much of each position of a stream the score reads: (rows, targets or 1, n), summing to 1."""
    found = {}
    for last in _last_maps(reading.maps):
        shares = _read_by_score(reading, last, where == "auto")
        if shares is None:
            continue
        if where != "auto":
            shares = _chosen(where, real_positions(reading, last.query, last.query_at, shares.shape[-1]))[:, None]
        found[last.query] = shares
    return found


def _last_maps(maps: list[Map]) -> list[Map]:
    """Each stream's last map, if what it leads to goes to the score and not to another stream's attention.

    A stream that goes on as a part of a joint one (an image's tokens among those of a text) is read there, and so are
    learned tokens that stand beside others and look at an input by themselves.
    """
    last = {m.query: n for n, m in enumerate(maps)}
    return [
        maps[n]
        for stream, n in last.items()
        if not any((m.crosses and m.key == stream) or _goes_on(stream, m.key) for m in maps[n:])
        and not (is_learned(stream) and any(stream < other for other in last))
    ]


def _goes_on(stream: Modality, later: Modality) -> bool:
    """Whether a stream, or its learned tokens, are a part of a later one."""
    return stream < later or (stream != later and any(name.startswith(LEARNED) for name in stream & later))


def is_learned(stream: Modality) -> bool:
    """Whether a stream is of learned tokens alone."""
    return bool(stream) and all(name.startswith(LEARNED) for name in stream)


def _named_before(maps: list[Map]) -> list[Map]:
    """Learned tokens that stood beside others before they looked at an input: the same ones as afterwards."""
    for m in maps:
        if m.query_at is None or m.crosses or not bool((m.query_at == NONE).any()):
            continue
        for other in maps:
            at = other.query_at
            if at is None or at.shape != m.query_at.shape or not m.query < other.query:
                continue
            if is_learned(other.query - m.query) and bool(((m.query_at == NONE) | (m.query_at == at)).all()):
                m.query = m.key = other.query
                m.query_at = m.key_at = at
                break
    return maps


def _fits(reading: Reading, last: Map) -> bool:
    """Whether the state that this map's layer gave is one of its queries, so that its gradient tells where it is read.

    It is told by the state's stream and length, not by where modules are kept.
    """
    stream, norms = reading.left.get(last.layer, (None, []))
    queries = last.found[0].shape[-2] if last.found and last.found[0].dim() > 2 else None
    return queries == 1 or (bool(norms) and stream == last.query and queries in (None, norms[0].shape[-1]))


def _read_by_score(reading: Reading, last: Map, auto: bool) -> Tensor | None:
    """By the gradient of what the stream's last layer gave, or of the rows of its last map."""
    if last.found[0].dim() > 2 and last.found[0].shape[-2] == 1:
        return _shares(torch.ones_like(last.found[0][:, :1, :1]))
    if _fits(reading, last):
        return _shares(torch.stack(reading.left[last.layer][1], 1))
    if last.read:
        return _shares(torch.stack(last.read, 1))
    if auto or last.found[0].dim() < 3:
        return None
    return torch.ones_like(last.found[0][:, None, :, 0])  # for an explicit position: how many there are


def _shares(size: Tensor) -> Tensor:
    size = size.to(torch.promote_types(size.dtype, torch.float32))
    total = size.sum(-1, keepdim=True)
    return torch.where(total > 0, size / total.masked_fill(total == 0, 1), torch.full_like(size, 1 / size.shape[-1]))


def _chosen(where: Any, real: Tensor) -> Tensor:
    """One row, or all of them, (rows, n)."""
    positions = torch.arange(real.shape[1], device=real.device)
    if where == "mean":
        return real / real.sum(1, keepdim=True)
    if where == "first":
        index = torch.where(real > 0, positions, real.shape[1]).argmin(1)
    elif where == "last":
        index = (real * positions).argmax(1)
    elif isinstance(where, int) and not isinstance(where, bool) and -real.shape[1] <= where < real.shape[1]:
        index = torch.full((len(real),), where % real.shape[1], device=real.device)
    else:
        raise not_allowed("readout", where, f'"auto", "first", "last", "mean", or a position below {real.shape[1]}')
    return torch.nn.functional.one_hot(index, real.shape[1]).to(real)


def real_positions(reading: Reading, stream: Modality, at: Tensor | None, n: int) -> Tensor:
    """1 for positions of a stream that are no padding, (rows, n)."""
    subject = reading.subject
    like = next(iter(subject.measured.values.values()))
    dtype = torch.promote_types(like.dtype, torch.float32)
    found = torch.ones(subject.rows, n, dtype=dtype, device=like.device)
    for name in sorted(stream):
        source = None if at is None else reading.tokens.one(name, at)
        if source is not None and at is not None:
            mask = real_units(subject, name, (subject.rows, source.size))
            if mask is not None:
                index = (at - source.first).clamp(0, mask.numel() - 1)
                found = torch.where(source.holds(at), mask.flatten().to(like.device, dtype)[index], found)
        elif (mask := real_units(subject, name, (subject.rows, n))) is not None:
            return mask.to(like.device, dtype)
    return found
