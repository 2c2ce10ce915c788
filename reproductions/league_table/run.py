"""A league table: every method by faithfulness and plausibility on four models, with ranks, their sets, and the cost.

Toxic posts, film reviews, mosaics of clothes and photographs of horses.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from matplotlib import pyplot
from matplotlib.ticker import FixedLocator

import whence
from reproductions import ranks
from reproductions.league_table import costs, rounding
from reproductions.league_table.fields import FIELDS, LRP, MASKS, SHARES, Field, mosaic_rows
from reproductions.report import BLUE, GREY, RED, Report
from whence.evaluation.bootstrap import wilson
from whence.evaluation.evidence import kendall
from whence.zoo.training import mosaics

FAMILY = (*LRP, "cp_lrp", "partial_lrp", "transformer_attribution")
KINDS = ("faithful", "plausible")
Standing = dict[str, tuple[int, int, int]]  # by method: its rank, and the lowest and highest that it may have


def run(report: Report) -> None:
    if report.quick:
        _quick(report)
    found: dict[str, dict[str, Standing]] = {}
    for field in FIELDS:
        with report.part(f"{field.name}: {field.what}"):
            board = _board(report, field)
            found[field.name] = _told(report, field, board)
    if report.quick:
        return
    _together(report, found)
    _rounding(report)
    report.figure("ranks", _picture(found), "Ranks by faithfulness with their 95 % sets, one panel per model; red: "
                  "controls; the left end of a bar is the best rank that the rows allow.")  # fmt: skip


def _quick(report: Report) -> None:
    """What needs no data: the shipped mosaics."""
    report.heading("shipped mosaics")
    given = mosaics.shipped()
    few = mosaics.Mosaics(given.images[:6], given.classes[:6], given.masks[:6])
    board = whence.evaluate(
        whence.load("zoo:mosaic-vit"), mosaic_rows(few), methods=["rollout", "deeplift", "generic_attention"],
        metrics=["comprehensiveness", *MASKS],
    )  # fmt: skip
    _certain(report, board, _standing(board, ["comprehensiveness"]))
    report.board("shipped", board)
    rounding.told(
        report, {"mosaics": (whence.load("zoo:mosaic-vit"), mosaic_rows(few)[:2])}, {"attnlrp": LRP["attnlrp"]}
    )


def _rounding(report: Report) -> None:
    fields = {field.name: field for field in FIELDS if field.name in ("mosaics", "horses")}
    models = {name: (field.model(), field.rows(field.count)) for name, field in fields.items()}
    rounding.told(report, models, LRP)


def _board(report: Report, field: Field) -> Any:
    model, rows = field.model(), field.rows(report.size(field.count, 2))
    methods = field.methods
    metrics = {**field.faithful, **field.plausible}
    if report.quick:
        methods = {name: methods[name] for name in ("gradient", "deeplift")}
        metrics = {**{name: field.faithful[name] for name in list(SHARES)[:2]}, **field.plausible}
    board = whence.evaluate(
        model, rows, methods=methods, metrics=metrics, target=field.target, batch_size=field.batch_size, chunk=8,
        resume=report.kept(f"{field.name}-{len(rows)}.jsonl"),
    )  # fmt: skip
    right = _accuracy(model, rows)
    low, high = wilson(right, len(rows))
    report.say(f"{len(rows)} rows, seed 0; the model is right on {right:.3f} [{low:.3f}, {high:.3f}] of them. "
               f"Explained is {'the class ' + str(field.target) if field.target != 'predicted' else 'the prediction'}."
               )  # fmt: skip
    return board


def _accuracy(model: Any, rows: list[dict[str, Any]]) -> float:
    given = [row.get("text", row.get("image")) for row in rows]
    label = [row["label"] if isinstance(row["label"], int) else model.target(row["label"]) for row in rows]
    said = whence.explain(model, given, method="random", progress=False).target.flatten().tolist()
    return sum(a == b for a, b in zip(said, label, strict=True)) / len(rows)


# ---- ranks ----


def _told(report: Report, field: Field, board: Any) -> dict[str, Standing]:
    """The tables of one field, and the methods' standing by both kinds of metrics."""
    asked = {"faithful": field.faithful, "plausible": field.plausible}
    columns = {kind: [c for c in board.metrics if c in asked[kind]] for kind in KINDS}
    standing = {kind: _standing(board, columns[kind]) for kind in KINDS}
    for kind in KINDS:
        _certain(report, board, standing[kind])
    order = sorted(board.methods, key=lambda m: standing["faithful"].get(m, (999, 0, 0))[0])
    taken = costs.times(report, field)
    rows = [
        [m, *(_place(standing[kind].get(m)) for kind in KINDS), f"{taken[m]:.1f}" if m in taken else "–",
         _passes(board, m),
         *(f"{board[m, c].value:.3f}" for c in board.metrics)]
        for m in order
    ]  # fmt: skip
    heads = ["method", "faithful", "plausible", "× fb", "passes", *board.metrics]
    report.table(field.name, heads, rows, "Rank by the mean of the faithfulness metrics, and by that of the "
                 "plausibility metrics, each in standard deviations over rows and methods; in brackets the ranks that "
                 "the rows allow, all methods together with 95 % confidence. × fb: CPU time in that of "
                 "`gradient`, which is one pass forward and back, on the same rows, in turns; passes: forward and "
                 "backward ones that a row took part in, copies of it together.")  # fmt: skip
    report.files[f"{field.name}_intervals.csv"] = board.to_csv().encode()
    if len(columns["faithful"]) > 1:
        report.say(_agreement(board, columns, standing))
    return standing


