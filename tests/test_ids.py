"""Ids are followed to the embeddings they enter, through copies and writes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.functions import G, explain
from tests.support.models import close


def test_more_ways_to_look_ids_up() -> None:
    table = nn.Embedding(9, 4).double()
    ids = torch.tensor([[1, 2], [3, 4], [5, 6]])
    looks = (
        lambda i: table.weight[i, :],
        lambda i: table.weight[(i,)],
        lambda i: table.weight.index_select(0, i.flatten()).view(*i.shape, 4),
    )
    for look in looks:
        assert explain(lambda i, look=look: look(i).square().sum((1, 2)), ids).values.all()
    many = torch.randint(0, 9, (40, 20), generator=G)
    truth = explain(lambda i: (table(i).square() * torch.arange(20.0)[:, None]).sum((1, 2)), many).raw
    cast = explain(lambda i: (table(i.to(torch.uint8).long()).square() * torch.arange(20.0)[:, None]).sum((1, 2)), many)
    close(cast.raw, truth, 1e-12)


def test_a_row_of_ids_that_enter_two_embeddings_can_be_taken() -> None:
    one, two = nn.Embedding(9, 4).double(), nn.Embedding(9, 2).double()
    batch = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}

    def model(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        both = torch.cat([one(input_ids), two(input_ids)], -1).square() * attention_mask[..., None]
        return both.sum((1, 2))

    rows = list(explain(model, batch))
    assert [tuple(r.values.shape) for r in rows] == [(1, 3), (1, 2)]
    assert [tuple(p.shape) for p in rows[1].raw] == [(1, 2, 4), (1, 2, 2)]


def test_ids_are_followed_through_what_copies_them() -> None:
    table = nn.Embedding(60, 4).double()
    ids = torch.randint(1, 60, (2, 5), generator=G)

    def shifted(input_ids: Tensor) -> Tensor:  # what sequence-to-sequence models do to make the decoder's input
        start = input_ids.new_zeros(input_ids.shape)
        start[:, 1:] = input_ids[:, :-1].clone()
        start[:, 0] = 2
        return table(start).square().sum((1, 2))

    fronts = torch.full((2, 1), 7)
    looks = {
        "shifted": (shifted, [True, True, True, True, False]),
        "cat": (lambda i: table(torch.cat([fronts, i], 1)).square().sum((1, 2)), [True] * 5),
        "stack": (lambda i: table(torch.stack([i, i], 1)).square().sum((1, 2, 3)), [True] * 5),
        "pad": (lambda i: table(F.pad(i, (1, 0), value=3)).square().sum((1, 2)), [True] * 5),
        "masked_fill": (
            lambda i: table(i.masked_fill(torch.arange(5) == 2, 1)).square().sum((1, 2)),
            [True, True, False, True, True],
        ),
    }
    for name, (model, expected) in looks.items():
        a = explain(model, ids)
        assert (a.raw[0].abs().sum(-1) > 0).tolist() == expected, name
        close(a.output_value, model(ids.clone()).detach(), 1e-12)
        times = 4 if name == "stack" else 2
        close(a.raw[:, 0], times * table(ids[:, 0]).detach(), 1e-12)


def test_writes_on_ids_are_followed_or_named() -> None:
    table = nn.Embedding(60, 4).double()
    ids = torch.randint(10, 50, (2, 6), generator=G)

    def beside_zeros(i: Tensor) -> Tensor:
        j = i.clone()
        j.zero_()
        return table(torch.cat([j, i], 1)).square().sum((1, 2))

    def filled(i: Tensor) -> Tensor:
        j = i.clone()
        j[:, 0].fill_(5)
        j[:, 1:][:, 0] = 5
        v = j[:, 2:3]
        v[:] = 5
        j.data[:, 3] = 5
        return table(j).square().sum((1, 2))

    def masked(i: Tensor) -> Tensor:
        return table(i.clone().masked_fill_(torch.arange(6) < 4, 3)).square().sum((1, 2))

    def by_keyword(i: Tensor) -> Tensor:
        return (
            table(torch.cat(tensors=[i.masked_fill(mask=torch.arange(6) < 4, value=3), i], dim=1)[:, :6])
            .square()
            .sum((1, 2))
        )

    for model in (beside_zeros, filled, masked, by_keyword):
        a = explain(model, ids)
        close(a.output_value, model(ids.clone()).detach(), 1e-12)
        held = 0 if model is beside_zeros else 4
        assert (a.raw[0].abs().sum(-1) > 0).tolist() == [False] * held + [True] * (6 - held)
    circular = explain(lambda i: table(F.pad(i, (1, 1), mode="circular")).square().sum((1, 2)), ids)
    close(circular.raw[:, 0], 4 * table(ids[:, 0]).detach(), 1e-12)
