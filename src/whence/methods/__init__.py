"""The methods: one small file per family. A method maps a Subject to one tensor (rows, k, …) per explained value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from whence.registry import Registry

Method = Callable[..., dict[str, Tensor]]
methods: Registry[Method] = Registry("method")
method = methods.register


def sensitivity(name: str, params: Mapping[str, Any]) -> bool:
    """Whether a method measures slopes, which are no shares of the score; one that wraps another is as that one is."""
    inner = params.get("of", name)
    return all(bool(methods[one].facts.get("slope")) for one in {name, inner} if one in methods)


# each registers itself, in the order in which they are listed
# isort: off
from whence.methods import gradient  # noqa: E402, F401
from whence.methods import smoothgrad, guided, integrated, deeplift  # noqa: E402, F401
from whence.methods.relevance import lrp, attnlrp  # noqa: E402, F401
from whence.methods import attention  # noqa: E402, F401
from whence.methods.relevance import transformer_attribution  # noqa: E402, F401
from whence.methods.perturbation import occlusion, shapley, surrogate  # noqa: E402, F401
from whence.methods import random  # noqa: E402, F401
