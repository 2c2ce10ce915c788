"""Which modality a tensor's positions belong to: text, image, decoder. Attention scores have queries' and keys'.

A modality is the set of explained inputs from which positions were born; it stays with the queries when attention
mixes values of other modalities in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whence.engine.ops import GROUP
from whence.engine.trackers import Birth, Op, Tracker, store
from whence.util.keys import input_of

Modality = frozenset[str]
_MODALITY, _DEPTH = "modality", "attention_depth"


def modality_of(tensor: Tensor) -> Any:
    """A modality, the (query, key) modalities of attention scores, or None."""
    return store.get(tensor, _MODALITY)


def both(modality: Any) -> tuple[Modality, Modality]:
    """Queries' and keys' modalities of attention probabilities; one that is not known is taken to be the other."""
    if isinstance(modality, tuple):
        query, key = (s if isinstance(s, frozenset) else frozenset() for s in modality)
        return query or key, key or query
    return (modality or frozenset(), modality or frozenset())


def depth_of(tensor: Tensor) -> int:
    """Through how many attentions, one after the other, a tensor came."""
    depth: int = store.get(tensor, _DEPTH, 0)
    return depth


def copy(old: Tensor, new: Tensor) -> None:
    """The positions of one tensor are those of another."""
    store.put(new, _MODALITY, modality_of(old))
    store.put(new, _DEPTH, depth_of(old))


class Modalities(Tracker):
    """Carries modalities from op to op, and counts attentions."""

    def begin(self, tensor: Tensor, birth: Birth) -> None:
        if birth.key is not None:
            store.put(tensor, _MODALITY, frozenset({input_of(birth.key)}))

    def copy(self, old: Tensor, new: Tensor) -> None:
        copy(old, new)

    def follow(self, op: Op) -> None:
        family, known = op.family, [modality_of(t) for t in op.live]
        modality = _joined(family, known)
        attends = GROUP.get(family) == "attention" or (
            family in ("matmul", "einsum") and any(isinstance(m, tuple) for m in known)
        )
        depth = max(map(depth_of, op.live), default=0) + attends
        for tensor in op.outputs:
            store.put(tensor, _DEPTH, depth)
            if modality is not None:
                store.put(tensor, _MODALITY, modality)


def _joined(family: str, known: Sequence[Any]) -> Any:
    pairs = [s for s in known if isinstance(s, tuple)]
    single = [s for s in known if isinstance(s, frozenset)]
    if GROUP.get(family) == "attention":
        return single[0] if single else None  # the queries come first
    if GROUP.get(family) == "recurrent":
        return single[0] if single else None  # the sequence comes first; the state it begins with has no positions
    if family in ("matmul", "einsum") and len(known) == 2:
        return pairs[0][0] if pairs else (single[0], single[1]) if len(single) == 2 else single[0] if single else None
    if pairs:
        return pairs[0]
    return frozenset().union(*single) if single else None
