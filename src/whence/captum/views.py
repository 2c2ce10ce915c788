"""Four views of a forward function, each of which `whence.explain` takes as a model of its own.

Scores     one score per row, by the target
FromLayer  from a layer's values on: what a Layer class explains
Neuron     up to a unit inside: what a Neuron class explains
Presence   the scores of a whole batch by which features are there: what perturbation methods explain (features.py)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from whence.adapters.reachable import modules_behind
from whence.api import explain
from whence.captum.calls import Tensors, check, read_target, run, select
from whence.errors import IndependentError, ModelError


class View(nn.Module):
    """A function as a module, whose modules are those that the function can reach: their state is kept."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        if not isinstance(function, nn.Module):
            for name, module in modules_behind(function).items():
                self.add_module(f"behind_{name}".replace(".", "_"), module)
        self.training = any(child.training for child in self.children())


class Scores(View):
    """One score for each row of tensors: the inputs, then what goes with each row (arguments, indices of targets)."""

    def __init__(self, function: Callable[..., Any], inputs: Tensors, args: tuple[Any, ...], target: Any) -> None:
        super().__init__(function)
        rows, read = len(inputs[0]), read_target(target)
        self.per_row = [i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.dim() and len(arg) == rows]
        self.count, self.args, self.target = len(inputs), args, read
        self.beside = [args[i].detach() for i in self.per_row]
        if isinstance(read, Tensor):
            check(len(read) == rows, f"There are {len(read)} targets for {rows} rows of input.")
            self.beside.append(read)

    def forward(self, *tensors: Tensor) -> Tensor:
        args = list(self.args)
        for i, tensor in zip(self.per_row, tensors[self.count :], strict=False):
            args[i] = tensor
        target = tensors[-1] if isinstance(self.target, Tensor) else self.target
        score = select(self.function(*tensors[: self.count], *args), target)
        rows = len(tensors[0])
        check(
            score.dim() and score[0].numel() == 1,
            "No target was given, but the output has several numbers for each row.\n  Give a target.",
        )
        score = score.reshape(-1)
        if len(score) != rows:  # one number for several rows: its derivative is that of equal shares
            score = score.sum().expand(rows) / rows
        return score if score.is_floating_point() else score.float()


def explained(
    function: Callable[..., Any],
    inputs: Tensors,
    args: tuple[Any, ...],
    target: Any,
    method: str,
    *,
    baselines: Any = None,
    batch_size: int | None = None,
    grad_kwargs: Any = None,
    **params: Any,
) -> Tensors:
    """`whence.explain` of a function's scores: the attributions of its inputs.

    Of `grad_kwargs`, which Captum hands to autograd, those count that allow inputs which are not used.
    """
    values = tuple(floating(x) for x in inputs)
    view = Scores(function, values, args, target)
    names = [str(i) for i in range(len(inputs))]
    given = None if baselines is None else tuple(b.to(x) for b, x in zip(baselines, values, strict=True))
    try:
        with own_errors():
            answer = explain(
                view, (*values, *view.beside), method=method, wrt=names, batch_size=batch_size, progress=False,
                baseline=given, **params,
            )  # fmt: skip
    except IndependentError as error:
        if (grad_kwargs or {}).keys() & {"allow_unused", "materialize_grads"}:
            return tuple(torch.zeros_like(x) for x in values)
        raise RuntimeError(str(error)) from error
    found = answer.raw
    return tuple(found) if isinstance(found, tuple | list) else (found,)


@contextmanager
def own_errors() -> Iterator[None]:
    """What the model or the reading of its output raises is raised as it is."""
    try:
        yield
    except ModelError as error:
        if error.__cause__ is None:
            raise
        raise error.__cause__ from None


def floating(x: Tensor) -> Tensor:
    """A tensor of numbers without its graph; whole ones become floating, as gradients need."""
    return x.detach() if x.is_floating_point() else x.detach().float()


# ---- layers ----


@dataclass(frozen=True, eq=False)
class Layer:
    """A module's output or input in a forward pass: its tensors, whether they are a tuple, and how often it ran."""

    module: nn.Module
    at_input: bool
    values: Tensors
    several: bool
    calls: int

    def form(self, values: Sequence[Any]) -> Any:
        """Values in the form of the layer's own."""
        return tuple(values) if self.several else values[0]


