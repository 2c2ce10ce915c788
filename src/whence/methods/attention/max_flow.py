"""The maximum flow from a read-out row, down through layers of attention, to each of the tokens (Abnar & Zuidema 2020).

Preflow-push on the layered graph, in dense blocks: the supply of the top level is at its nodes from the start; nodes
with excess push it along shortest residual paths to the sink, a whole level at a time, and excess from which no path is
left stays where it is. Only values are asked for, so that it never has to be returned to the source. Up to 1e-14 of the
flow's bound may stay at a node as if it were rounding, so that a value is short of the maximum by that times the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Ring = dict[int, Array]  # level: 1 for its nodes at one distance from the sink, else 0
Way = Literal["down", "up"]
_FEW = 4  # below a fourth of the rows or columns, they are changed one by one


def max_flows(layers: Sequence[Tensor], source: Tensor) -> Tensor:
    """The maximum flow (keys of the first layer,) from the source to each token alone.

    `layers` are capacities (query, key), first layer first; `source` are weights (queries of the last layer,). Nodes
    without weight are not entered; one with weight is entered without limit; of several, each is entered with its
    weight times what it can pass on.
    """
    *capacities, weights = (given.detach().double().cpu().numpy() for given in (*layers, source))
    _check(capacities, weights)
    return source.new_tensor(_flows(capacities, weights))


def _check(layers: list[Array], source: Array) -> None:
    """Refuses what is no graph; NaN would pass as a missing edge."""
    if not all(np.all((given >= 0) & (given < np.inf)) for given in (*layers, source)):
        raise ValueError("The capacities of a flow and the weights of its source are finite and not negative.")
    shapes = [layer.shape for layer in layers]
    above = [*(keys for _, keys in shapes[1:]), len(source)]
    if [queries for queries, _ in shapes] != above:
        raise ValueError(f"Layers of {shapes} and a source of {len(source)} do not join: queries are the keys above.")


class _Edges:
    """The edges between a level and the one below it: what they can still pass down, and up again of what they passed.

    The two add up to the capacity. After a change of many entries only one of them is kept, until the other is needed.
    """

    def __init__(self, capacity: Array) -> None:
        self._capacity, self._changed = capacity, ""
        self._parts = {"down": capacity.copy(), "up": np.zeros_like(capacity)}
        self._work = np.empty_like(capacity)

    def left(self, way: Way) -> Array:
        """What can still pass that way, (nodes above, nodes below)."""
        if self._changed and self._changed != way:
            torch.sub(*map(torch.from_numpy, (self._capacity, self._parts[self._changed])), out=self._out(way))
            self._changed = ""
        return self._parts[way]

    def move(self, way: Way, above: Array, below: Array) -> None:
        """Passes the part above ⊗ below of what is left; a part of exactly 1 leaves nothing."""
        left, back = self.left(way), self._parts["up" if way == "down" else "down"]
        rows, columns = np.flatnonzero(above), np.flatnonzero(below)
        if _FEW * min(len(rows), len(columns)) > len(above):  # torch is faster than NumPy at broadcasting
            part = torch.from_numpy(self._work)
            torch.mul(torch.from_numpy(above)[:, None], torch.from_numpy(below), out=part)
            self._out(way).addcmul_(self._out(way), part, value=-1)
            self._changed = way
            return
        where = (rows, slice(None)) if len(rows) < len(columns) else (slice(None), columns)
        moved = left[where] * above[where[0], None] * below[where[1]]
        left[where] -= moved
        if not self._changed:
            back[where] += moved

    def _out(self, way: str) -> Tensor:
        return torch.from_numpy(self._parts[way])


@dataclass(frozen=True)
class _Network:
    """Levels 0 (the sink alone), 1, ..., the excess of their nodes, and the edges from each to the one below it."""

    edges: dict[int, _Edges]  # by the upper level
    excess: list[Array]
    dust: float  # what is not above it is rounding

    def aim(self, capacities: Array) -> None:
        """Makes the token with these capacities (nodes of level 1,) the sink; takes back what the last one received."""
        if 1 in self.edges:
            self.excess[1] += self.edges[1].left("up")[:, 0]
        self.excess[0] = np.zeros(1)
        self.edges[1] = _Edges(capacities[:, None])

    def room(self, level: int, to: Ring) -> Array:
        """What each node of a level can pass to the nodes of a ring at the neighbouring levels."""
        room = np.zeros(len(self.excess[level]))
        if level - 1 in to:
            room += self.edges[level].left("down") @ to[level - 1]
        if level + 1 in to:
            room += to[level + 1] @ self.edges[level + 1].left("up")
        return room


def _flows(layers: list[Array], source: Array) -> Array:
    """The value for each token; each problem starts from the flow of the last, which differs in the lowest edges only.

    Last token first: under a causal mask what a later token received can move to an earlier one, rarely the reverse.
    """
    supply = layers[-1].sum(1) * (source if (source > 0).sum() > 1 else source > 0)
    bound = min([supply.sum(), *(layer.sum() for layer in layers)])  # each of them is a cut
    flows = np.zeros(layers[0].shape[1])
    if bound <= 0:
        return flows
    entered = supply > 0
    layers, supply = [*layers[:-1], layers[-1][entered]], supply[entered]
    network = _Network({}, [np.zeros(1), *(np.zeros(len(layer)) for layer in layers)], 1e-14 * bound)
    network.excess[-1] += np.minimum(supply, bound)
    network.edges.update((upper, _Edges(np.minimum(layer, bound))) for upper, layer in enumerate(layers[1:], 2))
    for token in reversed(range(len(flows))):
        network.aim(np.minimum(layers[0][:, token], bound))
        while rings := _rings(network):
            _wave(network, rings)
        flows[token] = network.excess[0][0]
    return flows


def _rings(network: _Network) -> list[Ring]:
    """The nodes at distance 0, 1, ... from the sink, until each with excess is met; none if none is."""
    active = [excess > network.dust for excess in network.excess]
    unseen = [np.ones(len(excess)) for excess in network.excess]
    active[0][:], unseen[0][:] = False, 0
    wanted, met = sum(int(nodes.sum()) for nodes in active), 0
    rings: list[Ring] = [{0: np.ones(1)}]
    while rings[-1] and met < wanted:
        rings.append(_next_ring(network, rings[-1], unseen))
        met += sum(int(active[level] @ nodes) for level, nodes in rings[-1].items())
    return rings if met else []


def _next_ring(network: _Network, ring: Ring, unseen: list[Array]) -> Ring:
    """The unseen nodes with a residual edge into a ring; they are seen now."""
    reached = {}
    near = {level + step for level in ring for step in (-1, 1)}
    for level in near & set(range(1, len(unseen))):
        if unseen[level].any():
            nodes = (network.room(level, ring) > network.dust) * unseen[level]
            if nodes.any():
                reached[level] = nodes
    for level, nodes in reached.items():
        unseen[level] -= nodes
    return reached


def _wave(network: _Network, rings: list[Ring]) -> None:
    """Moves excess from ring to ring towards the sink, the farthest first; what finds its way full stays."""
    for nearer, ring in zip(rings[-2::-1], rings[:0:-1], strict=True):
        for level, nodes in ring.items():
            have = nodes * network.excess[level]
            have[have <= network.dust] = 0
            if have.any():
                _push(network, level, have, nearer)


def _push(network: _Network, level: int, have: Array, nearer: Ring) -> None:
    """Empties nodes into the nearer ring, in proportion to what each edge can pass, or fills all of these edges."""
    can = network.room(level, nearer)
    most = np.maximum(have, can)
    share = np.divide(have, most, out=np.zeros_like(have), where=have > 0)  # exactly 1 where edges are filled
    network.excess[level] -= np.minimum(have, can)
    if level - 1 in nearer:
        edges, nodes = network.edges[level], nearer[level - 1]
        network.excess[level - 1] += share @ edges.left("down") * nodes
        edges.move("down", share, nodes)
    if level + 1 in nearer:
        edges, nodes = network.edges[level + 1], nearer[level + 1]
        network.excess[level + 1] += edges.left("up") @ share * nodes
        edges.move("up", nodes, share)
