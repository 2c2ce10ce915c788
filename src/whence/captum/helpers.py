"""Counterparts of helpers that scripts import from Captum's private modules."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from whence.captum.base import GradientAttribution, row_sums
from whence.captum.calls import (
    Tensors,
    arguments,
    as_tuple,
    check,
    distribution,
    filled,
    fitting,
    like,
)  # fmt: skip
from whence.captum.data_loader import _together
from whence.captum.features import Features
from whence.captum.language_models import readable
from whence.captum.noise_tunnel import KINDS
from whence.captum.paths import RULES, Integral
from whence.captum.perturbation import permuted as _permute_feature
from whence.captum.views import explained, floating

Riemann = Enum("Riemann", "left right middle trapezoid")
NoiseTunnelType = Enum("NoiseTunnelType", "smoothgrad smoothgrad_sq vargrad")
SUPPORTED_METHODS, SUPPORTED_NOISE_TUNNEL_TYPES = list(RULES), list(KINDS)
__all__ = ["_permute_feature"]  # by the name that scripts know
Builders = tuple[Callable[[int], list[float]], Callable[[int], list[float]]]


def approximation_parameters(method: str) -> Builders:
    """The weights and the points of a rule of approximation, as functions of the number of steps."""
    if method not in RULES:
        raise ValueError(f"method={method!r} is not known.\n  Give one of {', '.join(RULES)}.")
    return lambda n: Integral(method, n).points()[1], lambda n: Integral(method, n).points()[0]


def riemann_builders(method: Any = Riemann.trapezoid) -> Builders:
    """As `approximation_parameters`, by the sum's name."""
    return approximation_parameters(f"riemann_{method.name}")


def gauss_legendre_builders() -> Builders:
    """As `approximation_parameters`."""
    return approximation_parameters("gausslegendre")


# ---- checks and forms ----


def _validate_target(num_samples: int, target: Any) -> None:
    """Per-row targets need one for each row."""
    per_row = isinstance(target, list) or (isinstance(target, Tensor) and target.numel() > 1)
    check(
        not per_row or len(target) == num_samples,
        f"There are {len(target) if per_row else 0} targets for {num_samples} rows.",
    )


def _validate_input(
    inputs: Tensors, baselines: Any, n_steps: int = 50, method: str = "riemann_trapezoid",
    draw_baseline_from_distrib: bool = False,
) -> None:  # fmt: skip
    """Raise where baselines do not fit the inputs, or the steps or the method do not exist."""
    fitting(baselines, inputs, any_rows=draw_baseline_from_distrib)
    if draw_baseline_from_distrib:
        for b, x in zip(baselines, inputs, strict=True):
            check(
                not isinstance(b, Tensor) or b.shape[1:] == x.shape[1:], "A baseline's rows are not like its input's."
            )
    check(n_steps >= 0, f"n_steps={n_steps} is negative.")
    check(method in RULES, f"method={method!r} is not known.\n  Give one of {', '.join(RULES)}.")


def _validate_noise_tunnel_type(nt_type: str, supported_noise_tunnel_types: list[str]) -> None:
    """Raise where there is no such kind."""
    check(nt_type in supported_noise_tunnel_types, f"nt_type={nt_type!r} is not known.\n  Give one of {KINDS}.")


def _format_input_baseline(inputs: Any, baselines: Any) -> tuple[Tensors, tuple[Any, ...]]:
    xs = as_tuple(inputs)
    return xs, (0,) * len(xs) if baselines is None else baselines if isinstance(baselines, tuple) else (baselines,)


def _format_callable_baseline(baselines: Any, inputs: Any) -> tuple[Any, ...]:
    return distribution(baselines, inputs) if callable(baselines) else _format_input_baseline(inputs, baselines)[1]


def _tensorize_baseline(inputs: Tensors, baselines: tuple[Any, ...]) -> Tensors:
    return filled(baselines, inputs)


def _construct_default_feature_mask(inputs: Tensors) -> tuple[Tensors, int]:
    features = Features.of(inputs, None)
    return features.index, features.count


def construct_feature_mask(feature_mask: Any, formatted_inputs: Tensors) -> tuple[Tensors, int]:
    """A mask for each input, numbered from 0, and how many features it has."""
    features = Features.of(formatted_inputs, feature_mask)
    return features.index, features.count


def get_total_features_from_mask(feature_mask: Tensors) -> int:
    """How many features a mask has."""
    return len(torch.cat([mask.flatten() for mask in feature_mask]).unique())


def _sum_rows(input: Tensor) -> Tensor:
    return row_sums(input)


def _reshape_and_sum(tensor_input: Tensor, num_steps: int, num_examples: int, layer_size: Any) -> Tensor:
    return tensor_input.reshape(num_steps, num_examples, *layer_size).sum(0)


# ---- batches ----


def _tuple_splice_range(inputs: Any, start: int, end: int) -> Any:
    """Some rows of each tensor of a tuple."""
    if inputs is None:
        return None
    return tuple(item[start:end] if isinstance(item, Tensor) else item for item in inputs)


def _batched_generator(
    inputs: Any, additional_forward_args: Any = None, target_ind: Any = None, internal_batch_size: int | None = None
) -> Iterator[tuple[Tensors, Any, Any]]:
    """Inputs, arguments and targets by parts of so many rows."""
    check(
        internal_batch_size is None or (isinstance(internal_batch_size, int) and internal_batch_size > 0),
        f"internal_batch_size={internal_batch_size!r}: give a whole number above 0.",
    )
    xs = as_tuple(inputs)
    args = None if additional_forward_args is None else arguments(additional_forward_args)
    rows = len(xs[0])
    for start in range(0, rows, internal_batch_size or rows):
        end = start + (internal_batch_size or rows)
        per_row = isinstance(target_ind, list) or (isinstance(target_ind, Tensor) and target_ind.numel() > 1)
        with torch.no_grad():
            part = _tuple_splice_range(xs, start, end)
        yield part, _tuple_splice_range(args, start, end), target_ind[start:end] if per_row else target_ind


