"""Where explained values enter a forward pass: an input, the embedding that ids enter, a module's output or input.

There the value (or one that the method substitutes) becomes a leaf, and the model goes on with a live copy of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.engine.modules import entering, floating
from whence.engine.ops import Spelling
from whence.engine.places import Place, Side, place
from whence.engine.trackers import Birth
from whence.engine.trackers.ids import Ids, looked_up, with_ids
from whence.errors import BaselineError, ModelError
from whence.util.keys import input_of, new_key
from whence.util.tree import mapped

if TYPE_CHECKING:
    from whence.engine.flow import Flow

AT = "at"  # the key of a module's output, or input; "at.NAME" where it has several tensors


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

    def of(self, value: Tensor, look_up: Callable[[Tensor], Tensor] | None) -> Tensor:
        """What stands in this value's place."""
        new = self.value
        if isinstance(new, Tensor) and not new.is_floating_point() and look_up is not None:
            new = look_up(new)
        if isinstance(new, Tensor) and new.dim() and not _fits(new.shape, value.shape):
            raise BaselineError(
                f"A baseline has the shape {tuple(new.shape)}, but the explained values have {tuple(value.shape)}.\n"
                "  Give one of that shape, or one row of it; for several inputs, a dict by input name."
            )
        new = new.to(value).expand_as(value) if isinstance(new, Tensor) else torch.full_like(value, new)
        if self.real is None:
            return new
        return torch.where(self.real.view(*self.real.shape, *[1] * (value.dim() - 2)).to(value.device), new, value)


def _fits(one: torch.Size, many: torch.Size) -> bool:
    return len(one) <= len(many) and all(a in (1, b) for a, b in zip(reversed(one), reversed(many), strict=False))


