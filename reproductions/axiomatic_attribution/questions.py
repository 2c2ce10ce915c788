"""Which words decide what a question asks for, over TREC's test questions."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from matplotlib import pyplot

import whence
from reproductions.report import BLUE, RED, Report
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
    report.say(f"`zoo:questions`: {right} of {len(asked)} test questions are classified as labelled. Each took "
               f"{paid:.0f} gradients; the worst completeness gap is {float(a.gap.max()):.1e}, the neutral input's "
               f"probabilities are at most {float(a.baseline_value.max()):.2f}.")  # fmt: skip
    words, first_two = _words(a)
    rows = [_line(label, words[label], sum(given == label for given in a.labels)) for label in zoo.labels.values()]
    report.table(
        "questions", ["predicted", "questions", f"for it: mean over questions (in at least {SEEN})", "against it"], rows
    )
    report.say(
        f"The first two words carry {torch.tensor(first_two).median():.0%} of the attribution (median question)."
    )
    _picture(report, own.merge_words(), rows)


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


def _line(label: str, words: dict[str, list[float]], count: int) -> list[Any]:
    means = {word: sum(v) / len(v) for word, v in words.items() if len(v) >= SEEN}
    best = sorted(means, key=means.__getitem__, reverse=True)
    against = [word for word in reversed(best[-3:]) if means[word] < 0]
    said = (", ".join(f"{word} {means[word]:+.2f}" for word in chosen) for chosen in (best[:7], against))
    return [label, count, *said]


def _picture(report: Report, own: Any, rows: list[list[Any]]) -> None:
    figure = pyplot.figure(figsize=(13, 5), layout="constrained")
    left, right = figure.subfigures(1, 2)
    for row, axis in enumerate(left.subplots(len(OWN), 1)):
        own.plot(axis, row=row)
    names, values = [], []
    for label, _, top, _ in rows:
        for item in filter(None, top.split(", ")[:4]):
            word, _, value = item.rpartition(" ")
            names.append(f"{label.lower()}: {word}")
            values.append(float(value))
    axis = right.subplots()
    axis.barh(names, values, color=[RED if value > 0 else BLUE for value in values])
    axis.invert_yaxis()
    axis.tick_params(labelsize=7)
    axis.set(title="trigger words over the test set", xlabel="mean integrated gradient (of the probability)")
    report.figure("questions", figure, "Five questions of our own, and the words that speak for each class.")
