"""`whence demo`: train a small classifier on scikit-learn's digits, explain it with every method, write one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from whence.api import explain
from whence.errors import WhenceError
from whence.methods import methods

_ROWS = 6


class Digits(nn.Module):
    """Two convolutions and two dense layers, with functional ReLUs as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 12, 3, padding=1), nn.Conv2d(12, 24, 3, padding=1)
        self.dense, self.out = nn.Linear(24 * 16, 48), nn.Linear(48, 10)

    def forward(self, x: Tensor) -> Any:
        x = F.relu(self.first(x))
        x = F.max_pool2d(F.relu(self.second(x)), 2)
        return self.out(F.relu(self.dense(x.flatten(1))))


def run(out: Path) -> str:
    """Write the page; give what to tell the user."""
    from whence.views.html import facts, figure, page, text

    images, labels, held_images, held_labels = _data()
    model = _train(images, labels)
    with torch.no_grad():
        accuracy = float((model(held_images).argmax(1) == held_labels).double().mean())
    rows = torch.stack([(held_labels == digit).nonzero()[0, 0] for digit in range(_ROWS)])
    x = held_images[rows]
    inputs = "".join(
        figure(image, f"labelled {label}", ink=True) for image, label in zip(x, held_labels[rows].tolist(), strict=True)
    )
    sections = [f'<section><h2>The inputs</h2><div class="maps">{inputs}</div></section>']
    shown = {name: entry for name, entry in methods.items() if entry.facts.get("needs") is None}  # it has no attention
    for name, entry in shown.items():
        a = explain(model, x, method=name)
        maps = "".join(
            figure(values, f"for class {int(target)}") for values, target in zip(a.values, a.target, strict=True)
        )
        sections.append(
            f"<section><h2>{text(name)}</h2><p>{text(entry.description)}</p>"
            f'<div class="maps">{maps}</div><p class="soft">{text(facts(a))} {text(entry.paper)}</p></section>'
        )
    lead = (
        f"<p>A small convolutional network was trained just now on 8 × 8 handwritten digits; it gets "
        f"{accuracy:.1%} of {len(held_images)} digits right that it had not seen. Each row of maps answers, in its "
        "method's own sense, which pixels its prediction came from: red speaks for the predicted class, blue against "
        "it, white not at all. The page has no script and asks for nothing from outside.</p>"
    )
    out.write_text(page("Where did that digit come from?", sections, lead), encoding="utf-8")
    return f"Trained to {accuracy:.1%} on unseen digits, explained with {len(shown)} methods."


def _data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise WhenceError("The demo needs scikit-learn's digits.\n  pip install 'whence[demo]'") from None
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16  # (n, 1, 8, 8)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    return images[:1400], labels[:1400], images[1400:], labels[1400:]


def _train(images: Tensor, labels: Tensor, epochs: int = 12) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Digits()
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(epochs):
            for batch in torch.randperm(len(images)).split(64):
                optimiser.zero_grad()
                F.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimiser.step()
    return model.eval()
