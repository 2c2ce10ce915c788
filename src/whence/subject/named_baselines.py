"""The baselines that have a name: each says what one input looks like without its signal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.errors import BaselineError
from whence.registry import Registry
from whence.subject.masks import has_tokens
from whence.subject.noise import normal
from whence.subject.subject import Subject

named: Registry[Callable[[Subject, str], Any]] = Registry("baseline")


@dataclass(frozen=True)
class Neutral:
    """Several baselines, of which each row takes the one that the model is least decided about."""

    candidates: tuple[Any, ...]
    names: tuple[str, ...] = ()  # what the user called them


def neutral(*candidates: Any) -> Neutral:
    """For `baseline=`: the most neutral of several, row by row.

    For a classifier, the one whose class probabilities are the most even; otherwise the one whose score is nearest 0.
    """
    if not candidates:
        raise BaselineError('There is nothing to choose from.\n  Give some baselines: neutral("zero", "blur", "mean").')
    return Neutral(candidates, tuple(map(str, candidates)))


@named.register("zero")
def zero(subject: Subject, name: str) -> float:
    """0 everywhere; for ids, an embedding of zeros."""
    return 0.0


@named.register("black")
def black(subject: Subject, name: str) -> Tensor:
    """Each channel's darkest value in the same image."""
    x = _image(subject, name, "black")
    return x.flatten(2).amin(2).view(*x.shape[:2], *[1] * (x.dim() - 2)).expand_as(x)


@named.register("mean")
def mean(subject: Subject, name: str) -> Any:
    """An image's mean colour; for ids, the mean of all embeddings."""
    if subject.roles.get(name) == "ids":
        return _table(subject, name, "mean").mean(0).expand(*subject.inputs[name].shape, -1)
    x = _image(subject, name, "mean")
    return x.flatten(2).mean(2).view(*x.shape[:2], *[1] * (x.dim() - 2)).expand_as(x)


@named.register("blur")
def blur(subject: Subject, name: str) -> Tensor:
    """The image under a Gaussian blur of a tenth of its longer side."""
    return blurred(_image(subject, name, "blur"))


@named.register("noise")
def noise(subject: Subject, name: str) -> Tensor:
    """Gaussian noise with the row's own mean and deviation, within its own range, by the row's seed."""
    x = _floating(subject, name, "noise")
    flat = x.reshape(len(x), -1).double()
    draw = normal(subject, name, x, sample=0).view_as(flat).double()
    found = flat.mean(1, keepdim=True) + draw * flat.std(1, correction=0, keepdim=True)
    return found.clamp(flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)).view_as(x).to(x)


@named.register("pad")
def pad(subject: Subject, name: str) -> Tensor:
    """The padding token in the place of every token; special tokens are kept."""
    return _tokens(subject, name, "pad")


@named.register("mask")
def mask(subject: Subject, name: str) -> Tensor:
    """The mask token in the place of every token; special tokens are kept."""
    return _tokens(subject, name, "mask")


# ---- tokens ----

_SPECIAL = ("bos", "eos", "cls", "sep", "decoder_start")


def _tokens(subject: Subject, name: str, kind: str) -> Tensor:
    ids = subject.inputs[name]
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        raise BaselineError(
            f"The baseline {kind!r} is one of ids, and {name!r} holds none.\n  Name another, or a number."
        )
    token = _token(subject, kind)
    if token is None:
        raise BaselineError(
            f"The baseline {kind!r}: this model's configuration names no {kind} token.\n"
            "  Give the baseline as ids: a tensor like the input with that token's id."
        )
    special = [_token(subject, word) for word in _SPECIAL]
    keep = torch.tensor([s for s in special if s is not None], dtype=ids.dtype, device=ids.device)
    return torch.where(torch.isin(ids, keep), ids, token)


def _token(subject: Subject, word: str) -> int | None:
    """A token's id, as the model's configuration has it."""
    found = getattr(getattr(subject.root, "config", None), f"{word}_token_id", None)
    found = found[0] if isinstance(found, list | tuple) and found else found
    if found is None and word == "pad" and subject.root is not None:
        tables = (m.padding_idx for m in subject.root.modules() if isinstance(m, nn.Embedding))
        found = next((index for index in tables if index is not None), None)
    return found if isinstance(found, int) else None


def _table(subject: Subject, name: str, kind: str) -> Tensor:
    """The embeddings that ids choose from."""
    value = subject.pinned().values.get(name)
    modules = subject.root.modules() if subject.root is not None else ()
    tables = [m.weight.detach() for m in modules if isinstance(m, nn.Embedding) and value is not None]
    ids = subject.inputs[name]
    most = int(ids.max())
    for table in tables:
        assert value is not None
        fits = table.shape[1] == value.shape[-1] and len(table) > most
        if fits and torch.allclose(table[ids].to(value), value, rtol=1e-3, atol=1e-6):
            return table
    raise BaselineError(
        f"The baseline {kind!r}: the table that {name!r} is looked up in was not found.\n"
        "  Give the baseline as a float tensor of embeddings."
    )


# ---- images ----


def _floating(subject: Subject, name: str, kind: str) -> Tensor:
    x = subject.inputs[name]
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise BaselineError(
            f'The baseline {kind!r} is one of numbers, and {name!r} holds ids.\n  Name another: "zero", "pad", "mean".'
        )
    return x


def _image(subject: Subject, name: str, kind: str) -> Tensor:
    x = _floating(subject, name, kind)
    if x.dim() < 3 or has_tokens(subject, name, x.shape):
        raise BaselineError(
            f"The baseline {kind!r} is one of images (rows, channels, height, width): {name!r} is {tuple(x.shape)}.\n"
            "  Give a tensor: for features, the mean of your data is a good one."
        )
    return x


def blurred(x: Tensor) -> Tensor:
    """Images under a Gaussian blur of a tenth of their longer side."""
    for axis in range(2, x.dim()):
        x = _blurred(x, axis, max(x.shape[2:]) / 10)
    return x


def _blurred(x: Tensor, axis: int, sigma: float) -> Tensor:
    """A Gaussian along one axis, the border repeated."""
    reach = min(math.ceil(3 * sigma), 10 * x.shape[axis])
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float64, device=x.device)
    weights = (-0.5 * (offsets / sigma) ** 2).exp()
    lines = x.movedim(axis, -1)
    flat = lines.reshape(-1, 1, lines.shape[-1]).to(torch.promote_types(x.dtype, torch.float32))
    padded = F.pad(flat, (reach, reach), mode="replicate")
    found = F.conv1d(padded, (weights / weights.sum()).to(flat)[None, None])
    return found.view(lines.shape).movedim(-1, axis).to(x.dtype)
