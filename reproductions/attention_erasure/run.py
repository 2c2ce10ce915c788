"""Is attention interpretable? (Serrano & Smith 2019): attention weights are erased, and the decision is watched.

Classifiers of MR, SST-2 and TREC with one additive attention before the output, over the states of a bidirectional GRU
or over the word vectors themselves, are trained here; then the highest weight is erased against a random one, and sets
of weights until the decision flips, in four orders.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot
from torch import Tensor, nn

import whence
from reproductions.report import BLUE, GREY, RED, Report, proportion, scored
from whence.evaluation.bootstrap import effective
from whence.evaluation.metrics.erasure import by_difference
from whence.util.stats import spearman
from whence.zoo.training import data

RANKINGS = {
    "attention": {"method": "raw_attention"},
    "gradient": {"method": "attention_gradient"},
    "gradient × attention": {"method": "attention_x_gradient"},
    "random": {"method": "random"},
}
METRICS = {"single": {"metric": "erasure_single"}, "sets": {"metric": "erasure_set", "never": "one"}}
FLIPS = ("both flip", "only the first flips", "only the other flips", "neither flips")
EPOCHS = {"GRU": 6, "none": 10}  # by encoder
Sentences = list[tuple[str, int]]
Boards = dict[tuple[str, str], Any]


class Reader(nn.Module):
    """Words, a GRU both ways (or nothing), one attention over the states, one dense layer."""

    def __init__(self, words: int, labels: int, *, encoder: str, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 2 * width)
        self.states = nn.GRU(2 * width, width, batch_first=True, bidirectional=True) if encoder == "GRU" else None
        self.key = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh(), nn.Linear(width, 1, bias=False))
        self.out = nn.Linear(2 * width, labels)

    def forward(self, input_ids: Tensor) -> Tensor:
        states = nn.functional.dropout(self.embedding(input_ids), 0.4, self.training)
        if self.states is not None:
            states, _ = self.states(states)
        weights = self.key(states).softmax(1)  # (rows, n, 1)
        return self.out((weights * states).sum(1))


def mr() -> tuple[Sentences, Sentences]:
    """No split is given: every tenth sentence is held out."""
    rows = data.labelled("rt-polarity.all")
    return [row for i, row in enumerate(rows) if i % 10], rows[::10]


LARGE, NEAR = 0.2, 0.01  # a difference of two weights, and an effect in nats, of which at most ln 2 = 0.69 is possible
SETS: dict[str, Callable[[], tuple[Sentences, Sentences]]] = {
    "MR": mr,
    "SST-2": lambda: (data.labelled("stsa.binary.train"), data.labelled("stsa.binary.test")),
    "TREC": lambda: (data.questions("train"), data.questions("test")),
}


def run(report: Report) -> None:
    with report.part("Models"):
        boards = _measured(report)
        _observations(report, boards)
        _single(report, boards)
        _sets(report, boards)
        _pictures(report, boards)


def _measured(report: Report) -> Boards:
    boards: Boards = {}
    about = []
    for name, read in SETS.items():
        if report.quick and name != "TREC":
            continue
        train, test = read()
        train = train[: report.size(len(train), 800)]
        test = [row for row in test if len(row[0].split()) > 1]
        for encoder in EPOCHS:
            model, known = _trained(report, name, encoder, train)
            rows = [{"inputs": {"input_ids": ids_of(text, known)}, "label": label} for text, label in test]
            said = [int(model(row["inputs"]["input_ids"][None]).argmax()) == row["label"] for row in rows]
            read = Counter(tuple(row["inputs"]["input_ids"].tolist()) for row in rows)
            rows = rows[: report.size(1_000, 20)]
            length = statistics.fmean(len(row["inputs"]["input_ids"]) for row in rows)
            right_of = f"{proportion(sum(said), len(said), alike=_alike(read.values()))} of {len(said)}"
            about.append([name, encoder, len(train), right_of, len(rows), f"{length:.1f}"])
            boards[name, encoder] = whence.evaluate(
                model, rows, methods=RANKINGS, output="probability", metrics=METRICS,
                resume=report.kept(f"{name}-{encoder}-{len(train)}-{len(rows)}.jsonl"),
            )  # fmt: skip
    heads = ["data", "encoder", "sentences to learn from", "accuracy on the held-out", "rows here", "words in a row"]
    report.table("models", heads, about, "Seed 0; one model each. In all intervals here rows that the model reads as "
                 "the same words (its unknown words are one) count as one, with their number as weight.")  # fmt: skip
    return boards


def _observations(report: Report, boards: Boards) -> None:
    """The paper's four, each as the number that speaks for or against it."""
    report.heading("The four observations")
    rows = []
    for (name, encoder), board in boards.items():
        single, sets = board["attention", "single"], board["attention", "sets"]
        correlation = spearman(*map(torch.tensor, _pairs(board)))
        results = {row: r for row, r in board.results["attention", "single"].items() if r.value == r.value}
        near = {row: abs(r.value) < NEAR for row, r in results.items()}
        large = {row for row, r in results.items() if r.parts["difference of weights"] >= LARGE}
        little = [_share(board, {row: near[row] for row in rows_of}) for rows_of in (large, near.keys() - large)]
        kept = {row: not (r.parts["both flip"] or r.parts["only the first flips"]) for row, r in results.items()}
        apart = board.difference("sets", "attention", "gradient × attention")
        own = scored(apart, "+.3f")
        still = _share(board, kept)
        rows.append([name, encoder, f"{correlation:+.2f}", *little, still, f"{sets.median:.2f}", own])
        flips = [single.parts[part] for part in FLIPS]
        report.must("the 2 × 2 table holds every row once", abs(sum(flips) - 100) < 1e-6)
        best, chance = board["gradient × attention", "sets"].value, board["random", "sets"].value
        report.must("gradient × attention flips sooner than random", best < chance)
    heads = [
        "data", "encoder", "1: ΔJS with Δα, rank correlation",
        f"1: ΔJS within ± {NEAR} where Δα ≥ {LARGE}", f"… where Δα < {LARGE}",
        "2: erasing i* does not flip the decision",
        "3: share that attention erases, median", "4: attention needs more than gradient × attention by",
    ]  # fmt: skip
    report.table("observations", heads, rows, "Shares of rows, with 95 % intervals.")


