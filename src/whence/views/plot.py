"""Matplotlib pictures of one row: the same forms as on the page. Nothing is ever shown or closed here."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

import torch

from whence.errors import InputError, ParameterError
from whence.results.attribution import Attribution
from whence.util.checks import check_choice
from whence.util.libraries import imported
from whence.util.terminal import clean
from whence.views import images, rows_html
from whence.views.colours import AGAINST, FOR, GREY, share
from whence.views.maps import Map, maps, notices, spelled

_FOR, _AGAINST, _GREY = (tuple(c / 255 for c in end) for end in (FOR, AGAINST, GREY))


def plot(a: Attribution, ax: Any = None, row: int = 0, target: int | None = None, **how: Any) -> Any:
    """Draw one row on the axes, or on new ones, and give them back."""
    if not -len(a) <= row < len(a):
        raise InputError(f"There are {len(a)} rows, and no row {row}.")
    row %= len(a)
    one = [part for part in maps(a, row + 1) if part.row == row]
    if target is not None:
        names = list(dict.fromkeys(part.target for part in one))
        if not a.several or not 0 <= target < len(names):
            raise InputError(f"There are {len(names)} targets, and no target {target}.")
        one = [part for part in one if part.target == names[target]]
    draw = next(_DRAW[page] for fits, page in rows_html.KINDS if fits(a, one))
    if how and draw is not _image:
        raise ParameterError(f"{next(iter(how))}= is for images.\n  Leave it out.")
    if ax is None:
        ax = pyplot().subplots(layout="constrained")[1]
    draw(a, one, ax, **how)
    _warn_above(ax, notices(a))
    return ax


def _warn_above(ax: Any, messages: Sequence[str]) -> None:
    """The first warnings above the title, in a box."""
    if not messages:
        return
    shown = [clean(line) for message in messages[:2] for line in textwrap.wrap(f"Warning: {message}", _WRAP)]
    box = {"facecolor": "#fdf5dc", "edgecolor": "none", "pad": 3}
    ax.annotate(
        "\n".join(shown), (0, 1), (0, 20), "axes fraction", "offset points", va="bottom", fontsize=7, color="#664700",
        bbox=box, annotation_clip=False, parse_math=False,
    )  # fmt: skip


_WRAP = 100  # letters in a line of a warning


def pyplot() -> Any:
    """Matplotlib's, where it is installed."""
    return imported("matplotlib.pyplot", "A picture needs", "'whence[plot]'")


def _text(a: Attribution, parts: list[Map], ax: Any) -> None:
    """The units in lines as wide as the axes."""
    part = parts[0]
    assert part.units is not None
    there = part.real.tolist() if part.real is not None else [True] * len(part.units)
    units = [(unit, value) for unit, value, real in zip(part.units, part.values.tolist(), there, strict=True) if real]
    words(ax, [unit for unit, _ in units], [value for _, value in units], ink=not part.signed)
    titled(ax, _title(part))


def words(
    ax: Any, units: Sequence[str], values: Sequence[float], top: float = 1.0, size: float = 10, ink: bool = False
) -> float:
    """Units in the colours of their values, from the given height of the axes downwards; gives where they end."""
    ax.axis("off")
    largest = max((abs(v) for v in values if v == v), default=0.0)
    renderer = _renderer(ax)
    to_axes = ax.transAxes.inverted()
    x, y, height = 0.0, top, 0.0
    for unit, value in zip(units, values, strict=True):
        part = share(value, largest)
        colour = _GREY if ink else _FOR if part > 0 else _AGAINST
        box = {"facecolor": (colour, 0.62 * abs(part) ** 0.8), "edgecolor": "none", "pad": 1.5}
        shown = ax.text(
            x, y, clean(spelled(unit)), fontsize=size, va="top", bbox=box, transform=ax.transAxes, parse_math=False
        )
        (left, low), (right, high) = to_axes.transform(shown.get_window_extent(renderer).get_points())
        height = max(height, high - low)
        if right > 1 and x > 0:  # the next line
            x, y = 0.0, y - 1.7 * height
            shown.set_position((x, y))
            right = right - left
        x = right + 0.25 * height * ax.bbox.height / ax.bbox.width
    return y - 1.7 * height


def _title(part: Map) -> str:
    return f"{spelled(part.target)}, {part.scored}"


