"""Whether each entry of a value stems from one token alone: embeddings of ids, until some op mixes tokens.

A constant that is added to such a value, a position's or a segment's embedding, stands at the token's own position.
What is known is (lead, key): the leading dimensions count tokens, and values with one key count the same ones alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from torch import Tensor

from whence.engine.ops import GROUP

Alone = tuple[int, object]

_POINTWISE = frozenset("add multiply divide scale dropout cast where lerp".split())
_IN_ORDER = frozenset(
    """view reshape squeeze unsqueeze view_as reshape_as flatten unflatten ravel contiguous clone alias atleast_2d
    atleast_3d positive requires_grad""".split()
)
_SWAPS = frozenset("transpose swapaxes swapdims".split())
_PICKS = frozenset("getitem narrow slice index_select split split_with_sizes chunk tensor_split roll flip".split())
_REDUCES = frozenset("sum mean nansum nanmean norm linalg_norm linalg_vector_norm var std amax amin softmax".split())


def begin(ids_dim: int) -> Alone:
    """Of an embedding that was looked up by ids of so many dimensions."""
    return ids_dim, object()


def follow(
    family: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], live: Sequence[Tensor],
    known: Sequence[Alone | None], output: Tensor,
) -> Alone | None:  # fmt: skip
    """What is known of an op's output; None where tokens mix, or it is not known."""
    first = known[0]
    if first is None or any(one is None or one[0] != first[0] for one in known):
        return None
    (lead, key), x = first, live[0]
    same = all(one is not None and one[1] is key for one in known)
    shapes = {t.shape[:lead] for t in live}
    if family in _POINTWISE or GROUP.get(family) == "elementwise" or name == "masked_fill":
        fits = same and len(shapes) == 1 and output.dim() == x.dim() and output.shape[:lead] == x.shape[:lead]
        return first if fits else None
    if len(live) > 1:
        return _joined(name, args, kwargs, lead, key if same else object(), output)
    kept = output.dim() >= lead and output.shape[:lead] == x.shape[:lead]
    if family in ("linear", "layer_norm", "rms_norm") or name in _REDUCES:
        return first if kept and _inside(family, name, args, kwargs, x, lead) else None
    if family == "matmul":
        fits = name == "matmul" and args[0] is x and x.dim() > lead and output.shape[:-1] == x.shape[:-1]
        return first if fits and getattr(args[1], "dim", lambda: 9)() == 2 else None
    return _moved(family, name, args, kwargs, x, first, output)


def _moved(
    family: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], x: Tensor, first: Alone, output: Tensor
) -> Alone | None:
    """Of ops that move entries."""
    lead, key = first
    if name in _IN_ORDER:
        sizes = (prod(x.shape[:lead]), prod(x.shape[lead:]))
        whole = (n for n in range(1, output.dim()) if (prod(output.shape[:n]), prod(output.shape[n:])) == sizes)
        new = lead if output.shape[:lead] == x.shape[:lead] else next(whole, None)
        return None if new is None else (new, key)
    if name in _SWAPS or name == "permute":
        dims = [d % x.dim() for d in _integers((args[1:], tuple(kwargs.values())))]
        swapped = name in _SWAPS and len(dims) == 2 and max(dims) < lead
        permuted = name == "permute" and len(dims) == x.dim() and sorted(dims[:lead]) == list(range(lead))
        return (lead, object()) if swapped or permuted else None
    if name in _PICKS:
        fits = output.dim() == x.dim() and output.shape[lead:] == x.shape[lead:]
        return (lead, object()) if fits else None
    return _joined(name, args, kwargs, lead, key, output) if family in ("concatenate", "pad") else None


def _joined(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], lead: int, key: object, output: Tensor
) -> Alone | None:
    """Of tokens in a row with others or with constants."""
    if name in ("pad", "constant_pad_nd"):
        return lead, object()
    if name not in ("cat", "concat", "concatenate"):
        return None
    dims = list(_integers((args[1:], tuple(kwargs.values()))))
    along = (dims[0] if dims else 0) % output.dim()
    return (lead, object() if along < lead else key)


def _inside(family: str, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], x: Tensor, lead: int) -> bool:
    """Whether an op works within each token's own dimensions."""
    if family == "linear":
        return x.dim() > lead and args[0] is x
    given = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", kwargs.get("normalized_shape")))
    if name in ("norm", "linalg_norm", "linalg_vector_norm"):
        given = args[2] if len(args) > 2 else kwargs.get("dim")
    numbers = list(_integers((given,)))
    if family in ("layer_norm", "rms_norm"):
        return 0 < len(numbers) <= x.dim() - lead
    return bool(numbers) and all(d % x.dim() >= lead for d in numbers)


def _integers(given: Any) -> Any:
    for item in given:
        if isinstance(item, bool):
            continue
        if isinstance(item, int):
            yield item
        elif isinstance(item, list | tuple):
            yield from _integers(item)