def _share(board: Any, found: dict[int, bool]) -> str:
    """In how many of these rows it is so."""
    if not found:
        return "–"
    alike = _alike(Counter(board.copies.get(row, row) for row in found).values())
    return f"{proportion(sum(found.values()), len(found), 2, alike)} of {len(found)}"


def _alike(counts: Iterable[int]) -> float:
    """How many rows of their own tell as much as groups of so many equal ones."""
    given = np.array(list(counts), dtype=float)
    return effective(len(given), given)


def _pairs(board: Any) -> tuple[list[float], list[float]]:
    """Δα and ΔJS of each row, by attention."""
    results = [r for r in board.results["attention", "single"].values() if r.value == r.value]
    return [r.parts["difference of weights"] for r in results], [r.value for r in results]


def _single(report: Report, boards: Boards) -> None:
    report.heading("One weight: does erasing the highest (i*), or a random other one (r), flip the decision?")
    rows, flips = [], []
    for (name, encoder), board in boards.items():
        for ranking in RANKINGS:
            found = board[ranking, "single"]
            value = scored(found)
            rows.append([name, encoder, ranking, value, f"{100 - found.parts['negative']:.1f}"])
        both, first, other, neither = (f"{board['attention', 'single'].parts[part]:.1f}" for part in FLIPS)
        flips += [[name, encoder, "without i*: yes", both, first], [name, encoder, "without i*: no", other, neither]]
    report.table("flips", ["data", "encoder", "flip?", "without r: yes", "without r: no"], flips,
                 "The paper's 2 × 2 table, by attention, in per cent of the rows.")  # fmt: skip
    report.heading("ΔJS, by each ranking")
    report.table("single", ["data", "encoder", "i* is the highest by", "ΔJS, nats", "ΔJS ≥ 0, %"], rows, "ΔJS = JS(p, "
                 "q without i*) − JS(p, q without r), mean over rows with its 95 % interval.")  # fmt: skip
    report.heading("How often the highest weight does less than a random one, by the difference Δα of the two")
    rows = []
    for (name, encoder), board in boards.items():
        bins = by_difference(board, "attention")
        rows.append([name, encoder, *(f"{share:.0f} % of {count}" if count else "–" for _, _, count, share in bins)])
    bins = by_difference(next(iter(boards.values())), "attention")
    report.table("by_difference", ["data", "encoder", *(f"{low:.1f}–{high:.1f}" for low, high, _, _ in bins)], rows)


