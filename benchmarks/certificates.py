"""Whether integrated gradients keep what their receipt says: true L1 errors of ten kinked and ten smooth models.

The truth is a sum over many midpoints in float64 (20,000 on small models). "within" is the share of rows whose true
error is at most the tolerance, or which the receipt says have not converged; "covered" the share whose true error is at
most `tolerance_reached`.
"""

from __future__ import annotations

import copy
import functools
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from benchmarks import trained
from benchmarks.trained import MaxPoolCNN, ViT
from whence.views.terminal import table


@dataclass(frozen=True, eq=False)
class Case:
    """A classifier, rows for it, and where their lines start."""

    model: nn.Module
    x: Tensor
    before: Tensor | float = 0.0
    points: int = 20_000  # of the truth


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Dense layers, on anything that can be flattened."""
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), act())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


class Residual(nn.Module):
    """A stem, three residual blocks, an average pooling."""

    def __init__(self, act: Callable[[Tensor], Tensor] = F.relu, width: int = 16) -> None:
        super().__init__()
        self.act, self.stem, self.out = act, nn.Conv2d(1, width, 3, padding=1), nn.Linear(4 * width, 10)
        self.a, self.b = (nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.stem(x))
        for a, b in zip(self.a, self.b, strict=True):
            x = self.act(x + b(self.act(a(x))))
        return self.out(F.avg_pool2d(x, 4).flatten(1))


class Recurrent(nn.Module):
    """A GRU over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(x[:, 0])[0][:, -1])


class SmoothResidual(Residual):
    def __init__(self) -> None:
        super().__init__(F.silu)


# ---- models ----


