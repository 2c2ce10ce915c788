"""Do methods find the words that people gave as reasons? Film reviews (Chefer et al. 2021), and toxic posts too.

A small BERT learns to tell good reviews from bad ones, reading them in windows; of the words that each method ranks
highest, those that people marked are counted. The same on posts whose toxic words people marked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from matplotlib import pyplot

import whence
from reproductions.movie_rationales.model import accuracy, trained
from reproductions.report import BLUE, GREY, RED, Report, proportion, scored
from reproductions.texts import OTHERS, posts, reviews, toxicity
from whence.adapters import tokens as tokenization

OURS = "Transformer Attribution"
BASELINES = ("raw attention", "rollout", "attention Grad-CAM", "LRP", "partial LRP")  # those of the paper
METHODS: dict[str, dict[str, Any]] = {
    "raw attention": {"method": "raw_attention"},
    "rollout": {"method": "rollout"},
    "attention Grad-CAM": {"method": "attention_gradcam"},
    "LRP": {"method": "lrp"},
    "partial LRP": {"method": "partial_lrp"},
    OURS: {"method": "transformer_attribution"},
    "generic attention": {"method": "generic_attention"},
    "Grad-SAM": {"method": "grad_sam"},
    "CAT": {"method": "cat"},
    "AttCAT": {"method": "attcat"},
    **OTHERS,
}
METRICS: dict[str, dict[str, Any]] = {
    "F1, k = 5 … 80": {"metric": "rationale_f1", "k": "paper"},
    "F1, k as many as marked": {"metric": "rationale_f1", "k": "marked"},
    "average precision": {"metric": "rationale_ap"},
}
CURVE, MARKED, PRECISION = METRICS


def run(report: Report) -> None:
    found: dict[str, Any] = {}
    with report.part("Film reviews"):
        found["film reviews"] = film_reviews(report)
    with report.part("Toxic posts"):
        found["toxic posts"] = toxic_posts(report)
    if found:
        _picture(report, found)


# ---- film reviews ----


def film_reviews(report: Report) -> Any:
    window = report.size(256, 64)
    train, test = reviews("train"), reviews("test")
    if report.quick:
        train, shown = train[::100], sorted(test, key=lambda row: len(row["text"]))[:2]
    else:
        shown = test[::2]
    model = trained(report, train, window)
    right = "not measured in the quick form" if report.quick else _accuracies(report, model)
    marked = [sum(end - start for start, end in row["rationale"]) / len(row["text"]) for row in shown]
    report.say(
        f"Model: bert-tiny (2 layers of 2 heads, 128 wide), fine-tuned here from bert-tiny-toxicity's encoder on "
        f"{len(train)} reviews in windows of {window} tokens that overlap by half, seed 0. "
        f"Accuracy: {right} (the mean logit over a review's windows). "
        f"Explained is the predicted class of {len(shown)} test reviews; a token's score is its mean over windows, a "
        f"word's the highest of its pieces. People marked {sum(marked) / len(marked):.0%} of a review."
    )
    board = explained(review_blocks(report, model, shown, f"reviews-{len(train)}-{window}-{len(shown)}"), 10)
    report.must("every review was explained", not board.failures)
    best = ceiling(model.tokenizer, shown)
    _sorted(report, "reviews", board, f"Means over reviews with 95 % intervals. The best possible mean F1 over k = 5 … "
            f"80 is {sum(best) / len(best):.3f}, as most reviews have more than 80 marked words.")  # fmt: skip
    for name in board.methods:
        points = board.curve(name, CURVE)[1]
        report.must(
            f"{name} is not above the best possible", all(p <= b + 1e-9 for p, b in zip(points, best, strict=True))
        )
    _curves(report, board, best)
    _against(report, board, "review")
    return board


def _accuracies(report: Report, model: Any) -> str:
    told = []
    for name in ("val", "test"):
        rows = reviews(name)
        right = report.once(f"accuracy-{name}", partial(accuracy, model, rows), model, rows)
        told.append(f"{proportion(right * len(rows), len(rows))} of {len(rows)} on {name}")
    return ", ".join(told)


def review_blocks(report: Report, model: Any, rows: Sequence[dict[str, Any]], name: str) -> list[Callable[[], Any]]:
    return blocks_of(report, model, rows, name, 10, metrics=METRICS, batch_size=8, chunk=5)


def ceiling(tokenizer: Any, rows: Sequence[dict[str, Any]]) -> list[float]:
    """The F1 at each k of an order in which every marked word comes before all others, mean over reviews."""
    counts = [marked_words(tokenizer, row) for row in rows]
    return [sum(2 * min(k, n) / (k + n) for n in counts) / len(counts) for k in range(5, 81, 5)]


def marked_words(tokenizer: Any, row: dict[str, Any]) -> int:
    """How many of a review's words overlap a marked span."""
    (whole,) = tokenization.tokens_of(tokenizer, (row["text"],))
    pieces = zip(whole.words, whole.spans, whole.special, strict=True)
    places = [(word, start, end) for word, (start, end), special in pieces if not special]
    return len(
        {word for word, start, end in places if any(start < last and first < end for first, last in row["rationale"])}
    )


def _sorted(report: Report, name: str, board: Any, caption: str, by: str = CURVE) -> None:
    """The board, the best method first."""
    order = sorted(board.methods, key=lambda method: -board[method, by].value)
    cells = [[m, *(scored(board[m, metric]) for metric in board.metrics)] for m in order]
    report.table(name, ["method", *board.metrics], cells, caption)


