"""Attention between a reference and an input as one rule, which never holds a map as a whole.

softmax(q kᵀ) v is a softmax between two products (`closed_forms`). Queries, keys and values of both passes are all that
is kept; on the way back the maps are built block by block, a few heads and queries at a time, so that what is made of a
block stays in the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import Back, Call
from whence.engine.expand.attention import masked_scores, operands
from whence.rules.rescale import tanhc_

HIDDEN = -3e38  # what models add to a score that is not to be seen is the least single
_BLOCK = 1 << 17  # entries of a map that are there at one time
_ALL = slice(None)


def attention(call: Call) -> Back:
    """softmax(q kᵀ) v as one rule: it keeps queries, keys and values of both passes and rebuilds the maps."""
    given, before = operands(call.args, call.kwargs), operands(call.reference.args, call.reference.kwargs or {})
    live = [any(given[name] is t for t in call.inputs) for name in ("query", "key", "value")]
    call.outputs = ()

    def back(m: Tensor) -> list[Tensor]:
        call.x  # says so if the model has overwritten them  # noqa: B018
        parts = _attention_back(m, given, before)
        return [g for g, wanted in zip(parts, live, strict=True) if wanted]

    return back


def _attention_back(m: Tensor, given: Mapping[str, Any], before: Mapping[str, Any]) -> list[Tensor]:
    """The signals of queries, keys and values."""
    roles, lead, wide = [given[name] for name in _ROLES], m.shape[:-2], torch.promote_types(m.dtype, torch.float32)
    groups = roles[0].shape[-3] // roles[1].shape[-3] if given.get("enable_gqa") else 1
    ours, theirs = (_side(operands, lead, groups, wide) for operands in (given, before))
    m = _in_four(m.to(wide), lead)
    heads, n = m.shape[1:3]
    found = [torch.zeros_like(t) for t in (ours.q, ours.k, ours.v)]  # in the layout of the inputs, as the next op likes
    for at in _parts(heads, n * ours.k.shape[-2]) if found[1].numel() else ():
        _some_heads(m[:, at].contiguous(), ours.some(at), theirs.some(at), [t[:, at] for t in found])
    found = [t.reshape(*lead, *t.shape[-2:]) for t in found]
    if groups > 1:
        found[1:] = [t.unflatten(-3, (-1, groups)).sum(-3) for t in found[1:]]
    return [t.sum_to_size(x.shape).to(x.dtype) for t, x in zip(found, roles, strict=True)]


_ROLES = ("query", "key", "value")


@dataclass(frozen=True, eq=False)
class _Side:
    """One pass's operands, (rows or 1, heads, n, size), the mask's axes perhaps 1."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    scale: float
    causal: bool

    def some(self, heads: slice) -> _Side:
        """Those of some heads, each in one piece, queries with the scale in them."""
        q, k, v = (t[:, heads] for t in (self.q, self.k, self.v))
        mask = None if self.mask is None else _at(self.mask, _ALL, heads)
        scaled = torch.mul(q, self.scale, out=q.new_empty(q.shape))
        return replace(self, q=scaled, k=k.contiguous(), v=v.contiguous(), mask=mask)

    def scores(self, rows: slice, queries: slice, keys: slice) -> tuple[Tensor, Tensor | None]:
        """A block of q kᵀ under the mask, and which of its queries have no key, if some have none."""
        scores = _at(self.q, rows)[:, :, queries] @ _at(self.k, rows)[:, :, keys].mT
        mask = self.mask
        if self.causal:
            last = torch.arange(queries.start, queries.stop, device=scores.device)
            mask = torch.arange(keys.stop, device=scores.device) <= last[:, None]
        elif mask is not None:
            mask = _at(mask, rows, _ALL, queries, keys)
        return masked_scores(scores, mask)


