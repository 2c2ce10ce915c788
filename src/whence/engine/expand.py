"""Fused ops written out in plain ones and run under the mode, so that rules reach their parts.

Each function takes the fused op's own arguments and gives its own result. A method chooses which families are expanded;
plain gradients need not pay for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.call import Call
from whence.engine.recurrent import RECURRENT

# ---- attention ----


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
    given = {**dict(zip(("query", "key", "value", "attn_mask", "dropout_p"), args, strict=False)), **kwargs}
    roles = [given[name] for name in ("query", "key", "value")]
    mask = given.get("attn_mask")
    return (
        len(args) > 5
        or bool(given.get("dropout_p"))
        or any(mask is t for t in live)
        or len({id(t) for t in roles}) < 3
        or any(t.dim() < 3 for t in roles)
    )


def attention_maps(call: Call) -> Tensor:
    """The attention probabilities of a fused call, rebuilt from its queries and keys: nothing but these was kept."""

    def weigh(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        identity = torch.eye(key.shape[-2], dtype=query.dtype, device=query.device).expand(*key.shape[:-2], -1, -1)
        return attention(query, key, identity, attn_mask, 0.0, is_causal, scale, enable_gqa)

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


# ---- order: a network of pairs, each a minimum and a maximum ----


class Ranked(NamedTuple):
    """What sort, topk, median and their kin give."""

    values: Tensor
    indices: Tensor


def _in_order(x: Tensor) -> Tensor:
    """Ascending along the last axis, by Batcher's odd-even merges."""
    n, block = x.shape[-1], 1
    while block < n:
        step = block
        while step >= 1:
            starts = range(step % block, n - step, 2 * step)
            low = [i + j for j in starts for i in range(min(step, n - j - step))]
            low = [i for i in low if i // (2 * block) == (i + step) // (2 * block)]
            x = _compared(x, low, [i + step for i in low])
            step //= 2
        block *= 2
    return x


def _compared(x: Tensor, low: list[int], high: list[int]) -> Tensor:
    """The smaller of each pair in its lower place."""
    touched = {*low, *high}
    rest = [i for i in range(x.shape[-1]) if i not in touched]
    place = {index: n for n, index in enumerate([*rest, *low, *high])}
    a, b = x[..., low], x[..., high]
    parts = [x[..., rest], torch.minimum(a, b), torch.maximum(a, b)]
    return torch.cat(parts, -1)[..., [place[i] for i in range(x.shape[-1])]]


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Ranked:
    values = _in_order(input.movedim(dim, -1))
    values = (values.flip(-1) if descending else values).movedim(-1, dim)
    return Ranked(values, torch.argsort(input, dim=dim, descending=descending, stable=True))


def msort(input: Tensor) -> Tensor:
    return sort(input, 0).values


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Ranked:
    ranked = sort(input, dim, largest)
    return Ranked(ranked.values.narrow(dim, 0, k), ranked.indices.narrow(dim, 0, k))


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Ranked:
    ranked = sort(input, dim)
    found = [t.narrow(dim, k - 1, 1) for t in ranked]
    return Ranked(*(found if keepdim else [t.squeeze(dim) for t in found]))


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return kthvalue(input.flatten(), (input.numel() + 1) // 2, 0).values
    return kthvalue(input, (input.shape[dim] + 1) // 2, dim, keepdim)


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return input.amin(), input.amax()
    return input.amin(dim, keepdim), input.amax(dim, keepdim)


# ---- small compositions ----


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """a · σ(b), the two halves."""
    a, b = input.chunk(2, dim)
    return a * torch.sigmoid(b)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: Any = None) -> Tensor:
    return F.softmax(-input, dim, dtype=dtype)


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """With bounds that are live."""
    for bound, pick in ((min, torch.maximum), (max, torch.minimum)):
        if bound is not None:
            input = pick(input, torch.as_tensor(bound, dtype=input.dtype, device=input.device))
    return input


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """(a / max(‖a‖, ε)) · (b / max(‖b‖, ε))."""
    a, b = (t / t.square().sum(dim, keepdim=True).sqrt().clamp_min(eps) for t in (x1, x2))
    return (a * b).sum(dim)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim=keepdim)


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
    return x * x.square().sum(dim, keepdim=True).clamp_min(eps**2).sqrt().reciprocal()


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
    real = torch.ones_like(input, dtype=torch.bool) if padding_idx is None else input != padding_idx % len(weight)
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
    **RECURRENT,
    "einsum": einsum,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
    "normalize": normalize,
    "embedding_bag": embedding_bag,
    "sort": sort,
    "msort": msort,
    "topk": topk,
    "kthvalue": kthvalue,
    "median": median,
    "aminmax": aminmax,
    "glu": glu,
    "softmin": softmin,
    **dict.fromkeys(("clamp", "clip"), clamp),
    "cosine_similarity": cosine_similarity,
    "pairwise_distance": pairwise_distance,
}


def expandable(name: str, args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """Whether this call has the form that the expansion writes out; the rest stays fused."""
    given = [*args, *kwargs.values()]
    if any(isinstance(a, Tensor) and type(a) is not Tensor for a in given):
        return False  # a mask that is a class of its own
    if name in ("clamp", "clip"):
        return len(live) > 1  # with bounds that are live
    if name in ("layer_norm", "group_norm", "rms_norm", "instance_norm", "normalize"):
        return bool(args) and isinstance(args[0], Tensor) and "cudnn_enable" not in kwargs and len(args) < 7
    return name != "embedding_bag" or not (args and isinstance(args[0], Tensor) and args[0].is_floating_point())
