"""Is attention interpretable? The erasure tests of Serrano & Smith (2019) on a recurrent network with one attention.

A bidirectional GRU with additive attention learns TREC's question types (under a minute), then attention weights are
erased: the highest one against a random one, and sets of them until the decision flips, in four orders. Needs TREC
(WHENCE_DATA, see README.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot
from pictures import missing, save, table, where
from torch import Tensor, nn

import whence
from whence.evaluation.metrics.erasure import by_difference
from whence.zoo.training import data

RANKINGS = {
    "attention": {"method": "raw_attention"},
    "gradient": {"method": "attention_gradient"},
    "gradient × attention": {"method": "attention_x_gradient"},
    "random": {"method": "random"},
}
ROWS = 300


class Reader(nn.Module):
    """Words, a GRU both ways, one attention over its states, one dense layer."""

    def __init__(self, words: int, width: int = 64, labels: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.states = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.key = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, 1, bias=False))
        self.out = nn.Linear(2 * width, labels)

    def forward(self, input_ids: Tensor) -> Tensor:
        states, _ = self.states(nn.functional.dropout(self.embedding(input_ids), 0.3, self.training))
        weights = self.key(states).softmax(1)  # (rows, n, 1)
        return self.out((weights * states).sum(1))


def main() -> None:
    out = where(__file__, __doc__)
    try:
        train, test = data.questions("train"), data.questions("test")
    except whence.FileError as error:
        missing(error)
    torch.manual_seed(0)
    known = {word: 1 + i for i, word in enumerate(dict.fromkeys(w for text, _ in train for w in text.split()))}
    model = Reader(1 + len(known))
    fit(model, [(ids_of(text, known), label) for text, label in train])
    rows = [{"inputs": {"input_ids": ids_of(text, known)}, "label": label} for text, label in test[:ROWS]]
    right = sum(int(model(row["inputs"]["input_ids"][None]).argmax()) == row["label"] for row in rows)
    print(f"{right} of {len(rows)} test questions are classified as labelled.\n")
    board = whence.evaluate(
        model, rows, methods=RANKINGS, output="probability",
        metrics={"single": {"metric": "erasure_single"}, "sets": {"metric": "erasure_set", "never": "drop"}},
    )  # fmt: skip
    tell(board)
    picture(board, out)


def ids_of(text: str, known: dict[str, int]) -> Tensor:
    return torch.tensor([known.get(word, 0) for word in text.split()])


def fit(model: Reader, rows: list[tuple[Tensor, int]], epochs: int = 6) -> None:
    """Rows of one length together, so that nothing is padded."""
    groups: dict[int, list[tuple[Tensor, int]]] = {}
    for ids, label in rows:
        groups.setdefault(len(ids), []).append((ids, label))
    batches = [group[i : i + 32] for group in groups.values() for i in range(0, len(group), 32)]
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    model.train()
    for _ in range(epochs):
        for number in torch.randperm(len(batches)).tolist():
            ids, labels = torch.stack([i for i, _ in batches[number]]), torch.tensor([y for _, y in batches[number]])
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(ids), labels).backward()
            optimiser.step()
    model.eval()


def tell(board: whence.Scoreboard) -> None:
    heads = [
        "ranking",
        "ΔJS > 0",
        "both flip",
        "only first",
        "only other",
        "neither",
        "share erased",
        "never flips",
        "mass",
    ]
    lines = []
    for name in board.methods:
        single, sets = board[name, "single"], board[name, "sets"]
        flips = [
            single.parts[p] for p in ("both flip", "only the first flips", "only the other flips", "neither flips")
        ]
        lines.append(
            [name, f"{100 - single.parts['negative']:.0f} %", *(f"{x:.1f} %" for x in flips), f"{sets.median:.2f}",
             f"{sets.parts['never flips']:.0f} %", f"{sets.parts['mass erased']:.2f}"]
        )  # fmt: skip
    table(heads, lines)
    apart = board.difference("sets", "attention", "gradient × attention")
    print(
        f"\nAttention needs {apart.value:+.3f} of a question's words more than gradient × attention until the decision"
    )
    print(f"flips (95 % interval {apart.low:+.3f} to {apart.high:+.3f}).")
    print("How often the highest weight does less than a random one, by the difference of the two weights:")
    for low, high, count, share in by_difference(board, "attention"):
        if count:
            print(f"  {low:.1f} to {high:.1f}: {share:.0f} % of {count}")


def picture(board: whence.Scoreboard, out: Path) -> None:
    figure = pyplot.figure(figsize=(12, 4.5), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    board.plot("single", axes[0])
    board.plot("sets", axes[1])
    save(figure, out)


if __name__ == "__main__":
    main()
