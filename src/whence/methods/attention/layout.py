"""From scores of positions to the explained inputs: one per token, or the patch grid of an image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from whence.engine.trackers.modality import Modality
from whence.engine.trackers.token_numbers import LOST
from whence.engine.trackers.token_sources import Source
from whence.engine.trackers.tokens import LEARNED
from whence.errors import InputError, warn
from whence.methods.answer import Answer
from whence.methods.attention.reading import Reading
from whence.subject import Subject
from whence.subject.masks import real_units
from whence.util.keys import input_of

_MOST_EXTRA = 9  # class, distillation and register tokens come first


@dataclass(eq=False)
class Scores:
    """Scores of positions by modality, and the tokens that these positions stand for."""

    values: dict[Modality, Tensor] = field(default_factory=dict)  # (rows, targets or 1, n)
    tokens: dict[Modality, Tensor | None] = field(default_factory=dict)  # (rows, n)
    dropped: Tensor | None = None  # (rows,), scores of positions that are no longer there further down


def on_inputs(reading: Reading, scores: Scores, *, padding: bool = False) -> Answer:
    """Scores of positions as scores of the inputs' tokens that they stand for.

    Positions of no input (a class token, a prompt that was learned) keep theirs to themselves; the receipt says how
    much that is. What a mask hides gets 0, unless `padding` is to keep its scores.
    """
    for modality, tokens in scores.tokens.items():
        if modality in scores.values and tokens is not None and bool((tokens == LOST).any() & (tokens > 0).any()):
            raise _mixed(modality)
    values, nowhere = _by_input(reading, scores, padding)
    _check(reading.subject, scores, values, nowhere)
    shared = {name: other for name, other in reading.tokens.shared.items() if name in reading.subject.inputs}
    return Answer(
        values,
        per_row=reading.per_row | _elsewhere(reading, scores),
        overall={"shared_positions": shared} if shared else {},
        keeps_padding=padding,
    )


def _by_input(reading: Reading, scores: Scores, padding: bool) -> tuple[dict[str, Tensor], list[str]]:
    """Scores (rows, k, …) of each explained value, and the names of inputs that have no positions."""
    subject, score = reading.subject, reading.subject.measured.score
    assert score is not None
    by_key: dict[str, Tensor] = {}
    nowhere: list[str] = []
    for key, value in subject.measured.values.items():
        name = input_of(key)
        first = not any(input_of(k) == name for k in by_key)
        joint = [m for m in scores.values if name in m and not any(name in n and m < n for n in scores.values)]
        placed = [m for m in joint if (at := scores.tokens.get(m)) is not None and reading.tokens.sources.one(name, at)]
        unclaimed = bool(joint) and not any(input_of(k) in joint[0] for k in by_key)
        if placed and first:
            values = scores.values[placed[0]].to(score.dtype).expand(-1, score.shape[1], -1)
            by_key[key] = _on_tokens(reading, name, values, scores.tokens[placed[0]], padding)
        elif joint and unclaimed and not _is_known(scores.tokens.get(joint[0])):
            if len(joint[0] - reading.tokens.shared.keys()) > 1:
                raise _mixed(joint[0])
            values = scores.values[joint[0]].to(score.dtype).expand(-1, score.shape[1], -1)
            by_key[key] = _laid_out(subject, name, values, padding)
        else:
            nowhere += [name] if first and name not in reading.tokens.shared else []
            image = value.dim() > 3 and subject.roles.get(name) != "ids"
            shape = value.shape[-2:] if image else value.shape[1:2]
            by_key[key] = score.new_zeros(len(score), score.shape[1], *shape)
    return by_key, nowhere


def _check(subject: Subject, scores: Scores, values: Mapping[str, Tensor], nowhere: list[str]) -> None:
    """Refuse an answer that says nothing, and warn of inputs that it says nothing about."""
    if not scores.values:
        raise InputError(
            f"{subject.method} found attention in this model, but not which of its positions the score reads.\n"
            "  Choose a method that does not read attention, such as occlusion."
        )
    names = " and ".join(map(repr, nowhere))
    if len(nowhere) == len(values):
        raise InputError(
            f"The positions that the model attends to belong to no explained input, so {subject.method} has no scores "
            f"for {names}.\n  Choose a method that follows the model to its inputs, such as rollout, or one that does "
            "not read attention."
        )
    if nowhere:
        warn(
            f"{subject.method}: {names} has no positions among those that the model attends to, so its scores are 0: "
            "attention does not show what it does."
        )


def _is_known(tokens: Tensor | None) -> bool:
    return tokens is not None and not bool((tokens == LOST).any())


def _mixed(names: Iterable[str]) -> InputError:
    joined = " and ".join(repr(name) for name in sorted(names) if not name.startswith(LEARNED))
    return InputError(
        f"The model attends to positions of {joined} in one sequence, but which are whose cannot be told: they went "
        "through an op that mixes them, or that was not followed.\n  Choose a method that does not read attention."
    )


def _elsewhere(reading: Reading, scores: Scores) -> dict[str, list[Any]]:
    """For the receipt: the share of each row's scores that positions of no input have."""
    shares = [_of_no_input(reading, values, scores.tokens.get(m)) for m, values in scores.values.items()]
    missing = [part for part in shares if part is not None]
    whole = torch.stack([values.abs().sum((1, 2)) for values in scores.values.values()]).sum(0)
    if scores.dropped is not None and bool((scores.dropped > 1e-6 * whole).any()):
        missing, whole = [*missing, scores.dropped], whole + scores.dropped
    if not missing:
        return {}
    share = torch.stack(missing).sum(0) / whole.clamp(min=torch.finfo(whole.dtype).tiny)
    return {"other_positions": [round(float(part), 6) for part in share]}


