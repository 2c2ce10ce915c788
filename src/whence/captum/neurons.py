"""Attribution of a unit of a layer to the inputs: the method of the same name, on the model up to the unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from whence.captum.base import GradientAttribution, NeuronAttribution, PerturbationAttribution
from whence.captum.calls import Tensors, arguments, as_tuple, filled, like
from whence.captum.gradients import DeepLift, DeepLiftShap, GradientShap, IntegratedGradients
from whence.captum.layers import gradient_at
from whence.captum.paths import Integral
from whence.captum.perturbation import FeatureAblation
from whence.captum.views import Neuron, explained, floating, pick_unit


class _Multiplying(NeuronAttribution, GradientAttribution):
    """A neuron's attribution that may leave out the product with the inputs."""

    def __init__(
        self, forward_func: Callable[..., Any], layer: nn.Module, device_ids: Any = None,
        multiply_by_inputs: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(forward_func, layer, device_ids)
        self._multiply_by_inputs = multiply_by_inputs

    @property
    def multiplies_by_inputs(self) -> bool:
        return self._multiply_by_inputs


class NeuronGradient(NeuronAttribution, GradientAttribution):
    """`gradient` of a unit."""

    _method = "gradient"

    def attribute(
        self,
        inputs: Any,
        neuron_selector: Any,
        additional_forward_args: Any = None,
        attribute_to_neuron_input: bool = False,
    ) -> Any:
        unit = Neuron(self.forward_func, self.layer, neuron_selector, attribute_to_neuron_input)
        return like(explained(unit, as_tuple(inputs), arguments(additional_forward_args), None, self._method), inputs)


class NeuronGuidedBackprop(NeuronAttribution, GradientAttribution):
    """`guided_backprop` of a unit."""

    _method = "guided_backprop"

    def __init__(self, model: nn.Module, layer: nn.Module, device_ids: Any = None) -> None:
        super().__init__(model, layer, device_ids)

    attribute = NeuronGradient.attribute


class NeuronDeconvolution(NeuronGuidedBackprop):
    """`deconvnet` of a unit."""

    _method = "deconvnet"


class NeuronIntegratedGradients(_Multiplying):
    """`integrated_gradients` of a unit."""

    def attribute(
        self,
        inputs: Any,
        neuron_selector: Any,
        baselines: Any = None,
        additional_forward_args: Any = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
        attribute_to_neuron_input: bool = False,
    ) -> Any:
        unit = Neuron(self.forward_func, self.layer, neuron_selector, attribute_to_neuron_input)
        whole = IntegratedGradients(unit, self.multiplies_by_inputs)
        return whole.attribute(inputs, baselines, None, additional_forward_args, n_steps, method, internal_batch_size)


class NeuronGradientShap(_Multiplying):
    """Expected gradients of a unit."""

    def attribute(
        self,
        inputs: Any,
        neuron_selector: Any,
        baselines: Any,
        n_samples: int = 5,
        stdevs: Any = 0.0,
        additional_forward_args: Any = None,
        attribute_to_neuron_input: bool = False,
    ) -> Any:
        unit = Neuron(self.forward_func, self.layer, neuron_selector, attribute_to_neuron_input)
        whole = GradientShap(unit, self.multiplies_by_inputs)
        return whole.attribute(inputs, baselines, n_samples, stdevs, None, additional_forward_args)


class NeuronDeepLift(_Multiplying):
    """`deeplift` of a unit."""

    _whole: type[DeepLift] = DeepLift

    def __init__(self, model: nn.Module, layer: nn.Module, multiply_by_inputs: bool = True) -> None:
        super().__init__(model, layer, None, multiply_by_inputs)

    def attribute(
        self,
        inputs: Any,
        neuron_selector: Any,
        baselines: Any = None,
        additional_forward_args: Any = None,
        attribute_to_neuron_input: bool = False,
        custom_attribution_func: Callable[..., Any] | None = None,
    ) -> Any:
        return self._of(DeepLift, neuron_selector, attribute_to_neuron_input).attribute(
            inputs, baselines, None, additional_forward_args, custom_attribution_func=custom_attribution_func
        )

    def _of(self, whole: type[DeepLift], selector: Any, at_input: bool) -> DeepLift:
        unit: Any = Neuron(self.forward_func, self.layer, selector, at_input)
        return whole(unit, multiply_by_inputs=self.multiplies_by_inputs)


class NeuronDeepLiftShap(NeuronDeepLift):
    """`deepshap` of a unit."""

    def attribute(
        self,
        inputs: Any,
        neuron_selector: Any,
        baselines: Any,
        additional_forward_args: Any = None,
        attribute_to_neuron_input: bool = False,
        custom_attribution_func: Callable[..., Any] | None = None,
    ) -> Any:
        return self._of(DeepLiftShap, neuron_selector, attribute_to_neuron_input).attribute(
            inputs, baselines, None, additional_forward_args, custom_attribution_func=custom_attribution_func
        )


class NeuronConductance(_Multiplying):
    """The part of integrated gradients that goes through a unit: ∂f/∂unit times ∂unit/∂x, along the path."""

    def attribute(
        self,
        inputs: Any,
        neuron_selector: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        n_steps: int = 50,
        method: str = "riemann_trapezoid",
        internal_batch_size: int | None = None,
        attribute_to_neuron_input: bool = False,
        grad_kwargs: Any = None,
    ) -> Any:
        xs, args = tuple(map(floating, as_tuple(inputs))), arguments(additional_forward_args)
        starts = filled(baselines, xs)
        unit = Neuron(self.forward_func, self.layer, neuron_selector, attribute_to_neuron_input)

        def work(points: Tensors, more: tuple[Any, ...], wanted: Any) -> Tensors:
            layer, after = gradient_at(
                self.forward_func, self.layer, attribute_to_neuron_input, points, more, wanted, grad_kwargs
            )
            passed = pick_unit(layer.form(after), neuron_selector)
            before = explained(unit, points, more, None, "gradient")
            return tuple(slope * passed.view(-1, *[1] * (slope.dim() - 1)) for slope in before)

        values = Integral(method, n_steps).weighted(work, xs, starts, args, target, internal_batch_size)
        if self.multiplies_by_inputs:
            values = tuple(value * (x - start) for value, x, start in zip(values, xs, starts, strict=True))
        return like(values, inputs)


class NeuronFeatureAblation(NeuronAttribution, PerturbationAttribution):
    """What a unit loses without each feature."""

    def attribute(
        self,
        inputs: Any,
        neuron_selector: Any,
        baselines: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        attribute_to_neuron_input: bool = False,
        perturbations_per_eval: int = 1,
    ) -> Any:
        unit = Neuron(self.forward_func, self.layer, neuron_selector, attribute_to_neuron_input)
        return FeatureAblation(unit).attribute(
            inputs, baselines, None, additional_forward_args, feature_mask, perturbations_per_eval
        )
