"""Images to pixels: paths, PIL images and arrays, through the model's own image processor."""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.errors import InputError, ParameterError


def pixels(processor: Any, images: Any) -> Tensor:
    """(rows, channels, height, width) as the model takes them."""
    rows = list(images) if isinstance(images, list | tuple) else [images]
    if not rows:
        raise InputError("There is no image.\n  Give at least one.")
    if processor is None:
        raise InputError("This model has no image processor.\n  Wrap it with one, or give pixel tensors to the model.")
    found = processor(images=[_opened(row, place) for place, row in enumerate(rows)], return_tensors="pt")
    return torch.as_tensor(found["pixel_values"])


def shown(processor: Any, pixels: Tensor) -> Tensor | None:
    """Pixels as bytes to look at: the processor's normalisation undone. None where they are no 1 or 3 channels."""
    if pixels.dim() != 4 or pixels.shape[1] not in (1, 3):
        return None
    found = pixels.detach().double().cpu()
    mean, deviation = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    if getattr(processor, "do_normalize", True) and mean is not None and deviation is not None:
        scale = [torch.as_tensor(part, dtype=torch.float64).view(1, -1, 1, 1) for part in (mean, deviation)]
        found = found * scale[1] + scale[0]
    return (found.clamp(0, 1) * 255).round().to(torch.uint8)


def _opened(image: Any, place: int) -> Any:
    """An image as the processor takes it."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ParameterError("Images need Pillow, which is not installed.\n  pip install pillow") from None
    if isinstance(image, str | PathLike):
        try:
            with Image.open(image) as opened:
                return _eight_bits(opened).convert("RGB")
        except FileNotFoundError:
            raise InputError(
                f"Image {place} is {str(image)!r}, and there is no such file.\n"
                "  This model reads images: give a path, a PIL image or an array."
            ) from None
        except (UnidentifiedImageError, OSError):
            raise InputError(f"Image {place}, {str(image)!r}, is no image that Pillow reads.") from None
    if isinstance(image, Image.Image):
        return _eight_bits(image).convert("RGB")
    if isinstance(image, Tensor) or hasattr(image, "__array__"):
        return Image.fromarray(_bytes(image, place)).convert("RGB")
    raise InputError(f"Image {place} is {type(image).__name__}.\n  Give a path, a PIL image or an array.")


def _eight_bits(image: Any) -> Any:
    """Pillow cuts sixteen bits off at 255: here they are scaled."""
    if not image.mode.startswith("I"):
        return image
    from PIL import Image

    return Image.fromarray((np.asarray(image).astype(np.float64) / 257).round().clip(0, 255).astype(np.uint8))


def _bytes(image: Any, place: int) -> Any:
    """An array of pixels, (height, width) or with 1, 3 or 4 channels first or last; floating ones are from 0 to 1."""
    found = np.asarray(image.detach().cpu() if isinstance(image, Tensor) else image)
    if found.ndim == 3 and found.shape[-1] not in (1, 3, 4) and found.shape[0] in (1, 3, 4):
        found = found.transpose(1, 2, 0)
    fits = found.ndim == 2 or (found.ndim == 3 and found.shape[-1] in (1, 3, 4))
    if not fits or not found.size:
        raise InputError(
            f"Image {place} is an array of the shape {found.shape}.\n"
            "  Give (height, width) or (height, width, channels), of bytes or of numbers from 0 to 1."
        )
    missing = int((~np.isfinite(found)).sum())
    if missing:
        raise InputError(
            f"Image {place} has {missing} of {found.size} values that are NaN or infinite.\n"
            "  Give bytes, or numbers from 0 to 1."
        )
    if np.issubdtype(found.dtype, np.floating):
        if found.min() < 0 or found.max() > 1:
            raise InputError(
                f"Image {place} has values from {found.min():.3g} to {found.max():.3g}.\n"
                "  Give bytes, or numbers from 0 to 1; what is normalised already goes to the model itself."
            )
        found = (found * 255).round()
    found = found.astype(np.uint8)
    return found[..., 0] if found.ndim == 3 and found.shape[-1] == 1 else found
