"""Which method to take where none is named: candidates on the zoo's models and on small nets for digits."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import whence
from whence.views.terminal import table
from whence.zoo.training import data

CANDIDATES = ("integrated_gradients", "deeplift", "attnlrp", "lrp", "input_x_gradient", "transformer_attribution")
METRICS = ("comprehensiveness", "sufficiency")
ROWS = 48


class Next(nn.Module):
    """A causal model as a classifier of the next token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.model(input_ids=input_ids).logits[:, -1]


def digits(act: nn.Module) -> tuple[nn.Module, Tensor]:
    """A small net that learned scikit-learn's digits, and rows that it did not see."""
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = (x / 16).float()
    net = nn.Sequential(nn.Linear(64, 64), act, nn.Linear(64, 64), act, nn.Linear(64, 10))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(200):
        loss = nn.functional.cross_entropy(net(x[:1400]), y[:1400])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval(), x[1400 : 1400 + ROWS]


def cases() -> Iterator[tuple[str, Any, Any]]:
    """A name, a model and rows of it."""
    yield "MLP with ReLU", *digits(nn.ReLU())
    yield "MLP with GELU", *digits(nn.GELU())
    for name in ("fashion-cnn", "fashion-vit"):
        model = whence.load(f"zoo:{name}")
        yield name, model, list(model.examples)
    texts = [text for text, _ in data.questions("test")[:ROWS]]
    yield "questions", whence.load("zoo:questions"), texts
    yield "sentiment", whence.load("zoo:sentiment"), [text for text in data.sentences() if "film" in text][:ROWS]
    language = whence.load("zoo:language")
    begun = [" ".join(text.split()[:8]) for text in data.sentences() if "movie" in text][:ROWS]
    ids = [language.tokenizer(text)["input_ids"] for text in begun]
    yield "language", Next(language.model), [{"inputs": {"input_ids": torch.tensor(row)}} for row in ids]


def main() -> None:
    """One line per model and candidate, as measured."""
    warnings.simplefilter("ignore")
    for name, model, rows in cases():
        lines = []
        for method in CANDIDATES:
            try:
                board = whence.evaluate(model, rows, methods=[method], metrics=list(METRICS), progress=False)
            except whence.WhenceError as error:
                lines.append([method, str(error).split("\n")[0], "", ""])
                continue
            cells = [board[method, metric] for metric in METRICS]
            shown = [f"{c.value:+.3f} [{c.low:+.3f}, {c.high:+.3f}]" for c in cells]
            lines.append([method, *shown, f"{1000 * board.seconds_per_row(method):.0f} ms"])
        lines.append(["random", *[f"{board['random', metric].value:+.3f}" for metric in METRICS], ""])
        print(
            f"\n{name}, {len(rows)} rows\n" + table(["method", "comprehensiveness ↑", "sufficiency ↓", "a row"], lines)
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
