"""Which source words does each translated word come from? Integrated gradients and attention side by side.

The zoo's German–English GRU with attention, on sentences that it learned (it knows no others). Which of the two maps
names the words that matter is measured: take out the source token that a map ranks first for a target token, and see
how much less likely the target token gets. Needs the toy corpus (WHENCE_DATA, see README.md).
"""

from __future__ import annotations

import torch
from matplotlib import pyplot
from pictures import grid, missing, save, table, where

import whence
from whence.zoo.training import data

SENTENCES, LONGEST = 40, 14


def main() -> None:
    out = where(__file__, __doc__)
    try:
        known, _ = data.pairs()
    except whence.FileError as error:
        missing(error)
    zoo = whence.load("zoo:translation")
    chosen = [pair for pair in known if 5 <= len(pair[0].split()) <= LONGEST][:SENTENCES]
    drops: dict[str, list[float]] = {"integrated gradients": [], "attention": [], "at random": []}
    same = count = 0
    gaps, shown = [], []
    generator = torch.Generator().manual_seed(0)
    for german, english in chosen:
        maps, ids, logs = explained(zoo, german, english)
        gaps.append(maps["gap"])
        tops = {"integrated gradients": maps["ig"].argmax(1), "attention": maps["attention"].argmax(1)}
        tops["at random"] = torch.randint(0, maps["ig"].shape[1], tops["attention"].shape, generator=generator)
        same += int((tops["integrated gradients"] == tops["attention"]).sum())
        count += len(tops["attention"])
        for name, places in tops.items():
            drops[name] += (logs - without(zoo, ids, places)).tolist()
        shown.append((german, english, maps))
    print(f"{len(chosen)} sentences, {count} target tokens; worst completeness gap {max(gaps):.1e}")
    print(f"The two name the same source token for {same / count:.0%} of the target tokens.\n")
    rows = []
    for name, values in drops.items():
        mean, error = torch.tensor(values).mean(), torch.tensor(values).std() / len(values) ** 0.5
        rows.append([name, f"{float(mean):.2f} ± {float(error):.2f}"])
    table(["the source token ranked first by", "log-probability lost without it (mean ± standard error)"], rows)
    print("\nToken by token, the source token ranked first by integrated gradients and by attention:\n")
    german, english, maps = min(shown, key=lambda item: len(item[0]))
    print(f"  {german}  →  {english}\n")
    source, target = maps["source"], maps["target"]
    table(["target", "integrated gradients", "attention"], [
        [target[k], source[int(maps["ig"][k].argmax())], source[int(maps["attention"][k].argmax())]]
        for k in range(len(target))
    ])  # fmt: skip
    _picture([item[2] for item in sorted(shown, key=lambda item: len(item[0]))[:3]], out)


def explained(zoo, german: str, english: str):  # type: ignore[no-untyped-def]
    """Both maps (target × source), the model's inputs, and the target tokens' log-probabilities."""
    how = {"target": english, "output": "log_probability"}
    ig = whence.explain(zoo, german, method="integrated_gradients", **how)
    attention = whence.explain(zoo, german, method="raw_attention", target=english)
    asked = zoo.requests(german, english)[0]
    maps = {
        "ig": ig.values["input_ids"][0], "attention": attention.values["input_ids"][0], "gap": float(ig.gap.max()),
        "source": ig.units["input_ids"][0], "target": ig.labels[0],
    }  # fmt: skip
    return maps, (asked.inputs, [index[-1] for index in asked.target.index[0].tolist()]), ig.output_value[0]


def without(zoo, ids, places: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Each target token's log-probability when the source token at its place is unknown."""
    inputs, wanted = ids
    rows = len(places)
    source = inputs["input_ids"].repeat(rows, 1)
    source[torch.arange(rows), places] = zoo.tokenizer.unk_token_id
    with torch.no_grad():
        logits = zoo.model(input_ids=source, decoder_input_ids=inputs["decoder_input_ids"].repeat(rows, 1)).logits
    return logits.log_softmax(-1)[torch.arange(rows), torch.arange(rows), torch.tensor(wanted)]


def _picture(shown: list[dict], out) -> None:  # type: ignore[type-arg, no-untyped-def]
    figure, axes = pyplot.subplots(len(shown), 2, figsize=(11, 3.6 * len(shown)), layout="constrained")
    for line, maps in zip(axes, shown, strict=True):
        for axis, name, title in zip(line, ("ig", "attention"), ("integrated gradients", "attention"), strict=True):
            grid(axis, maps[name], title)
            axis.axis("on")
            axis.set_xticks(range(len(maps["source"])), maps["source"], rotation=60, fontsize=7)
            axis.set_yticks(range(len(maps["target"])), maps["target"], fontsize=7)
    save(figure, out)


if __name__ == "__main__":
    main()