def _sets(report: Report, boards: Boards) -> None:
    report.heading("Sets of weights: the share erased, highest ranked first, until the decision flips")
    rows = []
    for (name, encoder), board in boards.items():
        for ranking in RANKINGS:
            found = board[ranking, "sets"]
            results = list(board.results[ranking, "sets"].values())
            last = 100 * sum(r.value == 1 and "mass erased" in r.parts for r in results) / len(results)
            never, mass = found.parts["never flips"], found.parts.get("mass erased", float("nan"))
            mean = scored(found)
            ends = [f"{found.median:.2f}", f"{last:.1f}", f"{never:.1f}", f"{mass:.2f}"]
            rows.append([name, encoder, ranking, mean, *ends])
    heads = ["data", "encoder", "ranking", "mean share", "median", "only without all, %", "never, %", "mass erased"]
    report.table("sets", heads, rows, "A row that never flips counts as 1; the interval is of 95 %; without all "
                 "weights the model is left with its bias. The mass is of rows that flip.")  # fmt: skip
    report.heading("Against erasing by attention, row by row")
    rows = []
    for (name, encoder), board in boards.items():
        for other in ("gradient", "gradient × attention", "random"):
            apart = board.difference("sets", other, "attention")
            rows.append([name, encoder, other, "attention", scored(apart, "+.3f")])
        apart = board.difference("sets", "gradient × attention", "gradient")
        rows.append([name, encoder, "gradient × attention", "gradient",
                     scored(apart, "+.3f")])  # fmt: skip
    heads = ["data", "encoder", "ranking", "against", "share of the weights that it needs more"]
    report.table("differences", heads, rows, "Paired, with 95 % intervals; below 0, the ranking needs fewer than the "
                 "one it is held against.")  # fmt: skip


def _pictures(report: Report, boards: Boards) -> None:
    wide = min(3, len(boards))
    tall = 2 * -(-len(boards) // wide)
    figure, axes = pyplot.subplots(tall, wide, figsize=(3.6 * wide, 3 * tall), layout="constrained", squeeze=False)
    pairs = [pair for two in range(0, tall, 2) for pair in axes[two : two + 2].T]
    for (above, below), ((name, encoder), board) in zip(pairs, boards.items(), strict=False):
        above.scatter(*_pairs(board), s=4, color=BLUE, alpha=0.4)
        above.axhline(0, color=GREY, linewidth=0.6)
        above.set(title=f"{name}, encoder: {encoder}", xlabel="Δα", ylabel="ΔJS, nats", xlim=(0, 1), ylim=(-0.45, 0.72))
        shares = [[r.value for r in board.results[ranking, "sets"].values()] for ranking in RANKINGS]
        below.boxplot(shares, widths=0.6, showfliers=False, medianprops={"color": RED})
        below.set_xticks(range(1, 5), ["attention", "gradient", "both", "random"], rotation=30)
        below.set(ylabel="share erased until it flips", ylim=(0, 1.02))
    report.figure("erasure", figure, "Above: ΔJS against Δα. Below: the share of weights erased until the decision "
                  "flips (1: never), by ranking; “both” is gradient × attention.")  # fmt: skip


# ---- the models ----


def _trained(report: Report, name: str, encoder: str, train: Sentences) -> tuple[Reader, dict[str, int]]:
    torch.manual_seed(0)
    known = {word: 1 + i for i, word in enumerate(dict.fromkeys(w for text, _ in train for w in text.split()))}
    model = Reader(1 + len(known), 1 + max(label for _, label in train), encoder=encoder)
    rows = [(ids_of(text, known), label) for text, label in train]
    learn = partial(fit, model, rows, epochs=EPOCHS[encoder])
    report.learned(f"{name}-{encoder}", model, learn, train, EPOCHS[encoder])
    return model.eval(), known


def ids_of(text: str, known: dict[str, int]) -> Tensor:
    return torch.tensor([known.get(word, 0) for word in text.split()])


def fit(model: Reader, rows: list[tuple[Tensor, int]], epochs: int) -> None:
    """Rows of one length together, so that nothing is padded; some words are unknown, as some will be later."""
    groups: dict[int, list[tuple[Tensor, int]]] = {}
    for ids, label in rows:
        groups.setdefault(len(ids), []).append((ids, label))
    batches = [group[i : i + 32] for group in groups.values() for i in range(0, len(group), 32)]
    optimiser = torch.optim.Adam(model.parameters(), 2e-3)
    model.train()
    for _ in range(epochs):
        for number in torch.randperm(len(batches)).tolist():
            ids, labels = torch.stack([i for i, _ in batches[number]]), torch.tensor([y for _, y in batches[number]])
            ids = ids * (torch.rand(ids.shape) > 0.02)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(ids), labels).backward()
            optimiser.step()
    model.eval()
