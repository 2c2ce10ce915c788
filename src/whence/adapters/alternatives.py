"""What else could stand in an answer: the likeliest tokens at each of its places, after the original ones before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from whence.adapters.decoding import texts_of
from whence.adapters.generation import started, text_and_answer, wanted_ids
from whence.engine import blame
from whence.engine.scope import scope

if TYPE_CHECKING:
    from whence.adapters.wrapped import Wrapped


@torch.no_grad()
def alternatives(wrapped: Wrapped, prompt: str, answer: Any, k: int = 4) -> list[dict[str, Any]]:
    """For each token of the answer its probability, and the k likeliest tokens with theirs: one forward pass."""
    beside = bool(wrapped.entry.text_target)
    wanted = wanted_ids(wrapped, answer, prompt)
    inputs, _, first, _ = (started if beside else text_and_answer)(wrapped, prompt, wanted)
    with scope(wrapped.model):
        logits = blame.called(wrapped.model, inputs, "dict", wrapped.model).logits[0, first : first + len(wanted)]
    shares = logits.double().softmax(-1)
    best = shares.topk(min(k, shares.shape[-1]), -1)
    names, own_names = (texts_of(wrapped.tokenizer, ids) for ids in (best.indices.flatten().tolist(), wanted))
    found = []
    for place, token in enumerate(wanted):
        own = slice(place * best.indices.shape[1], (place + 1) * best.indices.shape[1])
        others = zip(names[own], best.values[place].tolist(), best.indices[place].tolist(), strict=True)
        found.append({
            "token": own_names[place], "probability": float(shares[place, token]),
            "others": [[name, p] for name, p, number in others if number != token],
        })  # fmt: skip
    return found
