"""Units: what is removed together, from the parameter `units` to a number for each element of an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """The unit number of each element, by explained input; broadcasts to the input, and below 0 is never removed.

    What the user numbered has one numbering in all inputs; every other input has numbers of its own.
    """
    by_name = _by_name(subject, units)
    numbers = {name: _numbers(subject, name, given) for name, given in by_name.items()}
    return apart(numbers, [name for name, given in by_name.items() if isinstance(given, Tensor)])


def apart(numbers: Mapping[str, Tensor], together: Sequence[str] = ()) -> dict[str, Tensor]:
    """Numbers that no two inputs share, except for those that are one numbering already."""
    ends = [int(numbers[name].max()) + 1 for name in together if numbers[name].numel()]
    first, found = max([0, *ends]), {}
    for name, own in numbers.items():
        found[name] = own if name in together else torch.where(own < 0, own, own + first)
        first = first if name in together else first + int(own.max()) + 1
    return found


@dataclass(frozen=True, eq=False)
class Numbers:
    """The players that the elements of each input belong to: (1 or rows, …), broadcasts to it; the last is nobody."""

    by_input: Mapping[str, Tensor]  # `most` stands for what is never removed
    counts: Tensor  # players, (1 or rows,)
    sizes: Tensor  # elements of each player in all inputs, (1 or rows, most + 1)
    everything: bool  # whether all elements but padding can be removed

    @property
    def most(self) -> int:
        """Players of the row that has the most."""
        return self.sizes.shape[1] - 1

    def read(self, name: str, table: Tensor, rows: Tensor | None) -> Tensor:
        """A table (m, most + 1, …) at the elements of an input: row i of it for the row rows[i], or for row i."""
        places = self.by_input[name]
        lead, inner = places.shape[1:], table.shape[2:]
        if len(places) == 1:
            return table.index_select(1, places.flatten()).view(len(table), *lead, *inner)
        places = places if rows is None else places[rows]
        places = places.reshape(len(places), -1)
        index = places.view(*places.shape, *[1] * len(inner)).expand(-1, -1, *inner)
        return table.expand(len(index), *table.shape[1:]).gather(1, index).view(len(index), *lead, *inner)


def joint_numbers(subject: Subject, given: Mapping[str, Tensor]) -> Numbers:
    """Each row's numbers without gaps, over all of its inputs; padding is never removed."""
    masked, everything = {}, True
    for name, numbers in given.items():
        real = real_units(subject, name, shape_of(subject, name))
        everything &= bool((numbers >= 0).all())
        if real is not None and not (subject.whole or bool(real.all())):
            numbers = torch.where(real.cpu().view(*real.shape, *[1] * (numbers.dim() - 2)), numbers, -1)
        masked[name] = numbers
    rows = max(map(len, masked.values()))
    flat = torch.cat([numbers.expand(rows, *numbers.shape[1:]).reshape(rows, -1) for numbers in masked.values()], 1)
    ordered, order = flat.sort(1)
    fresh = torch.cat([ordered[:, :1] >= 0, (ordered.diff(dim=1) != 0) & (ordered[:, 1:] >= 0)], 1)
    ranks = torch.empty_like(flat).scatter_(1, order, fresh.cumsum(1) - 1)
    counts = fresh.sum(1)
    most = int(counts.max())
    ranks = ranks.masked_fill(flat < 0, most)
    sizes, by_input = torch.zeros(rows, most + 1, dtype=torch.double, device="cpu"), {}
    lengths = [numbers[0].numel() for numbers in masked.values()]
    for (name, numbers), part in zip(masked.items(), ranks.split(lengths, 1), strict=True):
        copies = shape_of(subject, name)[1:].numel() // max(
            1, numbers[0].numel()
        )  # elements that one number stands for
        sizes.scatter_add_(1, part, torch.full(part.shape, float(copies), dtype=torch.double, device="cpu"))
        by_input[name] = part.view(rows, *numbers.shape[1:])
    return Numbers(by_input, counts, sizes, everything)


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
    if isinstance(units, tuple):
        if len(units) != len(names):
            raise ParameterError(
                f"{subject.method}: units= has {len(units)} parts, but {len(names)} inputs are explained.\n"
                f"  Give one for each of {', '.join(map(repr, names))}, or a dict by input name."
            )
        return dict(zip(names, units, strict=True))
    if isinstance(units, Tensor) and len(names) > 1 and units.numel() > 1:
        raise ParameterError(
            f"{subject.method}: units= is one tensor, but {len(names)} inputs are explained.\n"
            f"  Give a tuple, or a dict by input name: {', '.join(map(repr, names))}."
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
            "the units, or a tuple or dict of these by input"
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
    forms = [units, units[None]] if units.dim() else [units.view([1] * len(shape))]
    forms += [form.unsqueeze(channel) for form in forms if channel is not None and form.dim() == len(shape) - 1]
    fitting = {form.shape: form for form in forms if _fits(form.shape, shape)}
    if not fitting:
        raise InputError(
            f"{subject.method}: units= has the shape {tuple(units.shape)}, but the input {name!r} has {shape}.\n"
            "  Give one number per element, or one row of them for all rows; the channel axis may be left out, and an "
            "axis of length 1 serves all of its places."
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


def _fits(given: Sequence[int], shape: Sequence[int]) -> bool:
    return len(given) == len(shape) and all(size in (1, full) for size, full in zip(given, shape, strict=True))
