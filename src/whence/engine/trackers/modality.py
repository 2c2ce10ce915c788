"""Which tokens a tensor's positions stand for: text, image, decoder. Attention scores have queries' and keys' streams.

A stream is the set of explained inputs from which its positions were born; it stays with the queries when attention
mixes values of other streams in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from whence.engine.ops import GROUP
from whence.engine.trackers import store
from whence.util.keys import input_of

Stream = frozenset[str]
_STREAM, _DEPTH = "modality", "attention_depth"


def begin(tensor: Tensor, key: str) -> None:
    """The positions of this tensor are those of an explained input."""
    store.put(tensor, _STREAM, frozenset({input_of(key)}))


def stream_of(tensor: Tensor) -> Any:
    """A stream, the (query, key) streams of attention scores, or None."""
    return store.get(tensor, _STREAM)


def copy(old: Tensor, new: Tensor) -> None:
    store.put(new, _STREAM, stream_of(old))
    store.put(new, _DEPTH, depth_of(old))


def pair_of(tensor: Tensor) -> tuple[Stream, Stream]:
    """Queries' and keys' streams of attention probabilities; one that is not known is taken to be the other."""
    return both(stream_of(tensor))


def both(found: Any) -> tuple[Stream, Stream]:
    if isinstance(found, tuple):
        query, key = (s if isinstance(s, frozenset) else frozenset() for s in found)
        return query or key, key or query
    return (found or frozenset(), found or frozenset())


def depth_of(tensor: Tensor) -> int:
    """Through how many attentions, one after the other, a tensor came."""
    found: int = store.get(tensor, _DEPTH, 0)
    return found


def follow(family: str, live: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Carry streams from an op's inputs to its outputs, and count attentions."""
    known = [stream_of(t) for t in live]
    found = _joined(family, known)
    attends = GROUP.get(family) == "attention" or (
        family in ("matmul", "einsum") and any(isinstance(s, tuple) for s in known)
    )
    depth = max(map(depth_of, live), default=0) + attends
    for tensor in outputs:
        store.put(tensor, _DEPTH, depth)
        if found is not None:
            store.put(tensor, _STREAM, found)


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
