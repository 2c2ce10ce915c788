"""Which number and which table makes a click likely? A recommendation network (as DLRM) with Captum's classes.

Four numbers, three tables of nn.EmbeddingBag, products of all pairs between, two MLPs (Naumov et al. 2019). The clicks
are made up: they depend on the first number, on one device, and on how often the kinds of what a user read and of the
article's tags agree. The network is trained here, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from beside import main
from matplotlib import pyplot
from torch import Tensor, nn

NUMBERS, BAG, WIDTH = 4, 3, 8  # numbers, ids in a bag, width of all vectors
TABLES = {"read before": 20, "tags": 30, "device": 5}  # how many ids each has; id 0 is nothing
STEPS, ROWS, EXPLAINED = 800, 512, 16


class Dlrm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 16), nn.ReLU(), nn.Linear(16, WIDTH), nn.ReLU())
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(1 + size, WIDTH, mode="sum", padding_idx=0) for size in TABLES.values()
        )
        for table in self.tables:
            table.weight.data *= 0.3  # products of pairs start small
        vectors = 1 + len(TABLES)
        self.pairs = torch.triu_indices(vectors, vectors, offset=1)
        self.top = nn.Sequential(nn.Linear(WIDTH + self.pairs.shape[1], 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, numbers: Tensor, *bags: Tensor) -> Tensor:
        return self.interact(numbers, *(table(ids) for table, ids in zip(self.tables, bags, strict=True)))

    def interact(self, numbers: Tensor, *embedded: Tensor) -> Tensor:
        """The logit, from the numbers and the tables' vectors."""
        dense = self.bottom(numbers)
        vectors = torch.stack([dense, *embedded], 1)  # (rows, vectors, width)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1))[:, 0]


class Interaction(nn.Module):
    """The network after its tables, for classes that take a module of all inputs."""

    def __init__(self, whole: Dlrm) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, numbers: Tensor, *embedded: Tensor) -> Tensor:
        return self.whole.interact(numbers, *embedded)


def batch(rows: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Numbers and bags of ids, and clicks."""
    numbers = torch.randn(rows, NUMBERS)
    bags = [1 + torch.randint(size, (rows, BAG)) for size in TABLES.values()]
    read, tags, device = bags
    agree = (read[:, :, None] % 5 == tags[:, None, :] % 5).sum((1, 2))
    logit = 1.5 * numbers[:, 0] + agree - 2.0 + 2.0 * (device == 1).any(1)
    return (numbers, *bags), (torch.rand(rows) < logit.sigmoid()).float()


def prepare() -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = Dlrm()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(STEPS):
        inputs, clicks = batch(ROWS)
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(*inputs), clicks).backward()
        optimiser.step()
    model.eval().double()
    (numbers, *bags), clicks = batch(2000)
    numbers = numbers.double()
    with torch.no_grad():
        right = (model(numbers, *bags) > 0) == clicks.bool()
    print(f"{float(right.double().mean()):.0%} of {len(right)} new rows right\n")
    return model, numbers[:EXPLAINED], *(bag[:EXPLAINED] for bag in bags)


def attribute(package: str, model: Dlrm, numbers: Tensor, *bags: Tensor) -> Iterator[Any]:
    if package == "captum":
        from captum.attr import (  # noqa: I001
            DeepLift, FeatureAblation, IntegratedGradients, LayerConductance, LayerIntegratedGradients,
            NeuronConductance,
        )  # fmt: skip
    else:
        from whence.captum import (  # noqa: I001
            DeepLift, FeatureAblation, IntegratedGradients, LayerConductance, LayerIntegratedGradients,
            NeuronConductance,
        )  # fmt: skip
    yield (
        "IntegratedGradients of the numbers",
        IntegratedGradients(model).attribute(numbers, additional_forward_args=bags),
    )

    embedded = tuple(table(ids).detach() for table, ids in zip(model.tables, bags, strict=True))
    after = Interaction(model)
    parts, delta = IntegratedGradients(after).attribute((numbers, *embedded), return_convergence_delta=True)
    yield "IntegratedGradients of numbers and vectors", parts, delta

    values = LayerIntegratedGradients(model, list(model.tables)).attribute(
        (numbers, *bags), baselines=(numbers, *(torch.zeros_like(ids) for ids in bags))
    )
    yield "LayerIntegratedGradients of the tables", values

    values, delta = DeepLift(after).attribute((numbers, *embedded), return_convergence_delta=True)
    yield "DeepLift of numbers and vectors", values, delta

    masks = (torch.arange(NUMBERS)[None], *(torch.full((1, BAG), NUMBERS + i) for i in range(len(bags))))
    ablated = FeatureAblation(model).attribute((numbers, *bags), feature_mask=masks)
    yield "FeatureAblation, numbers and whole bags", ablated

    yield "FeatureAblation, every id by itself", FeatureAblation(model).attribute((numbers, *bags))

    units = LayerConductance(after, model.top[1]).attribute((numbers, *embedded))
    yield "LayerConductance, top.1", units

    most = int(units.abs().mean(0).argmax())
    values = NeuronConductance(after, model.top[1]).attribute((numbers, *embedded), neuron_selector=most)
    yield "NeuronConductance, strongest unit of top.1", values

    yield "picture", picture(parts, ablated, values, most)


def picture(parts: Any, ablated: Any, through: Any, unit: int) -> Any:
    """The mean magnitude of each number and each table, by three methods."""
    names = [*(f"number {i}" for i in range(NUMBERS)), *TABLES]
    shown = {"IntegratedGradients": parts, "FeatureAblation": ablated, f"NeuronConductance of unit {unit}": through}
    figure, axis = pyplot.subplots(figsize=(9, 4), layout="constrained")
    place = torch.arange(len(names))
    for i, (title, (numbers, *tables)) in enumerate(shown.items()):
        whole = [t[:, 0] if title == "FeatureAblation" else t.sum(1) for t in tables]  # an ablated bag has one value
        columns = torch.cat([numbers, torch.stack(whole, 1)], 1)
        axis.bar(place + 0.3 * i - 0.3, columns.abs().mean(0).detach(), 0.3, label=title)
    axis.set_xticks(place, names)
    axis.set_title(f"mean magnitude over {len(parts[0])} rows", fontsize=9)
    axis.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main(__file__, __doc__, prepare, attribute)
