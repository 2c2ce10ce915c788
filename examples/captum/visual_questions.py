"""Does an answer about an image come from the image or from the question? A text and an image, with Captum's classes.

A small network with attention over the image is trained here, in seconds, on made-up images of two coloured shapes and
questions about the colour of one or the shape of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from beside import main
from matplotlib import pyplot
from torch import Tensor, nn

SHAPES, COLOURS = ["square", "cross", "frame"], ["red", "green", "blue"]
ANSWERS = SHAPES + COLOURS
WORDS = ["[PAD]", *"what colour is the shape has".split(), *ANSWERS]
SIDE, STEPS, ROWS, EXPLAINED = 8, 300, 64, 4  # pixels of a quadrant; training; explained rows


def stamps() -> Tensor:
    """The shapes, (3, 8, 8)."""
    made = torch.zeros(3, SIDE, SIDE)
    made[0, 2:6, 2:6] = 1
    made[1, 3:5, 1:7] = made[1, 1:7, 3:5] = 1
    made[2, 1:7, 1:7] = 1
    made[2, 2:6, 2:6] = 0
    return made


def batch(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images of two shapes in two of four quadrants, questions as ids, answers."""
    images, ids = torch.zeros(rows, 3, 2 * SIDE, 2 * SIDE), torch.zeros(rows, 5, dtype=torch.long)
    answers, shapes = torch.zeros(rows, dtype=torch.long), stamps()
    for row in range(rows):
        shape, colour, place = (torch.randperm(n).tolist() for n in (3, 3, 4))
        for i in range(2):
            top, left = place[i] // 2 * SIDE, place[i] % 2 * SIDE
            images[row, colour[i], top : top + SIDE, left : left + SIDE] = shapes[shape[i]]
        if row % 2:
            question, answer = f"what colour has the {SHAPES[shape[0]]}", COLOURS[colour[0]]
        else:
            question, answer = f"what shape is {COLOURS[colour[0]]}", SHAPES[shape[0]]
        words = [WORDS.index(word) for word in question.split()]
        ids[row, : len(words)] = torch.tensor(words)
        answers[row] = ANSWERS.index(answer)
    return images + 0.05 * torch.randn_like(images), ids, answers


