"""Layer by layer: a pass that keeps what enters each layer, and runs the layer again for the signals of its output.

In the forward pass the graph of a layer is let go as soon as the layer has run: what it gives begins a new one. On the
way back each layer is run once more under the mode, all targets are pulled through it, and it is let go again. What
lies between layers keeps its graph, so that values which go around layers (an encoder's states, position biases, masks)
are followed: they are among a layer's arguments. What a layer takes from elsewhere, or leaves behind elsewhere, is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.engine.call import Rule
from whence.engine.log import Log
from whence.engine.modules import watched
from whence.engine.nodes import Node
from whence.engine.plan import Cuts, OverBudget
from whence.engine.trackers import store
from whence.errors import ModelError
from whence.util.tree import mapped, swapped, tensors_in

if TYPE_CHECKING:
    from whence.engine.flow import Flow

Signals = list[Tensor | None]  # of one tensor, by target
_HOLDING = ("maker", "projected", "live")  # notes that hold a graph, and the pass's own mark
_PLAIN = (str, bytes, int, float, bool, complex, type(None), torch.dtype, torch.device, torch.Size)
_RULED = 1.5  # what a graph of rules holds, relative to what its ops gave
_SAME = 1e-3  # how far the sum of a layer's output may be from what it was, relative to the sum of magnitudes


@dataclass(eq=False)
class Counted:
    """Counts what the graph of a whole pass takes, and stops where it would be too much."""

    cuts: Cuts
    estimate: int = 0
    _before: int = 0

    def enter(self, flow: Flow, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        if path in self.cuts.paths:
            self._before = flow.log.kept
        return args, kwargs

    def leave(self, flow: Flow, path: str, output: Any) -> Any:
        """Once a layer has run, all are taken to be like it; what was met counts as it is."""
        if path in self.cuts.paths:
            own = flow.log.kept - self._before
            whole = flow.log.kept if self.estimate else self._before + own * len(self.cuts.paths)
            self.estimate = max(self.estimate, estimate(flow, whole, self.cuts.targets))
            if self.cuts.budget is not None and self.estimate > self.cuts.budget:
                raise OverBudget(self.estimate)
        return output


def estimate(flow: Flow, kept: int, targets: int) -> int:
    """About what a pass and its way back take, where live ops gave so many bytes.

    Autograd holds at most what ops gave; a rule holds its op's inputs and outputs, and part of them once more.
    """
    signals = 2 * targets * sum(leaf.nbytes for leaf in flow.leaves.tensors.values())
    return int(kept * (_RULED if flow.modifies else 1)) + signals


# ---- a pass that is cut ----


class _Begin(Node):
    """A value with which a graph begins: the leaf stands for it, and takes its signal."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, value: list[Tensor]) -> Tensor:
        return value.pop().detach()

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Any:
        return m, None


@dataclass(eq=False)
class Entry:
    """A live argument of a layer's call."""

    tensor: Tensor  # as it was given, in the graph between layers
    notes: dict[str, Any]
    first: int  # the number of the call that was given it first
    leaf: Tensor  # stood for it while the layer ran first
    version: int


@dataclass(eq=False)
class Stretch:
    """One call of a layer: what entered it, and the leaves that stand for what it gave."""

    number: int
    path: str
    module: nn.Module
    args: Any
    kwargs: Any
    entries: list[Entry]
    places: list[Any]  # where each tracker was
    random: Tensor
    keys: int  # how many explained values had entered the pass
    kept: int  # bytes of the pass so far
    exits: list[tuple[int, Tensor]] = field(default_factory=list)  # which of its tensors is live, and its leaf
    sums: list[tuple[float, float]] = field(default_factory=list)  # of each of these


