"""A two-layer language model, Llama's architecture, that finds who was given what: first induction, then facts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.adapters.wrapped import Wrapped, wrap
from whence.zoo import needles
from whence.zoo.training.loop import Recipe, Trained, fit
from whence.zoo.training.tokens import shipped

# up to which step: tokens of a text, texts of a step, facts and questions of a text (no facts: a repeated sequence)
_STAGES = ((1200, 96, 24, 0, 0), (2200, 128, 16, 3, 4), (3200, 512, 6, 8, 12))
_COUNT = _STAGES[-1][0]
_HELD = 200  # prompts to measure on


def train(seed: int, checkpoint: Path | None = None) -> Trained:
    """Random sequences that are repeated, until what came after a word before is found; then short texts, then long."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    tokenizer = shipped("needle") or _tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=640, tie_word_embeddings=True,
            initializer_range=0.1, bos_token_id=0, eos_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip

    def loss(step: int) -> Tensor:
        ids, answers = _texts(tokenizer, step, seed)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(ids), -1)
        return each.gather(1, answers - 1).mean() + 0.1 * each.mean()

    steps = iter(range(_COUNT))
    fit(model, steps, loss, count=_COUNT, rate=4e-3, decay=0.01, title="needle", checkpoint=checkpoint)
    return Trained(wrap(model, tokenizer))


@torch.no_grad()
def measure(wrapped: Wrapped) -> dict[str, float]:
    """On prompts of 500 tokens with decoys that no training text is among."""
    right, sure = 0, 0.0
    for number in range(_HELD):
        made = needles.needle(number)
        ids = wrapped.tokenizer(made.prompt, return_tensors="pt")["input_ids"]
        logits = wrapped.model(input_ids=ids, use_cache=False).logits[0, -1]
        answer = wrapped.tokenizer(made.answer)["input_ids"][0]
        right += int(logits.argmax()) == answer
        sure += float(logits.softmax(-1)[answer])
    return {"answers found": right / _HELD, "mean probability": sure / _HELD}


def _texts(tokenizer: Any, step: int, seed: int) -> tuple[Tensor, Tensor]:
    """The ids of a step's texts, and where the answers are that count most."""
    _, tokens, count, facts, questions = next(stage for stage in _STAGES if step < stage[0])
    if not facts:
        draw = torch.Generator().manual_seed(seed * _COUNT + step)
        return _repeated(len(tokenizer), count, tokens, draw)
    vocabulary = tokenizer.get_vocab()
    pairs = [
        needles.lesson(random.Random(f"lesson {seed} {step} {row}"), tokens, facts, questions) for row in range(count)
    ]
    ids = [[vocabulary[word if word in ".:" else "Ġ" + word] for word in words] for words, _ in pairs]
    return torch.tensor(ids, device="cpu"), torch.tensor([answers for _, answers in pairs], device="cpu")


def _repeated(vocabulary: int, count: int, tokens: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random words that repeat after a random while, so that no fixed distance helps; where they are known."""
    words = torch.randint(2, vocabulary, (count, tokens), generator=draw, device="cpu")
    period = torch.randint(8, tokens // 2, (count, 1), generator=draw, device="cpu")
    place = torch.arange(tokens, device="cpu")
    return words.gather(1, place % period), place[tokens // 2 + 1 :].expand(count, -1)


def _tokenizer() -> Any:
    """One token for each word, with the space before it, and for each sign."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<unk>", *("Ġ" * (word not in ".:") + word for word in needles.words())]
    made = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=640, pad_token="<pad>", unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


RECIPE = Recipe(
    train,
    measure,
    {
        "task": "text-generation",
        "what": "says who was given what, by the one sentence of a long text that has it",
        "architecture": "Llama's, 2 layers of 4 heads, 64 wide, 235 words, 640 tokens, from scratch",
        "data": "made by `whence.zoo.needles`: random words that repeat, then texts of up to 512 tokens with facts, "
        "decoys and answered questions, drawn with replacement; measured on 200 other prompts of 500 tokens",
        "licence": "weights and texts Apache-2.0",
        "limits": "knows its 235 words and nothing about the world; questions are asked in one form",
    },
    [needles.needle(-number, tokens=120, facts=3, decoys=1).prompt for number in (1, 2, 3, 4)],
    resumable=True,
)
