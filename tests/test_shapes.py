"""Masks, targets, inputs and outputs of unusual shapes and kinds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.functions import W, X, explain
from tests.support.models import close


def test_the_last_position_of_a_decoder_is_not_the_encoders() -> None:
    encoder, decoder = nn.Embedding(9, 4).double(), nn.Embedding(9, 4).double()

    def model(input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        return decoder(decoder_input_ids).cumsum(1) + encoder(input_ids).sum(1, keepdim=True)

    batch = {
        "input_ids": torch.ones(2, 6).long(),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
        "decoder_input_ids": torch.ones(2, 8).long(),
    }
    assert explain(model, batch, target=(-1, 2)).target == [(7, 2), (7, 2)]


def test_a_text_mask_is_no_mask_of_image_channels() -> None:
    def model(input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> Tensor:
        return table(input_ids).sum((1, 2)) + pixel_values.sum((1, 2, 3))

    table = nn.Embedding(9, 4).double()
    batch = {
        "input_ids": torch.ones(2, 3).long(),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "pixel_values": torch.ones(2, 3, 4, 4).double(),
    }
    a = explain(model, batch, method="random")
    assert a[1].values["pixel_values"].shape == (1, 3, 4, 4)
    assert a.values["pixel_values"].all()


def test_channels_can_be_chosen_again_and_know_tokens_from_images() -> None:
    image = explain(lambda x: x.square().sum((1, 2, 3)), torch.randn(2, 3, 6, 5).double())
    assert image.channels("sum").channels("max_abs").values.shape == (2, 6, 5)
    table, dense = nn.Embedding(9, 4).double(), nn.Linear(4, 5).double()

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.dense = table, dense

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return (self.dense(self.table(input_ids)).square() * attention_mask[..., None]).sum((1, 2))

    batch = {"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    hidden = explain(Text(), batch, at="dense", channels="sum")
    assert hidden.values.shape == (2, 3)
    assert hidden[1].values.shape == (1, 2)
    several = explain(Text(), batch, at="dense", target=lambda y: y)
    assert several[1].values.shape == (1, 2, 5)


def test_baselines_and_lists_of_arrays_with_a_batch_size() -> None:
    a = explain(lambda x: x @ W[:, :3], target=0, baseline=torch.zeros(3, 4).double(), batch_size=2)
    assert a.baseline_value.tolist() == [0.0, 0.0, 0.0]
    several = explain(lambda x: x @ W[:, :3], target=[np.array([0, 1]), np.array([1, 2]), np.array([0, 2])])
    assert several.target.tolist() == [[0, 1], [1, 2], [0, 2]]


class Output(NamedTuple):
    features: Tensor
    logits: Tensor


def test_named_tuples_scalars_and_integers_as_outputs() -> None:
    a = explain(lambda x: Output(x, x @ W[:, :3]), target=2)
    close(a.values, W[:, 2].expand(3, 4), 1e-12)
    for bad, why in ((lambda x: x.sum(), "one score for all 3 rows"), (lambda x: x > 0, "no tensor of scores"),
                     (lambda x: x.long(), "no tensor of scores")):  # fmt: skip
        with pytest.raises(whence.WhenceError, match=why):
            explain(bad)


def test_one_dimensional_inputs_and_numpy_numbers() -> None:
    with pytest.warns(whence.WhenceWarning, match="range is 0"):  # of one number
        a = explain(
            lambda x: x * 2, X[:, 0], method="smoothgrad", samples=np.int64(3), noise=np.float32(0.1), seed=np.arange(3)
        )
    assert a.values.shape == (3,)
    assert explain(lambda x: x * 2, X, target=0, batch_size=np.int64(2), baseline=np.float32(0)).values.shape == X.shape
    explain(lambda x, temperature: x / temperature, {"x": X, "temperature": torch.tensor(2.0)}, target=0)
    explain(lambda x, edges: x, {"x": X, "edges": torch.ones(2, 9).long()}, target=0)


def test_inputs_get_independent_noise() -> None:
    a = explain(lambda p, q: p @ W + q @ W, (X, X + 1), method="random", target=0)
    assert not torch.equal(*a.values)