def _of_no_input(reading: Reading, values: Tensor, tokens: Tensor | None) -> Tensor | None:
    """What positions of no input have, (rows,)."""
    if tokens is None:
        return None
    given = torch.zeros_like(tokens, dtype=torch.bool)
    for source in reading.tokens.sources:
        given |= source.holds(tokens) if source.name in reading.subject.inputs else False
    return (values.abs() * ~given[:, None]).sum((1, 2)) if not bool(given.all()) else None


def _on_tokens(reading: Reading, name: str, scores: Tensor, at: Tensor | None, padding: bool) -> Tensor:
    """Scores (rows, k, n) of positions as those of an input's tokens, in its order: (rows, k, …)."""
    assert at is not None
    source = reading.tokens.sources.one(name, at)
    assert isinstance(source, Source)
    ours = source.holds(at)
    index = torch.where(ours, (at - source.first) % source.size, 0)[:, None].expand_as(scores)
    summed = scores.new_zeros(*scores.shape[:2], source.size).scatter_add(2, index, scores * ours[:, None])
    if len(source.shape) == 1:
        return summed if padding else _without_padding(reading.subject, name, summed)
    return summed.unflatten(-1, source.shape)


def _laid_out(subject: Subject, name: str, scores: Tensor, padding: bool) -> Tensor:
    x = subject.inputs[name]
    if subject.roles.get(name) == "ids" or x.dim() < 4:
        frames = x.is_floating_point() and x.dim() == 3 and x.shape[-1] % scores.shape[-1] == 0  # of sound, say
        if x.dim() > 1 and scores.shape[-1] != x.shape[1] and not frames:
            raise InputError(
                f"The model attends to {scores.shape[-1]} positions, but {name!r} has {x.shape[1]}, so which "
                "belong together is unknown.\n  Choose a method that does not read attention."
            )
        return scores if padding else _without_padding(subject, name, scores)
    extra, high, wide = _by_config(subject, scores.shape[-1], *x.shape[-2:]) or grid(scores.shape[-1], *x.shape[-2:])
    return scores[..., extra : extra + high * wide].unflatten(-1, (high, wide))


def _by_config(subject: Subject, tokens: int, height: int, width: int) -> tuple[int, int, int] | None:
    """As the model's configuration says how large patches are and how many other tokens there are."""
    config = getattr(subject.root, "config", None)
    config = getattr(config, "vision_config", config)
    size = getattr(config, "patch_size", None)
    if not isinstance(size, int | list | tuple):
        return None
    down, across = (size, size) if isinstance(size, int) else size
    high, wide = height // down, width // across
    extra = tokens - high * wide
    last = int(getattr(config, "num_detection_tokens", 0))
    return (extra - last, high, wide) if 0 <= extra - last <= _MOST_EXTRA and high * wide else None


def _without_padding(subject: Subject, name: str, scores: Tensor) -> Tensor:
    real = real_units(subject, name, (len(scores), scores.shape[-1]))
    return scores if real is None else scores * real[:, None].to(scores)


def grid(tokens: int, height: int, width: int) -> tuple[int, int, int]:
    """How many tokens come before the patches, and the patches' rows and columns."""
    for extra in range(min(_MOST_EXTRA, tokens)):
        high = math.isqrt(round((tokens - extra) * height / width))
        if high and (tokens - extra) % high == 0:
            wide = (tokens - extra) // high
            if high * width == wide * height and height % high == 0:
                return extra, high, wide
    raise InputError(
        f"The model attends to {tokens} positions, which do not form a grid of patches of a {height} × {width} image.\n"
        "  Choose a method that explains pixels."
    )
