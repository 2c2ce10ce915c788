"""Images to pixels: paths, PIL images and arrays, through the model's own image processor."""

from __future__ import annotations

from os import PathLike
from typing import Any

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


def _opened(image: Any, place: int) -> Any:
    """An image as the processor takes it."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ParameterError("Images need Pillow, which is not installed.\n  pip install pillow") from None
    if isinstance(image, str | PathLike):
        try:
            with Image.open(image) as opened:
                return opened.convert("RGB")
        except FileNotFoundError:
            raise InputError(
                f"Image {place} is {str(image)!r}, and there is no such file.\n"
                "  This model reads images: give a path, a PIL image or an array."
            ) from None
        except (UnidentifiedImageError, OSError):
            raise InputError(f"Image {place}, {str(image)!r}, is no image that Pillow reads.") from None
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    if isinstance(image, Tensor) or hasattr(image, "__array__"):
        return image
    raise InputError(f"Image {place} is {type(image).__name__}.\n  Give a path, a PIL image or an array.")
