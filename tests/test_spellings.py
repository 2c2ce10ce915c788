"""A call means the same however its arguments are spelled: by position, by keyword, as a method, under torch's aliases.

Every spelling of `ops.py` is called with sample arguments in each way that torch takes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import whence
from tests.support.models import close
from whence.engine.arguments import placed
from whence.engine.expand import EXPANSIONS
from whence.engine.ops import FAMILIES

METHODS = ("gradient", "deeplift", "lrp", "attnlrp")
X = torch.randn(1, 24, generator=torch.Generator().manual_seed(0)).double()


@functools.cache
def weights(columns: int, seed: int) -> Tensor:
    return torch.randn(24, columns, generator=torch.Generator().manual_seed(seed)).double() / 4


@dataclass(frozen=True)
class Live:
    """An argument that depends on the explained input; a `unit` one lies between 0 and 1."""

    shape: tuple[int, ...]
    seed: int = 1
    unit: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        found = (x @ weights(torch.Size(self.shape).numel(), self.seed)).view(self.shape)
        return found.sigmoid() * 0.8 + 0.1 if self.unit else found


def const(*shape: int, seed: int = 9) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


A, B, C = Live((2, 3, 4)), Live((2, 3, 4), 2), Live((2, 3, 4), 3)
U, M, N, V, W = Live((2, 3, 4), 4, True), Live((3, 4), 5), Live((4, 3), 6), Live((4,), 7), Live((4,), 8)
S = Live((4, 4), 10)  # square
IMAGE, LINE, VOXEL = Live((1, 2, 6, 6), 11), Live((1, 2, 8), 12), Live((1, 2, 4, 4, 4), 13)
ROWS = torch.tensor([1, 0, 2])
MASK = const(2, 3, 4) > 0
HIDDEN = torch.tensor([[False, False, True], [False, False, False]])
OTHERS = torch.tensor([[[0, 1, 1, 0]], [[2, 0, 1, 2]]])
STATS = {"running_mean": const(2), "running_var": const(2).square() + 0.5}
P = {"weight": const(2), "bias": const(2, seed=8)}


def one(first: Any, /, **more: Any) -> dict[str, Any]:
    return {"input": first, **more}


# spelling → arguments in the order of the signature; a name with a dash goes by keyword alone
SAMPLES: dict[str, dict[str, Any]] = {
    "view": one(A, size=(6, 4)), "reshape": one(A, shape=(4, 6)), "permute": one(A, dims=(0, 2, 1)),
    "transpose": one(A, dim0=1, dim1=2), "t": one(M), "adjoint": one(A), "squeeze": one(Live((2, 1, 4)), dim=1),
    "unsqueeze": one(A, dim=1), "expand": one(M, size=(2, 3, 4)), "expand_as": one(M, other=A),
    "view_as": one(A, other=B), "reshape_as": one(A, other=B), "flatten": one(A, start_dim=1, end_dim=2),
    "unflatten": one(A, dim=2, sizes=(2, 2)), "ravel": one(A), "swapaxes": one(A, axis0=1, axis1=2),
    "swapdims": one(A, dim0=1, dim1=2), "movedim": one(A, source=1, destination=2),
    "moveaxis": one(A, source=1, destination=2), "contiguous": one(A), "clone": one(A),
    "as_strided": one(A, size=(2, 3), stride=(4, 1), storage_offset=1), "positive": one(A), "real": one(A),
    "requires_grad": one(A, requires_grad=True), "pixel_shuffle": one(Live((1, 4, 2, 2)), upscale_factor=2),
    "pixel_unshuffle": one(IMAGE, downscale_factor=2), "channel_shuffle": one(Live((1, 4, 2, 2)), groups=2),
    "resolve_conj": one(A), "resolve_neg": one(A), "alias": one(A), "lift_fresh": one(A),
    "to": one(A, other=const(1)), "type": one(A, dtype=torch.float64), "float": one(A), "double": one(A),
    "type_as": one(A, other=const(1)), "half": one(A), "bfloat16": one(A), "cpu": one(A),
    "narrow": one(A, dim=2, start=1, length=2), "select": one(A, dim=1, index=2),
        "slice": one(A, dim=2, start=1, end=3),
    "split": {"tensor": A, "split_size_or_sections": 2, "dim": 2},
        "split_with_sizes": one(A, split_sizes=[1, 3], dim=2),
    "chunk": one(A, chunks=2, dim=2), "unbind": one(A, dim=1), "tensor_split": one(A, indices_or_sections=2, dim=2),
    "hsplit": one(A, sections=3), "vsplit": one(A, sections=2), "dsplit": one(A, sections=2),
    "index_select": one(A, dim=1, index=ROWS), "gather": one(A, dim=1, index=OTHERS),
    "take": one(A, index=ROWS), "take_along_dim": one(A, indices=OTHERS, dim=1), "masked_select": one(A, mask=MASK),
    "diagonal": one(A, offset=0, dim1=1, dim2=2), "unfold": one(A, dimension=2, size=2, step=1),
        "roll": one(A, shifts=1, dims=2),
    "flip": one(A, dims=(2,)), "fliplr": one(A), "flipud": one(A), "rot90": one(A, k=1, dims=(1, 2)),
    "tril": one(A, diagonal=1), "triu": one(A, diagonal=1), "diag": one(S, diagonal=1),
    "repeat": one(A, repeats=(1, 2, 1)), "tile": one(A, dims=(1, 2, 1)),
    "repeat_interleave": one(A, repeats=2, dim=1), "broadcast_to": one(M, size=(2, 3, 4)),
    "cat": {"tensors": [A, B], "dim": 2}, "concat": {"tensors": [A, B], "dim": 1},
    "concatenate": {"tensors": [A, B], "dim": 1}, "stack": {"tensors": [A, B], "dim": 1},
    "hstack": {"tensors": [A, B]}, "vstack": {"tensors": [A, B]}, "dstack": {"tensors": [A, B]},
    "column_stack": {"tensors": [A, B]}, "row_stack": {"tensors": [A, B]},
    "index_put": one(A, indices=(torch.tensor([0]),), values=const(3, 4)),
    "index_copy": one(A, dim=1, index=torch.tensor([1]), source=const(2, 1, 4)),
    "index_fill": one(A, dim=1, index=torch.tensor([1]), value=0.5), "masked_fill": one(A, mask=MASK, value=0.5),
    "masked_scatter": one(A, mask=MASK, source=B), "scatter": one(A, dim=1, index=OTHERS, src=const(2, 1, 4)),
    "slice_scatter": one(A, src=const(2, 3, 2), dim=2, start=1, end=3),
    "select_scatter": one(A, src=const(2, 4), dim=1, index=1),
    "diagonal_scatter": one(S, src=const(3), offset=1), "copy": one(A, src=B), "fill": one(A, value=0.5),
    "where": {"condition": MASK, "input": A, "other": B}, "detach": one(A),
    "pad": one(A, pad=(1, 1), mode="constant", value=0.5), "constant_pad_nd": one(A, pad=(1, 1), value=0.5),
    "add": {**one(A, other=B), "-alpha": 2}, "sub": {**one(A, other=B), "-alpha": 2},
    "subtract": one(A, other=B), "rsub": one(A, other=B), "neg": one(A), "negative": one(A),
    "sum": one(A, dim=2, keepdim=True), "mean": one(A, dim=2, keepdim=True), "nansum": one(A, dim=2, keepdim=True),
    "nanmean": one(A, dim=2, keepdim=True), "trace": one(S),
    "linear": one(A, weight=const(4, 4), bias=const(4)),
        "conv1d": one(LINE, weight=const(2, 2, 3), bias=const(2), stride=1, padding=1),
    "conv2d": one(IMAGE, weight=const(2, 2, 3, 3), bias=const(2), stride=1, padding=1),
    "conv3d": one(VOXEL, weight=const(2, 2, 3, 3, 3), bias=const(2), stride=1, padding=1),
    "conv_transpose1d": one(LINE, weight=const(2, 2, 3), bias=const(2), stride=2),
    "conv_transpose2d": one(IMAGE, weight=const(2, 2, 3, 3), bias=const(2), stride=2),
    "conv_transpose3d": one(VOXEL, weight=const(2, 2, 3, 3, 3), bias=const(2), stride=2),
    "conv_tbc": one(Live((4, 1, 2)), weight=const(3, 2, 2), bias=const(2), pad=1),
    "convolution": one(IMAGE, weight=const(2, 2, 3, 3), bias=const(2), stride=(1, 1), padding=(1, 1), dilation=(1, 1),
                       transposed=False, output_padding=(0, 0), groups=1),
    "avg_pool1d": one(LINE, kernel_size=2, stride=2), "avg_pool2d": one(IMAGE, kernel_size=2, stride=2),
    "avg_pool3d": one(VOXEL, kernel_size=2, stride=2), "adaptive_avg_pool1d": one(LINE, output_size=2),
    "adaptive_avg_pool2d": one(IMAGE, output_size=2), "adaptive_avg_pool3d": one(VOXEL, output_size=2),
    "batch_norm": one(IMAGE, **STATS, **P), "dropout": one(A, p=0.5, training=False),
    "dropout1d": one(LINE, p=0.5, training=False), "dropout2d": one(IMAGE, p=0.5, training=False),
    "dropout3d": one(VOXEL, p=0.5, training=False), "alpha_dropout": one(A, p=0.5, training=False),
    "feature_alpha_dropout": one(A, p=0.5, training=False), "feature_dropout": one(A, p=0.5, train=False),
    "cumsum": one(A, dim=2), "diff": one(A, n=1, dim=2),
    "scatter_add": one(A, dim=1, index=OTHERS, src=Live((2, 1, 4), 2)),
        "index_add": one(A, dim=1, index=ROWS, source=B),
    "fold": one(Live((1, 8, 9)), output_size=(4, 4), kernel_size=(2, 2)),
    "interpolate": one(IMAGE, size=None, scale_factor=2), "upsample": one(IMAGE, size=None, scale_factor=2),
    "upsample_nearest": one(IMAGE, size=None, scale_factor=2),
        "upsample_bilinear": one(IMAGE, size=None, scale_factor=2),
    "grid_sample": one(
        IMAGE, grid=const(1, 3, 3, 2).tanh(), mode="bilinear", padding_mode="zeros", align_corners=False
    ),
    "embedding": {"input": ROWS, "weight": M}, "fft_fft": one(A, n=4, dim=2), "fft_rfft": one(A, n=4, dim=2),
    **{name: one(U if name in "log log2 log10 sqrt rsqrt logit digamma lgamma erfinv asin acos atanh".split() else A)
       for name in FAMILIES["elementwise"]
       if name not in "clamp pow leaky_relu floor xlogy acosh round logit elu celu softplus gelu softshrink".split()},
    "acosh": one(Live((2, 3, 4), 4)), "logit": one(U, eps=1e-3), "elu": one(A, alpha=1.5), "celu": one(A, alpha=1.5),
    "softplus": one(A, beta=2, threshold=20), "gelu": {**one(A), "-approximate": "tanh"},
    "softshrink": one(A, lambd=0.1), "hardshrink": one(A, lambd=0.1), "round": {**one(A), "-decimals": 1},
    "leaky_relu": one(A, negative_slope=0.2), "prelu": one(IMAGE, weight=const(2).abs()),
    "rrelu": one(A, lower=0.1, upper=0.3, training=False), "clamp": one(A, min=-0.2, max=0.3),
    "clip": one(A, min=0, max=None), "clamp_min": one(A, min=0), "clamp_max": one(A, max=0.3),
    "hardtanh": one(A, min_val=0, max_val=1), "threshold": one(A, threshold=0.1, value=0.2),
    "pow": one(U, exponent=-0.5), "float_power": one(U, exponent=-0.5), "special_expit": one(A),
    "logsigmoid": one(A), "log_sigmoid": one(A), "floor": one(A), "floor_divide": one(A, other=0.5),
    "heaviside": one(A, values=const(1)), "xlogy": one(U, other=Live((2, 3, 4), 14, True)),
    "mul": one(A, other=B), "multiply": one(A, other=U), "div": one(A, other=U), "divide": one(A, other=U),
    "true_divide": one(A, other=U), "addcmul": {**one(A, tensor1=B, tensor2=C), "-value": 0.5},
    "addcdiv": {**one(A, tensor1=B, tensor2=U), "-value": 0.5}, "matmul": one(M, other=N),
        "linalg_matmul": one(M, other=N),
    "mm": one(M, mat2=N), "bmm": one(A, mat2=Live((2, 4, 3), 15)), "mv": one(M, vec=V), "dot": one(V, tensor=W),
    "inner": one(V, other=W), "outer": one(V, vec2=W), "ger": one(V, vec2=W), "vdot": one(V, other=W),
    "addmm": {**one(Live((3, 3), 16), mat1=M, mat2=N), "-beta": 0.5, "-alpha": 2},
    "addmv": {**one(Live((3,), 16), mat=M, vec=V), "-beta": 0.5, "-alpha": 2},
    "addbmm": {**one(Live((3, 3), 16), batch1=A, batch2=Live((2, 4, 3), 15)), "-beta": 0.5, "-alpha": 2},
    "baddbmm": {**one(Live((2, 3, 3), 16), batch1=A, batch2=Live((2, 4, 3), 15)), "-beta": 0.5, "-alpha": 2},
    "tensordot": {"a": A, "b": const(4, 3), "dims": ([2], [0])}, "linalg_multi_dot": {"tensors": [M, N, M]},
    "kron": one(V, other=W), "bilinear": {"input1": M, "input2": M, "weight": const(2, 4, 4), "bias": const(2)},
    "glu": one(A, dim=2), "lerp": one(A, end=B, weight=U), "prod": one(A, dim=2, keepdim=True),
        "cumprod": one(A, dim=2),
    "softmax": one(A, dim=2), "log_softmax": one(A, dim=2), "softmin": one(A, dim=2),
    "layer_norm": one(A, normalized_shape=(4,), weight=const(4), bias=const(4, seed=8), eps=1e-3),
    "native_layer_norm": one(A, normalized_shape=(4,), weight=const(4), bias=const(4, seed=8), eps=1e-3),
    "rms_norm": one(A, normalized_shape=(4,), weight=const(4), eps=1e-3),
    "group_norm": one(IMAGE, num_groups=1, weight=const(2), bias=const(2, seed=8), eps=1e-3),
    "instance_norm": one(IMAGE, running_mean=None, running_var=None, **P),
    "local_response_norm": one(IMAGE, size=2, alpha=0.1), "normalize": one(A, p=2.0, dim=2, eps=1e-6),
    "max_pool1d": one(LINE, kernel_size=2, stride=2), "max_pool2d": one(IMAGE, kernel_size=2, stride=2),
    "max_pool3d": one(VOXEL, kernel_size=2, stride=2), "adaptive_max_pool1d": one(LINE, output_size=2),
    "adaptive_max_pool2d": one(IMAGE, output_size=2), "adaptive_max_pool3d": one(VOXEL, output_size=2),
    "max_pool1d_with_indices": one(LINE, kernel_size=2, stride=2),
    "max_pool2d_with_indices": one(IMAGE, kernel_size=2, stride=2),
    "max_pool3d_with_indices": one(VOXEL, kernel_size=2, stride=2),
    "max": one(A, dim=2, keepdim=True), "min": one(A, dim=2, keepdim=True), "amax": one(A, dim=2, keepdim=True),
    "amin": one(A, dim=2, keepdim=True), "maximum": one(A, other=B), "minimum": one(A, other=B),
        "fmax": one(A, other=B),
    "fmin": one(A, other=B), "median": one(A, dim=2, keepdim=True), "nanmedian": one(A, dim=2, keepdim=True),
    "kthvalue": one(A, k=2, dim=2, keepdim=True), "mode": one(A, dim=2, keepdim=True),
    "aminmax": {**one(A), "-dim": 2, "-keepdim": True}, "cummax": one(A, dim=2), "cummin": one(A, dim=2),
    "sort": one(A, dim=2, descending=True), "topk": one(A, k=2, dim=2, largest=True, sorted=True), "msort": one(A),
    "norm": one(A, p=2, dim=2, keepdim=True), "frobenius_norm": one(A, dim=2, keepdim=True),
    "linalg_norm": one(A, ord=2, dim=2, keepdim=True), "linalg_vector_norm": one(A, ord=1, dim=2, keepdim=True),
    "scaled_dot_product_attention": {"query": Live((1, 2, 3, 4)), "key": Live((1, 2, 3, 4), 2),
        "value": Live((1, 2, 3, 4), 3),
                                     "attn_mask": None, "dropout_p": 0.0, "is_causal": True, "-scale": 0.3},
    "multi_head_attention_forward": {
        "query": Live((3, 1, 4)), "key": Live((3, 1, 4), 2), "value": Live((3, 1, 4), 3), "embed_dim_to_check": 4,
        "num_heads": 2, "in_proj_weight": const(12, 4), "in_proj_bias": const(12), "bias_k": None, "bias_v": None,
        "add_zero_attn": False, "dropout_p": 0.0, "out_proj_weight": const(4, 4), "out_proj_bias": const(4),
        "training": False, "key_padding_mask": None, "need_weights": True,
    },
    "lstm_cell": {"input": Live((1, 3)), "hx": (Live((1, 4), 2), Live((1, 4), 3)), "w_ih": const(16, 3),
        "w_hh": const(16, 4),
                  "b_ih": const(16), "b_hh": const(16)},
    "gru_cell": {"input": Live((1, 3)), "hx": Live((1, 4), 2), "w_ih": const(12, 3), "w_hh": const(12, 4),
                 "b_ih": const(12), "b_hh": const(12)},
    **{f"rnn_{name}_cell": {"input": Live((1, 3)), "hx": Live((1, 4), 2), "w_ih": const(4, 3), "w_hh": const(4, 4),
                            "b_ih": const(4), "b_hh": const(4)} for name in ("tanh", "relu")},
    "lstm": {"input": Live((1, 2, 3)), "hx": (const(1, 1, 4), const(1, 1, 4)),
             "params": (const(16, 3), const(16, 4), const(16), const(16)), "has_biases": True, "num_layers": 1,
             "dropout": 0.0,
             "train": False, "bidirectional": False, "batch_first": True},
    "gru": {"input": Live((1, 2, 3)), "hx": const(1, 1, 4),
        "params": (const(12, 3), const(12, 4), const(12), const(12)),
            "has_biases": True, "num_layers": 1, "dropout": 0.0, "train": False, "bidirectional": False,
            "batch_first": True},
    **{f"rnn_{name}": {"input": Live((1, 2, 3)), "hx": const(1, 1, 4),
        "params": (const(4, 3), const(4, 4), const(4), const(4)),
            "has_biases": True, "num_layers": 1, "dropout": 0.0, "train": False, "bidirectional": False,
            "batch_first": True}
       for name in ("tanh", "relu")},
    "embedding_bag": {"input": torch.tensor([[1, 0], [2, 2]]), "weight": M, "offsets": None, "max_norm": None,
        "norm_type": 2.0,
                      "scale_grad_by_freq": False, "mode": "sum"},
    "cosine_similarity": {"x1": A, "x2": B, "dim": 2, "eps": 1e-6},
    "pairwise_distance": {"x1": M, "x2": Live((3, 4), 2), "p": 2.0, "eps": 1e-6, "keepdim": True},
    "cross_entropy": {**one(M, target=torch.tensor([1, 0, 3])), "-reduction": "sum"},
    "binary_cross_entropy_with_logits": {**one(M, target=const(3, 4).sigmoid()), "-reduction": "sum"},
    "l1_loss": {**one(M, target=const(3, 4)), "-reduction": "sum"},
    "logsumexp": one(A, dim=2, keepdim=True), "std": one(A, dim=2, unbiased=False, keepdim=True),
    **dict.fromkeys(("var_mean", "std_mean"), one(A, dim=2, unbiased=False, keepdim=True)),
    "var": one(A, dim=2, unbiased=False, keepdim=True), "cdist": {"x1": A, "x2": B, "p": 2.0},
    "dist": one(A, other=B, p=2), "hypot": one(A, other=B), "mse_loss": {**one(M, target=const(3, 4)),
        "-reduction": "sum"},
}  # fmt: skip
# operators and attributes take no keywords; these have none either, or are their own kind of call
WITHOUT = frozenset(
    """T mT H mH data atleast_1d atleast_2d atleast_3d getitem setitem index meshgrid broadcast_tensors block_diag
    radd rpow rmatmul rdiv rtruediv truediv floordiv zero einsum chain_matmul int long short cuda _to_copy
    boolean_dispatch fill_diagonal view_as_real view_as_complex fractional_max_pool2d fractional_max_pool3d col2im
    grouped_mm quantized::linear_dynamic quantized::linear_dynamic_fp16 grouped_rows transformers::grouped_mm_fallback
    _convolution _softmax _log_softmax native_group_norm _native_multi_head_attention special_expit expit
    adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices""".split()
) | {name for name in FAMILIES["linear"]["fourier"].split() if name not in ("fft_fft", "fft_rfft")}
METHODS_ALONE = frozenset(
    "contiguous to cpu float double half bfloat16 custom".split()
)  # methods of tensors that take no keyword here, and what no function of torch is
ALIASES = {"input": ("x", "a", "x1", "self"), "other": ("x2",), "dim": ("axis",), "keepdim": ("keepdims",)}
PLACES = (torch, F, Tensor, torch.ops.aten)


def functions(name: str) -> Iterator[tuple[Any, Any]]:
    """Where torch has this spelling."""
    for prefix, place in (("linalg_", torch.linalg), ("fft_", torch.fft), ("special_", torch.special)):
        if name.startswith(prefix):
            yield place, getattr(place, name.removeprefix(prefix), None)
    for place in PLACES if name != "to" else (Tensor,):
        for spelled in (name, f"{name}_") if place is Tensor else (name,):
            found = getattr(place, spelled, None)
            if callable(found):
                yield place, found


def ways(place: Any, sample: dict[str, Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """The same arguments: all by position, then fewer and fewer, then by other names."""
    given = {name: value for name, value in sample.items() if not name.startswith("-")}
    named = {name[1:]: value for name, value in sample.items() if name.startswith("-")}
    names, values = list(given), list(given.values())
    yield values, named
    for count in range(len(values) - 1, 0 if place is Tensor else -1, -1):
        if count in (0, 1, len(values) - 1):
            yield values[:count], {**dict(zip(names[count:], values[count:], strict=True)), **named}
    for at, name in enumerate(names):
        for alias in ALIASES.get(name, ()):
            if at or place is not Tensor:
                rest = dict(zip(names[at:], values[at:], strict=True))
                yield values[:at], {alias if key == name else key: value for key, value in rest.items()} | named


def called(func: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], x: Tensor) -> Any:
    made: dict[int, Any] = {}

    def value(item: Any) -> Any:
        if isinstance(item, Live):
            return made.setdefault(id(item), item(x))
        if type(item) in (list, tuple):
            return type(item)(map(value, item))
        return item.clone() if isinstance(item, Tensor) else item

    return func(*map(value, args), **{key: value(item) for key, item in kwargs.items()})


def tensors(result: Any) -> list[Tensor]:
    parts = (
        [result]
        if isinstance(result, Tensor)
        else [t for part in result for t in tensors(part)]
        if isinstance(result, tuple | list)
        else []
    )
    return [torch.view_as_real(t) if t.is_complex() else t for t in parts if t.is_floating_point() or t.is_complex()]


def answers(func: Any, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    """What the methods say of a small network around the call: a residual and a product with what it gives."""

    def model(x: Tensor) -> Tensor:
        found = tensors(called(func, args, kwargs, x))
        found = [t.to(x.dtype).flatten() for t in found]
        y = torch.cat(found)
        u = (x @ weights(y.numel(), 20)).flatten()
        z = torch.cat([u + y, u * y])
        return (z @ torch.linspace(-1, 1.2, z.numel(), dtype=x.dtype)).view(1, 1)

    return [_values(model, method) for method in METHODS]


def _values(model: Any, method: str) -> Any:
    try:
        return whence.explain(model, X, method=method, target=0).values
    except (whence.WhenceError, RuntimeError) as error:  # torch differentiates some ops not at all
        return type(error)


def spelled(name: str) -> Iterator[tuple[str, Any, list[tuple[list[Any], dict[str, Any]]]]]:
    """Each function of this name, and the ways to call it that torch takes."""
    for place, func in functions(name):
        found = []
        for args, kwargs in ways(place, SAMPLES[name]):
            with contextlib.suppress(TypeError, RuntimeError, AttributeError, ValueError), torch.no_grad():
                called(func, args, kwargs, X)
                found.append((args, kwargs))
        if found:
            yield f"{getattr(place, '__name__', place)}.{name}", func, found


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.filterwarnings("ignore")
def test_arguments_mean_the_same_by_position_and_by_keyword(name: str) -> None:
    told, compared = False, False
    for where, func, found in spelled(name):
        forms = [placed(func, args, kwargs) for args, kwargs in found]
        dispatches = _dispatches(func)
        for (args, kwargs), (_, given) in zip(forms, found, strict=True):
            same = len(args) == len(forms[0][0]) and all(a is b for a, b in zip(args, forms[0][0], strict=True))
            told = told or bool(given)
            assert dispatches or (same and kwargs.keys() == forms[0][1].keys()), f"{where}{tuple(given)}"
        by_keyword = min(found, key=lambda way: len(way[0]))
        if not by_keyword[1] or (compared and not dispatches):
            continue
        compared = True
        for method, a, b in zip(METHODS, answers(func, *by_keyword), answers(func, *found[0]), strict=True):
            assert isinstance(a, Tensor) == isinstance(b, Tensor), f"{where}, {method}: {a} against {b}"
            if isinstance(a, Tensor) and bool(b.isfinite().all()):
                apart = float((a - b).abs().max() / b.abs().max().clamp(min=1e-300))
                assert apart <= 1e-12, f"{where}{tuple(by_keyword[1])}, {method}: apart by {apart:.2g}"
    assert told or name in METHODS_ALONE, f"{name} was called by no keyword"


def _dispatches(func: Any) -> bool:
    """Functions of (*args, **kwargs), which call others."""
    kinds = {p.kind for p in inspect.signature(func).parameters.values()} if inspect.isfunction(func) else set()
    return inspect.Parameter.VAR_KEYWORD in kinds or getattr(func, "__name__", "") == "type"


def test_every_spelling_has_a_sample() -> None:
    spelled = {name for families in FAMILIES.values() for names in families.values() for name in names.split()}
    assert not (spelled | set(EXPANSIONS)) - set(SAMPLES) - WITHOUT


def norm(multiply: Callable[[Tensor, Tensor], Tensor], root: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A block with a norm written by hand, a gate and a residual."""

    def model(x: Tensor) -> Tensor:
        u = x @ weights(24, 30)
        c = u - u.mean(-1, keepdim=True)
        n = multiply(c, root(c.square().mean(-1, keepdim=True) + 1e-5))
        return (u + multiply(u, n)) @ weights(3, 31)

    return model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("multiply", "root"),
    [
        (lambda a, b: torch.mul(a, other=b), torch.rsqrt),
        (lambda a, b: torch.mul(input=a, other=b), lambda v: torch.rsqrt(input=v)),
        (lambda a, b: a.multiply(other=b), lambda v: torch.pow(v, exponent=-0.5)),
        (lambda a, b: torch.mul(x1=a, x2=b), lambda v: torch.pow(input=v, exponent=-0.5)),
        (torch.mul, lambda v: torch.pow(v, torch.tensor(-0.5, dtype=v.dtype))),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_norm_written_by_hand(multiply: Any, root: Any, method: str) -> None:
    rows = torch.cat([X, X.flip(1)])
    found = whence.explain(norm(multiply, root), rows, method=method, target=1).values
    expected = whence.explain(norm(torch.mul, torch.rsqrt), rows, method=method, target=1).values
    close(found, expected, 1e-10)


@pytest.mark.filterwarnings("ignore")
def test_cuts_and_writes_by_keyword() -> None:
    def model(x: Tensor) -> Tensor:
        held = torch.detach(input=x)
        y = torch.relu_(input=torch.mul(input=x, other=held))
        return torch.sum(a=y, axis=1, keepdims=True)

    for method in METHODS:
        plain = whence.explain(lambda x: torch.relu(x * x.detach()).sum(1, keepdim=True), X, method=method, target=0)
        close(whence.explain(model, X, method=method, target=0).values, plain.values, 1e-12)


_W, _V, _B = (torch.linspace(-1, 1, n).double().sin().mul(3).roll(5) for n in (36, 18, 6))
_W, _V = _W.view(6, 6), _V.view(6, 3)


def _normed(h: Tensor, variance: Tensor, mean: Tensor) -> Tensor:
    return (h - mean) * torch.rsqrt(variance + 1e-5)


def _norm(x: Tensor) -> Tensor:
    h = x @ _W
    return _normed(h, h.var(-1, correction=0, keepdim=True), h.mean(-1, keepdim=True)) @ _V


def _norm_by_both(x: Tensor) -> Tensor:
    h = x @ _W
    return _normed(h, *torch.var_mean(h, -1, correction=0, keepdim=True)) @ _V


SAME: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "linalg.matmul": (
        lambda x: torch.linalg.matmul(torch.linalg.matmul(x, _W).relu(), _V), lambda x: (x @ _W).relu() @ _V,
    ),
    "multi_dot": (lambda x: torch.linalg.multi_dot([x, _W, _V]), lambda x: x @ _W @ _V),
    "addmm, scaled": (
        lambda x: torch.addmm(_B, x, _W, beta=2, alpha=0.5).relu() @ _V,
        lambda x: ((x @ _W) * 0.5 + _B * 2).relu() @ _V,
    ),
    "baddbmm": (
        lambda x: torch.baddbmm(_B, x[:, None], _W.expand(len(x), 6, 6), beta=0)[:, 0].relu() @ _V,
        lambda x: torch.bmm(x[:, None], _W.expand(len(x), 6, 6))[:, 0].relu() @ _V,
    ),
    "special.softmax": (
        lambda x: (torch.special.softmax(x @ _W, dim=-1) * (x @ _W)) @ _V,
        lambda x: (torch.softmax(x @ _W, -1) * (x @ _W)) @ _V,
    ),
    "var_mean": (_norm_by_both, _norm),
    "native_layer_norm": (
        lambda x: torch.native_layer_norm(x @ _W, (6,), None, None, 1e-5)[0] @ _V,
        lambda x: F.layer_norm(x @ _W, (6,)) @ _V,
    ),
    "special.erf": (
        lambda x: (x * 0.5 * (1 + torch.special.erf(x / 2**0.5))) @ _V,
        lambda x: (x * 0.5 * (1 + torch.erf(x / 2**0.5))) @ _V,
    ),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SAME)
@pytest.mark.parametrize(
    ("method", "options"),
    [("gradient", {}), ("deeplift", {}), ("deeplift", {"rule": "reveal_cancel"}), ("attnlrp", {}), ("lrp", {}),
     ("lrp", {"composite": "gamma"}), ("lrp", {"composite": "z_plus"})],
)  # fmt: skip
def test_names_of_one_function_are_one_op(spelling: str, method: str, options: dict[str, str]) -> None:
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)).double()
    one, other = (whence.explain(f, x, method=method, target=0, **options).values for f in SAME[spelling])
    assert float((one - other).abs().max()) <= 1e-12 * float(other.abs().max())
