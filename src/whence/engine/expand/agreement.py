"""Whether a fused op that was written out gives what the model's own op gives."""

from __future__ import annotations

from typing import Any

import torch

from whence.errors import ModelError
from whence.util.tree import tensors_in


def check_same(name: str, path: str, written_out: Any, own: Any) -> None:
    """Reading attention must not change it: an error if the two differ by more than rounding."""
    ours, theirs = (next(iter(tensors_in(t))).detach() for t in (written_out, own))
    difference = torch.nan_to_num(ours - theirs).abs().max() if ours.numel() else torch.zeros((), device=ours.device)
    most = 2e3 * torch.finfo(ours.dtype).eps * torch.nan_to_num(theirs).abs().max()
    if bool(difference > most) or not torch.equal(ours.isnan(), theirs.isnan()):
        raise ModelError(
            f"{name} (in {path or 'the model itself'}) written out differs from the model's own by "
            f"{float(difference):.2g}: its maps would not be those that the model used.\n"
            '  Load the model with eager attention (attn_implementation="eager").'
        )
