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

from whence.engine.attention import fused_back
from whence.engine.call import Call, Gradients, derivative
from whence.engine.capture import Site, layer_of, layers
from whence.engine.streams import Stream, both, stream_of
from whence.errors import InputError, ParameterError
from whence.passes import Pass
from whence.subject import Facts, Subject
from whence.windows import places, spread

Reduce = Callable[["Map", Tensor, Tensor | None], Tensor]  # (rows, heads, q, k) and its gradient → (rows, …)
_FUSED = "scaled_dot_product_attention"


@dataclass(eq=False)
class Map:
    """One attention call, and what was made of it for each target, or once for all."""

    site: Site
    layer: str  # the innermost member of a module list around it, or its own module
    run: int  # which run of that layer it belongs to, from 0
    query: Stream
    key: Stream
    found: list[Tensor] = field(default_factory=list)  # each (rows, …)

    @property
    def crosses(self) -> bool:
        return self.query != self.key

    def stacked(self) -> Tensor:
        """(rows, targets or 1, …)."""
        return torch.stack(self.found, 1)


class Reading:
    """What one pass showed: maps in the order of their calls, hidden states and where the score reads them."""

    def __init__(self, subject: Subject, reduce: Reduce, *, gradient: bool, hidden: bool = False) -> None:
        self.subject, self.reduce, self.gradient, self.hidden = subject, reduce, gradient, hidden
        self.members = layers(subject.root)
        self._windows: dict[Site, Any] | None = None
        self.begin()

    def begin(self) -> None:
        self.maps: list[Map] = []
        self.entered: dict[tuple[str, int], list[Tensor]] = {}  # Σ h·∇h of what entered a layer's run, by target
        self.left: dict[str, tuple[Stream, list[Tensor]]] = {}  # ‖∇h‖ of what a layer gave last, by target
        self.rows_of_last: list[Tensor] = []  # ‖gradient‖ of each query's row of the last map, by target
        self._runs: dict[str, int] = {}
        self._by_site: dict[Site, Map] = {}

    def run(self, readout: Any = "auto") -> Reading:
        """Run the model, and back if gradients or an automatic read-out need it."""
        auto = readout == "auto" and not self.gradient
        self.gradient |= auto and not self.members  # without layers, only the maps' own gradients tell
        rules: dict[str, Any] = {_FUSED: self._fused} if self.gradient else {}
        done = self.subject.run(
            {**rules, "*": derivative},
            expand=frozenset({"multi_head_attention_forward"} | (set() if self.gradient else {_FUSED})),
            tell=self,
            gradient=self.gradient or auto,
            cut=self.members if auto and not self.gradient else (),
        )
        if self.gradient:
            done.pull()
            self.maps = [m for m in self.maps if m.found]  # the others do nothing for the score
        elif auto:
            self._pull_cuts(done)
        return self

    # ---- what the pass tells ----

    def fused(self, site: Site, streams: Any) -> None:
        self._by_site[site] = self._met(site, streams)

    def value(self, site: Site, tensor: Tensor) -> None:
        if site.kind == "attention":
            found = self._met(site, stream_of(tensor))
            if self.gradient:
                kept = tensor.detach()
                tensor.register_hook(lambda g: self._reduce(found, kept, g))
            else:
                self._reduce(found, tensor.detach(), None)
        elif site.kind == "input" and self._is_layer(site.path):
            self._runs[site.path] = self._runs.get(site.path, -1) + 1
            if self.hidden and tensor.requires_grad:
                place, kept = (site.path, self._runs[site.path]), tensor.detach()
                tensor.register_hook(lambda g: self.entered.setdefault(place, []).append((g * kept).sum(-1)))
        elif site.kind == "output" and site.path in self.members and self.gradient and tensor.requires_grad:
            stream = both(stream_of(tensor))[0]
            self.left[site.path] = (stream, norms := [])
            tensor.register_hook(lambda g: norms.append(_norms(g)))

    def _is_layer(self, path: str) -> bool:
        return path in self.members if self.members else True

    def _met(self, site: Site, streams: Any) -> Map:
        layer = layer_of(self.members, site.path) or site.path
        query, key = both(streams)
        found = Map(site, layer, self._runs.get(layer, 0), query, key)
        self.maps.append(found)
        return found

    def _fused(self, call: Call, m: Any) -> Gradients:
        """The rule of a fused attention: its own derivative, and a look at the map on the way."""
        return fused_back(call, m, lambda p, g: self._reduce(self._by_site[call.site], p, g))

    def _reduce(self, found: Map, weights: Tensor, gradient: Tensor | None) -> None:
        a = self._whole(found, weights)
        g = None if gradient is None else self._whole(found, gradient)
        found.found.append(self.reduce(found, a, g))
        if g is not None and found is self.maps[-1]:
            self.rows_of_last.append(g.square().sum((1, 3)).sqrt())

    def _whole(self, found: Map, a: Tensor) -> Tensor:
        """(rows, heads, query, key), also of windows."""
        rows = self.subject.rows
        if a.dim() != 4 or len(a) == rows:
            return by_head(a, rows)
        if self._windows is None:
            self._windows = places(replace(self.subject, facts=Facts()))
        return spread(a, self._windows.get(found.site), rows)

    def _pull_cuts(self, done: Pass) -> None:
        """How the score reads what the last layers gave: nothing before them was kept."""
        cuts = {m.layer: done.flow.cuts[m.layer] for m in self.maps if m.layer in done.flow.cuts}
        columns = done.columns([leaf for leaf, _ in cuts.values()])
        for place, (layer, (_, streams)) in enumerate(cuts.items()):
            if columns[0][place] is not None:
                self.left[layer] = (both(streams)[0], [_norms(column[place]) for column in columns])  # type: ignore[arg-type]


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


