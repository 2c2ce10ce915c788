"""Where explained values are born in a forward pass: an input, the embedding that ids enter, a module's output.

At a site the value that arises (or one that the method substitutes) becomes a leaf, and the model goes on with a
live copy of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.engine.ops import Spelling, family_of
from whence.engine.outputs import changed, floating
from whence.engine.trackers import Birth, store
from whence.errors import BaselineError, ModelError
from whence.util.keys import input_of, new_key
from whence.util.tree import swapped

if TYPE_CHECKING:
    from whence.engine.flow import Flow

AT = "at"  # the key of a module's output; "at.NAME" where it has several tensors
_IDS = "ids"  # on a tensor of ids: (name of the input, each entry's position in it)
_COPIES = frozenset({"view", "cast", "index", "repeat", "concatenate"})
_JOINS = frozenset({"pad", "constant_pad_nd", "masked_fill"})


@dataclass(frozen=True, eq=False)
class Instead:
    """What takes a value's place as it arises: a number, a tensor like it, or ids to be looked up where these were."""

    value: Any
    real: Tensor | None = None  # (rows, n): padding stays as it is

    def take(self, rows: Tensor) -> Instead:
        many = isinstance(self.value, Tensor) and self.value.dim() > 0 and len(self.value) > 1
        return Instead(
            self.value.index_select(0, rows.to(self.value.device)) if many else self.value,
            None if self.real is None else self.real.index_select(0, rows.to(self.real.device)),
        )

    def of(self, value: Tensor, look: Callable[[Tensor], Tensor] | None) -> Tensor:
        new = self.value
        if isinstance(new, Tensor) and not new.is_floating_point() and look is not None:
            new = look(new)
        if isinstance(new, Tensor) and new.dim() and not _fits(new.shape, value.shape):
            raise BaselineError(
                f"A baseline has the shape {tuple(new.shape)}, and the explained values are {tuple(value.shape)}.\n"
                "  Give one of that shape, or one row of it; for several inputs, a dict by input name."
            )
        new = new.to(value).expand_as(value) if isinstance(new, Tensor) else torch.full_like(value, new)
        if self.real is None:
            return new
        return torch.where(self.real.view(*self.real.shape, *[1] * (value.dim() - 2)).to(value.device), new, value)


def _fits(one: torch.Size, many: torch.Size) -> bool:
    return len(one) <= len(many) and all(a in (1, b) for a, b in zip(reversed(one), reversed(many), strict=False))


