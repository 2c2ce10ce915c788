"""The methods: one small file per family. A method maps a Subject to one tensor (rows, k, …) per explained value."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from whence.registry import Registry

Method = Callable[..., dict[str, Tensor]]
methods: Registry[Method] = Registry("method")
method = methods.register

# each registers itself
from whence.methods import (  # noqa: E402, F401
    deeplift,
    gradient,
    guided,
    integrated,
    occlusion,
    rand,
    shapley,
    smooth,
    surrogate,
)
