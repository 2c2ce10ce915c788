"""Grad-CAM from the paper's formula: a network with known maps, one row and one place at a time, in float64."""

from __future__ import annotations

from typing import Any

import captum.attr
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.models import CASES, close

ORACLE_OF = ("grad_cam", "guided_grad_cam")

DRAW = torch.Generator().manual_seed(3)


class Cnn(nn.Module):
    """Two convolutions, a pool, and a dense head that knows places, so that gradients differ from place to place."""

    def __init__(self, dims: int = 2, inplace: bool = False) -> None:
        super().__init__()
        convolution = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
        self.first, self.second = convolution(2, 4, 3, padding=1), convolution(4, 5, 3, padding=1)
        self.relu, self.late = nn.ReLU(inplace), nn.ReLU(inplace)
        self.pool = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}[dims](2)
        self.head = nn.Linear(5 * 3**dims, 3)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=DRAW))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        maps = self.late(self.second(self.pool(self.relu(self.first(x)))))
        return self.head(maps.flatten(1))


def image(dims: int = 2) -> Tensor:
    return torch.randn(3, 2, *[6] * dims, generator=DRAW).double()


def by_hand(model: Cnn, x: Tensor, target: int) -> np.ndarray:
    """Σ_c w_c·A_c at the last ReLU: there the score is linear, and its gradient the head's weights."""
    maps = F.relu(model.second(model.pool(F.relu(model.first(x))))).detach().numpy()
    slopes = model.head.weight.detach().numpy()[target].reshape(maps.shape[1:])
    found = np.zeros((len(x), *maps.shape[2:]))
    for row in range(len(x)):
        for channel in range(maps.shape[1]):
            weight = sum(slopes[channel].flatten()) / slopes[channel].size
            found[row] += weight * maps[row, channel]
    return found


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("inplace", [False, True])
def test_grad_cam_by_hand(dims: int, inplace: bool) -> None:
    model, x = Cnn(dims, inplace), image(dims)
    expected = torch.tensor(by_hand(model, x, 1))
    a = whence.explain(model, x, method="grad_cam", target=1, positive=False)
    assert a.receipt["layer"] == "late"
    close(a.values, expected, 1e-12)
    close(whence.explain(model, x, method="grad_cam", target=1).values, expected.clamp(min=0), 1e-12)
    close(whence.explain(model, x, method="grad_cam", target=1, at="late").values, expected.clamp(min=0), 1e-12)
    several = whence.explain(model, x, method="grad_cam", target=[[1, 2]] * 3, positive=False).values
    close(several[:, 0], expected, 1e-12)
    close(several[:, 1], torch.tensor(by_hand(model, x, 2)), 1e-12)


@pytest.mark.parametrize("inplace", [False, True])
def test_a_layer_before_its_relu_is_read_before_it(inplace: bool) -> None:
    model, x = Cnn(inplace=inplace), image()
    maps = model.second(model.pool(F.relu(model.first(x)))).detach().requires_grad_()
    (slope,) = torch.autograd.grad(model.head(F.relu(maps).flatten(1))[:, 0].sum(), maps)
    expected = (slope.mean((2, 3), keepdim=True) * maps).sum(1).detach()
    a = whence.explain(model, x, method="grad_cam", target=0, at="second", positive=False, keep=())
    close(a.values, expected, 1e-12)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_guided_grad_cam_by_hand(dims: int) -> None:
    model, x = Cnn(dims), image(dims)
    maps = torch.tensor(by_hand(model, x, 1)).clamp(min=0)[:, None]
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]
    signal = whence.explain(model, x, method="guided_backprop", target=1).values
    for upsample, stretched in (("linear", F.interpolate(maps, x.shape[2:], mode=mode)), ("nearest", doubled(maps))):
        found = whence.explain(model, x, method="guided_grad_cam", target=1, upsample=upsample)
        close(found.values, signal * stretched, 1e-12)
        assert found.receipt["layer"] == "late"


