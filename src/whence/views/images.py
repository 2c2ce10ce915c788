"""Pictures without an imaging library: PNGs written by hand, maps laid over the image that was explained."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.views.colours import AGAINST, FOR, solid


def png(pixels: Tensor) -> str:
    """Bytes (height, width, 3), or 4 with alpha, as a data address."""
    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + bytes(line.flatten().tolist()) for line in pixels.to(torch.uint8))
    return _address(struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 6, 0, 0, 0), [], lines)


def palette_png(shares: Tensor, ink: bool = False) -> str:
    """Shares in [-1, 1] (height, width) in the scale's colours, one byte a pixel."""
    height, width = shares.shape
    steps = ((shares.nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1) + 1) * 127.5).round().long().tolist()
    colours = b"".join(bytes.fromhex(solid(step / 127.5 - 1, ink)[1:]) for step in range(256))
    lines = b"".join(b"\0" + bytes(line) for line in steps)
    return _address(struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0), [(b"PLTE", colours)], lines)


def layer_png(shares: Tensor, signs: bool) -> str:
    """Shares in [-1, 1] as a layer over an image: for and against in their colours, over `pale`.

    Without signs it is darkness over the image itself, which leaves bright what matters.
    """
    height, width = shares.shape
    known = shares.nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1)
    steps = ((known if signs else known.abs() * 2 - 1) * 127.5 + 127.5).round().long().tolist()
    parts = [step / 127.5 - 1 for step in range(256)]
    colours = b"".join(bytes((FOR if part > 0 else AGAINST) if signs else (0, 0, 0)) for part in parts)
    weights = [_COVERED * abs(part) ** 0.8 if signs else _DARK * (1 - ((part + 1) / 2) ** 0.6) for part in parts]
    alphas = bytes(round(255 * weight) for weight in weights)
    lines = b"".join(b"\0" + bytes(line) for line in steps)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return _address(head, [(b"PLTE", colours), (b"tRNS", alphas)], lines)


_COVERED, _DARK = 0.85, 0.9  # of the image, under the fullest colour and where nothing matters


def _address(head: bytes, more: list[tuple[bytes, bytes]], lines: bytes) -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    parts = [(b"IHDR", head), *more, (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    whole = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)
    return "data:image/png;base64," + base64.b64encode(whole).decode()


# ---- a map and the image it is of ----


def flat(values: Tensor) -> Tensor:
    """One number per pixel or patch: channels summed, which keeps the total."""
    grid = values.detach().double().cpu().nan_to_num(0.0, 0.0, 0.0)
    return grid.sum(tuple(range(grid.dim() - 2))) if grid.dim() > 2 else grid


def stretched(grid: Tensor, size: tuple[int, int]) -> Tensor:
    """Patches as blocks of pixels."""
    return F.interpolate(grid[None, None], size, mode="nearest")[0, 0]


def pale(image: Tensor) -> Tensor:
    """The image in pale grey, (height, width, 3), for colours to lie over."""
    return (110 + 0.57 * image.double().mean(0, keepdim=True).expand(3, -1, -1)).permute(1, 2, 0)


def overlay(image: Tensor, grid: Tensor) -> Tensor:
    """The image in pale grey with the map's colours over it; `image` is bytes (3, height, width)."""
    shares = _shares(image, grid)
    grey = pale(image).permute(2, 0, 1)
    colour = torch.where(shares[None] > 0, _end(FOR), _end(AGAINST))
    weight = _COVERED * shares.abs()[None] ** 0.8
    return (grey + (colour - grey) * weight).round().permute(1, 2, 0)


def masked(image: Tensor, grid: Tensor) -> Tensor:
    """The image, each pixel as bright as what it carries is large (Sundararajan et al. 2017)."""
    light = _shares(image, grid).abs() ** 0.5
    return (image.double() * light[None]).round().permute(1, 2, 0)


def one_side(image: Tensor, grid: Tensor, sign: int) -> Tensor:
    """Only what speaks for, or only what speaks against, on white."""
    shares = _one_sided(image, grid, sign)
    return (255 + (_end(FOR if sign > 0 else AGAINST) - 255) * shares**0.8).round().permute(1, 2, 0)


def thin_side(image: Tensor, grid: Tensor, sign: int) -> Tensor | None:
    """The same on no paper at all, with alpha (height, width, 4); None where there is nothing."""
    shares = _one_sided(image, grid, sign)
    colour = _end(FOR if sign > 0 else AGAINST).expand(3, *shares.shape[1:])
    return torch.cat([colour, (255 * shares**0.8).round()]).permute(1, 2, 0) if bool(shares.any()) else None


def _one_sided(image: Tensor, grid: Tensor, sign: int) -> Tensor:
    return (_shares(image, grid) * sign).clamp(min=0)[None]


def contour(image: Tensor, grid: Tensor, top: float = 0.1) -> Tensor:
    """The image with a line around the pixels that carry most: the given part of them.

    A small image is enlarged first, so that the line stays thin.
    """
    shares = _shares(image, grid)
    inside = shares >= shares.flatten().quantile(1 - top)
    inside &= shares > 0
    times = max(1, _SIDE // max(inside.shape))
    large, shown = (_larger(part, times) for part in (inside[None].double(), image.double()))
    wide = F.max_pool2d(large, 5, 1, 2) > 0
    return torch.where(wide & (large == 0), _end(FOR), shown).round().permute(1, 2, 0)


_SIDE = 224  # pixels, of the longer side of an enlarged image


def _larger(image: Tensor, times: int) -> Tensor:
    """Each pixel as a block of them."""
    return image.repeat_interleave(times, -1).repeat_interleave(times, -2)


def _shares(image: Tensor, grid: Tensor) -> Tensor:
    full = stretched(flat(grid), (image.shape[1], image.shape[2]))
    return full / (float(full.abs().max()) or 1.0)


def _end(colour: tuple[int, int, int]) -> Tensor:
    return torch.tensor(colour, dtype=torch.float64, device="cpu").view(3, 1, 1)
