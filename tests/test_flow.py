"""Maximum flows: against a linear program, against every cut, and what can be said of them by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.support.models import close
from whence.methods.attention.max_flow import max_flows

SHAPES = [(4, 3), (3, 3, 3), (5, 2, 4), (2, 6, 1, 3), (4, 4, 4, 4, 4), (6, 6, 6, 6, 6, 6, 6)]
KINDS = ["dense", "sparse", "peaked", "causal"]


def graph(sizes: Sequence[int], kind: str, seed: int) -> list[Tensor]:
    """Random layers between levels of these sizes, top level first."""
    draw = torch.Generator().manual_seed(seed)
    layers = []
    for keys, queries in itertools.pairwise(reversed(sizes)):
        layer = torch.rand(queries, keys, generator=draw, dtype=torch.float64)
        if kind == "sparse":
            layer = layer * (torch.rand(queries, keys, generator=draw) < 0.5)
        if kind == "peaked":
            layer = (layer * 30).softmax(1)
        if kind == "causal":
            layer = (layer * 4).softmax(1).tril()
        layers.append(layer)
    return layers


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def one_hot(size: int, at: int) -> Tensor:
    return torch.eye(size, dtype=torch.float64)[at]


def sources(size: int) -> list[Tensor]:
    weights = torch.arange(size, dtype=torch.float64)
    return [one_hot(size, size - 1), weights / weights.sum().clamp(min=1), exact([1 / size] * size)]


def edges(layers: Sequence[Tensor], source: Tensor, sink: int) -> list[tuple[object, object, float]]:
    """(from, to, capacity) of the graph in which one token is the sink."""
    alone = int((source > 0).sum()) == 1
    found: list[tuple[object, object, float]] = []
    for node, weight in enumerate(source.tolist()):
        limit = float("inf") if alone else weight * float(layers[-1][node].sum())
        found += [("source", (len(layers), node), limit)] if weight > 0 else []
    for level, layer in enumerate(layers):
        for (query, key), capacity in np.ndenumerate(layer.numpy()):
            if level or key == sink:
                found.append(((level + 1, query), (level, key) if level else "sink", float(capacity)))
    return found


def by_program(layers: Sequence[Tensor], source: Tensor, sink: int) -> float:
    """The largest inflow of the sink, such that what enters each node leaves it."""
    optimize = pytest.importorskip("scipy.optimize")
    graph = edges(layers, source, sink)
    nodes = sorted({end for edge in graph for end in edge[:2]} - {"source", "sink"}, key=str)
    balance = np.array([[(edge[1] == node) * 1.0 - (edge[0] == node) for edge in graph] for node in nodes])
    gain = [-1.0 * (edge[1] == "sink") for edge in graph]
    bounds = [(0, edge[2]) for edge in graph]
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    zero = np.zeros(len(nodes))
    return -float(optimize.linprog(gain, A_eq=balance, b_eq=zero, bounds=bounds, method="highs", options=tight).fun)


def by_cuts(layers: Sequence[Tensor], source: Tensor, sink: int) -> float:
    """The smallest capacity that leaves a set of nodes with the source and without the sink, over all such sets."""
    graph = edges(layers, source, sink)
    nodes = sorted({end for edge in graph for end in edge[:2]} - {"source", "sink"}, key=str)
    sides = np.array(list(itertools.product([False, True], repeat=len(nodes))))  # (sets, nodes)
    inside: dict[object, np.ndarray] = dict(zip(nodes, sides.T, strict=True))
    inside |= {"source": np.ones(len(sides), bool), "sink": np.zeros(len(sides), bool)}
    total = np.zeros(len(sides))
    for start, end, capacity in graph:
        total[inside[start] & ~inside[end]] += capacity
    return float(total.min())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_a_linear_program_finds_the_same(sizes: tuple[int, ...], kind: str) -> None:
    layers = graph(sizes, kind, seed=len(sizes))
    for source in sources(sizes[0]):
        expected = [by_program(layers, source, sink) for sink in range(sizes[-1])]
        close(max_flows(layers, source), exact(expected), 1e-9)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=4), st.sampled_from(KINDS), st.integers(0, 999))
def test_the_smallest_cut_is_the_largest_flow(sizes: list[int], kind: str, seed: int) -> None:
    layers = graph(sizes, kind, seed)
    for source in sources(sizes[0]):
        expected = [by_cuts(layers, source, sink) for sink in range(sizes[-1])]
        close(max_flows(layers, source), exact(expected), 1e-12)


def test_a_single_path_passes_its_narrowest_edge() -> None:
    layers = [torch.zeros(3, 3).double() for _ in range(3)]
    layers[2][0, 1], layers[1][1, 2], layers[0][2, 0] = 0.7, 0.2, 0.9
    close(max_flows(layers, one_hot(3, 0)), exact([0.2, 0, 0]), 1e-15)
    assert not max_flows(layers, one_hot(3, 1)).any()


def test_a_bottleneck_is_shared_by_all_paths() -> None:
    wide, narrow = torch.ones(4, 4).double(), torch.zeros(4, 4).double()
    narrow[2, 1] = 0.3
    close(max_flows([wide, narrow, wide], one_hot(4, 0)), exact([0.3] * 4), 1e-15)


def test_flow_that_took_the_wrong_way_is_taken_back() -> None:
    lowest = exact([[0.4, 0], [0.6, 0]])
    middle = exact([[0.5, 0.5], [0.3, 0]])  # the second node can only go left: the first has to go right
    top = exact([[0.6, 0.3], [0, 0]])
    close(max_flows([lowest, middle, top], one_hot(2, 0)), exact([0.9, 0]), 1e-14)
    middle[0, 1] = 0.45
    close(max_flows([lowest, middle, top], one_hot(2, 0)), exact([0.85, 0]), 1e-14)


def test_layers_that_do_nothing_lead_to_the_token_itself() -> None:
    same = [torch.eye(5).double()] * 4
    assert torch.equal(max_flows(same, one_hot(5, 3)), one_hot(5, 3))
    weights = exact([0.1, 0, 0.2, 0.3, 0.4])
    close(max_flows(same, weights), weights, 1e-15)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_rows_and_columns_of_zeros_let_nothing_through(layer: int) -> None:
    layers = graph((3, 3, 3, 3), "dense", seed=1)
    layers[layer][1] = 0
    for source in sources(3):
        expected = [by_cuts(layers, source, sink) for sink in range(3)]
        close(max_flows(layers, source), exact(expected), 1e-12)
    layers[layer][:] = 0
    assert not max_flows(layers, one_hot(3, 0)).any()
    assert not max_flows(graph((3, 3), "dense", seed=1), torch.zeros(3)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_cuts_at_both_ends_bound_the_flow(kind: str) -> None:
    layers = [(layer + torch.eye(24)) / 2 for layer in graph((24,) * 7, kind, seed=2)]
    for source in sources(24):
        found = max_flows(layers, source)
        weights = (source > 0).double() if int((source > 0).sum()) == 1 else source
        leaves = float((layers[-1].sum(1) * weights).sum())
        assert bool((found >= 0).all())
        assert bool((found <= layers[0].sum(0).clamp(max=leaves) + 1e-12).all())
        assert float(found.max()) > 0


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(5)), st.permutations(range(5)), st.sampled_from(KINDS), st.integers(0, 999))
def test_the_order_of_nodes_does_not_matter(middle: list[int], tokens: list[int], kind: str, seed: int) -> None:
    first, second, third = graph((5, 5, 5, 5), kind, seed)
    for source in sources(5):
        found = max_flows([first, second, third], source)
        close(max_flows([first[middle], second[:, middle], third], source), found, 1e-12)
        close(max_flows([first, second[middle], third[:, middle]], source), found, 1e-12)
        close(max_flows([first[:, tokens], second, third], source), found[tokens], 1e-12)


@pytest.mark.parametrize("scale", [1e-12, 1e9])
def test_the_unit_of_capacities_does_not_matter(scale: float) -> None:
    layers = graph((6, 6, 6, 6), "peaked", seed=3)
    found = max_flows(layers, one_hot(6, 2))
    close(max_flows([layer * scale for layer in layers], one_hot(6, 2)) / scale, found, 1e-10)
    wide = exact([[1e9] * 6] * 6)
    narrow = [by_cuts([layers[0], wide], one_hot(6, 2), sink) for sink in range(6)]
    close(max_flows([layers[0], wide, wide, wide], one_hot(6, 2)), exact(narrow), 1e-10)


def test_tensors_are_left_alone_and_their_kind_is_kept() -> None:
    layers = [layer.float().requires_grad_() for layer in graph((4, 4, 4), "dense", seed=4)]
    before = [layer.detach().clone() for layer in layers]
    found = max_flows(layers, one_hot(4, 1).float())
    assert (found.dtype, found.shape, found.requires_grad) == (torch.float32, (4,), False)
    assert all(torch.equal(layer, old) for layer, old in zip(layers, before, strict=True))


def test_what_is_no_graph_is_refused() -> None:
    layers = graph((4, 3, 2), "dense", seed=5)
    with pytest.raises(ValueError, match=r"Layers of \[\(3, 2\), \(4, 3\)\] and a source of 3 do not join"):
        max_flows(layers, one_hot(3, 0))
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and not negative"):
            max_flows([layers[0] * wrong, layers[1]], one_hot(4, 0))
