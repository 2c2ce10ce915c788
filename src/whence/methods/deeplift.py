"""DeepLIFT: what each input's difference from a reference contributed to the score's difference.

Every op shares out its own difference exactly (`rules/closed_forms.py`), so contributions sum to the delta on every
architecture. RevealCancel lets positive and negative parts of an elementwise function's input act before and after each
other (`rules/reveal_cancel.py`); on functions that are not monotonic it keeps its definition, and the total stays Δy.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from whence.errors import ParameterError
from whence.methods import method
from whence.methods.answer import Answer
from whence.rules.deeplift import DEEPLIFT_EXPAND, DEEPLIFT_RULES
from whence.subject import Subject, at_baseline
from whence.util.progress import steps

Choice = Literal["rescale", "reveal_cancel", "convolution_rescale_dense_reveal_cancel"]
_REVEALS = {"rescale": "", "reveal_cancel": "all", "convolution_rescale_dense_reveal_cancel": "dense"}


@method(
    "deeplift",
    paper="Shrikumar, Greenside & Kundaje 2017, arXiv:1704.02685",
    order=50,
    reference=True,
    several=True,
    complete="exactly",
)
def deeplift(
    subject: Subject, *, rule: Choice = "rescale", signed: bool | None = None, multiply_by_inputs: bool = True
) -> Answer:
    """Multipliers chained from the score to the inputs, φ = m ⊙ (x − x'), which sum to f(x) − f(x') exactly.

    `rule="rescale"` takes Δy/Δx at elementwise functions, `"reveal_cancel"` treats what pushes up and what pulls down
    apart, and the third is the authors' mixture. `signed=True` gives `positive` and `negative`, the contributions to
    what raised the score and to what lowered it, for one more backward pass; without it these come with the last two
    rules, which follow positive and negative parts anyway. The multipliers are `kept["multiplier"]`, and
    `multiply_by_inputs=False` gives them as the values; with a list of baselines everything is the mean over them.
    """
    return _contributions(subject, rule, signed, multiply_by_inputs)


@method(
    "deepshap",
    paper="Lundberg & Lee 2017, arXiv:1705.07874",
    order=50,
    aliases=("deeplift_shap", "deep_explainer"),
    reference=True,
    several=True,
    background=True,
    complete="exactly",
)
def deepshap(
    subject: Subject, *, rule: Choice = "rescale", signed: bool | None = None, multiply_by_inputs: bool = True
) -> Answer:
    """DeepLIFT averaged over a background of references, φ = E[m ⊙ (x − x')]; each is computed once for all rows.

    `baseline` is a tensor of references, one after the other, or a list of baselines.
    """
    return _contributions(subject, rule, signed, multiply_by_inputs)


def _contributions(subject: Subject, rule: str, signed: bool | None, multiply: bool) -> Answer:
    """φ, its positive parts and the multipliers, each the mean over baselines."""
    if signed and not multiply:
        raise ParameterError(
            f"{subject.method}: signed=True parts contributions, but multiply_by_inputs=False asks for multipliers.\n"
            "  Leave one of them out."
        )
    signed = rule != "rescale" and multiply if signed is None else signed
    if not signed:
        subject.record.overall["on_request"] = dict.fromkeys(("positive", "negative"), "signed=True")
    count = len(subject.baselines)
    parts = _REVEALS[rule] if signed or rule != "rescale" else None
    sums: dict[str, dict[str, Tensor]] = {"values": {}, "positive": {}, "multiplier": {}}
    seen = []
    for which in steps(list(range(count)), subject.progress, subject.method):
        reference = at_baseline.reference(subject, subject.baselines[which])
        done = subject.run(DEEPLIFT_RULES, expand=DEEPLIFT_EXPAND, reference=reference, parts=parts)
        assert done.reference is not None
        by_kind = {"multiplier": done.pull(again=signed)}
        difference = {key: x - done.reference.x[key] for key, x in done.x.items()}
        by_kind["values"] = {key: m * difference[key] for key, m in by_kind["multiplier"].items()}
        if signed:
            by_kind["positive"] = {key: m * difference[key] for key, m in done.pull(positive=True).items()}
        seen.append(done.reference.subject.measured)
        for kind, values in by_kind.items():
            sums[kind] = {key: value / count + sums[kind].get(key, 0) for key, value in values.items()}
    extras = {kind: values for kind, values in sums.items() if values and kind != "values"}
    score, per_row = at_baseline.mean_score(subject, seen)
    values = sums["values"] if multiply else sums["multiplier"]
    return Answer(values, baseline_score=score, extras=extras, per_row=per_row, sums=multiply)
