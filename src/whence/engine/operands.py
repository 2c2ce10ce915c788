"""The arguments of a call as autograd may see them: which are live, which are constants, what stands in for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(eq=False)
class Operands:
    """Parameters are detached (unless `parameters` says so), inference tensors are replaced by a copy of theirs."""

    parameters: bool
    is_live: Callable[[Tensor], bool]
    _stand_ins: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # copies of inference tensors

    def sorted_out(self, value: Any, live: list[Tensor], loose: list[Tensor]) -> Any:
        """An argument as the op gets it; live tensors, and those that are neither live nor parameters, are collected.

        What autograd must not see is replaced by a stand-in that shares its memory.
        """
        if isinstance(value, Tensor):
            if value.is_inference() and not torch.is_inference_mode_enabled():
                return self._stand_in(value)
            if type(value) is nn.Parameter or (value.requires_grad and isinstance(value, nn.Parameter)):
                return value if self.parameters else value.detach()
            known = live if self.is_live(value) else loose
            if not known or not any(value is other for other in known):
                known.append(value)
            return value
        if type(value) in (list, tuple):
            items = [self.sorted_out(item, live, loose) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else type(value)(items)
        return value

    def plain(self, value: Any) -> Any:
        """The same for an op that nothing is noted of."""
        if isinstance(value, Tensor):
            if value.is_inference() and not torch.is_inference_mode_enabled():
                return self._stand_in(value)
            return value.detach() if isinstance(value, nn.Parameter) and not self.parameters else value
        if type(value) in (list, tuple):
            return type(value)(map(self.plain, value))
        return value

    def forget(self, written: Iterable[Tensor]) -> None:
        """These tensors are about to be written to: copies of them are out of date."""
        for tensor in written:
            self._stand_ins.pop(id(tensor), None)

    def _stand_in(self, tensor: Tensor) -> Tensor:
        known = self._stand_ins.get(id(tensor))
        if known is None:
            known = self._stand_ins[id(tensor)] = (tensor, tensor.clone().detach())
        return known[1]