class Sites:
    """The leaves of one pass by key, and the values that a method wants at them."""

    def __init__(
        self, values: Mapping[str, Tensor | Instead] | None = None, at: str | None = None, rows: int | None = None
    ) -> None:
        self.values = dict(values or {})
        self.leaves: dict[str, Tensor] = {}
        self.path, _, call = (at or "").partition("@")
        self.call = int(call) if call else None
        self.calls = 0  # how often the module at `path` has run
        self.rows = rows
        self.held: list[str] = []  # outputs of that module which have no rows, by name
        self.aside = False  # whether ids were used for anything but to be looked up
        self._ids: dict[str, torch.Size] = {}

    def tensor(self, flow: Flow, key: str, value: Tensor, look: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Make the value (or what `values` has for it) a leaf; give what the model goes on with."""
        given = self._given(key)
        leaf, handed = flow.start(
            value if given is None else given.of(value, look) if isinstance(given, Instead) else given
        )
        self.leaves[key] = leaf
        if look is None:
            flow.begin(handed, Birth(key))
        return handed

    def _given(self, key: str) -> Tensor | Instead | None:
        """What is to stand here: by key, or for every embedding that an input's ids enter."""
        by_input = self.values.get(input_of(key))
        return self.values.get(key, by_input if isinstance(by_input, Instead) else None)

    # ---- ids: explained through the embedding they enter ----

    def ids(self, name: str, ids: Tensor) -> Tensor:
        """A copy of the ids that is recognised when it, or a view, cast or copy of it, indexes an embedding."""
        handed = ids.clone()
        positions = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
        store.put(handed, _IDS, (name, positions))
        self._ids[name] = ids.shape
        return handed

    def has_ids(self, args: Any, kwargs: Any) -> bool:
        """Whether explained ids are among the arguments."""
        return bool(self._ids) and any(store.get(a, _IDS) is not None for a in (*args, *kwargs.values()))

    def placed(self) -> bool:
        """Whether every value that is to be substituted has been."""
        return self.leaves.keys() >= self.values.keys()

    def follow(self, spelled: Spelling, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Carry the mark of ids through whatever copies them, by doing the same to their positions.

        Entries that come from elsewhere (a token put in front, padding) have the position -1.
        """
        if not self._ids:
            return
        marks = {mark[0] for a in _flat((args, tuple(kwargs.values()))) if (mark := store.get(a, _IDS))}
        if len(marks) != 1:
            self.aside |= bool(marks)
            return
        (name,) = marks
        self.aside |= not _copies(spelled.name, family_of(spelled.name, args, kwargs, ()))
        try:
            if spelled.writes:
                self._overwrite(name, spelled.name, args, kwargs)
            else:
                self._carry(name, spelled.name, family_of(spelled.name, args, kwargs, ()), func, args, kwargs, result)
        except (IndexError, RuntimeError, TypeError, ValueError):
            return  # not a form that we can follow: what comes of it is not the ids

    def _overwrite(self, name: str, op: str, args: Any, kwargs: Any) -> None:
        """A write changes positions in place, and so in every view that shares the memory."""
        target = args[0]
        if store.get(target, _IDS) is None:
            if op not in ("setitem", "copy"):
                return
            store.put(target, _IDS, (name, torch.full_like(target, -1, dtype=torch.long)))
        positions = store.get(target, _IDS)[1]
        if op == "setitem":
            positions[args[1]] = _positions(args[2]) if isinstance(args[2], Tensor) else -1
        elif op == "copy":
            positions.copy_(_positions(args[1]))
        elif op == "masked_fill":
            positions.masked_fill_(args[1] if len(args) > 1 else kwargs["mask"], -1)
        else:
            positions.fill_(-1)

    def _carry(self, name: str, op: str, family: str, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
        if not _copies(op, family):
            return
        if family == "cast":  # a narrow type would not hold the positions
            moved: Any = _positions(args[0])
        elif op == "pad" and mode == "constant":
            moved = func(_positions(args[0]), args[1] if len(args) > 1 else kwargs["pad"], value=-1)
        elif op == "masked_fill":
            moved = func(_positions(args[0]), args[1] if len(args) > 1 else kwargs["mask"], -1)
        elif family == "concatenate":
            given = (args, tuple(kwargs.values()))
            swap = {id(a): _positions(a) for a in _flat(given) if isinstance(a, Tensor) and _whole_numbers(a)}
            moved = func(*swapped(args, swap), **swapped(kwargs, swap))
        else:
            moved = func(_positions(args[0]), *args[1:], **kwargs)
        pairs = [(result, moved)] if isinstance(result, Tensor) else zip(result, moved, strict=True)
        for tensor, where in pairs:
            if not any(tensor is a for a in args) and not tensor.is_floating_point():
                store.put(tensor, _IDS, (name, where.long()))

    def embedding(
        self, flow: Flow, spelled: Spelling, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor | None:
        """The live embedding, if this call looks explained ids up in a table."""
        if not self._ids or spelled.name not in ("embedding", "getitem", "index_select"):
            return None
        mark = _index_mark(spelled.name, args, kwargs)
        if mark is None:
            return None
        found = func(*args, **kwargs)
        if not found.is_floating_point():
            return None
        name, positions = mark
        key = new_key(name, self.leaves)
        shape = self._ids[name]
        # the leaf is laid out like the ids, whatever view of them the model looked up
        inner = found.shape[positions.dim() :]
        ours = positions.flatten() >= 0
        value = found.new_zeros(shape.numel(), *inner)
        value[positions.flatten()[ours]] = found.detach().reshape(-1, *inner)[ours]

        def look(other: Tensor) -> Tensor:
            with torch.no_grad():
                marked = next(a for a in _flat((args, tuple(kwargs.values()))) if store.get(a, _IDS) is not None)
                there = other.expand(shape).flatten()[positions.flatten().clamp(min=0)].view(positions.shape)
                swap = {id(marked): there.to(marked.dtype)}
                try:
                    new = func(*swapped(args, swap), **swapped(kwargs, swap))
                except IndexError:
                    raise BaselineError(
                        f"The baseline for {name!r} holds ids from {int(other.min())} to {int(other.max())}, and the "
                        "embedding has fewer.\n  Give ids that the model knows."
                    ) from None
                laid = value.clone()
                laid[positions.flatten()[ours]] = new.reshape(-1, *inner)[ours]
            return laid.view(*shape, *inner)

        leaf_view = self.tensor(flow, key, value.view(*shape, *inner), look)
        handed = leaf_view.reshape(-1, *inner)[positions.flatten().clamp(min=0)].view(found.shape)
        if not bool(ours.all()):  # the rest is held
            handed = torch.where(ours.view(*positions.shape, *[1] * len(inner)), handed, found.detach())
        if self._given(key) is None and not torch.equal(handed.detach(), found):
            raise ModelError(
                f"The model looks {name!r} up after writing over them, and it cannot be told which tokens are left.\n"
                "  Explain the embedding's output with at=, or give the model its ids as they are looked up."
            )
        flow.mark(handed)
        flow.begin(handed, Birth(key, positions, shape))
        return handed

    # ---- module outputs ----

    def module_output(self, flow: Flow, path: str, module: nn.Module, output: Any) -> Any:
        """The module's output with its floating tensors made live, if this is the call that is explained."""
        if flow.captures.active:
            output = replace_first(output, lambda t: _shown(flow, "output", path, t))
        detach_at = flow.plan.detach_at
        if detach_at is not None and detach_at(path):
            output = replace_first(output, lambda t: flow.detach_here(path, t))
        if path != self.path or not path:
            return output
        self.calls += 1
        if self.calls != (self.call or 1):
            return output
        new: dict[int, Tensor] = {}
        found = floating(output, module)
        for name, tensor, axis in found:
            key = AT if len(found) == 1 else f"{AT}.{name}"
            goes = tensor.dim() > axis and tensor.shape[axis] == self.rows
            if goes or key in self.values or len(found) == 1:
                new[id(tensor)] = self._output(flow, key, tensor, axis)
            else:
                self.held.append(name)
        if found and not new:  # the first one has to say why
            new[id(found[0][1])] = self._output(flow, AT, found[0][1], 0)
        return changed(output, lambda t: new.get(id(t), t))

    def _output(self, flow: Flow, key: str, tensor: Tensor, axis: int) -> Tensor:
        """One tensor of a module's output as a leaf with its rows first."""
        if not axis:
            return self.tensor(flow, key, tensor)
        return self.tensor(flow, key, tensor.movedim(axis, 0)).movedim(0, axis)


def _copies(op: str, family: str) -> bool:
    return family in _COPIES or op in _JOINS


def _flat(args: Any) -> Iterator[Any]:
    for item in args:
        if isinstance(item, list | tuple):
            yield from _flat(item)
        else:
            yield item


def _whole_numbers(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool


def _positions(tensor: Tensor) -> Tensor:
    """Each entry's position in the explained ids, -1 where it comes from elsewhere."""
    mark = store.get(tensor, _IDS)
    return mark[1] if mark is not None else torch.full_like(tensor, -1, dtype=torch.long)


def _index_mark(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The mark of the explained ids by which a table is looked up: table(ids), table[ids], table[ids, :]."""
    given = [*args, *kwargs.values()]
    if name != "embedding" and store.get(given[0], _IDS) is not None:
        return None  # the ids themselves are indexed
    if name == "index_select" and (args[1] if len(args) > 1 else kwargs.get("dim")) != 0:
        return None
    if name == "getitem" and isinstance(args[1], tuple):
        first, *rest = args[1]
        given = [first] if all(item in (slice(None), Ellipsis) for item in rest) else []
    return next((m for a in given if (m := store.get(a, _IDS))), None)


def replace_first(output: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A module's output with its first floating tensor changed; what holds none is left."""
    if isinstance(output, Tensor):
        return change(output) if output.is_floating_point() else output
    if isinstance(output, MutableMapping):
        first = next((key for key, item in output.items() if _floats(item)), None)
        if first is not None:
            output[first] = change(output[first])
        return output
    if isinstance(output, tuple | list):
        place = next((i for i, item in enumerate(output) if _floats(item)), None)
        items = [change(item) if i == place else item for i, item in enumerate(output)]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    return output


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _shown(flow: Flow, kind: str, path: str, tensor: Tensor) -> Tensor:
    flow.is_live(tensor)  # marks what came out of ops that the mode never saw
    return flow.captures.visit(kind, path, tensor)


def _visit_first(flow: Flow, path: str, args: Any, kwargs: Any) -> Any:
    """Show the module's first tensor to the captures; give the arguments to go on with."""

    def visit(tensor: Tensor) -> Tensor:
        return _shown(flow, "input", path, tensor)

    if any(_floats(a) for a in args):
        return replace_first(args, visit), kwargs
    return args, replace_first(dict(kwargs), visit)


@contextmanager
def watched(root: nn.Module | None, flow: Flow) -> Iterator[None]:
    """Hooks that tell the flow which module is running, for the length of the block; other threads do not feel them."""
    handles = []

    def ours() -> bool:
        return threading.get_ident() == flow.thread and not flow.suspended

    def watch(path: str, module: nn.Module) -> None:
        depth: list[int] = []  # of each running call: a hook of the user's may raise before or after ours

        def enter(module: nn.Module, args: Any, kwargs: Any = None) -> Any:  # None: another thread, half-way through
            if not ours():
                return None
            depth.append(len(flow.path))
            flow.path.append(path)
            return _visit_first(flow, path, args, kwargs) if flow.captures.active else None

        def leave(module: nn.Module, args: Any, output: Any) -> Any:
            if not ours() or not depth:
                return None
            del flow.path[depth.pop() :]
            return None if output is None else flow.sites.module_output(flow, path, module, output)

        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave, always_call=True))

    try:
        for path, module in root.named_modules() if root is not None else ():
            if not isinstance(module, torch.jit.ScriptModule):
                watch(path, module)
        yield
    finally:
        for handle in handles:
            handle.remove()
