"""Spellings of ops as data: what the mode sees, turned into one of a few dozen families.

`F.relu`, `torch.relu`, `Tensor.relu_`, `clamp(min=0)` and `torch.ops.aten.relu` are one family, "relu". A family
belongs to a group ("elementwise"), and a rule may be given for either. Ops outside the table keep their own name
as family and have no group; the receipt names them as unknown.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from whence.engine.inplace import LENDS, MAY_DRAW, SILENT_WRITES
from whence.util.tree import tensors_in

# group -> family -> spellings, each without dunders and without the underscore of the in-place form
FAMILIES: dict[str, dict[str, str]] = {
    "view": {  # moves or copies entries, no arithmetic: autograd is right for every signal
        "view": """view reshape permute transpose t T mT H mH adjoint squeeze unsqueeze expand expand_as view_as
            reshape_as flatten unflatten ravel swapaxes swapdims movedim moveaxis contiguous clone alias
            atleast_1d atleast_2d atleast_3d as_strided positive requires_grad real data lift_fresh
            pixel_shuffle pixel_unshuffle channel_shuffle resolve_conj resolve_neg""",
        "cast": "to type float double half bfloat16 int long short type_as cpu cuda _to_copy",
        "index": """getitem narrow select slice split split_with_sizes chunk unbind tensor_split hsplit vsplit dsplit
            index_select gather take take_along_dim masked_select diagonal unfold roll flip fliplr flipud rot90
            tril triu diag index""",
        "repeat": "repeat tile repeat_interleave broadcast_to broadcast_tensors meshgrid",
        "concatenate": "cat concat concatenate stack hstack vstack dstack column_stack row_stack block_diag",
        "write": """setitem copy index_put index_copy index_fill masked_fill masked_scatter scatter slice_scatter
            select_scatter diagonal_scatter fill_diagonal fill zero""",
        "where": "where",
        "detach": "detach",
        "pad": "pad constant_pad_nd",
    },
    "linear": {  # a linear (or affine) map of its live inputs: autograd is right for multipliers
        "add": "add radd sub rsub subtract neg negative",
        "sum": "sum mean nansum nanmean trace",
        "scale": "",
        "linear": "linear grouped_rows",
        "convolution": """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc
            convolution _convolution""",
        "average_pool": """avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
            adaptive_avg_pool3d""",
        "batch_norm": "",
        "dropout": "dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout",
        "cumsum": "cumsum diff",
        "scatter_add": "scatter_add index_add fold col2im",
        "interpolate": "interpolate upsample upsample_nearest upsample_bilinear grid_sample",
        "embedding": "embedding",
        "fourier": """fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn
            fft_rfftn fft_irfftn view_as_real view_as_complex""",
    },
    "elementwise": {
        "relu": "relu",
        "relu6": "relu6",
        "leaky_relu": "leaky_relu prelu rrelu",
        "clamp": "clamp clip clamp_min clamp_max hardtanh threshold",
        "pow": "pow rpow float_power",
        "sigmoid": "sigmoid special_expit expit",
        "custom": "",  # a model's own function, entry by entry
        "logsigmoid": "logsigmoid log_sigmoid",
        "floor": "floor floor_divide floordiv heaviside",
        **{
            name: name
            for name in """elu celu selu gelu silu mish hardswish hardsigmoid softplus softsign tanhshrink softshrink
            hardshrink tanh exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal square
            sin cos tan asin acos atan sinh cosh asinh acosh atanh erf erfc erfinv lgamma digamma abs logit
            sinc xlogy round ceil trunc frac sign""".split()
        },
    },
    "product": {
        "multiply": "mul multiply addcmul",
        "divide": "div divide true_divide rdiv rtruediv truediv addcdiv",
        "matmul": """matmul rmatmul mm bmm mv dot inner outer ger vdot addmm addmv addbmm baddbmm tensordot chain_matmul
            linalg_matmul linalg_multi_dot kron grouped_mm transformers::grouped_mm_fallback""",
        "einsum": "einsum",
        "bilinear": "bilinear",
        "glu": "glu",
        "lerp": "lerp",
        "prod": "prod",
        "cumprod": "cumprod",
    },
    "softmax": {"softmax": "softmax _softmax", "log_softmax": "log_softmax _log_softmax", "softmin": "softmin"},
    "norm": {
        "layer_norm": "layer_norm native_layer_norm",
        "rms_norm": "rms_norm",
        "group_norm": "group_norm native_group_norm",
        "instance_norm": "instance_norm",
        "batch_norm_training": "",
        "local_response_norm": "local_response_norm",
        "normalize": "normalize",
    },
    "max": {
        "max_pool": """max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices
            max_pool3d_with_indices adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
            adaptive_max_pool1d_with_indices adaptive_max_pool2d_with_indices adaptive_max_pool3d_with_indices
            fractional_max_pool2d fractional_max_pool3d boolean_dispatch""",
        "max": "max amax min amin maximum minimum fmax fmin median nanmedian kthvalue mode aminmax cummax cummin",
        "sort": "sort topk msort",
    },
    "reduction": {"vector_norm": "norm linalg_norm linalg_vector_norm frobenius_norm"},  # "norm" is the group above
    "attention": {
        "scaled_dot_product_attention": "scaled_dot_product_attention",
        "multi_head_attention": "multi_head_attention_forward _native_multi_head_attention",
    },
    "recurrent": {
        "lstm": "lstm lstm_cell",
        "gru": "gru gru_cell",
        "rnn": "rnn_tanh rnn_relu rnn_tanh_cell rnn_relu_cell",
    },
}

GROUP: dict[str, str] = {family: group for group, families in FAMILIES.items() for family in families}
_FAMILY_OF: dict[str, str] = {
    spelling: family
    for families in FAMILIES.values()
    for family, spellings in families.items()
    for spelling in spellings.split()
}
LINEAR_GROUPS = frozenset({"view", "linear"})

# attributes whose reading gives a tensor; every other one (shape, dtype, …) is metadata
_TENSOR_ATTRIBUTES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
_METADATA = frozenset(
    """size dim ndimension numel nelement stride storage_offset is_contiguous is_floating_point is_complex is_tensor
    data_ptr get_device element_size len hash bool repr format item tolist numpy array int float index _version
    is_same_size is_nonzero register_hook retain_grad is_set_to untyped_storage storage is_inference is_shared
    dim_order has_names is_pinned result_type _set_grad_enabled setstate reduce_ex deepcopy dir iter
    is_sparse is_cuda is_autocast_enabled grad backward""".split()
)
_METADATA_DUNDERS = frozenset({"__int__", "__float__", "__index__", "__bool__", "__len__", "__iter__"})


@dataclass(frozen=True, slots=True)
class Spelling:
    """What is known of one torch function before its arguments are seen."""

    name: str
    writes: bool  # x.relu_(), x += y, x[i] = y
    inplace_at: int | None  # position of an `inplace` argument
    metadata: bool
    family: str | None = None  # where the function is not one of torch's ops
    blind: bool = False  # autograd takes its derivative for 0 without an error: int8 layers, kernels without a backward
    lends: bool = False  # its memory, to be written to where nobody sees it
    may_draw: bool = False  # from torch's generators
    constant: bool = False  # zeros_like(x), x.new_zeros(…): it reads a live tensor's shape only
    observed: bool = False  # it may write, lend or draw: `scope.observe` looks at each call

    def writes_to_first(self, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        if self.writes or self.inplace_at is None:
            return self.writes
        return bool(kwargs.get("inplace", len(args) > self.inplace_at and args[self.inplace_at]))


SPELLINGS: dict[Any, Spelling] = {}


def spelling(function: Any) -> Spelling:
    """The spelling of a torch function, found once per function."""
    spelled = SPELLINGS.get(function)
    if spelled is None:
        spelled = SPELLINGS[function] = _spell(function)
    return spelled


def _spell(function: Any) -> Spelling:
    raw = getattr(function, "__name__", type(function).__name__)
    if raw in ("__get__", "__set__", "__delete__"):  # an attribute of the tensor, such as x.shape or x.T
        name = getattr(function.__self__, "__name__", "")
        return Spelling(name, False, None, raw != "__get__" or name not in _TENSOR_ATTRIBUTES)
    schema = getattr(function, "_schema", None)
    if schema is not None or hasattr(function, "_qualified_op_name"):  # torch.ops.<namespace>.<name>
        qualified = schema.name if schema is not None else function._qualified_op_name
        namespace, _, raw = qualified.partition("::")
        if namespace not in ("aten", "prims"):
            return Spelling(qualified, False, None, False, blind=_is_blind(qualified))
    dunder = raw.startswith("__") and raw.endswith("__")
    name = raw[2:-2] if dunder else raw
    writes = (dunder and name.startswith("i") and name[1:] in _IN_PLACE_OPERATORS) or name == "setitem"
    if writes and name != "setitem":
        name = name[1:]
    if not dunder and name.endswith("_"):
        name, writes = name[:-1], name != "requires_grad_"
    if name.startswith("_") and name[1:] in _FAMILY_OF:  # F.threshold arrives as _threshold
        name = name[1:]
    if name.startswith("special_") and name[8:] in _FAMILY_OF:  # torch.special.erf is torch.erf
        name = name[8:]
    name = "matmul" if name == "linalg_matmul" else name
    if raw.startswith("__r") and dunder and name[1:] in _REFLECTED:
        name = _REFLECTED[name[1:]]
    metadata = raw in _METADATA_DUNDERS or (name in _METADATA and raw not in ("float", "int"))
    lends, may_draw = name in LENDS, name in MAY_DRAW
    return Spelling(
        name, writes, _inplace_position(function), metadata, blind=name.startswith("quantized_"), lends=lends,
        may_draw=may_draw, constant=name.endswith("_like") or name.startswith("new_"),
        observed=writes or lends or may_draw or name in SILENT_WRITES,
    )  # fmt: skip


_DERIVED = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")


def _is_blind(qualified: str) -> bool:
    """Whether an op of another library was registered without a derivative, so that autograd sees nothing of it."""
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return not any(known(qualified, key) for key in _DERIVED)
    except RuntimeError:  # its overloads have other names
        return qualified.startswith("quantized::")


_IN_PLACE_OPERATORS = frozenset("add sub mul truediv div matmul pow floordiv mod and or xor lshift rshift".split())
_REFLECTED = {"add": "add", "sub": "sub", "mul": "mul", "div": "rdiv", "truediv": "rdiv", "pow": "rpow"} | {
    "matmul": "rmatmul"
}


def _inplace_position(function: Any) -> int | None:
    if not inspect.isfunction(function):
        return None
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return names.index("inplace") if "inplace" in names else None


def family_of(name: str, args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str:
    """The family of one call: by name, and for some names by what the arguments are."""
    choose = _BY_ARGUMENTS.get(name)
    family = choose(args, kwargs, live) if choose else None
    return family or _FAMILY_OF.get(name, name)


Chooser = Callable[[Sequence[Any], dict[str, Any], Sequence[Tensor]], "str | None"]


def _argument(args: Sequence[Any], kwargs: dict[str, Any], position: int, name: str, default: Any = None) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _is_live(value: Any, live: Sequence[Tensor]) -> bool:
    return any(value is tensor for tensor in live)


def _product(constant: str) -> Chooser:
    """A product of which all but one factor are constants is a linear map."""

    def choose(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
        return constant if sum(_is_live(factor, live) for factor in tensors_in(args)) == 1 else None

    return choose


def _affine_product(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    """addmm(c, a, b): linear unless both a and b are live."""
    return None if _is_live(args[1], live) and _is_live(args[2], live) else "linear"


def _divide(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    if kwargs.get("rounding_mode") is not None:
        return "floor"
    if not _is_live(args[1], live):
        return "scale"
    return None if _is_live(args[0], live) else "reciprocal"


def _reflected_divide(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    return "reciprocal" if not _is_live(args[1], live) else None


def _clamp(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    low = _argument(args, kwargs, 1, "min")
    high = _argument(args, kwargs, 2, "max")
    if not _is_zero(low):
        return None
    endless = high is None or (not isinstance(high, Tensor) and high == float("inf"))
    return "relu" if endless else "relu6"


def _clamp_low(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    return "relu" if _is_zero(_argument(args, kwargs, 1, "min")) else None


def _hardtanh(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    return "relu6" if _is_zero(_argument(args, kwargs, 1, "min_val", -1.0)) else None


def _threshold(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    zero = _is_zero(_argument(args, kwargs, 1, "threshold")) and _is_zero(_argument(args, kwargs, 2, "value"))
    return "relu" if zero else None


def _larger(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    """maximum(x, 0) is a ReLU."""
    others = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and not _is_live(a, live)]
    return "relu" if any(_is_zero(a) for a in others) else None


def number(value: Any) -> float | None:
    """A constant that is one number, as Python or as a tensor."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and not (value.requires_grad or value.is_complex()) else None
    return float(value) if isinstance(value, Real) else None


