"""Attribution to the inputs by gradients and by rules: one class each, one call of `whence.explain` each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from whence.captum.base import GradientAttribution, LayerAttribution
from whence.captum.calls import arguments, as_tuple, check, distribution, filled, like, more_targets, repeated
from whence.captum.paths import Integral
from whence.captum.views import explained, floating


class Saliency(GradientAttribution):
    """`gradient`: the derivative of the score by the inputs, or its magnitude."""

    def attribute(self, inputs: Any, target: Any = None, abs: bool = True, additional_forward_args: Any = None) -> Any:
        args = arguments(additional_forward_args)
        values = explained(self.forward_func, as_tuple(inputs), args, target, "gradient", absolute=bool(abs))
        return like(values, inputs)


class InputXGradient(GradientAttribution):
    """`input_x_gradient`: the inputs times their gradient."""

    @property
    def multiplies_by_inputs(self) -> bool:
        return True

    def attribute(self, inputs: Any, target: Any = None, additional_forward_args: Any = None) -> Any:
        args = arguments(additional_forward_args)
        return like(explained(self.forward_func, as_tuple(inputs), args, target, "input_x_gradient"), inputs)


class ModifiedReluGradientAttribution(GradientAttribution):
    """Gradients in which rectifiers pass something else: the base of the next two."""

    method = ""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.model = model
        check(isinstance(model, nn.Module), f"The model is {type(model)}.\n  Give an nn.Module.")

    def attribute(self, inputs: Any, target: Any = None, additional_forward_args: Any = None) -> Any:
        args = arguments(additional_forward_args)
        return like(explained(self.forward_func, as_tuple(inputs), args, target, self.method), inputs)


class GuidedBackprop(ModifiedReluGradientAttribution):
    """`guided_backprop`: rectifiers pass positive signals of positive values."""

    method = "guided_backprop"


class Deconvolution(ModifiedReluGradientAttribution):
    """`deconvnet`: rectifiers pass positive signals."""

    method = "deconvnet"


class IntegratedGradients(GradientAttribution):
    """`integrated_gradients` with exactly the points that `method` and `n_steps` say."""

    def __init__(self, forward_func: Callable[..., Any], multiply_by_inputs: bool = True) -> None:
        super().__init__(forward_func)
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
    ) -> Any:
        xs, args = tuple(map(floating, as_tuple(inputs))), arguments(additional_forward_args)
        starts, integral = filled(baselines, xs), Integral(method, n_steps)
        values = integral.explained(
            self.forward_func, xs, starts, args, target, internal_batch_size, multiply=self.multiplies_by_inputs
        )
        if not return_convergence_delta:
            return like(values, inputs)
        delta = self.compute_convergence_delta(values, starts, xs, target, additional_forward_args)
        return like(values, inputs), delta


class GradientShap(GradientAttribution):
    """Expected gradients: mean of (x + ε − x') ⊙ ∇f at random points between, x' drawn from the baselines."""

    def __init__(self, forward_func: Callable[..., Any], multiply_by_inputs: bool = True) -> None:
        super().__init__(forward_func)
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
    ) -> Any:
        xs = tuple(map(floating, as_tuple(inputs)))
        ends, starts, points = drawn(xs, distribution(baselines, inputs), n_samples, stdevs)
        args = tuple(repeated(a, n_samples, rows_together=True) for a in arguments(additional_forward_args))
        wanted = more_targets(target, n_samples, rows_together=True)
        slopes = explained(self.forward_func, points, args, wanted, "gradient")
        values = tuple(
            slope * (end - start) if self.multiplies_by_inputs else slope
            for slope, end, start in zip(slopes, ends, starts, strict=True)
        )
        means = tuple(per_row(value, n_samples).mean(1) for value in values)
        if not return_convergence_delta:
            return like(means, inputs)
        return like(means, inputs), self.compute_convergence_delta(values, starts, ends, wanted, args)


Drawn = tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Tensor, ...]]


def drawn(xs: tuple[Tensor, ...], background: tuple[Tensor, ...], samples: int, stdevs: Any) -> Drawn:
    """Noisy inputs, baselines and points between the two, so many for each row, side by side."""
    rows = len(xs[0]) * samples
    deviations = stdevs if isinstance(stdevs, tuple) else (stdevs,) * len(xs)
    check(len(deviations) == len(xs), f"There are {len(deviations)} stdevs for {len(xs)} inputs.")
    which, share = torch.randint(len(background[0]), (rows,), device="cpu"), torch.rand(rows, device="cpu")
    ends: list[Tensor] = []
    starts: list[Tensor] = []
    points: list[Tensor] = []
    for x, several, deviation in zip(xs, background, deviations, strict=True):
        end = repeated(x, samples, rows_together=True)
        end = end + deviation * torch.randn_like(end)
        together = len(several) == len(background[0])  # rows of the same place in each distribution
        own = which if together else torch.randint(len(several), (rows,), device="cpu")
        start = several.detach().to(x)[own]
        alpha = share.to(x).view(-1, *[1] * (x.dim() - 1))
        ends.append(end)
        starts.append(start)
        points.append(start + alpha * (end - start))
    return tuple(ends), tuple(starts), tuple(points)


def per_row(value: Tensor, copies: int) -> Tensor:
    """Rows of copies side by side as (rows, copies, …)."""
    return value.unflatten(0, (-1, copies))


class DeepLift(GradientAttribution):
    """`deeplift`: contributions of differences from a reference, which sum to the score's difference."""

    def __init__(self, model: nn.Module, multiply_by_inputs: bool = True, eps: float = 1e-10) -> None:
        super().__init__(model)
        self.model, self.eps = model, eps
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
        return_convergence_delta: bool = False,
        custom_attribution_func: Callable[..., Any] | None = None,
    ) -> Any:
        xs, args = tuple(map(floating, as_tuple(inputs))), arguments(additional_forward_args)
        starts = filled(baselines, xs)
        values = contributions(
            self.forward_func, xs, starts, args, target, custom_attribution_func, self.multiplies_by_inputs
        )
        if not return_convergence_delta:
            return like(values, inputs)
        delta = self.compute_convergence_delta(values, starts, xs, target, additional_forward_args)
        return like(values, inputs), delta


