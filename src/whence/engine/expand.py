"""Fused ops written out in plain ones and run under the mode, so that rules reach their parts.

Each function takes the fused op's own arguments and gives its own result. A method chooses which families are expanded;
plain gradients need not pay for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.call import Call

# ---- attention ----


def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(q kᵀ · scale + mask) v, in the dtype of q; a query that may see nothing gets 0."""
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        square = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device)
        attn_mask = square.tril()
    weights = masked_softmax(scores, attn_mask)
    return F.dropout(weights, dropout_p, dropout_p > 0) @ value


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """softmax over keys under a boolean (True: may look) or additive mask; rows without any key give 0, not NaN."""
    if mask is None:
        return torch.softmax(scores, -1)
    if mask.dtype == torch.bool:
        empty = ~mask.any(-1, keepdim=True)
        scores = scores.masked_fill(~mask, float("-inf"))
    else:
        empty = (mask == float("-inf")).all(-1, keepdim=True)
        scores = scores + mask.to(scores.dtype)
    if not bool(empty.any()):
        return torch.softmax(scores, -1)
    return torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)


def attention_maps(call: Call) -> Tensor:
    """The attention probabilities of a fused call, rebuilt from its queries and keys: nothing but these was kept."""

    def weigh(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Tensor:
        identity = torch.eye(key.shape[-2], dtype=query.dtype, device=query.device)
        return attention(query, key, identity.expand(*key.shape[:-2], -1, -1), *rest, **named)

    with torch.no_grad():
        return weigh(*call.args, **call.kwargs)


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int,
    in_proj_weight: Tensor | None, in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None,
    add_zero_attn: bool, dropout_p: float, out_proj_weight: Tensor, out_proj_bias: Tensor | None,
    training: bool = True, key_padding_mask: Tensor | None = None, need_weights: bool = True,
    attn_mask: Tensor | None = None, use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None, v_proj_weight: Tensor | None = None, static_k: Tensor | None = None,
    static_v: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """`F.multi_head_attention_forward`: projections, then attention (length, rows, hidden) head by head."""
    batched = query.dim() == 3
    if not batched:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        attn_mask = attn_mask.unsqueeze(0) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
    length, rows, hidden = query.shape
    if use_separate_proj_weight:
        weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    else:
        assert in_proj_weight is not None
        weights = in_proj_weight.chunk(3)
    biases: Any = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)
    q, k, v = (F.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    causal = is_causal and key_padding_mask is None and not need_weights  # a hint that then replaces the mask
    mask = None if causal else _joined_mask(attn_mask, key_padding_mask, rows, num_heads, q.dtype)

    def heads(x: Tensor) -> Tensor:  # (n, rows, hidden) → (rows, heads, n, hidden / heads)
        return x.reshape(x.shape[0], rows, num_heads, -1).permute(1, 2, 0, 3)

    if bias_k is not None and bias_v is not None:
        k, v = torch.cat([k, bias_k.expand(1, rows, -1)]), torch.cat([v, bias_v.expand(1, rows, -1)])
        mask = None if mask is None else F.pad(mask, (0, 1))
    q, k, v = heads(q), heads(k), heads(v)
    k = k if static_k is None else static_k.view(rows, num_heads, -1, hidden // num_heads)
    v = v if static_v is None else static_v.view(rows, num_heads, -1, hidden // num_heads)
    if add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        mask = None if mask is None else F.pad(mask, (0, 1))
    dropped = dropout_p if training else 0.0
    if need_weights:
        seen = masked_softmax(q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1])), mask)
        mixed = F.dropout(seen, dropped, dropped > 0) @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropped, causal)
    out = F.linear(mixed.permute(2, 0, 1, 3).reshape(length, rows, hidden), out_proj_weight, out_proj_bias)
    shown = None
    if need_weights:
        shown = seen.mean(1) if average_attn_weights else seen
    if batched:
        return out, shown
    return out.squeeze(1), None if shown is None else shown.squeeze(0)


