"""Quantus on the same model and maps: pixel flipping and region perturbation. Skipped where it is not installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

import whence
from tests.support.rows import IMAGES, image_model


@pytest.fixture
def quantus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Quantus loads every toolkit that it finds, and zennit would bring torchvision: it is to find neither."""
    pytest.importorskip("cv2", reason="Quantus is not installed: pip install -c constraints.txt quantus")
    real = importlib.util.find_spec
    hidden = ("zennit", "torchvision", "tensorflow")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in hidden else real(name, *a))
    return pytest.importorskip("quantus", reason="Quantus is not installed: pip install -c constraints.txt quantus")


def given() -> tuple[Any, Any, Any]:
    x = IMAGES.numpy()
    model = image_model().eval()  # Quantus turns everything into float32
    maps = whence.explain(model, IMAGES, method="integrated_gradients", target=0).values.numpy()
    return model, x, maps.reshape(x.shape)


@pytest.mark.filterwarnings("ignore")
def test_pixel_flipping_is_the_deletion_curve(quantus: Any) -> None:
    model, x, maps = given()
    metric = quantus.PixelFlipping(
        features_in_step=1, perturb_baseline=0.0, normalise=False, abs=False, disable_warnings=True
    )
    wanted = metric(
        model=model, x_batch=x, y_batch=np.zeros(len(x), dtype=int), a_batch=maps, softmax=True, channel_first=True
    )
    board = whence.evaluate(
        model, IMAGES, methods={"given": lambda m, x, t: torch.tensor(maps)}, target=0, controls=False,
        metrics={"deletion": {"steps": 36}},
    )  # fmt: skip
    for row, curve in enumerate(wanted):
        found = board.results["given", "deletion"][row].curve
        assert found is not None
        assert found[1][1:] == pytest.approx(list(curve), abs=1e-6)  # Quantus leaves the untouched image out


@pytest.mark.filterwarnings("ignore")
def test_region_perturbation_with_regions_of_a_pixel_is_the_drop_at_each_step(quantus: Any) -> None:
    model, x, maps = given()
    metric = quantus.RegionPerturbation(
        patch_size=1, order="morf", regions_evaluation=10, perturb_baseline=0.0, normalise=False, disable_warnings=True
    )
    wanted = metric(
        model=model, x_batch=x, y_batch=np.zeros(len(x), dtype=int), a_batch=maps, softmax=True, channel_first=True
    )
    board = whence.evaluate(
        model, IMAGES, methods={"given": lambda m, x, t: torch.tensor(maps)}, target=0, controls=False,
        metrics={"aopc": {"k": [100 * k / 36 for k in range(1, 11)], "operator": 0.0}},
    )  # fmt: skip
    for row, drops in enumerate(wanted):
        found = board.results["given", "aopc"][row].curve
        assert found is not None
        assert found[1][1:] == pytest.approx(list(drops), abs=1e-6)
