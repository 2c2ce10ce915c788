"""`whence demo`: every method on a sentence, an image, a question, a translation, a generated text and a molecule."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whence.adapters.load import load
from whence.api import explain
from whence.errors import WhenceError, WhenceWarning
from whence.methods import methods
from whence.results.attribution import Attribution
from whence.results.comparison import Comparison
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
    options: Mapping[str, Any] | None = None


CASES = (
    DemoCase("sentiment", "A sentence", "A small BERT says whether a sentence speaks well or badly of a film.", 3),
    DemoCase("questions", "A question", "A convolutional network over words says what kind of answer is asked for."),
    DemoCase("fashion-vit", "An image", "A vision transformer says which of ten kinds of clothing this is.", 9),
    DemoCase("fashion-cnn", "The same image, another network", "A convolutional network, on the same picture.", 9),
    DemoCase("translation", "A translation", "Two recurrent networks with attention between them write English for "
         "German; each line is a word they wrote, each column a word it may have come from.", 3),
    DemoCase("language", "A generated text", "A small language model went on with a sentence; each line is a token it "
         "wrote, each column a token before it.", 0, lambda model, given: model.complete(given, 6)),
    DemoCase("molecules", "A molecule", "A graph network says how likely a molecule is active in an assay of toxicity; "
         "atoms and bonds are coloured.", 3, lambda model, given: "NR-AhR"),
)  # fmt: skip

MAGNITUDES = (
    "Grey shows how much, not for what: a gradient is not a share of the score, so the norm of each token's gradient "
    "is shown (under a LayerNorm its sum is 0)."
)


def run(out: Path, progress: bool | None = None) -> str:
    """Write the page and return a summary."""
    from whence.views.html import LEGEND, page, text

    start = time.perf_counter()
    sections, count = [], 0
    with bar(len(CASES) * len(methods), progress, "whence demo") as counted:
        for case in CASES:
            found, left = _explained(case, counted)
            count += len(found)
            sections.append(_section(case, found, left))
    lead = (
        "<p>Where did that prediction come from? Below, small models read a sentence, a question, an image, a German "
        "sentence, the beginning of a text, and a molecule. Under each, every method of Whence answers in its own "
        "sense which parts of the input the prediction came from.</p>"
        f"<p>{LEGEND} Red parts speak for the prediction, blue ones against it; colours are shares of the method's own "
        "largest value, and hovering shows the numbers. The methods do not agree, and that is the point: the small "
        "print under each says what the method is, what it cost, and what it measured about its own answer. A "
        "<em>completeness gap</em> near 0 means that the parts add up to what was to be explained; <em>random</em> is "
        "the control that every other method should beat.</p>"
        f'<p class="soft">{count} explanations with {len(methods)} methods. The page has no script and asks for '
        "nothing from outside.</p>"
    )
    links = "".join(f'<li><a href="#{text(case.model)}">{text(case.title)}</a></li>' for case in CASES)
    lead += f"<nav><ul>{links}</ul></nav>"
    put(out, page("Where did that prediction come from?", sections, lead))
    return f"{count} explanations with {len(methods)} methods in {time.perf_counter() - start:.0f} s."


def _explained(case: DemoCase, counted: Callable[..., object]) -> tuple[Comparison, dict[str, str]]:
    """The attribution of each method, and why some have none."""
    model = load(f"zoo:{case.model}")
    given = model.examples[case.number]
    target = None if case.target is None else case.target(model, given)
    found: dict[str, Attribution] = {}
    left: dict[str, str] = {}
    for name in methods:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", WhenceWarning)  # they stand on the page, above the pictures
                found[name] = explain(model, given, method=name, target=target, progress=False)
        except WhenceError as error:
            left[name] = str(error).splitlines()[0].removeprefix(f"{name} ")
        counted()
    return Comparison(found), left


def _section(case: DemoCase, found: Comparison, left: Mapping[str, str]) -> str:
    from whence.views.html import compared, text

    sized = [name for name, a in found.items() if not a.signed()]
    reasons: dict[str, list[str]] = {}
    for name, reason in left.items():
        reasons.setdefault(reason, []).append(name)
    missing = "".join(f"<li>{text(', '.join(names))}: {text(reason)}</li>" for reason, names in reasons.items())
    without = f"{len(left)} method{' has' if len(left) == 1 else 's have'}"
    beside = f"<details><summary>{without} no answer here</summary><ul>{missing}</ul></details>"
    return (
        f'<section id="{text(case.model)}"><h2>{text(case.title)}</h2><p>{text(case.description)}</p></section>'
        f"{compared(found, described=True, notes={name: [MAGNITUDES] for name in sized})}"
        f"{_mixed(sized, len(found))}{beside if left else ''}"
    )


def _mixed(sized: Sequence[str], count: int) -> str:
    """A note where the matrix of agreement compares magnitudes with signed values."""
    if len(sized) in (0, count):
        return ""
    return (
        f'<p class="soft">In the rank correlation, of {", ".join(sized)} magnitudes are ranked, else signed values: '
        "between the two kinds, a unit that speaks against stands high in the one and low in the other.</p>"
    )
