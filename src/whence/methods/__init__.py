"""The methods: one small file per family. A method maps a Subject to one tensor (rows, k, …) per explained value."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from whence.registry import Registry

Method = Callable[..., dict[str, Tensor]]
methods: Registry[Method] = Registry("method")
method = methods.register

# each registers itself, in the order in which they are listed
# isort: off
from whence.methods import gradient  # noqa: E402, F401
from whence.methods import smooth, guided, integrated, deeplift  # noqa: E402, F401
from whence.methods import lrp, attnlrp  # noqa: E402, F401
from whence.methods import attention, transformer_attribution  # noqa: E402, F401
from whence.methods import occlusion, shapley, surrogate, rand  # noqa: E402, F401
