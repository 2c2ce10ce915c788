"""How units are removed from numbers: what stands in their place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError, ParameterError, did_you_mean
from whence.evaluation.examples import Case
from whence.evaluation.imputation import imputed
from whence.subject.named_baselines import blurred
from whence.util.checks import not_allowed

VALUES = ("zero", "mean", "black", "blur", "road")
IDS = ("delete", "mask", "pad", "zero")


def default(case: Case, *wanted: str) -> str:
    """The first of the wanted operators that this row takes."""
    known = IDS if case.ids else VALUES if case.image else ("zero",)
    for name in wanted:
        if name in known and (name != "mask" or "mask" in case.tokens) and (name != "pad" or "pad" in case.tokens):
            return name
    return "zero"


def check(case: Case, operator: Any) -> None:
    """Whether this row can be perturbed so."""
    if isinstance(operator, Tensor):
        return
    if isinstance(operator, Real) and not isinstance(operator, bool) and math.isfinite(operator):
        if case.ids and not (isinstance(operator, Integral) and 0 <= int(operator) < _vocabulary(case)):
            raise ParameterError(f"operator={operator!r} is not a token of this model.\n  Give a token's id.")
        return
    if not isinstance(operator, str):
        raise not_allowed("operator", operator, "a name, a number, a token's id or a tensor")
    known = IDS if case.ids else VALUES
    if operator not in known:
        raise ParameterError(
            f"operator={operator!r} does not apply to {'token ids' if case.ids else 'numbers'}. "
            f"{did_you_mean(operator, known)}"
        )
    if operator in ("mask", "pad") and operator not in case.tokens:
        raise ParameterError(
            f'operator={operator!r}: this model names no {operator} token.\n  Give its id, or operator="delete".'
        )
    if not case.ids and operator != "zero" and not case.image:
        raise ParameterError(
            f"operator={operator!r} is for images, but the units have shape {case.shape}.\n"
            '  Give "zero", a number or a tensor.'
        )


def _vocabulary(case: Case) -> float:
    """How many tokens a model knows, where it says so."""
    size = getattr(getattr(case.root, "config", None), "vocab_size", None)
    return size if isinstance(size, int) else math.inf


def replaced(case: Case, keep: Tensor, operator: Any, noise: float, draws: Sequence[torch.Generator]) -> Tensor:
    """Copies (m, …) of a row of numbers, its units kept where (m, units) says so."""
    check(case, operator)
    kept = case.spread(keep)
    if operator == "road":
        return imputed(case.x, kept, noise, draws)
    return torch.where(kept.to(case.x.device), case.x, stand_in(case, operator))


def stand_in(case: Case, operator: Any) -> Tensor:
    """What stands in the place of a row of numbers, (1, …) like it or broadcast to it."""
    x = case.x
    if isinstance(operator, Tensor):
        return _given(case, operator)
    if isinstance(operator, Real):
        return x.new_full((), float(operator))
    if operator == "mean":
        return x.mean((2, 3), keepdim=True)
    if operator == "blur":
        return blurred(x)
    if operator == "black":
        return x.amin((2, 3), keepdim=True) if case.black is None else case.black.to(x)
    return x.new_zeros(())


def _given(case: Case, operator: Tensor) -> Tensor:
    whole = operator if operator.dim() == case.x.dim() else operator[None]
    try:
        return whole.to(case.x).expand_as(case.x)
    except RuntimeError:
        raise InputError(
            f"operator= is a tensor {tuple(operator.shape)}, and a row is {tuple(case.x.shape[1:])}.\n"
            "  Give one of the row's shape."
        ) from None


def rewritten(case: Case, keep: Tensor, operator: Any) -> dict[str, Tensor]:
    """A row of ids with some tokens deleted or replaced: ids, masks and what else has one entry per token."""
    check(case, operator)
    if operator == "delete":
        if not bool(keep[case.real].any()):
            raise InputError("Nothing would be left of the row.\n  Remove less of it, or by another operator.")
        return {name: v[:, keep] if _per_token(case, name, v) else v for name, v in case.inputs.items()}
    found = dict(case.inputs)
    gone = ~keep[None]
    hidden = operator == "zero"
    number = case.tokens.get("pad") if hidden else case.tokens[operator] if isinstance(operator, str) else int(operator)
    if number is not None:
        found[case.name] = torch.where(gone, number, case.x)
    mask = case.inputs.get("attention_mask")
    if hidden and isinstance(mask, Tensor) and mask.shape == case.x.shape:
        found["attention_mask"] = mask.masked_fill(gone, 0)
    elif hidden and number is None:
        raise ParameterError(
            'operator="zero" hides a token by padding or by the attention mask, but this model has neither.\n'
            '  Give operator="delete", or the id of a token.'
        )
    return found


def _per_token(case: Case, name: str, value: Any) -> bool:
    """Whether an input says something of each token: the ids themselves, masks, positions, types."""
    beside = name == case.name or any(word in name for word in ("mask", "position", "token_type"))
    return beside and isinstance(value, Tensor) and value.dim() >= 2 and value.shape[:2] == case.x.shape[:2]
