"""AttCAT (Qiang et al. 2022) against its baselines: does the decision fall with the tokens that it ranks highest?

AOPC and log-odds on sentences about films (SST-2, MR; the zoo's BERT) and on toxic posts (bert-tiny-toxicity), once
with special tokens left out of the ranking and once with them in it, so that they can be removed like any word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from matplotlib import pyplot
from matplotlib.ticker import MaxNLocator

import whence
from reproductions.report import BLUE, GREY, RED, Report, proportion, scored
from reproductions.texts import OTHERS, posts, toxicity
from whence.adapters.wrapped import Wrapped
from whence.zoo.training import data

OURS = "AttCAT"
PAPER = ("raw attention", "rollout", "attention gradients", "partial LRP", "Transformer Attribution", "CAT")  # against
METHODS: dict[str, dict[str, Any]] = {
    OURS: {"method": "attcat"},
    "CAT": {"method": "cat"},
    "raw attention": {"method": "raw_attention"},
    "rollout": {"method": "rollout"},
    "attention gradients": {"method": "attention_gradients"},
    "partial LRP": {"method": "partial_lrp"},
    "Transformer Attribution": {"method": "transformer_attribution"},
    "generic attention": {"method": "generic_attention"},
    "Grad-SAM": {"method": "grad_sam"},
    **OTHERS,
}
QUICK = (OURS, "CAT", "raw attention", "random")
BUNDLED = "bundled sentences"
AOPC, ODDS = "AOPC ↑", "log-odds ↓"
SPECIAL = ("left out", "in the ranking")
Boards = dict[str, dict[str, Any]]  # by data set, by what becomes of special tokens


def run(report: Report) -> None:
    boards: Boards = {}
    for name, (read, load) in SETS.items():
        if name == BUNDLED and not report.quick:
            continue
        with report.part(name):
            boards[name] = _measured(report, name, read(report.size(ROWS[name], 6)), load())
    if not boards:
        return
    _against(report, boards)
    _picture(report, boards)


# ---- rows ----


def bundled(count: int) -> list[tuple[str, int | None]]:
    """The sentences that come with the zoo's model: they need no data."""
    return [(str(text), None) for text in whence.load("zoo:sentiment").examples[:count]]


