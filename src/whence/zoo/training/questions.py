"""A classifier of questions by what they ask for, on TREC: Kim's CNN, whose word vectors begin as MiniLM's."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.adapters.wrapped import Wrapped, wrap
from whence.zoo.models import QuestionCnn
from whence.zoo.training import data
from whence.zoo.training.loop import Recipe, Trained, accuracy, fit, shuffled
from whence.zoo.training.tokens import borrowed, padded, shipped, word_pieces

LABELS = ("DESCRIPTION", "ENTITY", "ABBREVIATION", "HUMAN", "LOCATION", "NUMERIC")
_EPOCHS, _SIZE = 8, 32


def train(seed: int) -> Trained:
    torch.manual_seed(seed)
    known = data.questions("train")
    tokenizer = shipped("questions") or word_pieces([text for text, _ in known], 5000, 64, ends=False)
    texts = tokenizer([text for text, _ in known])["input_ids"]
    labels = torch.tensor([label for _, label in known], device="cpu")
    arguments = {"vocabulary": len(tokenizer), "width": 96, "filters": 96, "labels": len(LABELS)}
    model = QuestionCnn(**arguments)
    model.embedding.weight.data = borrowed(tokenizer, arguments["width"], 0.3)

    def loss(rows: list[int]) -> Tensor:
        ids, mask = padded([texts[row] for row in rows])
        dropped = (torch.rand(ids.shape, device="cpu") < 0.1) & (mask == 1)
        scores = model(ids.masked_fill(dropped, tokenizer.unk_token_id), mask)
        return F.cross_entropy(scores, labels[rows], label_smoothing=0.05)

    count = _EPOCHS * len(texts) // _SIZE
    fit(model, shuffled(len(texts), _SIZE), loss, count=count, rate=2e-3, title="questions")
    wrapped = wrap(model, tokenizer, task="text-classification", labels=LABELS)
    return Trained(wrapped, {"arguments": arguments, "labels": LABELS})


def measure(wrapped: Wrapped) -> dict[str, float]:
    return {"test accuracy": accuracy(wrapped, data.questions("test"))}


RECIPE = Recipe(
    train,
    measure,
    {
        "task": "text-classification",
        "what": "what kind of answer a question asks for",
        "architecture": "Kim's (2014) CNN: 96 filters each of width 2, 3 and 4 over 5,000 word pieces, whose "
        "vectors begin as all-MiniLM-L6-v2's on their 96 principal axes",
        "data": "TREC questions (Li and Roth 2002): 5,452 to learn from, 500 to measure on (11 of them are in both)",
        "licence": "weights Apache-2.0; the questions are a research release without a stated licence, MiniLM is "
        "Apache-2.0",
        "limits": "six coarse classes (dates are NUMERIC); leans on the first words of a question; anything that is no "
        "question gets a class too",
    },
    [
        "How many moons does Jupiter have?",
        "When was the first bicycle built?",
        "Who painted the ceiling of the Sistine Chapel?",
        "What city lies at the mouth of the Elbe?",
        "What does DNA stand for?",
        "Why do cats purr?",
    ],
)
