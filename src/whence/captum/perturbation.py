"""Perturbation classes over features: ablation, permutation, occlusion by windows, Shapley values; also at a layer."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.captum.base import LayerAttribution, PerturbationAttribution
from whence.captum.calls import Tensors, arguments, as_tuple, check, filled, like
from whence.captum.features import Features, Presence, by_feature
from whence.captum.views import FromLayer, read_layer


def waiting(forward_func: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose futures have arrived."""

    def wait(*args: Any) -> Any:
        output = forward_func(*args)
        check(isinstance(output, torch.futures.Future), f"attribute_future needs futures, but got {type(output)}.")
        return output.wait()

    return wait


def in_future(of: PerturbationAttribution, *args: Any, **kwargs: Any) -> torch.futures.Future[Any]:
    """What `attribute` gives, for a function that gives futures, as a future that is done."""
    plain = of.forward_func
    of.forward_func = waiting(plain)
    try:
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(of.attribute(*args, **kwargs))
        return done
    finally:
        of.forward_func = plain


class FeatureAblation(PerturbationAttribution):
    """`leave_one_out`: what the score loses when a feature has its baseline's value."""

    def __init__(self, forward_func: Callable[..., Any]) -> None:
        super().__init__(forward_func)
        self.use_weights = False

    def attribute(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
        **kwargs: Any,
    ) -> Any:
        xs = tuple(x.detach() for x in as_tuple(inputs))
        absent, features = filled(baselines, xs, loose=True), Features.of(xs, feature_mask)
        args = arguments(additional_forward_args)
        view = Presence(self.forward_func, xs, absent, features, args, target)
        return like(self._lost(view, features, perturbations_per_eval, show_progress), inputs)

    def _lost(self, view: Presence, features: Features, per_eval: int, show: bool) -> list[Tensor]:
        """What each output loses without each feature, at the feature's elements."""
        values = by_feature(view, "leave_one_out", per_eval, show=show, title=self.get_name(), runs=features.count).to(
            view.first.dtype
        )
        return [features.spread(values, i, len(x)) for i, x in enumerate(view.inputs)]

    def attribute_future(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
        **kwargs: Any,
    ) -> Any:
        return in_future(
            self, inputs, baselines, target, additional_forward_args, feature_mask, perturbations_per_eval,
            show_progress, **kwargs,
        )  # fmt: skip


def permuted(x: Tensor, feature_mask: Tensor) -> Tensor:
    """A feature's values shuffled among the rows."""
    check(x.shape[1:] == feature_mask.shape[1:], "The feature mask does not fit the input.")
    order = torch.randperm(len(x), device=x.device)
    if len(x) > 1:
        while bool((order == torch.arange(len(x), device=x.device)).all()):
            order = torch.randperm(len(x), device=x.device)
    return torch.where(feature_mask.bool(), x[order], x)


class FeaturePermutation(FeatureAblation):
    """What the score loses when a feature's values are shuffled among the rows."""

    def __init__(
        self, forward_func: Callable[..., Any], perm_func: Callable[[Tensor, Tensor], Tensor] = permuted
    ) -> None:
        super().__init__(forward_func)
        self.perm_func = perm_func

    def attribute(
        self,
        inputs: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
        **kwargs: Any,
    ) -> Any:
        xs = tuple(x.detach() for x in as_tuple(inputs))
        features = Features.of(xs, feature_mask)
        absent = tuple(self._shuffled(x, index) for x, index in zip(xs, features.index, strict=True))
        view = Presence(self.forward_func, xs, absent, features, arguments(additional_forward_args), target)
        return like(self._lost(view, features, perturbations_per_eval, show_progress), inputs)

    def _shuffled(self, x: Tensor, index: Tensor) -> Tensor:
        """Every feature of an input shuffled, each by itself."""
        shuffled = x.clone()
        if len(x) < 2:
            return shuffled
        for feature in index.unique().tolist():
            mask = index == feature
            shuffled = torch.where(mask, self.perm_func(x, mask), shuffled)
        return shuffled

    def attribute_future(
        self,
        inputs: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
        **kwargs: Any,
    ) -> Any:
        return in_future(
            self, inputs, target, additional_forward_args, feature_mask, perturbations_per_eval, show_progress
        )


