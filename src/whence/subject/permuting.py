"""A baseline in which every unit has the values that it has in other rows of the batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError, ParameterError
from whence.subject.baselines import Baseline
from whence.subject.noise import generator
from whence.subject.subject import Subject
from whence.subject.units import joint_numbers, unit_numbers


def permuted(subject: Subject, params: Mapping[str, Any]) -> Baseline:
    """Each unit permuted within the batch, by an order of its own that the row's seed gives, or by `function`."""
    if subject.rows < 2:
        raise InputError(
            f"{subject.method} takes a unit's values from other rows, but there is one row.\n  Give at least two rows."
        )
    inputs = {name: subject.inputs[name] for name, role in subject.roles.items() if role != "fixed"}
    probe = replace(subject, values=inputs)
    numbers = joint_numbers(probe, unit_numbers(probe, params["units"]))
    function = params["function"]
    if function is None:
        orders = _orders(subject, numbers.most + 1)
        return Baseline({name: _moved(x, numbers.by_input[name], orders) for name, x in inputs.items()})
    if not callable(function):
        raise ParameterError(
            f"{subject.method}: function={function!r} cannot be called.\n  Give a function of the input and of a mask."
        )
    units = range(numbers.most)
    return Baseline({name: _by_function(x, numbers.by_input[name], units, function) for name, x in inputs.items()})


def _orders(subject: Subject, count: int) -> Tensor:
    """From which row each row takes each unit, (rows, units); no unit stays as it is in all rows."""
    rows = subject.rows
    by_seed: dict[int, Tensor] = {}
    for row, seed in enumerate(subject.seeds):
        if seed in by_seed:
            continue
        draw = generator(subject, row)
        drawn: list[Tensor] = []
        while len(drawn) < count:
            order = torch.randperm(rows, generator=draw, device="cpu")
            if bool((order != torch.arange(rows, device="cpu")).any()):
                drawn.append(order)
        by_seed[seed] = torch.stack(drawn)
    return torch.stack([by_seed[seed][:, row] for row, seed in enumerate(subject.seeds)])


def _moved(x: Tensor, numbers: Tensor, orders: Tensor) -> Tensor:
    """Each element from the row that its unit's order names."""
    flat = numbers.expand(len(x), *x.shape[1:]).reshape(len(x), -1)  # (rows, elements)
    source = orders.gather(1, flat).to(x.device)
    return x.reshape(len(x), -1).gather(0, source).view_as(x)


def _by_function(x: Tensor, numbers: Tensor, units: Any, function: Callable[[Tensor, Tensor], Any]) -> Tensor:
    """Unit by unit, what the user's function makes of the input at the unit's mask."""
    found = x.clone()
    for unit in units:
        mask = (numbers == unit).expand(len(numbers), *x.shape[1:]).to(x.device)
        if not bool(mask.any()):
            continue
        moved = function(x.clone(), mask)
        if not isinstance(moved, Tensor) or moved.shape != x.shape:
            raise ParameterError(
                f"The function of a permutation returned {getattr(moved, 'shape', type(moved).__name__)} for the input "
                f"{tuple(x.shape)}.\n  It must return a tensor like the input."
            )
        found = torch.where(mask, moved.to(found), found)
    return found
