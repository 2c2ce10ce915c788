"""What is asked of each model, and what is kept of an answer: tensors, and plain values for JSON."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import whence
from benchmarks.golden.models import CASES, Case

TENSORS = "values raw output_value baseline_value gap residual positive negative real kept target".split()
PLAIN = "method params receipt units labels special words spans segments text image_size channel_axis".split()
PLAINLY = (bool, int, float, str, list, dict, type(None))
CHEAP: dict[str, dict[str, Any]] = {
    "smoothgrad": {"samples": 4},
    "integrated_gradients": {"tolerance": 0.05, "max_steps": 64},
    "path_integrated_gradients": {"rule": "midpoint", "steps": 4},
    "expected_gradients": {"samples": 4},
    "occlusion": {"window": 2},
    "shapley": {"exact": 5, "samples": 2},
    "kernel_shap": {"samples": 16},
    "lime": {"samples": 16},
}
COMPOSITES = (
    "orig epsilon gamma alpha_beta z_plus epsilon_plus epsilon_plus_flat epsilon_alpha2_beta1 "
    "epsilon_alpha2_beta1_flat epsilon_gamma_box"
).split()
RULES = ("reveal_cancel", "convolution_rescale_dense_reveal_cancel")
QUADRATURES = ("right", "left", "midpoint", "trapezoid", "gauss_legendre")
# further questions by model: a method's name and what it is told
FURTHER: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "mlp": [
        *(("deeplift", {"rule": rule}) for rule in RULES),
        *(("deepshap", {"rule": rule, "baseline": [0.0, 0.5]}) for rule in RULES),
        *(("integrated_gradients", {"rule": rule, "steps": 4}) for rule in QUADRATURES),
        ("integrated_gradients", {"baseline": [0.0, 0.5], "tolerance": 0.05}),
        ("lrp", {"composite": "epsilon", "start": "logit", "epsilon": 0.1}),
        ("lrp", {"composite": {"linear": "epsilon", "path:0": "flat"}}),
        ("gradient", {"absolute": True}),
        ("gradient", {"relu": "softplus", "beta": 2.0}),
        ("gradient", {"output": "probability"}),
        ("gradient", {"output": "log_probability", "batch_size": 1}),
        ("smoothgrad", {"of": "integrated_gradients", "samples": 2, "seed": [3, 4]}),
        ("smoothgrad", {"kind": "variance", "samples": 4}),
        ("gradient", {"rules": {"relu": whence.derivative}}),
        ("gradient", {"beta": -1.0}),
    ],
    "cnn": [
        *(("deeplift", {"rule": rule}) for rule in RULES),
        *(("lrp", {"composite": name}) for name in COMPOSITES),
        ("lrp", {"composite": {"convolution": "z_plus", "depth:0": "w_square"}}),
        ("gradient", {"channels": "sum"}),
        ("deeplift", {"channels": "sum"}),
        *(("deeplift", {"baseline": name}) for name in ("black", "mean", "blur")),
        ("deeplift", {"baseline": whence.neutral("zero", "blur")}),
    ],
    "transformer": [("lrp", {"composite": name}) for name in ("orig", "epsilon", "gamma")],
    "lstm": [("lrp", {"composite": "epsilon"}), ("lrp", {"composite": "alpha_beta"})],
    "bert": [
        ("deeplift", {"rule": "reveal_cancel"}),
        ("deeplift", {"baseline": "pad"}),
        ("gradient", {"keep": ["attention", "attention_gradient", "hidden"], "channels": "l2"}),
        ("lrp", {"keep": ["attention_relevance", "head_relevance"]}),
        ("lrp", {"composite": "epsilon"}),
        ("lrp", {"positions": "drop"}),
        ("transformer_attribution", {"weight": "attention"}),
        ("transformer_attribution", {"weight": None, "blocks": "last"}),
        ("generic_attention", {"identity": False}),
        ("rollout", {"preset": "authors-bert"}),
        ("attention_gradients", {"combine": "sum"}),
        ("gradient", {"batch_size": 1}),
    ],
    "graph": [("gradient", {"wrt": ["x", "adjacency"]}), ("deeplift", {"wrt": ["x", "adjacency"]})],
    "several_inputs": [("gradient", {"wrt": "b"}), ("deeplift", {"baseline": {"a": 0.5, "b": 0.0}})],
    "sentiment": [("integrated_gradients", {"baseline": "pad", "tolerance": 0.05}), ("lrp", {"composite": "epsilon"})],
}


def questions(name: str, methods: Sequence[str]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Every method with cheap parameters, the default one, then what is particular to this model."""
    yield from ((method, CHEAP.get(method, {})) for method in methods or whence.methods)
    yield None, {}
    yield from FURTHER.get(name, ())


