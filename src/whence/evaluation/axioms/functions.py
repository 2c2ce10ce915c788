"""Functions made of the user's model: its score alone, a sum of two, one with swapped units, one with idle inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.subject import Subject, targets

TARGET, OTHER, ORDER, IDLE = "whence_target", "whence_other", "whence_order", "whence_idle"  # inputs that are ours


class Scored(nn.Module):
    """The model as a function of one tensor and what is held: the explained score of each row, (rows, 1).

    Ids are replaced where they are embedded, so that every explained input is a tensor of numbers; several explained
    inputs are one tensor, flat. The target comes with the rows, as the input that `index` names.
    """

    def __init__(self, subject: Subject, name: str, index: str = TARGET, values: Mapping[str, Tensor] | None = None):
        super().__init__()
        self.root = subject.root
        self.call: list[Callable[..., Any]] = [subject.model]  # in a list: no second name of the module
        self.form, self.names, self.roles = subject.form, tuple(subject.inputs), dict(subject.roles)
        self.target = subject.target if callable(subject.target) else None
        self.space, self.name, self.index = subject.output, name, index
        self.shapes = {key: value.shape[1:] for key, value in (values or subject.values).items()}

    def forward(self, **given: Any) -> Tensor:
        x = given[self.name]
        named = {name: given.get(name) for name in self.names}
        parts = self._parts(x)
        floats = {key: part for key, part in parts.items() if self.roles[key] == "value"}
        with _Embedded([(named[key], part) for key, part in parts.items() if key not in floats]):
            output = self._called({**named, **floats})
        index = self.target if self.target is not None else given[self.index]
        held = targets.scores(output, index, self.space, len(x))
        return targets.pick(held, index, lambda length: None)[0]

    def _parts(self, x: Tensor) -> dict[str, Tensor]:
        if len(self.shapes) == 1:
            return dict.fromkeys(self.shapes, x)
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        pieces = x.split(sizes, 1)
        return {key: p.reshape(len(x), *s) for (key, s), p in zip(self.shapes.items(), pieces, strict=True)}

    def _called(self, named: Mapping[str, Any]) -> Any:
        model = self.call[0]
        if self.form == "dict":
            return model(**named)
        return model(*named.values())


class _Embedded(TorchFunctionMode):
    """Where ids are embedded, these vectors come out."""

    def __init__(self, pairs: list[tuple[Any, Tensor]]) -> None:
        super().__init__()
        self.pairs = pairs

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.pairs and func is F.embedding:
            for ids, vectors in self.pairs:
                if args[0].shape == ids.shape and bool((args[0] == ids).all()):
                    return vectors
        return func(*args, **(kwargs or {}))


class Sum(nn.Module):
    """a·f + b·g."""

    def __init__(self, f: nn.Module, g: nn.Module, a: float, b: float) -> None:
        super().__init__()
        self.f, self.g, self.a, self.b = f, g, a, b

    def forward(self, **given: Any) -> Tensor:
        return self.a * self.f(**given) + self.b * self.g(**given)


class Symmetric(nn.Module):
    """f(x) + f(x with two units swapped), which is symmetric in them; the order comes with the rows."""

    def __init__(self, f: nn.Module, name: str, swap: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.f, self.name, self.swap = f, name, swap

    def forward(self, **given: Any) -> Tensor:
        swapped = {**given, self.name: self.swap(given[self.name], given[ORDER])}
        return self.f(**given) + self.f(**swapped)


class Idle(nn.Module):
    """f(x), with inputs beside it that change nothing: never looked at, weighed by 0, or cancelling each other."""

    def __init__(self, f: nn.Module, how: str) -> None:
        super().__init__()
        self.f, self.how = f, how

    def forward(self, **given: Any) -> Tensor:
        score, idle = self.f(**given), given[IDLE]
        if self.how == "weighed by 0":
            return score + F.linear(idle, torch.zeros_like(idle[:1]))
        if self.how == "in parts that cancel":
            return score + (torch.relu(idle) - torch.relu(idle)).sum(1, keepdim=True)
        return score


class Bound(nn.Module):
    """f as a function of one tensor of any number of rows: what it is held with comes from one row.

    With a `width`, what stands beyond it are idle inputs.
    """

    def __init__(self, f: nn.Module, name: str, held: Mapping[str, Any], width: int | None) -> None:
        super().__init__()
        self.f, self.name, self.held, self.width = f, name, dict(held), width

    def forward(self, x: Tensor) -> Tensor:
        given = {
            key: value.expand(len(x), *value.shape[1:]) if isinstance(value, Tensor) and value.shape[:1] == (1,)
            else value for key, value in self.held.items()
        }  # fmt: skip
        if self.width is not None:
            given[IDLE] = x[:, self.width :]
            x = x[:, : self.width]
        found: Tensor = self.f(**{**given, self.name: x})
        return found


class Deaf(nn.Module):
    """f of its input with some of it multiplied by 0, like `heard` (1, …)."""

    def __init__(self, f: nn.Module, name: str, heard: Tensor) -> None:
        super().__init__()
        self.f, self.name = f, name
        self.register_buffer("heard", heard)

    def forward(self, **given: Any) -> Tensor:
        found: Tensor = self.f(**{**given, self.name: given[self.name] * self.heard})
        return found


class Other(nn.Module):
    """A small random ReLU network of the same input, for models that have one score only."""

    def __init__(self, name: str, x: Tensor, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        size, self.name = x[0].numel(), name
        for key, shape in {"first": (8, size), "bias": (8,), "last": (1, 8)}.items():
            value = torch.randn(shape, generator=draw, dtype=torch.float64, device="cpu") / shape[-1] ** 0.5
            self.register_buffer(key, value.to(x))

    def forward(self, **given: Any) -> Tensor:
        weights: Any = self._buffers
        hidden = F.linear(given[self.name].flatten(1), weights["first"], weights["bias"])
        return F.linear(torch.relu(hidden), weights["last"])
