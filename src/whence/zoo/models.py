"""The zoo's own architectures: two CNNs, a translator with attention, a graph network of molecules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class FashionCnn(nn.Module):
    """Four convolutions, two poolings, two dense layers, for images of 28 × 28 in one channel."""

    def __init__(self, width: int, labels: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.dense = nn.Linear(4 * width * 49, 64)
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(64, labels)

    def forward(self, pixel_values: Tensor) -> Any:
        x = self.convolutions(pixel_values).flatten(1)
        return self.out(self.dropout(F.relu(self.dense(x))))


class QuestionCnn(nn.Module):
    """Kim's (2014) sentence classifier: convolutions over word vectors, the maximum over time, one dense layer.

    The convolutions have no bias, so that a window of padding gives 0, which no maximum of ReLUs can notice.
    """

    def __init__(self, vocabulary: int, width: int, filters: int, labels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, filters, size, padding=size - 1, bias=False) for size in (2, 3, 4)
        )
        self.dropout = nn.Dropout(0.5)
        self.out = nn.Linear(3 * filters, labels)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Any:
        x = self.embedding(input_ids) * attention_mask[..., None]
        x = x.transpose(1, 2)  # (rows, width, length)
        found = [F.relu(convolution(x)).max(2).values for convolution in self.convolutions]
        return self.out(self.dropout(torch.cat(found, 1)))


class Scores(NamedTuple):
    """What an encoder–decoder gives back."""

    logits: Tensor


class Translator(nn.Module):
    """One GRU reads both ways, another writes; each of its states attends to the source (Luong et al. 2015)."""

    def __init__(self, vocabulary: int, width: int, start: int, end: int, pad: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(decoder_start_token_id=start, eos_token_id=end, pad_token_id=pad)
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.first_state = nn.Linear(width, width)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.query = nn.Linear(width, width, bias=False)
        self.mix = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.3)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, attention_mask: Tensor | None = None) -> Scores:
        read, last = self._read(self.dropout(self.embedding(input_ids)), attention_mask)
        start = torch.tanh(self.first_state(last))
        states, _ = self.decoder(self.dropout(self.embedding(decoder_input_ids)), start[None])
        score = self.query(states) @ read.transpose(1, 2)  # (rows, written, read)
        if attention_mask is not None:
            score = score.masked_fill(attention_mask[:, None] == 0, torch.finfo(score.dtype).min)
        context = score.softmax(-1) @ read
        mixed = torch.tanh(self.mix(torch.cat([context, states], -1)))
        return Scores(F.linear(self.dropout(mixed), self.embedding.weight, self.bias))

    def _read(self, source: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The source's states, and the last of each direction side by side."""
        if mask is None or bool(mask.all()):
            read, last = self.encoder(source)
        else:
            packed = pack_padded_sequence(source, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
            states, last = self.encoder(packed)
            read, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        return read, torch.cat([last[0], last[1]], -1)


class Weave(nn.Module):
    """Kearnes et al.'s (2016) network: atoms and pairs of atoms have features, each made anew from both.

    Atoms and pairs are ids (their kinds, `whence.zoo.molecules`); id 0 is padding.
    """

    def __init__(self, atoms: int, pairs: int, width: int, pair_width: int, layers: int, labels: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(atoms, width)
        self.pairs = nn.Embedding(pairs, pair_width)
        self.layers = nn.ModuleList(WeaveLayer(width, pair_width) for _ in range(layers))
        self.gather = nn.Linear(width, 2 * width)
        self.dropout = nn.Dropout(0.25)
        self.out = nn.Linear(2 * width, labels)

    def forward(self, atoms: Tensor, pairs: Tensor, mask: Tensor) -> Any:
        a, p = self.atoms(atoms), self.pairs(pairs)
        both = mask[:, :, None] * mask[:, None, :] * (1 - torch.eye(mask.shape[1], device=mask.device))
        for layer in self.layers:
            a, p = layer(a, p, both)
        whole = (torch.tanh(self.gather(a)) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).sqrt()
        return self.out(self.dropout(whole))


class WeaveLayer(nn.Module):
    """a'ᵢ from aᵢ and the sum over j of what pair ij says; p'ᵢⱼ from pᵢⱼ, aᵢ and aⱼ."""

    def __init__(self, width: int, pair_width: int) -> None:
        super().__init__()
        self.own, self.pair = nn.Linear(width, width), nn.Linear(pair_width, pair_width)
        self.to_atom = nn.Linear(pair_width, width)
        self.to_pair = nn.Linear(width, pair_width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, a: Tensor, p: Tensor, both: Tensor) -> tuple[Tensor, Tensor]:
        ends = self.to_pair(a)
        woven = F.relu(self.pair(p) + ends[:, :, None] + ends[:, None, :])
        said = (F.relu(self.to_atom(woven)) * both[..., None]).sum(2)
        return self.norm(a + F.relu(self.own(a) + said)), woven