def _joined_mask(
    mask: Tensor | None, padding: Tensor | None, rows: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """One additive mask (rows, heads or 1, query, key): nn.MultiheadAttention's booleans say what is hidden."""
    parts = []
    for part in (mask, padding):
        if part is None:
            continue
        if part.dtype == torch.bool:
            part = torch.zeros(part.shape, dtype=dtype, device=part.device).masked_fill(part, float("-inf"))
        if part is not padding and part.dim() == 3:
            part = part.view(rows, heads, *part.shape[1:])
        parts.append(part.to(dtype))
    if padding is not None:
        parts[-1] = parts[-1].view(rows, 1, 1, -1)
    return sum(parts[1:], parts[0]) if parts else None


# ---- recurrent networks ----


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
        return (y.transpose(0, 1) if batch_first and y.dim() == 3 else y, *last)

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


# ---- products, norms, bags ----


def einsum(*args: Any) -> Tensor:
    """Several operands contracted two at a time, so that every step is a product of two."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    equation = equation.replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        out = "".join(sorted(c for c in set(left) - {",", "."} if left.count(c) == 1))
        out = ("..." if "..." in left else "") + out
    while len(operands) > 2:
        needed = set("".join(terms[2:]) + out)
        both = terms[0] + terms[1]
        kept = "".join(dict.fromkeys(c for c in both if c in needed and c != "."))
        kept = ("..." if "..." in both else "") + kept
        first = torch.einsum(f"{terms[0]},{terms[1]}->{kept}", operands[0], operands[1])
        operands, terms = [first, *operands[2:]], [kept, *terms[2:]]
    return torch.einsum(f"{','.join(terms)}->{out}", *operands)


def layer_norm(
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """(x − mean) / √(var + ε) · weight + bias over the last dimensions."""
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    return _affine(_centred(x, axes, eps), weight, bias)


def rms_norm(x: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """x / √(mean x² + ε) · weight over the last dimensions."""
    axes = tuple(range(-len(tuple(normalized_shape)), 0))
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return _affine(x * torch.rsqrt(x.square().mean(axes, keepdim=True) + eps), weight, None)


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any
) -> Tensor:
    """Each group of channels centred and scaled by itself."""
    grouped = x.reshape(x.shape[0], num_groups, -1)
    return _per_channel(_centred(grouped, (-1,), eps).reshape(x.shape), weight, bias)


def instance_norm(
    x: Tensor, running_mean: Tensor | None = None, running_var: Tensor | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """Each channel of each row centred and scaled by itself, or by the running statistics."""
    if not use_input_stats:
        assert running_mean is not None
        assert running_var is not None
        x = (x - _channels(running_mean, x)) * _channels(torch.rsqrt(running_var + eps), x)
        return _per_channel(x, weight, bias)
    return _per_channel(_centred(x, tuple(range(2, x.dim())), eps), weight, bias)


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Tensor:
    """x / max(‖x‖, ε)."""
    if p != 2:
        return F.normalize(x, p, dim, eps)
    return x * x.square().sum(dim, keepdim=True).sqrt().clamp_min(eps).reciprocal()


def _centred(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _channels(v: Tensor, x: Tensor) -> Tensor:
    return v.view(1, -1, *[1] * (x.dim() - 2))


def _per_channel(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    return _affine(x, None if weight is None else _channels(weight, x), None if bias is None else _channels(bias, x))


def embedding_bag(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    """Look up, then sum, average or take the maximum over each bag; padding counts for nothing."""
    if input.dim() == 1:
        assert offsets is not None
        ends = offsets[1:] if include_last_offset else torch.cat([offsets[1:], offsets.new_tensor([len(input)])])
        starts = offsets[: len(ends)]
        weighed = per_sample_weights is not None
        bags = [
            embedding_bag(
                input[a:b].unsqueeze(0), weight, None, max_norm, norm_type, mode=mode, padding_idx=padding_idx,
                per_sample_weights=per_sample_weights[a:b].unsqueeze(0) if weighed else None,  # type: ignore[index]
            )
            for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
        ]  # fmt: skip
        return torch.cat(bags)
    looked = F.embedding(input, weight, None, max_norm, norm_type)  # (bags, n, hidden)
    real = torch.ones_like(input, dtype=torch.bool) if padding_idx is None else input != padding_idx
    if mode == "max":
        if input.shape[1] == 0:
            return looked.new_zeros(len(input), looked.shape[-1])
        best = looked.masked_fill(~real.unsqueeze(-1), float("-inf")).amax(1)
        return best.masked_fill(~real.any(1, keepdim=True), 0.0)
    if per_sample_weights is not None:
        looked = looked * per_sample_weights.unsqueeze(-1)
    total = (looked * real.unsqueeze(-1).to(looked.dtype)).sum(1)
    return total / real.sum(1, keepdim=True).clamp(min=1) if mode == "mean" else total


# family or spelling → the function that writes it out
EXPANSIONS: dict[str, Callable[..., Any]] = {
    "scaled_dot_product_attention": attention,
    "multi_head_attention_forward": multi_head_attention,
    "lstm": _recurrent(_lstm_step, 2),
    "gru": _recurrent(_gru_step, 1),
    "rnn_tanh": _recurrent(_rnn_step(torch.tanh), 1),
    "rnn_relu": _recurrent(_rnn_step(torch.relu), 1),
    "lstm_cell": _cell(_lstm_step, 2),
    "gru_cell": _cell(_gru_step, 1),
    "rnn_tanh_cell": _cell(_rnn_step(torch.tanh), 1),
    "rnn_relu_cell": _cell(_rnn_step(torch.relu), 1),
    "einsum": einsum,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "normalize": normalize,
    "embedding_bag": embedding_bag,
}
