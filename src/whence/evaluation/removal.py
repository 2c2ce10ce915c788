"""How units are removed from numbers: what stands in their place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError, ParameterError, did_you_mean
from whence.evaluation.examples import Example, unbroken
from whence.evaluation.imputation import imputed
from whence.subject.named_baselines import blurred
from whence.util.checks import not_allowed

VALUES = ("zero", "mean", "black", "blur", "rise_blur", "noise", "road")
_ANY = ("zero", "noise")  # of numbers that are no image, too
_RISE = 11, 5.0  # the kernel's width and its Gaussian's deviation, in RISE's own program
IDS = ("delete", "mask", "pad", "zero")


def default(example: Example, *wanted: str) -> str:
    """The first of the wanted operators that this row takes."""
    known = IDS if example.ids else VALUES if example.image else _ANY
    for name in wanted:
        if (
            name in known
            and (name != "mask" or "mask" in example.tokens)
            and (name != "pad" or "pad" in example.tokens)
        ):
            return name
    return "zero"


def check(example: Example, operator: Any) -> None:
    """Whether this row can be perturbed so."""
    unbroken(example)
    if isinstance(operator, Tensor):
        return
    if isinstance(operator, Real) and not isinstance(operator, bool) and math.isfinite(operator):
        if example.ids and not (isinstance(operator, Integral) and 0 <= int(operator) < _vocabulary(example)):
            raise ParameterError(f"operator={operator!r} is not a token of this model.\n  Give a token's id.")
        return
    if not isinstance(operator, str):
        raise not_allowed("operator", operator, "a name, a number, a token's id or a tensor")
    known = IDS if example.ids else VALUES
    if operator not in known:
        raise ParameterError(
            f"operator={operator!r} does not apply to {'token ids' if example.ids else 'numbers'}. "
            f"{did_you_mean(operator, known)}"
        )
    if operator in ("mask", "pad") and operator not in example.tokens:
        raise ParameterError(
            f'operator={operator!r}: this model names no {operator} token.\n  Give its id, or operator="delete".'
        )
    if not example.ids and operator not in _ANY and not example.image:
        raise ParameterError(
            f"operator={operator!r} is for images, but the units have shape {example.shape}.\n"
            '  Give "zero", "noise", a number or a tensor.'
        )


def _vocabulary(example: Example) -> float:
    """How many tokens a model knows, where it says so."""
    size = getattr(getattr(example.root, "config", None), "vocab_size", None)
    return size if isinstance(size, int) else math.inf


def replaced(
    example: Example, keep: Tensor, operator: Any, noise: float, draws: Sequence[torch.Generator],
    own: torch.Generator,
) -> Tensor:  # fmt: skip
    """Copies (m, …) of a row of numbers, its units kept where (m, units) says so.

    `draws` are the copies' own random numbers, `own` are the row's.
    """
    check(example, operator)
    kept = example.spread(keep)
    if operator == "road":
        return imputed(example.x, kept, noise, draws)
    instead = _noise(example, own) if operator == "noise" else stand_in(example, operator)
    return torch.where(kept.to(example.x.device), example.x, instead)


def _noise(example: Example, own: torch.Generator) -> Tensor:
    """Uniform between the smallest and the largest number of the row, or of its channel (Samek et al. 2017)."""
    x = example.x
    axes = (2, 3) if example.image else tuple(range(1, x.dim()))
    low, high = x.amin(axes, keepdim=True), x.amax(axes, keepdim=True)
    share = torch.rand(x.shape, generator=own, dtype=torch.float64, device="cpu").to(x)
    return low + share * (high - low)


def stand_in(example: Example, operator: Any) -> Tensor:
    """What stands in the place of a row of numbers, (1, …) like it or broadcast to it."""
    x = example.x
    if isinstance(operator, Tensor):
        return _given(example, operator)
    if isinstance(operator, Real):
        return x.new_full((), float(operator))
    if operator == "mean":
        return x.mean((2, 3), keepdim=True)
    if operator == "blur":
        return blurred(x)
    if operator == "rise_blur":
        return rise_blurred(x)
    if operator == "black":
        return x.amin((2, 3), keepdim=True) if example.black is None else example.black.to(x)
    return x.new_zeros(())


def rise_blurred(x: Tensor) -> Tensor:
    """Images under the blur of RISE's own program: a Gaussian folded into 11 × 11 pixels, with black beyond the border.

    Its kernel is a single pixel of 11 × 11 under a Gaussian of deviation 5, cut at 4 deviations and reflected at the
    kernel's borders (Petsiuk, Das & Saenko 2018).
    """
    width, sigma = _RISE
    reach = int(4 * sigma + 0.5)
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float64, device="cpu")
    weights = (-0.5 * (offsets / sigma) ** 2).exp()
    lands = (width // 2 + offsets.long()) % (2 * width)  # reflection repeats after two widths
    lands = torch.where(lands < width, lands, 2 * width - 1 - lands)
    line = torch.zeros(width, dtype=torch.float64, device="cpu").index_add(0, lands, weights / weights.sum()).to(x)
    kernel = (line[:, None] * line).expand(x.shape[1], 1, width, width)
    return torch.nn.functional.conv2d(x, kernel, padding=width // 2, groups=x.shape[1])


def _given(example: Example, operator: Tensor) -> Tensor:
    whole = operator if operator.dim() == example.x.dim() else operator[None]
    try:
        return whole.to(example.x).expand_as(example.x)
    except RuntimeError:
        raise InputError(
            f"operator= is a tensor {tuple(operator.shape)}, and a row is {tuple(example.x.shape[1:])}.\n"
            "  Give one of the row's shape."
        ) from None


def rewritten(example: Example, keep: Tensor, operator: Any) -> dict[str, Tensor]:
    """A row of ids with some tokens deleted or replaced: ids, masks and what else has one entry per token."""
    check(example, operator)
    if operator == "delete":
        if not bool(keep[example.real].any()):
            raise InputError("Nothing would be left of the row.\n  Remove less of it, or by another operator.")
        return {name: v[:, keep] if _per_token(example, name, v) else v for name, v in example.inputs.items()}
    found = dict(example.inputs)
    gone = ~keep[None]
    hidden = operator == "zero"
    number = (
        example.tokens.get("pad")
        if hidden
        else example.tokens[operator]
        if isinstance(operator, str)
        else int(operator)
    )
    if number is not None:
        found[example.name] = torch.where(gone, number, example.x)
    mask = example.inputs.get("attention_mask")
    if hidden and isinstance(mask, Tensor) and mask.shape == example.x.shape:
        found["attention_mask"] = mask.masked_fill(gone, 0)
    elif hidden and number is None:
        raise ParameterError(
            'operator="zero" hides a token by padding or by the attention mask, but this model has neither.\n'
            '  Give operator="delete", or the id of a token.'
        )
    return found


def _per_token(example: Example, name: str, value: Any) -> bool:
    """Whether an input says something of each token: the ids themselves, masks, positions, types."""
    beside = name == example.name or any(word in name for word in ("mask", "position", "token_type"))
    return beside and isinstance(value, Tensor) and value.dim() >= 2 and value.shape[:2] == example.x.shape[:2]
