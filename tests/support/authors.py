"""What the authors' programs gave."""

from __future__ import annotations

from torch import Tensor

Truth = dict[str, Tensor]
