"""Closed forms between a reference and an input: products, quotients, norms and softmax.

Each shares m·Δy among its inputs exactly, by an identity and not by a quotient of small numbers; each keeps what the
way back needs, at most the size of its inputs. The table that they are in is `deeplift.DEEPLIFT_RULES`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Back, Call, Gradients
from whence.rules.attention import HIDDEN
from whence.rules.path_integral import path_average, path_integral
from whence.rules.rescale import by_secant, difference, quotient, tanhc_
from whence.util.tree import tensors_in

# ---- products ----


def midpoint(call: Call) -> Back:
    """A bilinear or quadratic op: its derivative at the midpoint, Δ(ab) = Δa·(b+b')/2 + Δb·(a+a')/2."""
    live = {id(x) for x in call.inputs}
    if sum(id(t) in live for t in tensors_in([*call.args, *call.kwargs.values()])) > 2:
        return functools.partial(several, call)
    middle = _middle(call)
    direct = _DIRECT.get(call.name)
    plain = len(middle) == 2 and not call.y.is_complex() and min(t.dim() for t in middle) > 1
    if direct is not None and plain and len(call.args) == 2:
        a, b = middle
        return lambda m: [g.sum_to_size(t.shape) for g, t in zip(direct(m, a, b), (a, b), strict=True)]
    there = call.moved(middle)
    return lambda m: there.derivative_at(middle, m)


def _middle(call: Call) -> list[Tensor]:
    return [torch.lerp(r.expand_as(x), x, 0.5) for x, r in zip(call.x, call.reference_x, strict=True)]


_DIRECT = {
    **dict.fromkeys(("mul", "multiply"), lambda m, a, b: (m * b, m * a)),
    **dict.fromkeys(("matmul", "bmm", "mm"), lambda m, a, b: (m @ b.mT, a.mT @ m)),
}


def gain(call: Call) -> Back:
    """c·r with r a reciprocal, or c/b: Δ(c·r) = Δc·r_min + c_other·Δr, where the midpoint cancels as b nears 0.

    r_min is the smaller of r and r', c_other the c of the pass with the larger.
    """
    if len(call.inputs) != 2 or len(call.args) != 2:
        return functools.partial(path_integral, call)
    (c, b), (c0, b0) = call.x, call.reference_x
    divides = call.family == "divide"
    turned = not divides and not call.origins[1].turned  # r · c
    if turned:
        c, b, c0, b0 = b, c, b0, c0
    r, r0 = (1 / b, 1 / b0) if divides else (b, b0)
    larger = r.abs() > r0.abs()
    least, other = torch.where(larger, r0, r), torch.where(larger, c, c0)
    if divides:
        other = -other * r * r0

    def back(m: Tensor) -> list[Tensor]:
        parts = [_fitting(m * slope.conj(), x) for slope, x in ((least, c), (other, b))]
        return parts[::-1] if turned else parts

    return back


def _fitting(m: Tensor, x: Tensor) -> Tensor:
    """A signal in the form of the input that it is for: to a real one comes the real part."""
    return (m if x.is_complex() else m.real).sum_to_size(x.shape)


def product(call: Call) -> Back:
    """A product of two: the midpoint, or the form for reciprocals where one of them is."""
    if call.family == "divide" or any(o.turned for o in call.origins):
        return gain(call)
    return midpoint(call)


def several(call: Call, m: Any) -> Gradients:
    """A product of several: the local path integral, which is exact for polynomials."""
    return path_average(call, m, 32)


def root(call: Call) -> Back:
    """y = √q with q quadratic (a Euclidean norm, a distance, a deviation): Δy = Δq / (y+y')."""
    if _order(call) not in (None, 2, "fro"):
        return functools.partial(path_integral, call)
    middle = _middle(call)
    by = quotient(2 * call.value_at(middle), call.y + call.reference_y)
    there = call.moved(middle)
    return lambda m: there.derivative_at(middle, m * by)


def _order(call: Call) -> Any:
    """Which norm it is, if any."""
    of_their_own = dict.fromkeys(("std", "hypot", "abs", "frobenius_norm"))
    place = {**of_their_own, "dist": 2, "cdist": 2}.get(call.name, 1)
    order = call.kwargs.get("p", call.kwargs.get("ord", call.args[place] if place and len(call.args) > place else None))
    dim = call.kwargs.get("dim", call.args[2] if len(call.args) > 2 else None)
    of_matrices = call.name == "linalg_norm" and (isinstance(dim, list | tuple) or call.inputs[0].dim() == 2)
    return "spectral" if of_matrices and order == 2 and (dim is None or len(dim) == 2) else order


def magnitude(call: Call) -> Back:
    """|x|: of complex numbers a root, of real ones a secant."""
    return root(call) if call.inputs[0].is_complex() else by_secant(call)


# ---- norms ----


def norm(call: Call) -> Back:
    """y = c/s, c = x or x − mean, s = √(mean c² + ε): `gain` for all entries at once.

    m_c = g / max(s, s') − (c + c')·mean(g·c_other) / (s s' (s + s')).
    """
    if len(call.inputs) != 1 or call.name.startswith("native"):
        return functools.partial(path_integral, call)
    form = _FORMS[call.family](*call.args, **call.kwargs)
    if form is None:  # by running statistics: linear
        return lambda m: call.derivative_at(call.x, m)
    grouped, eps, centred, weight = form
    (x,), (before,) = call.x, call.reference_x
    c, c0 = grouped(x), grouped(before)
    if centred:
        c, c0 = c - c.mean(-1, keepdim=True), c0 - c0.mean(-1, keepdim=True)
    s, s0 = ((t.square().mean(-1, keepdim=True) + eps).sqrt() for t in (c, c0))
    least = 1 / torch.maximum(s, s0)
    other = torch.lerp(c0.expand_as(c), c, (s < s0).to(c.dtype))  # the one or the other, quicker than torch.where
    both = (c + c0).div_(s * s0 * (s + s0))
    shape = x.shape

    def back(m: Tensor) -> Tensor:
        g = grouped(m if weight is None else m * weight)
        to_c = (g * least).addcmul_(both, (g * other).mean(-1, keepdim=True), value=-1)
        if centred:
            to_c -= to_c.mean(-1, keepdim=True)
        return to_c.reshape(shape)

    return back


def _layer_norm(
    input: Any,
    normalized_shape: Any,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    return (lambda t: t.flatten(-len(tuple(normalized_shape)))), eps, True, weight


def _rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    return (lambda t: t.flatten(-len(tuple(normalized_shape)))), eps, False, weight


def _group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Any:
    per_channel = None if weight is None else weight.view(-1, *[1] * (input.dim() - 2))
    return (lambda t: t.reshape(len(t), num_groups, -1)), eps, True, per_channel


def _instance_norm(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5, cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    return _group_norm(input, input.shape[1], weight, bias, eps) if use_input_stats else None


_FORMS: dict[str, Any] = {
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
}


# ---- softmax ----


def softmax_map(x: Tensor, before: Tensor, p: Tensor, p0: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """(L, p̄) with which a softmax hands on g as L·(g − Σ g·p̄).

    From e = p·S, S = Σe: Δp = (Δe − p̄·ΔS)/S̄. In units of S̄ = (S+S')/2, e is 2p·σ(l−l') with l = log S, and
    Δe/Δx = ē·tanh(Δx/2)/(Δx/2).
    """
    rise = _logsumexp(x, dim) - _logsumexp(before, dim)
    mean = p * torch.sigmoid(rise) + p0 * torch.sigmoid(-rise)
    by = mean * tanhc_(difference(x, before) / 2)
    if x.numel() and bool((x.amax(dim) <= HIDDEN).any()):  # a mask swallowed all that was there: nothing went through
        by = by.masked_fill((x <= HIDDEN) & (x == before), 0.0)
    return by, (p + p0) / 2


def softmax(call: Call) -> Back:
    """softmax(x), with one shift in both passes; see `softmax_map`."""
    (x,), (before,), dim = call.x, call.reference_x, _dim(call)
    p, p0 = call.y, call.reference_y
    by, mean = softmax_map(x.to(p.dtype), before.to(p.dtype), p, p0, dim)
    return lambda m: (by * (m - (m * mean).sum(dim, keepdim=True))).to(x.dtype)


def log_softmax(call: Call) -> Back:
    """x − log Σ exp x."""
    (x,), (before,), dim = call.x, call.reference_x, _dim(call)
    y, y0 = call.y, call.reference_y
    by = _logsumexp_map(x.to(y.dtype), before.to(y.dtype), y.exp(), y0.exp(), dim)
    return lambda m: (m - by * m.sum(dim, keepdim=True)).to(x.dtype)


def logsumexp(call: Call) -> Back:
    """log Σ exp x over some dimensions: the secant of the logarithm times those of the exponentials."""
    (x,), (before,) = call.x, call.reference_x
    dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    keep = call.kwargs.get("keepdim", len(call.args) > 2 and call.args[2])
    dims = [d % x.dim() for d in (dim if isinstance(dim, list | tuple) else [dim])]
    l, l0 = (torch.logsumexp(t, dims, keepdim=True) for t in (x, before))  # noqa: E741
    by = _logsumexp_map(x, before, (x - l).exp(), (before - l0).exp(), dims)

    def back(m: Tensor) -> Tensor:
        if not keep:
            for d in sorted(dims):
                m = m.unsqueeze(d)
        return m * by

    return back


def _logsumexp_map(x: Tensor, before: Tensor, p: Tensor, p0: Tensor, dim: Any) -> Tensor:
    """Δl = Σ w·Δx: w = Δe/Δx in units of the logarithmic mean of S and S'."""
    rise = _logsumexp(x, dim) - _logsumexp(before, dim)
    mean = (p * _over_expm1(-rise) + p0 * _over_expm1(rise)) / 2
    return mean * tanhc_(difference(x, before) / 2)


def _over_expm1(d: Tensor) -> Tensor:
    """d / (eᵈ − 1)."""
    still = d.abs() < 1e-12
    return torch.where(still, 1 - d / 2, d / torch.expm1(d.masked_fill(still, 1)))


def _logsumexp(x: Tensor, dim: Any) -> Tensor:
    """log Σ exp x, and 0 where nothing is there."""
    total = torch.logsumexp(x, dim, keepdim=True)
    return total.masked_fill(total == -math.inf, 0.0)


def _dim(call: Call) -> int:
    dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
    if dim is None:  # F.softmax(x) guesses
        return 0 if call.x[0].dim() in (0, 1, 3) else 1
    return int(dim)
