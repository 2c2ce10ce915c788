"""From scores of positions to the explained inputs: one per token, or the patch grid of an image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from whence.engine.trackers.modality import Modality
from whence.engine.trackers.tokens import LEARNED, LOST, Source
from whence.errors import InputError, warn
from whence.methods.answer import Answer
from whence.methods.attention.reading import Reading
from whence.subject import Subject
from whence.subject.masks import real_units
from whence.util.keys import input_of

_MOST_EXTRA = 9  # class, distillation and register tokens come first
At = Mapping[Modality, Tensor | None]  # (rows, n), the token that each position of a stream stands for


def on_inputs(reading: Reading, state: Mapping[Modality, Tensor], at: At, *, padding: bool = False) -> Answer:
    """Scores (rows, k, n) of each stream's positions as scores of the inputs' tokens that they stand for.

    Positions of no input (a class token, a prompt that was learned) keep theirs to themselves; the receipt says how
    much that is. What a mask hides gets 0, unless `padding` is to keep its scores.
    """
    subject = reading.subject
    score = subject.measured.score
    assert score is not None
    found: dict[str, Tensor] = {}
    nowhere: list[str] = []
    for stream, numbers in at.items():
        if stream in state and numbers is not None and bool((numbers == LOST).any() & (numbers > 0).any()):
            raise _untold(stream)
    aside = {stream: _beside(reading, scores, at.get(stream)) for stream, scores in state.items()}
    for key, value in subject.measured.values.items():
        name = input_of(key)
        streams = [s for s in state if name in s and not any(name in other and s < other for other in state)]
        placed = [s for s in streams if (numbers := at.get(s)) is not None and reading.tokens.one(name, numbers)]
        first = not any(input_of(k) == name for k in found)
        if placed and first:
            scores = state[placed[0]].to(score.dtype).expand(-1, score.shape[1], -1)
            found[key] = _on_tokens(reading, name, scores, at[placed[0]], padding)
            continue
        owner = bool(streams) and not any(input_of(k) in streams[0] for k in found)
        if streams and owner and not _told(at.get(streams[0])):
            if len(streams[0] - reading.tokens.shared.keys()) > 1:
                raise _untold(streams[0])
            scores = state[streams[0]].to(score.dtype).expand(-1, score.shape[1], -1)
            found[key] = _laid_out(subject, name, scores, padding)
            continue
        nowhere += [name] if first and name not in reading.tokens.shared else []
        shape = value.shape[1:2] if value.dim() < 4 else value.shape[-2:]
        found[key] = score.new_zeros(len(score), score.shape[1], *shape)
    if not state:
        raise InputError(
            f"{subject.method} found attention in this model, and it cannot be told which positions of it the score "
            "reads.\n  Choose a method that reads no attention, such as occlusion."
        )
    if len(nowhere) == len(found):
        raise InputError(
            f"The positions that the model attends to are of no explained input: {subject.method} has nothing to give "
            f"to {' and '.join(map(repr, nowhere))}.\n  Choose a method that follows the model to its inputs, such as "
            "rollout, or one that reads no attention."
        )
    if nowhere:
        warn(
            f"{subject.method}: {' and '.join(map(repr, nowhere))} has no positions among those that the model attends "
            "to, so its scores are 0: attention does not tell what it does."
        )
    shared = {name: other for name, other in reading.tokens.shared.items() if name in subject.inputs}
    return Answer(
        found,
        per_row=reading.per_row | _elsewhere(reading, state, aside),
        overall={"shared_positions": shared} if shared else {},
        keeps_padding=padding,
    )


def _told(at: Tensor | None) -> bool:
    return at is not None and not bool((at == LOST).any())


def _untold(names: Iterable[str]) -> InputError:
    joined = " and ".join(repr(name) for name in sorted(names) if not name.startswith(LEARNED))
    return InputError(
        f"The model attends to positions of {joined} in one sequence, and it cannot be told which are whose: they went "
        "through an op that mixes them, or that was not followed.\n  Choose a method that reads no attention."
    )


def _beside(reading: Reading, scores: Tensor, at: Tensor | None) -> Tensor | None:
    """What positions of no input have, (rows,)."""
    if at is None:
        return None
    given = torch.zeros_like(at, dtype=torch.bool)
    for name in {s.name for s in reading.tokens.sources} & set(reading.subject.inputs):
        for source in reading.tokens.sources:
            given |= source.holds(at) if source.name == name else False
    return (scores.abs() * ~given[:, None]).sum((1, 2)) if not bool(given.all()) else None


def _elsewhere(
    reading: Reading, state: Mapping[Modality, Tensor], aside: Mapping[Modality, Tensor | None]
) -> dict[str, list[Any]]:
    """For the receipt: the share of each row's scores that positions of no input have."""
    missing = [part for part in aside.values() if part is not None]
    whole = torch.stack([scores.abs().sum((1, 2)) for scores in state.values()]).sum(0)
    if reading.dropped is not None and bool((reading.dropped > 1e-6 * whole).any()):
        missing, whole = [*missing, reading.dropped], whole + reading.dropped
    if not missing:
        return {}
    share = torch.stack(missing).sum(0) / whole.clamp(min=torch.finfo(whole.dtype).tiny)
    return {"other_positions": [round(float(part), 6) for part in share]}


def _on_tokens(reading: Reading, name: str, scores: Tensor, at: Tensor | None, padding: bool) -> Tensor:
    """Scores (rows, k, n) of positions as those of an input's tokens, in its order: (rows, k, …)."""
    assert at is not None
    source = reading.tokens.one(name, at)
    assert isinstance(source, Source)
    ours = source.holds(at)
    index = torch.where(ours, (at - source.first) % source.size, 0)[:, None].expand_as(scores)
    found = scores.new_zeros(*scores.shape[:2], source.size).scatter_add(2, index, scores * ours[:, None])
    if len(source.shape) == 1:
        return found if padding else _without_padding(reading.subject, name, found)
    return found.unflatten(-1, source.shape)


def _laid_out(subject: Subject, name: str, scores: Tensor, padding: bool) -> Tensor:
    x = subject.inputs[name]
    if subject.roles.get(name) == "ids" or x.dim() < 4:
        frames = x.is_floating_point() and x.dim() == 3 and x.shape[-1] % scores.shape[-1] == 0  # of sound, say
        if x.dim() > 1 and scores.shape[-1] != x.shape[1] and not frames:
            raise InputError(
                f"The model attends to {scores.shape[-1]} positions, and {name!r} has {x.shape[1]}: it cannot be told "
                "which belong together.\n  Choose a method that reads no attention."
            )
        return scores if padding else _without_padding(subject, name, scores)
    extra, high, wide = _by_config(subject, scores.shape[-1], *x.shape[-2:]) or grid(scores.shape[-1], *x.shape[-2:])
    return scores[..., extra : extra + high * wide].unflatten(-1, (high, wide))


def _by_config(subject: Subject, tokens: int, height: int, width: int) -> tuple[int, int, int] | None:
    """As the model's configuration says how large patches are and how many tokens are none."""
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
        f"The model attends to {tokens} positions, which are no grid of patches of a {height} × {width} image.\n"
        "  Choose a method that explains pixels."
    )
