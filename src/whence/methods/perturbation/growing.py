"""Removal in the order of the text, for language models: what stands before the first removed token is computed once.

A decoder's keys and values at a position depend on what comes before it alone. Coalitions are sorted by where they
begin to differ from the input; one cache grows along the input itself, and each pass gets a copy of it and the rest of
the text. Nothing is ever taken off a cache: one with a sliding window has forgotten what it would need.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.blame import out_of_memory
from whence.subject import Subject
from whence.subject.batching import rows_per_pass
from whence.util.frozen import changed
from whence.util.keys import input_of

WORTH = 8192  # tokens of all passes together, from which on it takes less time
_LAYERS = frozenset({"DynamicLayer", "DynamicSlidingWindowLayer"})  # of a cache that grows token by token
_KNOWN = frozenset({"input_ids", "attention_mask", "logits_to_keep", "use_cache"})
_SPREAD = 16  # coalitions of one pass begin within so many parts of the text


@dataclass(frozen=True, eq=False)
class Prefixed:
    """A decoder with one row, whose passes can begin in the middle."""

    subject: Subject  # pinned
    key: str  # of the explained embedding
    length: int  # of the text
    read: int  # positions at the end whose logits are read
    target: Any  # where the scores are among these

    @property
    def latest(self) -> int:
        """The last position at which a pass can begin."""
        return self.length - self.read

    def scored(self, values: Tensor, start: int, cache: Any) -> Subject:
        """The subject of a pass over the rest of the text, (m, length − start, …), after a copy of the cache."""
        many = self.subject.take(torch.zeros(len(values), dtype=torch.long, device="cpu"), bare=True)
        target = (
            self.target.expand(len(values), *self.target.shape[1:]) if torch.is_tensor(self.target) else self.target
        )
        inputs = {**many.inputs, "input_ids": many.inputs["input_ids"][:, start:], "logits_to_keep": self.read}
        if cache is not None:
            inputs |= {"past_key_values": _repeated(cache, len(values)), "use_cache": True}
        return changed(many, inputs=inputs, target=target).valued({self.key: values})

    @torch.no_grad()
    def grown(self, cache: Any, begin: int, end: int) -> Any:
        """The cache with the input's own tokens up to `end`."""
        if begin == end:
            return cache
        ids = self.subject.inputs["input_ids"][:, begin:end]
        more = {} if cache is None else {"past_key_values": cache}
        mask = torch.ones(1, end, dtype=torch.long, device=ids.device)
        given = self.subject.model(input_ids=ids, attention_mask=mask, use_cache=True, logits_to_keep=1, **more)
        self.subject.record.forwards += 1
        return given.past_key_values


def prefixed(subject: Subject, evaluations: int) -> Prefixed | str | None:
    """How passes of a subject can begin in the middle, why they cannot, or None if that need not be said."""
    forward = getattr(subject.model, "forward", None)
    if forward is None or subject.at is not None or "past_key_values" not in (taken := _parameters(forward)):
        return None
    config = getattr(subject.model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        return "an encoder reads the whole text before the decoder begins"
    if "logits_to_keep" not in taken:
        return f"{type(subject.model).__name__} takes no logits_to_keep"
    keys = list(subject.values)
    if subject.rows != 1 or subject.whole or [input_of(key) for key in keys] != ["input_ids"]:
        return "it is for one text at a time, explained by its tokens"
    if not _KNOWN.issuperset(subject.inputs) or not bool(
        torch.as_tensor(subject.inputs["attention_mask"], device="cpu").all()
    ):
        return "it is for a text without padding and without further inputs"
    length = subject.inputs["input_ids"].shape[1]
    if evaluations * length < WORTH:
        return None
    kept, target = subject.inputs.get("logits_to_keep"), subject.target
    if isinstance(kept, int) and kept > 0:
        found = Prefixed(subject, keys[0], length, kept, target)
    elif torch.is_tensor(target) and target.shape[-1] == 2 and int(target.min()) >= 0:
        first = int(target[..., 0].min())
        found = Prefixed(subject, keys[0], length, length - first, target - target.new_tensor([first, 0]))
    else:
        return "a target function may read any position"
    cache = found.grown(None, 0, 1)
    return found if _grows(cache, 1) else f"its cache is {type(cache).__name__}, which does not hold every token"


def run_in_order(
    how: Prefixed, keep: Callable[[Tensor], Tensor], count: int, reference: Tensor, score: Callable[[Subject], Any]
) -> Iterator[tuple[Tensor, Any]]:
    """`score` of coalitions, some at a time: yields their numbers and what it gave.

    `keep` maps numbers (m,) to bool (m, length), False where the reference is put.
    """
    begins = torch.cat([_first(keep(some)) for some in torch.arange(count, device="cpu").split(256)])
    begins = begins.clamp(max=how.latest)
    x, order, cache, grown = how.subject.values[how.key], begins.argsort(stable=True), None, 0
    while len(order):
        start = int(begins[order[0]])
        near = int((begins[order] <= start + how.length // _SPREAD).sum())
        some = order[: min(near, rows_per_pass(how.subject, 0.25))]
        cache, grown = how.grown(cache, grown, start), start
        there = keep(some)[:, start:].to(x.device)
        values = torch.where(there[..., None], x[:, start:], reference[:, start:])
        try:
            found = score(how.scored(values, start, cache))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error) or len(some) < 2:
                raise
            how.subject.record.max_rows = len(some) // 2
            continue
        order = order[len(some) :]
        yield some, found


def _grows(cache: Any, length: int) -> bool:
    """Whether a cache holds the keys and values of so many tokens, and nothing else."""
    layers = getattr(cache, "layers", None)
    if not layers or not {type(layer).__name__ for layer in layers} <= _LAYERS:
        return False
    return int(cache.get_seq_length()) == length


def _first(keep: Tensor) -> Tensor:
    """The first position (m,) that is not kept; the length, where all are."""
    gone = ~keep
    return torch.where(gone.any(1), gone.int().argmax(1), keep.shape[1])


def _repeated(cache: Any, times: int) -> Any:
    """A copy of a cache of one row whose tensors are views with so many rows: what enters a pass is copied there."""
    memo = {
        id(value): value.expand(times, *value.shape[1:])
        for layer in cache.layers
        for value in vars(layer).values()
        if isinstance(value, Tensor) and value.dim() == 4
    }
    return copy.deepcopy(cache, memo)


def _parameters(forward: Callable[..., Any]) -> Mapping[str, Any]:
    return inspect.signature(forward).parameters
