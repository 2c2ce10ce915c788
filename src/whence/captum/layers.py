"""Attribution to a layer: the method of the same name, on the model from the layer on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from whence.captum.base import GradientAttribution, LayerAttribution
from whence.captum.calls import (
    Tensors,
    arguments,
    as_tuple,
    distribution,
    filled,
    more_targets,
    repeated,
)  # fmt: skip
from whence.captum.gradients import DeepLift, DeepLiftShap, against_each, contributions, drawn, per_row
from whence.captum.paths import Integral, at_points, stacked
from whence.captum.views import FromLayer, Layer, WithTypes, explained, floating, read_layer


def gradient_at(
    function: Callable[..., Any], module: nn.Module, at_input: bool, xs: Tensors, args: tuple[Any, ...], target: Any,
    grad_kwargs: Any = None,
) -> tuple[Layer, Tensors]:  # fmt: skip
    """A layer's values, and the derivative of each row's score by them."""
    call = (*xs, *args)
    layer = read_layer(function, call, module, at_input)
    from_layer = FromLayer(function, (layer,))
    return layer, explained(from_layer, layer.values, call, target, "gradient", grad_kwargs=grad_kwargs)


class LayerActivation(LayerAttribution):
    """A layer's values themselves; of each, where a list of layers is given."""

    @property
    def multiplies_by_inputs(self) -> bool:
        return True

    def attribute(
        self, inputs: Any, additional_forward_args: Any = None, attribute_to_layer_input: bool = False
    ) -> Any:
        call = (*as_tuple(inputs), *arguments(additional_forward_args))
        several = isinstance(self.layer, list)
        read = [
            read_layer(self.forward_func, call, module, attribute_to_layer_input)
            for module in (self.layer if several else [self.layer])
        ]
        found = [layer.form(layer.values) for layer in read]
        return found if several else found[0]


class LayerGradientXActivation(LayerAttribution, GradientAttribution):
    """A layer's values times their gradient, or that alone."""

    def __init__(
        self,
        forward_func: Callable[..., Any],
        layer: Any,
        device_ids: Any = None,
        multiply_by_inputs: bool = True,
        memory_efficient: bool = False,
    ) -> None:
        super().__init__(forward_func, layer, device_ids)
        self._multiply_by_inputs = multiply_by_inputs
        self.memory_efficient = memory_efficient

    @property
    def multiplies_by_inputs(self) -> bool:
        return self._multiply_by_inputs

    def attribute(
        self,
        inputs: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        attribute_to_layer_input: bool = False,
        grad_kwargs: Any = None,
    ) -> Any:
        xs, args, several = as_tuple(inputs), arguments(additional_forward_args), isinstance(self.layer, list)
        found = []
        for module in self.layer if several else [self.layer]:
            layer, slopes = gradient_at(
                self.forward_func, module, attribute_to_layer_input, xs, args, target, grad_kwargs
            )
            found.append(layer.form(self.multiply_gradient_acts(slopes, layer.values)))
        return found if several else found[0]

    def multiply_gradient_acts(self, gradients: Tensors, evals: Tensors) -> Tensors:
        """Gradients times values, or gradients alone."""
        if not self.multiplies_by_inputs:
            return tuple(gradients)
        return tuple(slope * value for slope, value in zip(gradients, evals, strict=True))


class LayerGradCam(LayerAttribution, GradientAttribution):
    """A layer's maps, each weighted by its mean gradient, and summed."""

    def attribute(
        self,
        inputs: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        attribute_to_layer_input: bool = False,
        relu_attributions: bool = False,
        attr_dim_summation: bool = True,
        grad_kwargs: Any = None,
    ) -> Any:
        xs, args = as_tuple(inputs), arguments(additional_forward_args)
        layer, slopes = gradient_at(
            self.forward_func, self.layer, attribute_to_layer_input, xs, args, target, grad_kwargs
        )
        maps = []
        for slope, value in zip(slopes, layer.values, strict=True):
            places = tuple(range(2, value.dim()))
            weighted = (slope.mean(places, keepdim=True) if places else slope) * value
            summed = weighted.sum(1, keepdim=True) if attr_dim_summation else weighted
            maps.append(summed.relu() if relu_attributions else summed)
        return layer.form(maps)