def _scaled(board: Any, columns: list[str]) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Methods, and for each row the mean over metrics, each turned so that more is better and in its own spread."""
    chosen = [c for c in board.columns if c.name in columns]
    have = {m: [set(board.rows(m, c.name)) for c in chosen] for m in board.methods}
    most = max(len(set.intersection(*sets)) for sets in have.values())
    names = [m for m in board.methods if len(set.intersection(*have[m])) >= max(1, most / 2)]
    shared = sorted(set.intersection(*(rows for m in names for rows in have[m])))
    values = np.array([
        [c.gain(np.array([board.results[m, c.name][row].value for row in shared])) for c in chosen] for m in names
    ])  # (methods, metrics, rows)  # fmt: skip
    spread = np.maximum(values.std((0, 2), ddof=1), 1e-12)
    return names, (values / spread[None, :, None]).mean(1).T


def _standing(board: Any, columns: list[str]) -> Standing:
    names, scores = _scaled(board, columns)
    return dict(zip(names, ranks.ranks(scores, np.ones(len(scores))), strict=True))


def _place(given: tuple[int, int, int] | None) -> str:
    return "–" if given is None else f"{given[0]} [{given[1]}–{given[2]}]"


def _passes(board: Any, method: str) -> str:
    """How many times the model was called for a row."""
    forward, backward = board.passes(method)
    return f"{forward:.0f} + {backward:.0f}"


def _certain(report: Report, board: Any, standing: Standing) -> None:
    places = sorted(place for place, _, _ in standing.values())
    report.must("ranks are the numbers from 1 on", places == list(range(1, len(standing) + 1)))
    report.must("every rank lies in its set", all(low <= place <= high for place, low, high in standing.values()))
    report.must("every method has a standing", set(standing) == set(board.methods))


def _agreement(board: Any, columns: dict[str, list[str]], standing: dict[str, Standing]) -> str:
    names = [m for m in board.methods if m not in board.controls]
    chosen = [c for c in board.columns if c.name in columns["faithful"]]
    gains = [np.array([[c.gain(board[m, c.name].value) for m in names]]) for c in chosen]
    each = kendall(gains, np.ones((1, 1)))[0]
    least = min(zip(each, combinations([c.name for c in chosen], 2), strict=True))
    both = [m for m in names if all(m in standing[kind] for kind in KINDS)]
    alike = _correlation(standing["faithful"], standing["plausible"], both)
    lines, scores = _scaled(board, columns["faithful"])
    better = ranks.better(scores, np.ones(len(scores)))
    above = [m for m in names if better[lines.index(m), lines.index("random")]]
    return (
        f"Shown to be more faithful than random: {len(above)} of {len(names)} methods"
        f"{_except(names, above)}. How alike faithfulness metrics rank the methods: Kendall's τ {each.mean():.2f} on "
        f"average, least for {' and '.join(least[1])} ({least[0]:.2f}). "
        f"Rank correlation of faithfulness and plausibility: {alike:.2f}."
    )


def _except(names: list[str], above: list[str]) -> str:
    rest = [m for m in names if m not in above]
    return f" (not: {'; '.join(rest)})" if rest else ""


def _correlation(one: Standing, other: Standing, names: list[str]) -> float:
    a, b = ([standing[m][0] for m in names] for standing in (one, other))
    return float(np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1])


# ---- all fields ----


def _together(report: Report, found: dict[str, dict[str, Standing]]) -> None:
    for kind, title in zip(KINDS, ("faithfulness", "plausibility"), strict=True):
        report.heading(f"All four: {title}")
        names = list(dict.fromkeys(m for standing in found.values() for m in standing[kind]))
        shares = {m: [_share(standing[kind], m) for standing in found.values() if m in standing[kind]] for m in names}
        order = sorted(names, key=lambda m: float(np.mean(shares[m])))
        rows = [
            [m, *(_place(standing[kind].get(m)) for standing in found.values()), f"{np.mean(shares[m]):.2f}"]
            for m in order
        ]
        report.table(f"all_{kind}", ["method", *found, "mean share"], rows, "Ranks with their sets; the last column is "
                     "the mean of (rank − 1) / (methods − 1): 0 the best everywhere, 1 the worst.")  # fmt: skip
        alike = {
            (a, b): _correlation(found[a][kind], found[b][kind], [m for m in found[a][kind] if m in found[b][kind]])
            for a, b in combinations(found, 2)
        }
        told = "; ".join(f"{a} and {b} {value:.2f}" for (a, b), value in alike.items())
        report.say(f"Rank correlation between models, over the methods that both have: {told}.")
    report.heading("The LRP family")
    rows = [[m, *(_place(standing["faithful"].get(m)) for standing in found.values())] for m in FAMILY]
    report.table("lrp_family", ["method", *found], rows, "Ranks by faithfulness among all methods of each model.")


def _share(standing: Standing, method: str) -> float:
    return (standing[method][0] - 1) / max(len(standing) - 1, 1)


def _picture(found: dict[str, dict[str, Standing]]) -> Any:
    tall = max(len(standing["faithful"]) for standing in found.values())
    figure, axes = pyplot.subplots(1, len(found), figsize=(4.2 * len(found), 0.2 * tall + 1), layout="constrained")
    for axis, (name, standing) in zip(np.atleast_1d(axes), found.items(), strict=True):
        order = sorted(standing["faithful"], key=lambda m: standing["faithful"][m][0])
        for y, method in enumerate(order):
            place, low, high = standing["faithful"][method]
            ink = RED if method in ("random", "edges") else BLUE
            axis.plot([low, high], [y, y], color=ink if ink == RED else GREY, lw=2.5, alpha=0.5)
            axis.plot([place], [y], "o", color=ink, ms=4)
        axis.set_yticks(range(len(order)), order, fontsize=7)
        axis.invert_yaxis()
        axis.set(title=name.replace("_", " "), xlabel="rank by faithfulness", xlim=(0.5, len(order) + 0.5))
        axis.xaxis.set_major_locator(FixedLocator([1, *range(5, len(order) + 1, 5)]))
    return figure
