"""A small BERT that tells good reviews of films from bad ones, trained here on windows of the reviews."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import whence
from reproductions.report import Report
from reproductions.texts import LABELS, bert_tiny
from whence.adapters import tokens as tokenization
from whence.adapters.wrapped import Wrapped
from whence.subject.logits import find_logits
from whence.zoo.training.loop import fit, shuffled
from whence.zoo.training.tokens import padded

EPOCHS, BATCH, RATE, HIDDEN_WORDS = 1, 16, 3e-4, 0.15


def trained(report: Report, reviews: Sequence[dict[str, Any]], window: int) -> Wrapped:
    """bert-tiny with a new head; `window` tokens are read at once. What was learned is kept, and learning goes on."""
    from transformers import AutoTokenizer, BertForSequenceClassification

    torch.manual_seed(0)
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    model = BertForSequenceClassification.from_pretrained(bert_tiny(), **names)
    torch.nn.init.normal_(model.classifier.weight, std=0.02)
    torch.nn.init.zeros_(model.classifier.bias)
    tokenizer = AutoTokenizer.from_pretrained(bert_tiny(), model_max_length=window)
    learn = partial(_learn, report, model, tokenizer, reviews, window)
    report.learned("bert-tiny", model, learn, model, reviews, window)
    return whence.wrap(model.eval(), tokenizer, long="window")


def _learn(report: Report, model: Any, tokenizer: Any, reviews: Sequence[dict[str, Any]], window: int) -> None:
    """Each window is a row with the label of its review; some words are hidden, so that none is all."""
    parts = tokenization.tokens_of_all(tokenizer, [(review["text"],) for review in reviews], window, "window")
    rows = [
        (part.ids["input_ids"], review["label"]) for review, own in zip(reviews, parts, strict=True) for part in own
    ]
    special = torch.tensor(tokenizer.all_special_ids)

    def loss(batch: list[int]) -> Tensor:
        with torch.random.fork_rng(devices=[]):  # a run that was stopped goes on with the same draws
            torch.manual_seed(sum(batch))
            ids, mask = padded([rows[i][0] for i in batch])
            hidden = (torch.rand(ids.shape) < HIDDEN_WORDS) & ~torch.isin(ids, special)
            scores = model(input_ids=ids.masked_fill(hidden, tokenizer.mask_token_id), attention_mask=mask).logits
        return F.cross_entropy(scores, torch.tensor([rows[i][1] for i in batch]))

    count = EPOCHS * len(rows) // BATCH
    checkpoint = report.kept("learning.pt", model, reviews, window)
    fit(model, shuffled(len(rows), BATCH), loss, count=count, rate=RATE, title="reviews", checkpoint=checkpoint)


@torch.no_grad()
def accuracy(wrapped: Wrapped, reviews: Sequence[dict[str, Any]]) -> float:
    """The share of reviews whose label has the highest logit, on average over a review's windows."""
    right = 0
    for request in wrapped.requests([review["text"] for review in reviews], None):
        scores = find_logits(request.model(**request.inputs))
        found = scores.mean(0, keepdim=True) if request.windows else scores
        right += int((found.argmax(1) == torch.tensor([reviews[row]["label"] for row in request.rows])).sum())
    return right / len(reviews)