class LayerIntegratedGradients(LayerAttribution, GradientAttribution):
    """`integrated_gradients` over a layer's values, from those at the baselines to those at the inputs."""

    def __init__(
        self, forward_func: Callable[..., Any], layer: Any, device_ids: Any = None, multiply_by_inputs: bool = True
    ) -> None:
        super().__init__(forward_func, layer, device_ids)
        self._multiply_by_inputs = multiply_by_inputs

    @property
    def multiplies_by_inputs(self) -> bool:
        return self._multiply_by_inputs

    def has_convergence_delta(self) -> bool:
        return True

    def attribute(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
        return_convergence_delta: bool = False,
        attribute_to_layer_input: bool = False,
        grad_kwargs: Any = None,
    ) -> Any:
        xs, args, several = as_tuple(inputs), arguments(additional_forward_args), isinstance(self.layer, list)
        starts, integral = filled(baselines, xs), Integral(method, n_steps)
        modules = self.layer if several else [self.layer]
        at = [
            tuple(read_layer(self.forward_func, (*point, *args), m, attribute_to_layer_input) for m in modules)
            for point in (xs, starts)
        ]
        ends, begins = (tuple(value for layer in layers for value in layer.values) for layers in at)
        from_layer = FromLayer(self.forward_func, at[0], every_call=True)
        found = integral.explained(
            from_layer, ends, begins, (*xs, *args), target, internal_batch_size,
            multiply=self.multiplies_by_inputs, grad_kwargs=grad_kwargs,
        )  # fmt: skip
        left = iter(found)
        formed = [layer.form([next(left) for _ in layer.values]) for layer in at[0]]
        values = formed if several else formed[0]
        if not return_convergence_delta:
            return values
        return values, self.compute_convergence_delta(found, starts, xs, target, additional_forward_args)


class LayerConductance(LayerAttribution, GradientAttribution):
    """The gradient by a layer's values times what they change, along the path from the baselines to the inputs."""

    @property
    def multiplies_by_inputs(self) -> bool:
        return True

    def has_convergence_delta(self) -> bool:
        return True

    def attribute(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
        return_convergence_delta: bool = False,
        attribute_to_layer_input: bool = False,
        grad_kwargs: Any = None,
    ) -> Any:
        xs, args = tuple(map(floating, as_tuple(inputs))), arguments(additional_forward_args)
        starts = filled(baselines, xs)
        alphas, _ = Integral(method, n_steps + 1).points()
        form: list[Layer] = []

        def work(points: Tensors, more: tuple[Any, ...], wanted: Any) -> Tensors:
            layer, slopes = gradient_at(
                self.forward_func, self.layer, attribute_to_layer_input, points, more, wanted, grad_kwargs
            )
            form.append(layer)
            return (*layer.values, *slopes)

        found = at_points(alphas, work, xs, starts, args, target, internal_batch_size)
        count = len(form[0].values)
        values = []
        for which in range(count):
            value, slope = (stacked(found, len(xs[0]), i) for i in (which, which + count))
            values.append((slope[:-1] * value.diff(dim=0)).sum(0))
        if not return_convergence_delta:
            return form[0].form(values)
        delta = self.compute_convergence_delta(tuple(values), starts, xs, target, additional_forward_args)
        return form[0].form(values), delta


class InternalInfluence(LayerAttribution, GradientAttribution):
    """The gradient by a layer's values, averaged along the path from the baselines to the inputs."""

    def attribute(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        n_steps: int = 50,
        method: str = "gausslegendre",
        internal_batch_size: int | None = None,
        attribute_to_layer_input: bool = False,
        grad_kwargs: Any = None,
    ) -> Any:
        xs, args = tuple(map(floating, as_tuple(inputs))), arguments(additional_forward_args)
        form: list[Layer] = []

        def work(points: Tensors, more: tuple[Any, ...], wanted: Any) -> Tensors:
            layer, slopes = gradient_at(
                self.forward_func, self.layer, attribute_to_layer_input, points, more, wanted, grad_kwargs
            )
            form.append(layer)
            return slopes

        integral, starts = Integral(method, n_steps), filled(baselines, xs)
        values = integral.weighted(work, xs, starts, args, target, internal_batch_size)
        return form[0].form(values)


