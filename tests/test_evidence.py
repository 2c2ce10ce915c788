"""What a table says of itself: names in other formats, methods that fail, costs, ranks where nothing differs, τ."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from whence.evaluation import evidence

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))


def mlp(seed: int = 1, hidden: int = 16) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 3)).eval()


def evaluated(methods: Any, metrics: Any = ("sparseness",), **given: Any) -> whence.Scoreboard:
    return whence.evaluate(mlp(), X, methods=methods, metrics=metrics, progress=False, **given)


# ---- names ----

HOSTILE = [
    "a|b",
    "a\\|b",
    "__init__",
    "*bold*",
    "[x](y)",
    "<b>",
    "`code`",
    r"\textbf{x} & 5 % of $3_1^2 ~#",
    "*",
    "[a]",
]


def unescaped(cell: str) -> str:
    return re.sub(r"\\([\\`*_\[\]<>|~$])", r"\1", cell)


def test_names_are_text_in_markdown() -> None:
    table = evaluated(
        {name: {"method": "gradient"} for name in HOSTILE}, {name: {"metric": "sparseness"} for name in HOSTILE[:3]}
    ).to_markdown()
    lines = [line for line in table.splitlines() if line.startswith("|")]
    cells = [re.findall(r"((?:\\.|[^|\\])*)\|", line[1:]) for line in lines if not line.startswith("|---")]
    assert {len(line) for line in cells} == {len(lines[1].split("|")) - 2}
    assert [unescaped(line[0].strip()) for line in cells[1:]] == [*HOSTILE, "random"]
    assert [unescaped(cell.strip())[:-2] for cell in cells[0][1:4]] == HOSTILE[:3]
    assert not re.search(r"(?<!\\)[`_<\[]", "".join(cell for line in cells for cell in line))


def test_names_are_text_in_latex() -> None:
    table = evaluated(
        {name: {"method": "gradient"} for name in HOSTILE}, {"m_1|&": {"metric": "sparseness"}}
    ).to_latex()
    body = table.split(r"\begin{tabular}")[1]
    assert r"m\_1\textbar{}\&" in body
    assert r"\textbackslash{}textbf\{x\} \& 5 \% of \$3\_1\textasciicircum{}2 \textasciitilde{}\# &" in body
    rows = body.split(r"\midrule")[1].split(r"\bottomrule")[0].strip().split("\\\\\n")
    assert len(rows) == len(HOSTILE) + 1
    assert all(re.sub(r"\\&", "", row).count("&") == 5 for row in rows)
    assert not any(row.startswith(("[", "*")) for row in rows)  # which \\ would take for its own


# ---- methods that fail ----


def test_a_function_that_raises_is_named_with_its_row() -> None:
    def mine(model: Any, x: Tensor, target: Tensor) -> Tensor:
        raise KeyError("weights")

    with pytest.raises(
        whence.MethodError, match=r"'mine' raised KeyError for row 0: 'weights'\n  A function f\(model"
    ) as e:
        evaluated({"mine": mine})
    assert isinstance(e.value.__cause__, KeyError)


def test_a_function_of_the_wrong_shape_is_told_what_to_return() -> None:
    for bad, said in ((lambda m, x, t: x[:, :4], r"shape \(4,\)"), (lambda m, x, t: x.sum(), r"shape \(\) for 1 rows")):
        with pytest.raises(
            whence.InputError, match=said + r".*\n  A function f\(model, inputs, targets\) returns"
        ) as e:
            evaluated({"mine": bad})
        assert "at=" not in str(e.value)
    with pytest.raises(whence.MethodError, match="raised RuntimeError for row 0: Could not infer dtype"):
        evaluated({"mine": lambda m, x, t: object()})


def test_a_function_that_fails_for_the_first_row_only_goes_on() -> None:
    def mine(model: Any, x: Tensor, target: Tensor) -> Tensor:
        if bool((x == X[0]).all(1).any()):
            raise ValueError("not this one")
        return x

    board = evaluated({"mine": mine})
    assert [(f.row, f.method, f.why) for f in board.failures] == [(0, "mine", "ValueError: not this one")]
    assert board["mine", "sparseness"].rows == 11


# ---- costs ----


def test_the_first_call_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that every row moves on by a second, and the first call by a hundred."""
    clock, seen = [0.0], list[int]()

    def mine(model: Any, x: Tensor, target: Tensor) -> Tensor:
        clock[0] += len(x) if seen else 100
        seen.append(len(x))
        return x

    monkeypatch.setattr("whence.evaluation.scheduler.time.perf_counter", lambda: clock[0])
    board = evaluated({"mine": mine, "gradient": None}, chunk=8)
    assert seen == [1, 8, 4]  # one to warm up, and every row once
    assert board.seconds_per_row("mine") == 1
    assert board.passes("gradient") == (1, 1)
    seen.clear()
    few = whence.evaluate(mlp(), X[:3], methods={"mine": mine}, metrics=["sparseness"])
    assert seen == [3]  # of few rows, none is explained twice
    assert few.seconds_per_row("mine") == pytest.approx(100 / 3)


