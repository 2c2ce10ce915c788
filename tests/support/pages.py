"""Attributions made by hand, and texts that must not run, for the tests of pages."""

from __future__ import annotations

import torch

import whence

HOSTILE = [
    "<script>document.title='run'</script>",
    '"><img src=x onerror=document.title="run">',
    "'; document.title='run'; //",
    "\x1b[31mred\x1b[0m\x07 bell",
    "</style></svg><svg onload=document.title='run'>",
]


def attribution(values, **fields):
    rows = len(values if isinstance(values, torch.Tensor) else next(iter(values.values())))
    base = {
        "values": values, "raw": values, "target": torch.zeros(rows, dtype=torch.long), "params": {}, "receipt": {},
        "output_value": torch.ones(rows), "method": "gradient",
    }  # fmt: skip
    return whence.Attribution(**{**base, **fields})


def text_attribution(words, values=None, text=None, label="good"):
    text = " ".join(words) if text is None else text
    spans, at = [], 0
    for word in words:
        at = text.index(word, at)
        spans.append((at, at + len(word)))
        at += len(word)
    values = torch.linspace(-1, 1, len(words))[None] if values is None else values
    count = len(words)
    return attribution(
        values, units=[list(words)], spans=[spans], special=[[False] * count], words=[list(range(count))],
        segments=[[0] * count], text=[text], labels=[label],
    )  # fmt: skip