def _is_zero(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.requires_grad and value.numel() > 0 and not bool(value.any())
    return isinstance(value, Real) and value == 0


def _batch_norm(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    training = _argument(args, kwargs, 5, "training", False)
    return "batch_norm_training" if training else "batch_norm"


def _linear_in_live(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    """linear and convolution with a weight that depends on the data are products."""
    weight = _argument(args, kwargs, 1, "weight")
    return "matmul" if _is_live(weight, live) and len(live) > 1 else None


def _dropout(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    """Switched off it hands its input on."""
    training = _argument(args, kwargs, 2, "training", _argument(args, kwargs, 2, "train", True))
    return None if training else "view"


def _own_if_live(position: int, name: str, family: str) -> Chooser:
    """An op that is another one when this argument depends on the data."""
    return lambda args, kwargs, live: family if _is_live(_argument(args, kwargs, position, name), live) else None


def _power(args: Sequence[Any], kwargs: dict[str, Any], live: Sequence[Tensor]) -> str | None:
    exponent = _argument(args, kwargs, 1, "exponent")
    return "square" if not _is_live(exponent, live) and number(exponent) == 2 else None


_BY_ARGUMENTS: dict[str, Chooser] = {
    **dict.fromkeys(("mul", "multiply"), _product("scale")),
    **dict.fromkeys(
        (
            "matmul",
            "rmatmul",
            "mm",
            "bmm",
            "mv",
            "dot",
            "inner",
            "outer",
            "ger",
            "tensordot",
            "einsum",
            "kron",
            "grouped_mm",
            "transformers::grouped_mm_fallback",
        ),
        _product("linear"),
    ),
    **dict.fromkeys(("addmm", "addbmm", "baddbmm", "addcmul", "addmv"), _affine_product),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), _divide),
    **dict.fromkeys(("rdiv", "rtruediv"), _reflected_divide),
    **dict.fromkeys(
        "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d".split(), _linear_in_live
    ),
    **dict.fromkeys(("clamp", "clip"), _clamp),
    **dict.fromkeys(("maximum", "fmax", "max"), _larger),
    **dict.fromkeys(("dropout", "alpha_dropout", "dropout1d", "dropout2d", "dropout3d"), _dropout),
    "prelu": _own_if_live(1, "weight", "prelu"),
    "grid_sample": _own_if_live(1, "grid", "grid_sample"),
    "clamp_min": _clamp_low,
    "hardtanh": _hardtanh,
    "threshold": _threshold,
    "batch_norm": _batch_norm,
    "pow": _power,
}


@functools.cache
def known_names() -> frozenset[str]:
    """Every name for which a rule may be given: families, groups, and the names of torch's own functions."""
    places = (torch, torch.nn.functional, Tensor)
    own = {n.strip("_") for place in places for n in dir(place)}
    for prefix, place in (("linalg", torch.linalg), ("special", torch.special), ("fft", torch.fft)):
        own |= {f"{prefix}_{n}" for n in dir(place)}
    return frozenset(GROUP) | frozenset(FAMILIES) | own
