from collections.abc import Sequence

from torch import Tensor


def max_flows(layers: Sequence[Tensor], source: Tensor) -> Tensor:
    raise NotImplementedError