class LayerGradientShap(LayerAttribution, GradientAttribution):
    """Expected gradients at a layer: its difference from a baseline's times the gradient at a point between."""

    def __init__(
        self, forward_func: Callable[..., Any], layer: nn.Module, device_ids: Any = None,
        multiply_by_inputs: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(forward_func, layer, device_ids)
        self._multiply_by_inputs = multiply_by_inputs

    @property
    def multiplies_by_inputs(self) -> bool:
        return self._multiply_by_inputs

    def has_convergence_delta(self) -> bool:
        return True

    def attribute(
        self,
        inputs: Any,
        baselines: Any,
        n_samples: int = 5,
        stdevs: Any = 0.0,
        target: Any = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        attribute_to_layer_input: bool = False,
    ) -> Any:
        xs = tuple(map(floating, as_tuple(inputs)))
        ends, starts, points = drawn(xs, distribution(baselines, inputs), n_samples, stdevs)
        args = tuple(repeated(a, n_samples, rows_together=True) for a in arguments(additional_forward_args))
        wanted = more_targets(target, n_samples, rows_together=True)
        form, slopes = gradient_at(self.forward_func, self.layer, attribute_to_layer_input, points, args, wanted)
        if self.multiplies_by_inputs:
            last, first = (
                read_layer(self.forward_func, (*at, *args), self.layer, attribute_to_layer_input).values
                for at in (ends, starts)
            )
            slopes = tuple(s * (end - start) for s, end, start in zip(slopes, last, first, strict=True))
        means = form.form([per_row(value, n_samples).mean(1) for value in slopes])
        if not return_convergence_delta:
            return means
        return means, self.compute_convergence_delta(slopes, starts, ends, wanted, args)


class LayerDeepLift(LayerAttribution, DeepLift):
    """`deeplift` of a layer's values, with those at the baselines as reference."""

    def __init__(self, model: nn.Module, layer: nn.Module, multiply_by_inputs: bool = True) -> None:
        DeepLift.__init__(self, model, multiply_by_inputs)
        self.layer, self.device_ids = layer, None

    def attribute(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        attribute_to_layer_input: bool = False,
        custom_attribution_func: Callable[..., Any] | None = None,
        grad_kwargs: Any = None,
    ) -> Any:
        xs, args = as_tuple(inputs), arguments(additional_forward_args)
        starts = filled(baselines, xs)
        form, values = self._at(xs, starts, args, target, attribute_to_layer_input, custom_attribution_func)
        if not return_convergence_delta:
            return form.form(values)
        delta = self.compute_convergence_delta(values, starts, xs, target, additional_forward_args)
        return form.form(values), delta

    def _at(
        self, xs: Tensors, starts: Tensors, args: tuple[Any, ...], target: Any, at_input: bool, custom: Any
    ) -> tuple[Layer, Tensors]:
        """The layer's contributions; what bypasses the layer has its own reference."""
        end, start = (read_layer(self.forward_func, (*at, *args), self.layer, at_input) for at in (xs, starts))
        function, count = FromLayer(self.forward_func, (end,)), len(end.values)
        values = contributions(
            WithTypes(function, count, tuple(x.dtype for x in xs)), (*end.values, *map(floating, xs)),
            (*start.values, *map(floating, starts)), args, target, custom, self.multiplies_by_inputs, first=count,
        )  # fmt: skip
        return end, values


class LayerDeepLiftShap(LayerDeepLift, DeepLiftShap):
    """`deepshap` of a layer's values."""

    def __init__(self, model: nn.Module, layer: nn.Module, multiply_by_inputs: bool = True) -> None:
        LayerDeepLift.__init__(self, model, layer, multiply_by_inputs)

    def attribute(
        self,
        inputs: Any,
        baselines: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        attribute_to_layer_input: bool = False,
        custom_attribution_func: Callable[..., Any] | None = None,
    ) -> Any:
        xs, args = as_tuple(inputs), arguments(additional_forward_args)
        ends, starts, args, wanted, count = against_each(xs, distribution(baselines, inputs), args, target)
        form, values = self._at(ends, starts, args, wanted, attribute_to_layer_input, custom_attribution_func)
        means = form.form([per_row(value, count).mean(1) for value in values])
        if not return_convergence_delta:
            return means
        return means, self.compute_convergence_delta(values, starts, ends, wanted, args)
