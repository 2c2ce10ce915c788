"""`whence.diff`: two runs over the same data, under two models, two methods or two settings, compared row by row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Real
from os import PathLike
from typing import Any

import numpy as np

from whence.errors import InputError, MethodError, ParameterError, did_you_mean
from whence.evaluation.bootstrap import wilson
from whence.runs.opened import Run
from whence.runs.samples import rows
from whence.runs.shares import by_chance, common
from whence.runs.streamed import Counts, Extremes, Mean, Moments, Vocabulary
from whence.runs.summary import LEAST, Note, Unit, ranked
from whence.util.checks import check_choice, check_count, not_allowed
from whence.util.files import page_written
from whence.views.run_rows import RunRow

_BATCH = 256
CHANGES = ("rows", "predictions", "explanations")
_ABOUT = ("row", "id", "text", "second", "image", "label", "prediction", "probability", "target", "score")
Array = np.ndarray[Any, Any]
Pair = tuple[RunRow, RunRow]


@dataclass(frozen=True, eq=False)
class Diff:
    """What changed from run A to run B, over the rows that both have."""

    names: tuple[str, str]  # the runs' addresses
    pairs: dict[str, tuple[str, str]]  # A's and B's method, by what the pair is called
    unit: str  # "word", "token", "feature" or "pixel"
    rows: int
    alone: tuple[int, int]  # rows that only A, and only B, has an explanation of
    unanswered: dict[str, int]  # of the rows that both have, those which only one of the pair's methods could explain
    changed: int  # rows whose prediction is another, or that were explained for another class
    flows: dict[tuple[str, str], int]  # rows by both predictions
    agreement: dict[str, Mean]  # the share that A's and B's explanations of a row place alike, by pair
    chance: dict[str, Mean]  # the same of A's and its own numbers, dealt anew
    signed: dict[str, bool]
    predictions: list[Note]  # rows whose prediction changed most
    explanations: list[
        Note
    ]  # rows whose explanation changed most; the value is the share in common, the mean over pairs
    outstanding: dict[int, Pair]  # those rows
    vocabulary: Vocabulary  # B's value of a unit minus A's
    notes: list[str]

    @property
    def changed_share(self) -> float:
        return self.changed / self.rows

    @property
    def changed_interval(self) -> tuple[float, float]:
        """The 95 % interval of the share of changed predictions."""
        return wilson(self.changed_share, self.rows)

    def units(
        self, pair: str | None = None, *, side: str = "both", least: int = LEAST, count: int | None = 20
    ) -> list[Unit]:
        """The units that gained or lost weight: means of B − A over rows, ordered by the near end of their interval."""
        check_choice("side", side, ("gained", "lost", "both"))
        names = list(self.pairs)
        if pair is not None and pair not in names:
            raise MethodError(f"The runs were not compared by {pair!r}. {did_you_mean(pair, names)}")
        column = 0 if pair is None else names.index(pair)
        sides = {"gained": "for", "lost": "against", "both": "both"}
        return ranked(self.vocabulary, "", column, sides[side], least)[:count]

    @property
    def change(self) -> dict[str, float]:
        """How much changed, from 0 to 1: rows that only one run has, predictions, and what explanations do not share.

        Where no row could be compared, all has changed; of several methods the one counts that changed most.
        """
        means = [1 - m.mean if m.rows else 1.0 for m in self.agreement.values()]
        alone = sum(self.alone)
        missing = (alone + max(self.unanswered.values())) / (self.rows + alone)
        return {"rows": missing, "predictions": self.changed_share, "explanations": max(means)}

    def exceeded(self, threshold: float | Mapping[str, float]) -> list[str]:
        """In words, which changes are above a threshold: one number, or one by name."""
        limits = limits_of(threshold)
        return [
            f"{name} changed by {100 * self.change[name]:.3g} %, more than {100 * limit:.3g} %"
            for name, limit in limits.items()
            if self.change[name] > limit
        ]

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        told = {
            pair: {s: [vars(u) for u in self.units(pair, side=s)] for s in ("gained", "lost")} for pair in self.pairs
        }
        return {
            "a": self.names[0], "b": self.names[1], "rows": self.rows, "alone": self.alone,
            "unanswered": self.unanswered, "changed": self.changed, "change": self.change,
            "changed_interval": self.changed_interval, "agreement": {p: vars(m) for p, m in self.agreement.items()},
            "chance": {p: m.mean for p, m in self.chance.items()}, "units": told,
            "predictions": [{"row": n.row, "value": n.value} for n in self.predictions],
            "explanations": [{"row": n.row, "value": n.value} for n in self.explanations], "notes": self.notes,
        }  # fmt: skip

    def to_html(self, path: str | PathLike[str] | None = None) -> str:
        """A self-contained page; written to a file, if there is a path."""
        from whence.views.diff_page import page

        return page_written(page(self), path)

    def __str__(self) -> str:
        from whence.views.run_text import diff

        return diff(self)


def limits_of(threshold: float | Mapping[str, float]) -> dict[str, float]:
    """The most that may change, by what changes."""
    limits = dict(threshold) if isinstance(threshold, Mapping) else dict.fromkeys(CHANGES, threshold)
    for name, limit in limits.items():
        check_choice("threshold", name, CHANGES)
        if not isinstance(limit, Real) or isinstance(limit, bool) or not 0 <= limit <= 1:
            raise ParameterError(f"The threshold of {name} is {limit!r}.\n  Give a number from 0 to 1.")
    return limits


def diff(
    run_a: Run | str | PathLike[str], run_b: Run | str | PathLike[str], *, methods: Any = None, unit: str = "word",
    bound: int = 200_000, rows: int = 20,
) -> Diff:  # fmt: skip
    """Compare two runs over the same data, given as runs or as their folders.

    `methods` are names that both runs have (by default, all of those), or a mapping from A's methods to B's: the same
    run may be given twice, to compare two of its methods. What is compared is read as two streams, in step.

    >>> found = whence.diff("yesterday", "today")  # doctest: +SKIP
    >>> found.exceeded({"predictions": 0.01})  # doctest: +SKIP
    """
    check_choice("unit", unit, ("word", "token"))
    check_count("bound", bound)
    check_count("rows", rows)
    a, b = (run if isinstance(run, Run) else _opened(run) for run in (run_a, run_b))
    pairs = _pairs(a, b, methods)
    (first, second), *_ = pairs.values()
    a, b = a[first], b[second]
    signed = [m in a.signed and n in b.signed for m, n in pairs.values()]
    stream = _Stream(pairs, signed, bound, rows)
    found, counts = _in_step(a, b, unit), [0, 0]
    both = _both(found, counts, a.manifest["of"]["data"] == b.manifest["of"]["data"])
    while some := list(islice(both, _BATCH)):
        stream.add(some)
    if not stream.rows:
        raise InputError("The two runs have no row in common.\n  Give two runs over the same data.")
    return stream.diff((a.storage.address, b.storage.address), stream.kind or unit, counts)


def _opened(folder: str | PathLike[str]) -> Run:
    from whence.runs.opened import open

    return open(folder)


def _pairs(a: Run, b: Run, methods: Any) -> dict[str, tuple[str, str]]:
    if methods is None:
        shared = [m for m in a.methods if m in b.methods]
        if not shared:
            raise MethodError(
                f"The runs have no method in common: {', '.join(a.methods)}; {', '.join(b.methods)}.\n"
                f"  Say which to compare, such as methods={{{a.methods[0]!r}: {b.methods[0]!r}}}."
            )
        return {m: (m, m) for m in shared}
    if not isinstance(methods, str | Iterable) or not methods:
        raise not_allowed("methods", methods, "names of methods, or a mapping from A's to B's")
    given = (
        methods
        if isinstance(methods, Mapping)
        else {m: m for m in ([methods] if isinstance(methods, str) else methods)}
    )
    for run, names in ((a, given), (b, given.values())):
        for name in names:
            run[name]  # refuses what it does not have
    return {m if m == n else f"{m} → {n}": (m, n) for m, n in given.items()}


def _in_step(a: Run, b: Run, unit: str) -> Iterator[tuple[RunRow | None, RunRow | None]]:
    """Rows of both runs by their numbers; None where one of the two does not have the row."""
    left, right = rows(a, unit), rows(b, unit)
    x, y = next(left, None), next(right, None)
    while x is not None or y is not None:
        i, j = (math.inf if row is None else row.about["row"] for row in (x, y))
        yield (x if i <= j else None, y if j <= i else None)
        x, y = next(left, None) if i <= j else x, next(right, None) if j <= i else y


def _both(found: Iterator[tuple[RunRow | None, RunRow | None]], counts: list[int], same_data: bool) -> Iterator[Pair]:
    """Rows that both runs have; the others are counted, those of A alone first."""
    for x, y in found:
        if x is None or y is None:
            counts[0 if y is None else 1] += 1
            continue
        text_a, text_b = x.texts, y.texts
        if text_a != text_b or (not same_data and not text_a):
            raise InputError(
                f"The runs are not over the same data: row {x.about['row']} is another"
                f"{f', {_short(text_a)} and {_short(text_b)}' if text_a or text_b else ''}.\n"
                "  Explain the same files with both models, in the same order."
            )
        yield x, y


def _short(texts: Sequence[str]) -> str:
    text = " | ".join(texts)
    return repr(text if len(text) < 60 else f"{text[:56]} …")


class _Stream:
    """The state of the pass."""

    def __init__(self, pairs: dict[str, tuple[str, str]], signed: list[bool], bound: int, rows: int) -> None:
        self.pairs, self.signed = pairs, signed
        self.rows = self.changed = self.others = 0
        self.unanswered = dict.fromkeys(pairs, 0)
        self.kind: str | None = None  # of units that are neither words nor tokens
        self.flows = Counts()
        self.vocabulary = Vocabulary(len(pairs), bound)
        self.agreement, self.chance = Moments((len(pairs),)), Moments((len(pairs),))
        self.predictions, self.explanations = Extremes(rows), Extremes(rows)

    def add(self, some: Sequence[Pair]) -> None:
        if not self.rows:
            first = some[0][0]
            self.kind = "pixel" if first.grid is not None else "feature" if first.spans is None else None
        self.rows += len(some)
        about = [_told(pair) for pair in some]
        self._add_predictions(about)
        names: list[str] = []
        owner: list[int] = []
        values: list[Array] = []
        table = np.full((len(self.pairs), len(some)), np.nan)
        chance = table.copy()
        for place, (x, y) in enumerate(some):
            if x.about["target"] != y.about["target"]:
                self.others += 1
                continue
            units, before, after = _aligned(x, y, self.pairs.values())
            table[:, place], chance[:, place] = self._compared((x, y), before, after)
            names += units
            owner += [place] * len(units)
            values.append(after - before)
        self.agreement.add(table)
        self.chance.add(chance)
        there = np.isfinite(table)
        mean = np.where(there, table, 0.0).sum(0) / np.maximum(there.sum(0), 1)
        self.explanations.add(np.where(there.any(0), -mean, np.nan), about)
        if names and some[0][0].grid is None:
            self.vocabulary.add([""] * len(some), np.array(owner), names, np.concatenate(values, 1))

    def _compared(self, row: Pair, before: Array, after: Array) -> tuple[list[float], list[float]]:
        """The share in common and what is by chance, of each pair of methods in one row; NaN where there is nothing."""
        found, random = [], []
        nothing = not before.shape[1] and row[0].grid == row[1].grid  # as a text of special tokens alone
        for (pair, names), a, b, signed in zip(self.pairs.items(), before, after, self.signed, strict=True):
            answers = [name in one.values for one, name in zip(row, names, strict=True)]
            self.unanswered[pair] += any(answers) and not all(answers)
            share, chance = (1.0 if nothing else math.nan), math.nan
            if all(answers) and not nothing:
                share, chance = _shared(a, b, signed)
            found.append(share)
            random.append(chance)
        return found, random

    def _add_predictions(self, about: list[dict[str, Any]]) -> None:
        sizes, others = [], []  # others: rows that were explained for another class
        for row in about:
            by = "score" if row["probability"] is None else "probability"  # a model without classes has scores alone
            p, q = (math.nan if one[by] is None else one[by] for one in (row, row["after"]))
            flips, targets = (row[name] != row["after"][name] for name in ("prediction", "target"))
            self.changed += flips or targets
            self.flows.add([(str(row["prediction"]), str(row["after"]["prediction"]))])
            # A's class had p and has at most 1 − q now; rows with another prediction come before all others
            size = max(0.0, p + q - 1) if flips else abs(p - q)
            sizes.append(flips + (0.0 if math.isnan(size) else size))
            others.append(targets)
        found = np.array(sizes)
        self.predictions.add(np.where((found > 0) | np.array(others), found, np.nan), about)

    def diff(self, names: tuple[str, str], unit: str, alone: Sequence[int]) -> Diff:
        kept: dict[int, Pair] = {}
        found = []
        for extremes, sign in ((self.predictions, 1), (self.explanations, -1)):
            own = [
                (sign * value, row["pair"], {k: row[k] for k in (*_ABOUT, "after")}) for value, row in extremes.found()
            ]
            kept |= {int(about["row"]): pair for _, pair, about in own}
            found.append([Note(int(about["row"]), value, about) for value, _, about in own])
        return Diff(
            names, self.pairs, unit, self.rows, (alone[0], alone[1]), self.unanswered, self.changed, self.flows.found,
            {pair: self.agreement.at(i) for i, pair in enumerate(self.pairs)},
            {pair: self.chance.at(i) for i, pair in enumerate(self.pairs)},
            dict(zip(self.pairs, self.signed, strict=True)), found[0], found[1], kept,
            self.vocabulary, self._notes(alone),
        )  # fmt: skip

    def _notes(self, alone: Sequence[int]) -> list[str]:
        notes = [f"{count:,} rows are only in run {name}." for name, count in zip("AB", alone, strict=True) if count]
        if self.others:
            notes.append(
                f"{self.others:,} rows were explained for another class in B: they count as changed predictions, and "
                "their explanations are not compared."
            )
        for pair, count in self.unanswered.items():
            if count:
                notes.append(f"{count:,} rows have an explanation by {pair} in one of the two runs alone.")
        if self.vocabulary.left_out:
            notes.append(
                f"The first {self.vocabulary.bound:,} units were kept, and are exact; {self.vocabulary.left_out:,} "
                "places of units that came later are in no table. Give a larger bound=."
            )
        return notes


def _shared(a: Array, b: Array, signed: bool) -> tuple[float, float]:
    """What two explanations of a row place alike, and what is by chance; those that do not fit share nothing."""
    owner, plain = np.zeros(len(a), dtype=np.int64), np.ones(len(a), dtype=bool)
    totals = float(np.abs(a).sum()), float(np.abs(b).sum())
    if not len(a) or not all(map(math.isfinite, totals)) or 0.0 in totals:
        return (1.0 if len(a) and totals == (0.0, 0.0) else 0.0), math.nan
    a, b = a / totals[0], b / totals[1]
    return float(common(a, b, owner, 1, plain, signed)[0]), float(by_chance(a, owner, 1, plain, signed)[0])


def _told(pair: Pair) -> dict[str, Any]:
    x, y = ({name: row.about[name] for name in _ABOUT} for row in pair)
    return {**x, "after": y, "pair": pair}


def _aligned(x: RunRow, y: RunRow, pairs: Any) -> tuple[list[str], Array, Array]:
    """The units of a row, and A's and B's values of them (pairs, units); what one does not have is 0."""
    if x.grid is not None or y.grid is not None:
        cells = [] if x.grid != y.grid or x.grid is None else [""] * (x.grid[0] * x.grid[1])
        before, after = (_stacked(row, own, len(cells)) for row, own in _of(x, y, pairs))
        return cells, before, after
    own_a, own_b = _plain(x), _plain(y)
    if own_a == own_b:
        before, after = (_stacked(row, own, len(own_a), ~row.special) for row, own in _of(x, y, pairs))
        return own_a, before, after
    names = list(dict.fromkeys([*own_a, *own_b]))
    place = {name: i for i, name in enumerate(names)}
    tables = []
    for (row, own), units in zip(_of(x, y, pairs), (own_a, own_b), strict=True):
        whole = _stacked(row, own, len(units), ~row.special)
        where = np.array([place[name] for name in units], dtype=np.int64)
        tables.append(np.stack([np.bincount(where, line, len(names)) for line in whole]))
    return names, tables[0], tables[1]


def _of(x: RunRow, y: RunRow, pairs: Any) -> list[tuple[RunRow, list[str]]]:
    return [(x, [a for a, _ in pairs]), (y, [b for _, b in pairs])]


def _plain(row: RunRow) -> list[str]:
    return [name for name, special in zip(row.names or (), row.special, strict=True) if not special]


def _stacked(row: RunRow, methods: Sequence[str], size: int, where: Any = ...) -> Array:
    missing = np.full(size, np.nan)
    return np.stack([row.values[m][where] if m in row.values and size else missing for m in methods])