def _batched_operator(
    operator: Callable[..., Any], inputs: Any, additional_forward_args: Any = None, target_ind: Any = None,
    internal_batch_size: int | None = None, **kwargs: Any,
) -> Any:  # fmt: skip
    """What an operator gives for each part, joined."""
    parts = [
        operator(inputs=x, additional_forward_args=args, target_ind=target, **kwargs)
        for x, args, target in _batched_generator(inputs, additional_forward_args, target_ind, internal_batch_size)
    ]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    if isinstance(parts[0], bool):
        return all(parts)
    return tuple(torch.cat([part[i] for part in parts]) for i in range(len(parts[0])))


def _batch_example_iterator(bsz: int, *args: Any) -> Iterator[tuple[Any, ...]]:
    """The arguments row by row."""

    def one(arg: Any, row: int) -> Any:
        if isinstance(arg, tuple):
            return tuple(one(item, row) for item in arg)
        if isinstance(arg, Tensor) and arg.dim() and len(arg) > 1:
            return arg[row : row + 1]
        return [arg[row]] if isinstance(arg, list) and len(arg) == bsz else arg

    for row in range(bsz):
        yield tuple(one(arg, row) for arg in args)


# ---- features and rows ----


class InputRole:
    """What an item of a batch is for in `DataLoaderAttribution`."""

    need_attr, need_forward, no_forward = range(3)


def _concat_tensors(accum: Tensor | None, cur_output: Tensor, _: Any) -> Tensor:
    return _together(accum, cur_output, _)


def _create_perturbation_mask(perturbed_feature_indices: Tensor, feature_mask: Tensors, _: Any) -> tuple[Any, ...]:
    """Where the features of each input are there, from which are; None for inputs that are whole."""
    masks = [perturbed_feature_indices[mask] for mask in feature_mask]
    return tuple(None if bool(mask.all()) else mask for mask in masks)


def _perturb_inputs(inputs: Any, input_roles: Any, baselines: Any, perturbation_mask: Any) -> tuple[Any, ...]:
    """The items of a batch, with baselines where the masks are 0."""
    made, number = [], 0
    for item, role in zip(inputs, input_roles, strict=True):
        if role == InputRole.need_attr:
            mask, start = perturbation_mask[number], baselines[number]
            number += 1
            item = (
                item if mask is None else torch.where(mask.bool(), item, torch.as_tensor(start, device="cpu").to(item))
            )
        made.append(item)
    return tuple(made)


def _convert_output_shape(unique_attr: Tensor, attr_inputs: Tensors, feature_mask: Tensors) -> Tensors:
    """Attributions of features (outputs, n) at the elements of each input."""
    features = Features(
        tuple(mask.expand(1, *x.shape[1:]) for mask, x in zip(feature_mask, attr_inputs, strict=True)), 0
    )
    return tuple(features.spread(unique_attr, i, 1) for i in range(len(attr_inputs)))


def _scatter_itp_attr_by_mask(itp_attr: Tensor, input_shape: Any, mask: Tensor) -> Tensor:
    return itp_attr[:, mask.expand(input_shape)[0]]


def _shape_feature_mask(feature_mask: Tensors, inputs: Tensors) -> Tensors:
    """Masks with as many dimensions as their inputs."""
    return tuple(m[(None,) * (x.dim() - m.dim())] for m, x in zip(feature_mask, inputs, strict=True))


def _perm_generator(num_features: int, num_samples: int) -> Iterator[list[int]]:
    """Random orders of features."""
    for _ in range(num_samples):
        yield torch.randperm(num_features, device="cpu").tolist()


def _all_perm_generator(num_features: int, num_samples: int) -> Iterator[tuple[int, ...]]:
    """All orders of features."""
    yield from itertools.permutations(range(num_features))


def _convert_ids_to_pretty_tokens(ids: Tensor, tokenizer: Any) -> list[str]:
    """Tokens as they are read."""
    return readable(ids, tokenizer)


# ---- one random point ----


class InputBaselineXGradient(GradientAttribution):
    """The difference from a baseline times the gradient at a random point between: one sample of GradientShap."""

    def __init__(self, forward_func: Callable[..., Any], multiply_by_inputs: bool = True) -> None:
        super().__init__(forward_func)
        self._multiply_by_inputs = multiply_by_inputs

    @property
    def multiplies_by_inputs(self) -> bool:
        return self._multiply_by_inputs

    def has_convergence_delta(self) -> bool:
        return True

    def attribute(
        self, inputs: Any, baselines: Any = None, target: Any = None, additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
    ) -> Any:  # fmt: skip
        xs, args = tuple(map(floating, as_tuple(inputs))), arguments(additional_forward_args)
        starts = filled(baselines, xs)
        share = torch.rand(len(xs[0]), device="cpu")
        points = tuple(
            s + share.to(x).view(-1, *[1] * (x.dim() - 1)) * (x - s) for x, s in zip(xs, starts, strict=True)
        )
        values = explained(self.forward_func, points, args, target, "gradient")
        if self.multiplies_by_inputs:
            values = tuple(v * (x - s) for v, x, s in zip(values, xs, starts, strict=True))
        if not return_convergence_delta:
            return like(values, inputs)
        return like(values, inputs), self.compute_convergence_delta(values, starts, xs, target, additional_forward_args)
