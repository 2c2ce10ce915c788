"""Captum's arguments in one form: tuples of tensors, targets as indices, baselines that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whence.adapters.reachable import modules_behind
from whence.engine.scope import scope

Tensors = tuple[Tensor, ...]


def check(holds: Any, message: str) -> None:
    """Captum reports arguments that do not fit by AssertionError, which scripts may rely on."""
    if not holds:
        raise AssertionError(message)


# ---- models ----


@contextmanager
def undisturbed(function: Callable[..., Any]) -> Iterator[None]:
    """The models that a function can reach in eval mode and without gradients, as in `explain`; then as they were."""
    roots = [function] if isinstance(function, nn.Module) else list(modules_behind(function).values())
    with scope(*roots), torch.no_grad():
        yield


def run(function: Callable[..., Any], *args: Any) -> Any:
    """What a function gives for some arguments, undisturbed."""
    with undisturbed(function):
        return function(*args)


# ---- inputs ----


def as_tuple(inputs: Any, what: str = "inputs") -> Tensors:
    """A tensor or a tuple of tensors as a tuple."""
    several = isinstance(inputs, tuple) and all(isinstance(item, Tensor) for item in inputs)
    check(isinstance(inputs, Tensor) or several, f"`{what}` is {type(inputs)}.\n  Give a tensor or a tuple of tensors.")
    check(isinstance(inputs, Tensor) or len(inputs), f"`{what}` is an empty tuple.\n  Give at least one tensor.")
    return inputs if isinstance(inputs, tuple) else (inputs,)


def like(values: Any, inputs: Any) -> Any:
    """A tuple where the inputs are one, else its only item."""
    return tuple(values) if isinstance(inputs, tuple) else values[0]


def arguments(given: Any) -> tuple[Any, ...]:
    """Additional arguments of the forward function as a tuple; None is none."""
    if given is None:
        return ()
    return given if isinstance(given, tuple) else (given,)


def repeated(value: Any, times: int, *, rows_together: bool = False) -> Any:
    """A tensor's rows so many times: all of them one after the other, or each row's copies side by side."""
    if not isinstance(value, Tensor) or value.dim() == 0 or times == 1:
        return value
    if rows_together:
        return value.repeat_interleave(times, 0)
    return value.repeat(times, *[1] * (value.dim() - 1))


# ---- baselines ----


def fitting(baselines: Any, inputs: Tensors, *, any_rows: bool = False, loose: bool = False) -> tuple[Any, ...]:
    """One baseline for each input, a number or a tensor like it or one row of it; None is zero.

    `loose` lets pass whatever broadcasts to the input, as perturbation does.
    """
    if baselines is None:
        return (0,) * len(inputs)
    given = baselines if isinstance(baselines, tuple) else (baselines,)
    check(
        len(given) == len(inputs),
        f"There are {len(given)} baselines for {len(inputs)} inputs.\n  Give one for each input.",
    )
    for baseline, x in zip(given, inputs, strict=True):
        check(
            isinstance(baseline, Tensor | int | float),
            f"A baseline is {type(baseline)}.\n  Give a tensor, a number or a tuple of them.",
        )
        if isinstance(baseline, Tensor) and not any_rows:
            one_row = baseline.dim() == x.dim() and len(baseline) == 1 and baseline.shape[1:] == x.shape[1:]
            fits = (
                loose
                and baseline.dim() <= x.dim()
                and all(
                    size in (1, whole) for size, whole in zip(reversed(baseline.shape), reversed(x.shape), strict=False)
                )
            )
            check(
                baseline.shape == x.shape or one_row or fits or baseline.numel() == 1,
                f"A baseline has the shape {tuple(baseline.shape)}, its input {tuple(x.shape)}.\n"
                "  Give the input's shape, one row of it, or a number.",
            )
    return given


def filled(baselines: Any, inputs: Tensors, *, loose: bool = False) -> Tensors:
    """Baselines as tensors like the inputs."""
    return tuple(
        (b.detach().to(x) if isinstance(b, Tensor) else torch.as_tensor(b, device="cpu").to(x)).expand_as(x)
        for b, x in zip(fitting(baselines, inputs, loose=loose), inputs, strict=True)
    )


def distribution(baselines: Any, inputs: Any) -> Tensors:
    """A distribution of baselines: a tensor or tuple of several rows each, or a function that gives one."""
    if callable(baselines):
        taken = baselines.__code__.co_argcount if hasattr(baselines, "__code__") else 0
        baselines = baselines(inputs) if taken > hasattr(baselines, "__self__") else baselines()
    several = as_tuple(baselines, "baselines") if isinstance(baselines, Tensor | tuple) else ()
    check(
        several and all(isinstance(b, Tensor) for b in several),
        f"The baselines are {type(baselines)}.\n  Give a tensor of several rows, a tuple of them, or a function.",
    )
    check(len(several) == len(as_tuple(inputs)), "Give one distribution of baselines for each input.")
    return several


# ---- targets ----


def read_target(target: Any) -> tuple[Any, ...] | Tensor | None:
    """None; one index for all rows, as a tuple; or one for each row, as a tensor (rows, depth)."""
    if target is None or isinstance(target, tuple):
        return target
    if type(target) is int:
        return (target,)
    if isinstance(target, Tensor):
        if target.numel() == 1:
            return (int(target.item()),)
        check(
            target.dim() == 1, f"A target tensor of shape {tuple(target.shape)} is not valid: give one class per row."
        )
        if target.is_floating_point():
            raise RuntimeError(f"The targets are {target.dtype}.\n  Give whole numbers.")
        return target.detach().long()[:, None]
    check(isinstance(target, list), f"A target of type {type(target)} is not valid.")
    depths = {len(item) if isinstance(item, tuple) else int(type(item) is int) for item in target}
    check(
        len(depths) == 1 and 0 not in depths and len({type(item) for item in target}) == 1,
        f"The targets {target!r} are not valid.\n  Give a list of ints, or of tuples of one length.",
    )
    return torch.tensor(target, device="cpu").reshape(len(target), -1)


def select(output: Any, target: tuple[Any, ...] | Tensor | None) -> Tensor:
    """The scores that a target names in an output; all of it where there is no target."""
    output = numbers(output)
    if target is None:
        return output
    if isinstance(target, tuple):
        check(
            len(target) < output.dim(),
            f"The target {target} does not fit the output's shape {tuple(output.shape)}.",
        )
        return output[(slice(None), *target)]
    check(len(target) == len(output), f"There are {len(target)} targets for {len(output)} rows of output.")
    check(
        target.shape[1] == output.dim() - 1,
        f"Targets of {target.shape[1]} indices do not fit the output's shape {tuple(output.shape)}.",
    )
    rows = torch.arange(len(output), device=output.device)
    return output[(rows, *target.to(output.device).unbind(1))]


def numbers(output: Any) -> Tensor:
    """A model's output as a tensor; a Python number is a model's one number for all rows."""
    if isinstance(output, Tensor):
        return output
    check(
        isinstance(output, int | float),
        f"The forward function gave {type(output)}.\n  It must give a tensor: wrap it in a function that "
        "picks one of its outputs, such as lambda *args: model(*args)[0].",
    )
    return torch.tensor(output, dtype=torch.float64 if isinstance(output, float) else None, device="cpu")


def more_targets(target: Any, times: int, *, rows_together: bool = False) -> Any:
    """The target of repeated rows."""
    read = read_target(target)
    if not isinstance(read, Tensor):
        return target
    rows = repeated(read, times, rows_together=rows_together).tolist()
    return [tuple(row) for row in rows]