class Answers:
    """Tensors by name, and plain values by name."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.plain: dict[str, Any] = {}

    def ask(self, name: str, call: Callable[[], Any], read: Callable[[Any], Mapping[str, Any]]) -> None:
        """Keep what a call gives, or the class of its error, and how often it warned."""
        torch.manual_seed(0)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                parts = read(call())
            except whence.WhenceError as error:
                parts = {"error": type(error).__name__}
        ours = sum(issubclass(one.category, whence.WhenceWarning) for one in said)
        for part, value in {**parts, "count of warnings": ours}.items():
            self.plain[f"{name} | {part}"] = self._taken(f"{name} | {part}", value)

    def _taken(self, name: str, value: Any) -> Any:
        """A value for JSON, with its tensors taken out."""
        if isinstance(value, Tensor):
            self.tensors[name] = value.detach().clone().contiguous()
            return {"tensor": list(value.shape)}
        if isinstance(value, Mapping):
            return {str(key): self._taken(f"{name}.{key}", item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._taken(f"{name}.{i}", item) for i, item in enumerate(value)]
        if isinstance(value, PLAINLY):
            return value
        return type(value).__name__  # functions and other objects that a user gave


def of_explanation(found: Any) -> dict[str, Any]:
    there = [part for part in (*TENSORS, *PLAIN) if part not in found.receipt.get("on_request", ())]
    return {part: value for part in there if (value := getattr(found, part)) is not None}


def of_board(board: Any) -> dict[str, Any]:
    scores = {
        f"{method}, {metric}": {
            "score": [score.value, score.low, score.high, score.median],
            "parts": score.parts,
            "rows": [board.results[method, metric][row].value for row in sorted(board.results[method, metric])],
        }
        for (method, metric), score in board.scores.items()
    }
    return {"scores": scores, "failures": [[one.row, one.method, one.metric] for one in board.failures]}


def of_axioms(table: Any) -> dict[str, Any]:
    return {"cells": {f"{method}, {name}": [cell.verdict, cell.number] for (method, name), cell in table.items()}}


def label(method: str | None, options: Mapping[str, Any]) -> str:
    """A question's name; objects other than plain values have none that is sure to stay."""
    shown = {key: value if key != "rules" else {} for key, value in options.items()}
    plain = {key: value if isinstance(value, PLAINLY) else "…" for key, value in shown.items()}
    return f"{method or 'default'}({', '.join(f'{key}={value}' for key, value in plain.items())})"


def explanations(answers: Answers, name: str, given: Case) -> None:
    for method, options in questions(name, given.methods):
        told = {**given.options, **options}
        if method == "path_integrated_gradients" and isinstance(given.inputs, Tensor) and "at" not in told:
            told["path"] = [given.inputs * 0, given.inputs.flip(0), given.inputs]
        answers.ask(
            f"{name} | {label(method, options)}",
            lambda method=method, told=told: whence.explain(  # type: ignore[misc]
                given.model, given.inputs, method=method, progress=False, **told
            ),
            of_explanation,
        )


def of_trace(traced: Any) -> dict[str, Any]:
    names = ("op", "family", "path", "rule", "shape", "carried")
    return {"steps": [{name: getattr(step, name) for name in names} for step in traced], "receipt": traced.receipt}


def traces(answers: Answers) -> None:
    """Every op of a few explanations."""
    for name, method in (("mlp", "lrp"), ("cnn", "deeplift"), ("bert", "attnlrp"), ("transformer", "guided_backprop")):
        given = CASES[name]()
        answers.ask(
            f"traces | {name} | {method}",
            lambda given=given, method=method: whence.trace(  # type: ignore[misc]
                given.model, given.inputs, method=method, show=False, **given.options
            ),
            of_trace,
        )


def tables(answers: Answers) -> None:
    """A small scoreboard and a small axiom table."""
    given = CASES["mlp"]()
    torch.manual_seed(5)
    rows = torch.randn(6, 5, dtype=torch.float64)
    methods, metrics = ["gradient", "deeplift", "lrp"], ["comprehensiveness", "deletion", "infidelity"]
    answers.ask(
        "tables | scoreboard | mlp",
        lambda: whence.evaluate(given.model, rows, methods=methods, metrics=metrics, progress=False),
        of_board,
    )
    text = CASES["sentiment"]()
    answers.ask(
        "tables | scoreboard | sentiment",
        lambda: whence.evaluate(
            text.model, text.inputs, methods=["gradient", "rollout"], metrics=["sufficiency", "aopc"], progress=False
        ),
        of_board,
    )
    answers.ask(
        "tables | axioms | mlp",
        lambda: whence.axioms(given.model, rows, methods=methods, rows=2, features=3, progress=False),
        of_axioms,
    )