# ---- ranks where nothing differs ----


@pytest.mark.parametrize("metric", ["class_sensitivity", "model_randomisation", "data_randomisation"])
def test_what_is_zero_up_to_rounding_is_tied(metric: str) -> None:
    """Half of the map is noise in the last place, another one at each call; exact zeros give the same score."""
    draw = torch.Generator().manual_seed(0)
    params = {"model": mlp(2)} if metric == "data_randomisation" else None

    def slope(model: Any, x: Tensor, target: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(model(x)[range(len(x)), target].sum(), x)
        return torch.where(torch.arange(6) < 3, found, 0.0)

    def noisy(model: Any, x: Tensor, target: Tensor) -> Tensor:
        found = slope(model, x, target)
        noise = 1e-7 * found.abs().amax(1, keepdim=True) * torch.randn(x.shape, generator=draw)
        return torch.where(torch.arange(6) < 3, found, noise)

    board = evaluated({"exact": slope, "noisy": noisy}, {metric: params})
    assert board["noisy", metric].value == pytest.approx(board["exact", metric].value, abs=1e-12)


def test_another_model_must_be_of_the_same_form() -> None:
    def found(other: Any) -> whence.Scoreboard:
        return evaluated(["gradient"], {"data_randomisation": {"model": other}})

    assert found(mlp(2))["gradient", "data_randomisation"].rows == 12
    with pytest.raises(whence.ModelError, match=r"'0.weight' is of shape \(16, 6\) here and of shape \(9, 6\) there"):
        found(mlp(2, hidden=9))
    with pytest.raises(whence.ModelError, match=r"'2.weight' is of shape \(3, 16\) here and missing there"):
        found(nn.Sequential(nn.Linear(6, 16), nn.ReLU()))


# ---- τ ----


def test_the_interval_of_kendalls_tau_holds_what_is_true() -> None:
    """Means 0.09 deviations apart in the same order: τ is 1, and few rows do not show it; many rows show most of it."""
    draw, means = np.random.default_rng(0), np.linspace(0, 1, 12)
    for seed in range(20):
        _, low, high = evidence.tau([means + draw.normal(size=(16, 12)) for _ in "ab"], np.ones(16), seed, 199)
        assert low <= 1 <= high + 1e-9
    apart = [10 * means + draw.normal(size=(64, 12)) for _ in "ab"]
    assert evidence.tau(apart, np.ones(64))[1:] == (1.0, 1.0)
    here, low, high = evidence.tau([apart[0], -apart[1]], np.ones(64))
    assert (here[0], low, high) == (-1.0, -1.0, -1.0)
    assert np.isnan(evidence.tau([values[:5] for values in apart], np.ones(5))[1])
