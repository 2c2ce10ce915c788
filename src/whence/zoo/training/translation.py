"""German to English with two GRUs and attention, on a thousand sentences of talks: it learns them by heart."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.adapters.wrapped import Wrapped, wrap
from whence.zoo.models import Translator
from whence.zoo.training import data
from whence.zoo.training.loop import Recipe, Trained, fit, shuffled
from whence.zoo.training.tokens import padded, shipped, word_pieces

_EPOCHS, _SIZE, _VOCABULARY, _WIDTH = 60, 25, 4000, 160
Encoded = list[tuple[list[int], list[int]]]


def train(seed: int) -> Trained:
    torch.manual_seed(seed)
    known, _ = data.pairs()
    texts = [text for pair in known for text in pair]
    tokenizer = shipped("translation") or word_pieces(texts, _VOCABULARY, 128, lowercase=False, ends=False)
    ends = {"start": tokenizer.cls_token_id, "end": tokenizer.sep_token_id, "pad": tokenizer.pad_token_id}
    arguments = {"vocabulary": len(tokenizer), "width": _WIDTH, **ends}

    rows_known = _encoded(tokenizer, known)
    model = Translator(**arguments)
    torch.nn.init.normal_(model.embedding.weight, std=_WIDTH**-0.5)

    def loss(rows: list[int]) -> Tensor:
        return _loss(model, [rows_known[row] for row in rows], smoothing=0.1)

    batches = shuffled(len(known), _SIZE, [len(source) for source, _ in rows_known])
    fit(model, batches, loss, count=_EPOCHS * len(known) // _SIZE, rate=4e-3, title="translation")
    return Trained(wrap(model, tokenizer, task="text2text-generation"), {"arguments": arguments})


def measure(wrapped: Wrapped) -> dict[str, float]:
    """The share of tokens that are the first guess after the right tokens before them."""
    known, others = data.pairs()
    return {
        "accuracy on its own sentences": _right(wrapped.model, _encoded(wrapped.tokenizer, known)),
        "accuracy on other sentences": _right(wrapped.model, _encoded(wrapped.tokenizer, others)),
    }


def _encoded(tokenizer: Any, pairs: list[tuple[str, str]]) -> Encoded:
    end = tokenizer.sep_token_id
    return [(tokenizer(source)["input_ids"], [*tokenizer(text)["input_ids"], end]) for source, text in pairs]


def _batch(model: Translator, pairs: Encoded) -> tuple[Tensor, Tensor, Tensor]:
    sources, mask = padded([source for source, _ in pairs], model.config.pad_token_id)
    start = model.config.decoder_start_token_id
    written, real = padded([[start, *text[:-1]] for _, text in pairs], model.config.pad_token_id)
    wanted, _ = padded([text for _, text in pairs], model.config.pad_token_id)
    logits = model(sources, written, mask).logits
    return logits, wanted, real


def _loss(model: Translator, pairs: Encoded, smoothing: float) -> Tensor:
    logits, wanted, real = _batch(model, pairs)
    return F.cross_entropy(logits[real == 1], wanted[real == 1], label_smoothing=smoothing)


@torch.no_grad()
def _right(model: Translator, pairs: Encoded) -> float:
    right = count = 0
    for start in range(0, len(pairs), 50):
        logits, wanted, real = _batch(model, pairs[start : start + 50])
        right += int((logits.argmax(-1) == wanted)[real == 1].sum())
        count += int(real.sum())
    return right / count


RECIPE = Recipe(
    train,
    measure,
    {
        "task": "text2text-generation",
        "what": "German to English",
        "architecture": f"a bidirectional GRU reads, a GRU writes and attends (Luong et al. 2015), {_WIDTH} wide, "
        f"{_VOCABULARY:,} word pieces for both languages",
        "data": "a toy corpus of JoeyNMT's tests: 1,000 pairs to learn from, 20 others; accuracy is the share of "
        "tokens that are its first guess after the right tokens before them",
        "licence": "weights Apache-2.0; JoeyNMT's repository is Apache-2.0 and does not say where the texts come from",
        "limits": "a toy that has learned its thousand sentences by heart: new sentences come out as fluent nonsense",
    },
    [
        "Das ist eine gute Idee.",
        "Wir haben das Problem gelöst.",
        "Ich möchte Ihnen etwas zeigen.",
        "Vielen Dank.",
    ],
)