def _curves(report: Report, board: Any, best: list[float]) -> None:
    report.heading("F1 at each number of words")
    sizes = [int(k) for k in board.curve("random", CURVE)[0]]
    shown = [i for i, k in enumerate(sizes) if k in (5, 10, 20, 40, 60, 80)]
    order = sorted(board.methods, key=lambda method: -board.curve(method, CURVE)[1][-1])
    rows = [[name, *(f"{board.curve(name, CURVE)[1][i]:.3f}" for i in shown)] for name in order]
    rows.append(["best possible", *(f"{best[i]:.3f}" for i in shown)])
    report.table("curves", ["method", *(f"k = {sizes[i]}" for i in shown)], rows)


def _against(report: Report, board: Any, case: str) -> None:
    report.heading(f"{OURS} against the others, {case} by {case}")
    rows = []
    for name in (name for name in board.methods if name != OURS):
        apart = [board.difference(metric, OURS, name) for metric in board.metrics]
        own = "yes" if name in BASELINES else ""
        rows.append([name, own, *(scored(one, "+.3f") for one in apart)])
    heads = ["method", "in the paper's figure", *board.metrics]
    report.table(f"against_{case}s", heads, rows, f"How much more {OURS} has, "
                 "with paired 95 % intervals, not adjusted for their number.")  # fmt: skip


# ---- blocks of rows ----


def explained(blocks: Sequence[Callable[[], Any]], size: int) -> Any:
    """The boards of all blocks of `size` rows, as one."""
    boards = [block() for block in blocks]
    results: dict[tuple[str, str], dict[int, Any]] = {cell: {} for cell in boards[0].results}
    for number, board in enumerate(boards):
        for cell, rows in board.results.items():
            results[cell].update({size * number + row: result for row, result in rows.items()})
    copies = {size * n + a: size * n + b for n, board in enumerate(boards) for a, b in board.copies.items()}
    failures = tuple(failure for board in boards for failure in board.failures)
    return dataclasses.replace(boards[0], results=results, failures=failures, copies=copies, again=None)


def blocks_of(
    report: Report, model: Any, rows: Sequence[dict[str, Any]], name: str, size: int, **options: Any
) -> list[Callable[[], Any]]:
    """Each evaluates some rows and keeps what it finds for itself, so that several processes can share the work."""
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [
        partial(whence.evaluate, model, part, methods=METHODS, resume=report.kept(f"{name}-{n}.jsonl"), **options)
        for n, part in enumerate(parts)
    ]


# ---- toxic posts ----


def post_blocks(report: Report, rows: Sequence[dict[str, Any]]) -> list[Callable[[], Any]]:
    metrics = {name: METRICS[name] for name in (MARKED, PRECISION)}
    return blocks_of(report, toxicity(), rows, f"posts-{len(rows)}", 40, metrics=metrics, target=1)


def toxic_posts(report: Report) -> Any:
    rows = posts(report.size(320, 12))
    board = explained(post_blocks(report, rows), 40)
    report.must("every post was explained", not board.failures)
    right = accuracy(toxicity(), [{**row, "label": 1} for row in rows])
    report.say(
        f"Model: bert-tiny-toxicity as it is, its logit for “toxic”, {len(rows)} posts with a marked span, of which it "
        f"calls {proportion(right * len(rows), len(rows))} toxic. Most have fewer than 80 words, so k is the number of "
        f"marked words."
    )
    _sorted(report, "posts", board, "Means over posts with 95 % intervals.", by=PRECISION)
    for name in ("DeepLIFT", "integrated gradients"):
        higher = board[name, PRECISION].value > board["random", PRECISION].value
        report.must(f"{name} finds more of the toxic words than chance", higher)
    _against(report, board, "post")
    return board


# ---- picture ----


def _picture(report: Report, boards: dict[str, Any]) -> None:
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 5), layout="constrained")
    reviewed, posted = boards.get("film reviews"), boards.get("toxic posts")
    if reviewed is not None:
        order = sorted(reviewed.methods, key=lambda method: -reviewed.curve(method, CURVE)[1][-1])
        colours = {True: iter(pyplot.get_cmap("Dark2").colors), False: iter(pyplot.get_cmap("tab10").colors)}
        for name in order:
            sizes, points = reviewed.curve(name, CURVE)
            style = {OURS: {"color": RED, "linewidth": 2.5}, "random": {"color": GREY, "linestyle": "--"}}.get(name)
            own = name in BASELINES
            if style is None:
                style = {"color": next(colours[own]), "linewidth": 1.4, "linestyle": "-" if own else (0, (1, 1.2))}
            axes[0].plot(sizes, points, label=name, **style)
            if name in (OURS, "random"):
                axes[0].fill_between(
                    sizes, *reviewed.band(name, CURVE), color=RED if name == OURS else GREY, alpha=0.15
                )
        axes[0].set(title="film reviews", xlabel="k, words taken", ylabel="token F1")
        axes[0].legend(
            fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1), title="by F1 at k = 80", title_fontsize=7
        )
    if posted is not None:
        order = sorted(posted.methods, key=lambda method: posted[method, PRECISION].value)
        scores = [posted[name, PRECISION] for name in order]
        ends = [[s.value - s.low for s in scores], [s.high - s.value for s in scores]]
        colours = [RED if name == OURS else GREY if name == "random" else BLUE for name in order]
        axes[1].barh(order, [s.value for s in scores], xerr=ends, color=colours, error_kw={"elinewidth": 0.8})
        axes[1].set(title="toxic posts", xlabel="average precision", xlim=(0, 1))
    report.figure("rationales", figure, "Left: F1 of the k highest words against the marked ones, film reviews; solid: "
                  "the paper's baselines, dotted: others; shaded: 95 % intervals of Transformer Attribution and of "
                  "random (their difference has a narrower one). Right: average precision on toxic posts, with 95 % "
                  "intervals.")  # fmt: skip
