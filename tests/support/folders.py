"""Folders of models and tokenizers, made for a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.hf import SMALL, TEXT

hf = pytest.importorskip("transformers")


WORDS = "a clever piece of cinema dull it is not i think that bad what was very the question answer film"


def wordpiece(folder: Path, slow: bool = False) -> Any:
    """A tokenizer of a few words and all letters."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *WORDS.split(),
        *letters,
        *(f"##{c}" for c in letters),
        *",.?!",
    ]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(words)))
    kind = hf.BertTokenizerLegacy if slow else hf.BertTokenizer
    return kind(str(folder / "vocab.txt"), model_max_length=24)


def built(model: str, config: str, vocabulary: int, **options: Any) -> nn.Module:
    settings = getattr(hf, config)(
        **{**SMALL, **TEXT, "vocab_size": vocabulary, "max_position_embeddings": 24, **options}
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        made = getattr(hf, model)(settings).eval()
        for p in made.parameters():
            if p.dim() > 1:
                p.data.normal_(std=0.3)
    return made


def stored(folder: Path, model: nn.Module, processor: Any) -> str:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)