def _side(given: Mapping[str, Any], lead: torch.Size, groups: int, dtype: torch.dtype) -> _Side:
    q, k, v = (given[name].to(dtype) for name in _ROLES)
    if groups > 1:
        k, v = (t.repeat_interleave(groups, -3) for t in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if given.get("scale") is None else given["scale"]
    q, k, v = (_in_four(t, lead) for t in (q, k, v))
    mask = None if given.get("attn_mask") is None else _in_four(given["attn_mask"], lead)
    rows, heads = max(len(t) for t in (q, k, v, mask) if t is not None), lead[-1] if len(lead) > 1 else 1
    q, k, v = (t.expand(rows, heads, -1, -1) for t in (q, k, v))
    return _Side(q, k, v, mask, scale, bool(given.get("is_causal")))


def _in_four(t: Tensor, lead: torch.Size) -> Tensor:
    """As (rows, heads, n, size): a third axis is rows, those before heads are made one."""
    t = t[(None,) * (len(lead) + 2 - t.dim())]
    return t.unsqueeze(1) if len(lead) == 1 else t if len(lead) == 2 else t.expand(*lead, -1, -1).flatten(0, -4)


def _at(t: Tensor, *where: slice) -> Tensor:
    """Some of a tensor, by axis; an axis of 1 stands for any."""
    return t[tuple(_ALL if size == 1 else place for place, size in zip(where, t.shape, strict=False))]


def _parts(count: int, size: int) -> Iterator[slice]:
    """Slices of so many things of this size that they fit a block."""
    step = max(1, _BLOCK // max(1, size))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


# ---- a block ----


def _some_heads(m: Tensor, ours: _Side, theirs: _Side, found: list[Tensor]) -> None:
    """Add the signals of some heads, m (rows, heads, n, size)."""
    to_q, to_k, to_v = found
    pairs = ((ours.q, theirs.q), (ours.k, theirs.k), (ours.v, theirs.v))
    q, k, v = (torch.lerp(b.expand_as(a), a, 0.5) for a, b in pairs)
    k.mul_(ours.scale)
    for queries in _parts(m.shape[2], m.shape[1] * k.shape[2]):
        keys = slice(0, min(queries.stop, k.shape[2]) if ours.causal else k.shape[2])
        once = _Softmax.of(*theirs.scores(_ALL, queries, keys)) if len(theirs.q) == 1 else None
        for rows in _parts(len(m), m.shape[1] * (queries.stop - queries.start) * k.shape[2]):
            before = once or _Softmax.of(*theirs.scores(rows, queries, keys))
            now = _Softmax.of(*ours.scores(rows, queries, keys))
            signal = m[rows, :, queries]
            by, mean = _softmax_map(now, before, ours.causal or ours.mask is not None)
            to_v[rows, :, keys] += mean.mT @ signal
            to_s = signal @ v[rows, :, keys].mT
            to_s.sub_(mean.mul_(to_s).sum(-1, keepdim=True)).mul_(by)
            to_q[rows, :, queries] = to_s @ k[rows, :, keys]
            to_k[rows, :, keys] += to_s.mT @ q[rows, :, queries]


@dataclass(frozen=True, eq=False)
class _Softmax:
    """e = exp(x − max x) over the last axis, with softmax(x) = e · by and log Σ exp x = total."""

    x: Tensor
    e: Tensor
    by: Tensor
    top: Tensor
    total: Tensor

    @classmethod
    def of(cls, x: Tensor, empty: Tensor | None) -> _Softmax:
        top = x.amax(-1, keepdim=True)
        e = (x - top).exp_()
        size = e.sum(-1, keepdim=True)
        by = 1 / size if empty is None else (1 / size).masked_fill_(empty, 0.0)
        return cls(x, e, by, top, top + size.log())


def _softmax_map(now: _Softmax, before: _Softmax, masked: bool) -> tuple[Tensor, Tensor]:
    """`closed_forms.softmax_map`, in the memory of `now`."""
    rise = now.total - before.total
    mean = (now.e * (now.by / 2)).addcmul_(before.e, before.by / 2)
    both = now.e.mul_(now.by * rise.sigmoid()).addcmul_(before.e, before.by * (-rise).sigmoid())
    if masked and bool((now.top <= HIDDEN).any()):  # a mask swallowed all that was there: nothing went through
        both.masked_fill_((now.x <= HIDDEN) & (now.x == before.x), 0.0)
    step = now.x.sub_(before.x)
    if masked:
        step.nan_to_num_(0.0, math.inf, -math.inf)  # both may be −inf
    return both.mul_(tanhc_(step.div_(2))), mean
