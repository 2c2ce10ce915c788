"""What a run says over all its rows, computed in one pass whose memory does not grow with their number."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.errors import InputError, MethodError, did_you_mean
from whence.runs.shares import by_chance, common, shares_of
from whence.runs.streamed import Counts, Extremes, Histogram, Mean, Moments, Vocabulary, interval
from whence.runs.units import Block, blocks
from whence.util.checks import check_choice, check_count

if TYPE_CHECKING:
    from whence.runs.opened import Run

Array = np.ndarray[Any, Any]
LEAST = 5  # rows that a unit must occur in to be ranked
_EDGES = 10.0 ** np.arange(-8, 2.25, 0.25)  # of the histograms of gaps
_MAPS = 64  # mean maps of one size that are kept, by class
_ABOUT = ("row", "id", "text", "second", "image", "label", "prediction", "probability", "target")


@dataclass(frozen=True)
class Unit:
    """A word, token or feature: the mean of what it has in the rows in which it occurs, with a 95 % interval."""

    name: str
    places: int  # how often it occurs
    rows: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class MeanMap:
    """The mean of the maps of a class by one method, cell by cell, with 95 % intervals."""

    rows: int
    mean: Array  # (height, width)
    low: Array
    high: Array


@dataclass(frozen=True)
class Note:
    """A row that stands out, and by how much."""

    row: int
    value: float
    about: Mapping[str, Any]  # id, text, label, prediction, probability, target


@dataclass(frozen=True, eq=False)
class Summary:
    """What a run says over all: units by class, agreement of methods, gaps, and the rows that stand out."""

    methods: list[str]
    unit: str  # "word", "token", "feature" or "pixel"
    rows: int
    classes: dict[str, int]  # rows by explained class
    predictions: dict[str, int]
    labelled: int  # rows that have a prediction, and a label that is a class of the model
    wrong: int  # those in which they differ
    signed: dict[str, bool]  # whether a method has values below 0
    aside: dict[str, Mean]  # the share of its total that a method gives to special tokens
    agreement: dict[tuple[str, str], Mean]  # the share of their totals that two methods place alike
    chance: dict[str, Mean]  # the same of a method and its own numbers, dealt anew
    gaps: dict[str, Histogram]
    disagree: list[Note]  # rows in which methods have least in common; the value is the mean over pairs of methods
    largest_gaps: list[Note]
    confident_wrong: list[Note]  # the value is the prediction's probability
    vocabulary: Vocabulary
    maps: dict[tuple[str, str], MeanMap]  # by class and method
    notes: list[str]  # what is not exact or left out

    def units(
        self, target: str | None = None, method: str | None = None, *, side: str = "both", least: int = LEAST,
        count: int | None = 20,
    ) -> list[Unit]:  # fmt: skip
        """The units that matter most for a class: for it, against it, or both.

        They are ordered by the end of their interval that is nearer to 0, so that few rows with large values do not
        come before many that are sure. Units in fewer than `least` rows are left out.
        """
        check_choice("side", side, ("for", "against", "both"))
        check_count("least", least)
        return ranked(self.vocabulary, self.target(target), self.place(method), side, least)[:count]

    def place(self, method: str | None) -> int:
        """The number of a method; the first where none is named."""
        if method is not None and method not in self.methods:
            raise MethodError(f"The run has no method {method!r}. {did_you_mean(method, self.methods)}")
        return 0 if method is None else self.methods.index(method)

    def target(self, target: str | None) -> str:
        """A class that was explained; that of most rows where none is named."""
        if target is None:
            return max(self.classes, key=lambda name: self.classes[name], default="")
        if str(target) not in self.classes:
            raise InputError(f"No row was explained for {target!r}. {did_you_mean(str(target), self.classes)}")
        return str(target)

    def most(self, count: int) -> list[str]:
        """The classes that most rows were explained for."""
        return sorted(self.classes, key=lambda name: -self.classes[name])[:count]

    def __str__(self) -> str:
        from whence.views.run_text import summary

        return summary(self)


def ranked(vocabulary: Vocabulary, group: str, column: int, side: str, least: int) -> list[Unit]:
    """The units of a group, the surest first: by the end of the interval that is nearer to 0, then by the mean."""
    moments, found = vocabulary.moments, []
    for name, place in vocabulary.index.get(group, {}).items():
        if moments.rows[place, column] < max(least, 2):
            continue
        mean = moments.at((place, column))
        if side == "both" or (mean.mean > 0) == (side == "for"):
            unit = Unit(name, int(vocabulary.places[place]), mean.rows, mean.mean, mean.low, mean.high)
            found.append((-abs(mean.near), -abs(mean.mean), name, unit))
    return [unit for *_, unit in sorted(found)]


def summarize(
    run: Run, *, unit: str = "word", bound: int = 200_000, rows: int = 20,
    each: Callable[[list[int], Array], None] | None = None,
) -> Summary:  # fmt: skip
    """One pass over a run.

    `unit` is "word" or "token"; `bound` is how many pairs of a class and a unit are kept, `rows` how many rows of each
    list of those that stand out. `each` is given the numbers of some rows after the others, and what the methods have
    in common in each, the mean over pairs of methods.
    """
    check_choice("unit", unit, ("word", "token"))
    check_count("bound", bound)
    check_count("rows", rows)
    stream = _Stream(run.methods, bound, rows, run.classes, run.signed, each)
    for block in blocks(run, unit):
        stream.add(block)
    if not stream.rows:
        way = f"Its predictions and labels are of: {', '.join(run.classes)}." if run.chosen else "errors/ says why."
        of = "The selection from " * bool(run.chosen) + run.storage.address
        raise InputError(f"{of} has no explained rows.\n  {way}")
    return stream.summary(unit, run)


class _Stream:
    """The state of the pass."""

    def __init__(
        self, methods: Sequence[str], bound: int, rows: int, known: Collection[str], signed: Collection[str],
        each: Callable[[list[int], Array], None] | None,
    ) -> None:  # fmt: skip
        self.methods, self.known, self.each = list(methods), known, each
        self.pairs = list(combinations(range(len(methods)), 2))
        self.rows = self.labelled = self.wrong = 0
        self.strange = Counts(3)  # labels that are no class of the model
        self.classes, self.predictions, self.kinds = Counts(), Counts(), Counts()
        self.signed = [method in signed for method in methods]
        self.vocabulary = Vocabulary(len(methods), bound)
        self.aside, self.chance = Moments((len(methods),)), Moments((len(methods),))
        self.agreement = Moments((len(self.pairs),))
        self.gaps = [Histogram(_EDGES) for _ in methods]
        self.maps: dict[tuple[str, tuple[int, int]], Moments] = {}
        self.maps_left_out = 0
        self.extremes = {name: Extremes(rows) for name in ("disagree", "gaps", "wrong")}

    def add(self, block: Block) -> None:
        about = [{name: row[name] for name in _ABOUT} for row in block.about]
        classes = [str(row["target"]) for row in about]
        self.rows += len(block)
        self.classes.add(classes)
        self.kinds.add(["pixel" if block.grid else "feature" if block.spans is None else "text"])
        self.predictions.add(str(row["prediction"]) for row in about if row["prediction"] is not None)
        self._add_labels(about)
        self._add_gaps(block.gaps, about)
        shares, aside = shares_of(block)
        self.aside.add(aside)
        self._add_agreement(block, shares, about)
        if block.grid is not None:
            self._add_map(classes[0], block)
        elif block.names is not None:
            plain = ~block.special
            names = [name for name, kept in zip(block.names, plain, strict=True) if kept]
            self.vocabulary.add(classes, block.owner[plain], names, block.values[:, plain])

    def _add_labels(self, about: list[dict[str, Any]]) -> None:
        asked = ("label", "prediction", "probability")  # without a probability nothing was chosen among classes
        there = [all(row[name] is not None for name in asked) for row in about]
        known = [t and row["label"] in self.known for t, row in zip(there, about, strict=True)]
        self.strange.add(row["label"] for row, t, k in zip(about, there, known, strict=True) if t and not k)
        wrong = [k and row["label"] != row["prediction"] for k, row in zip(known, about, strict=True)]
        self.labelled += sum(known)
        self.wrong += sum(wrong)
        likely = [math.nan if row["probability"] is None else row["probability"] for row in about]
        self.extremes["wrong"].add(np.where(wrong, np.array(likely, dtype=float), np.nan), about)

    def _add_gaps(self, gaps: Array, about: list[dict[str, Any]]) -> None:
        for histogram, own in zip(self.gaps, gaps, strict=True):
            histogram.add(own)
        self.extremes["gaps"].add(np.where(np.isnan(gaps), -np.inf, gaps).max(0), about)

    def _add_agreement(self, block: Block, shares: Array, about: list[dict[str, Any]]) -> None:
        signed, rows, plain = self.signed, len(block), ~block.special
        by_pair = [
            common(shares[i], shares[j], block.owner, rows, plain, signed[i] and signed[j]) for i, j in self.pairs
        ]
        self.chance.add(
            np.stack([by_chance(own, block.owner, rows, plain, sign) for own, sign in zip(shares, signed, strict=True)])
        )
        if not by_pair:
            return
        table = np.stack(by_pair)
        self.agreement.add(table)
        there = np.isfinite(table)
        mean = np.where(there, table, 0.0).sum(0) / np.maximum(there.sum(0), 1)
        self.extremes["disagree"].add(np.where(there.any(0), -mean, np.nan), about)
        if self.each is not None:
            self.each([int(row["row"]) for row in about], np.where(there.any(0), mean, np.nan))

    def _add_map(self, target: str, block: Block) -> None:
        assert block.grid is not None
        key = (target, block.grid)
        if key not in self.maps and len(self.maps) >= _MAPS:
            self.maps_left_out += 1
            return
        moments = self.maps.setdefault(key, Moments(block.values.shape))
        moments.add(block.values[..., None])

    def summary(self, unit: str, run: Run) -> Summary:
        methods = self.methods
        kind = max(self.kinds.found, key=lambda name: self.kinds.found[name])
        noted = {name: _notes(found, sign) for name, found, sign in (
            ("disagree", self.extremes["disagree"], -1), ("gaps", self.extremes["gaps"], 1),
            ("wrong", self.extremes["wrong"], 1),
        )}  # fmt: skip
        return Summary(
            methods, unit if kind == "text" else kind, self.rows, self.classes.found, self.predictions.found,
            self.labelled, self.wrong, dict(zip(methods, self.signed, strict=True)),
            {m: self.aside.at(i) for i, m in enumerate(methods)},
            {(methods[i], methods[j]): self.agreement.at(k) for k, (i, j) in enumerate(self.pairs)},
            {m: self.chance.at(i) for i, m in enumerate(methods)}, dict(zip(methods, self.gaps, strict=True)),
            noted["disagree"], noted["gaps"], noted["wrong"], self.vocabulary, self._mean_maps(), self._left_out(run),
        )  # fmt: skip

    def _mean_maps(self) -> dict[tuple[str, str], MeanMap]:
        """By class and method, of the size that most rows of the class have."""
        found: dict[tuple[str, str], MeanMap] = {}
        for (target, grid), moments in sorted(self.maps.items(), key=lambda item: int(item[1].rows.max())):
            for number, method in enumerate(self.methods):
                rows = int(moments.rows[number].max())
                if rows:
                    found[target, method] = _mean_map(rows, moments, number, grid)
        return found

    def _left_out(self, run: Run) -> list[str]:
        notes, vocabulary = [], self.vocabulary
        if run.missing:
            shards = f"{len(run.missing)} of {run.manifest['shards']} shards"
            rows = sum(shard.rows for shard in run.missing)
            notes.append(f"{shards}, with {rows:,} rows, are missing: the run is not finished.")
        if strange := sum(self.strange.found.values()) + self.strange.others:
            named = ", ".join(repr(label) for label in self.strange.found)
            notes.append(
                f"{strange:,} rows have a label that is no class of the model, such as {named}: they count neither as "
                "right nor as wrong."
            )
        if vocabulary.left_out:
            notes.append(
                f"The first {vocabulary.bound:,} pairs of a class and a unit were kept, and are exact; "
                f"{vocabulary.left_out:,} places of units that came later are in no table. Give a larger bound=."
            )
        if self.classes.others:
            notes.append(f"{self.classes.others:,} rows have classes beyond the first {self.classes.bound:,}.")
        if self.maps_left_out:
            notes.append(f"{self.maps_left_out:,} rows have a size or a class beyond the first {_MAPS} of maps.")
        return notes


def _mean_map(rows: int, moments: Moments, number: int, grid: tuple[int, int]) -> MeanMap:
    mean = moments.mean[number].reshape(grid)
    spread = np.sqrt(moments.squares[number].reshape(grid) / max(rows - 1, 1))
    reach = interval(rows, 0.0, rows - 1.0).high * spread  # the interval of a quantity whose spread is 1
    return MeanMap(rows, mean, mean - reach, mean + reach)


def _notes(found: Extremes, sign: int) -> list[Note]:
    return [Note(int(row["row"]), sign * value, row) for value, row in found.found() if math.isfinite(value)]
