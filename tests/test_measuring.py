"""`whence evaluate`, `recommend`, `axioms` and `metrics` on the command line, and what `recommend` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from whence.cli import main

pytest.importorskip("transformers")

ROWS = [
    {"text": "A warm, funny little film.", "label": "positive", "rationale": [[2, 6], [8, 13]]},
    {"text": "Dull, and twice as long as it should be.", "label": "negative", "rationale": [[0, 4]]},
    {"text": "Nothing in it is worth the time.", "label": "negative"},
]


@pytest.fixture
def rows(tmp_path: Path) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n", encoding="utf-8")
    return str(file)


def evaluate(*more: str) -> int:
    return main(["evaluate", "--model", "zoo:sentiment", *more])


def test_a_table_of_a_file_of_rows(rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        "--file",
        rows,
        "--methods",
        "attcat,lrp",
        "--metrics",
        "comprehensiveness,perturbation_positive,rationale_ap",
    ]
    assert evaluate(*given) == 0
    told = capsys.readouterr().out
    assert "comprehensiveness ↑" in told
    assert "2 rows count for some" in told  # one has no rationale
    outs = [str(tmp_path / f"b.{end}") for end in ("html", "csv", "json", "png")]
    lrp = ["--composite", "epsilon", "--epsilon", "0.1"]
    assert evaluate(*given, "--metric-output", "logit", *lrp, *(x for o in outs for x in ("--out", o))) == 0
    assert json.loads((tmp_path / "b.json").read_text())["metrics"]["comprehensiveness"]["output"] == "logit"
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert evaluate(*given, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["scores"]) == 9


def test_a_csv_with_columns_and_a_result_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.csv"
    file.write_text('text,label\n"A warm, funny film.",positive\nDull.,negative\n', encoding="utf-8")
    given = [
        "--file",
        str(file),
        "--methods",
        "attcat",
        "--metrics",
        "aopc",
        "--resume",
        str(tmp_path / "r.jsonl"),
        "--json",
    ]
    assert evaluate(*given) == 0
    first = capsys.readouterr().out
    assert evaluate(*given) == 0
    assert capsys.readouterr().out == first
    assert evaluate(*given, "--seed", "3") == 2
    assert "belongs to an evaluation with other seed" in capsys.readouterr().err


def test_images_with_masks_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from PIL import Image

    examples = whence.load("zoo:fashion-cnn").examples
    lines = []
    for i in range(2):
        Image.open(examples[i]).save(tmp_path / f"{i}.png")
        Image.new("L", (28, 28), 255).save(tmp_path / f"m{i}.png")
        lines.append(json.dumps({"image": f"{i}.png", "mask": f"m{i}.png", "label": i}))
    (tmp_path / "d.jsonl").write_text("\n".join(lines))
    code = main(
        ["evaluate", "--model", "zoo:fashion-cnn", "--file", str(tmp_path / "d.jsonl"), "--methods", "gradient",
         "--metrics", "pointing_game,perturbation_positive", "--json"]
    )  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert {cell["value"] for cell in told["scores"] if cell["metric"] == "pointing_game"} == {1}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--methods", "attcat", "--metrics", "aopcc"], "Did you mean 'aopc'"),
        (["--methods", "attcta", "--metrics", "aopc"], "Did you mean 'attcat'"),
        (["--methods", "attcat,attcat", "--metrics", "aopc"], "'attcat' twice"),
        (["--methods", "attcat", "--metrics", "aopc", "--metric-steps", "3"], "has a parameter 'steps'"),
        (["--methods", "attcat", "--metrics", "aopc", "--epsilon", "3"], "has a parameter 'epsilon'"),
        (["--methods", "attcat", "--metrics", "segmentation_iou"], "needs masks"),
        (["--methods", "attcat", "--metrics", "aopc", "--out", "x.safetensors"], "ends in none of"),
        (["--methods", "attcat", "--metrics", "aopc", "--at", "bert"], "metrics change the inputs"),
        (["--methods", "attcat", "--metrics", "aopc", "--target", "best"], 'Give "predicted"'),
    ],
)
def test_mistakes_get_one_message(flags: list[str], said: str, rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate("--file", rows, *flags) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_a_bad_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n[1]\n')
    assert evaluate("--file", str(tmp_path / "d.jsonl"), "--methods", "attcat", "--metrics", "aopc") == 2
    assert "Line 2 of" in capsys.readouterr().err


def test_the_axioms_of_the_seeds_and_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["axioms", "--methods", "gradient,deeplift"]) == 0
    assert "stated → measured" in capsys.readouterr().out
    page = tmp_path / "a.html"
    code = main(
        ["axioms", "--model", "zoo:questions", "--text", "Who built it?", "--methods", "gradient", "--only",
         "completeness", "--out", str(page)]
    )  # fmt: skip
    assert code == 0
    assert "gradient" in page.read_text()
    assert main(["axioms", "--text", "Who?"]) == 2
    assert "Give --model" in capsys.readouterr().err


def test_metrics_are_listed_with_their_direction(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics"]) == 0
    told = capsys.readouterr().out
    assert all(f"{name}(" in told for name in whence.metrics)
    assert main(["metrics", "aopc"]) == 0
    assert "--metric-rounding: one of 'ceil', 'floor', 'nearest'" in capsys.readouterr().out


# ---- recommend ----


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3)).eval()


X = torch.randn(24, 12, generator=torch.Generator().manual_seed(0))
GOOD = ["input_x_gradient", "integrated_gradients", "lrp"]


def test_the_better_method_is_recommended_and_a_useless_one_is_not(tmp_path: Path) -> None:
    def useless(model: Any, x: Tensor, target: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=torch.Generator().manual_seed(3))

    found = whence.recommend(mlp(), X, methods={"useless": useless, **dict.fromkeys(GOOD)})
    assert found.best in GOOD
    by = {choice.method: choice for choice in found.ranking}
    assert found.ranking[-1].method == "useless"
    assert not by["useless"].beats_random
    assert not by["useless"].tied
    assert by["integrated_gradients"].beats_random
    assert f"Take {found.best}" in str(found)
    assert "faithfulness" in found.to_html()
    found.save(tmp_path / "r.json")
    assert json.loads((tmp_path / "r.json").read_text())["best"] == found.best
    with pytest.raises(whence.ParameterError, match="ends in none of html, json"):
        found.save(tmp_path / "r.csv")


def test_methods_that_say_the_same_are_within_the_noise() -> None:
    found = whence.recommend(mlp(), X, methods={"one": {"method": "deeplift"}, "two": {"method": "deeplift"}})
    assert all(choice.tied for choice in found.ranking)
    assert "cannot be told apart" in str(found)


def test_nothing_is_recommended_where_nothing_can_be_told() -> None:
    few = whence.recommend(mlp(), X[:4], methods=["integrated_gradients"])
    assert few.best is None
    assert "nothing to recommend. Give at least 6 different rows" in " ".join(str(few).split())
    flat = whence.recommend(mlp(), X, methods={"same": lambda model, x, target: torch.zeros_like(x)}, seed=1)
    assert flat.best is None


def test_every_method_is_tried_and_those_that_cannot_or_cost_too_much_are_named() -> None:
    some = ["rollout", "gradient", "input_x_gradient", "shapley"]
    assert "this model has none" in whence.recommend(mlp(), X[:10], methods=some, seconds=60).left_out["rollout"]
    found = whence.recommend(mlp(), X[:10], seconds=0.2)
    assert any("the budget" in why for why in found.left_out.values())
    assert set(found.left_out) | {choice.method for choice in found.ranking} | {"random"} == set(whence.methods)


def test_recommend_refuses_one_row() -> None:
    with pytest.raises(whence.InputError, match="show no spread"):
        whence.recommend(mlp(), X[:1])
    with pytest.raises(whence.MethodError, match="None of the methods works"):
        whence.recommend(mlp(), X, methods=["rollout"])
