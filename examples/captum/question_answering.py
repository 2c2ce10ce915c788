"""Which words does an answer's span come from? A small BERT for extractive question answering, with Captum's classes.

The network is trained here, in seconds, on made-up contexts of two or three facts and a question about one of them.
Its start and its end are explained by the embeddings, and its start by the conductance of every layer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from beside import main
from matplotlib import pyplot
from torch import Tensor
from transformers import BertConfig, BertForQuestionAnswering

NAMES = "anna tom lisa omar ines paul mara jan".split()
FACTS = {  # a verb of the context: the question's first and last word, the answers
    "lives": ("where", "live", ["in paris", "in rome", "in new york", "in lima"]),
    "likes": ("what", "like", ["green tea", "rice", "plum cake", "soup"]),
    "plays": ("what", "play", ["chess", "the flute", "the old piano", "cards"]),
    "drives": ("what", "drive", ["a bus", "a red car", "tractors", "a van"]),
}
WORDS = ["[PAD]", "[CLS]", "[SEP]", ".", "?", "does", *NAMES]
for verb, (word, infinitive, answers) in FACTS.items():
    WORDS += [w for w in [verb, word, infinitive, *" ".join(answers).split()] if w not in WORDS]
IDS = {word: i for i, word in enumerate(WORDS)}
LENGTH, STEPS, ROWS, EXPLAINED = 26, 200, 32, 4


def example(draw: random.Random) -> tuple[list[str], int, int, int]:
    """The words, where the context begins, the answer's first and last word."""
    count = draw.choice([2, 3])
    asked, context = draw.randrange(count), []
    for i, (name, verb) in enumerate(zip(draw.sample(NAMES, count), draw.sample(list(FACTS), count), strict=True)):
        word, infinitive, answers = FACTS[verb]
        answer = draw.choice(answers).split()
        context += [name, verb, *answer, "."]
        if i == asked:
            question = [word, "does", name, infinitive, "?"]
            last = len(context) - 2
            first = last - len(answer) + 1
    words = ["[CLS]", *question, "[SEP]"]
    begin = len(words)
    return [*words, *context, "[SEP]"], begin, begin + first, begin + last


def batch(draw: random.Random, rows: int) -> tuple[dict[str, Tensor], Tensor, Tensor, list[list[str]]]:
    made = [example(draw) for _ in range(rows)]
    ids = torch.tensor([[IDS[w] for w in words] + [0] * (LENGTH - len(words)) for words, *_ in made])
    starts = torch.tensor([begin for _, begin, _, _ in made])
    inputs = {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "token_type_ids": (torch.arange(LENGTH) >= starts[:, None]).long() * (ids != 0),
    }
    return inputs, torch.tensor([a for *_, a, _ in made]), torch.tensor([b for *_, b in made]), [m[0] for m in made]


def prepare() -> tuple[Any, ...]:
    torch.manual_seed(0)
    draw = random.Random(0)
    model = BertForQuestionAnswering(BertConfig(
        vocab_size=len(WORDS), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=LENGTH, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        initializer_range=0.1, attn_implementation="eager",
    ))  # fmt: skip
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=STEPS)
    for _ in range(STEPS):
        inputs, first, last, _words = batch(draw, ROWS)
        optimiser.zero_grad()
        model(**inputs, start_positions=first, end_positions=last).loss.backward()
        optimiser.step()
        schedule.step()
    model.eval().double()
    inputs, first, last, words = batch(draw, 200)
    with torch.no_grad():
        found = model(**inputs)
    right = (found.start_logits.argmax(1) == first) & (found.end_logits.argmax(1) == last)
    print(f"{int(right.sum())} of {len(right)} new questions answered right\n")
    rows = [inputs[name][:EXPLAINED] for name in ("input_ids", "token_type_ids", "attention_mask")]
    return model, *rows, first[:EXPLAINED], last[:EXPLAINED], words


def attribute(
    package: str, model: Any, ids: Tensor, types: Tensor, mask: Tensor, first: Tensor, last: Tensor,
    words: list[list[str]],
) -> Iterator[Any]:  # fmt: skip
    if package == "captum":
        from captum.attr import InputXGradient, LayerConductance, LayerIntegratedGradients, TokenReferenceBase
    else:
        from whence.captum import InputXGradient, LayerConductance, LayerIntegratedGradients, TokenReferenceBase

    def start(ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        return model(input_ids=ids, token_type_ids=types, attention_mask=mask).start_logits

    def end(ids: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        return model(input_ids=ids, token_type_ids=types, attention_mask=mask).end_logits

    def start_of_embedded(embedded: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        return model(inputs_embeds=embedded, token_type_ids=types, attention_mask=mask).start_logits

    padding = TokenReferenceBase(IDS["[PAD]"]).generate_reference(ids.shape[1], ids.device)
    stay = torch.isin(ids, torch.tensor([IDS["[CLS]"], IDS["[SEP]"]]))
    baseline = torch.where(stay, ids, padding)
    shown = {}  # a row of numbers for each token, for the picture

    embeddings = model.bert.embeddings
    for name, function, target in (("start", start, first), ("end", end, last)):
        values, delta = LayerIntegratedGradients(function, embeddings).attribute(
            ids, baselines=baseline, target=target, additional_forward_args=(types, mask), n_steps=30,
            return_convergence_delta=True,
        )  # fmt: skip
        yield f"LayerIntegratedGradients, {name}", values, delta
        shown[f"integrated gradients, {name}"] = values.sum(-1)

    values = LayerIntegratedGradients(start, [embeddings.word_embeddings, embeddings.token_type_embeddings]).attribute(
        (ids, types), baselines=(baseline, torch.zeros_like(types)), target=first, additional_forward_args=mask,
        n_steps=30,
    )  # fmt: skip
    yield "LayerIntegratedGradients, words and types", values

    embedded, nothing = (embeddings.word_embeddings(some).detach() for some in (ids, baseline))
    values = InputXGradient(start_of_embedded).attribute(embedded, target=first, additional_forward_args=(types, mask))
    yield "InputXGradient of the word embeddings", values

    for i, layer in enumerate(model.bert.encoder.layer):
        values = LayerConductance(start_of_embedded, layer).attribute(
            embedded, baselines=nothing, target=first, additional_forward_args=(types, mask), n_steps=30,
            internal_batch_size=40,
        )  # fmt: skip
        values = values[0] if isinstance(values, tuple) else values
        yield f"LayerConductance, encoder.layer.{i}", values
        shown[f"conductance of layer {i}, start"] = values.sum(-1)

    yield "picture", picture(shown, words, first, last)


def picture(shown: dict[str, Tensor], words: list[list[str]], first: Tensor, last: Tensor) -> Any:
    """Two questions: a column for each token, a line for each attribution, each with a scale of its own."""
    figure, axes = pyplot.subplots(2, 1, figsize=(11, 5.5), layout="constrained")
    for row, axis in enumerate(axes):
        tokens = words[row]
        lines = torch.stack([values[row, : len(tokens)] for values in shown.values()]).detach()
        axis.imshow(lines / lines.abs().amax(1, keepdim=True), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
        axis.set_xticks(range(len(tokens)), tokens, rotation=60, fontsize=8)
        axis.set_yticks(range(len(shown)), shown, fontsize=8)
        answer = " ".join(tokens[int(first[row]) : int(last[row]) + 1])
        axis.set_title(f"{' '.join(tokens[1:6])} – {answer}", fontsize=9)
    return figure


if __name__ == "__main__":
    main(__file__, __doc__, prepare, attribute)