def randomly(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval()


def on_digits(make: Callable[[], nn.Module], epochs: int = 10, rate: float = 2e-3) -> nn.Module:
    return copy.deepcopy(trained.trained_on_digits(make, epochs, rate))  # type: ignore[arg-type]


def digits(rows: int, images: int = 1500) -> Tensor:
    return trained._digits()[0][images : images + rows]


def noise(rows: int, *shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(seed)) * scale


def zoo(name: str, rows: int) -> Case:
    from PIL import Image

    clf = whence.load(f"zoo:{name}")
    pixels = clf.processor([Image.open(path) for path in clf.examples[:rows]])["pixel_values"]
    model = clf.model if name == "fashion-cnn" else Logits(clf.model)
    return Case(model, pixels, float(pixels.min()), 4000)


class Logits(nn.Module):
    """A Hugging Face classifier of images as a function of pixels."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(pixel_values=x).logits


def resnet(rows: int) -> Case:
    found = trained.resnet20(rows)
    return Case(found.model, found.x, found.before, 2000)


wide_mlp = functools.partial(mlp, 64, 96, 64, 10)
leaky_mlp = functools.partial(mlp, 64, 96, 64, 10, act=functools.partial(nn.LeakyReLU, 0.1))
tanh_mlp = functools.partial(mlp, 64, 96, 64, 10, act=nn.Tanh)
gelu_mlp = functools.partial(mlp, 64, 96, 64, 10, act=nn.GELU)

KINKED: dict[str, Callable[[int], Case]] = {
    "MLP, 6 inputs, random": lambda n: Case(randomly(lambda: mlp(6, 24, 24, 3), 0), noise(n, 6)),
    "MLP, 5 layers, random": lambda n: Case(
        randomly(lambda: mlp(20, 64, 64, 64, 64, 64, 4), 2), noise(n, 20, seed=3, scale=2.0), noise(n, 20, seed=4)
    ),
    "MLP, digits, random": lambda n: Case(randomly(wide_mlp, 1), digits(n)),
    "MLP, digits, trained": lambda n: Case(on_digits(wide_mlp), digits(n)),
    "leaky MLP, digits, trained": lambda n: Case(on_digits(leaky_mlp), digits(n), 0.5),
    "max-pool CNN, random": lambda n: Case(randomly(MaxPoolCNN, 3), digits(n)),
    "max-pool CNN, trained": lambda n: Case(on_digits(MaxPoolCNN), digits(n)),
    "residual CNN, random": lambda n: Case(randomly(Residual, 4), digits(n), 0.0, 8000),
    "residual CNN, trained": lambda n: Case(on_digits(Residual, 5), digits(n), 0.0, 8000),
    "zoo:fashion-cnn": lambda n: zoo("fashion-cnn", n),
    "ResNet-20, CIFAR": lambda n: resnet(min(n, 4)),
}
SMOOTH: dict[str, Callable[[int], Case]] = {
    "tanh MLP, 6 inputs, random": lambda n: Case(
        randomly(lambda: mlp(6, 24, 24, 3, act=nn.Tanh), 0), noise(n, 6, scale=3.0)
    ),
    "tanh MLP, digits, random": lambda n: Case(randomly(tanh_mlp, 1), digits(n)),
    "tanh MLP, digits, trained": lambda n: Case(on_digits(tanh_mlp), digits(n)),
    "GELU MLP, digits, random": lambda n: Case(randomly(gelu_mlp, 1), digits(n)),
    "GELU MLP, digits, trained": lambda n: Case(on_digits(gelu_mlp), digits(n)),
    "SiLU residual CNN, random": lambda n: Case(randomly(SmoothResidual, 1), digits(n), 0.0, 2000),
    "SiLU residual CNN, trained": lambda n: Case(on_digits(SmoothResidual, 5), digits(n), 0.0, 2000),
    "GRU, random": lambda n: Case(randomly(Recurrent, 1), 5 * digits(n), 0.0, 4000),
    "ViT, digits, trained": lambda n: Case(trained.trained_on_digits(ViT, 15, 4e-3), digits(n), 0.0, 2000),
    "zoo:fashion-vit": lambda n: zoo("fashion-vit", n),
}


# ---- measuring ----


@dataclass(frozen=True, eq=False)
class Held:
    """One model's rows: true errors, and what the receipt says of them."""

    errors: Tensor
    receipt: dict[str, Any]
    tolerance: float

    @property
    def within(self) -> Tensor:
        return (self.errors <= self.tolerance) | ~torch.tensor(self.receipt["converged"])

    @property
    def covered(self) -> Tensor:
        return self.errors <= torch.tensor(self.receipt["tolerance_reached"], dtype=torch.float64)


def truth(case: Case, target: Tensor) -> Tensor:
    """φ by midpoints in float64."""
    model, x = copy.deepcopy(case.model).double().eval(), case.x.double()
    before = torch.as_tensor(case.before, dtype=torch.float64).expand_as(x)
    most = max(8, min(1000, 30_000 // x[0].numel()))
    found = []
    for end, start, index in zip(x, before, target.tolist(), strict=True):
        total = torch.zeros_like(end)
        for alpha in ((torch.arange(case.points, dtype=torch.float64) + 0.5) / case.points).split(most):
            point = torch.lerp(start, end, alpha.view(-1, *[1] * end.dim())).requires_grad_()
            total += torch.autograd.grad(model(point)[:, index].sum(), point)[0].sum(0)
        found.append(total / case.points * (end - start))
    return torch.stack(found)


def held(case: Case, tolerance: float = 0.01) -> Held:
    """What integrated gradients say of a model's rows, and what is true."""
    with torch.no_grad():
        target = case.model(case.x).argmax(1)
    a = whence.explain(
        case.model, case.x, method="integrated_gradients", target=target, baseline=case.before, tolerance=tolerance
    )
    exact = truth(case, target)
    errors = (a.values.double() - exact).flatten(1).abs().sum(1) / exact.flatten(1).abs().sum(1)
    return Held(errors, a.receipt, tolerance)


def main(only: str = "", rows: str = "8", tolerance: str = "0.01") -> None:
    warnings.simplefilter("ignore")
    for kind, cases in (("with kinks", KINKED), ("smooth", SMOOTH)):
        lines, within, covered = [], [], []
        for name, make in cases.items():
            if only not in name or (name.startswith("ResNet") and not (trained.DATA / "cifar10_resnets").exists()):
                continue
            one = held(make(int(rows)), float(tolerance))
            within.append(one.within)
            covered.append(one.covered)
            counts = one.receipt["gradient_evaluations"]
            lines.append([
                name, str(len(one.errors)), f"{float(one.within.double().mean()):.0%}",
                f"{float(one.covered.double().mean()):.0%}", f"{sum(counts) / len(counts):.1f}",
                f"{float(one.errors.max()):.2%}", str(one.receipt["converged"].count(False)),
            ])  # fmt: skip
            print(*lines[-1], sep="  ", file=sys.stderr, flush=True)
        if lines:
            print(f"\nModels {kind}, tolerance {float(tolerance):.2%}")
            head = ["model", "rows", "within", "covered", "evaluations per row", "worst error", "not converged"]
            print(table(head, lines))
            shares = [float(torch.cat(part).double().mean()) for part in (within, covered)]
            print(f"all rows: within {shares[0]:.1%}, covered {shares[1]:.1%}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
