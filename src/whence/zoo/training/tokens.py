"""Tokenizers trained on the zoo's own texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ROLES = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))


def word_pieces(texts: Sequence[str], size: int, longest: int, *, lowercase: bool = True, ends: bool = True) -> Any:
    """A word-piece tokenizer; with `ends` it writes [CLS] … [SEP] around a text."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=SPECIAL))
    if ends:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(name, SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")],
        )
    names = {f"{role}_token": token for role, token in _ROLES.items()}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=longest, model_input_names=["input_ids", "attention_mask"], **names
    )


def byte_pairs(texts: Sequence[str], size: int, longest: int) -> Any:
    """A byte-pair tokenizer; [SEP] ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    end = "<|end|>"
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, special_tokens=[end], initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=longest, eos_token=end, bos_token=end, pad_token=end,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def padded(rows: Sequence[Sequence[int]], fill: int = 0) -> tuple[Tensor, Tensor]:
    """Ids of one length, padded on the right, and the mask of what is real."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask
