"""LSTM, GRU and plain recurrent networks and their cells, written out step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.expand import expansion
from whence.engine.trackers import modality

State = tuple[Tensor, ...]  # h, or h and c of an LSTM
Step = Callable[[Tensor, Any, list[Tensor]], State]  # from x, the state before and the weights to the state after


@expansion("lstm")
def lstm(*args: Any) -> Any:
    return _fused(_lstm_step, args)


@expansion("gru")
def gru(*args: Any) -> Any:
    return _fused(_gru_step, args)


@expansion("rnn_tanh")
def rnn_tanh(*args: Any) -> Any:
    return _fused(_tanh_step, args)


@expansion("rnn_relu")
def rnn_relu(*args: Any) -> Any:
    return _fused(_relu_step, args)


@expansion("lstm_cell")
def lstm_cell(x: Tensor, hx: State, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> State:
    return _lstm_step(x, hx, _cell_weights(w_ih, w_hh, b_ih, b_hh))


@expansion("gru_cell")
def gru_cell(x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor:
    return _gru_step(x, (hx,), _cell_weights(w_ih, w_hh, b_ih, b_hh))[0]


@expansion("rnn_tanh_cell")
def rnn_tanh_cell(x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor:
    return _tanh_step(x, (hx,), _cell_weights(w_ih, w_hh, b_ih, b_hh))[0]


@expansion("rnn_relu_cell")
def rnn_relu_cell(x: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Tensor:
    return _relu_step(x, (hx,), _cell_weights(w_ih, w_hh, b_ih, b_hh))[0]


# ---- one step; weights are [input, hidden, input bias, hidden bias, projection], the last three where there are ----


def _lstm_step(x: Tensor, state: State, w: list[Tensor]) -> State:
    h, c = state
    i, f, g, o = (_project(x, w[0], w[2:3]) + _project(h, w[1], w[3:4])).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (_project(h, w[4], []), c) if len(w) > 4 else (h, c)


def _gru_step(x: Tensor, state: State, w: list[Tensor]) -> State:
    (h,) = state
    xr, xz, xn = _project(x, w[0], w[2:3]).chunk(3, -1)
    hr, hz, hn = _project(h, w[1], w[3:4]).chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return ((1 - z) * n + z * h,)


def _tanh_step(x: Tensor, state: State, w: list[Tensor]) -> State:
    return (torch.tanh(_project(x, w[0], w[2:3]) + _project(state[0], w[1], w[3:4])),)


def _relu_step(x: Tensor, state: State, w: list[Tensor]) -> State:
    return (torch.relu(_project(x, w[0], w[2:3]) + _project(state[0], w[1], w[3:4])),)


def _project(x: Tensor, weight: Tensor, bias: list[Tensor]) -> Tensor:
    return F.linear(x, weight, bias[0] if bias else None)


def _cell_weights(w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None) -> list[Tensor]:
    return [w_ih, w_hh] if b_ih is None or b_hh is None else [w_ih, w_hh, b_ih, b_hh]


# ---- all steps of all layers ----


def _fused(step: Step, args: Any) -> Any:
    """`torch.lstm` and its kin take a sequence that is padded, or packed with the number of rows at each time."""
    packed = isinstance(args[1], Tensor) and not args[1].is_floating_point()
    return _packed(step, *args) if packed else _padded(step, *args)


def _padded(
    step: Step, x: Tensor, hx: Any, weights: Any, biased: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    x = x.transpose(0, 1) if batch_first and x.dim() == 3 else x
    runs = _by_layer(weights, biased, layers, bidirectional)
    outputs, last = _layers(step, list(x.unbind(0)), hx, runs, dropout if train else 0.0)
    y = torch.stack(outputs)
    y = y.transpose(0, 1) if batch_first and y.dim() == 3 else y
    modality.copy(x, y)  # the state it begins with may come from elsewhere and has no positions
    return (y, *last)


def _packed(
    step: Step, x: Tensor, sizes: Tensor, hx: Any, weights: Any, biased: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool,
) -> Any:  # fmt: skip
    runs = _by_layer(weights, biased, layers, bidirectional)
    outputs, last = _layers(step, list(x.split(sizes.tolist())), hx, runs, dropout if train else 0.0)
    return (torch.cat(outputs), *last)


def _by_layer(weights: Any, biased: bool, layers: int, bidirectional: bool) -> list[list[list[Tensor]]]:
    """The weights of each layer's one or two directions; zeros for the biases where a projection follows none."""
    directions = 2 if bidirectional else 1
    per = len(weights) // (layers * directions)
    runs = [_ordered(list(weights[n * per : (n + 1) * per]), biased) for n in range(layers * directions)]
    return [runs[n : n + directions] for n in range(0, len(runs), directions)]


def _ordered(weights: list[Tensor], biased: bool) -> list[Tensor]:
    if biased or len(weights) == 2:
        return weights
    zero = weights[0].new_zeros(weights[0].shape[0])
    return [*weights[:2], zero, zero, *weights[2:]]


def _layers(
    step: Step, times: list[Tensor], hx: Any, layers: list[list[list[Tensor]]], dropout: float
) -> tuple[list[Tensor], list[Tensor]]:
    """The last layer's output at each time, and the last state of each layer and direction."""
    starts = zip(*(part.unbind(0) for part in (hx if isinstance(hx, tuple | list) else [hx])), strict=True)
    ends: list[State] = []
    for n, directions in enumerate(layers):
        sides = []
        for side, weights in enumerate(directions):
            outputs, end = _run(step, times, next(starts), weights, side == 1)
            sides.append(outputs)
            ends.append(end)
        times = [torch.cat(both, -1) for both in zip(*sides, strict=True)] if len(sides) > 1 else sides[0]
        if dropout and n + 1 < len(layers):
            times = [F.dropout(t, dropout, True) for t in times]
    return times, [torch.stack(part) for part in zip(*ends, strict=True)]


def _run(
    step: Step, times: list[Tensor], start: State, weights: list[Tensor], reverse: bool
) -> tuple[list[Tensor], State]:
    """One layer in one direction. Packed times have fewer rows later on: the state shrinks or grows with them."""
    outputs: list[Tensor] = []
    finished: list[State] = []
    rows = times[-1].shape[0] if reverse and times[0].dim() == 2 else None
    state = tuple(s[:rows] for s in start) if rows is not None else start
    for x in reversed(times) if reverse else times:
        if x.dim() == 2 and len(x) < len(state[0]):  # these rows end here
            finished.insert(0, tuple(s[len(x) :] for s in state))
            state = tuple(s[: len(x)] for s in state)
        elif x.dim() == 2 and len(x) > len(state[0]):  # reversed: these rows begin here
            state = tuple(torch.cat([s, b[len(s) : len(x)]]) for s, b in zip(state, start, strict=True))
        state = step(x, state, weights)
        outputs.append(state[0])
    if finished:
        state = tuple(torch.cat([part, *(f[i] for f in finished)]) for i, part in enumerate(state))
    return (outputs[::-1] if reverse else outputs), state
