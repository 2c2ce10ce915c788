"""Caveats, which a reader should know before trusting an answer: rows of zeros, parts that cancel, special tokens."""

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


def warn_of_caveats(a: Attribution, facts: Mapping[str, Any], own: bool = False) -> None:
    """Warn of rows whose values explain little, and advise what to try instead; `facts` are the method's.

    With `own`, the user gave rules, and values of 0 may be what they are meant to give.
    """
    sizes = [part.detach().abs() for part in tensors(a.values)]
    flat = [size.reshape(*a.output_value.shape, -1) for size in sizes]  # (rows, [k,] units)
    mass = sum((size.sum(-1, dtype=torch.double) for size in flat[1:]), flat[0].sum(-1, dtype=torch.double))
    if not own and not bool(mass.all()):
        _warn_of_zeros(a, mass, facts)
    if facts.get("complete") and a.gap is not None:
        _warn_of_cancellation(a, mass, max(1, sum(size.shape[-1] for size in flat)))
    if a.special is not None and len(sizes) == 1 and sizes[0].dim() == mass.dim() + 1:
        _warn_of_special_tokens(a, sizes[0], mass)


def _warn_of_zeros(a: Attribution, mass: Tensor, facts: Mapping[str, Any]) -> None:
    """Rows without any value; sums that are 0 have a warning of their own."""
    raw = [part.detach().abs().reshape(*mass.shape, -1).sum(-1) for part in tensors(a.raw)]
    empty = (mass == 0) & (torch.stack([part.double() for part in raw]).sum(0) == 0)
    nothing = _rows(empty & _has_units(a, mass))
    if nothing:
        warn(f"{a.method}: every value of {{rows}} is 0. {_advice(facts)}", nothing)


def _warn_of_cancellation(a: Attribution, mass: Tensor, units: int) -> None:
    """Parts that cancel explain only why two nearly equal scores are nearly equal."""
    assert a.baseline_value is not None
    rise = (a.output_value.detach() - a.baseline_value.detach()).abs().double()
    limit = min(_CANCELLED, _CHANCE / math.sqrt(units))
    rows = _rows((mass > 0) & (rise < limit * mass))
    if rows:
        warn(
            f"{a.method}: the score of {{rows}} is almost the same at the baseline, so that positive and negative "
            f"parts cancel: they sum to less than {100 * limit:.2g} % of their magnitudes. They explain what little "
            "the input changed, not the prediction. Give a baseline= at which the model is undecided, or another "
            "target=.",
            rows,
        )


def _warn_of_special_tokens(a: Attribution, size: Tensor, mass: Tensor) -> None:
    """Tokens that the tokenizer added explain nothing about the text."""
    assert a.special is not None
    special = torch.tensor(a.special, dtype=torch.bool, device=size.device)  # (rows, units); padding counts
    if special.shape[1] != size.shape[-1]:
        return
    real = a.real if isinstance(a.real, Tensor) else torch.ones_like(special)
    words = (~special & real.to(size.device)).any(1)
    on_special = (size * (special[:, None] if a.several else special)).sum(-1)
    share = on_special / torch.where(mass > 0, mass, 1.0)
    over = (share > _SPECIAL) & (words[:, None] if a.several else words)
    rows = _rows(over)
    if rows:
        warn(
            f"{a.method}: up to {{percent}} % of the values of {{rows}} lies on special tokens such as [CLS] or "
            "<s>, and next to nothing on the text. Compare the text's tokens with each other only, or use a method "
            "that does not count a token's own position, such as attcat or integrated_gradients.",
            rows,
            percent=100 * float(share[over].max()),
        )


def _advice(facts: Mapping[str, Any]) -> str:
    """What to try where all values are 0."""
    if "nothing" in facts:
        return str(facts["nothing"])
    if facts.get("needs") == "attention":
        return (
            "The method keeps what attention adds to the target's score, but here attention adds nothing, or only "
            "lowers it: explain another target, or use attcat or attention_gradients, which keep signs."
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


def _has_units(a: Attribution, like: Tensor) -> Tensor:
    """Rows that are not padding altogether."""
    if a.real is None:
        return torch.ones_like(like, dtype=torch.bool)
    masks = [mask for mask in tensors(a.real) if mask is not None]
    real = torch.stack([mask.reshape(len(like), -1).any(1).to(like.device) for mask in masks]).any(0)
    return real.view(-1, *[1] * (like.dim() - 1)).expand_as(like)
