"""Fused ops written out in plain ones and run under the mode, so that rules reach their parts.

Each registered function takes the fused op's own arguments and gives its own result. A method chooses which ops are
expanded; plain gradients need not pay for it.

| file | writes out |
|---|---|
| `attention` | scaled dot products, `nn.MultiheadAttention` |
| `recurrent` | LSTM, GRU, RNN and their cells |
| `norms` | layer, group, instance and RMS norm, `normalize`, `var_mean` |
| `ordering` | sort, topk, kthvalue, median, aminmax, a clamp by live bounds |
| `products` | `addmm` and its kin, bilinear, einsum, grouped matrices |
| `distances` | norms of vectors, similarities, losses |
| `arithmetic` | glu, softmin, embedding bags |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import Tensor

When = Callable[[Any, Any, Sequence[Tensor]], bool]  # of a call's args, kwargs and live tensors
Function = TypeVar("Function", bound=Callable[..., Any])

EXPANSIONS: dict[str, Callable[..., Any]] = {}  # by spelling
_WHEN: dict[str, When] = {}


def expansion(*names: str, when: When | None = None) -> Callable[[Function], Function]:
    """Register a function that writes out the ops of these names, for calls of the form that `when` accepts."""

    def register(function: Function) -> Function:
        for name in names:
            if name in EXPANSIONS:
                raise ValueError(f"There is an expansion of {name!r} already.")
            EXPANSIONS[name] = function
            if when is not None:
                _WHEN[name] = when
        return function

    return register


def expandable(name: str, args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """Whether this call has the form that its expansion writes out; other calls stay fused."""
    if any(isinstance(a, Tensor) and type(a) is not Tensor for a in (*args, *kwargs.values())):
        return False  # a mask that is a class of its own
    when = _WHEN.get(name)
    return when is None or when(args, kwargs, live)


# each file registers its functions
from whence.engine.expand import arithmetic, attention, distances, norms, ordering, products, recurrent  # noqa: E402, F401
