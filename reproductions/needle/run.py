"""A needle among decoys: which methods put the one sentence first that a language model has its answer from."""

from __future__ import annotations

import time
import warnings
from functools import partial
from typing import Any

import torch

import whence
from reproductions.report import Report, around, proportion
from whence.zoo import needles

NAMED = ("attnlrp", "leave_one_out")  # before anything was measured
AIM = 0.95
NAMED_ON, PROMPTS = 200, 200
FEWER = {  # hundreds of passes for each prompt
    **dict.fromkeys(("integrated_gradients", "path_integrated_gradients", "expected_gradients", "smoothgrad"), 20),
    **dict.fromkeys(("conductance", "internal_influence"), 20),
    **dict.fromkeys(("shapley", "kernel_shap", "lime"), 10),
}
HOW: dict[str, dict[str, Any]] = {
    "kernel_shap": {"samples": 256}, "lime": {"samples": 256}, "shapley": {"samples": 2},
}  # fmt: skip
HEADS = ("method", "needle first", "among the first 3", "decoy first", "first, the question included", "prompts", "s")


def run(report: Report) -> None:
    warnings.simplefilter("ignore", whence.WhenceWarning)
    lm = whence.load("zoo:needle")
    found, sure = _answers(lm, report.size(PROMPTS, 2))
    report.say(f"`zoo:needle` gives the right answer to {proportion(sum(found), len(found))} of {len(found)} prompts, "
               f"with a probability of {around(sure, 4, 0, 1)} on average.")  # fmt: skip
    rows, refused = [], []
    for method in sorted(whence.methods, key=lambda name: name not in NAMED):
        count = report.size(NAMED_ON if method in NAMED else FEWER.get(method, PROMPTS), 2)
        how = HOW.get(method, {})
        try:
            ranked = report.once(method, partial(_ranked, lm, method, count), lm, how, count)
        except whence.WhenceError as error:
            refused.append([method, str(error).partition("\n")[0]])
            continue
        rows.append(_line(method, ranked))
        print(*rows[-1], flush=True)
    first = {row[0]: float(row[1].split()[0]) for row in rows}
    rows.sort(key=lambda row: -first[row[0]])
    report.heading("Prompts of 500 tokens")
    caption = "Shares of prompts, the first with its 95 % interval; s is CPU time for each."
    report.table("needle", HEADS, rows, caption)
    met = " and ".join(f"`{name}` {first[name]:.3f}" for name in NAMED)
    report.say(f"Named beforehand, at least {AIM}: {met}.")
    report.heading("Methods that do not take this model")
    report.table("refused", ("method", "what it says"), refused)
    for name in NAMED:
        report.must(f"{name} puts the needle first in {AIM:.0%} of prompts", first[name] >= AIM)
    report.must("a random order does not", first["random"] < 0.5 or report.quick)


@torch.no_grad()
def _answers(lm: Any, count: int) -> tuple[list[bool], list[float]]:
    """Of each prompt, whether the answer is the likeliest next token, and its probability."""
    found, sure = [], []
    for made in map(needles.needle, range(count)):
        p = lm.model(**lm.tokenizer(made.prompt, return_tensors="pt")).logits[0, -1].softmax(-1)
        answer = lm.tokenizer(made.answer)["input_ids"][0]
        found.append(int(p.argmax()) == answer)
        sure.append(float(p[answer]))
    return found, sure


def placed(lm: Any, method: str, number: int) -> tuple[needles.Needle, list[float]]:
    """A prompt, and the value of each of its sentences; the question comes last."""
    made = needles.needle(number)
    a = whence.explain(
        lm, made.prompt, method=method, target=whence.span(of=made.answer), units="sentences", progress=False,
        **HOW.get(method, {}),
    )  # fmt: skip
    return made, a.values.flatten()[: len(made.sentences) + 1].tolist()


def _ranked(lm: Any, method: str, count: int) -> list[list[float]]:
    return [_placed(lm, method, number) for number in range(count)]


def _placed(lm: Any, method: str, number: int) -> list[float]:
    """Of one prompt: the needle's rank, whether a decoy is first, the rank with the question, seconds."""
    start = time.process_time()
    made, values = placed(lm, method, number)
    took = time.process_time() - start
    order = sorted(range(len(values)), key=lambda sentence: -values[sentence])
    sources = [sentence for sentence in order if sentence < len(made.sentences)]
    return [sources.index(made.place), sources[0] in made.decoys, order.index(made.place), took]


def _line(method: str, found: list[list[float]]) -> list[str]:
    def share(of: list[bool]) -> str:
        return f"{sum(of) / len(of):.3f}"

    ranks = [one[0] for one in found]
    took = sorted(one[3] for one in found)[len(found) // 2]
    return [
        method, proportion(ranks.count(0), len(ranks)), share([rank < 3 for rank in ranks]),
        share([bool(one[1]) for one in found]), share([one[2] == 0 for one in found]), str(len(found)), f"{took:.2f}",
    ]  # fmt: skip
