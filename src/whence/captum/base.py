"""The base classes: what every attribution class of Captum's offers besides `attribute`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from whence.captum.calls import Tensors, arguments, as_tuple, check, filled, read_target, run, select


class Attribution:
    """A forward function, of which a subclass attributes the score."""

    def __init__(self, forward_func: Callable[..., Any]) -> None:
        self.forward_func = forward_func

    @property
    def multiplies_by_inputs(self) -> bool:
        return False

    def has_convergence_delta(self) -> bool:
        return False

    def compute_convergence_delta(self, *args: Any, **kwargs: Any) -> Tensor:
        """Subclasses whose values sum to a difference of scores have one."""
        raise NotImplementedError(f"{type(self).__name__} has no sum to compare with.")

    @classmethod
    def get_name(cls) -> str:
        """The class's name in words."""
        return re.sub(r"(?<!^)(?=[A-Z])", " ", cls.__name__)

    def attribute(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} attributes nothing by itself.\n  Take one of its subclasses.")

    def attribute_future(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"attribute_future is not implemented for {type(self).__name__}: use attribute.")


class GradientAttribution(Attribution):
    """Attribution that goes backwards through the model."""

    def __init__(self, forward_func: Callable[..., Any]) -> None:
        super().__init__(forward_func)
        self.gradient_func = gradients

    def compute_convergence_delta(
        self,
        attributions: Any,
        start_point: Any,
        end_point: Any,
        target: Any = None,
        additional_forward_args: Any = None,
    ) -> Tensor:
        """For each row, the sum of its attributions minus the difference of the scores at the end and at the start."""
        ends = as_tuple(end_point, "end_point")
        values, rows = as_tuple(attributions, "attributions"), len(ends[0])
        for value in values:
            check(len(value) == rows, f"The attributions have {len(value)} rows, the end point has {rows}.")
        starts = filled(start_point, ends)
        args = arguments(additional_forward_args)
        first, last = (
            row_sums(select(run(self.forward_func, *at, *args), read_target(target))) for at in (starts, ends)
        )
        return sum(row_sums(value) for value in values) - (last - first)


class PerturbationAttribution(Attribution):
    """Attribution by what the score becomes without something."""

    @property
    def multiplies_by_inputs(self) -> bool:
        return True


class InternalAttribution(Attribution):
    """Attribution that has to do with a layer; `device_ids` is for data-parallel models, which run as one here."""

    def __init__(self, forward_func: Callable[..., Any], layer: Any, device_ids: Any = None) -> None:
        super().__init__(forward_func)
        self.layer = layer
        self.device_ids = device_ids


class LayerAttribution(InternalAttribution):
    """Attribution to a layer's values."""

    @staticmethod
    def interpolate(layer_attribution: Tensor, interpolate_dims: Any, interpolate_mode: str = "nearest") -> Tensor:
        """A layer's values stretched to the size of an input."""
        return nn.functional.interpolate(layer_attribution, interpolate_dims, mode=interpolate_mode)


class NeuronAttribution(InternalAttribution):
    """Attribution of a unit of a layer to the inputs."""


def row_sums(value: Tensor) -> Tensor:
    """The sum over each row."""
    return value.detach().reshape(len(value), -1).sum(1) if value.dim() else value.detach()


def gradients(forward_fn: Any, inputs: Any, target_ind: Any = None, additional_forward_args: Any = None) -> Tensors:
    """The derivative of each row's score by its inputs."""
    from whence.captum.views import explained

    return explained(forward_fn, as_tuple(inputs), arguments(additional_forward_args), target_ind, "gradient")
