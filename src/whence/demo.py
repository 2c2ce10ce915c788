"""`whence demo`: a photograph, a sentence, an image and more, explained; properties and a scoreboard, measured."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.adapters.load import load
from whence.api import explain
from whence.errors import WhenceError, WhenceWarning
from whence.evaluation.axioms.toys import textbook_table
from whence.evaluation.deletion_check import checked
from whence.evaluation.evaluate import evaluate
from whence.methods import methods
from whence.results.attribution import Attribution
from whence.util.checks import check_installed
from whence.util.files import put
from whence.util.progress import bar


@dataclass(frozen=True)
class DemoCase:
    """One input of the page, with the model that reads it."""

    model: str
    title: str
    description: str
    number: int = 0  # of the model's example
    target: Callable[[Any, Any], Any] | None = None
    methods: Mapping[str, Mapping[str, Any]] | None = None  # with their parameters; None: all
    check: Mapping[str, int] | None = None  # how finely the model is asked again; None: it is not
    folded: bool = True


PHOTO: dict[str, dict[str, Any]] = {  # what is quick at 224 × 224 pixels
    "gradient": {}, "input_x_gradient": {}, "smoothgrad": {"samples": 8}, "guided_backprop": {}, "grad_cam": {},
    "guided_grad_cam": {}, "integrated_gradients": {"steps": 24}, "deeplift": {}, "lrp": {},
    "occlusion": {"window": 56, "stride": 28}, "random": {},
}  # fmt: skip
CASES = (
    DemoCase("photos", "A photograph", "EfficientNet-Lite0 says which of 1,000 things this is.", methods=PHOTO,
             check={"steps": 8, "draws": 6}, folded=False),
    DemoCase("sentiment", "A sentence", "A small BERT says whether a sentence speaks well or badly of a film.", 3,
             check={}, folded=False),
    DemoCase("fashion-vit", "An image", "A vision transformer says which of ten kinds of clothing this is.", 6,
             check={}),
    DemoCase("questions", "A question", "A convolutional network over words says what kind of answer is asked for.",
             check={}),
    DemoCase("translation", "A translation", "Two recurrent networks with attention between them write English for "
             "German; each line is a word they wrote, each column a word it may have come from.", 3),
    DemoCase("language", "A generated text", "A small language model went on with a sentence; each line is a token it "
             "wrote, each column a token before it.", 0, lambda model, given: model.complete(given, 6)),
    DemoCase("molecules", "A molecule", "A graph network says how likely a molecule is active in an assay of toxicity; "
             "atoms and bonds are coloured.", 3, lambda model, given: "NR-AhR"),
)  # fmt: skip
INSTEAD = DemoCase(  # of the photograph, where its network is not installed
    "fashion-cnn", "An image, by a convolutional network", "A convolutional network says which of ten kinds of "
    "clothing this is.", 9, check={}, folded=False,
)  # fmt: skip
PROPERTIES = ("gradient", "deeplift", "integrated_gradients")
BOARD = "fashion-vit"
BOARD_METHODS = ("integrated_gradients", "attnlrp", "deeplift", "transformer_attribution", "rollout", "gradient")
BOARD_METRICS = ("comprehensiveness", "sufficiency", "deletion")
_AROUND = 20  # steps of the bar that properties and the scoreboard count as


def run(out: Path, progress: bool | None = None) -> str:
    """Write the page and return a summary."""
    from whence.views.comparison import FOOT
    from whence.views.components import page, text

    check_installed("whence demo", "demo", transformers="transformers", PIL="Pillow", rdkit="RDKit")
    start = time.perf_counter()
    cases, note = _cases()
    total = sum(len(_asked(case)) for case in cases) + (_AROUND if cases else 0)
    sections, count = [], 0
    with bar(total, progress, "whence demo") as counted:
        for case in cases:
            found, missing, check = _explained(case, counted)
            count += len(found)
            sections.append(_section(case, found, missing, check))
        if cases:
            sections += [_properties(), _scoreboard()]
            counted(_AROUND)
    title = "Where did that prediction come from?"
    put(out, page(title, f"<div><h1>{text(title)}</h1>{_lead(cases, count, note)}</div>{''.join(sections)}{FOOT}"))
    told = f"{note}\n" if note else ""
    return f"{told}{count} explanations with {_asked_of()} in {time.perf_counter() - start:.0f} s."


def _asked_of() -> str:
    return f"{len(methods) - 1} methods and a random control"


def _cases() -> tuple[tuple[DemoCase, ...], str]:
    """The cases that can be shown here, and what is shown instead of one that cannot."""
    if not any(case.model == "photos" for case in CASES):
        return tuple(CASES), ""
    try:
        load("zoo:photos")
    except WhenceError as error:
        rest = tuple(case for case in CASES if case.model != "photos")
        return (INSTEAD, *rest), f"There is no photograph: {' '.join(str(error).split())}"
    return tuple(CASES), ""


def _asked(case: DemoCase) -> Mapping[str, Mapping[str, Any]]:
    return {name: {} for name in methods} if case.methods is None else case.methods


def _lead(cases: tuple[DemoCase, ...], count: int, note: str) -> str:
    from whence.views.components import text, warnings

    links = "".join(f'<a href="#{text(case.model)}">{text(case.title)}</a>' for case in cases)
    if cases:
        links += '<a href="#properties">Properties</a><a href="#scoreboard">A scoreboard</a>'
    return (
        '<p class="verdict" style="margin:10px 0">Each model below was asked why it says what it says. Methods of '
        "different families ask different questions, so they need not agree: what they have in common stands beside "
        "them, and what the model itself says when their first units go, beside random orders of them.</p>"
        f'<p class="soft">{count} explanations with {_asked_of()}, offline, on small models.</p>'
        f'<nav class="keys">{links}</nav>{warnings([("", note)] if note else [])}'
    )


def _explained(case: DemoCase, counted: Callable[..., object]) -> tuple[dict[str, Attribution], dict[str, str], Any]:
    """The attribution of each method, why some have none, and what the model says of them."""
    model = load(f"zoo:{case.model}")
    given = model.examples[case.number]
    target = None if case.target is None else case.target(model, given)
    found: dict[str, Attribution] = {}
    missing: dict[str, str] = {}
    for name, params in _asked(case).items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", WhenceWarning)  # they stand on the page, above the pictures
                found[name] = explain(model, given, method=name, target=target, progress=False, **params)
        except WhenceError as error:
            missing[name] = str(error).splitlines()[0].removeprefix(f"{name} ")
        counted()
    if case.check is None:
        return found, missing, None
    return found, missing, checked(model, given, found, **case.check)[0]


def _section(case: DemoCase, found: Mapping[str, Attribution], missing: Mapping[str, str], check: Any) -> str:
    from whence.views.comparison import report
    from whence.views.components import text

    whole = report(found, check, level=2, lead=f"{case.description} ", missing=missing)
    if not case.folded:
        return f'<section id="{text(case.model)}" class="case"><p class="over">{text(case.title)}</p>{whole}</section>'
    return (
        f'<details id="{text(case.model)}" class="fold other"><summary><b>{text(case.title)}</b>'
        f'<span class="ask soft">{text(case.description)}</span></summary><div class="inside">{whole}</div></details>'
    )


def _properties() -> str:
    from whence.views.axioms import textbook_grid, textbook_notes

    table = textbook_table(list(PROPERTIES))
    return (
        '<section id="properties"><h2>What holds of a method, measured</h2>'
        f"{textbook_grid(table)}<details><summary>Witnesses and sources</summary>{textbook_notes(table)}</details>"
        '<p class="soft">On your own model: <code>whence.axioms(model, inputs, methods=[…])</code>.</p></section>'
    )


def _scoreboard() -> str:
    from whence.views.scoreboard import section

    model = load(f"zoo:{BOARD}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WhenceWarning)
        board = evaluate(model, list(model.examples), methods=BOARD_METHODS, metrics=BOARD_METRICS, progress=False)
    return (
        '<section id="scoreboard"><h2>Which method is faithful to the model?</h2>'
        f"<p>zoo:{BOARD}, {len(model.examples)} images of clothing: few rows, so read the intervals.</p>"
        f"{section(board)}"
        '<p class="soft">On your own rows: <code>whence.evaluate(model, rows, methods=[…], metrics=[…])</code>.</p>'
        "</section>"
    )