@dataclass(eq=False)
class Layerwise:
    """The calls of layers of one pass, and the way back through them."""

    paths: frozenset[str]
    stretches: list[Stretch] = field(default_factory=list)
    largest: int = 0  # bytes of live ops in one call
    total: int = 0
    _open: list[tuple[Stretch, Any] | None] = field(default_factory=list)
    _replays: bool = False

    def enter(self, flow: Flow, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """The arguments that a layer goes on with: its graph begins at them."""
        if self._replays or path not in self.paths:
            return args, kwargs
        with _aside(flow):
            return self._entered(flow, path, module, args, kwargs)

    def _entered(self, flow: Flow, path: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        live = {id(t): t for t in tensors_in((args, kwargs)) if flow.is_live(t)}
        if not live:
            self._open.append(None)
            return args, kwargs
        _check_arguments(flow, path, args, kwargs)
        number, known = len(self.stretches), {id(e.tensor): e.first for s in self.stretches for e in s.entries}
        entries = [Entry(t, _notes(t), known.get(i, number), _stand_in(flow, t), t._version) for i, t in live.items()]
        places = [tracker.place() for tracker in flow.trackers]
        stretch = Stretch(
            number, path, module, args, kwargs, entries, places, torch.get_rng_state(), len(flow.leaves.tensors),
            flow.log.kept,
        )  # fmt: skip
        self._open.append((stretch, flow.marks.begin(path)))
        handed = {id(e.tensor): _handed(flow, e.leaf, e.tensor.detach().clone(), e.notes) for e in entries}
        return swapped(args, handed), swapped(kwargs, handed)

    def leave(self, flow: Flow, path: str, output: Any) -> Any:
        """What the model goes on with: another graph begins at what the layer gave."""
        if self._replays or path not in self.paths:
            return output
        opened = self._open.pop()
        if opened is None:
            return output
        with _aside(flow):
            return self._left(flow, output, *opened)

    def _left(self, flow: Flow, output: Any, stretch: Stretch, outside: Any) -> Any:
        if len(flow.leaves.tensors) != stretch.keys:
            raise _refused(stretch.path, "looks up explained ids itself")
        live = [(i, t) for i, t in enumerate(_tensors(output)) if flow.is_live(t)]
        flow.marks.go_on(outside)
        swap: dict[int, Tensor] = {}
        for i, tensor in live:
            leaf = _stand_in(flow, tensor)
            stretch.exits.append((i, leaf))
            stretch.sums.append(_sums(tensor))
            swap[id(tensor)] = _handed(flow, leaf, tensor, _notes(tensor))
        self.stretches.append(stretch)
        own = flow.log.kept - stretch.kept
        self.largest, self.total = max(self.largest, own), flow.log.kept
        return mapped(output, lambda t: swap.get(id(t), t))

    # ---- the way back ----

    def columns(
        self, flow: Flow, score: Tensor, starts: Sequence[Tensor], leaves: Sequence[Tensor],
        rules: Mapping[str, Rule] | None, before: Callable[[int], None], again: bool,
    ) -> list[list[Tensor | None]]:  # fmt: skip
        """For each target, what its score sends back to the leaves."""
        back = _Back(self, flow, rules, before, len(starts), list(leaves))
        back.between([(score, list(starts))])
        for stretch in reversed(self.stretches):
            back.between(back.due(stretch.number + 1))
            back.through(stretch)
        back.between(back.due(0))
        if not again:
            self.stretches.clear()
        none: Signals = [None] * len(starts)
        return [list(column) for column in zip(*(back.found.get(id(leaf), none) for leaf in leaves), strict=True)]

    def run(self, flow: Flow, stretch: Stretch) -> tuple[list[Tensor], list[Tensor]]:
        """Run a layer again, in a graph of its own: its live outputs, and its leaves."""
        if any(e.tensor._version != e.version for e in stretch.entries):
            raise _refused(stretch.path, "has arguments that are overwritten after it has run")
        with self._replaying(flow, stretch):
            swap, leaves = {}, []
            for entry in stretch.entries:
                leaf, handed = flow.start(entry.tensor)
                store.put_all(handed, entry.notes)
                leaves.append(leaf)
                swap[id(entry.tensor)] = handed
            output = stretch.module(*swapped(stretch.args, swap), **swapped(stretch.kwargs, swap))
        given = _tensors(output)
        outputs = [given[i] for i, _ in stretch.exits]
        for tensor, (total, size) in zip(outputs, stretch.sums, strict=True):
            if abs(_sums(tensor)[0] - total) > _SAME * (size + 1e-30):
                raise _refused(stretch.path, "gives something else when it is run again")
        return outputs, leaves

    @contextmanager
    def _replaying(self, flow: Flow, stretch: Stretch) -> Iterator[None]:
        ends = [tracker.place() for tracker in flow.trackers]
        for tracker, place in zip(flow.trackers, stretch.places, strict=True):
            tracker.again(place)
        random, log, outside = torch.get_rng_state(), flow.log, flow.marks.begin(stretch.path)
        torch.set_rng_state(stretch.random)
        flow.log, self._replays = Log(lost=log.lost), True
        root = flow.root
        assert root is not None
        try:
            with torch.enable_grad(), watched(root, flow, within=stretch.path), flow:
                yield
        finally:
            for tracker, place in zip(flow.trackers, ends, strict=True):
                tracker.again(place)
            flow.log, self._replays = log, False
            flow.marks.go_on(outside)
            torch.set_rng_state(random)


@dataclass(eq=False)
class _Back:
    """One way back: what has come to each leaf, and to what was given to layers."""

    layers: Layerwise
    flow: Flow
    rules: Mapping[str, Rule] | None
    before: Callable[[int], None]  # is told which target comes next
    targets: int
    leaves: list[Tensor]
    found: dict[int, Signals] = field(default_factory=dict)  # by leaf
    given: dict[int, tuple[Entry, Signals]] = field(default_factory=dict)  # by what was given to layers

    def due(self, number: int) -> list[tuple[Tensor, Signals]]:
        """What was first given to the call of this number, so that all of its signals are here."""
        some = [key for key, (entry, _) in self.given.items() if entry.first == number]
        return [(entry.tensor, signals) for entry, signals in map(self.given.pop, some)]

    def between(self, outputs: Sequence[tuple[Tensor, Signals]]) -> None:
        """Through the graph between layers, as far as what layers gave, and the leaves."""
        exits = [leaf for stretch in self.layers.stretches for _, leaf in stretch.exits]
        inner = [(e.leaf, stretch.path) for stretch in self.layers.stretches for e in stretch.entries]
        ends = [*self.leaves, *exits]
        for k in range(self.targets):
            some = [(tensor, signals[k]) for tensor, signals in outputs if signals[k] is not None]
            if not some:
                continue
            came = self._pull(k, some, [*ends, *(leaf for leaf, _ in inner)], again=True)
            for end, m in zip(ends, came, strict=False):
                self._add(self.found.setdefault(id(end), [None] * self.targets), k, m)
            for (_, path), m in zip(inner, came[len(ends) :], strict=True):
                if m is not None:
                    raise _refused(path, "leaves something behind that the score depends on and that it does not give")
            for _, signals in outputs:
                signals[k] = None

    def through(self, stretch: Stretch) -> None:
        """Run a layer again, and pull all targets through it."""
        signals = [self.found.pop(id(leaf), [None] * self.targets) for _, leaf in stretch.exits]
        come = [k for k in range(self.targets) if any(own[k] is not None for own in signals)]
        if not come:
            return
        outputs, leaves = self.layers.run(self.flow, stretch)
        for k in come:
            some = [(tensor, own[k]) for tensor, own in zip(outputs, signals, strict=True) if own[k] is not None]
            came = self._pull(k, some, leaves, again=k != come[-1])
            del some
            for own in signals:
                own[k] = None
            for entry, m in zip(stretch.entries, came, strict=True):
                _, sent = self.given.setdefault(id(entry.tensor), (entry, [None] * self.targets))
                self._add(sent, k, m)

    def _pull(self, k: int, some: Sequence[tuple[Tensor, Any]], ends: Sequence[Tensor], again: bool) -> Signals:
        self.before(k)
        return self.flow.pull_all(some, ends, self.rules, again=again)

    def _add(self, signals: Signals, k: int, m: Tensor | None) -> None:
        if m is not None:
            own = signals[k]
            signals[k] = m if own is None else own + m


# ---- values at the ends of layers ----


@contextmanager
def _aside(flow: Flow) -> Iterator[None]:
    """What is done here is none of the model's."""
    before, flow.suspended = flow.suspended, True
    try:
        yield
    finally:
        flow.suspended = before


def _stand_in(flow: Flow, tensor: Tensor) -> Tensor:
    """A leaf of the tensor's shape that holds one number."""
    leaf = tensor.detach().new_zeros(()).expand(tensor.shape).requires_grad_()
    flow.marks.leaves.add(id(leaf))
    return leaf


def _handed(flow: Flow, leaf: Tensor, value: Tensor, notes: Mapping[str, Any]) -> Tensor:
    """The value in a graph that begins at the leaf, with all that is known of it."""
    handed: Tensor = _Begin.apply(leaf, [value])
    store.put_all(handed, notes)
    flow.mark(handed)
    return handed


def _notes(tensor: Tensor) -> dict[str, Any]:
    return {fact: value for fact, value in store.all_of(tensor).items() if fact not in _HOLDING}


def _tensors(output: Any) -> list[Tensor]:
    """Those of a module's output, in order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    mapped(output, note)
    return found


def _sums(tensor: Tensor) -> tuple[float, float]:
    value = tensor.detach()
    return float(value.sum(dtype=torch.float64)), float(value.abs().sum(dtype=torch.float64))


def _check_arguments(flow: Flow, path: str, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Objects of a model's own may hold live values, or be written to by the layer: neither could be followed."""
    for name, value in (*((f"argument {i}", a) for i, a in enumerate(args)), *kwargs.items()):
        for part in _objects(value):
            held = [t for t in tensors_in(list(vars(part).values())) if flow.is_live(t)]
            if held or hasattr(part, "update"):
                raise _refused(path, f"gets {name!r}, a {type(part).__name__}, which is no tensor and may hold values")


def _objects(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _objects(item)
    elif isinstance(value, dict):
        yield from _objects(list(value.values()))
    elif not isinstance(value, (*_PLAIN, Tensor, nn.Module)) and hasattr(value, "__dict__") and not callable(value):
        yield value


def _refused(path: str, what: str) -> ModelError:
    return ModelError(
        f"The pass takes more than memory= allows, and cannot go layer by layer: {path!r} {what}.\n"
        "  Leave memory= out, give a larger one, or explain a shorter text."
    )
