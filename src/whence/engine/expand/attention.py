"""Attention written out in plain ops: fused kernels in every form, their masks and their maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.call import Call
from whence.engine.expand import expansion


@expansion("scaled_dot_product_attention")
def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """softmax(q kᵀ · scale + mask) v, in the dtype of q; a query that may see nothing gets 0."""
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    weights = masked_softmax(scores, attn_mask, is_causal)
    return F.dropout(weights, dropout_p, dropout_p > 0) @ value


def masked_softmax(scores: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """softmax over keys under a mask; rows without any key give 0, not NaN."""
    scores, empty = masked_scores(scores, mask, causal)
    weights = torch.softmax(scores, -1)
    return weights if empty is None else weights.masked_fill(empty, 0.0)


def masked_scores(scores: Tensor, mask: Tensor | None, causal: bool = False) -> tuple[Tensor, Tensor | None]:
    """Scores under a boolean (True: may look), additive or causal mask, and which rows have no key, if some have none.

    Rows without a key get the score 0 everywhere.
    """
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is None:
        return scores, None
    if mask.dtype == torch.bool:
        empty = ~mask.any(-1, keepdim=True)
        scores = scores.masked_fill(~mask, float("-inf"))
    else:
        empty = (mask == float("-inf")).all(-1, keepdim=True)
        scores = scores + mask.to(scores.dtype)
    return (scores.masked_fill(empty, 0.0), empty) if bool(empty.any()) else (scores, None)


def odd_attention(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """A fused call that one rule for queries, keys and values does not cover: a live mask, one tensor in two roles."""
    given = operands(args, kwargs)
    roles = [given[name] for name in ("query", "key", "value")]
    mask = given.get("attn_mask")
    return (
        bool(given.get("dropout_p"))
        or any(mask is t for t in live)
        or len({id(t) for t in roles}) < 3
        or any(t.dim() < 3 for t in roles)
    )


_ROLES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def operands(args: Any, kwargs: Any) -> dict[str, Any]:
    """A fused call's arguments by name."""
    return {**dict(zip(_ROLES, args, strict=False)), **kwargs}


def attention_maps(call: Call) -> Tensor:
    """The attention probabilities of a fused call, rebuilt from its queries and keys: nothing but these was kept."""
    with torch.no_grad():
        return _rebuilt(operands(call.args, call.kwargs))[0]


def _rebuilt(given: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor, Tensor, float, int]:
    """Probabilities, queries, keys and values (one of each per head), the scale, and heads per key."""
    q, k, v = (given[name].detach() for name in ("query", "key", "value"))
    groups = q.shape[-3] // k.shape[-3] if given.get("enable_gqa") else 1
    if groups > 1:
        k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
    scale = 1 / math.sqrt(q.shape[-1]) if given.get("scale") is None else given["scale"]
    p = masked_softmax(q @ k.mT * scale, given.get("attn_mask"), bool(given.get("is_causal")))
    return p, q, k, v, scale, groups


def fused_back(
    call: Call, m: Tensor, show: Callable[[Tensor, Tensor], None], memo: dict[str, Any] | None = None
) -> list[Tensor]:
    """A fused attention's own derivative, which shows its probabilities and their gradient on the way.

    The gradient is overwritten afterwards. `memo` is where they are kept for further targets.
    """
    call.x  # says so if the model has overwritten them  # noqa: B018
    given, memo = operands(call.args, call.kwargs), {} if memo is None else memo
    if not memo:
        memo["rebuilt"] = _rebuilt(given)
    p, q, k, v, scale, groups = memo["rebuilt"]
    to_p = m @ v.mT
    show(p, to_p)
    to_s = to_p.mul_(p)
    to_s.addcmul_(p, to_s.sum(-1, keepdim=True), value=-1)
    parts = {
        "query": (to_s @ k) * scale, "key": (to_s.mT @ q) * scale, "value": p.mT @ m, "attn_mask": to_s
    }  # fmt: skip
    total: list[Any] = [None] * len(call.inputs)
    for name, part in parts.items():
        for place, x in enumerate(call.inputs):
            if given.get(name) is x:
                if groups > 1 and name in ("key", "value"):
                    part = part.unflatten(-3, (-1, groups)).sum(-3)
                part = part.sum_to_size(x.shape)
                total[place] = part if total[place] is None else total[place] + part
    return total


@expansion("multi_head_attention_forward")
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
        scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(q.shape[-1]))
        seen = torch.softmax(scores if mask is None else scores + mask.to(scores.dtype), -1)
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
