"""What a reader should know before trusting an answer: rows that got nothing, parts that cancel, special tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from whence.errors import warn
from whence.results.attribution import Attribution
from whence.results.forms import tensors

_CANCELLED = 0.005  # of all magnitudes: what is left of them in their sum
_CHANCE = 0.05  # of what parts of random signs would leave, 1/√n of their magnitudes
_SPECIAL = 0.95  # of all magnitudes: what special tokens have


def doubt(found: Attribution, facts: Mapping[str, Any], own: bool = False) -> None:
    """Warn of rows whose values say little, and what to try instead; `facts` are the method's.

    Under rules of the user's `own` nothing may be what was wanted.
    """
    sizes = [part.detach().abs().double() for part in tensors(found.values)]
    flat = [size.reshape(*found.output_value.shape, -1) for size in sizes]  # (rows, [k,] units)
    mass = torch.stack([size.sum(-1) for size in flat]).sum(0)
    raw = [part.detach().abs().reshape(*mass.shape, -1).sum(-1) for part in tensors(found.raw)]
    empty = (mass == 0) & (torch.stack([part.double() for part in raw]).sum(0) == 0)  # or a sum that is 0: said already
    nothing = _rows(empty & _has_units(found, mass))
    if nothing and not own:
        warn(f"{found.method}: every value of {{rows}} is 0. {_advice(facts)}", nothing)
    if facts.get("complete") and found.baseline_value is not None:
        _doubt_sums(found, mass, max(1, sum(size.shape[-1] for size in flat)))
    if found.special is not None and len(sizes) == 1 and sizes[0].dim() == mass.dim() + 1:
        _doubt_special(found, sizes[0], mass)


def _doubt_sums(found: Attribution, mass: Tensor, units: int) -> None:
    """Parts that cancel explain why two nearly equal scores are nearly equal."""
    assert found.baseline_value is not None
    rise = (found.output_value.detach() - found.baseline_value.detach()).abs().double()
    limit = min(_CANCELLED, _CHANCE / math.sqrt(units))
    rows = _rows((mass > 0) & (rise < limit * mass))
    if rows:
        warn(
            f"{found.method}: the score of {{rows}} is almost the same at the baseline, so that positive and negative "
            f"parts cancel: they sum to less than {100 * limit:.2g} % of their magnitudes. They explain what little "
            "the input changed, not the prediction. Give a baseline= at which the model is undecided, or another "
            "target=.",
            rows,
        )


def _doubt_special(found: Attribution, size: Tensor, mass: Tensor) -> None:
    """Tokens that the tokenizer added say nothing about the text."""
    assert found.special is not None
    special = torch.tensor(found.special, dtype=torch.bool, device=size.device)  # (rows, units); padding counts
    if special.shape[1] != size.shape[-1]:
        return
    real = found.real if isinstance(found.real, Tensor) else torch.ones_like(special)
    words = (~special & real.to(size.device)).any(1)
    on_special = (size * (special[:, None] if found.several else special)).sum(-1)
    share = on_special / torch.where(mass > 0, mass, 1.0)
    over = (share > _SPECIAL) & (words[:, None] if found.several else words)
    rows = _rows(over)
    if rows:
        warn(
            f"{found.method}: up to {{percent}} % of the values of {{rows}} lies on special tokens such as [CLS] or "
            "<s>, and next to nothing on the text. Compare the text's tokens with each other only, or use a method "
            "that does not count a token's own position, such as attcat or integrated_gradients.",
            rows,
            percent=100 * float(share[over].max()),
        )


def _advice(facts: Mapping[str, Any]) -> str:
    """What to try where a method has nothing to say."""
    if "nothing" in facts:
        return str(facts["nothing"])
    if facts.get("needs") == "attention":
        return (
            "The method keeps what attention does for the target, and here it does nothing for it, or speaks against "
            "it only: explain another target, or use attcat or attention_gradients, which keep signs."
        )
    if facts.get("reference"):
        return (
            "The input may be equal to its baseline, or the score does not change between the two: give another "
            "baseline=."
        )
    return (
        "The score is flat around the input (ReLUs that are off, or an output that is saturated): explain the "
        'logit rather than a probability, or compare with a baseline: method="integrated_gradients" or "deeplift".'
    )


def _rows(marked: Tensor) -> list[int]:
    """Rows of which some target is marked."""
    return [int(row) for row in marked.reshape(len(marked), -1).any(1).nonzero().flatten()]


def _has_units(found: Attribution, like: Tensor) -> Tensor:
    """Rows that are not padding altogether."""
    if found.real is None:
        return torch.ones_like(like, dtype=torch.bool)
    masks = [mask for mask in tensors(found.real) if mask is not None]
    real = torch.stack([mask.reshape(len(like), -1).any(1).to(like.device) for mask in masks]).any(0)
    return real.view(-1, *[1] * (like.dim() - 1)).expand_as(like)
