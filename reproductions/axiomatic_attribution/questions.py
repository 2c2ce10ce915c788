"""Which words decide what a question asks for, over TREC's test questions."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from matplotlib import pyplot

import whence
from reproductions.report import RED, Report, proportion
from whence.zoo.training import data

SEEN = 3  # a word is listed if so many questions have it
OWN = [  # written for this experiment, after the kinds of question that the paper shows
    "how many people live in the old town ?",
    "what year did the bridge open ?",
    "who wrote the first letter ?",
    "where do penguins spend the winter ?",
    "what does the abbreviation mean ?",
]


def run(report: Report) -> None:
    zoo = whence.load("zoo:questions")
    own = whence.explain(zoo, OWN, method="integrated_gradients", output="probability")
    report.must("integrated gradients sum up on questions", bool(own.gap.max() < 0.02))
    asked = data.questions("test")[: report.size(500, 40)]
    a = whence.explain(zoo, [text for text, _ in asked], method="integrated_gradients", output="probability")
    right = sum(zoo.labels[label] == found for (_, label), found in zip(asked, a.labels, strict=True))
    paid = sum(a.receipt["gradient_evaluations"]) / len(a)
    report.say(f"`zoo:questions`: of {len(asked)} test questions {proportion(right, len(asked))} are classified as "
               f"labelled. Each took "
               f"{paid:.0f} gradients; the worst completeness gap is {float(a.gap.max()):.1e}, the neutral input's "
               f"probabilities are at most {float(a.baseline_value.max()):.2f}.")  # fmt: skip
    words, first_two = _words(a)
    means = {label: _means(words[label]) for label in zoo.labels.values()}
    rows = [[label, sum(given == label for given in a.labels), *_told(means[label])] for label in means]
    report.table("questions", ["predicted", "questions", "for it", "against it"], rows, "Means over questions of "
                 f"words in at least {SEEN} of them, the largest first.")  # fmt: skip
    report.say(
        f"The first two words carry {torch.tensor(first_two).median():.0%} of the attribution (median question)."
    )
    _picture(report, own.merge_words(), means)


def _words(a: Any) -> tuple[dict[str, dict[str, list[float]]], list[float]]:
    """By predicted class and word its values, and the share of each question's first two words."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    first_two = []
    for label, one in zip(a.labels, a.merge_words(), strict=True):
        values = one.values[0].tolist()
        for word, value in zip(one.units[0], values, strict=True):
            found[label][word].append(value)
        first_two.append(sum(values[:2]) / sum(values))
    return found, first_two


def _means(words: dict[str, list[float]]) -> list[tuple[str, float]]:
    """Words that enough questions have, with their means, the largest first."""
    means = [(word, sum(v) / len(v)) for word, v in words.items() if len(v) >= SEEN]
    return sorted(means, key=lambda item: -item[1])


def _told(means: list[tuple[str, float]]) -> list[str]:
    """The words that speak for a class, and those against it."""
    chosen = ([item for item in means if item[1] > 0][:7], [item for item in means[:-4:-1] if item[1] < 0])
    return [", ".join(f"“{word}” {mean:+.2f}" for word, mean in items) for items in chosen]


def _picture(report: Report, own: Any, means: dict[str, list[tuple[str, float]]]) -> None:
    figure = pyplot.figure(figsize=(13, 5), layout="constrained")
    left, right = figure.subfigures(1, 2)
    for row, axis in enumerate(left.subplots(len(OWN), 1)):
        own.plot(axis, row=row)
    best = [
        (f"{label.lower()}: {word}", mean) for label, items in means.items() for word, mean in items[:4] if mean > 0
    ]
    axis = right.subplots()
    axis.barh([name for name, _ in best], [mean for _, mean in best], color=RED)
    axis.invert_yaxis()
    axis.tick_params(labelsize=7)
    axis.set(title="trigger words over the test set", xlabel="mean integrated gradient (of the probability)")
    report.figure("questions", figure, "Five questions of our own, and the words that speak for each class.")
