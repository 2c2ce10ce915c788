"""The property table (Ancona et al. 2019; Sundararajan et al. 2017): stated of each method, and measured.

On the toy functions of the papers, on models of the zoo and on two real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import whence
from benchmarks import trained
from reproductions.report import Report
from whence.evaluation.axioms import textbook_table
from whence.evaluation.axioms.toys import USUAL
from whence.zoo.training import data

METHODS = (
    "gradient", "input_x_gradient", "integrated_gradients", "deeplift", "lrp", "guided_backprop", "smoothgrad",
    "occlusion", "attnlrp",
)  # fmt: skip
OF_ATTENTION = (
    "raw_attention",
    "rollout",
    "attention_gradcam",
    "transformer_attribution",
    "generic_attention",
    "attcat",
)
SLOW = {  # methods that take many passes for each of the many points tried
    "zoo:molecules": ("occlusion",),
    "resnet20": ("integrated_gradients", "smoothgrad", "occlusion"),
}
FEW = ("gradient", "integrated_gradients")
SETTINGS: dict[str, dict[str, Any]] = {"smoothgrad": {"samples": 20}}


def run(report: Report) -> None:
    with report.part("Stated and measured, on toy functions"):
        _textbook(report)
    for name, (what, given, attention) in MODELS.items():
        if not report.quick or name == "zoo:questions":
            with report.part(f"On {name}: {what}"):
                methods = (*METHODS, *OF_ATTENTION) if attention else METHODS
                slow = SLOW.get(name, ())
                _measured(report, name, given, tuple(method for method in methods if method not in slow))


def _textbook(report: Report) -> None:
    found = textbook_table(list(FEW)) if report.quick else textbook_table()
    entries = list(found.entries.values())
    rows, apart = [], []
    for method in dict.fromkeys(entry.method for entry in entries):
        mine = [entry for entry in entries if entry.method == method]
        rows.append([method, *(_compared(entry) for entry in mine)])
        apart += [entry for entry in mine if entry.stated and {entry.stated, entry.measured} == {"yes", "no"}]
    heads = list(dict.fromkeys(entry.property for entry in entries))
    report.table("textbook", ["method", *heads], rows, "Each cell: what is stated / what was measured; with a star "
                 "where summaries state it, and no paper that we know.")  # fmt: skip
    report.table("sources", ["method", "property", "stated", "by"],
                 [[e.method, e.property, e.stated, e.source] for e in entries if e.stated])  # fmt: skip
    beyond = [entry for entry in entries if entry.against]
    report.say(told(entries, apart))
    report.table(
        "witnesses", ["method", "property", "stated", "counter-example"],
        [[e.method, e.property, e.stated or "–", e.where] for e in apart]
        + [[e.method, e.property, e.stated or "–", text] for e in beyond for text in e.against],
    )  # fmt: skip
    if not report.quick:
        return
    held = {(entry.method, entry.property): entry.measured for entry in entries}
    report.must("integrated gradients sum up on the toys", held["integrated_gradients", "completeness"] == "yes")
    report.must("plain gradients miss a saturated input", held["gradient", "sensitivity_a"] == "no")


def _compared(entry: Any) -> str:
    star = "*" if entry.stated and entry.source == USUAL else ""
    return f"{entry.stated or 'nothing'}{star} / {entry.measured}"


def told(entries: list[Any], apart: list[Any]) -> str:
    """How many of the stated entries come out, and of how many a counter-example is known elsewhere."""
    stated = [entry for entry in entries if entry.stated]
    usual = sum(entry.source == USUAL for entry in stated)
    beyond = [bool(entry.stated) for entry in entries if entry.against]
    return (
        f"Of {len(stated)} entries that are stated, {len(stated) - usual} by papers and {usual} by summaries only, "
        f"{len(stated) - len(apart)} come out on the functions by which the properties are taught. A counter-example "
        f"elsewhere is known of {sum(beyond)} more of them, and of {beyond.count(False)} that nobody states:"
    )


def _measured(report: Report, name: str, given: Callable[[], Any], methods: tuple[str, ...]) -> None:
    model, inputs, how = given()
    options = {"rows": 2 if report.quick else 3, "features": 3 if report.quick else 5, **how}
    rows, heads = [], []
    for method in methods if not report.quick else FEW:
        settings = {method: SETTINGS.get(method, {})}
        measure = partial(_cells, model, inputs, settings, options)
        cells = report.once(f"{name.replace(':', '-')}-{method}", measure, model, inputs, settings, options)
        heads = list(cells)
        rows.append([method, *cells.values()])
        print(method, cells, flush=True)
    report.table(name.replace(":", "-"), ["method", *heads], rows, "Verdict, and the largest violation found.")
    sums = {row[0]: row[1 + heads.index("completeness")] for row in rows}
    report.must(f"integrated gradients sum up on {name}", not sums.get("integrated_gradients", "").startswith("no"))


def _cells(model: Any, inputs: Any, settings: Any, options: dict[str, Any]) -> dict[str, str]:
    return {cell.property: _cell(cell) for cell in whence.axioms(model, inputs, methods=settings, **options).values()}


def _cell(cell: Any) -> str:
    if cell.verdict == "–":
        return "–"
    return cell.verdict if cell.number is None else f"{cell.verdict} {cell.number:.2g}"


# ---- the models ----


def _questions() -> Any:
    zoo = whence.load("zoo:questions")
    return zoo, list(zoo.examples[:3]), {}


def _sentiment() -> Any:
    zoo = whence.load("zoo:sentiment")
    return zoo, list(zoo.examples[:3]), {}


def _fashion() -> Any:
    zoo = whence.load("zoo:fashion-cnn")
    return zoo, list(zoo.examples[:3]), {"baseline": "black"}


def _molecules() -> Any:
    zoo = whence.load("zoo:molecules")
    return zoo, zoo.examples[0], {"target": 0}  # molecules of different sizes take passes of their own


def _folder(name: str) -> Path:
    """Where a real model or its data lie."""
    found = trained.DATA / name
    if not found.is_dir():
        raise data.Absent(f"There is no folder {name}/ in WHENCE_DATA.\n  The experiment's README says what it holds.")
    return found


def _toxicity() -> Any:
    model = whence.load(_folder("bert-tiny-toxicity"))
    return model, ["you are a stupid idiot", "what a lovely day", "shut up , you fool"], {"target": 0}


def _resnet() -> Any:
    _folder("cifar10_resnets"), _folder("cifar10_test1000")
    found = trained.resnet20(2)
    return found.model, found.inputs, {"baseline": found.baseline, "features": 4}


MODELS: dict[str, tuple[str, Callable[[], Any], bool]] = {
    "zoo:questions": ("a CNN over words", _questions, False),
    "zoo:fashion-cnn": ("a CNN over images", _fashion, False),
    "zoo:molecules": ("a graph network", _molecules, False),
    "zoo:sentiment": ("a BERT", _sentiment, True),
    "bert-tiny-toxicity": ("a BERT fine-tuned by others", _toxicity, True),
    "resnet20": ("a residual network trained on CIFAR-10 by others", _resnet, False),
}
