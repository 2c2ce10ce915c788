"""What does a predicted progression of diabetes rest on? Ten columns, an MLP, with Captum's classes.

scikit-learn's diabetes data (Efron et al. 2004), standardised; the network is trained here, on 342 of the 442 rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from beside import main
from matplotlib import pyplot
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

EXPLAINED = 20  # rows of the test set


class Mlp(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.first, self.relu1 = nn.Linear(columns, 32), nn.ReLU()
        self.second, self.relu2 = nn.Linear(32, 16), nn.ReLU()
        self.last = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.relu2(self.second(self.relu1(self.first(x)))))[:, 0]


def prepare() -> tuple[Any, ...]:
    data = load_diabetes(scaled=False)
    x, y = torch.tensor(data.data), torch.tensor(data.target)  # float64
    torch.manual_seed(0)
    order = torch.randperm(len(x))
    train, test = order[:342], order[342:]
    x = (x - x[train].mean(0)) / x[train].std(0)
    mean, spread = y[train].mean(), y[train].std()
    model = Mlp(x.shape[1]).double()
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.5)
    for _ in range(25):
        for rows in train[torch.randperm(len(train))].split(32):
            optimiser.zero_grad()
            (model(x[rows]) - (y[rows] - mean) / spread).square().mean().backward()
            optimiser.step()
    with torch.no_grad():
        error = (model(x[test]) * spread + mean - y[test]).square().mean()
    print(f"R² on {len(test)} test rows: {float(1 - error / (y[test] - mean).square().mean()):.2f}\n")
    return model.eval(), x[test][:EXPLAINED], x[train][:20], list(data.feature_names)


def attribute(package: str, model: Mlp, rows: Tensor, background: Tensor, columns: list[str]) -> Iterator[Any]:
    if package == "captum":
        from captum.attr import (  # noqa: I001
            DeepLift, DeepLiftShap, FeatureAblation, FeaturePermutation, GradientShap, IntegratedGradients, KernelShap,
            LayerConductance, Lime, ShapleyValueSampling,
        )  # fmt: skip
    else:
        from whence.captum import (  # noqa: I001
            DeepLift, DeepLiftShap, FeatureAblation, FeaturePermutation, GradientShap, IntegratedGradients, KernelShap,
            LayerConductance, Lime, ShapleyValueSampling,
        )  # fmt: skip
    drawn = {}  # for the picture

    drawn["IntegratedGradients"], delta = IntegratedGradients(model).attribute(rows, return_convergence_delta=True)
    yield "IntegratedGradients", drawn["IntegratedGradients"], delta

    drawn["DeepLift"], delta = DeepLift(model).attribute(rows, return_convergence_delta=True)
    yield "DeepLift", drawn["DeepLift"], delta

    values, delta = DeepLiftShap(model).attribute(rows, baselines=background, return_convergence_delta=True)
    yield "DeepLiftShap", values, delta

    drawn["GradientShap"] = GradientShap(model).attribute(rows, baselines=background, n_samples=200, stdevs=0.05)
    yield "GradientShap", drawn["GradientShap"]

    drawn["FeatureAblation"] = FeatureAblation(model).attribute(rows, perturbations_per_eval=5)
    yield "FeatureAblation", drawn["FeatureAblation"]

    serum = torch.tensor([[0, 1, 2, 3, 4, 4, 4, 4, 4, 5]])  # age, sex, bmi, bp; the blood's fats as one; glucose
    yield "FeatureAblation, fats together", FeatureAblation(model).attribute(rows, feature_mask=serum)

    yield "FeaturePermutation", FeaturePermutation(model).attribute(rows)

    drawn["ShapleyValueSampling"] = ShapleyValueSampling(model).attribute(rows, n_samples=100)
    yield "ShapleyValueSampling", drawn["ShapleyValueSampling"]

    drawn["KernelShap"] = KernelShap(model).attribute(rows, n_samples=200, perturbations_per_eval=200)
    yield "KernelShap", drawn["KernelShap"]

    drawn["Lime"] = Lime(model).attribute(rows, n_samples=200, perturbations_per_eval=200)
    yield "Lime", drawn["Lime"]

    units, delta = LayerConductance(model, model.relu1).attribute(rows, n_steps=100, return_convergence_delta=True)
    yield "LayerConductance, relu1", units, delta

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4), width_ratios=(3, 2), layout="constrained")
    width = 0.9 / len(drawn)
    for i, (title, values) in enumerate(drawn.items()):
        left.bar(torch.arange(len(columns)) + i * width, values.abs().mean(0).detach(), width, label=title)
    left.set_xticks(torch.arange(len(columns)) + 0.45 - width / 2, columns)
    left.set_title(f"mean magnitude over {len(rows)} test rows", fontsize=9)
    left.legend(fontsize=7)
    right.bar(torch.arange(units.shape[1]), units.detach().mean(0))
    right.set_title("LayerConductance: the mean of each unit of relu1", fontsize=9)
    yield "picture", figure


if __name__ == "__main__":
    main(__file__, __doc__, prepare, attribute)
