"""Language models as rows of an evaluation: does the model still write the answer without some of its prompt?

The answer is the original one throughout (teacher forcing). A row has one score: the logit of the probability p of the
answer's tokens, their geometric mean, so that "probability" is p, "log_probability" is ln p per token, and answers of
different lengths are comparable. What is removed are tokens of the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whence.adapters import tokens as tokenization
from whence.adapters.answers import Span
from whence.adapters.chats import conversations
from whence.adapters.generation import one_text, wanted_ids
from whence.adapters.requests import text_facts
from whence.adapters.wrapped import Wrapped
from whence.errors import InputError

TASK = "text-generation"
_LEAST = 1e-15  # how near to 1 a probability may come


class Writes(nn.Module):
    """The logit of the answer's mean probability, (rows, 1), for prompts and answers of any lengths.

    `answer` has one more than each id, and 0 after the end; prompts are padded on the right.
    """

    def __init__(self, lm: nn.Module) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, input_ids: Tensor, attention_mask: Tensor, answer: Tensor) -> Tensor:
        wanted = [row[row > 0] - 1 for row in answer]
        prompts = [ids[mask.bool()] for ids, mask in zip(input_ids, attention_mask, strict=True)]
        whole = [torch.cat([prompt, own[:-1]]) for prompt, own in zip(prompts, wanted, strict=True)]
        length = max(map(len, whole))
        ids = torch.stack([nn.functional.pad(row, (0, length - len(row))) for row in whole])
        mask = torch.stack([(torch.arange(length, device=ids.device) < len(row)).long() for row in whole])
        logits = self.lm(input_ids=ids, attention_mask=mask, use_cache=False).logits
        found = []
        for row, (prompt, own) in enumerate(zip(prompts, wanted, strict=True)):
            there = logits[row, len(prompt) - 1 : len(prompt) - 1 + len(own)].double().log_softmax(-1)
            mean = there.gather(1, own[:, None]).mean().clamp(max=-_LEAST)
            found.append(mean - torch.log(-torch.expm1(mean)))
        return torch.stack(found)[:, None]


def written(model: Wrapped, row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """A row's tensors, its facts, and the prompt: a text or a conversation, alone or with the answer beside it."""
    given = row["inputs"]
    prompt, answer = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    text = conversations(model.tokenizer, prompt)
    if not isinstance(text, str):
        raise InputError(
            f"A row of a language model is {type(text).__name__}.\n"
            "  Give a prompt, a conversation (a list of messages), or a pair of one of them and the answer."
        )
    answer = answer or getattr(text, "answer", None) or model.complete(one_text((text,)))
    wanted = wanted_ids(model, answer, text)
    limit = tokenization.limit_of(model.tokenizer, model.model.config)
    (tokens,) = tokenization.tokens_of(model.tokenizer, (text,), limit, "error", windows=False)
    told = {name: values[0] for name, values in text_facts([tokens], len(tokens)).items()}
    told |= {"answer_tokens": len(wanted), "target": Span(of=answer)}
    inputs = {
        "input_ids": torch.tensor([tokens.ids["input_ids"]], device=model.device),
        "attention_mask": torch.ones(1, len(tokens), dtype=torch.long, device=model.device),
        "answer": torch.tensor([wanted], device=model.device) + 1,
    }
    return inputs, told, prompt


_WRITES: dict[int, tuple[Any, Writes]] = {}


def writes(lm: nn.Module) -> Writes:
    """The same module for the same model, so that rows go together."""
    known = _WRITES.get(id(lm))
    if known is None or known[0] is not lm:
        _WRITES.clear()  # one model at a time is kept
        _WRITES[id(lm)] = (lm, Writes(lm).train(lm.training))
    return _WRITES[id(lm)][1]
