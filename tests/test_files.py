"""Files that the version before wrote are read, shown and drawn by this one.

They were saved before receipts said what an explanation was warned of: attributions of tensors (one target, several
targets, several inputs), of texts, images and a molecule, and the result file of an evaluation.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence

FOLDER = Path(__file__).parent / "files"
FILES = sorted(file.stem for file in FOLDER.glob("*.safetensors"))


def test_there_is_one_of_each_kind() -> None:
    assert "generated image inputs molecule patches targets tensor text translated".split() == FILES


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_version_before_is_read_shown_and_drawn(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = whence.Attribution.load(FOLDER / f"{name}.safetensors")
    parts = [a.values] if isinstance(a.values, Tensor) else list(dict(a.values).values())
    assert all(bool(torch.isfinite(part).all()) for part in parts)
    a.show()
    assert a.method in capsys.readouterr().out
    assert a.method in a.to_html()
    assert str(a[0])
    for ending in ("html", "json", "csv", "safetensors"):
        a.save(tmp_path / f"a.{ending}")
        assert (tmp_path / f"a.{ending}").stat().st_size
    again = whence.Attribution.load(tmp_path / "a.safetensors")
    assert str(again) == str(a)
    assert again.receipt == a.receipt


@pytest.mark.parametrize("name", FILES)
def test_its_picture_is_drawn(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    whence.Attribution.load(FOLDER / f"{name}.safetensors").save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size


def the_model() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.linspace(-1, 1, p.numel()).view(p.shape))
    return model, torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -0.5]])


def test_it_says_what_this_version_says() -> None:
    model, x = the_model()
    before = whence.Attribution.load(FOLDER / "tensor.safetensors")
    now = whence.explain(model, x, method="integrated_gradients", target=1)
    assert torch.allclose(before.values, now.values, atol=float(before.gap.max()))  # the less exact of the two
    assert torch.equal(before.target, now.target)


def test_an_evaluation_of_the_version_before_goes_on(tmp_path: Path) -> None:
    model, x = the_model()
    path = shutil.copy(FOLDER / "evaluation.jsonl", tmp_path / "evaluation.jsonl")
    asked: dict[str, Any] = {
        "methods": ["gradient", "input_x_gradient"],
        "metrics": ["comprehensiveness", "completeness_gap"],
    }
    data = {"inputs": x, "labels": [0, 1]}
    with pytest.warns(whence.WhenceWarning, match="earlier version"):
        board = whence.evaluate(model, data, **asked, resume=path)
    fresh = whence.evaluate(model, data, **asked)
    for method in asked["methods"]:
        one, other = (found[method, "comprehensiveness"].value for found in (board, fresh))
        assert one == pytest.approx(other, rel=1e-6)