def titled(ax: Any, title: str) -> None:
    """A title in plain letters, whatever it holds."""
    ax.set_title(clean(title), fontsize=9, loc="left", parse_math=False)


def _renderer(ax: Any) -> Any:
    """What measures text, whatever the figure will be drawn with."""
    from matplotlib.backends.backend_agg import RendererAgg

    return RendererAgg(1, 1, ax.figure.dpi)


def _generated(a: Attribution, parts: list[Map], ax: Any) -> None:
    """Tokens that were written, by the tokens of each input; inputs stand side by side on one scale."""
    named = {name: [part for part in parts if part.input == name] for name in dict.fromkeys(p.input for p in parts)}
    first = next(iter(named.values()))
    between = torch.full((len(first), 1), float("nan"), dtype=torch.float64, device="cpu")
    blocks: list[torch.Tensor] = []
    places: list[int] = []
    units: list[str] = []
    for own in named.values():
        start = sum(block.shape[1] for block in blocks)
        grid = torch.stack([part.values.detach().double().cpu() for part in own])
        blocks += [grid, between]
        places += range(start, start + grid.shape[1])
        units += own[0].units or []
    _grid(ax, torch.cat(blocks[:-1], 1))
    ax.set_xticks(places, [_tick(unit) for unit in units], rotation=60, ha="right", fontsize=7)
    ax.set_yticks(range(len(first)), [_tick(part.target) for part in first], fontsize=7)
    titled(ax, " | ".join(own[0].title for own in named.values()))


def _image(a: Attribution, parts: list[Map], ax: Any, style: str = "overlay") -> None:
    """The image and its map: overlay, masked, positive, negative or contour."""
    assert a.image is not None
    styles: dict[str, Callable[..., torch.Tensor]] = {
        "overlay": images.overlay,
        "masked": images.masked,
        "contour": images.contour,
        "positive": lambda image, grid: images.one_side(image, grid, 1),
        "negative": lambda image, grid: images.one_side(image, grid, -1),
    }
    check_choice("style", style, styles)
    part = parts[0]
    image = a.image[part.row].expand(3, -1, -1)
    ax.imshow(styles[style](image, part.values).to(torch.uint8).numpy())
    titled(ax, _title(part))
    ax.axis("off")


def _molecule(a: Attribution, parts: list[Map], ax: Any) -> None:
    import io

    from PIL import Image

    from whence.views.molecules import png

    ax.imshow(Image.open(io.BytesIO(png(a, parts))))
    titled(ax, _title(parts[0]))
    ax.axis("off")


def _bars(a: Attribution, parts: list[Map], ax: Any) -> None:
    part, values, names = parts[0], [], []
    for own in parts:  # several inputs, one after the other
        lead = f"{own.title}: " if len(parts) > 1 else ""
        there = [i for i in range(len(own.values)) if own.real is None or bool(own.real[i])]
        values += [float(own.values[i]) for i in there]
        names += [lead + (own.units[i] if own.units else str(i)) for i in there]
    ax.barh(
        range(len(values)), values, color=[_GREY if not part.signed else _FOR if v > 0 else _AGAINST for v in values]
    )
    ax.set_yticks(range(len(values)), [_tick(name) for name in names], fontsize=7)
    ax.invert_yaxis()
    ax.axvline(0, color="black", linewidth=0.6)
    titled(ax, _title(part))


def _map(a: Attribution, parts: list[Map], ax: Any) -> None:
    grid = images.flat(parts[0].values)
    _grid(ax, grid.reshape(1, -1) if grid.dim() < 2 else grid)
    titled(ax, parts[0].caption)
    ax.axis("off")


def _grid(ax: Any, grid: torch.Tensor) -> None:
    largest = float(grid.nan_to_num(0.0, 0.0, 0.0).abs().max()) or 1.0
    ax.imshow(grid.numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto" if len(grid) == 1 else "equal")


def _tick(name: str) -> str:
    return clean(spelled(name)).replace("$", r"\$")


_DRAW: dict[rows_html.Draw, Callable[..., None]] = {
    rows_html.text_row: _text,
    rows_html.generated: _generated,
    rows_html.image: _image,
    rows_html.molecule: _molecule,
    rows_html.vector: _bars,
    rows_html.named: _bars,
    rows_html.numbers: _map,
}