class Answerer(nn.Module):
    """The question's last state looks for its place in the image; what is there and the question give the answer."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.pixels = nn.Identity()  # the image as a layer
        self.convolutions = nn.Sequential(
            nn.Conv2d(3, width, 4, stride=4), nn.ReLU(), nn.Conv2d(width, width, 2, stride=2), nn.ReLU()
        )
        self.embedding = nn.Embedding(len(WORDS), width, padding_idx=0)
        self.reader = nn.LSTM(width, width, batch_first=True)
        self.query = nn.Linear(width, width)
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, len(ANSWERS)))

    def forward(self, images: Tensor, question: Tensor) -> Tensor:
        maps = self.convolutions(self.pixels(images)).flatten(2)  # (rows, width, places)
        _, (state, _) = self.reader(self.embedding(question))
        weights = (self.query(state[0])[:, None] @ maps).softmax(-1)  # (rows, 1, places)
        seen = (maps * weights).sum(-1)
        return self.out(torch.cat([seen, state[0]], 1))


def prepare() -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = Answerer()
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for _ in range(STEPS):
        images, ids, answers = batch(ROWS)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images, ids), answers).backward()
        optimiser.step()
    model.eval().double()
    images, ids, answers = batch(200)
    images = images.double()
    with torch.no_grad():
        right = model(images, ids).argmax(1) == answers
    print(f"{int(right.sum())} of {len(right)} new questions answered right\n")
    return model, images[:EXPLAINED], ids[:EXPLAINED], answers[:EXPLAINED]


def attribute(package: str, model: Answerer, images: Tensor, ids: Tensor, answers: Tensor) -> Iterator[Any]:
    if package == "captum":
        from captum.attr import (  # noqa: I001
            FeatureAblation, IntegratedGradients, KernelShap, LayerIntegratedGradients, Occlusion, Saliency,
            ShapleyValueSampling, configure_interpretable_embedding_layer, remove_interpretable_embedding_layer,
        )  # fmt: skip
    else:
        from whence.captum import (  # noqa: I001
            FeatureAblation, IntegratedGradients, KernelShap, LayerIntegratedGradients, Occlusion, Saliency,
            ShapleyValueSampling, configure_interpretable_embedding_layer, remove_interpretable_embedding_layer,
        )  # fmt: skip
    yield "Saliency of the image", Saliency(model).attribute(images, target=answers, additional_forward_args=ids)

    interpretable = configure_interpretable_embedding_layer(model, "embedding")
    words, padding = (interpretable.indices_to_embeddings(some).detach() for some in (ids, torch.zeros_like(ids)))
    both, delta = IntegratedGradients(model).attribute(
        (images, words), baselines=(torch.zeros_like(images), padding), target=answers, return_convergence_delta=True
    )
    remove_interpretable_embedding_layer(model, interpretable)
    yield "IntegratedGradients", both, delta

    values, delta = LayerIntegratedGradients(model, [model.pixels, model.embedding]).attribute(
        (images, ids), baselines=(torch.zeros_like(images), torch.zeros_like(ids)), target=answers,
        return_convergence_delta=True,
    )  # fmt: skip
    yield "LayerIntegratedGradients, two layers", values, delta

    quadrants = torch.arange(4).view(2, 2).repeat_interleave(SIDE, 0).repeat_interleave(SIDE, 1)[None, None]
    masks = (quadrants.repeat(1, 3, 1, 1), torch.arange(4, 4 + ids.shape[1])[None])
    ablated = FeatureAblation(model).attribute((images, ids), target=answers, feature_mask=masks)
    yield "FeatureAblation, quadrants and words", ablated

    values = Occlusion(model).attribute(
        (images, ids), sliding_window_shapes=((3, 4, 4), (1,)), strides=((3, 2, 2), (1,)), target=answers
    )
    yield "Occlusion, windows and words", values

    values = ShapleyValueSampling(model).attribute(
        (images, ids), target=answers, feature_mask=masks, n_samples=200, perturbations_per_eval=16
    )
    yield "ShapleyValueSampling, quadrants and words", values

    values = KernelShap(model).attribute(
        (images, ids), target=answers, feature_mask=masks, n_samples=512, perturbations_per_eval=64
    )
    yield "KernelShap, quadrants and words", values

    yield "picture", picture(images, ids, answers, both, ablated)


def picture(images: Tensor, ids: Tensor, answers: Tensor, both: Any, ablated: Any) -> Any:
    """For each row the image, its map, and the words' part by two methods."""
    figure, axes = pyplot.subplots(3, len(images), figsize=(2.6 * len(images), 7), layout="constrained")
    for row, (image, heat, bars) in enumerate(zip(*axes, strict=True)):
        tokens = [WORDS[i] for i in ids[row].tolist() if i]
        image.imshow(images[row].clamp(0, 1).permute(1, 2, 0))
        image.set_title(f"{' '.join(tokens)}? {ANSWERS[int(answers[row])]}", fontsize=8)
        values = both[0][row].sum(0).detach()
        largest = float(values.abs().max())
        heat.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest)
        heat.set_title(f"IntegratedGradients: image {float(values.sum()):+.1f}", fontsize=8)
        for axis in (image, heat):
            axis.axis("off")
        place = torch.arange(len(tokens))
        bars.barh(place - 0.2, both[1][row].sum(-1)[: len(tokens)].detach(), 0.4, label="IntegratedGradients")
        bars.barh(place + 0.2, ablated[1][row][: len(tokens)].detach(), 0.4, label="FeatureAblation")
        bars.set_yticks(place, tokens, fontsize=8)
        bars.invert_yaxis()
    axes[2, 0].legend(fontsize=7)
    return figure


if __name__ == "__main__":
    main(__file__, __doc__, prepare, attribute)