@contextmanager
def hooked(module: nn.Module, at_input: bool, meet: Callable[[Any], Any]) -> Iterator[None]:
    """Call `meet` with what the module is given or gives; what it returns, unless None, takes its place."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"The layer is {type(module)}.\n  Give an nn.Module that is part of the model.")
    if at_input:
        handle = module.register_forward_pre_hook(lambda module, args: meet(args))
    else:
        handle = module.register_forward_hook(lambda module, args, output: meet(output))
    try:
        yield
    finally:
        handle.remove()


def read_layer(function: Callable[..., Any], call: tuple[Any, ...], module: nn.Module, at_input: bool = False) -> Layer:
    """The values of a layer in its last call of one forward pass."""
    seen: list[Any] = []
    with hooked(module, at_input, lambda value: seen.append(_copied(value))):
        run(function, *call)
    check(seen, f"The layer {type(module).__name__} did not run in the forward pass.")
    value = seen[-1]
    several = isinstance(value, tuple | list) and not (at_input and len(value) == 1)
    nested = several and any(isinstance(item, tuple | list | dict) for item in value)
    check(
        not nested,
        f"The layer {type(module).__name__} has tensors within tuples, as an LSTM's states are, among its values.\n"
        "  Give a layer of plain tensors, or take whence.explain(..., at=...), which names each of them.",
    )
    values = tuple(v for v in (value if isinstance(value, tuple | list) else (value,)) if isinstance(v, Tensor))
    return Layer(module, at_input, values, several, len(seen))


def _copied(value: Any) -> Any:
    """Values apart from what the model does with them later, in place."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return type(value)(map(_copied, value)) if type(value) in (tuple, list) else value


@dataclass(frozen=True, eq=False)
class FromLayer:
    """The function of some layers' values and of the model's own arguments, which the values stand for."""

    function: Callable[..., Any]
    layers: tuple[Layer, ...]
    every_call: bool = False  # else only a layer's last one

    def __call__(self, *tensors: Any) -> Any:
        counts = [len(layer.values) for layer in self.layers]
        starts = [sum(counts[:i]) for i in range(len(counts))]
        return self._run(list(zip(self.layers, starts, strict=True)), tensors, sum(counts))

    def _run(self, layers: list[tuple[Layer, int]], tensors: tuple[Any, ...], first: int) -> Any:
        if not layers:
            return self.function(*tensors[first:])
        (layer, start), *others = layers
        values, calls = tensors[start : start + len(layer.values)], 0

        def replace(old: Any) -> Any:
            nonlocal calls
            calls += 1
            if not self.every_call and calls < layer.calls:
                return None
            return _in_place_of(old, values)

        with hooked(layer.module, layer.at_input, replace):
            return self._run(others, tensors, first)


@dataclass(frozen=True, eq=False)
class WithTypes:
    """A function some of whose arguments, after the first few, have types of their own, such as ids."""

    function: Callable[..., Any]
    first: int
    types: tuple[torch.dtype, ...]

    def __call__(self, *args: Any) -> Any:
        after = self.first + len(self.types)
        typed = [x.to(own) for x, own in zip(args[self.first : after], self.types, strict=True)]
        return self.function(*args[: self.first], *typed, *args[after:])


def _in_place_of(old: Any, values: Sequence[Tensor]) -> Any:
    """The values in the form of what they replace."""
    if isinstance(old, Tensor):
        return values[0]
    left = iter(values)
    return type(old)(next(left) if isinstance(item, Tensor) else item for item in old)


# ---- neurons ----


@dataclass(frozen=True, eq=False)
class Neuron:
    """The function that gives a unit of a layer: an index, slices whose entries are summed, or a function."""

    function: Callable[..., Any]
    module: nn.Module
    selector: Any
    at_input: bool = False

    def __call__(self, *args: Any) -> Tensor:
        seen: list[Any] = []
        with hooked(self.module, self.at_input, lambda value: seen.append(_kept(value))):
            self.function(*args)
        check(seen, f"The layer {type(self.module).__name__} did not run in the forward pass.")
        value = seen[-1]
        if isinstance(value, tuple | list) and len(value) == 1 and self.at_input:
            value = value[0]
        return pick_unit(value, self.selector)


def _kept(value: Any) -> Any:
    """A copy with its graph: the model may write over the layer's own tensor."""
    if isinstance(value, Tensor):
        return value.clone()
    return type(value)(map(_kept, value)) if type(value) in (tuple, list) else value


def pick_unit(value: Any, selector: Any) -> Tensor:
    """A unit of a layer's value, one number for each row."""
    if callable(selector):
        unit = selector(value)
        if isinstance(unit, Tensor) and unit.numel() != len(unit):
            raise RuntimeError("The neuron selector gave several numbers for a row.\n  It must give one for each.")
        return unit.reshape(-1)
    if isinstance(value, tuple | list):
        check(len(value) == 1, "The layer has several tensors.\n  Give the neuron as a function of them.")
        value = value[0]
    if not isinstance(selector, int | tuple | list):
        raise TypeError(f"neuron_selector is {type(selector)}.\n  Give an int, a tuple or a function.")
    index = tuple(selector) if isinstance(selector, tuple | list) else (selector,)
    check(
        len(index) < value.dim(),
        f"The neuron {index} does not fit the layer's shape {tuple(value.shape)}.",
    )
    unit = value[(slice(None), *index)].reshape(len(value), -1)
    if unit.shape[1] > 1 and not any(isinstance(part, slice) for part in index):
        raise RuntimeError(f"The neuron {index} is several of the layer's shape {tuple(value.shape)}.")
    return unit.sum(1)
