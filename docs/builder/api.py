"""The API reference: the public names by their groups, described by their own docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any

import whence
import whence.captum

PAGES = {  # the page, its title, what it says first
    "functions": ("Functions", "What `import whence` is for."),
    "results": ("Results", "What the functions give. All are frozen: a change makes another one."),
    "extending": ("Extending", "What a method, a rule, a metric or a target of your own is made with."),
    "errors": ("Errors and warnings", "Each states the fact, the place and the way out."),
    "captum": ("whence.captum", "Captum's classes by their names and signatures. [How they differ](../captum.md)."),
}
BEHIND = {  # what public names hand to an extension, or give back
    "functions": ("whence.evaluation.axioms.textbook_table",),
    "results": ("whence.adapters.wrapped.Wrapped", "whence.evaluation.scoreboard.Score",
                "whence.evaluation.recommend.Choice", "whence.evaluation.axioms.table.Cell",
                "whence.evaluation.axioms.table.Witness", "whence.evaluation.axioms.toys.TextbookTable",
                "whence.evaluation.axioms.toys.TextbookEntry",
                "whence.runs.summary.Unit", "whence.runs.summary.MeanMap", "whence.runs.summary.Note",
                "whence.runs.opened.Where"),
    "extending": ("whence.registry.Registry", "whence.registry.Entry", "whence.registry.Parameter",
                  "whence.registry.Bounds", "whence.subject.subject.Subject", "whence.methods.answer.Answer",
                  "whence.evaluation.requests.View", "whence.evaluation.requests.Result",
                  "whence.evaluation.axioms.table.Finding", "whence.subject.named_baselines.Neutral",
                  "whence.subject.neurons.Neuron", "whence.adapters.answers.Span", "whence.adapters.answers.Contrast"),
}  # fmt: skip
GUIDES = {  # where a function's arguments are explained one by one
    "whence.explain": "[what each argument takes](../explain.md), [which methods there are](../methods/index.md)",
    "whence.load": "[tasks, inputs and targets](../inputs.md)",
    "whence.wrap": "[a model class of your own](../howto/own_model.md)",
    "whence.compare": "[pictures, pages and files](../results.md)",
    "whence.evaluate": "[evaluation](../evaluation.md), [which metrics there are](../metrics/index.md)",
    "whence.recommend": "[what it promises](../evaluation.md#recommendation)",
    "whence.axioms": "[axioms, measured](../axioms.md)",
    "whence.run": "[data sets](../scale.md)",
    "whence.open": "[reading a run](../runs.md)",
    "whence.diff": "[two runs compared](../runs.md#two-runs-compared)",
}


def pages() -> Iterator[tuple[str, str]]:
    """The reference, a page for each group."""
    yield "api/index.md", _index()
    for name, members in groups().items():
        title, lead = PAGES[name]
        blocks = [*map(_block, members), *map(_block, BEHIND.get(name, ()))]
        yield f"api/{name}.md", "\n\n".join([f"# {title}", lead, *blocks]) + "\n"


def groups() -> dict[str, list[str]]:
    """Every public name, on the page where it belongs."""
    found: dict[str, list[str]] = {name: [] for name in PAGES}
    for name in whence.__all__:
        found[_page(getattr(whence, name), name)].append(f"whence.{name}")
    found["captum"] = [f"whence.captum.{name}" for name in sorted(whence.captum.__all__)]
    return found


def _page(value: object, name: str) -> str:
    if name in (
        "method",
        "methods",
        "metric",
        "metrics",
        "Call",
        "derivative",
        "neutral",
        "neuron",
        "span",
        "contrast",
    ):
        return "extending"
    if inspect.isclass(value):
        return "errors" if issubclass(value, BaseException) else "results"
    return "functions"


def _block(name: str) -> str:
    """The directive that describes a name."""
    parent, _, last = name.rpartition(".")
    value = getattr(inspect.importlib.import_module(parent), last)  # type: ignore[attr-defined]
    if name in ("whence.methods", "whence.metrics"):
        told = f'The registry of {last}, by name: `{name}["…"]` is an `Entry`.'
        lines = [f".. py:data:: {name}", "   :type: Registry", "", f"   {told}"]
    elif inspect.isclass(value):
        captum = name.startswith("whence.captum.")
        members = "attribute" if captum and hasattr(value, "attribute") else ""
        shown = issubclass(value, BaseException)
        lines = [f".. autoclass:: {name}", "   :show-inheritance:"]
        lines += [] if shown else [f"   :members: {members}".rstrip()]
        lines += ["   :undoc-members:"] if members else []  # what it does is said of the class
        lines += ["   :no-index:"] if name == "whence.captum.Attribution" else []  # the name means whence.Attribution
    elif inspect.ismethod(value):  # of a registry: autodoc would leave its first argument out
        lines = [f".. autofunction:: {name}{_signature(value)}"]
    elif callable(value):
        lines = [f".. autofunction:: {name}"]
    else:
        lines = [f".. autodata:: {name}", "   :no-value:"]
    more = [f"\nMore: {GUIDES[name]}."] if name in GUIDES else []
    return "\n".join(["```{eval-rst}", *lines, "```", *more])


def _signature(value: Any) -> str:
    """The arguments as they are written, without quotes around their annotations."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(value)))


def _index() -> str:
    rows = [f"- [{title}]({name}.md): {lead}" for name, (title, lead) in PAGES.items()]
    return "\n".join(["# API reference", "", *rows, "", *toctree(PAGES)])


def toctree(names: Iterable[str], depth: int = 1) -> list[str]:
    return ["```{toctree}", ":hidden:", f":maxdepth: {depth}", "", *names, "```", ""]
