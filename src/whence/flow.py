from torch import Tensor
from collections.abc import Sequence
def max_flows(layers: Sequence[Tensor], source: Tensor) -> Tensor:
    raise NotImplementedError
