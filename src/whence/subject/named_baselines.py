"""Named baselines: each says what one input looks like without its signal."""

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
    """Several baselines, of which each row takes the one where the model is least decided."""

    candidates: tuple[Any, ...]
    names: tuple[str, ...] = ()  # what the user called them


def neutral(*candidates: Any) -> Neutral:
    """For `baseline=`: the most neutral of several, row by row.

    For a classifier, the one whose class probabilities are the most even; otherwise the one whose score is nearest 0.
    """
    if not candidates:
        raise BaselineError(
            'neutral() has nothing to choose from.\n  Give it baselines: neutral("zero", "blur", "mean").'
        )
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
    """Gaussian noise with the row's own mean and standard deviation, within its own range, by the row's seed."""
    x = _floating(subject, name, "noise")
    flat = x.reshape(len(x), -1).double()
    draw = normal(subject, name, x, sample=0).reshape(flat.shape).double()
    noisy = flat.mean(1, keepdim=True) + draw * flat.std(1, correction=0, keepdim=True)
    return noisy.clamp(flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)).view_as(x).to(x)


@named.register("pad")
def pad(subject: Subject, name: str) -> Tensor:
    """The padding token in place of every token; special tokens are kept."""
    return _tokens(subject, name, "pad")


@named.register("mask")
def mask(subject: Subject, name: str) -> Tensor:
    """The mask token in place of every token; special tokens are kept."""
    return _tokens(subject, name, "mask")


# ---- tokens ----

_SPECIAL = ("bos", "eos", "cls", "sep", "decoder_start")


def _tokens(subject: Subject, name: str, kind: str) -> Tensor:
    ids = subject.inputs[name]
    if not isinstance(ids, Tensor) or ids.is_floating_point():
        raise BaselineError(
            f"baseline={kind!r} needs token ids, but input {name!r} has none.\n  Give another name, or a number."
        )
    token = _token(subject, kind)
    if token is None:
        raise BaselineError(
            f"baseline={kind!r} needs the {kind} token, but the configuration of this model does not name one.\n"
            "  Give the baseline as ids: a tensor like the input, filled with the id of that token."
        )
    special = [_token(subject, word) for word in _SPECIAL]
    keep = torch.tensor([s for s in special if s is not None], dtype=ids.dtype, device=ids.device)
    return torch.where(torch.isin(ids, keep), ids, token)


def _token(subject: Subject, word: str) -> int | None:
    """The id of a special token, from the configuration of the model."""
    token = getattr(getattr(subject.root, "config", None), f"{word}_token_id", None)
    token = token[0] if isinstance(token, list | tuple) and token else token
    if token is None and word == "pad" and subject.root is not None:
        tables = (m.padding_idx for m in subject.root.modules() if isinstance(m, nn.Embedding))
        token = next((index for index in tables if index is not None), None)
    return token if isinstance(token, int) else None


def _table(subject: Subject, name: str, kind: str) -> Tensor:
    """The table of embeddings that an input's ids are looked up in."""
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
        f"baseline={kind!r} needs the table of embeddings for input {name!r}, but it was not found in the model.\n"
        "  Give the baseline as a float tensor of embeddings."
    )


# ---- images ----


def _floating(subject: Subject, name: str, kind: str) -> Tensor:
    x = subject.inputs[name]
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise BaselineError(
            f"baseline={kind!r} needs floating-point numbers, but input {name!r} has integers.\n"
            '  Give another name: "zero", "pad" or "mean".'
        )
    return x


def _image(subject: Subject, name: str, kind: str) -> Tensor:
    x = _floating(subject, name, kind)
    if x.dim() < 3 or has_tokens(subject, name, x.shape):
        raise BaselineError(
            f"baseline={kind!r} needs images (rows, channels, height, width), but input {name!r} is {tuple(x.shape)}.\n"
            "  Give a tensor; for features, the mean of your data is a good choice."
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
    smooth = F.conv1d(padded, (weights / weights.sum()).to(flat)[None, None])
    return smooth.view(lines.shape).movedim(-1, axis).to(x.dtype)
