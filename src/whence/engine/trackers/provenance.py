"""What a value was made of: rules for sums and products ask how their operands are related.

- `linear_source`: linear maps of one tensor with constant coefficients (views, scaling, RoPE's rotations) share it.
- `point`: values that depend entry by entry on one tensor share it; `straight` ones are multiples of that tensor.
- `mean`: the linear source of which this is an average, as in centring.
- `turned`: a reciprocal, by which a normalisation multiplies.
- `fresh`: an explained value, as it is or normalised by constants: the next op with weights is the input layer.
- `gates`: what an elementwise function gave, or a copy of it.
- `attends`: attention probabilities, or a copy of them.
- `alone`: each entry stems from one token of explained ids (see `one_token.py`).
- `depth`: how many ops with weights were passed.
- `life`: when it was made and last taken, and by how many ops; a plain view counts as the tensor itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from whence.engine.ops import GROUP, number
from whence.engine.trackers import Birth, Op, Tracker, one_token, store
from whence.engine.trackers.one_token import Alone
from whence.util.tree import tensors_in

_ORIGIN = "origin"
WEIGHTED = frozenset({"linear", "convolution"})
_STRAIGHT = frozenset({"scale", "cast", "dropout"})
_CONSTANT = frozenset("sum average_pool dropout cumsum interpolate fourier scale scatter_add".split())
_JOINED = frozenset("add multiply divide where".split())


@dataclass(slots=True, eq=False)
class Life:
    born: int
    last: int
    uses: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    linear_source: Any = field(default_factory=object)
    point: Any = field(default_factory=object)
    straight: bool = True
    mean: Any = None
    turned: bool = False
    fresh: bool = False
    gates: bool = False
    attends: bool = False
    alone: Alone | None = None
    depth: int = 0
    life: Life = field(default_factory=lambda: Life(0, 0))


def origin_of(tensor: Tensor) -> Origin:
    """What a tensor was made of; one that was not followed is like no other."""
    origin = store.get(tensor, _ORIGIN)
    if origin is None:
        origin = Origin()
        store.put(tensor, _ORIGIN, origin)
    return origin


class Provenance(Tracker):
    """Says what an op's outputs are made of; tensors that are neither live nor loose are parameters."""

    now = 0  # the number of the op

    def __init__(self) -> None:
        self._lives: dict[int, list[Life]] | None = None  # by op, where layers may be run again
        self._replays = False

    def begin(self, tensor: Tensor, birth: Birth) -> None:
        ids_dim = 0 if birth.positions is None else birth.positions.dim()
        alone = one_token.begin(ids_dim) if ids_dim else None
        store.put(tensor, _ORIGIN, Origin(fresh=True, alone=alone))

    def describe(self, op: Op) -> None:
        if op.call is not None:
            op.call.origins = tuple(map(origin_of, op.live))

    def follow(self, op: Op) -> None:
        self.now += 1
        lives = None if self._lives is None else self._lives.setdefault(self.now, [])
        _follow(op, self.now, lives, self._replays)

    def place(self) -> int:
        self._lives = {} if self._lives is None else self._lives
        return self.now

    def again(self, place: int) -> None:
        self.now, self._replays = place, True


def _follow(op: Op, now: int, lives: list[Life] | None, again: bool) -> None:
    """`lives` is where those of the outputs are kept; `again`: they are there, and this use was counted."""
    family, name, args, kwargs, live = op.family, op.name, op.args, op.kwargs, op.live
    if op.target is None and all(output is live[0] for output in op.outputs):
        return  # x.to(x.dtype), x.contiguous(): it is what it was
    constants = [t for t in tensors_in(args) if not any(t is other for other in live)]
    weighed = any(not any(t is other for other in op.loose) for t in constants)
    known = [origin_of(t) for t in live]
    for life in {id(o.life): o.life for o in known}.values() if family != "view" and not again else ():
        life.uses, life.last = life.uses + 1, now
    first, group = known[0], GROUP.get(family)
    depth = max(o.depth for o in known) + (family in WEIGHTED)
    one_point = all(o.point is first.point for o in known)
    one_source = all(o.linear_source is first.linear_source for o in known)
    substance = any(t.numel() > 1 for t in constants)
    linear = group == "view" or family in _CONSTANT or (family == "add" and not substance)
    linear_source = first.linear_source if one_source and linear and not weighed else object()
    turns = family in ("rsqrt", "reciprocal") or (family == "pow" and _falls(args))
    copies, one = group == "view" or family == "scale", len(live) == 1
    mean_before = first.mean if copies or name in ("neg", "negative") else None
    if lives is not None and not again:
        lives += [Life(now, now) for _ in op.outputs]
    for place, output in enumerate(op.outputs):
        same_shape = all(t.shape == output.shape for t in live)
        by_entry = same_shape and one_point and _is_pointwise(family, name, substance)
        alone = None
        if first.alone is not None:
            alone = one_token.follow(family, name, args, kwargs, live, [o.alone for o in known], output)
        new = Origin(
            linear_source,
            point=first.point if by_entry else object(),
            straight=not by_entry or (first.straight and one and (family in _STRAIGHT or name in ("neg", "negative"))),
            mean=first.linear_source if name == "mean" else mean_before,
            turned=turns or (copies and any(o.turned for o in known)),
            fresh=(copies or family == "add") and all(o.fresh for o in known) and not weighed,
            gates=(by_entry and not one)
            or group == "elementwise"
            or (one and (copies or family in ("add", "dropout")) and first.gates),
            attends=family == "softmax"
            or (first.attends and (copies or family in ("dropout", "divide") or name == "nan_to_num")),
            alone=alone,
            depth=depth,
            life=first.life if family == "view" else Life(now, now) if lives is None else lives[place],
        )
        store.put(output, _ORIGIN, new)


def _is_pointwise(family: str, name: str, substance: bool) -> bool:
    """Whether each entry of the output depends on the same entry of the inputs; tensors of constants do not count."""
    if family == "add":
        return not substance
    return GROUP.get(family) == "elementwise" or family in _STRAIGHT or family in _JOINED or name == "clone"


def _falls(args: Sequence[Any]) -> bool:
    exponent = number(args[1]) if len(args) > 1 else None
    return exponent is not None and exponent < 0
