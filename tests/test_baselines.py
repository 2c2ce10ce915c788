"""Named baselines, several of them, the most neutral of them, and what is reported of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.functions import explain
from tests.support.hf import FAMILIES
from tests.support.models import close
from whence.subject.named_baselines import named


def ig(model: Any, inputs: Any, **options: Any) -> whence.Attribution:
    return whence.explain(model, inputs, method="integrated_gradients", **options)


def classifier() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))
    x = torch.randn(3, 2, 9, 7)
    model(x)
    return model.double(), x.double()


def value_of(name: str, x: Tensor, **options: Any) -> Tensor:
    """x', as the difference that a sum's attributions are made of."""
    return x - ig(lambda t: t.flatten(1).sum(1, keepdim=True), x, baseline=name, **options).values


def test_what_images_look_like_without_their_signal() -> None:
    _, x = classifier()
    assert float(value_of("zero", x).abs().max()) < 1e-12
    close(value_of("black", x), x.amin((2, 3), keepdim=True).expand_as(x), 1e-12)
    close(value_of("mean", x), x.mean((2, 3), keepdim=True).expand_as(x), 1e-12)
    blurred = value_of("blur", x)
    assert float(blurred.var()) < float(x.var()) / 2
    close(value_of("blur", torch.full_like(x, 3.0)), torch.full_like(x, 3.0), 1e-12)
    spot = torch.zeros(1, 1, 31, 31).double()
    spot[0, 0, 15, 15] = 1
    offsets = torch.arange(-15, 16).double()
    bell = (-0.5 * (offsets[:, None] ** 2 + offsets**2) / 3.1**2).exp()
    seen = value_of("blur", spot)[0, 0]
    close(seen[8:23, 8:23], (bell / bell.sum())[8:23, 8:23], 0.01)


def test_noise_depends_on_the_rows_seed_only() -> None:
    _, x = classifier()
    noise = value_of("noise", x, seed=4)
    close(value_of("noise", x[1:2], seed=4), noise[1:2], 1e-12)
    assert not torch.allclose(value_of("noise", x, seed=5), noise)
    low, high = x.flatten(1).amin(1), x.flatten(1).amax(1)
    assert bool(((noise.flatten(1) >= low[:, None] - 1e-9) & (noise.flatten(1) <= high[:, None] + 1e-9)).all())


def test_tokens_are_replaced_and_special_ones_kept() -> None:
    family = FAMILIES["roberta"] if "roberta" in FAMILIES else FAMILIES["bert"]
    model, inputs = family.build("sdpa"), family.inputs()
    model.config.cls_token_id = int(inputs["input_ids"][0, 0])
    ids, real = inputs["input_ids"], inputs["attention_mask"].bool()
    pad = model.config.pad_token_id
    kept = [getattr(model.config, f"{n}_token_id", None) for n in ("bos", "eos", "cls", "sep")]
    special = torch.isin(ids, torch.tensor([k for k in kept if isinstance(k, int)]))
    by_name = ig(model, inputs, target=0, baseline="pad")
    by_ids = ig(model, inputs, target=0, baseline=torch.where(special, ids, pad))
    close(by_name.values, by_ids.values, 1e-12)
    assert float(by_name.values[special & real].abs().max()) == 0
    with pytest.raises(whence.BaselineError, match="needs the mask token, but the configuration"):
        ig(model, inputs, target=0, baseline="mask")
    model.config.mask_token_id = 7
    masked = ig(model, inputs, target=0, baseline="mask")
    close(masked.values, ig(model, inputs, target=0, baseline=torch.where(special, ids, 7)).values, 1e-12)
    mean = ig(model, inputs, target=0, baseline="mean")
    table = model.get_input_embeddings().weight.detach().mean(0).expand(*ids.shape, -1)
    close(mean.values, ig(model, inputs, target=0, baseline=table).values, 1e-12)


def test_the_score_and_the_probability_at_the_baseline_are_reported() -> None:
    model, x = classifier()
    a = ig(model, x, target=1, baseline="mean")
    there = model(x.mean((2, 3), keepdim=True).expand_as(x)).detach()
    close(a.baseline_value, there[:, 1], 1e-12)
    close(torch.tensor(a.receipt["baseline_probability"]).double(), there.softmax(1)[:, 1], 1e-7)
    two = ig(model, x, target=torch.tensor([[0, 1]] * 3), baseline="mean")
    close(torch.tensor(two.receipt["baseline_probability"]).double(), there.softmax(1)[:, :2], 1e-7)
    assert "baseline_probability" not in ig(lambda t: t.flatten(1).sum(1), x).receipt


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}])
def test_each_row_takes_the_most_neutral_baseline(options: dict[str, int]) -> None:
    model, x = classifier()
    x = x * torch.tensor([1.0, 5.0, 0.1]).double().view(3, 1, 1, 1) + 0.3
    names = ["zero", "black", "mean", "blur"]
    values = torch.stack([torch.zeros_like(x), *(value_of(name, x) for name in names[1:])])  # (names, rows, …)
    p = torch.stack([model(v).softmax(1) for v in values]).detach()
    best = (p * p.log()).sum(2).argmin(0)
    a = ig(model, x, target=0, baseline=whence.neutral(*names), **options)
    assert a.receipt["baseline"] == [names[int(i)] for i in best]
    assert len(set(a.receipt["baseline"])) > 1, "a case that shows nothing"
    chosen = torch.stack([values[int(i), row] for row, i in enumerate(best)])
    close(a.values, ig(model, x, target=0, baseline=chosen).values, 1e-9)


def test_a_regressor_is_neutral_where_it_says_0() -> None:
    a = ig(lambda t: t.sum(1) - 1, torch.ones(2, 2), baseline=whence.neutral(0.0, torch.tensor([0.5, 0.4]), 2.0))
    assert a.receipt["baseline"] == ["tensor([0.5000, 0.4000])"] * 2
    close(a.baseline_value, torch.tensor([-0.1, -0.1]), 1e-6)


def test_several_baselines_only_where_they_are_averaged() -> None:
    model, x = classifier()
    with pytest.raises(whence.BaselineError, match="leave_one_out takes one baseline, but 2 were given"):
        whence.explain(model, x, method="leave_one_out", baseline=[0, "mean"])
    with pytest.raises(whence.BaselineError, match="nothing to choose from"):
        whence.neutral()
    with pytest.raises(whence.BaselineError, match="single baselines as candidates"):
        ig(model, x, baseline=whence.neutral([0, 1]))


def test_every_name_has_a_description_and_works_in_a_dict() -> None:
    for name, entry in named.items():
        assert entry.description.endswith("."), name
    model, x = classifier()
    a = whence.explain(lambda a, b: model(a * b), {"a": x, "b": x}, method="integrated_gradients",
                       baseline={"a": "mean", "b": 1.0}, target=0)  # fmt: skip
    assert float(a.gap.max()) <= 0.01
    close(a.baseline_value, model(x.mean((2, 3), keepdim=True).expand_as(x))[:, 0].detach(), 1e-12)


def test_a_number_as_baseline_of_ids_is_an_embedding_at_a_layer_too() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(9, 4).double(), nn.Linear(4, 3).double()

        def forward(self, ids: Tensor, others: Tensor) -> Tensor:
            return self.layer(self.table(ids)).square().sum((1, 2)) + others.sum(1)

    model, ids = Text(), torch.ones(2, 3).long()
    inputs = {"ids": ids, "others": ids}
    a = explain(model, inputs, at="layer", wrt="ids", baseline=0)
    close(a.baseline_value, (3 * model.layer.bias.square().sum() + 3).detach().expand(2), 1e-12)
    given = explain(model, inputs, at="layer", wrt="ids", baseline=torch.zeros(2, 3).long())
    there = model.layer(model.table(torch.tensor(0))).square().sum().detach()
    close(given.baseline_value, (3 * there + 3).expand(2), 1e-12)
    with pytest.raises(whence.BaselineError, match="Give the baseline as ids"):
        explain(model, inputs, wrt="ids", baseline={"ids": 0, "others": 0})


# ---- functions, and shapes that broadcast ----


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.tanh(a).sum(1) * b.sum(1)


@pytest.mark.parametrize(
    "method", [m for m, e in whence.methods.items() if e.facts.get("reference") and not e.facts.get("permutes")]
)
def test_a_function_gives_the_baseline_of_the_inputs(method: str) -> None:
    draw = torch.Generator().manual_seed(0)
    x, b = torch.randn(5, 5, generator=draw).double(), torch.randn(5, 3, generator=draw).double()

    def squared(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).sum(1) ** 2

    def values(model: object, x: object, baseline: object, **options: object) -> list[torch.Tensor]:
        found = whence.explain(model, x, method=method, baseline=baseline, **options).values
        return list(found) if isinstance(found, tuple) else [found]

    def same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
        for one, other in zip(found, expected, strict=True):
            close(one, other, 1e-9)

    whole = values(squared, x, x.flip(0))
    same(values(squared, x, lambda x: x.flip(0)), whole)
    same(values(squared, x, lambda: x.flip(0)), whole)
    if whence.methods[method].facts.get("background"):
        return  # every row of a tensor is one reference
    pair = values(_product, (x, b), (x.mean(0), b * 0 + 0.5))
    for given in (
        lambda both: (both[0].mean(0), 0.5),
        (lambda x: x.mean(0, keepdim=True), 0.5),
        {"0": lambda x: x.mean(0), "1": lambda b: torch.full_like(b, 0.5)},
        (x.mean(0), torch.tensor([[0.5]]).double()),
        (x.mean(0), torch.full((5, 1), 0.5).double()),
    ):
        same(values(_product, (x, b), given), pair)
    split = values(_product, (x, b), (x.mean(0), 0.5), batch_size=2)  # one row of as many numbers as there are rows
    same(split, pair)


def test_a_baseline_that_does_not_broadcast_is_named() -> None:
    with pytest.raises(whence.BaselineError, match=r"has the shape \(2, 3\)(.|\n)*an axis of length 1"):
        whence.explain(lambda x: x.sum((1, 2)), torch.ones(4, 2, 2), method="deeplift", baseline=torch.ones(2, 3))
    with pytest.raises(whence.BaselineError, match="a function of the input"):
        whence.explain(lambda x: x.sum(1), torch.ones(4, 2), method="deeplift", baseline=object())