# ---- windows ----


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows that slide over each input, as features that may overlap: (input, one slice for each axis)."""

    places: list[tuple[int, tuple[slice, ...]]]
    shapes: list[torch.Size]

    @property
    def count(self) -> int:
        return len(self.places)

    def there(self, present: Tensor, which: int) -> Tensor:
        """Whether each element is outside of all windows that are missing, (m, 1, …)."""
        keep = torch.ones(len(present), 1, *self.shapes[which][1:], dtype=torch.bool, device=present.device)
        for row, window in (~present).nonzero().tolist():
            of, place = self.places[window]
            if of == which:
                keep[(row, 0, *place)] = False
        return keep

    def spread(self, values: Tensor, which: int) -> Tensor:
        """Each element's mean over the windows that hold it, (outputs, …)."""
        total = values.new_zeros(len(values), *self.shapes[which][1:])
        times = values.new_zeros(self.shapes[which][1:])
        for window, (of, place) in enumerate(self.places):
            if of == which:
                total[(slice(None), *place)] += values[:, window].view(-1, *[1] * (total.dim() - 1))
                times[place] += 1
        return total / times


class Occlusion(FeatureAblation):
    """`leave_one_out` of windows; an element that several windows hold gets the mean of what the score lost."""

    def attribute(
        self,
        inputs: Any,
        sliding_window_shapes: Any,
        strides: Any = None,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
    ) -> Any:
        xs = tuple(x.detach() for x in as_tuple(inputs))
        windows = _windows(xs, sliding_window_shapes, strides)
        args = arguments(additional_forward_args)
        view = Presence(self.forward_func, xs, filled(baselines, xs, loose=True), windows, args, target)
        values = by_feature(
            view, "leave_one_out", perturbations_per_eval,
            show=show_progress, title=self.get_name(), runs=windows.count,
        )  # fmt: skip
        dtype = view.first.dtype if view.first.is_floating_point() else torch.float32
        return like([windows.spread(values, i).to(dtype) for i in range(len(xs))], inputs)

    def attribute_future(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("attribute_future is not implemented for Occlusion: use attribute.")


def _windows(xs: Tensors, shapes: Any, strides: Any) -> Windows:
    """All windows of all inputs; the last of an axis ends where the input does."""
    if not isinstance(shapes, tuple):
        raise TypeError(f"sliding_window_shapes is {type(shapes)}.\n  Give a tuple of sides, or one for each input.")
    sides = shapes if isinstance(shapes[0], tuple) else (shapes,)
    check(len(sides) == len(xs), f"There are {len(sides)} window shapes for {len(xs)} inputs.")
    steps = (
        (strides,) if len(xs) == 1 and not (isinstance(strides, tuple) and isinstance(strides[0], tuple)) else strides
    )
    steps = (1,) * len(xs) if strides is None else (steps,) * len(xs) if isinstance(steps, int) else steps
    check(len(steps) == len(xs), f"There are {len(steps)} strides for {len(xs)} inputs.")
    places = []
    for which, (x, side, step) in enumerate(zip(xs, sides, steps, strict=True)):
        axes = x.shape[1:]
        check(
            isinstance(side, tuple) and len(side) == len(axes),
            f"The window {side} of input {which} needs {len(axes)} sides.",
        )
        step = (step,) * len(axes) if isinstance(step, int) else step
        check(len(step) == len(axes), f"The stride {step} of input {which} needs {len(axes)} numbers.")
        starts = []
        for length, width, by in zip(axes, side, step, strict=True):
            check(
                by >= 1,
                f"The stride {step} of input {which} has a number below 1.\n  Give whole numbers of at least 1.",
            )
            check(width <= length, f"The window {side} exceeds the input's {tuple(axes)}.")
            check(by <= width, f"The stride {step} exceeds the window {side}: places between would have no value.")
            count = -(-(length - width) // by) + 1
            starts.append([slice(i * by, min(i * by + width, length)) for i in range(count)])
        places += [(which, place) for place in itertools.product(*starts)]
    return Windows(places, [x.shape for x in xs])


# ---- Shapley values ----


class ShapleyValueSampling(PerturbationAttribution):
    """`shapley`: by random orders of the features, or exactly where all coalitions are no more evaluations."""

    def attribute(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        n_samples: int = 25,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
    ) -> Any:
        return self._shapley(
            inputs, baselines, target, additional_forward_args, feature_mask, n_samples, perturbations_per_eval,
            show_progress,
        )  # fmt: skip

    def attribute_future(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        n_samples: int = 25,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
    ) -> Any:
        return in_future(
            self, inputs, baselines, target, additional_forward_args, feature_mask, n_samples, perturbations_per_eval,
            show_progress,
        )  # fmt: skip

    def _shapley(
        self, inputs: Any, baselines: Any, target: Any, args: Any, mask: Any, samples: int | None, per_eval: int,
        show: bool,
    ) -> Any:  # fmt: skip
        xs = tuple(x.detach() for x in as_tuple(inputs))
        features = Features.of(xs, mask)
        view = Presence(self.forward_func, xs, filled(baselines, xs, loose=True), features, arguments(args), target)
        n = features.count
        exactly = samples is None or 2**n <= samples * n + 1
        check(exactly is False or n <= 20, f"{n} features have too many coalitions.\n  Take ShapleyValueSampling.")
        runs = 2**n if samples is None else samples * n
        values = by_feature(
            view, "shapley", per_eval, show=show, title=self.get_name(), runs=runs,
            exact=max(n, 1) if exactly else 1, samples=max(2, -(-(samples or 2) // 2)),
        )  # fmt: skip
        shape = view.first.shape or torch.Size([1])
        dtype = view.first.dtype if view.tensors and view.first.is_floating_point() else torch.float32
        spread = [features.spread(values, i, len(x)).to(dtype) for i, x in enumerate(xs)]
        return like([value.reshape(*shape, *x.shape[1:]) for value, x in zip(spread, xs, strict=True)], inputs)


class ShapleyValues(ShapleyValueSampling):
    """`shapley` exactly: every coalition once."""

    def attribute(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
    ) -> Any:
        count = Features.of(as_tuple(inputs), feature_mask).count
        if count >= 10:
            warnings.warn(
                f"{count} features have {2**count} coalitions, all evaluated: ShapleyValueSampling takes few.",
                stacklevel=2,
            )
        return self._shapley(
            inputs, baselines, target, additional_forward_args, feature_mask, None, perturbations_per_eval,
            show_progress,
        )  # fmt: skip

    def attribute_future(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        n_samples: int = 25,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
    ) -> Any:
        args = (inputs, baselines, target, additional_forward_args, feature_mask, perturbations_per_eval)
        return in_future(self, *args, show_progress)


# ---- at a layer ----


class LayerFeatureAblation(LayerAttribution, PerturbationAttribution):
    """What the score loses when some of a layer's values are replaced."""

    @property
    def attributor(self) -> type[FeatureAblation]:
        return FeatureAblation

    def attribute(
        self,
        inputs: Any,
        layer_baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        layer_mask: Any = None,
        attribute_to_layer_input: bool = False,
        perturbations_per_eval: int = 1,
    ) -> Any:
        call = (*as_tuple(inputs), *arguments(additional_forward_args))
        layer = read_layer(self.forward_func, call, self.layer, attribute_to_layer_input)
        of = FeatureAblation(FromLayer(self.forward_func, (layer,), every_call=True))
        return layer.form(of.attribute(layer.values, layer_baselines, target, call, layer_mask, perturbations_per_eval))


class LayerFeaturePermutation(LayerAttribution, FeaturePermutation):
    """What the score loses when some of a layer's values are shuffled among the rows."""

    def __init__(self, forward_func: Callable[..., Any], layer: nn.Module, device_ids: Any = None) -> None:
        LayerAttribution.__init__(self, forward_func, layer, device_ids)
        FeaturePermutation.__init__(self, forward_func)

    @property
    def attributor(self) -> type[FeaturePermutation]:
        return FeaturePermutation

    def attribute(
        self,
        inputs: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        layer_mask: Any = None,
        perturbations_per_eval: int = 1,
    ) -> Any:
        call = (*as_tuple(inputs), *arguments(additional_forward_args))
        layer = read_layer(self.forward_func, call, self.layer)
        of = FeaturePermutation(FromLayer(self.forward_func, (layer,), every_call=True), self.perm_func)
        return layer.form(of.attribute(layer.values, target, call, layer_mask, perturbations_per_eval))
