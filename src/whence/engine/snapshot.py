"""What a module is made of, taken down so that it can be put back: its attributes and whatever they hold.

Tensors, arrays, containers, generators and plain objects are followed as deep as they go, near things first, up to
`_MOST` entries beyond the modules' own. Small tensors and arrays are kept by value. Of parameters and large tensors the
memory is known, and the value is kept by `scope.remember` before the first write.
"""

from __future__ import annotations

import argparse
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whence.engine.trackers import store

_LARGE = 2**16  # tensors of more entries are kept when they are written to, not before
_LARGEST = 2**24  # bytes: arrays of more are left alone
_MOST = 20_000  # entries of containers and objects, and 64 numbers of a tensor inside them, count as one
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_FOREIGN = frozenset({"torch", "numpy", "builtins", *sys.stdlib_module_names})  # whose objects are not the model's


_ATOMS = frozenset({bool, int, float, str, type(None)})
_KINDS: dict[type, str] = {}
_SLOTS: dict[type, tuple[str, ...]] = {}


def _kind(of: type) -> str:
    """How the objects of a type are kept; "" for what has no state, or none that is the model's."""
    kind = _KINDS.get(of)
    if kind is None:
        kind = _KINDS[of] = _kind_of(of)
    return kind


def _kind_of(of: type) -> str:
    if issubclass(of, Tensor):
        return "parameter" if issubclass(of, nn.Parameter) else "tensor"
    for kind, classes in (("module", nn.Module), ("array", np.ndarray), ("tuple", tuple)):
        if issubclass(of, classes):
            return kind
    if issubclass(of, dict | list | set | deque):
        return "container"
    if issubclass(of, torch.Generator | np.random.Generator | np.random.RandomState | random.Random):
        return "generator"
    foreign = str(of.__module__).partition(".")[0] in _FOREIGN and not issubclass(of, _NAMESPACES)
    plain = not issubclass(of, type) and (hasattr(of, "__dict__") or _slots(of))
    return "object" if plain and not foreign else ""


def _slots(of: type) -> tuple[str, ...]:
    if of not in _SLOTS:
        _SLOTS[of] = tuple(_slots_of(of))
    return _SLOTS[of]


def _slots_of(of: type) -> Iterable[str]:
    named = (vars(base).get("__slots__", ()) for base in of.__mro__)
    each = (name for names in named for name in ((names,) if isinstance(names, str) else names))
    return (name for name in each if not name.startswith("__"))


