"""Fused ops written out in plain ones and run under the mode, so that rules reach their parts.

Each function takes the fused op's own arguments and gives its own result. A method chooses which families are expanded;
plain gradients need not pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.attention import attention, multi_head_attention
from whence.engine.recurrent import RECURRENT

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
