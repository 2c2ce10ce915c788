"""Every tensor that Whence makes names its device: the caller's default device, here `meta`, changes nothing."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.models import CASES, close, fitting
from tests.support.slow import mostly_slow

pytestmark = [
    pytest.mark.filterwarnings("ignore::whence.WhenceWarning"),
    pytest.mark.filterwarnings("ignore:.*torchvision.*", "ignore::FutureWarning"),
]
SOURCE = Path(whence.__file__).parent
FACTORIES = set(
    "arange as_tensor asarray empty eye full linspace logspace ones rand randint randn randperm scalar_tensor tensor "
    "tril_indices triu_indices zeros".split()
)


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_factory_names_its_device(file: Path) -> None:
    if file == SOURCE / "zoo" / "models.py":
        return  # modules are born on the default device, as torch.nn's are
    for node in ast.walk(ast.parse(file.read_text())):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "torch":
            named = {keyword.arg for keyword in node.keywords}  # type: ignore[union-attr]
            assert called.attr not in FACTORIES or "device" in named, f"line {node.lineno}: torch.{called.attr}"


@pytest.mark.parametrize("method", list(whence.methods))
@pytest.mark.parametrize(
    "name",
    mostly_slow(["mlp_functional", "residual_cnn", "lstm", "bert_sdpa", "vit_eager"], ["residual_cnn", "bert_sdpa"]),
)
def test_the_default_device_does_not_matter(method: str, name: str) -> None:
    model, inputs = fitting(method, name).make()
    plain = whence.explain(model, inputs, method=method)
    with torch.device("meta"):
        found = whence.explain(model, inputs, method=method)
    assert found.values.device.type == "cpu"
    assert torch.equal(found.raw, plain.raw)
    assert torch.equal(found.target, plain.target)
    assert (found.gap is None and plain.gap is None) or torch.equal(found.gap, plain.gap)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gradient", {"target": [[0, 1], [2, 3], [1, 0]]}),
        ("gradient", {"target": [(1,), (2,), (0,)], "batch_size": 2}),
        ("integrated_gradients", {"baseline": "mean"}),
        ("integrated_gradients", {"steps": 4, "target": torch.tensor([[0, 1], [2, 3], [1, 0]])}),
        (
            "path_integrated_gradients",
            {"path": lambda alpha: alpha * torch.ones(2, 9, 9, dtype=torch.float64, device="cpu")},
        ),
        ("expected_gradients", {"baseline": [0.0, 1.0], "samples": 4}),
        ("deeplift", {"baseline": "blur", "rule": "reveal_cancel"}),
        ("deeplift", {"baseline": "noise", "at": "conv"}),
        ("lrp", {"composite": {"first": "z_box"}, "low": -3.0, "high": 3.0}),
        ("smoothgrad", {"samples": 3, "batch_size": 6}),
        ("kernel_shap", {"units": 3, "samples": 64}),
        ("occlusion", {"window": (3, 3)}),
        ("shapley", {"units": 2, "samples": 2, "exact": 4}),
        ("lime", {"units": 3, "samples": 64, "ridge": 0.1}),
    ],
)
def test_nor_with_options(method: str, options: dict[str, Any]) -> None:
    model, x = CASES["residual_cnn"].make()
    if "path" in options:
        x = torch.ones_like(x)
    plain = whence.explain(model, x, method=method, **options)
    with torch.device("meta"):
        found = whence.explain(model, x, method=method, **options)
    assert torch.equal(found.raw, plain.raw)


def test_nor_for_traces_comparisons_files_and_pages(tmp_path: Path) -> None:
    model, inputs = CASES["bert_sdpa"].make()
    with torch.device("meta"):
        found = whence.compare(model, inputs, methods=["lrp", "attcat", "random"], keep=("attention", "hidden"))
        steps = whence.trace(model, inputs, method="lrp", show=False, target=0)
        a = found["lrp"]
        a.save(tmp_path / "a.safetensors")
        again = whence.Attribution.load(tmp_path / "a.safetensors")
        assert a.to_html()
        assert str(a)
        assert again.top(2)
    assert torch.isfinite(found.agreement()).all()
    assert len(steps.steps) > 10
    assert again.values.device.type == "cpu"
    assert torch.equal(again.values, a.values)


@pytest.mark.slow
def test_nor_for_scores_and_properties() -> None:
    model, x = CASES["mlp_functional"].make()

    def board() -> Any:
        return whence.evaluate(
            model, {"inputs": x, "labels": [0, 1, 2]}, methods=["gradient", "kernel_shap"],
            metrics=["comprehensiveness", "infidelity", "sensitivity_max", "completeness_gap", "model_randomisation"],
        )  # fmt: skip

    def table() -> Any:
        return whence.axioms(model, x, methods=["gradient", "deeplift", "integrated_gradients"])

    plain, properties = board(), table()
    with torch.device("meta"):
        found, measured = board(), table()
    for name in ("gradient", "kernel_shap"):
        for column in plain.columns:
            one, other = found[name, column.name].value, plain[name, column.name].value
            assert one == other or (math.isnan(one) and math.isnan(other))
    assert str(measured) == str(properties)


def test_nor_for_images_and_their_metrics() -> None:
    model, x = CASES["residual_cnn"].make()
    data = {"inputs": x, "masks": [torch.ones(9, 9, device="cpu").tril()] * 3}

    def board() -> Any:
        return whence.evaluate(
            model,
            data,
            methods=["gradient", "edges"],
            metrics=["pointing_game", "segmentation_iou", "segmentation_ap", "road_morf"],
        )

    plain = board()
    with torch.device("meta"):
        found = board()
    assert [found["gradient", c.name].value for c in found.columns] == [
        plain["gradient", c.name].value for c in plain.columns
    ]


TEXT_MODELS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "sentiment": lambda: (whence.load("zoo:sentiment"), ["a fine film", "dull and slow"]),
    "language": lambda: (whence.load("zoo:language"), "the film was"),
    "translation": lambda: (whence.load("zoo:translation"), "3 march 1999"),
    "fashion-vit": lambda: (lambda clf: (clf, clf.examples[0]))(whence.load("zoo:fashion-vit")),
}


@pytest.mark.parametrize("name", TEXT_MODELS)
@pytest.mark.parametrize("method", ["input_x_gradient", "leave_one_out"])
def test_nor_for_texts_and_images(name: str, method: str) -> None:
    pytest.importorskip("transformers")
    clf, given = TEXT_MODELS[name]()
    plain = whence.explain(clf, given, method=method)
    with torch.device("meta"):
        found = whence.explain(clf, given, method=method)
        assert found.to_html()
    for one, other in zip(_all(found.raw), _all(plain.raw), strict=True):
        assert torch.equal(one, other)


def _all(values: Any) -> list[Tensor]:
    return [values] if isinstance(values, Tensor) else list(values.values())


def test_texts_and_images_go_to_where_the_model_is() -> None:
    pytest.importorskip("transformers")
    for name in ("sentiment", "fashion-vit", "fashion-cnn", "questions"):
        clf = whence.load(f"zoo:{name}")
        clf.model.to("meta")
        (asked,) = clf.requests(clf.examples[0], 0)
        assert {tensor.device.type for tensor in asked.inputs.values()} == {"meta"}


class Counting(nn.Module):
    """A model whose own code leaves the device open."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x * torch.arange(4)[None])


def test_the_default_device_holds_for_the_models_own_code() -> None:
    model, x = Counting(), torch.randn(2, 4).double()
    close(
        whence.explain(model, x, method="gradient", target=0).values,
        (model.out.weight[0] * torch.arange(4)).expand(2, 4).detach(),
        1e-12,
    )
    with torch.device("meta"):
        with pytest.raises(Exception, match="meta") as plain:
            model(x)
        with pytest.raises(Exception, match="meta") as found:
            whence.explain(model, x, method="gradient")
    assert str(plain.value).splitlines()[0] in str(found.value)
