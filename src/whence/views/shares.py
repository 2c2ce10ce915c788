"""What several methods say in one unit: each value's share of its method's total, on one scale for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.results.attribution import Attribution
from whence.results.comparison import has_sign
from whence.views.components import MINUS, nice, number, signed
from whence.views.images import flat
from whence.views.maps import Map, maps
from whence.views.rows_html import is_generated, is_image, is_molecule, is_text, is_vector

KINDS = (
    ("molecule", is_molecule), ("generated", is_generated), ("text", is_text), ("image", is_image),
    ("vector", is_vector),
)  # fmt: skip
_MOST, _LEAST = 0.5, 0.01  # of a scale of shares: its ends are not beyond the one, nor within the other
_TAIL = 0.99  # of an image's pixels have a colour of their own; those beyond have that of the end


@dataclass(frozen=True, eq=False)
class Drawn:
    """One row as one method explained it, in shares: special tokens are left out, and what they have is `aside`."""

    name: str
    letter: str  # "" where it is not among the first
    a: Attribution  # of one row
    maps: list[Map]
    shares: list[Tensor]  # one for each map; images and grids one number per place
    kind: str
    signed: bool
    aside: float  # the part of all magnitudes that special tokens have

    @property
    def times(self) -> bool:
        """Whether it is shown in multiples of an even spread."""
        return self.kind in ("image", "numbers")

    @property
    def shown(self) -> list[Tensor]:
        """In the unit of the legend."""
        return [share * share.numel() for share in self.shares] if self.times else self.shares

    def said(self, value: float) -> str:
        """A number in that unit."""
        if not self.times:
            return signed(value, self.signed)
        lead = "" if not self.signed else MINUS if value < 0 else "+"
        return f"{lead}{abs(value):.1f} ×"

    def strongest(self, count: int) -> list[tuple[int, float]]:
        """The places and shares of the largest magnitudes of its first map."""
        first = self.shares[0].flatten()
        order = first.abs().argsort(descending=True, stable=True)[:count].tolist()
        return [(i, float(first[i])) for i in order if first[i]]


def drawn(name: str, a: Attribution, letter: str = "") -> Drawn:
    """What a method says of one row."""
    parts = list(maps(a, 1))
    kind = next((kind for kind, fits in KINDS if fits(a, parts)), "numbers")
    grids = [_values(part, kind) for part in parts]
    special = _special(a, grids[0])
    words = [torch.where(special, 0.0, grid) if special is not None else grid for grid in grids]
    whole, inner = _totals(parts, grids), _totals(parts, words)
    mass = sum(whole.values())
    aside = 0.0 if special is None or not mass else 1 - sum(inner.values()) / mass
    places = _places(parts)
    shares = [grid / (inner[place] or 1.0) for grid, place in zip(words, places, strict=True)]
    return Drawn(name, letter, a, parts, shares, kind, has_sign(a), max(0.0, aside))


def _values(part: Map, kind: str) -> Tensor:
    values = part.values.detach().double().cpu().nan_to_num(0.0, 0.0, 0.0)
    if part.real is not None and part.real.shape == values.shape:
        values = torch.where(part.real.cpu(), values, 0.0)
    return flat(values) if kind in ("image", "numbers") else values


def _special(a: Attribution, values: Tensor) -> Tensor | None:
    if a.special is None or not a.one_input or len(a.special[0]) != values.shape[-1]:
        return None
    found = torch.tensor(a.special[0], dtype=torch.bool, device="cpu")
    return None if bool(found.all()) else found


def _places(parts: Sequence[Map]) -> list[int]:
    """The number of each map's target: the maps of each input come in the same order."""
    seen: dict[str, int] = {}
    found = []
    for part in parts:
        found.append(seen.get(part.input, 0))
        seen[part.input] = found[-1] + 1
    return found


def _totals(parts: Sequence[Map], grids: Sequence[Tensor]) -> dict[int, float]:
    """The sum of magnitudes for each target, over all inputs."""
    found: dict[int, float] = {}
    for place, grid in zip(_places(parts), grids, strict=True):
        found[place] = found.get(place, 0.0) + float(grid.abs().sum())
    return found


# ---- one scale ----


