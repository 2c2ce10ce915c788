"""Two measures of attributions that come from anywhere: infidelity and largest sensitivity."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.captum.calls import (
    Tensors,
    arguments,
    as_tuple,
    check,
    filled,
    like,
    more_targets,
    read_target,
    repeated,
    run,
    select,
)  # fmt: skip
from whence.evaluation.metrics.infidelity import squared_error


def infidelity_perturb_func_decorator(multipy_by_inputs: bool = True) -> Callable[..., Any]:
    """Let a perturbation function give the perturbed inputs alone: what it took away is computed.

    With `multipy_by_inputs` (Captum's spelling) it is divided by the difference from the baseline, for attributions
    that were multiplied by it.
    """

    def decorate(perturb: Callable[..., Any]) -> Callable[..., Any]:
        def perturbed(inputs: Any, baselines: Any = None) -> Any:
            made = perturb(inputs, baselines) if baselines is not None else perturb(inputs)
            xs, after = as_tuple(inputs), as_tuple(made)
            taken = [x - y for x, y in zip(xs, after, strict=True)]
            if multipy_by_inputs:
                starts = filled(baselines, xs)
                whole = [x - start for x, start in zip(xs, starts, strict=True)]
                taken = [
                    torch.where(w.abs() > 1e-10, t / torch.where(w == 0, torch.ones_like(w), w), torch.zeros_like(t))
                    for t, w in zip(taken, whole, strict=True)
                ]
            return like(taken, inputs), like(after, inputs)

        return perturbed

    return decorate


def infidelity(
    forward_func: Callable[..., Any],
    perturb_func: Callable[..., Any],
    inputs: Any,
    attributions: Any,
    baselines: Any = None,
    additional_forward_args: Any = None,
    target: Any = None,
    n_perturb_samples: int = 10,
    max_examples_per_batch: int | None = None,
    normalize: bool = False,
) -> Tensor:
    """E[(I·φ − (f(x) − f(x − I)))²] for each row, I a perturbation (Yeh et al. 2019).

    `perturb_func` gives I and x − I for repeated rows. `normalize` first scales φ as fits best.
    """
    xs, values = as_tuple(inputs), as_tuple(attributions, "attributions")
    check(len(xs) == len(values), f"There are {len(values)} attributions for {len(xs)} inputs.")
    for x, value in zip(xs, values, strict=True):
        check(x.shape == value.shape, f"An attribution has the shape {tuple(value.shape)}, its input {tuple(x.shape)}.")
    args, rows = arguments(additional_forward_args), len(xs[0])
    starts = None if baselines is None else filled(baselines, xs)
    guesses, rises = [], []
    with torch.no_grad():
        before = select(run(forward_func, *xs, *args), read_target(target)).reshape(rows)
        for copies in _parts(n_perturb_samples, rows, max_examples_per_batch):
            more = tuple(repeated(x, copies, rows_together=True) for x in xs)
            given = [like(more, inputs)]
            if starts is not None:
                given.append(like([repeated(s, copies, rows_together=True) for s in starts], inputs))
            taken, after = perturb_func(*given)
            taken, after = as_tuple(taken, "perturbations"), as_tuple(after, "perturbed inputs")
            check(len(taken) == len(xs) == len(after), "perturb_func must give one tensor for each input.")
            rest = tuple(repeated(a, copies, rows_together=True) for a in args)
            wanted = read_target(more_targets(target, copies, rows_together=True))
            score = select(run(forward_func, *after, *rest), wanted).reshape(rows, copies)
            rises.append((before[:, None] - score).double())
            parts = [
                (t * repeated(v, copies, rows_together=True)).double().reshape(rows, copies, -1).sum(2)
                for t, v in zip(taken, values, strict=True)
            ]
            guesses.append(torch.stack(parts).sum(0))
    return squared_error(torch.cat(guesses, 1), torch.cat(rises, 1), normalize).to(before.dtype)


def default_perturb_func(inputs: Any, perturb_radius: float = 0.02) -> Any:
    """Inputs moved by uniform noise within a radius."""
    moved = [x + (2 * torch.rand_like(x) - 1) * perturb_radius for x in as_tuple(inputs)]
    return tuple(moved)


def sensitivity_max(
    explanation_func: Callable[..., Any],
    inputs: Any,
    perturb_func: Callable[..., Any] = default_perturb_func,
    perturb_radius: float = 0.02,
    n_perturb_samples: int = 10,
    norm_ord: Any = "fro",
    max_examples_per_batch: int | None = None,
    **kwargs: Any,
) -> Tensor:
    """max ‖φ(x + δ) − φ(x)‖ / ‖φ(x)‖ over perturbations δ, for each row (Yeh et al. 2019)."""
    xs = tuple(x.detach() for x in as_tuple(inputs))
    rows = len(xs[0])
    before = _flat(explanation_func(inputs, **kwargs), rows)
    size = _norm(before, norm_ord)
    size = torch.where(size == 0, torch.ones_like(size), size)
    largest = torch.zeros_like(size)
    radius = "perturb_radius" in inspect.signature(perturb_func).parameters
    takes = radius or len(inspect.signature(perturb_func).parameters) > 1
    for copies in _parts(n_perturb_samples, rows, max_examples_per_batch):
        more = like([repeated(x, copies, rows_together=True) for x in xs], inputs)
        moved = as_tuple(perturb_func(more, perturb_radius) if takes else perturb_func(more))
        own = {name: _for_copies(name, value, rows, copies) for name, value in kwargs.items()}
        after = _flat(explanation_func(like(moved, inputs), **own), rows * copies)
        apart = _norm(after - before.repeat_interleave(copies, 0), norm_ord)
        largest = torch.maximum(largest, (apart.view(rows, copies) / size[:, None]).amax(1))
    return largest


def _parts(samples: int, rows: int, most: int | None) -> list[int]:
    """How many copies of each row at a time."""
    some = samples if most is None else max(1, min(samples, most // rows))
    return [min(some, samples - first) for first in range(0, samples, some)]


def _flat(values: Any, rows: int) -> Tensor:
    parts: Tensors = values if isinstance(values, tuple) else (values,)
    return torch.cat([part.detach().reshape(rows, -1) for part in parts], 1)


def _norm(values: Tensor, order: Any) -> Tensor:
    return torch.linalg.norm(values, ord=2 if order == "fro" else order, dim=1)


def _for_copies(name: str, value: Any, rows: int, copies: int) -> Any:
    """An argument of an explanation for copies of each row."""
    if name == "target":
        return more_targets(value, copies, rows_together=True)
    if isinstance(value, tuple):
        return tuple(_for_copies("", part, rows, copies) for part in value)
    per_row = isinstance(value, Tensor) and value.dim() and len(value) == rows and rows > 1
    return repeated(value, copies, rows_together=True) if per_row else value
