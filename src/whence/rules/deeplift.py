"""DeepLIFT's table: how each op shares m·Δy, between a reference and an input, among its inputs' Δx.

Rescale (Shrikumar et al. 2017) is the secant of elementwise functions and maxima (`rescale`); products, norms, softmax
and attention have closed forms (`closed_forms`, `attention`), and any other op the local path integral. RevealCancel,
where it is asked for, takes the place of the secant (`reveal_cancel`).
"""

from __future__ import annotations

from whence.engine.call import Rule, derivative
from whence.engine.expand import EXPANSIONS
from whence.engine.nodes import Ahead
from whence.rules.attention import attention
from whence.rules.closed_forms import (
    log_softmax,
    logsumexp,
    magnitude,
    midpoint,
    norm,
    product,
    root,
    several,
    softmax,
)
from whence.rules.path_integral import path_integral
from whence.rules.rescale import cross, secant, switch

_PRODUCT, _MIDPOINT, _ROOT, _NORM = Ahead(product), Ahead(midpoint), Ahead(root), Ahead(norm)
DEEPLIFT_RULES: dict[str, Rule] = {
    "*": path_integral,
    "view": derivative,
    **dict.fromkeys(("index", "where", "write"), switch),
    "linear": switch,
    **dict.fromkeys(
        "add sum convolution average_pool batch_norm dropout cumsum interpolate embedding fourier".split(), derivative
    ),
    "elementwise": secant,
    "abs": Ahead(magnitude, secant=True),
    **dict.fromkeys(("multiply", "divide"), _PRODUCT),
    **dict.fromkeys(("matmul", "einsum", "bilinear", "lerp", "var", "mse_loss"), _MIDPOINT),
    **dict.fromkeys(("prod", "cumprod"), several),
    **dict.fromkeys(("vector_norm", "std", "dist", "cdist", "hypot"), _ROOT),
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm", "instance_norm"), _NORM),
    "softmax": Ahead(softmax),
    "log_softmax": Ahead(log_softmax),
    "logsumexp": Ahead(logsumexp),
    "scaled_dot_product_attention": Ahead(attention),
    "max_pool": cross,
    "max": cross,
}
_AS_ONE = {"scaled_dot_product_attention", "layer_norm", "rms_norm", "group_norm", "instance_norm"}
_AS_ONE |= set("addmm addmv addbmm baddbmm addcmul addcdiv lerp bilinear".split())
DEEPLIFT_EXPAND = (frozenset(EXPANSIONS) - _AS_ONE) | {"odd_attention"}
