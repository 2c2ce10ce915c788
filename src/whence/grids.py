"""From scores of positions to the explained inputs: one per token, or the patch grid of an image."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from whence.engine.streams import Stream
from whence.errors import InputError
from whence.subject import Subject

_MOST_EXTRA = 9  # class, distillation and register tokens come first


def on_inputs(subject: Subject, state: Mapping[Stream, Tensor], *, padding: bool = False) -> dict[str, Tensor]:
    """Scores (rows, k, n) of each stream's positions as scores of the inputs they were born from.

    A stream that was born from several inputs gives its scores to the first; the others get 0. So does what a mask
    hides, unless `padding` is to keep its scores.
    """
    subject.facts.padding = padding
    score = subject.facts.score
    assert score is not None
    found: dict[str, Tensor] = {}
    for key, value in subject.facts.values.items():
        name = key.partition("#")[0]
        stream = next((s for s in state if name in s), None)
        owner = stream is not None and not any(k.partition("#")[0] in stream for k in found)
        if stream is not None and owner:
            scores = state[stream].to(score.dtype).expand(-1, score.shape[1], -1)
            found[key] = _laid_out(subject, name, scores)
        else:
            shape = value.shape[:2] if value.dim() > 2 else value.shape
            found[key] = score.new_zeros(len(score), score.shape[1], *shape[1:])
    return found


def _laid_out(subject: Subject, name: str, scores: Tensor) -> Tensor:
    x = subject.inputs[name]
    if subject.roles.get(name) == "ids" or x.dim() < 4:
        frames = x.is_floating_point() and x.dim() == 3 and x.shape[-1] % scores.shape[-1] == 0  # of sound, say
        if x.dim() > 1 and scores.shape[-1] != x.shape[1] and not frames:
            raise InputError(
                f"The model attends to {scores.shape[-1]} positions, and {name!r} has {x.shape[1]}: it cannot be told "
                "which belong together.\n  Choose a method that reads no attention."
            )
        return _without_padding(subject, name, scores)
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
    real = None if subject.facts.padding else subject.real(name, (len(scores), scores.shape[-1]))
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
