"""Which cases of a law stay in `make test`, where the others repeat it on more models."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

FAMILIES = (
    "bert",
    "gpt2",
    "t5",
    "vit",
    "resnet",
)  # an encoder, a decoder, both, images by attention, images by convolutions


def mostly_slow(cases: Iterable[Any], quick: Iterable[Any] = FAMILIES) -> list[Any]:
    """The cases as parameters; all but the quick ones are for `make test-all`."""
    few = list(quick)
    return [
        case if case in few else pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.slow)
        for case in cases
    ]