def sst2(count: int) -> list[tuple[str, int | None]]:
    rows = data.labelled("stsa.binary.test")
    return [(data.natural(text), label) for text, label in rows[:: len(rows) // count][:count]]


def mr(count: int) -> list[tuple[str, int | None]]:
    """Sentences of MR that are not in SST-2's test set."""
    others = {_letters(text) for text, _ in data.labelled("stsa.binary.test")}
    rows = [(text, label) for text, label in data.labelled("rt-polarity.all") if _letters(text) not in others]
    return [(data.natural(text), label) for text, label in rows[:: len(rows) // count][:count]]


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


def toxic(count: int) -> list[tuple[str, int | None]]:
    return [(row["text"], 1) for row in posts(count)]


def _sentiment() -> Wrapped:
    return whence.load("zoo:sentiment", long="truncate")


SETS: dict[str, tuple[Callable[[int], list[tuple[str, int | None]]], Callable[[], Wrapped]]] = {
    BUNDLED: (bundled, _sentiment),
    "SST-2": (sst2, _sentiment),
    "MR": (mr, _sentiment),
    "toxic posts": (toxic, toxicity),
}
ROWS = {BUNDLED: 5, "SST-2": 300, "MR": 300, "toxic posts": 300}


# ---- measuring ----


def _measured(report: Report, name: str, rows: Sequence[tuple[str, int | None]], model: Wrapped) -> dict[str, Any]:
    methods = {key: how for key, how in METHODS.items() if not report.quick or key in QUICK}
    metrics = {AOPC: {"metric": "aopc"}, ODDS: {"metric": "log_odds", "operator": model.tokenizer.mask_token_id}}
    texts = sorted((text for text, _ in rows), key=lambda text: len(model.tokenizer(text)["input_ids"]))
    coded = [_coded(model, text) for text in texts]  # those of one length are explained together
    forms: dict[str, tuple[Any, Any]] = {"left out": (model, texts), "in the ranking": (model.model, coded)}
    boards = {}
    for special, (given, inputs) in forms.items():
        kept = report.kept(f"{name}-{special}-{len(rows)}-{len(methods)}.jsonl")
        boards[special] = whence.evaluate(given, inputs, methods=methods, metrics=metrics, resume=kept)
    _told(report, name, rows, model, boards)
    for special, board in boards.items():
        above = board[OURS, AOPC].value > board["random", AOPC].value
        report.must(f"{OURS} is above random by AOPC on {name}, special tokens {special}", above)
    return boards


def _coded(model: Wrapped, text: str) -> dict[str, Any]:
    """A text's tensors, in which special tokens are tokens as all others."""
    limit = min(512, model.model.config.max_position_embeddings)
    given = model.tokenizer(text, truncation=True, max_length=limit)
    return {"inputs": {key: torch.tensor(given[key]) for key in ("input_ids", "attention_mask")}}


def _told(
    report: Report, name: str, rows: Sequence[tuple[str, int | None]], model: Wrapped, boards: dict[str, Any]
) -> None:
    known = [(text, label) for text, label in rows if label is not None]
    said = _right(model, known)
    right = f", of which the model labels {proportion(sum(said), len(said))} as people did" if known else ""
    if name == "MR" and not report.quick:
        right += f": {_by_learned(rows, said)}"
    if name == "toxic posts":
        right += " (as toxic, which all of them are)"
    report.say(f"{len(rows)} rows{right}. The predicted class is explained.")
    order = sorted(boards["left out"].methods, key=lambda method: -boards["left out"][method, AOPC].value)
    heads = ["method", *(f"{metric}, special tokens {special}" for special in SPECIAL for metric in (AOPC, ODDS))]
    cells = [
        [m, *(scored(boards[special][m, metric]) for special in SPECIAL for metric in (AOPC, ODDS))] for m in order
    ]
    file = name.lower().replace(" ", "_").replace("-", "")
    report.table(file, heads, cells, "Means over rows with 95 % intervals; seed 0.")


def _by_learned(rows: Sequence[tuple[str, int | None]], said: Sequence[bool]) -> str:
    known = {_letters(text) for text, _, whole in data.phrases("train") if whole}
    learned = [_letters(text) in known for text, _ in rows]
    own, other = (
        [right for right, seen in zip(said, learned, strict=True) if seen is which] for which in (True, False)
    )
    return (
        f"{sum(own)} of the {len(own)} that are in the treebank from which it learned, "
        f"and {sum(other)} of the {len(other)} others"
    )


@torch.no_grad()
def _right(model: Wrapped, rows: Sequence[tuple[str, int | None]]) -> list[bool]:
    """Of each row, whether the model says what people said."""
    found = []
    for text, label in rows:
        inputs = _coded(model, text)["inputs"]
        logits = model.model(**{key: value[None] for key, value in inputs.items()}).logits
        found.append(int(logits.argmax()) == label)
    return found


# ---- comparing ----


def _against(report: Report, boards: Boards) -> None:
    report.heading(f"{OURS} against each of the others, row by row")
    better: dict[tuple[bool, str], list[int]] = {}
    for metric, sign, file in ((AOPC, 1, "aopc"), (ODDS, -1, "log_odds")):
        lines = []
        for other in (m for m in METHODS if m != OURS and m in next(iter(boards.values()))["left out"].methods):
            cells = []
            for by_special in boards.values():
                for special in SPECIAL:
                    apart = by_special[special].difference(metric, OURS, other)
                    cells.append(scored(apart, "+.3f"))
                    told = 0 if sign * apart.low > 0 and sign * apart.high > 0 else 1
                    told = 2 if sign * apart.low < 0 and sign * apart.high < 0 else told
                    better.setdefault((other in PAPER, metric), [0, 0, 0])[told] += 1
            lines.append([other, "yes" if other in PAPER else "", *cells])
        heads = [f"{name}, special tokens {special}" for name in boards for special in SPECIAL]
        side = "Above 0" if sign > 0 else "Below 0"
        report.table(f"differences_{file}", ["method", "in the paper", *heads], lines, f"{metric[:-2]} of {OURS} minus "
                     f"that of the other, with paired 95 % intervals. {side}, {OURS} is the better one.")  # fmt: skip
    rows = [["the paper's" if own else "others", metric, *counts] for (own, metric), counts in better.items()]
    report.table("verdicts", ["methods", "metric", f"{OURS} is better", "not told apart", f"{OURS} is worse"], rows,
                 "How the comparisons above come out; an interval without 0 counts as told apart.")  # fmt: skip


def _picture(report: Report, boards: Boards) -> None:
    figure, axes = pyplot.subplots(2, len(boards), figsize=(4.2 * len(boards), 8), layout="constrained", squeeze=False)
    methods = next(iter(boards.values()))["left out"].methods
    order = sorted(methods, key=lambda m: sum(by["left out"][m, AOPC].value for by in boards.values()))
    for column, (name, by_special) in enumerate(boards.items()):
        for axis, metric in zip(axes[:, column], (AOPC, ODDS), strict=True):
            for special, shift, colour in zip(SPECIAL, (0.15, -0.15), (BLUE, RED), strict=True):
                scores = [by_special[special][m, metric] for m in order]
                ends = [[s.value - s.low for s in scores], [s.high - s.value for s in scores]]
                heights = [i + shift for i in range(len(order))]
                axis.errorbar([s.value for s in scores], heights, xerr=ends, fmt="o", markersize=4, color=colour,
                              elinewidth=0.8, label=f"special tokens {special}")  # fmt: skip
            axis.axhspan(order.index(OURS) - 0.4, order.index(OURS) + 0.4, color=GREY, alpha=0.15)
            axis.set(title=f"{name}: {metric}", ylim=(-0.6, len(order) - 0.4))
            axis.xaxis.set_major_locator(MaxNLocator(5))
            axis.set_yticks(range(len(order)), order if column == 0 else [""] * len(order))
    axes[0, 0].legend(fontsize=7, loc="upper left")
    report.figure("attcat", figure, "AOPC (higher is better) and log-odds (lower is better) with 95 % intervals.")
