"""Texts with marks that people made, and the small BERT that reads posts, for several experiments."""

from __future__ import annotations

import csv
import json
import tarfile
from pathlib import Path
from typing import Any

import whence
from whence.adapters.wrapped import Wrapped
from whence.zoo.training import data

LABELS = ("NEG", "POS")
OTHERS: dict[str, dict[str, Any]] = {  # what experiments on texts compare with, beside methods of attention
    "gradient, sum of magnitudes": {"method": "gradient", "channels": "sum_abs"},  # its sum is 0: a layer norm follows
    "integrated gradients": {
        "method": "integrated_gradients",
        "baseline": "pad",
        "rule": "gauss_legendre",
        "steps": 16,
    },
    "DeepLIFT": {"method": "deeplift", "baseline": "pad"},
    "AttnLRP": {"method": "attnlrp"},
    "random": {"method": "random"},
}


def posts(count: int) -> list[dict[str, Any]]:
    """The first posts of SemEval-2021's test file in which people marked toxic characters."""
    folder = data.place("toxic_spans_semeval2021", "tsd_test.csv")
    whole = folder / "tsd_test.csv"
    with data.reading(whole), whole.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["spans"] != "[]"][:count]
        if len(rows) < count:
            raise ValueError(f"it has {len(rows)} posts with a marked span, and {count} are asked for")
        return [{"text": row["text"], "rationale": runs(json.loads(row["spans"]))} for row in rows]


def runs(characters: list[int]) -> list[tuple[int, int]]:
    """Numbers of characters as spans, from one to before another."""
    found: list[tuple[int, int]] = []
    for c in sorted(set(characters)):
        if found and found[-1][1] == c:
            found[-1] = (found[-1][0], c + 1)
        else:
            found.append((c, c + 1))
    return found


def toxicity() -> Wrapped:
    """bert-tiny-toxicity: 2 layers of 2 heads, 128 wide; long posts are cut after 512 tokens."""
    return whence.load(bert_tiny(), long="truncate")


def bert_tiny() -> Path:
    return data.place("bert-tiny-toxicity", "config.json", "model.safetensors", "tokenizer.json")


def reviews(split: str) -> list[dict[str, Any]]:
    """ERASER's film reviews: text, label, and the spans of characters that people marked as reasons for it.

    Some copies of train.jsonl hold the reviews of val.jsonl too: these are left out.
    """
    folder = data.place("eraser_movies", *(f"{name}.jsonl" for name in ("train", "val", "test")))
    rows = _lines(folder / f"{split}.jsonl")
    if split == "train":
        others = {row["annotation_id"] for row in _lines(folder / "val.jsonl")}
        rows = [row for row in rows if row["annotation_id"] not in others]
    texts = _documents(folder)
    found = []
    for row in rows:
        words = texts[row["annotation_id"]].split()
        starts = [0]
        for word in words:
            starts.append(starts[-1] + len(word) + 1)
        evidence = [one for group in row["evidences"] for one in group]
        spans = [(starts[one["start_token"]], starts[one["end_token"]] - 1) for one in evidence]
        found.append({"text": " ".join(words), "label": LABELS.index(row["classification"]), "rationale": spans})
    return found


def _lines(file: Path) -> list[dict[str, Any]]:
    with data.reading(file):
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def _documents(folder: Path) -> dict[str, str]:
    """The reviews by their names, from the folder docs/ or from docs.tar.gz."""
    if (folder / "docs").is_dir():
        return {file.name: file.read_text(encoding="utf-8") for file in sorted((folder / "docs").iterdir())}
    whole = data.place("eraser_movies", "docs.tar.gz") / "docs.tar.gz"
    with data.reading(whole), tarfile.open(whole) as packed:
        members = [member for member in packed if member.isfile()]
        return {Path(m.name).name: packed.extractfile(m).read().decode() for m in members}  # type: ignore[union-attr]
