"""The control that every evaluation needs."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.methods import method
from whence.subject import Subject
from whence.subject.noise import gaussian


@method("random", paper="", order=900, propagates=False)
def random(subject: Subject) -> dict[str, Tensor]:
    """Independent standard normal numbers, the same for the same seed: what an uninformed explanation looks like."""
    pinned = subject.pinned()
    assert subject.measured.score is not None
    k = subject.measured.score.shape[1]
    draws = [gaussian(pinned, sample) for sample in range(k)]
    return {key: torch.stack([draw[key] for draw in draws], 1) for key in pinned.values}  # (rows, k, …)
