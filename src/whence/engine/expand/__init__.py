"""Fused ops written out in plain ones and run under the mode, so that rules reach their parts.

Each function takes the fused op's own arguments and gives its own result. A method chooses which families are expanded;
plain gradients need not pay for it.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.engine.expand.attention import attention, multi_head_attention
from whence.engine.expand.recurrent import RECURRENT

# ---- order: a network of pairs, each a minimum and a maximum ----


class Ranked(NamedTuple):
    """What sort, topk, median and their kin give."""

    values: Tensor
    indices: Tensor


class Extremes(NamedTuple):
    min: Tensor
    max: Tensor


def _in_order(x: Tensor, block: int = 1) -> Tensor:
    """Ascending along the last axis, whose length is a power of two; blocks of some length may be in order already."""
    while block < x.shape[-1]:
        x = x.unflatten(-1, (-1, 2 * block))
        low, high = x[..., :block], x[..., block:].flip(-1)
        x = torch.cat([torch.minimum(low, high), torch.maximum(low, high).flip(-1)], -1)
        step = block // 2
        while step:  # each half is bitonic now
            x = x.unflatten(-1, (-1, 2, step))
            low, high = x[..., 0, :], x[..., 1, :]
            x = torch.stack([torch.minimum(low, high), torch.maximum(low, high)], -2).flatten(-3)
            step //= 2
        x = x.flatten(-2)
        block *= 2
    return x


def _padded(x: Tensor, length: int, value: float) -> Tensor:
    rest = x.new_full((*x.shape[:-1], length - x.shape[-1]), value)
    return torch.cat([x, rest], -1) if rest.shape[-1] else x


def _largest(x: Tensor, k: int) -> Tensor:
    """The k largest along the last axis, largest first: blocks in order, of which each round keeps the better half."""
    size = 1 << (k - 1).bit_length()
    blocks = 1 << (max(1, -(-x.shape[-1] // size)) - 1).bit_length()
    x = _in_order(_padded(x, size * blocks, -math.inf).unflatten(-1, (blocks, size)))
    while x.shape[-2] > 1:
        x = torch.maximum(x[..., ::2, :], x[..., 1::2, :].flip(-1))
        x = _from_bitonic(x)
    return x[..., 0, :].flip(-1)[..., :k]


def _from_bitonic(x: Tensor) -> Tensor:
    step = x.shape[-1] // 2
    while step:
        y = x.unflatten(-1, (-1, 2, step))
        low, high = y[..., 0, :], y[..., 1, :]
        x = torch.stack([torch.minimum(low, high), torch.maximum(low, high)], -2).flatten(-3)
        step //= 2
    return x


def _ranked(values: Tensor, own: Any, dim: int, in_order: bool = True) -> Ranked:
    """Values by the network, in the places where the op itself has them."""
    values, theirs = values.movedim(-1, dim), own.values
    if not in_order:
        order = theirs.argsort(dim=dim, stable=True).argsort(dim=dim)
        values = values.gather(dim, values.detach().argsort(dim=dim, stable=True).gather(dim, order))
    return Ranked(values, own.indices)


def _of_its_own(function: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """What the op itself gives, unseen by the mode."""
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return function(input.detach(), *args, **kwargs)


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Ranked:
    own = _of_its_own(torch.sort, input, dim=dim, descending=descending, stable=stable)
    x = input.movedim(dim, -1)
    values = _in_order(_padded(x, 1 << max(0, x.shape[-1] - 1).bit_length(), math.inf))[..., : x.shape[-1]]
    return _ranked(values.flip(-1) if descending else values, own, dim)


def msort(input: Tensor) -> Tensor:
    return sort(input, 0).values


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Ranked:
    own = _of_its_own(torch.topk, input, k, dim, largest, sorted)
    x = input.movedim(dim, -1)
    return _ranked(_largest(x, k) if largest else -_largest(-x, k), own, dim, sorted)


def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Ranked:
    own = _of_its_own(torch.kthvalue, input, k, dim, keepdim)
    found = -_largest(-input.movedim(dim, -1), k)[..., -1:].movedim(-1, dim)
    return Ranked(found if keepdim else found.squeeze(dim), own.indices)


def median(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return kthvalue(input.flatten(), (input.numel() + 1) // 2, 0).values
    own = _of_its_own(torch.median, input, dim, keepdim)
    return Ranked(kthvalue(input, (input.shape[dim] + 1) // 2, dim, keepdim).values, own.indices)


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Extremes:
    axes = () if dim is None else (dim,)
    return Extremes(input.amin(axes, keepdim), input.amax(axes, keepdim))


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


def norm_of(
    x: Tensor, p: Any = None, dim: Any = None, keepdim: bool = False, out: None = None, dtype: Any = None
) -> Any:
    """‖x‖₁ and ‖x‖∞ by their magnitudes."""
    axes = tuple(range(x.dim())) if dim is None else dim
    size = x.abs()
    return size.sum(axes, keepdim=keepdim) if p == 1 else size.amax(axes, keepdim=keepdim)


def cross_entropy(
    input: Tensor, target: Tensor, weight: None = None, size_average: None = None, ignore_index: int = -100,
    reduce: None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """−log_softmax(x) at the label."""
    losses = -torch.log_softmax(input, 1 if input.dim() > 1 else 0)
    at = target.unsqueeze(1) if input.dim() > 1 else target
    return _reduced(losses.gather(1 if input.dim() > 1 else 0, at).squeeze(1 if input.dim() > 1 else -1), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: None = None, size_average: None = None, reduce: None = None,
    reduction: str = "mean", pos_weight: None = None,
) -> Tensor:  # fmt: skip
    """softplus(x) − x·t."""
    return _reduced(-F.logsigmoid(-input) - input * target, reduction)


def l1_loss(
    input: Tensor, target: Tensor, size_average: None = None, reduce: None = None, reduction: str = "mean",
    weight: None = None,
) -> Tensor:  # fmt: skip
    return _reduced((input - target).abs(), reduction)


def _reduced(losses: Tensor, reduction: str) -> Tensor:
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim=keepdim)


# ---- products, norms, bags ----


def addmm(input: Tensor, *factors: Tensor, beta: float = 1, alpha: float = 1, **named: Tensor) -> Tensor:
    """With two live factors, as addmv and baddbmm too: a product, then a sum."""
    a, b = (*factors, *named.values())
    product = a @ b if alpha == 1 else (a @ b) * alpha
    return product + (input if beta == 1 else input * beta)


def grouped_mm(
    input: Tensor, weight: Tensor, offs: Tensor, bias: None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """A matrix for each group of rows, of which `offs` says where they end; rows after the last group get 0."""
    rows = torch.arange(len(input), device=offs.device, dtype=offs.dtype)
    return grouped_rows(input, weight, torch.searchsorted(offs, rows, right=True))


def grouped_rows(input: Tensor, weight: Tensor, group: Tensor) -> Tensor:
    """Each row times the matrix of its group, whatever the order of the rows is; an op of its own for the mode."""
    if torch.overrides.has_torch_function((input, weight, group)):
        found: Tensor = torch.overrides.handle_torch_function(grouped_rows, (input,), input, weight, group)
        return found
    by = group.argsort(stable=True)
    counts = group.bincount(minlength=len(weight) + 1).tolist()
    parts = [
        part @ weight[n] if n < len(weight) else part.new_zeros(len(part), weight.shape[-1])
        for n, part in enumerate(input[by].split(counts))
    ]
    return torch.cat(parts)[by.argsort()]


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x₁ᵀ W x₂ + b: a linear map of one, then a product with the other."""
    mixed = torch.einsum("...i,oij->...oj", input1, weight)
    found = torch.einsum("...oj,...j->...o", mixed, input2)
    return found if bias is None else found + bias


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return input + (tensor1 * tensor2 if value == 1 else tensor1 * tensor2 * value)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return input + tensor1 / tensor2 * value


