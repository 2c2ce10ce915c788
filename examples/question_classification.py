"""Which words decide what a question asks for? Integrated gradients on the zoo's CNN and all 500 TREC test questions.

The paper colours questions and finds the words that trigger each class. Needs TREC (WHENCE_DATA, see README.md).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot
from pictures import BLUE, RED, missing, save, table, where

import whence
from whence.zoo.training import data

SEEN = 3  # a word is listed if so many questions have it
OWN = [  # written for this example, after the kinds of question that the paper shows
    "how many people live in the old town ?",
    "what year did the bridge open ?",
    "who wrote the first letter ?",
    "where do penguins spend the winter ?",
    "what does the abbreviation mean ?",
]


def main() -> None:
    out = where(__file__, __doc__)
    try:
        asked = data.questions("test")
    except whence.FileError as error:
        missing(error)
    zoo = whence.load("zoo:questions")
    a = whence.explain(zoo, [text for text, _ in asked], method="integrated_gradients", output="probability")
    right = sum(zoo.labels[label] == found for (_, label), found in zip(asked, a.labels, strict=True))
    print(f"{right} of {len(asked)} test questions are classified as labelled.")
    print(f"Each question took {sum(a.receipt['gradient_evaluations']) / len(a):.0f} gradients; the worst completeness")
    print(f"gap is {float(a.gap.max()):.1e}, and the neutral input's probabilities are at most", end=" ")
    print(f"{float(a.baseline_value.max()):.2f}.\n")

    merged = a.merge_words()
    shares: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    first_two = []
    for row in range(len(merged)):
        one = merged[row]
        values = one.values[0].tolist()
        for word, value in zip(one.units[0], values, strict=True):
            shares[a.labels[row]][word].append(value)
        first_two.append(sum(values[:2]) / sum(values))
    rows = []
    for label in zoo.labels.values():
        found = shares[label]
        means = {word: sum(v) / len(v) for word, v in found.items() if len(v) >= SEEN}
        best = sorted(means, key=means.__getitem__, reverse=True)
        top, against = best[:7], [word for word in reversed(best[-3:]) if means[word] < 0]
        count = sum(given == label for given in a.labels)
        rows.append([label, count, ", ".join(f"{w} {means[w]:+.2f}" for w in top),
                     ", ".join(f"{w} {means[w]:+.2f}" for w in against)])  # fmt: skip
    table(["predicted", "questions", f"for it, mean over questions (in at least {SEEN})", "against it"], rows)
    print(f"\nThe first two words carry {torch.tensor(first_two).median():.0%} of the attribution (median question).")
    _picture(zoo, rows, out)


def _picture(zoo: Any, rows: list[list[Any]], out: Path) -> None:
    figure = pyplot.figure(figsize=(13, 5), layout="constrained")
    left, right = figure.subfigures(1, 2)
    own = whence.explain(zoo, OWN, method="integrated_gradients", output="probability").merge_words()
    for row, axis in enumerate(left.subplots(len(OWN), 1)):
        own.plot(axis, row=row)
    names, values = [], []
    for label, _, top, _ in rows:
        for item in top.split(", ")[:4]:
            word, _, value = item.rpartition(" ")
            names.append(f"{label.lower()}: {word}")
            values.append(float(value or 0))
    axis = right.subplots()
    axis.barh(names, values, color=[RED if value > 0 else BLUE for value in values])
    axis.invert_yaxis()
    axis.tick_params(labelsize=7)
    axis.set(title="trigger words over the test set", xlabel="mean integrated gradient (of the probability)")
    save(figure, out)


if __name__ == "__main__":
    main()
