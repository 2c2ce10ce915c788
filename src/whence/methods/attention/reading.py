"""Reading a model's attention in one pass: each call's map, reduced as soon as its gradient is there.

A method says what is to be made of one map (rows, heads, query, key) and its gradient; nothing else of them is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from whence.engine.call import Call, Gradients, derivative
from whence.engine.captures import Site, layer_of, layers, projected_from
from whence.engine.expand.attention import fused_back
from whence.engine.liveness import born_in_a_pass
from whence.engine.trackers.modality import Modality, both, depth_of, modality_of
from whence.engine.trackers.rows import row_axis_of
from whence.engine.trackers.token_numbers import numbers_of
from whence.engine.trackers.tokens import Tokens
from whence.methods.attention.attention_map import AttentionMap, by_head, is_over_features, is_over_queries, merged
from whence.methods.attention.readout import is_output_of, last_maps
from whence.methods.attention.windows import spread, spread_pairs, window_tokens
from whence.subject import Measured, Subject
from whence.subject.passes import Pass

READS_ATTENTION: dict[str, Any] = {"needs": "attention", "at": False}  # what the registry knows of such methods
Receive = Callable[[AttentionMap, Tensor, Tensor | None], None]  # a map (rows, heads, query, key) and its gradient
Reduce = Callable[[AttentionMap, Tensor, Tensor | None], Tensor]  # the same → (rows, …)
_FUSED = "scaled_dot_product_attention"
_ROOM = 1 << 28  # bytes of maps that are kept from one target to the next


def read(subject: Subject, reduce: Reduce, *, gradient: bool, hidden: bool = False, readout: Any = "auto") -> Reading:
    """Run the model, and back if gradients or an automatic read-out need it.

    `hidden` asks for the products of hidden states and their gradients, too.
    """

    def receive(m: AttentionMap, a: Tensor, g: Tensor | None) -> None:
        m.reduced.append(reduce(m, a, g))
        if g is not None:
            m.row_norms.append(g.norm(dim=3).norm(dim=1))

    auto = readout == "auto" and not gradient
    reading = Reading(subject, receive, gradient=gradient, hidden=hidden)
    reading.gradient |= auto and not reading.members  # without layers, only the maps' own gradients tell
    for _ in range(4):
        try:
            _run(reading, auto and not reading.gradient)
        except _RowsUnknown:
            reading.follows_rows = True
            continue
        missing = {m.layer for m in reading.maps} - reading.members - reading.extra
        unread = auto and not reading.gradient and not all(is_output_of(reading, m) for m in last_maps(reading.maps))
        if not (hidden and missing) and not unread:
            break
        reading.extra |= missing
        reading.projections |= hidden and bool(missing)
        reading.gradient |= unread
    reading.maps = merged(reading.maps, reading.tokens)
    return reading


def _run(reading: Reading, auto: bool) -> None:
    """One pass; `auto`: only what comes after the last layers is differentiated, to see where the score reads them."""

    maps: dict[Site, dict[str, Any]] = {}  # of fused calls, for further targets

    def _fused(call: Call, m: Any) -> Gradients:
        """The rule of a fused attention: its own derivative, and a look at the map on the way."""
        size = m.shape[:-1].numel() * m.shape[-2] * m.element_size()
        if reading.subject.record.by_layer and call.site not in maps:
            maps.clear()  # of a layer that all targets have come through
        keeps = reading.subject.targets > 1 and (len(maps) + 1) * size < _ROOM
        memo = maps.setdefault(call.site, {}) if keeps else maps.get(call.site)
        return fused_back(call, m, lambda weights, g: reading.came_back(call.site, weights, g), memo)

    rules: dict[str, Any] = {_FUSED: _fused} if reading.gradient else {}
    done = reading.subject.run(
        {**rules, "*": derivative},
        expand=frozenset(
            {"multi_head_attention_forward"} | (set() if reading.gradient and not reading.projections else {_FUSED})
        ),
        tell=reading,
        gradient=reading.gradient or auto,
        detach_at=reading.bears_attention if auto else None,
        rows=reading.follows_rows,
    )
    if reading.gradient:
        done.pull()
        reading.maps = [m for m in reading.maps if m.reduced]  # the others do nothing for the score
    elif auto:
        _read_outputs(reading, done)


def _read_outputs(reading: Reading, done: Pass) -> None:
    """How the score reads what the last layers gave: nothing before them was kept."""
    rows = reading.subject.rows
    cuts = {m.layer: done.flow.detached[m.layer] for m in reading.maps if m.layer in done.flow.detached}
    columns = done.columns([leaf for leaf, _ in cuts.values()]) if cuts else [[]]
    for i, (layer, (leaf, modalities)) in enumerate(cuts.items()):
        if columns[0][i] is not None:
            order = _rows_first(leaf, rows)
            norms = [order(_norms(column[i])) for column in columns]  # type: ignore[arg-type]
            if len(norms[0]) == rows:  # several states per row, as MobileViT has them: the maps' own gradients tell
                reading.outputs[layer] = (reading.modality_of_state(leaf, modalities), norms)
    for modality, _ in reading.outputs.values():  # what came after the last state that is read does nothing
        read = [n for n, m in enumerate(reading.maps) if m.layer in reading.outputs and m.query == modality]
        reading.maps = [m for n, m in enumerate(reading.maps) if m.query != modality or not read or n <= read[-1]]


class _RowsUnknown(Exception):
    """Shapes do not say where the rows are: they have to be followed."""


class Reading:
    """Listens to a pass: maps in the order of their calls, hidden states, and where the score reads them."""

    by_layer = True  # a layer that is run again is known by its sites

    def __init__(
        self, subject: Subject, receive: Receive, *, gradient: bool, hidden: bool = False, follows_rows: bool = False,
        differentiates: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self.subject, self.gradient, self.hidden = subject, gradient, hidden
        self.receive = receive  # is handed each map with what came back to it
        self.differentiates = differentiates  # whether that is the gradient, which tells where the score reads
        self.members = layers(subject.root)
        self.extra: set[str] = set()  # modules around attention that no list has
        self.projections = False  # whether to look for the states that queries are projected from
        self.follows_rows = follows_rows  # which costs a little, and is done where shapes leave it open
        self._windows: dict[Site, Any] | None = None
        self.begin()

    def begin(self) -> None:
        """A pass begins."""
        self.maps: list[AttentionMap] = []
        self.tokens = Tokens(self.subject.rows)
        self.activations: dict[tuple[str, int], list[Tensor]] = {}  # Σ h·∇h of what entered a layer's run, by target
        self.outputs: dict[str, tuple[Modality, list[Tensor]]] = {}  # ‖∇h‖ of what a layer gave last, by target
        self.per_row: dict[str, Any] = {}  # receipt entries of the pass
        self._runs: dict[str, int] = {}
        self._by_site: dict[Site, AttentionMap] = {}
        self._states: dict[Site, list[Tensor]] = {}  # what is noted of layers' outputs, by call

    def bears_attention(self, path: str) -> bool:
        """Whether this module is the layer of the attention that was met last; other modules give no states."""
        return bool(self.maps) and self.maps[-1].layer == path and path in self.members

    # ---- what the pass tells ----

    def fused(self, site: Site, modalities: Any, depth: int, numbers: tuple[Tensor, ...]) -> None:
        """A fused attention, whose map comes on the way back."""
        self._met(site, modalities, depth, numbers)

    def value(self, site: Site, tensor: Tensor) -> None:
        """A map, or the hidden state that enters or leaves a layer."""
        if site.kind == "attention":
            self._check_rows(tensor)
            if not is_over_features(tensor):
                self._watch_map(site, tensor)
        elif self._is_layer(site.path):
            self._check_rows(tensor)
            if site.kind == "input":
                self._watch_input(site, tensor)
            elif site.kind == "output" and site.path in self.members and self.gradient and born_in_a_pass(tensor):
                self._watch_output(site, tensor)

    def _watch_map(self, site: Site, tensor: Tensor) -> None:
        m = self._met(site, modality_of(tensor), depth_of(tensor), numbers_of(tensor))
        self._watch_projected(m, tensor)
        weights, row_axis = tensor.detach(), row_axis_of(tensor)
        if self.gradient:
            tensor.register_hook(lambda g: self._receive(m, weights, g, row_axis))
        else:
            self._receive(m, weights, None, row_axis)

    def _watch_input(self, site: Site, tensor: Tensor) -> None:
        self._runs[site.path] = site.call - 1
        if self.hidden and born_in_a_pass(tensor):
            run, state, per_position = (site.path, self._runs[site.path]), tensor.detach(), self._summed(tensor)
            tensor.register_hook(lambda g: self.activations.setdefault(run, []).append(per_position(g * state)))

    def _watch_output(self, site: Site, tensor: Tensor) -> None:
        known = self._states.get(site)  # the layer is run again
        norms: list[Tensor] = [] if known is None else known
        if known is None:
            self.outputs[site.path] = (self.modality_of_state(tensor, modality_of(tensor)), norms)
            self._states[site] = norms
        order = _rows_first(tensor)
        tensor.register_hook(lambda g: norms.append(order(_norms(g))) if self.differentiates() else None)

    def _watch_projected(self, m: AttentionMap, tensor: Tensor) -> None:
        """Attention that runs in no member of a list: its hidden state is what its queries are projected from."""
        state = projected_from(tensor)
        if state is None or m.layer in self.members or not born_in_a_pass(state) or state.dim() != 3:
            return
        values, per_position = state.detach(), self._summed(state)
        state.register_hook(lambda g: m.activations.append(per_position(g * values)))

    def _summed(self, state: Tensor) -> Callable[[Tensor], Tensor]:
        """How (rows, n) comes of what is laid out like a hidden state; positions may come last, or in parts."""
        rows, numbers = self.subject.rows, numbers_of(state)
        order = _rows_first(state, rows)
        if len(numbers) != 1 or state.dim() != 3:
            return lambda t: order(t.sum(-1))
        axis = -1 if bool((numbers[0] == numbers[0][..., :1]).all()) else 1
        tokens = numbers[0].select(axis, 0)
        every = None if rows in state.shape[:2] else self.tokens.sources.every((tokens,))
        if every is None:
            return lambda t: order(t.sum(axis)) if axis < 0 else t.sum(axis)
        ours = tokens > 0
        index = tokens[ours] - every[0, 0]
        return lambda t: t.new_zeros(every.numel()).index_add(0, index, t.sum(axis)[ours]).view(every.shape)

    def _check_rows(self, tensor: Tensor) -> None:
        """The rows are the first axis, unless another one has as many entries, or that one has not."""
        rows = self.subject.rows
        unclear = len(tensor) != rows or rows in tensor.shape[1 : tensor.dim() - 1]
        if rows > 1 and tensor.dim() > 2 and unclear and not self.follows_rows:
            raise _RowsUnknown

    def _is_layer(self, path: str) -> bool:
        return path in self.members or path in self.extra

    def _met(self, site: Site, modalities: Any, depth: int, numbers: tuple[Tensor, ...]) -> AttentionMap:
        known = self._by_site.get(site)
        if known is not None:  # the layer is run again
            return known
        layer = layer_of(self.members, site.path) or site.path
        query, key = both(modalities)
        m = AttentionMap(site, layer, self._runs.get(layer, 0), query, key, self.tokens, depth)
        if len(numbers) == 2 and numbers[0].dim() > 2:
            m.query_tokens, m.key_tokens = (
                self.tokens.sources.by_row(n) for n in (numbers[0][..., 0], numbers[1][..., 0, :])
            )
            if m.query_tokens is None or m.key_tokens is None:
                m.pairs = (numbers[0], numbers[1])
            m.key = self._names(m.key_tokens) or key
            alone = m.query_tokens is not None and m.query_tokens.shape[1] == 1  # one query is about all of its keys
            m.query = (not alone and self._names(m.query_tokens)) or (m.key if alone else query)
        self.maps.append(m)
        self._by_site[site] = m
        return m

    def modality_of_state(self, tensor: Tensor, tagged: Any) -> Modality:
        """The inputs that the positions of a hidden state (rows, n, hidden) belong to."""
        numbers = numbers_of(tensor)
        return (self._names(numbers[0][..., 0]) if len(numbers) == 1 else frozenset()) or both(tagged)[0]

    def _names(self, tokens: Tensor | None) -> Modality:
        return frozenset() if tokens is None else self.tokens.sources.names(tokens)

    # ---- what comes back ----

    def came_back(self, site: Site, weights: Tensor, g: Tensor) -> None:
        """The map of a fused attention, and its gradient."""
        self._receive(self._by_site[site], weights, g)

    def _receive(self, m: AttentionMap, weights: Tensor, signal: Tensor | None, row_axis: Any = None) -> None:
        """Hand on a map and what came back to it as (rows, heads, query, key)."""
        a = self._by_head(m, weights, row_axis)
        g = None if signal is None else self._by_head(m, signal, row_axis)
        if not (m.transposed or m.reduced) and is_over_queries(a):  # the same for every target
            m.transpose()
        if m.transposed:
            a, g = a.mT, None if g is None else g.mT
        self.receive(m, a, g)

    def _by_head(self, m: AttentionMap, a: Tensor, row_axis: Any) -> Tensor:
        """(rows, heads, query, key), also of windows."""
        rows = self.subject.rows
        if row_axis is not None and row_axis.axis == 1 and a.dim() == 4 and a.shape[1] == rows:
            a = a.transpose(0, 1)  # heads first
        elif row_axis is not None and row_axis.axis == 0 and a.dim() == 3 and row_axis.inner == 1 < rows < len(a):
            a = a.unflatten(0, (-1, rows)).transpose(0, 1)
        if m.pairs is not None and m.pairs[0].shape == a.shape and self.tokens.sources.every(m.pairs) is not None:
            m.query_tokens = m.key_tokens = self.tokens.sources.every(m.pairs)
            m.complete = False
            return spread_pairs(a, *m.pairs, self.tokens)
        if a.dim() != 4 or len(a) == rows:
            return by_head(a, rows)
        if self._windows is None:
            self._windows = window_tokens(replace(self.subject, measured=Measured()))
        return spread(a, self._windows.get(m.site), rows)


def _rows_first(tensor: Tensor, rows: int | None = None) -> Callable[[Tensor], Tensor]:
    """How (rows, n) comes of what is laid out like the first two axes of this tensor."""
    row_axis = row_axis_of(tensor)
    second = row_axis is not None and row_axis.axis == 1
    second |= rows is not None and tensor.shape[0] != rows and tensor.dim() > 1 and tensor.shape[1] == rows
    return (lambda t: t.transpose(0, 1)) if second else (lambda t: t)


def _norms(g: Tensor) -> Tensor:
    """The size of each position's gradient, (rows, n)."""
    return g.flatten(2).norm(dim=2) if g.dim() > 2 else g.abs()