@dataclass(frozen=True)
class Scale:
    """Where colours end, and whether something lies beyond."""

    limit: float
    times: bool
    over: bool

    def ticks(self, sides: int = 2) -> list[str]:
        """The numbers of a legend, of two sides or one."""
        parts = (-1.0, -0.5, 0.0, 0.5, 1.0) if sides == 2 else (0.0, 1.0)
        return [self._tick(part, sides == 2) for part in parts]

    def _tick(self, part: float, signs: bool) -> str:
        size = number(abs(part) * self.limit * (1 if self.times else 100))
        sign = MINUS if part < 0 else "+" if part > 0 and signs and not self.times else ""
        end = "" if not self.over or abs(part) < 1 else "≤ " if part < 0 else "≥ "
        return "0" if not part else f"{end}{sign}{size} {'×' if self.times else '%'}"


def scale_of(first: Sequence[Drawn], every: Sequence[Drawn], times: bool) -> Scale:
    """One scale for a comparison, by the methods that are shown first."""
    own = [d for d in first if d.times == times] or [d for d in every if d.times == times]
    rest = [d for d in every if d.times == times]
    reach = [max((_reach(part, times) for part in d.shown), default=0.0) for d in own]
    if times:  # by the method in the middle: maps of single pixels reach much further than those of patches
        limit = nice(sorted(reach)[len(reach) // 2] if reach else 0.0)
    else:
        limit = min(_MOST, max(_LEAST, nice(max(reach, default=0.0))))
    top = max((float(part.abs().max()) for d in rest for part in d.shown if part.numel()), default=0.0)
    return Scale(limit, times, top > limit * (1 + 1e-9))


def _reach(values: Tensor, times: bool) -> float:
    size = values.abs().flatten()
    if not size.numel():
        return 0.0
    return float(size.quantile(_TAIL)) if times and size.numel() > 100 else float(size.max())


# ---- what two have in common ----


def common(a: Drawn, b: Drawn) -> float:
    """1 − ½ Σ |a − b| of two methods' shares, of magnitudes where one has no sign; NaN where their units differ.

    Where both are grids of one image, the finer one is summed over the places of the coarser.
    """
    pair = _paired(a, b)
    return math.nan if pair is None else _in_common(*pair, a.signed and b.signed)


def by_chance(a: Drawn, b: Drawn) -> float:
    """The same on average over all ways to deal the values of one to the units: 1 − ½ Σᵢⱼ |aᵢ − bⱼ| / n."""
    pair = _paired(a, b)
    if pair is None:
        return math.nan
    one, other = _of_whole(*pair, a.signed and b.signed)
    other = other.sort().values
    below = torch.searchsorted(other, one)
    sums = torch.cat([other.new_zeros(1), other.cumsum(0)])
    apart = one * (2 * below - len(other)) + sums[-1] - 2 * sums[below]  # Σⱼ |aᵢ − bⱼ| for each i
    return float(1 - apart.sum() / len(other) / 2)


def _in_common(a: Tensor, b: Tensor, signs: bool) -> float:
    one, other = _of_whole(a, b, signs)
    return float(1 - (one - other).abs().sum() / 2)


def _of_whole(a: Tensor, b: Tensor, signs: bool) -> tuple[Tensor, Tensor]:
    """Both as parts of their magnitudes' sums; NaN where one is 0 everywhere."""
    a, b = (x if signs else x.abs() for x in (a, b))
    return a / (a.abs().sum() or math.nan), b / (b.abs().sum() or math.nan)


def _flat(a: Drawn) -> Tensor:
    special = _special(a.a, a.shares[0])
    return torch.cat([(share if special is None else share[..., ~special]).flatten() for share in a.shares])


def _paired(a: Drawn, b: Drawn) -> tuple[Tensor, Tensor] | None:
    shapes = [[tuple(share.shape) for share in d.shares] for d in (a, b)]
    if shapes[0] == shapes[1]:
        return _flat(a), _flat(b)
    if a.kind != "image" or b.kind != "image" or len(a.shares) != len(b.shares):
        return None
    pairs = [_coarser(x, y) for x, y in zip(a.shares, b.shares, strict=True)]
    return torch.cat([x.flatten() for x, _ in pairs]), torch.cat([y.flatten() for _, y in pairs])


def _coarser(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Two grids, each summed over the places of the smaller one."""
    size = (min(x.shape[0], y.shape[0]), min(x.shape[1], y.shape[1]))
    return tuple(  # type: ignore[return-value]
        F.adaptive_avg_pool2d(grid[None, None], size)[0, 0] * (grid.numel() / (size[0] * size[1])) for grid in (x, y)
    )
