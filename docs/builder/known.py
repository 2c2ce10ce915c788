"""What pages are made of beside the registries: docs/ideas, what was measured, and the tables of the reproductions."""

from __future__ import annotations

import csv
import functools
import inspect
import json
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whence.registry import Entry, Parameter

ROOT = Path(__file__).resolve().parents[2]
IDEAS = ROOT / "docs" / "ideas"
LEAGUE = {  # the models of the league table
    "toxic_posts": "toxic posts (BERT)", "reviews": "reviews (BERT)", "mosaics": "mosaics (ViT)",
    "horses": "horses (CNN)",
}  # fmt: skip
PROBED = {  # the models of the property table
    "zoo-questions": "questions (CNN)", "zoo-fashion-cnn": "clothing (CNN)", "zoo-molecules": "molecules (GNN)",
    "zoo-sentiment": "sentiment (BERT)", "bert-tiny-toxicity": "toxicity (BERT)", "resnet20": "CIFAR-10 (ResNet)",
}  # fmt: skip


@functools.cache
def ideas(kind: str) -> dict[str, dict[str, Any]]:
    """docs/ideas: name → what people wrote about it."""
    return tomllib.loads((IDEAS / f"{kind}.toml").read_text(encoding="utf-8"))


@functools.cache
def measured() -> dict[str, Any]:
    """What `python -m benchmarks.pages` wrote."""
    return json.loads((IDEAS / "measured.json").read_text(encoding="utf-8"))


@functools.cache
def table_of(experiment: str, name: str) -> dict[str, dict[str, str]]:
    """A table of a reproduction, by its first column."""
    with (ROOT / "reproductions" / experiment / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return {line["method"]: line for line in csv.DictReader(file)}


@functools.cache
def intervals(model: str) -> list[dict[str, str]]:
    """The league table's means with their intervals."""
    path = ROOT / "reproductions" / "league_table" / f"{model}_intervals.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# ---- Markdown ----


def grid(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, or nothing where it has no rows."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *lines]) if lines else ""


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def formula(tex: str) -> str:
    return f"```{{math}}\n{tex}\n```"


def sections(title: str, parts: Mapping[str, str]) -> str:
    """A page: its first part without a heading, and the others that have something to say."""
    blocks = [f"# {title}"]
    for head, body in parts.items():
        if body.strip():
            blocks += [f"## {head}", body] if head else [body]
    return "\n\n".join(blocks) + "\n"


def paper(cited: str) -> str:
    """A citation whose number leads to the paper: the only addresses outside that pages of entries have."""
    cited = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", cited)
    return re.sub(r"doi:(\S+?)(?=[;,]|$)", r"[doi:\1](https://doi.org/\1)", cited)


def use(own: Mapping[str, Any]) -> str:
    """What something is good for, and for what not."""
    if not own:
        return ""
    avoid = own["avoid"]
    return f"**Good for:** {own['use']}\n\n**Avoid it** {avoid[0].lower()}{avoid[1:]}"


def body_of(entry: Entry[Any]) -> str:
    """A docstring without its first paragraph, as Markdown: what follows is plain text with names in backticks."""
    paragraphs = (inspect.getdoc(entry.function) or "").split("\n\n")[1:]
    return "\n\n".join(_plain(paragraph) for paragraph in paragraphs)


def _plain(text: str) -> str:
    parts = text.split("`")
    return "`".join(part if i % 2 else part.replace("*", "\\*").replace("<", "&lt;") for i, part in enumerate(parts))


def parameters(entry: Entry[Any], kind: str) -> str:
    """The table of an entry's parameters: name, type, default, meaning."""
    said = ideas("parameters")[kind]
    rows = []
    for parameter in entry.parameters.values():
        meaning = said.get(f"{entry.name}.{parameter.name}", said.get(parameter.name, ""))
        rows.append([f"`{parameter.name}`", _type(parameter), f"`{_default(parameter.default)}`", meaning])
    return grid(["parameter", "type", "default", "meaning"], rows)


def _default(value: Any) -> str:
    return repr(value).replace("'", '"')


def _type(parameter: Parameter) -> str:
    if parameter.choices:
        told = " or ".join(f"`{_default(choice)}`" for choice in parameter.choices)
    elif parameter.kind in (int, float, bool, str):
        names = {int: "whole number", float: "number", bool: "True or False", str: "string"}
        told = names[parameter.kind] + (f", {parameter.bounds}" if parameter.bounds else "")
    else:
        told = "any" if parameter.kind is typing.Any else str(parameter.kind)
    return f"{told}, or None" if parameter.optional else told