def doubled(maps: Tensor) -> Tensor:
    for axis in range(2, maps.dim()):
        maps = maps.repeat_interleave(2, axis)
    return maps


@pytest.mark.parametrize("layer", ["first", "relu", "pool", "second", "late"])
@pytest.mark.parametrize("positive", [True, False])
@pytest.mark.filterwarnings("ignore:(Input Tensor|Setting)")  # captum's own
def test_captum_agrees(layer: str, positive: bool) -> None:
    model, x = Cnn(), image()
    target, module = torch.tensor([2, 0, 1]), getattr(model, layer)
    theirs = captum.attr.LayerGradCam(model, module).attribute(x, target, relu_attributions=positive)
    ours = whence.explain(model, x, method="grad_cam", target=target, at=layer, positive=positive)
    close(ours.values, theirs[:, 0].detach(), 1e-6)
    if positive:
        theirs = captum.attr.GuidedGradCam(model, module).attribute(x, target)
        ours = whence.explain(model, x, method="guided_grad_cam", target=target, at=layer, upsample="nearest")
        close(ours.values, theirs.detach(), 1e-6)


# ---- which layer, and what it refuses ----


class Auxiliary(Cnn):
    """Its last maps go nowhere, and the score is pooled over places."""

    def forward(self, x: Tensor) -> Tensor:
        maps = self.relu(self.first(x))
        maps = self.relu(self.second(maps))
        self.first(x)
        return maps.mean((2, 3), keepdim=True)[:, :3, 0, 0]


class Dense(Cnn):
    """One score per class and place."""

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.relu(self.first(x)))


def test_the_layer_is_the_last_one_that_the_score_comes_from() -> None:
    x = image()
    assert whence.explain(Auxiliary(), x, method="grad_cam", target=0).receipt["layer"] == "relu@2"
    assert whence.explain(Dense(), x, method="grad_cam", target=(0, 2, 2)).receipt["layer"] == "relu"
    model, given = CASES["residual_cnn"].make()
    a = whence.explain(model, given, method="grad_cam")
    assert a.receipt["layer"] == "relu@2"
    assert a.to_image_size().values.shape == (3, 9, 9)
    assert whence.explain(model, given, method="grad_cam", at="conv").to_image_size().values.shape == (3, 9, 9)


def both(first: Tensor, second: Tensor) -> Tensor:
    return first.sum((2, 3)) + second.sum((2, 3))


REFUSED: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "no maps": (nn.Sequential(nn.Flatten(), nn.Linear(72, 2)).double(), image(), {}, "no module of this model"),
    "tokens": (nn.Linear(4, 2).double(), torch.ones(2, 5, 4).double(), {"target": (0, 0)}, "no module of this model"),
    "no places": (nn.Linear(4, 2), torch.ones(2, 4), {}, r"'input' is \(2, 4\)"),
    "two images": (both, (image(), image()), {}, r"'0' and '1' are explained(.|\n)*wrt="),
    "not maps": (Cnn(), image(), {"at": "head"}, r"at='head': this module's output is \(3, 3\)(.|\n)*convolutional"),
    "which call": (CASES["residual_cnn"].make()[0], torch.ones(3, 2, 9, 9).double(), {"at": "relu"}, "runs 2 times"),
    "no such call": (Cnn(), image(), {"at": "relu@2"}, "'relu' gave a tensor 1 times"),
    "no module": (Cnn(), image(), {"at": "conv"}, "at='conv' is not a module"),
    "inside": (Cnn(), image(), {"at": "late", "method": "smoothgrad", "of": "grad_cam"}, "Leave at= out here"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    model, x, options, message = REFUSED[case]
    with pytest.raises(whence.WhenceError, match=message):
        whence.explain(model, x, **{"method": "grad_cam", **options})


def test_a_map_of_zeros_says_what_to_do() -> None:
    model = Cnn()
    with torch.no_grad():
        model.head.weight.copy_(-model.head.weight.abs())
    with pytest.warns(whence.WhenceWarning, match="only lower it: explain another target or another layer"):
        whence.explain(model, image(), method="grad_cam", target=0)
