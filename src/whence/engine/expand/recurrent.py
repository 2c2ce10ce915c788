"""LSTM, GRU and plain recurrent networks and their cells, written out step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.trackers import modality


def _lstm_step(x: Tensor, state: tuple[Tensor, Tensor], w: list[Tensor]) -> tuple[Tensor, Tensor]:
    h, c = state
    i, f, g, o = (_project(x, w[0], w[2:3]) + _project(h, w[1], w[3:4])).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return (_project(h, w[4], []), c) if len(w) > 4 else (h, c)  # the fifth is LSTM's projection


def _gru_step(x: Tensor, state: tuple[Tensor, ...], w: list[Tensor]) -> tuple[Tensor, ...]:
    (h,) = state
    xr, xz, xn = _project(x, w[0], w[2:3]).chunk(3, -1)
    hr, hz, hn = _project(h, w[1], w[3:4]).chunk(3, -1)
    z = torch.sigmoid(xz + hz)
    n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return ((1 - z) * n + z * h,)


def _rnn_step(act: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    def step(x: Tensor, state: tuple[Tensor, ...], w: list[Tensor]) -> tuple[Tensor, ...]:
        return (act(_project(x, w[0], w[2:3]) + _project(state[0], w[1], w[3:4])),)

    return step


def _project(x: Tensor, weight: Tensor, bias: list[Tensor]) -> Tensor:
    return F.linear(x, weight, bias[0] if bias else None)


def _recurrent(step: Callable[..., Any], states: int) -> Callable[..., Any]:
    """The fused kernel `torch.lstm` and its kin, padded or packed, from one step."""

    def padded(x, hx, weights, biased, layers, dropout, train, bidirectional, batch_first):  # type: ignore[no-untyped-def]
        x = x.transpose(0, 1) if batch_first and x.dim() == 3 else x
        times = list(x.unbind(0))
        outputs, last = _layers(times, hx, weights, biased, layers, dropout, train, bidirectional)
        y = torch.stack(outputs)
        y = y.transpose(0, 1) if batch_first and y.dim() == 3 else y
        modality.copy(x, y)  # the state it begins with may come from elsewhere and has no positions
        return (y, *last)

    def packed(x, sizes, hx, weights, biased, layers, dropout, train, bidirectional):  # type: ignore[no-untyped-def]
        outputs, last = _layers(
            list(x.split(sizes.tolist())), hx, weights, biased, layers, dropout, train, bidirectional
        )
        return (torch.cat(outputs), *last)

    def _layers(times, hx, weights, biased, layers, dropout, train, bidirectional):  # type: ignore[no-untyped-def]
        starts = [list(part.unbind(0)) for part in (hx if isinstance(hx, tuple | list) else [hx])]
        directions = 2 if bidirectional else 1
        per = len(weights) // (layers * directions)
        ends: list[tuple[Tensor, ...]] = []
        for layer in range(layers):
            sides = []
            for side in range(directions):
                n = layer * directions + side
                w = _ordered(list(weights[n * per : (n + 1) * per]), biased)
                run = _run(times, tuple(s[n] for s in starts), w, side == 1)
                sides.append(run[0])
                ends.append(run[1])
            times = [torch.cat(both, -1) for both in zip(*sides, strict=True)] if directions > 1 else sides[0]
            if train and dropout and layer + 1 < layers:
                times = [F.dropout(t, dropout, True) for t in times]
        return times, [torch.stack([end[i] for end in ends]) for i in range(states)]

    def _run(times, state, weights, reverse):  # type: ignore[no-untyped-def]
        """One layer in one direction. Packed times have fewer rows later on: the state shrinks or grows with them."""
        outputs: list[Tensor] = []
        start, rows = state, times[-1].shape[0] if reverse and times[0].dim() == 2 else None
        finished: list[tuple[Tensor, ...]] = []
        state = tuple(s[:rows] for s in start) if rows is not None else start
        for x in reversed(times) if reverse else times:
            if x.dim() == 2 and len(x) < len(state[0]):  # these rows end here
                finished.insert(0, tuple(s[len(x) :] for s in state))
                state = tuple(s[: len(x)] for s in state)
            elif x.dim() == 2 and len(x) > len(state[0]):  # reversed: these rows begin here
                state = tuple(torch.cat([s, b[len(s) : len(x)]]) for s, b in zip(state, start, strict=True))
            state = step(x, state, weights)
            outputs.append(state[0])
        state = (
            tuple(torch.cat([part, *(f[i] for f in finished)]) for i, part in enumerate(state)) if finished else state
        )
        return (outputs[::-1] if reverse else outputs), state

    def expanded(*args: Any) -> Any:
        is_packed = isinstance(args[1], Tensor) and not args[1].is_floating_point()
        return (packed if is_packed else padded)(*args)

    return expanded


def _ordered(weights: list[Tensor], biased: bool) -> list[Tensor]:
    """[input, hidden, input bias, hidden bias, projection]; without biases zeros stand in when a projection follows."""
    if biased or len(weights) == 2:
        return weights
    zero = weights[0].new_zeros(weights[0].shape[0])
    return [*weights[:2], zero, zero, *weights[2:]]


def _cell(step: Callable[..., Any], states: int) -> Callable[..., Any]:
    def expanded(x: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Any = None, b_hh: Any = None) -> Any:
        state = tuple(hx) if isinstance(hx, tuple | list) else (hx,)
        biases = [] if b_ih is None else [b_ih, b_hh]
        after = step(x, state, [w_ih, w_hh, *biases])
        return after if states > 1 else after[0]

    return expanded


RECURRENT: dict[str, Callable[..., Any]] = {
    "lstm": _recurrent(_lstm_step, 2),
    "gru": _recurrent(_gru_step, 1),
    "rnn_tanh": _recurrent(_rnn_step(torch.tanh), 1),
    "rnn_relu": _recurrent(_rnn_step(torch.relu), 1),
    "lstm_cell": _cell(_lstm_step, 2),
    "gru_cell": _cell(_gru_step, 1),
    "rnn_tanh_cell": _cell(_rnn_step(torch.tanh), 1),
    "rnn_relu_cell": _cell(_rnn_step(torch.relu), 1),
}
