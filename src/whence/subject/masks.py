"""Padding masks: which units of a subject's values are real, and which positions come last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from whence.engine.leaves import AT
from whence.util.keys import input_of

if TYPE_CHECKING:
    from whence.subject.subject import Subject


def padding_mask(subject: Subject, decoder: bool = False) -> Tensor | None:
    """The padding mask (rows, n) of the decoder's tokens, or of the others; True where a token is real."""
    mask = subject.inputs.get("decoder_attention_mask" if decoder else "attention_mask")
    return mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 and len(mask) == subject.rows else None


def real_units(subject: Subject, key: str, shape: Sequence[int]) -> Tensor | None:
    """Which units (rows, n) of a value (rows, n, …) are real, not padding; None where no mask says so."""
    in_decoder = _is_at(subject, key) and "decoder" in (subject.at or "").split(".")
    mask = padding_mask(subject, key.startswith("decoder_") or in_decoder)
    if mask is None or tuple(mask.shape) != tuple(shape[:2]) or _is_about_other_ids(subject, key, mask):
        return None
    several_ids = len(shape) == 4 and subject.input_roles.get(input_of(key)) == "ids"  # per token, as of a box
    return mask if len(shape) in (2, 3) or several_ids else None


def last_real(subject: Subject, length: int) -> Tensor | None:
    """Each row's last position that is not padding, in an output of this length; None where no mask says so."""
    config = getattr(subject.root, "config", None)
    decodes = any(name.startswith("decoder_") for name in subject.inputs)
    mask = padding_mask(subject, decodes or bool(getattr(config, "is_encoder_decoder", False)))
    if mask is None or mask.shape[1] != length:
        return None
    return (mask * torch.arange(length, device=mask.device)).argmax(1)


def has_tokens(subject: Subject, key: str, shape: Sequence[int]) -> bool:
    """Whether a value (rows, n, hidden) is one of tokens: a mask, ids among the inputs or its name say so."""
    inputs = subject.inputs.values()
    ids = any(isinstance(v, Tensor) and not v.is_floating_point() and v.dim() == 2 for v in inputs)
    return len(shape) == 3 and (
        real_units(subject, key, shape) is not None or key.endswith("embeds") or (_is_at(subject, key) and ids)
    )


def _is_at(subject: Subject, key: str) -> bool:
    """Whether the value is the output of the module that `at=` names."""
    return subject.at is not None and key.partition(".")[0] == AT


def _is_about_other_ids(subject: Subject, key: str, mask: Tensor) -> bool:
    """Whether the mask belongs to token ids, and this input is something else that happens to be as long."""
    name = input_of(key)
    if _is_at(subject, key) or name.endswith("embeds") or subject.input_roles.get(name) != "value":
        return False
    ids = [subject.inputs[other] for other, role in subject.input_roles.items() if role == "ids"]
    return any(isinstance(value, Tensor) and value.shape == mask.shape for value in ids)