class Search:
    """A walk over what some modules hold; what one of them has found is not taken down again for the next."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self.seen = {id(module) for module in modules}  # they keep their own
        self.left = _MOST


class Snapshot:
    """One module as it was found, in eval mode while it is held."""

    def __init__(self, module: nn.Module, search: Search) -> None:
        self.training = module.training
        self.opaque = isinstance(module, torch.jit.ScriptModule)
        if self.training:
            module.training = False
        self.written: dict[int, tuple[Tensor, Tensor]] = {}  # memory, and what it held
        self.tensors: list[tuple[Tensor, Tensor, int, Any]] = []
        self.parameters: list[tuple[nn.Parameter, Tensor, bool, Tensor | None]] = []
        self.empty: list[Any] = []
        self.contents: list[tuple[Any, list[Any] | None, list[Any]]] = []  # container, keys, items
        self.objects: list[tuple[dict[str, Any], dict[str, Any]]] = []  # what is inside, and was
        self.slots: list[tuple[Any, dict[str, Any]]] = []
        self.large: list[Tensor] = []  # memory
        self.arrays: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
        self.states: list[Callable[[], object]] = []
        if self.opaque:
            for buffer in module.buffers(recurse=False):
                self._tensor(buffer, near=True, search=search)
            return
        self.attributes = dict(module.__dict__)
        later: deque[Any] = deque()
        for value in self.attributes.values():
            of = type(value)
            if of is dict or of is OrderedDict:  # parameters, buffers, children, hooks
                self._container(value, later) if value else self.empty.append(value)
            elif of is set and not value:  # names of buffers that are not stored
                self.empty.append(value)
            elif of not in _ATOMS and _kind(of):
                later.append(value)
        near = len(later)
        while later and (near > 0 or search.left > 0):
            self._take(later.popleft(), later, near > 0, search)
            near -= 1

    def _take(self, value: Any, later: deque[Any], near: bool, search: Search) -> None:
        kind = _kind(type(value))
        if not near:
            search.left -= 1
        if not kind or id(value) in search.seen:
            return
        search.seen.add(id(value))
        if kind == "parameter":
            self._parameter(value)
        elif kind == "tensor":
            self._tensor(value, near, search)
        elif kind == "container":
            if near or len(value) <= search.left:
                search.left -= 0 if near else len(value) // 4
                self._container(value, later)
        elif kind == "tuple":
            later.extend(item for item in value if _kind(type(item)))
        elif kind == "array":
            if value.flags.writeable and value.nbytes <= _LARGEST and not isinstance(value, np.memmap):
                self.arrays.append((value, value.copy()))
                later.extend(value.flat if value.dtype == object else ())
        elif kind == "generator":
            self.states.append(_state(value))
        else:
            self._object(value, later)
        if kind == "container" and type(value).__module__.partition(".")[0] not in _FOREIGN:
            self._object(value, later)  # a class of its own may have attributes too

    def _object(self, thing: Any, later: deque[Any]) -> None:
        own = getattr(thing, "__dict__", None)
        if isinstance(own, dict):
            self.objects.append((own, dict(own)))
            later.extend(item for item in own.values() if _kind(type(item)))
        slots = {name: getattr(thing, name) for name in _slots(type(thing)) if hasattr(thing, name)}
        if slots:
            self.slots.append((thing, slots))
            later.extend(item for item in slots.values() if _kind(type(item)))

    def _container(self, value: Any, later: deque[Any]) -> None:
        items = list(value.values() if isinstance(value, dict) else value)
        self.contents.append((value, list(value) if isinstance(value, dict) else None, items))
        if len(items) <= _MOST:
            for item in items:
                of = type(item)
                if of not in _ATOMS and _kind(of):
                    later.append(item)

    def _parameter(self, p: nn.Parameter) -> None:
        if nn.parameter.is_lazy(p):
            return
        grad = p.grad
        if grad is not None:
            p.grad = None  # a backward inside of forward adds to another one
        self.parameters.append((p, p.data, p.requires_grad, grad))

    def _tensor(self, t: Tensor, near: bool, search: Search) -> None:
        small = t.numel() <= _LARGE and (near or t.numel() // 64 <= search.left)
        if small and not near:
            search.left -= t.numel() // 64
        memory = t.detach()
        self.tensors.append((t, memory.clone() if small else memory, _version(t), t.grad_fn))
        if not small:
            self.large.append(memory)

    def memory(self) -> Iterable[Tensor]:
        """The parameters and large tensors as they were found."""
        yield from (memory for _, memory, _, _ in self.parameters)
        yield from self.large

    # ---- and back ----

    def restore(self, module: nn.Module, done: bool = True) -> None:
        """Everything as it was found; if it is not `done`, the module stays in eval mode and its gradients away."""
        if not self.opaque:
            _put_back(module.__dict__, self.attributes)
        for container in self.empty:
            if container:
                container.clear()
        for container, keys, items in self.contents:
            _refill(container, keys, items)
        for now, inside in self.objects:
            _put_back(now, inside)
        for thing, inside in self.slots:
            for name, value in inside.items():
                if getattr(thing, name, inside) is not value:
                    object.__setattr__(thing, name, value)
        for p, memory, needs, grad in self.parameters:
            if p.layout != torch.strided or p.data_ptr() != memory.data_ptr():
                p.data = memory
            if p.requires_grad != needs:
                p.requires_grad_(needs)
            if done or p.grad is not None:
                p.grad = grad if done else None
        for tensor, value, version, graph in self.tensors:
            _rewrite(tensor, value, version, graph)
        for array, kept in self.arrays:
            if array.shape == kept.shape:
                np.copyto(array, kept)
        for put_back in self.states:
            put_back()
        for memory, value in self.written.values():
            with torch.inference_mode(memory.is_inference()), torch.no_grad():
                memory.copy_(value)
        self.written.clear()
        if done and self.training:
            module.training = True


def _put_back(now: dict[str, Any], before: dict[str, Any]) -> None:
    """The attributes of a module or an object; what is the same is not touched, because others may be reading it."""
    if len(now) == len(before) and all(map(is_, now.values(), before.values())) and all(map(is_, now, before)):
        return
    for name in [name for name in now if name not in before]:
        del now[name]
    for name, value in before.items():
        if name not in now or now[name] is not value:
            now[name] = value


def _refill(container: Any, keys: list[Any] | None, items: list[Any]) -> None:
    now = container if keys is None else container.values()
    if len(container) == len(items) and all(map(is_, now, items)) and (keys is None or all(map(is_, container, keys))):
        return
    kinds: Any = (OrderedDict, dict, list, set, deque)
    base: Any = next(kind for kind in kinds if isinstance(container, kind))  # what a class of its own may forbid
    base.clear(container)
    if keys is not None:
        base.update(container, zip(keys, items, strict=True))
    else:
        base.update(container, items) if base is set else base.extend(container, items)


def _state(generator: Any) -> Callable[[], object]:
    """How a generator comes back to where it is now."""
    if isinstance(generator, np.random.Generator):
        bits, kept = generator.bit_generator, generator.bit_generator.state
        return lambda: setattr(bits, "state", kept)
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return lambda: generator.setstate(state)
    before = generator.get_state()
    return lambda: generator.set_state(before)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _rewrite(tensor: Tensor, value: Tensor, version: int, graph: Any) -> None:
    """Put a tensor's value back if the model wrote to it; a write of live values has also tied it to a graph."""
    store.clear(tensor)
    if tensor.grad_fn is not graph and tensor._base is None:
        tensor.detach_()
    if tensor.shape != value.shape or tensor.dtype != value.dtype:
        tensor.data = value
    elif tensor.numel() <= _LARGE and (_version(tensor) != version or _differs(tensor, value)):
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            tensor.data.copy_(value) if tensor.layout == torch.strided else tensor.copy_(value)


def _differs(tensor: Tensor, value: Tensor) -> bool:
    """Whether NumPy wrote to a tensor's memory, of which torch knows nothing."""
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.is_quantized
    return (
        plain and 0 not in tensor.stride() and value.data_ptr() != tensor.data_ptr() and not torch.equal(tensor, value)
    )
