"""A page for each metric: its entry in the registry, what is known of it, and what it gave in the league table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import whence
from builder.api import toctree
from builder.known import LEAGUE, body_of, bullets, formula, grid, ideas, intervals, paper, parameters, sections, use
from whence.registry import Entry

SHOWN = 6  # of the methods, by model
KINDS = {  # which question a metric asks
    "Is it faithful to the model?": (
        "comprehensiveness sufficiency log_odds aopc deletion insertion perturbation_positive perturbation_negative "
        "road_morf road_lerf irof roar infidelity sensitivity_n faithfulness_correlation completeness_gap "
        "erasure_single erasure_set source_ablation linear_datamodelling_score"
    ),
    "Does it hear the model, and the class?": "model_randomisation data_randomisation class_sensitivity",
    "Is it stable, and easy to read?": "sensitivity_max sparseness complexity",
    "Does it agree with people?": (
        "segmentation_accuracy segmentation_iou segmentation_ap pointing_game rationale_f1 rationale_ap"
    ),
}
NEEDS = {
    "label": "true labels", "mask": "masks of the object", "rationale": "marked spans",
    "attention": "a model with attention",
}  # fmt: skip
OF = {"images": "images", "values": "numbers (no token ids)", "tokens": "token ids", "ids": "token ids"}
NOTATION = (
    "p is the probability of the explained class, f its score, φ the attribution, x ∖ S the row without the units S."
)


def pages() -> Iterator[tuple[str, str]]:
    """The list of all metrics, and a page for each."""
    yield "metrics/index.md", _index()
    for name, entry in whence.metrics.items():
        yield f"metrics/{name}.md", page(entry)


def page(entry: Entry[Any]) -> str:
    """One metric."""
    name, own = entry.name, ideas("metrics").get(entry.name, {})
    call = f'```py\nboard = whence.evaluate(model, rows, methods=["deeplift", "gradient"], metrics=["{name}"])\n```'
    return sections(
        name,
        {
            "": f"{own.get('idea', entry.description)}\n\n{_facts(entry)}",
            "Definition": "\n\n".join(filter(None, [
                formula(own["formula"]) if own else "", entry.description, body_of(entry), f"*{NOTATION}*"])),
            "When to use it": use(own),
            "Known failures": bullets(own.get("fails", ())),
            "Parameters": "\n\n".join([call, parameters(entry, "metrics") or "It has none of its own."]),
            "What it gave": league(name),
        },
    )  # fmt: skip


def _reach(low: float | None, high: float | None) -> str:
    """What no value can pass, in words."""
    lowest, highest = (str(end).replace("-", "−") for end in (low, high))
    if low is None:
        return "" if high is None else f", at most {highest}"
    return f", at least {lowest}" if high is None else f", between {lowest} and {highest}"


def _facts(entry: Entry[Any]) -> str:
    facts = entry.facts
    needs = [NEEDS.get(need, need) for need in facts.get("needs", ())] + ([OF[facts["of"]]] if "of" in facts else [])
    told = [
        f"**Better:** {facts['better']}{_reach(*facts.get('within', (None, None)))}",
        f"**Paper:** {paper(entry.paper)}",
    ]
    told += [f"**Needs:** {', '.join(needs)}"] if needs else []
    removed = ", ".join(f'`"{one}"`' for one in facts.get("operators", ()))
    told += (
        [f"**Removes by:** the first of {removed} that fits the rows, unless `operator=` says otherwise"]
        if removed
        else []
    )
    return bullets(told)


def league(name: str) -> str:
    """The best methods of each model by this metric, and the random control."""
    rows = []
    for model, title in LEAGUE.items():
        lines = [line for line in intervals(model) if line["metric"] == name]
        if not lines:
            continue
        sign = {"higher": -1, "lower": 1}.get(lines[0]["better"], 1)
        ranked = sorted(lines, key=lambda line: sign * float(line["value"]))
        shown = ranked[:SHOWN] + [line for line in ranked[SHOWN:] if line["method"] == "random"]
        rows += [[title, f"{ranked.index(line) + 1}", _method(line["method"]), _number(line)] for line in shown]
    if not rows:
        return ""
    note = (
        f"The first {SHOWN} methods of each model, and the random control; means with 95 % intervals. Neighbours can "
        "rarely be told apart: [the league table](../papers/league_table.md) has all, and which ranks the rows allow."
    )
    return grid(["model", "place", "method", f"`{name}`"], rows) + f"\n\n{note}"


def _method(line: str) -> str:
    name, _, rest = line.partition(", ")
    return f"`{name}`" + (f", {rest}" if rest else "")


def _number(line: dict[str, str]) -> str:
    value, low, high = (float(line[key]) if line[key] else float("nan") for key in ("value", "low", "high"))
    return f"{value:.3f}" + ("" if low != low else f" [{low:.3f}, {high:.3f}]")


def _index() -> str:
    """All metrics by the question that they ask."""
    blocks, placed = [], set()
    for question, names in KINDS.items():
        own = [name for name in names.split() if name in whence.metrics]
        placed |= set(own)
        blocks += [f"## {question}", _list(own)]
    rest = [name for name in whence.metrics if name not in placed]
    blocks += ["## More", _list(rest)] if rest else []
    lead = (
        "One page each: the idea, the definition, what it needs, and how it fails. [How to evaluate](../evaluation.md)."
    )
    return "\n\n".join(["# All metrics", lead, *blocks]) + "\n\n" + "\n".join(toctree(whence.metrics))


def _list(names: list[str]) -> str:
    known = ideas("metrics")
    rows = []
    for name in names:
        entry = whence.metrics[name]
        rows.append([f"`{name}`", known.get(name, {}).get("idea", entry.description), entry.facts["better"]])
    return grid(["metric", "the idea", "better"], rows)
