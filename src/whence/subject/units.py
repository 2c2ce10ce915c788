"""Units: what is removed together, from the parameter `units` to a number for each element of an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.errors import InputError, ParameterError, did_you_mean
from whence.subject.masks import has_tokens, real_units
from whence.subject.subject import Subject
from whence.util.checks import is_whole, not_allowed
from whence.util.keys import inputs_of

NAMES = ("auto", "elements", "grid", "pixels", "tokens", "words")
SIDE = 4  # of the blocks of "grid"


def unit_numbers(subject: Subject, units: Any) -> dict[str, Tensor]:
    """The unit number of each element, by explained input; broadcasts to the input, and below 0 is never removed."""
    return {name: _numbers(subject, name, given) for name, given in _by_name(subject, units).items()}


def explained_inputs(subject: Subject) -> list[str]:
    """The names of the explained inputs; ids that enter two embeddings have two values and one name."""
    return inputs_of(subject.values)


def shape_of(subject: Subject, name: str) -> torch.Size:
    """The shape of an explained input, or of a module's explained value."""
    value: Tensor = subject.inputs[name] if subject.at is None else subject.values[name]
    return value.shape


def channel_axis(subject: Subject, name: str) -> int | None:
    """The axis of an input that holds no positions: the hidden one of tokens, the channels of images and signals."""
    shape = shape_of(subject, name)
    if subject.roles.get(name) == "ids" or len(shape) < 3:
        return None
    return 2 if has_tokens(subject, name, shape) else 1


def position_axes(subject: Subject, name: str) -> list[int]:
    """The axes of an input along which its positions are counted: tokens, pixels, time steps or features."""
    return [axis for axis in range(1, len(shape_of(subject, name))) if axis != channel_axis(subject, name)]


def block_numbers(shape: Sequence[int], axes: Sequence[int], side: int = 1) -> Tensor:
    """The number of each block along some axes, counted in row-major order; every other axis has length 1."""
    numbers = torch.zeros([1] * len(shape), dtype=torch.long, device="cpu")
    for axis in axes:
        block = torch.arange(shape[axis], device="cpu") // side
        numbers = numbers * (int(block[-1]) + 1) + block.view([-1 if a == axis else 1 for a in range(len(shape))])
    return numbers


def _by_name(subject: Subject, units: Any) -> dict[str, Any]:
    names = explained_inputs(subject)
    if isinstance(units, Mapping):
        for name in units:
            if name not in names:
                raise ParameterError(
                    f"{subject.method}: units= names {name!r}, which is not an explained input. "
                    f"{did_you_mean(str(name), names)}"
                )
        return {name: units.get(name, "auto") for name in names}
    if isinstance(units, Tensor) and len(names) > 1:
        raise ParameterError(
            f"{subject.method}: units= is one tensor, but {len(names)} inputs are explained.\n"
            f"  Give a dict by input name: {', '.join(map(repr, names))}."
        )
    return dict.fromkeys(names, units)


def _numbers(subject: Subject, name: str, units: Any) -> Tensor:
    shape = shape_of(subject, name)
    if isinstance(units, Tensor):
        return _given(subject, name, units)
    if is_whole(units) and int(units) > 0:
        return _blocks(subject, name, int(units))
    if not isinstance(units, str):
        give = (
            f"one of {', '.join(map(repr, NAMES))}, the side of a block (at least 1), an integer tensor that numbers "
            "the units, or a dict by input name"
        )
        raise not_allowed("units", units, give, subject.method)
    if units == "elements":
        return block_numbers(shape, range(1, len(shape)))
    if units == "grid":
        return _blocks(subject, name, SIDE)
    if units in ("auto", "tokens", "pixels"):
        return block_numbers(shape, _named_axes(subject, name, units))
    if units == "words":
        raise InputError(
            f'{subject.method}: units="words" needs the word number of each token, which a bare model does not know '
            f"for {name!r}.\n  Give units= an integer tensor {tuple(shape)} of word numbers, "
            "with -1 for what is never removed."
        )
    raise ParameterError(f"{subject.method}: units={units!r} is not known. {did_you_mean(units, NAMES)}")


def _named_axes(subject: Subject, name: str, units: str) -> list[int]:
    shape, ids = shape_of(subject, name), subject.roles.get(name) == "ids"
    fits = {"pixels": len(shape) > 2 and not ids, "tokens": ids or len(shape) == 3}
    if not fits.get(units, True):
        form = {"pixels": "(rows, channels, height, width)", "tokens": "(rows, n, hidden), or ids"}[units]
        raise InputError(
            f"{subject.method}: units={units!r} needs an input {form}, but {name!r} is {tuple(shape)}.\n"
            '  Leave units out, or give units="elements".'
        )
    if units == "auto" or ids:
        return position_axes(subject, name)
    return [1] if units == "tokens" else list(range(2, len(shape)))


def _blocks(subject: Subject, name: str, side: int) -> Tensor:
    """Blocks of pixels, tokens or time steps with sides of this length; padding is not counted."""
    shape, axes = shape_of(subject, name), position_axes(subject, name)
    real = real_units(subject, name, shape)
    if real is None:
        return block_numbers(shape, axes, side)
    rank = real.cpu().long().cumsum(1) - 1
    return (rank.clamp(min=0) // side).view(*rank.shape, *[1] * (len(shape) - 2))


def _given(subject: Subject, name: str, units: Tensor) -> Tensor:
    """The user's own tensor of unit numbers: one row or all rows, with or without the channels."""
    if units.is_floating_point() or units.is_complex() or units.dtype == torch.bool:
        raise ParameterError(
            f"{subject.method}: units= has the dtype {units.dtype}, but it must number the units.\n"
            "  Give whole numbers, the same for what is removed together; below 0 is never removed."
        )
    shape, channel = (subject.total_rows, *shape_of(subject, name)[1:]), channel_axis(subject, name)
    forms = [units, units[None]]
    forms += [form.unsqueeze(channel) for form in forms if channel is not None and form.dim() == len(shape) - 1]
    fitting = {form.shape: form for form in forms if _fits(form.shape, shape, channel)}
    if not fitting:
        raise InputError(
            f"{subject.method}: units= has the shape {tuple(units.shape)}, but the input {name!r} has {shape}.\n"
            "  Give one number per element, or one row of them for all rows; the channel axis may be left out."
        )
    if len(fitting) > 1:
        raise InputError(
            f"{subject.method}: units= has the shape {tuple(units.shape)}, which for the input {name!r} {shape} can "
            "mean one row with its channels or all rows without them.\n"
            f"  Give it all {len(shape)} dimensions, with length 1 where one entry serves all."
        )
    (numbers,) = fitting.values()
    chosen = numbers if len(numbers) == 1 else numbers[list(subject.row_numbers)]
    return chosen.detach().cpu().long()


def _fits(given: Sequence[int], shape: Sequence[int], channel: int | None) -> bool:
    return len(given) == len(shape) and all(
        size == full or (size == 1 and axis in (0, channel))
        for axis, (size, full) in enumerate(zip(given, shape, strict=True))
    )
