"""Photographs of horses with their masks, and EfficientNet-Lite0, which names what a photograph shows.

The photographs are read from `WHENCE_DATA`, or from `../shared/data` beside the repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import whence
from whence.zoo.training import data

SIZE = 224
SORREL = "sorrel"  # ImageNet's only class of horses: a horse of a light brown
_FETCH = {
    "weizmann_horses": "git clone https://github.com/shenshutao/image_segmentation, and copy rgb/ and figure_ground/ "
    "of its weizmann_horse_db/",
}


def model() -> Any:
    """EfficientNet-Lite0, for `explain` and `evaluate`; photographs of its own size are taken whole."""
    try:
        return whence.load("zoo:photos")
    except whence.ParameterError as error:  # its packages are not installed
        raise data.Absent(str(error)) from None


def rows(count: int) -> list[dict[str, Any]]:
    """Photographs, each with its label and the mask of the horse, spread over the collection."""
    folder = _place("weizmann_horses", "rgb/horse001.jpg")
    files = sorted((folder / "rgb").glob("*.jpg"))
    chosen = [files[i * len(files) // count] for i in range(min(count, len(files)))]
    return [{"image": _opened(file), "label": SORREL, "mask": _mask(folder, file.name)} for file in chosen]


def _opened(file: Path) -> Any:
    with Image.open(file) as photo:
        return photo.convert("RGB").resize((SIZE, SIZE))


def _mask(folder: Path, name: str) -> Tensor:
    with Image.open(folder / "figure_ground" / name) as mask:
        return torch.from_numpy(np.array(mask.convert("L").resize((SIZE, SIZE)))) > 127


def _place(name: str, file: str) -> Path:
    found = data.folder() / name
    if (found / file).is_file():
        return found
    raise data.Absent(
        f"The data set {name!r} is not here: there is no {found / file}.\n  {_FETCH[name]}\n"
        f"  into a folder {name}/, and set WHENCE_DATA to the folder around it."
    )
