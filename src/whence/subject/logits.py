"""The tensor of scores in whatever a model returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from numbers import Real
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from whence.errors import ModelError

_USUAL_NAMES = ("logits", "logits_per_image", "prediction_logits", "start_logits", "last_hidden_state")
_MOST_DESCRIBED = 12  # entries of an output


def find_logits(output: Any) -> Tensor:
    """The tensor of scores in a model's output: a tensor, tuple, dict, dataclass or ModelOutput.

    By name: one of the usual names, or else the only floating-point tensor that is not a loss. In a sequence: the first
    floating-point tensor.
    """
    return _chosen(output)[0]


def scores_from(output: Any) -> dict[str, str]:
    """For the receipt: which of several floating-point tensors the scores were read from; nothing if there is one."""
    if isinstance(output, Real):
        return {}
    logits, key, others = _chosen(output)
    if not others:
        return {}
    return {"scores_from": f"{key} {tuple(logits.shape)} of the {type(output).__name__}; not read: {', '.join(others)}"}


def describe(output: Any) -> str:
    """What a model returned, in words."""
    if isinstance(output, Tensor):
        return f"a {output.dtype} tensor of shape {tuple(output.shape)}"
    items = _items(output)
    if items is None:
        return type(output).__name__
    entries = [f"{key!r} {_kind(item)}" for key, item in list(items.items())[:_MOST_DESCRIBED]]
    more = ", …" if len(items) > _MOST_DESCRIBED else ""
    return f"{type(output).__name__} of {', '.join(entries) + more or 'nothing'}"


def _chosen(output: Any) -> tuple[Tensor, str, list[str]]:
    """The tensor of scores, its key as it is written, and the keys of the other floating-point tensors."""
    if isinstance(output, Tensor):
        candidates = {"": output} if _holds_scores(output) else {}
    else:
        items = (_items(output) or {}).items()
        candidates = {repr(key): item for key, item in items if _holds_scores(item) and "loss" not in str(key)}
    if not candidates:
        raise ModelError(
            f"The model returned {describe(output)}, which has no tensor of scores.\n"
            "  Return a floating-point tensor (rows, classes), or give target= a function from the output to one score "
            "per row."
        )
    by_name = _by_name(output) is not None
    usual = [repr(name) for name in _USUAL_NAMES if repr(name) in candidates] if by_name else []
    if by_name and not usual and len(candidates) > 1:
        first = next(iter(candidates))
        raise ModelError(
            f"The model returned {describe(output)}: any of {', '.join(candidates)} may be the scores.\n"
            f"  Say which with a function, such as target=lambda out: out{_access(output, first)}[:, 0], "
            "or explain a function around the model that returns one tensor."
        )
    key = next(iter(usual or candidates))
    return candidates[key], key, [other for other in candidates if other != key]


def _items(output: Any) -> Mapping[Any, Any] | None:
    """The entries of an output by name or by position; None if it is not a container."""
    named = _by_name(output)
    if named is None and isinstance(output, Sequence) and not isinstance(output, str | bytes):
        return dict(enumerate(output))
    return named


def _by_name(output: Any) -> Mapping[str, Any] | None:
    """The entries of an output by name; None if they have none."""
    if isinstance(output, Tensor):
        return None
    if hasattr(output, "_asdict"):  # a named tuple
        return dict(output._asdict())
    if isinstance(output, Mapping):
        return output
    if is_dataclass(output) and not isinstance(output, type):
        return {f.name: getattr(output, f.name, None) for f in fields(output)}
    return vars(output) if isinstance(output, SimpleNamespace) else None


def _holds_scores(item: Any) -> bool:
    return isinstance(item, Tensor) and item.is_floating_point() and item.dim() > 0


def _kind(item: Any) -> str:
    return f"{tuple(item.shape)}" if _holds_scores(item) else f"({type(item).__name__})"


def _access(output: Any, key: str) -> str:
    """How an entry is accessed in Python: ["heads"] or .heads."""
    return f"[{key}]".replace("'", '"') if isinstance(output, Mapping) else f".{key.strip(chr(39))}"
