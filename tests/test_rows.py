"""The rows are followed through every tiny model and every family of transformers, or given up: never mistaken."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.engine import EVERY, run
from tests.support.hf import FAMILIES
from tests.support.models import CASES, close
from tests.support.slow import mostly_slow
from whence.engine.trackers.rows import RowAxis, _read


@pytest.mark.parametrize(
    ("shape", "place"),
    [
        ((3, 4), RowAxis(0, 1, 3)),
        ((4, 3), RowAxis(1, 1, 3)),
        ((6, 2), RowAxis(0, 2, 3)),
        ((2, 12), RowAxis(1, 2, 3)),
        ((3,), RowAxis(0, 1, 3)),
    ],
)
def test_sums_and_numbers(shape: tuple[int, ...], place: RowAxis) -> None:
    t = torch.randn(*shape, generator=torch.Generator().manual_seed(0)).double()
    numbers = place.numbers(shape)
    expected = torch.stack([t[numbers == row].sum() for row in range(3)])
    close(place.sums(t), expected, 1e-12)
    assert torch.equal(place.spread(torch.arange(3), t).expand_as(t), numbers)
    assert _read(numbers, 3) == place


def per_row(model: Any, inputs: Any, target: Any = 0) -> tuple[float, int]:
    """Check each ruled op's rows by what they must satisfy: each row's share of m·y depends on that row alone.

    Gives the share of ops whose rows were followed.
    """
    found = []

    def rule(call: Any, m: Any) -> Any:
        signal = m if isinstance(m, Tensor) else m[0]
        found.append(
            (
                call.family,
                call.row_axis,
                None if call.row_axis is None else call.row_axis.sums(signal * call.outputs[0].detach()),
            )
        )
        return call.vjp(m)

    done = run(model, inputs, {"*": rule}, target, expand=EVERY, rows=True)
    done.pull()
    first, found = found, []
    start = torch.zeros_like(done.score)
    again = run(model, inputs, {"*": rule}, target, expand=EVERY, rows=True)
    start[0] = 1
    again.flow.pull(again.score, start, list(again.leaves.values()))
    for (family, place, whole), (_, _, alone) in zip(first, found, strict=True):
        if place is None:
            continue
        scale = float(whole.abs().max()) + 1e-300
        assert float((alone[0] - whole[0]).abs()) <= 1e-9 * scale, (
            family
        )  # the first row's signal is where we look for it
        assert float(alone[1:].abs().max()) <= 1e-9 * scale, family  # and nobody else has it
    followed = sum(place is not None for _, place, _ in first)
    return followed / len(first), len(first)


@pytest.mark.parametrize("name", CASES)
def test_tiny_models(name: str) -> None:
    share, _ = per_row(*CASES[name].make())
    assert share == 1


@pytest.mark.parametrize("name", mostly_slow(FAMILIES))
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_families(name: str) -> None:
    family = FAMILIES[name]
    share, _ = per_row(family.build(family.kinds[0]), family.inputs(), family.target)
    assert share >= (0.98 if name == "clip" else 1)  # its last product has images against texts


def test_rows_through_odd_shapes_are_followed_or_given_up() -> None:
    w = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).double()
    x = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(2)).double()

    def joined(x: Tensor) -> Tensor:  # rows and positions in one axis, and back
        return torch.tanh(x.reshape(6, 4) @ w).reshape(3, 8)

    def turned(x: Tensor) -> Tensor:  # rows last
        return torch.tanh(w @ x.permute(2, 1, 0).reshape(4, 6)).reshape(4, 2, 3).permute(2, 0, 1).flatten(1)

    def stacked(x: Tensor) -> Tensor:
        return torch.cat([F.relu(x), torch.tanh(x).flip(1)], 1).unbind(1)[3]

    for model in (joined, turned, stacked):
        share, _ = per_row(model, x)
        assert share == 1.0

    def mixed(x: Tensor) -> Tensor:  # the batch is one long row: there are no rows to follow any more
        return torch.tanh(x.permute(1, 0, 2).reshape(2, 12)).reshape(2, 3, 4).transpose(0, 1).flatten(1)

    per_row(mixed, x)


ODD: dict[str, tuple[Any, tuple[int, ...]]] = {
    "einsum to columns": (
        lambda x: torch.einsum("bi,ij->jb", x, torch.ones(4, 3).double()).tanh().T.contiguous(),
        (3, 4),
    ),
    "einsum, all alike": (lambda x: torch.einsum("bqhd,bkhd->hbqk", x, x).softmax(-1).mean(0).flatten(1), (3, 3, 3, 2)),
    "write to a buffer": (lambda x: _write(x), (3, 4)),
    "write to a slice": (lambda x: _slice(x), (3, 3, 4)),
    "unsqueeze in place": (lambda x: _unsqueeze(x), (3, 4)),
    "unbiased is no keepdim": (lambda x: x.transpose(0, 1).std(0, True).tanh(), (3, 5, 6)),
    "norm": (lambda x: torch.linalg.norm(x.transpose(0, 1), dim=0).tanh(), (3, 5, 3)),
    "var_mean": (lambda x: torch.var_mean(x.transpose(0, 1), 0)[0].tanh(), (3, 5, 3)),
    "complex": (
        lambda x: torch.view_as_real(torch.view_as_complex(x.view(3, 3, 2, 2)) * 1j).flatten(1).tanh(),
        (3, 3, 4),
    ),
    "permuted rows": (lambda x: torch.zeros_like(x).index_add(0, torch.tensor([2, 1, 0]), x).tanh().flip(0), (3, 4)),
}


def _write(x: Tensor) -> Tensor:
    store = torch.zeros(3, 3, 4).double()
    store[:, 0] = x
    return store.tanh().flatten(1)


def _slice(x: Tensor) -> Tensor:
    h = x * 1
    h[:, 0].relu_()
    h[:, 0] += h[:, 1]
    return h.tanh().flatten(1)


def _unsqueeze(x: Tensor) -> Tensor:
    h = x * 1
    h.unsqueeze_(0)
    return h.tanh()[0]


@pytest.mark.parametrize("name", ODD)
def test_rows_are_never_mistaken(name: str) -> None:
    model, shape = ODD[name]
    per_row(model, torch.randn(*shape, generator=torch.Generator().manual_seed(3)).double())