@dataclass(eq=False)
class Leaves:
    """The leaves of one pass by key, and the values that a method wants at them."""

    values: Mapping[str, Tensor | Instead] = field(default_factory=dict)
    at: str | None = None  # a module's path, "path@2" for its second call, "path@input" for what enters it
    rows: int | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    calls: int = 0  # how often the module at `path` has run
    held: list[str] = field(default_factory=list)  # tensors there which have no rows, by name
    ids: Ids = field(default_factory=Ids)

    @property
    def place(self) -> Place:
        """Where a module's values are explained; its path is "" if that is nowhere."""
        return place(self.at or "")

    def enter(self, flow: Flow, key: str, value: Tensor, look_up: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Make the value (or what `values` has for it) a leaf; give what the model goes on with."""
        given = self._given(key) if self.values else None
        leaf, handed = flow.start(
            value if given is None else given.of(value, look_up) if isinstance(given, Instead) else given
        )
        self.tensors[key] = leaf
        if look_up is None and flow.trackers:
            flow.begin(handed, Birth(key))
        return handed

    def _given(self, key: str) -> Tensor | Instead | None:
        """What is to stand here: by key, or for every embedding that an input's ids enter."""
        by_input = self.values.get(input_of(key))
        return self.values.get(key, by_input if isinstance(by_input, Instead) else None)

    def all_entered(self) -> bool:
        """Whether every value that is to be substituted has been."""
        return self.tensors.keys() >= self.values.keys()

    def embedding(
        self, flow: Flow, spelled: Spelling, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor | None:
        """The live embedding, if this call looks explained ids up in a table."""
        if not self.ids.shapes or spelled.name not in ("embedding", "getitem", "index_select"):
            return None
        mark = looked_up(spelled.name, args, kwargs)
        if mark is None:
            return None
        rows = func(*args, **kwargs)
        if not rows.is_floating_point():
            return None
        name, positions = mark
        key, shape = new_key(name, self.tensors), self.ids.shapes[name]
        lookup = _Lookup(func, args, kwargs, name, positions, shape)
        handed = lookup.as_looked_up(self.enter(flow, key, lookup.as_ids(rows.detach()), lookup.of), rows)
        if self._given(key) is None and not torch.equal(handed.detach(), rows):
            raise ModelError(
                f"The model overwrites {name!r} before it looks them up, so it is unknown which tokens are left.\n"
                "  Explain the embedding's output with at=, or give the model its ids as they are looked up."
            )
        flow.mark(handed)
        flow.begin(handed, Birth(key, positions, shape))
        return handed

    def output(self, flow: Flow, path: str, module: nn.Module, output: Any) -> Any:
        """A module's output with its floating tensors made live, if this is the call that is explained."""
        if not self._is_here(path, "output"):
            return output
        live = self._live(flow, floating(output, module))
        return mapped(output, lambda t: live.get(id(t), t))

    def arguments(self, flow: Flow, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The same for what enters a module."""
        if not self._is_here(path, "input"):
            return args, kwargs
        live = self._live(flow, entering(module, args, kwargs))
        return mapped(args, lambda t: live.get(id(t), t)), mapped(kwargs, lambda t: live.get(id(t), t))

    def _is_here(self, path: str, side: Side) -> bool:
        """Whether this is the call of the module that is explained."""
        where = self.place
        if path != where.path or side != where.side or not path:
            return False
        self.calls += 1
        return self.calls == (where.call or 1)

    def _live(self, flow: Flow, parts: list[tuple[str, Tensor, int]]) -> dict[int, Tensor]:
        """Live tensors by the identity of those in whose place they are."""
        live: dict[int, Tensor] = {}
        for name, tensor, axis in parts:
            key = AT if len(parts) == 1 else f"{AT}.{name}"
            has_rows = tensor.dim() > axis and tensor.shape[axis] == self.rows
            if has_rows or key in self.values or len(parts) == 1:
                live[id(tensor)] = self._rows_first(flow, key, tensor, axis)
            else:
                self.held.append(name)
        if parts and not live:  # the first one has to say why
            live[id(parts[0][1])] = self._rows_first(flow, AT, parts[0][1], 0)
        return live

    def _rows_first(self, flow: Flow, key: str, tensor: Tensor, axis: int) -> Tensor:
        """One tensor of a module's output as a leaf with its rows first."""
        if not axis:
            return self.enter(flow, key, tensor)
        return self.enter(flow, key, tensor.movedim(axis, 0)).movedim(0, axis)


@dataclass(frozen=True, eq=False)
class _Lookup:
    """A call that looks explained ids up. Its leaf is laid out like the ids, whatever view of them was looked up."""

    func: Any
    args: Any
    kwargs: Any
    name: str
    positions: Tensor  # in the ids, of each entry that is looked up
    shape: torch.Size  # of the ids

    def of(self, ids: Tensor) -> Tensor:
        """The embedding of other ids, laid out like them."""
        with torch.no_grad():
            there = ids.expand(self.shape).flatten()[self.positions.flatten().clamp(min=0)].view(self.positions.shape)
            args, kwargs = with_ids(there, self.args, self.kwargs)
            try:
                rows = self.func(*args, **kwargs)
            except IndexError:
                raise BaselineError(
                    f"The baseline for {self.name!r} holds ids from {int(ids.min())} to {int(ids.max())}, but the "
                    "embedding has fewer.\n  Give ids that the model knows."
                ) from None
            return self.as_ids(rows)

    def as_ids(self, rows: Tensor) -> Tensor:
        """What was looked up, laid out like the ids; 0 for those that were not."""
        inner, explained = rows.shape[self.positions.dim() :], self.positions.flatten() >= 0
        value = rows.new_zeros(self.shape.numel(), *inner)
        value[self.positions.flatten()[explained]] = rows.reshape(-1, *inner)[explained]
        return value.view(*self.shape, *inner)

    def as_looked_up(self, leaf: Tensor, rows: Tensor) -> Tensor:
        """The leaf laid out like what was looked up; entries from elsewhere stay what they are."""
        inner, explained = rows.shape[self.positions.dim() :], self.positions >= 0
        handed = leaf.reshape(-1, *inner)[self.positions.flatten().clamp(min=0)].view(rows.shape)
        if bool(explained.all()):
            return handed
        return torch.where(explained.view(*self.positions.shape, *[1] * len(inner)), handed, rows.detach())
