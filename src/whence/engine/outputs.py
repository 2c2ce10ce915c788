"""What a module gives, or gets, taken apart: floating tensors by name, where their rows are, and how to put others in.

Names: a tensor by itself has none; fields of named tuples, dataclasses and ModelOutputs and keys of dicts are their own
names, places in tuples are numbers, and what lies deeper is joined by dots ("1.0"). Recurrent layers' outputs have the
names of PyTorch's documentation, and what a module gets has the names of its parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from whence.util.tree import rebuilt

_NAMES: dict[type[nn.Module], dict[str, str]] = {
    nn.LSTM: {"0": "output", "1.0": "h_n", "1.1": "c_n"},
    nn.GRU: {"0": "output", "1": "h_n"},
    nn.RNN: {"0": "output", "1": "h_n"},
    nn.LSTMCell: {"0": "h", "1": "c"},
    nn.MultiheadAttention: {"0": "output", "1": "weights"},
}
HELD = ("mask", "position", "token_type_ids", "labels")  # in the names of arguments that are not explained unasked


def floating(output: Any, module: nn.Module | None = None) -> list[tuple[str, Tensor, int]]:
    """Each floating tensor of a module's output once: its name, itself, and the dimension of its rows."""
    names = next((names for kind, names in _NAMES.items() if isinstance(module, kind)), {})
    tensors: list[tuple[str, Tensor, int]] = []
    for name, tensor in _inside(output, ""):
        if not any(tensor is other for _, other, _ in tensors):
            tensors.append((names.get(name, name), tensor, _rows_of(module, name, tensor)))
    return tensors


def entering(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Tensor, int]]:
    """The same for what a module gets, by its parameters' names; masks, positions and labels are left out."""
    tensors: list[tuple[str, Tensor, int]] = []
    for parameter, argument in (*zip(_parameters(module, len(args)), args, strict=True), *kwargs.items()):
        for name, tensor in _inside(argument, parameter):
            held = any(word in parameter for word in HELD)
            if not held and not any(tensor is other for _, other, _ in tensors):
                tensors.append((name, tensor, _rows_of_argument(module, name, tensor)))
    return tensors


def _parameters(module: nn.Module, count: int) -> list[str]:
    """What the first so many arguments of a module are called; by number, where its signature does not say."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [name for name, p in inspect.signature(module.forward).parameters.items() if p.kind in by_place]
    return [*names[:count], *map(str, range(len(names), count))]


def _rows_of_argument(module: nn.Module, name: str, tensor: Tensor) -> int:
    if tensor.dim() < 3 or not isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return 0
    return int(name.startswith("hx") or not module.batch_first)


def _rows_of(module: nn.Module | None, name: str, tensor: Tensor) -> int:
    """The first dimension, but for recurrent layers' states (layers, rows, hidden) and sequences that go first."""
    if isinstance(module, nn.MultiheadAttention):
        return int(name == "0" and not module.batch_first and tensor.dim() == 3)
    if not isinstance(module, nn.RNNBase) or tensor.dim() < 3:
        return 0
    return int(name != "0" or not module.batch_first)


def _inside(output: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield name, output
        return
    for key, item in _items(output):
        yield from _inside(item, f"{name}.{key}" if name else key)


def _items(output: Any) -> list[tuple[str, Any]]:
    if isinstance(output, Mapping):
        return [(str(key), item) for key, item in output.items()]
    if isinstance(output, tuple | list):
        return [(str(key), item) for key, item in zip(getattr(output, "_fields", range(len(output))), output)]  # noqa: B905
    if is_dataclass(output) and not isinstance(output, type):
        return [(field.name, getattr(output, field.name)) for field in fields(output)]
    return []


def with_first_changed(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A module's output with its first floating tensor changed; one that holds none is left as it is."""
    if isinstance(output, Tensor):
        return change(output) if output.is_floating_point() else output
    if isinstance(output, MutableMapping):
        first = next((key for key, item in output.items() if is_floating(item)), None)
        if first is not None:
            output[first] = change(output[first])
        return output
    if isinstance(output, tuple | list):
        place = next((i for i, item in enumerate(output) if is_floating(item)), None)
        return rebuilt(type(output), [change(item) if i == place else item for i, item in enumerate(output)])
    return output


def is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
