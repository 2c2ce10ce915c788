"""One diverging scale for every picture: blue against, nothing at 0, orange for; told apart by colour-blind readers."""

from __future__ import annotations

import math

FOR, AGAINST, INK, GREY = (194, 68, 14), (31, 101, 176), (40, 44, 52), (118, 118, 118)


def share(value: float, largest: float) -> float:
    """A value as a part of the largest magnitude, in [-1, 1]; what is not finite counts as nothing."""
    if not math.isfinite(value) or not largest:
        return 0.0
    return max(-1.0, min(1.0, value / largest))


def solid(part: float, ink: bool = False) -> str:
    """The colour of a share on white paper, as in pictures; `ink` is a scale of greys."""
    end = INK if ink else FOR if part > 0 else AGAINST
    weight = min(1.0, abs(part)) ** 0.8
    return "#" + "".join(f"{round(255 + (c - 255) * weight):02x}" for c in end)


def wash(part: float, ink: bool = False) -> str:
    """The colour of a share as a thin layer behind text, readable on light and dark paper; `ink` is grey."""
    red, green, blue = GREY if ink else FOR if part > 0 else AGAINST
    return f"rgba({red},{green},{blue},{0.62 * abs(part) ** 0.8:.2f})"