def with_mean(spread: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """torch.var_mean, torch.std_mean: two functions of one tensor."""

    def both(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        dim = kwargs.get("dim", args[0] if args and not isinstance(args[0], bool) else None)
        keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
        return spread(input, *args, **kwargs), torch.mean(input, dim, keepdim=bool(keepdim))

    return both


def native_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """With the mean and the scale that it divides by."""
    dims = tuple(range(-len(normalized_shape), 0))
    scale = torch.rsqrt(torch.var(input, dims, correction=0, keepdim=True) + eps)
    out = F.layer_norm(input, list(normalized_shape), weight, bias, eps)
    return out, torch.mean(input, dims, keepdim=True), scale


def chain(*matrices: Any) -> Tensor:
    """torch.chain_matmul(a, b, c), torch.linalg.multi_dot([a, b, c]): one product after the other."""
    given = matrices[0] if isinstance(matrices[0], list | tuple) else matrices
    return functools.reduce(torch.matmul, given)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return input * beta + (batch1 @ batch2).sum(0) * alpha


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    return input * (1 - weight) + end * weight


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
        return x / torch.norm(x, p, dim, keepdim=True).clamp_min(eps)
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
    **dict.fromkeys(("norm", "linalg_vector_norm"), norm_of),
    "cross_entropy": cross_entropy,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "l1_loss": l1_loss,
    **dict.fromkeys(("addmm", "addmv", "baddbmm"), addmm),
    "addbmm": addbmm,
    **dict.fromkeys(("chain_matmul", "linalg_multi_dot"), chain),
    "var_mean": with_mean(torch.var),
    "std_mean": with_mean(torch.std),
    "native_layer_norm": native_layer_norm,
    "addcmul": addcmul,
    "bilinear": bilinear,
    **dict.fromkeys(("grouped_mm", "transformers::grouped_mm_fallback"), grouped_mm),
    "addcdiv": addcdiv,
    "lerp": lerp,
}


def _order(args: Any, kwargs: Any) -> Any:
    return kwargs.get("p", kwargs.get("ord", args[1] if len(args) > 1 else None))


def _plain_loss(loss: Callable[..., Tensor]) -> Callable[[Any, Any, Sequence[Tensor]], bool]:
    """No weights, no smoothing, labels that are ids or of the input's shape."""
    odd = ("weight", "pos_weight", "label_smoothing", "size_average", "reduce")
    names = tuple(inspect.signature(loss).parameters)

    def fits(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        plain = all(not isinstance(given.get(name), Tensor) and not given.get(name) for name in odd)
        return plain and given.get("reduction", "mean") in ("mean", "sum", "none")

    return fits


def _labels(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    return _plain_loss(cross_entropy)(args, kwargs, live) and not (
        args[1].is_floating_point() or bool((args[1] < 0).any())
    )


def _by_group(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """Rows by constant matrices, and nothing else."""
    given = {**dict(zip(inspect.signature(grouped_mm).parameters, args, strict=False)), **kwargs}
    plain = given.get("bias") is None and given.get("out_dtype") is None and isinstance(given.get("offs"), Tensor)
    return plain and len(live) == 1 and args[0] is live[0] and args[0].dim() == 2 and args[1].dim() == 3


def _two_live_factors(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """More than a constant matrix and a bias."""
    return len(live) > 1 or any(args[0] is t for t in live)


def _no_dense_layer(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """More than a constant matrix and a bias, or either of them scaled."""
    scaled = kwargs.get("alpha", 1) != 1 or kwargs.get("beta", 1) != 1
    return scaled or _two_live_factors(args, kwargs, live)


# which calls of an op have the form that is written out
_FORMS: dict[str, Callable[[Any, Any, Sequence[Tensor]], bool]] = {
    **dict.fromkeys(("clamp", "clip"), lambda args, kwargs, live: len(live) > 1),  # with bounds that are live
    **dict.fromkeys(
        ("norm", "linalg_vector_norm"),
        lambda args, kwargs, live: _order(args, kwargs) in (1, math.inf) and not args[0].is_complex(),
    ),
    **dict.fromkeys("addcmul addcdiv lerp".split(), _two_live_factors),
    **dict.fromkeys("addmm addmv addbmm".split(), _no_dense_layer),
    "baddbmm": lambda args, kwargs, live: True,
    **dict.fromkeys(("grouped_mm", "transformers::grouped_mm_fallback"), _by_group),
    "cross_entropy": _labels,
    "binary_cross_entropy_with_logits": _plain_loss(binary_cross_entropy_with_logits),
    "l1_loss": _plain_loss(l1_loss),
}


def expandable(name: str, args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """Whether this call has the form that the expansion writes out; the rest stays fused."""
    given = [*args, *kwargs.values()]
    if any(isinstance(a, Tensor) and type(a) is not Tensor for a in given):
        return False  # a mask that is a class of its own
    form = _FORMS.get(name)
    if form is not None and not form(args, kwargs, live):
        return False
    if name in ("layer_norm", "group_norm", "rms_norm", "instance_norm", "normalize"):
        return bool(args) and isinstance(args[0], Tensor) and "cudnn_enable" not in kwargs and len(args) < 7
    return name != "embedding_bag" or not (args and isinstance(args[0], Tensor) and args[0].is_floating_point())