def contributions(
    function: Callable[..., Any],
    xs: tuple[Tensor, ...],
    starts: tuple[Tensor, ...],
    args: tuple[Any, ...],
    target: Any,
    custom: Callable[..., Any] | None,
    multiply: bool,
    first: int | None = None,
) -> tuple[Tensor, ...]:
    """DeepLIFT's values, its multipliers alone, or a user's function of multipliers, inputs and baselines.

    `first` says of how many of the inputs; the others only have their own reference.
    """
    own = {"multiply_by_inputs": multiply and custom is None}
    values = explained(function, xs, args, target, "deeplift", baselines=starts, **own)[:first]
    if custom is None:
        return values
    named = custom.__code__.co_argcount if hasattr(custom, "__code__") else 3
    given = (values, xs[:first], starts[:first])
    return tuple(custom(*given[: named - hasattr(custom, "__self__")]))


class DeepLiftShap(DeepLift):
    """`deepshap`: DeepLIFT averaged over a distribution of baselines."""

    def __init__(self, model: nn.Module, multiply_by_inputs: bool = True) -> None:
        super().__init__(model, multiply_by_inputs=multiply_by_inputs)

    def attribute(
        self,
        inputs: Any,
        baselines: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        custom_attribution_func: Callable[..., Any] | None = None,
    ) -> Any:
        xs, args = tuple(map(floating, as_tuple(inputs))), arguments(additional_forward_args)
        ends, starts, args, wanted, count = against_each(xs, distribution(baselines, inputs), args, target)
        values = contributions(
            self.forward_func, ends, starts, args, wanted, custom_attribution_func, self.multiplies_by_inputs
        )
        means = tuple(per_row(value, count).mean(1) for value in values)
        if not return_convergence_delta:
            return like(means, inputs)
        return like(means, inputs), self.compute_convergence_delta(values, starts, ends, wanted, args)


def against_each(
    xs: tuple[Tensor, ...], background: tuple[Tensor, ...], args: tuple[Any, ...], target: Any
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[Any, ...], Any, int]:
    """Every row beside every baseline: the rows, the baselines, arguments and target for them, how many for a row."""
    count, rows = len(background[0]), len(xs[0])
    check(
        count > 1 and all(len(b) == count for b in background),
        "The baselines are not a distribution.\n  Give several rows, as many for each input; for one take DeepLift.",
    )
    ends = tuple(repeated(x, count, rows_together=True) for x in xs)
    starts = tuple(repeated(b.detach().to(x), rows) for b, x in zip(background, xs, strict=True))
    args = tuple(repeated(arg, count, rows_together=True) for arg in args)
    return ends, starts, args, more_targets(target, count, rows_together=True), count


class GuidedGradCam(GradientAttribution):
    """Guided backpropagation times Grad-CAM's map, stretched to each input."""

    def __init__(self, model: nn.Module, layer: nn.Module, device_ids: Any = None) -> None:
        super().__init__(model)
        self.model, self.layer, self.device_ids = model, layer, device_ids

    def attribute(
        self,
        inputs: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        interpolate_mode: str = "nearest",
        attribute_to_layer_input: bool = False,
    ) -> Any:
        from whence.captum.layers import LayerGradCam

        cam = LayerGradCam(self.forward_func, self.layer).attribute(
            inputs, target, additional_forward_args, attribute_to_layer_input, relu_attributions=True
        )
        if isinstance(cam, tuple):
            check(len(cam) == 1, "The layer has several tensors.\n  Guided Grad-CAM needs a layer with one.")
            (cam,) = cam
        xs, args = as_tuple(inputs), arguments(additional_forward_args)
        guided = explained(self.forward_func, xs, args, target, "guided_backprop")
        values = []
        for x, signal in zip(xs, guided, strict=True):
            fits = x.dim() == cam.dim() and x.dim() > 2
            stretched = LayerAttribution.interpolate(cam, tuple(x.shape[2:]), interpolate_mode) if fits else None
            values.append(signal * stretched if stretched is not None else torch.empty(0, device="cpu"))
        return like(values, inputs)
