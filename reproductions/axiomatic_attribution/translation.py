"""Which source words each translated word comes from, by integrated gradients and by attention."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib import pyplot
from torch import Tensor

import whence
from reproductions.report import Report, around
from whence.zoo.training import data

LONGEST = 14


def run(report: Report) -> None:
    known, _ = data.pairs()
    zoo = whence.load("zoo:translation")
    chosen = [pair for pair in known if 5 <= len(pair[0].split()) <= LONGEST][: report.size(40, 2)]
    drops: dict[str, list[float]] = {"integrated gradients": [], "attention": [], "at random": []}
    same, count, right, shown = 0, 0, 0, []
    generator = torch.Generator().manual_seed(0)
    for german, english in chosen:
        maps, ids, logs = _explained(zoo, german, english)
        tops = {"integrated gradients": maps["ig"].argmax(1), "attention": maps["attention"].argmax(1)}
        tops["at random"] = torch.randint(0, maps["ig"].shape[1], tops["attention"].shape, generator=generator)
        same += int((tops["integrated gradients"] == tops["attention"]).sum())
        for name, places in tops.items():
            drops[name].append(float((logs - _without(zoo, ids, places)).mean()))
        count += len(logs)
        right += _right(zoo, ids)
        shown.append((german, english, maps))
    gap = max(maps["gap"] for *_, maps in shown)
    report.say(f"`zoo:translation`: {len(chosen)} sentences that it has learned, {count} target tokens, of which it "
               f"names {right / count:.1%} first, given those before; worst completeness gap {gap:.1e}. The two maps "
               f"name the same source token first for {same / count:.0%} of the target tokens.")  # fmt: skip
    report.must("a translation's integrals sum up", gap < 0.05)
    rows = [[name, around(values, 2)] for name, values in drops.items()]
    apart = [ours - theirs for ours, theirs in zip(drops["integrated gradients"], drops["attention"], strict=True)]
    rows.append(["integrated gradients, less attention", around(apart, 2)])
    report.table("translation", ["the source token ranked first by", "log-probability lost without it"], rows,
                 "Mean over a sentence's target tokens, then over sentences, with its 95 % interval; the source token "
                 "becomes an unknown one; seed 0.")  # fmt: skip
    _picture(report, [item[2] for item in sorted(shown, key=lambda item: len(item[0]))[:3]])


def _explained(zoo: Any, german: str, english: str) -> tuple[dict[str, Any], Any, Tensor]:
    """Both maps (target × source), the model's inputs, and the target tokens' log-probabilities."""
    ig = whence.explain(zoo, german, method="integrated_gradients", target=english, output="log_probability")
    attention = whence.explain(zoo, german, method="raw_attention", target=english)
    asked = zoo.requests(german, english)[0]
    maps = {
        "ig": ig.values["input_ids"][0], "attention": attention.values["input_ids"][0], "gap": float(ig.gap.max()),
        "source": ig.units["input_ids"][0], "target": ig.labels[0],
    }  # fmt: skip
    return maps, (asked.inputs, [index[-1] for index in asked.target.index[0].tolist()]), ig.output_value[0]


@torch.no_grad()
def _without(zoo: Any, ids: Any, places: Tensor) -> Tensor:
    """Each target token's log-probability when the source token at its place is unknown."""
    inputs, wanted = ids
    rows = torch.arange(len(places))
    source = inputs["input_ids"].repeat(len(places), 1)
    source[rows, places] = zoo.tokenizer.unk_token_id
    given = inputs["decoder_input_ids"].repeat(len(places), 1)
    logits = zoo.model(input_ids=source, decoder_input_ids=given).logits
    return logits.log_softmax(-1)[rows, rows, torch.tensor(wanted)]


@torch.no_grad()
def _right(zoo: Any, ids: Any) -> int:
    """How many target tokens the model would choose."""
    inputs, wanted = ids
    said = zoo.model(**{name: inputs[name] for name in ("input_ids", "decoder_input_ids")}).logits[0].argmax(-1)
    return int((said[: len(wanted)] == torch.tensor(wanted)).sum())


def _picture(report: Report, shown: list[dict[str, Any]]) -> None:
    figure, axes = pyplot.subplots(len(shown), 2, figsize=(11, 3.6 * len(shown)), layout="constrained", squeeze=False)
    for line, maps in zip(axes, shown, strict=True):
        for axis, name, title in zip(line, ("ig", "attention"), ("integrated gradients", "attention"), strict=True):
            largest = float(maps[name].abs().max())
            axis.imshow(maps[name], cmap="RdBu_r", vmin=-largest, vmax=largest)
            axis.set_title(title, fontsize=8)
            axis.set_xticks(range(len(maps["source"])), maps["source"], rotation=60, fontsize=7)
            axis.set_yticks(range(len(maps["target"])), maps["target"], fontsize=7)
    report.figure("translation", figure, "From the pieces of source words (columns) to those of target words "
                  "(rows); three of the sentences that it has learned.")  # fmt: skip
