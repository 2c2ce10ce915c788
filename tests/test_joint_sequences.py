"""Tokens of several inputs in one sequence: whatever puts them there, each score goes to the token it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.attention import heads, joined
from tests.support.models import close

pytestmark = pytest.mark.filterwarnings("ignore:.*every value of rows")
ROWS, WORDS, PATCHES, HIDDEN = 2, 5, 6, 8
G = torch.Generator().manual_seed(0)
IDS = torch.randint(0, 20, (ROWS, WORDS), generator=G)
IMAGE = torch.randn(ROWS, 3, 4, 6, generator=G).double()  # of 2 × 3 patches
ORDER = torch.stack([torch.randperm(WORDS + PATCHES, generator=G) for _ in range(ROWS)])
PLACES = torch.zeros(ROWS, WORDS + PATCHES, dtype=torch.bool)
for _row in range(ROWS):
    PLACES[_row, torch.randperm(WORDS + PATCHES, generator=G)[:PATCHES]] = True

Fuse = Callable[[Tensor, Tensor, Tensor], Tensor]  # text, patches and a learned token (1, 1, …) → one sequence


def empty(text: Tensor) -> Tensor:
    return text.new_zeros(ROWS, WORDS + PATCHES, text.shape[-1])


def by_masked_scatter(text: Tensor, patches: Tensor, _: Tensor) -> Tensor:
    whole = empty(text).masked_scatter(~PLACES[..., None], text)
    return whole.masked_scatter(PLACES[..., None].expand_as(whole), patches)


def by_masks(text: Tensor, patches: Tensor, _: Tensor) -> Tensor:
    whole = empty(text)
    whole[~PLACES] = text.flatten(0, 1)
    whole[PLACES] = patches.flatten(0, 1)
    return whole


def by_index_put(text: Tensor, patches: Tensor, _: Tensor) -> Tensor:
    whole = torch.cat([text, torch.zeros_like(patches)], 1)
    row, column = (torch.arange(ROWS)[:, None], torch.arange(WORDS, WORDS + PATCHES)[None].flip(1))
    return whole.index_put((row, column), patches)


def by_views(text: Tensor, patches: Tensor, _: Tensor) -> Tensor:
    whole = empty(text)
    whole[:, 1 : 1 + PATCHES].copy_(patches)
    whole[:, 0] = text[:, 0]
    whole[:, 1 + PATCHES :] = text[:, 1:]
    return whole


def by_where(text: Tensor, patches: Tensor, _: Tensor) -> Tensor:
    left, right = F.pad(text, (0, 0, 0, PATCHES)), F.pad(patches, (0, 0, WORDS, 0))
    return torch.where((torch.arange(WORDS + PATCHES) < WORDS)[None, :, None], left, right)


def by_gather(text: Tensor, patches: Tensor, _: Tensor) -> Tensor:
    whole = torch.cat([text, patches], 1)
    return whole.gather(1, ORDER[..., None].expand_as(whole))


def by_scatter(text: Tensor, patches: Tensor, _: Tensor) -> Tensor:
    whole = torch.cat([text, patches], 1)
    return torch.zeros_like(whole).scatter(1, ORDER[..., None].expand_as(whole), whole)


FUSIONS: dict[str, Fuse] = {
    "cat": lambda text, patches, _: torch.cat([text, patches], 1),
    "cat, image first": lambda text, patches, _: torch.cat([patches, text], 1),
    "learned tokens between": lambda text, patches, token: torch.cat(
        [token.expand(ROWS, 2, -1), text, token.expand(ROWS, 1, -1), patches], 1
    ),
    "masked_scatter": by_masked_scatter,
    "masks": by_masks,
    "index_put": by_index_put,
    "views": by_views,
    "where": by_where,
    "gather": by_gather,
    "scatter": by_scatter,
    "rows apart": lambda text, patches, _: torch.stack([torch.cat([t, p]) for t, p in zip(text, patches, strict=True)]),
    "flip and roll": lambda text, patches, _: torch.cat([text, patches], 1).flip(1).roll(3, 1),
    "dropped": lambda text, patches, _: torch.cat([text, patches], 1)[:, 2:-1],
    "index_select": lambda text, patches, _: torch.cat([text, patches], 1).index_select(1, ORDER[0]),
    "taken": lambda text, patches, _: torch.take_along_dim(torch.cat([text, patches], 1), ORDER[..., None], 1),
    "halves interleaved": lambda text, patches, _: torch.cat([patches[:, 0::2], text, patches[:, 1::2]], 1),
}
PATCHED: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "convolution": lambda m, x: F.conv2d(x, m.patch.view(HIDDEN, 3, 2, 2), stride=2).flatten(2).mT,  # type: ignore[operator]
    "linear": lambda m, x: F.linear(
        x.view(ROWS, 3, 2, 2, 3, 2).permute(0, 2, 4, 1, 3, 5).reshape(ROWS, 6, 12),
        m.patch,  # type: ignore[arg-type]
    ),
    "unfold": lambda m, x: F.linear(F.unfold(x, 2, stride=2).mT, m.patch),  # type: ignore[arg-type]
}


class Fused(nn.Module):
    """Two layers of attention over text and image in one sequence."""

    def __init__(self, fuse: Fuse, patched: str = "convolution") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.patch = nn.Embedding(20, HIDDEN), nn.Parameter(torch.randn(HIDDEN, 12))
        self.token, self.out = nn.Parameter(torch.randn(1, 1, HIDDEN)), nn.Linear(HIDDEN, 3)
        self.layers = nn.ModuleList([nn.Linear(HIDDEN, 3 * HIDDEN) for _ in range(2)])
        self.fuse, self.patched = fuse, patched
        self.maps: list[Tensor] = []
        self.double().eval()

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        x = self.fuse(self.embed(input_ids), PATCHED[self.patched](self, pixel_values), self.token)
        self.maps = []
        for layer in self.layers:
            q, k, v = (heads(t) for t in layer(x).chunk(3, -1))
            weights = (q @ k.mT).softmax(-1)
            self.maps.append(weights)
            x = x + joined(weights @ v)
        return self.out(x[:, 0])


def by_hand(model: Fused) -> tuple[Tensor, Tensor, Tensor]:
    """Rollout from the maps, and the places from the same fusion of numbers: ids, patches, the rest."""
    with torch.no_grad():
        model(IDS, IMAGE)
    line = torch.zeros(ROWS, model.maps[0].shape[-1]).double()
    line[:, 0] = 1
    for a in reversed(model.maps):
        line = (line[:, None] @ (a.detach().mean(1) + torch.eye(a.shape[-1]).double()) / 2)[:, 0]
    text = torch.arange(1.0, WORDS + 1).view(1, -1, 1).expand(ROWS, WORDS, 1)
    patches = torch.arange(101.0, PATCHES + 101).view(1, -1, 1).expand(ROWS, PATCHES, 1)
    places = model.fuse(text.clone(), patches.clone(), torch.zeros(1, 1, 1))[..., 0]
    found = [
        (line[:, :, None] * (places[:, :, None] == torch.arange(1, n + 1) + offset)).sum(1)
        for n, offset in ((WORDS, 0), (PATCHES, 100))
    ]
    return found[0], found[1].view(ROWS, 2, 3), (line * (places == 0)).sum(1)


@pytest.mark.parametrize("name", FUSIONS)
def test_every_way_to_join_tokens(name: str) -> None:
    model = Fused(FUSIONS[name])
    text, patches, rest = by_hand(model)
    a = whence.explain(model, {"input_ids": IDS, "pixel_values": IMAGE}, method="rollout", target=1)
    close(a.values["input_ids"], text, 1e-10)
    close(a.values["pixel_values"], patches, 1e-10)
    said = a.receipt.get("other_positions", [0.0] * ROWS)
    close(torch.tensor(said).double(), rest, 1e-5 if bool(rest.any()) else 0.0)


@pytest.mark.parametrize("patched", PATCHED)
def test_every_way_to_cut_patches(patched: str) -> None:
    model = Fused(FUSIONS["cat"], patched)
    text, patches, _ = by_hand(model)
    a = whence.explain(model, {"input_ids": IDS, "pixel_values": IMAGE}, method="rollout", target=1)
    close(a.values["pixel_values"], patches, 1e-10)
    close(a.values["input_ids"], text, 1e-10)


@pytest.mark.parametrize(
    "method", [n for n, entry in whence.methods.items() if entry.facts.get("needs") == "attention"]
)
def test_a_new_order_of_tokens_changes_nothing(method: str) -> None:
    """The read-out row stays first; the others are attended to in any order."""
    order = torch.tensor([0, *range(10, 0, -1)])
    plain, turned = Fused(FUSIONS["cat"]), Fused(lambda t, p, _: torch.cat([t, p], 1)[:, order])
    inputs = {"input_ids": IDS, "pixel_values": IMAGE}
    one, two = (whence.explain(model, inputs, method=method, target=1).values for model in (plain, turned))
    close(two["input_ids"], one["input_ids"], 1e-9)
    close(two["pixel_values"], one["pixel_values"], 1e-9)


class Between(Fused):
    """Tokens are put in another order, and some are dropped, between the layers."""

    def forward(self, input_ids: Tensor, pixel_values: Tensor) -> Tensor:
        x = self.fuse(self.embed(input_ids), PATCHED[self.patched](self, pixel_values), self.token)
        self.maps = []
        for n, layer in enumerate(self.layers):
            if n:
                x = x[:, [0, 7, 3, 9, 1]]
            q, k, v = (heads(t) for t in layer(x).chunk(3, -1))
            weights = (q @ k.mT).softmax(-1)
            self.maps.append(weights)
            x = x + joined(weights @ v)
        return self.out(x[:, 0])


def test_tokens_that_are_dropped_between_layers() -> None:
    model = Between(FUSIONS["cat"])
    a = whence.explain(model, {"input_ids": IDS, "pixel_values": IMAGE}, method="rollout", target=1)
    with torch.no_grad():
        model(IDS, IMAGE)
    first, last = ((m.detach().mean(1) + torch.eye(m.shape[-1]).double()) / 2 for m in model.maps)
    line = torch.zeros(ROWS, 11).double()
    line[:, [0, 7, 3, 9, 1]] = last[:, 0]
    line = (line[:, None] @ first)[:, 0]
    close(a.values["input_ids"], line[:, :5], 1e-10)
    close(a.values["pixel_values"].flatten(1), line[:, 5:], 1e-10)


# ---- inputs of other kinds ----


class Two(nn.Module):
    """Two inputs of one kind in one sequence."""

    def __init__(self, ids: bool) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.embed, self.project, self.ids = nn.Embedding(20, HIDDEN), nn.Linear(4, HIDDEN), ids
        self.layer, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, 3)
        self.shows = False
        self.double().eval()

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        put = self.embed if self.ids else self.project
        x = torch.cat([put(a), put(b)], 1)
        q, k, v = self.layer(x).chunk(3, -1)
        seen = (q @ k.mT).softmax(-1)
        return seen if self.shows else self.out((seen @ v)[:, 2])

    def map(self, *inputs: Tensor) -> Tensor:
        self.shows = True
        with torch.no_grad():
            found: Tensor = self(*inputs)
        self.shows = False
        return found


@pytest.mark.parametrize("ids", [True, False])
def test_two_inputs_of_one_kind(ids: bool) -> None:
    model = Two(ids)
    g = torch.Generator().manual_seed(1)
    made = [
        torch.randint(0, 20, (2, n), generator=g) if ids else torch.randn(2, n, 4, generator=g).double() for n in (3, 4)
    ]
    a = whence.explain(model, {"a": made[0], "b": made[1]}, method="raw_attention", target=0)
    seen = model.map(*made)
    close(a.values["a"], seen[:, 2, :3], 1e-10)
    close(a.values["b"], seen[:, 2, 3:], 1e-10)


def test_features_side_by_side_and_sums_are_one_inputs_and_that_is_said() -> None:
    class Beside(Two):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return super().forward(torch.cat([a, b], -1)[..., ::2], torch.cat([a, b], -1)[..., 1::2])

    x, y = torch.randn(2, 3, 4, generator=G).double(), torch.randn(2, 3, 4, generator=G).double()
    a = whence.explain(Beside(False), {"a": x, "b": y}, method="raw_attention", target=0)
    close(a.values["a"].sum(1), torch.ones(2).double(), 1e-9)
    assert not a.values["b"].any()
    assert a.receipt["shared_positions"] == {"b": "a"}


def test_an_input_without_positions_is_said() -> None:
    class Aside(Two):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return super().forward(a, a) + b.mean(1).mean(1, keepdim=True)

    model, x = Aside(False), torch.randn(2, 3, 4, generator=G).double()
    with pytest.warns(UserWarning, match="'b' has no positions among those that the model attends to"):
        a = whence.explain(model, {"a": x, "b": x + 1}, method="raw_attention", target=0)
    close(a.values["a"].sum(1), torch.ones(2).double(), 1e-9)


def test_what_cannot_be_told_is_refused() -> None:
    class Mixed(Two):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            x = torch.cat([self.project(a), self.project(b)], 1)
            return super().forward((x.mT @ torch.ones(7, 7).double()).mT[..., :4], x[..., :4])

    model = Mixed(False)
    x, y = torch.randn(2, 3, 4, generator=G).double(), torch.randn(2, 4, 4, generator=G).double()
    with pytest.raises(whence.InputError, match="which are whose cannot be told"):
        whence.explain(model, {"a": x, "b": y}, method="rollout", target=0)


def test_prompts_that_were_learned_keep_their_share() -> None:
    class Prompted(Two):
        def forward(self, input_ids: Tensor) -> Tensor:  # type: ignore[override]
            x = torch.cat([self.embed.weight[:2].expand(len(input_ids), 2, HIDDEN), self.embed(input_ids)], 1)
            q, k, v = self.layer(x).chunk(3, -1)
            seen = (q @ k.mT).softmax(-1)
            return seen if self.shows else self.out((seen @ v)[:, -1])

    model = Prompted(True)
    a: Any = whence.explain(model, {"input_ids": IDS}, method="raw_attention", target=0)
    seen = model.map(IDS)
    close(a.values, seen[:, -1, 2:], 1e-10)
    close(torch.tensor(a.receipt["other_positions"]).double(), seen[:, -1, :2].sum(1), 1e-5)
