"""The maximum flow from a read-out row, down through layers of attention, to each of the tokens (Abnar & Zuidema 2020).

Preflow-push on the layered graph, in dense blocks: the supply of the top level is at its nodes from the start; nodes
with excess push it along shortest residual paths to the sink, a whole level at a time, and excess from which no path is
left stays where it is. Only values are asked for, so that it never has to be returned to the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Ring = dict[int, Array]  # level: 1 for its nodes at one distance from the sink, else 0


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


@dataclass(frozen=True)
class _Network:
    """Levels 0 (the sink alone), 1, ..., the excess of their nodes, and what neighbouring levels can still pass."""

    residual: dict[tuple[int, int], Array]  # (from, to): (nodes from, nodes to)
    excess: list[Array]
    dust: float  # what is not above it is rounding

    def edges(self, upper: int, capacities: Array) -> None:
        """Connects a level with the one below it by edges which carry nothing yet."""
        self.residual[upper, upper - 1] = capacities.copy()
        self.residual[upper - 1, upper] = np.zeros_like(capacities).T  # a view: both directions have one memory order

    def aim(self, capacities: Array) -> None:
        """Makes the token with these capacities (nodes of level 1,) the sink; takes back what the last one received."""
        if (0, 1) in self.residual:
            self.excess[1] += self.residual[0, 1][0]
        self.excess[0] = np.zeros(1)
        self.edges(1, capacities[:, None])


def _flows(layers: list[Array], source: Array) -> Array:
    """The value for each token; each problem starts from the flow of the last, which differs in the lowest edges only.

    Last token first: under a causal mask what a later token received can move to an earlier one, rarely the reverse.
    """
    supply = layers[-1].sum(1) * (source if (source > 0).sum() > 1 else source > 0)
    bound = min([supply.sum(), *(layer.sum() for layer in layers)])  # each of them is a cut
    flows = np.zeros(layers[0].shape[1])
    if bound <= 0:
        return flows
    network = _Network({}, [np.zeros(1), *(np.zeros(len(layer)) for layer in layers)], 1e-14 * bound)
    network.excess[-1] += np.minimum(supply, bound)
    for lower, layer in enumerate(layers[1:], 1):
        network.edges(lower + 1, np.minimum(layer, bound))
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
    into: Ring = {}
    for level, nodes in ring.items():
        for near in (level - 1, level + 1):
            if (near, level) in network.residual:
                into[near] = into.get(near, 0) + network.residual[near, level] @ nodes
    reached = {level: (total > network.dust) * unseen[level] for level, total in into.items()}
    for level, nodes in reached.items():
        unseen[level] -= nodes
    return {level: nodes for level, nodes in reached.items() if nodes.any()}


def _wave(network: _Network, rings: list[Ring]) -> None:
    """Moves excess from ring to ring towards the sink, the farthest first; what finds its way full stays."""
    for nearer, ring in zip(rings[-2::-1], rings[:0:-1], strict=True):
        for level, nodes in ring.items():
            active = np.flatnonzero(nodes * network.excess[level] > network.dust)
            if len(active):
                _push(network, level, active, nearer)


def _push(network: _Network, level: int, nodes: NDArray[np.intp], nearer: Ring) -> None:
    """Empties nodes into the nearer ring, in proportion to what each edge can pass, or fills all of these edges."""
    have = network.excess[level][nodes]
    near = [other for other in (level - 1, level + 1) if other in nearer]
    room = [network.residual[level, other][nodes] * nearer[other] for other in near]
    can = np.sum([block.sum(1) for block in room], axis=0)
    share = have / np.maximum(have, can)  # exactly 1 where edges are filled: nothing of them is left
    network.excess[level][nodes] = np.maximum(have - can, 0)
    for other, moved in zip(near, room, strict=True):
        moved *= share[:, None]  # (nodes, nodes of the other level)
        network.residual[level, other][nodes] -= moved
        network.residual[other, level].T[nodes] += moved
        network.excess[other] += moved.sum(0)
