"""Images to pixels: paths, PIL images and arrays, through the model's own image processor."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.errors import InputError, ParameterError, warn


def pixels(processor: Any, images: Any) -> Tensor:
    """(rows, channels, height, width) as the model takes them."""
    rows = list(images) if isinstance(images, list | tuple) else [images]
    if not rows:
        raise InputError("There is no image to explain.\n  Give at least one.")
    if processor is None:
        raise InputError("This model has no image processor.\n  Wrap it with one, or give pixel tensors to the model.")
    found = processor(images=[_opened(image, row) for row, image in enumerate(rows)], return_tensors="pt")
    return torch.as_tensor(found["pixel_values"], device="cpu")


def shown(processor: Any, pixels: Tensor) -> Tensor | None:
    """Pixels as bytes for display, with the processor's normalisation undone; None unless there are 1 or 3 channels."""
    if pixels.dim() != 4 or pixels.shape[1] not in (1, 3):
        return None
    found = pixels.detach().double().cpu()
    mean, deviation = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    if getattr(processor, "do_normalize", True) and mean is not None and deviation is not None:
        scale = [
            torch.as_tensor(part, dtype=torch.float64, device="cpu").view(1, -1, 1, 1) for part in (mean, deviation)
        ]
        found = found * scale[1] + scale[0]
    return (found.clamp(0, 1) * 255).round().to(torch.uint8)


def _opened(image: Any, row: int) -> Any:
    """An image as the processor takes it."""
    try:
        from PIL import Image
    except ImportError:
        raise ParameterError("Images need Pillow, which is not installed.\n  pip install pillow") from None
    if isinstance(image, str | PathLike):
        return _read(image, row)
    if isinstance(image, Image.Image):
        return _rgb(image, row)
    if isinstance(image, Tensor) or hasattr(image, "__array__"):
        return _rgb(Image.fromarray(_bytes(image, row)), row)
    raise InputError(f"Image {row} is {type(image).__name__}.\n  Give a path, a PIL image or an array.")


def _read(path: str | PathLike[str], row: int) -> Any:
    """The image of a file."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            return _rgb(opened, row)
    except FileNotFoundError:
        raise InputError(
            f"Image {row} is {str(path)!r}, but there is no such file.\n"
            "  This model reads images: give a path, a PIL image or an array."
        ) from None
    except Image.DecompressionBombError:
        raise InputError(
            f"Image {row}, {str(path)!r}, has more pixels than Pillow opens, twice {Image.MAX_IMAGE_PIXELS:,}.\n"
            "  Make it smaller, or raise PIL.Image.MAX_IMAGE_PIXELS where you trust the file."
        ) from None
    except (OSError, SyntaxError, ValueError):  # ValueError: a name with a NUL
        raise InputError(
            f"Image {row}, {str(path)!r}, is not an image that Pillow can read.\n"
            "  Give a path, a PIL image or an array."
        ) from None


def _rgb(image: Any, row: int) -> Any:
    """Three channels of bytes; sixteen bits and numbers from 0 to 1 are scaled, which Pillow would clip."""
    from PIL import Image

    if image.mode == "F":
        image = Image.fromarray(_bytes(np.asarray(image), row))
    elif image.mode.startswith("I"):
        image = Image.fromarray(_from_sixteen_bits(np.asarray(image)))
    if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema()[0] < 255:
        warn(
            "An image is partly transparent; its alpha channel is dropped. "
            "Composite it on a background of your choice first."
        )
    return image.convert("RGB")


def _from_sixteen_bits(found: Any) -> Any:
    return (found.astype(np.float64) / 257).round().clip(0, 255).astype(np.uint8)


def _bytes(image: Any, row: int) -> Any:
    """An array of pixels, (height, width) or with 1, 3 or 4 channels first or last; floating ones are from 0 to 1."""
    if isinstance(image, Tensor):
        image = image.detach().cpu()
        image = image.float() if image.is_floating_point() else image  # numpy has no bfloat16
    found = np.asarray(image)
    if found.ndim == 3 and found.shape[-1] not in (1, 3, 4) and found.shape[0] in (1, 3, 4):
        found = found.transpose(1, 2, 0)
    fits = found.ndim == 2 or (found.ndim == 3 and found.shape[-1] in (1, 3, 4))
    if not fits or not found.size:
        raise InputError(
            f"Image {row} is an array of the shape {found.shape}.\n"
            "  Give (height, width) or (height, width, channels), of bytes or of numbers from 0 to 1."
        )
    found = _scaled(found, row)
    return found[..., 0] if found.ndim == 3 and found.shape[-1] == 1 else found


def _scaled(found: Any, row: int) -> Any:
    """Pixels as bytes: from bytes, sixteen bits, booleans, or floating numbers from 0 to 1."""
    if found.dtype == np.uint16:
        return _from_sixteen_bits(found)
    if found.dtype.kind not in "biuf":
        raise InputError(f"Image {row} is an array of {found.dtype}.\n  Give bytes, or numbers from 0 to 1.")
    missing = int((~np.isfinite(found)).sum())
    if missing:
        raise InputError(
            f"Image {row} has {missing} of {found.size} values that are NaN or infinite.\n"
            "  Give bytes, or numbers from 0 to 1."
        )
    most = 255 if found.dtype.kind in "iu" else 1
    if found.min() < 0 or found.max() > most:
        raise InputError(
            f"Image {row} has values from {found.min():.3g} to {found.max():.3g}.\n"
            "  Give bytes, or numbers from 0 to 1; give normalised pixels to the model itself."
        )
    return (found if most == 255 else found.astype(np.float64) * 255).round().astype(np.uint8)