def _norms(g: Tensor) -> Tensor:
    """The size of each position's gradient, (rows, n)."""
    return g.flatten(2).norm(dim=2) if g.dim() > 2 else g.abs()


# ---- where the answer is read ----


def readout(reading: Reading, where: Any) -> dict[Stream, Tensor]:
    """How much of each position of a stream the score reads: (rows, targets or 1, n), summing to 1.

    A stream is read out if its last state goes to the score and not to another stream's attention.
    """
    found = {}
    for stream in dict.fromkeys(m.query for m in reading.maps):
        last = max(n for n, m in enumerate(reading.maps) if m.query == stream)
        if any(m.crosses and m.key == stream for m in reading.maps[last:]):
            continue
        shares = _read_by_score(reading, reading.maps[last], last)
        if shares is None:
            continue
        if where != "auto":
            shares = _chosen(where, real_positions(reading.subject, stream, shares.shape[-1]))[:, None]
        found[stream] = shares
    return found


def _read_by_score(reading: Reading, last: Map, number: int) -> Tensor | None:
    """By the gradient of what the stream's last layer gave, or of the rows of the last map."""
    stream, norms = reading.left.get(last.layer, (None, []))
    if norms and stream == last.query:
        return _shares(torch.stack(norms, 1))
    if number + 1 < len(reading.maps):
        return None
    if reading.rows_of_last:
        return _shares(torch.stack(reading.rows_of_last, 1))
    a = last.found[0]
    return _shares(torch.ones_like(a[:, None, :, 0]))


def _shares(size: Tensor) -> Tensor:
    total = size.sum(-1, keepdim=True)
    return torch.where(total > 0, size / total.masked_fill(total == 0, 1), torch.full_like(size, 1 / size.shape[-1]))


def _chosen(where: Any, real: Tensor) -> Tensor:
    """One row, or all of them, (rows, n)."""
    positions = torch.arange(real.shape[1])
    if where == "mean":
        return real / real.sum(1, keepdim=True)
    if where == "first":
        index = torch.where(real > 0, positions, real.shape[1]).argmin(1)
    elif where == "last":
        index = (real * positions).argmax(1)
    elif isinstance(where, int) and not isinstance(where, bool) and -real.shape[1] <= where < real.shape[1]:
        index = torch.full((len(real),), where % real.shape[1])
    else:
        raise ParameterError(
            f'readout={where!r} is not allowed.\n  Give "auto", "first", "last", "mean", or a position below '
            f"{real.shape[1]}."
        )
    return torch.nn.functional.one_hot(index, real.shape[1]).to(real)


def real_positions(subject: Subject, stream: Stream, n: int) -> Tensor:
    """1 for positions of a stream that are no padding, (rows, n)."""
    dtype = next(iter(subject.facts.values.values())).dtype
    for key in sorted(stream):
        mask = subject.real(key, (subject.rows, n))
        if mask is not None:
            return mask.to(dtype)
    return torch.ones(subject.rows, n, dtype=dtype)
