"""What an evaluation costs: `python -m benchmarks.evaluation [--posts N]`.

8 methods by 6 metrics on posts of SemEval-2021 with bert-tiny-toxicity, and, on fewer of them, `evaluate` against a
loop that runs one perturbed copy at a time, as one would write it by hand; both in one process, with the same numbers.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from typing import Any

import torch
from torch import Tensor

import whence
from benchmarks.trained import DATA

METHODS = {
    "gradient": {"channels": "sum_abs"},
    "input_x_gradient": None,
    "integrated_gradients": {"baseline": "pad"},
    "deeplift": {"baseline": "pad"},
    "lrp": None,
    "attcat": None,
    "transformer_attribution": None,
    "raw_attention": None,
}
METRICS = ("comprehensiveness", "sufficiency", "log_odds", "aopc", "rationale_f1", "rationale_ap")
LOOP = {"comprehensiveness": (1, 5, 10, 20, 50), "sufficiency": (1, 5, 10, 20, 50), "aopc": tuple(range(10, 100, 10))}


def posts(count: int) -> list[dict[str, Any]]:
    """Texts with the character spans that people marked."""
    with open(DATA / "toxic_spans_semeval2021" / "tsd_test.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["spans"] != "[]"][:count]
    return [{"text": row["text"], "rationale": [(c, c + 1) for c in json.loads(row["spans"])]} for row in rows]


def whole(count: int) -> None:
    """The table, and how long it took."""
    model = whence.load(DATA / "bert-tiny-toxicity", long="truncate")
    start = time.perf_counter()
    board = whence.evaluate(model, posts(count), methods=METHODS, metrics=METRICS, target=1)
    seconds = time.perf_counter() - start
    print(board)
    print(f"\n{len(METHODS)} methods by {len(METRICS)} metrics on {count} posts: {seconds:.0f} s")


# ---- one at a time ----


def by_hand(model: Any, rows: list[dict[str, Any]], name: str) -> dict[str, list[float]]:
    """Comprehensiveness, sufficiency and AOPC, one forward pass per copy."""
    tokenizer, network = model.tokenizer, model.model
    found: dict[str, list[float]] = {metric: [] for metric in LOOP}
    for row in rows:
        a = whence.explain(model, row["text"], method=name, target=1)
        ids = torch.tensor(tokenizer(row["text"], truncation=True, max_length=a.values.shape[1])["input_ids"])
        free = (~torch.tensor(a.special[0])).nonzero().flatten()  # type: ignore[index]
        order = free[a.values[0].double()[free].argsort(descending=True, stable=True)]

        def p(keep: Tensor, ids: Tensor = ids) -> float:
            with torch.no_grad():
                return float(network(input_ids=ids[keep][None]).logits[0].double().softmax(0)[1])

        for metric, percents in LOOP.items():
            every = torch.ones(len(ids), dtype=torch.bool)
            drops = []
            for percent in percents:
                share = round(percent / 100 * len(free), 9)
                count = math.floor(share + 0.5) if metric == "aopc" else math.ceil(share)
                keep = every.clone()
                keep[order[count:] if metric == "sufficiency" else order[:count]] = False
                drops.append(p(every) - p(keep))
            found[metric].append(sum(drops) / len(drops))
    return found


def against_a_loop(count: int, names: tuple[str, ...] = ("input_x_gradient", "attcat", "raw_attention", "lrp")) -> None:
    """Seconds of both, and how far their numbers differ."""
    model = whence.load(DATA / "bert-tiny-toxicity", long="truncate")
    rows = posts(count)
    whence.evaluate(model, rows[:4], methods=names, metrics=list(LOOP), target=1)  # warm
    start = time.perf_counter()
    board = whence.evaluate(model, rows, methods=names, metrics=list(LOOP), target=1, controls=False)
    batched = time.perf_counter() - start
    start = time.perf_counter()
    loops = {name: by_hand(model, rows, name) for name in names}
    looped = time.perf_counter() - start
    worst = max(
        abs(board.results[name, metric][row].value - loops[name][metric][row])
        for name in names
        for metric in LOOP
        for row in range(len(rows))
    )
    print(
        f"{len(names)} methods by {len(LOOP)} metrics on {count} posts: one at a time {looped:.1f} s, "
        f"evaluate {batched:.1f} s, {looped / batched:.1f} × (goal 5); largest difference of a number {worst:.1e}"
    )


def main(arguments: list[str] | None = None) -> None:
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("--posts", type=int, default=200)
    options = reader.parse_args(arguments)
    if not (DATA / "bert-tiny-toxicity").is_dir():
        print("evaluation: no shared data, left out")
        return
    against_a_loop(min(50, options.posts))
    whole(options.posts)


if __name__ == "__main__":
    main()
