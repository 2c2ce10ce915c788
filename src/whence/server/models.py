"""The models that may be used: those named when the server starts, each loaded at its first use."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from whence.adapters.load import load
from whence.adapters.wrapped import Wrapped
from whence.errors import ModelError, NoAttention, WhenceError
from whence.evaluation.deletion_check import PATCHES
from whence.methods import methods
from whence.server.limits import Refused
from whence.views.families import FAMILIES, family_of, first_of, title_of
from whence.zoo import ZOO, card

_KINDS = {
    "text-classification": "text", "token-classification": "text", "fill-mask": "text", "question-answering": "pair",
    "text-generation": "prompt", "text2text-generation": "seq2seq", "image-classification": "image",
    "function": "molecule",
}  # fmt: skip
_FIRST = ("sentiment", "fashion-vit", "language", "photos")  # of the zoo, in this order; the others follow
_TITLES = {
    "sentiment": "Sentiment of film reviews", "questions": "Kinds of questions", "translation": "German to English",
    "language": "Language model", "fashion-cnn": "Clothing, convolutional network",
    "fashion-vit": "Clothing, vision transformer", "mosaic-vit": "Clothing among clutter, vision transformer",
    "molecules": "Toxicity of molecules", "photos": "Photographs, EfficientNet",
}  # fmt: skip


@dataclass
class Offered:
    """A model by its name, where it comes from, and what is known of it."""

    name: str
    source: str
    about: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    wrapped: Wrapped | None = None
    described: dict[str, Any] | None = None
    presets: dict[str, dict[str, Any]] | None = None

    @property
    def kind(self) -> str | None:
        """What it reads; None before it is loaded, where nobody knows."""
        if self.wrapped is not None:
            return _kind(self.wrapped.task)
        return None if self.zoo is None else _kind(str(card(self.zoo)["task"]))

    @property
    def zoo(self) -> str | None:
        return self.source.removeprefix("zoo:") if self.source.startswith("zoo:") else None


_loading = threading.Lock()  # one at a time: transformers cannot be imported by two threads at once


class Models:
    """All that are offered."""

    def __init__(self, sources: Sequence[str]) -> None:
        self._offered: dict[str, Offered] = {}
        for source in sources or zoo_sources():
            self._add(source)

    def _add(self, source: str) -> None:
        name = source if source.startswith("zoo:") else Path(source).expanduser().resolve().name or source
        plain, number = name, 2
        while name in self._offered:
            if self._offered[name].source == source:
                return
            name, number = f"{plain}-{number}", number + 1
        offered = Offered(name, source)
        if offered.zoo is not None:
            offered.about = str(card(offered.zoo)["what"])
        self._offered[name] = offered

    @property
    def names(self) -> list[str]:
        return list(self._offered)

    def named(self, source: str) -> str:
        """The name under which a source is offered."""
        return next(name for name, one in self._offered.items() if one.source == source)

    def offered(self, name: str) -> Offered:
        if name not in self._offered:
            raise Refused(
                404, "unknown",
                f"This server has no model {name[:80]!r}.\n  It has {', '.join(self._offered)}; others are named when "
                "it starts: whence serve --model DIR.",
            )  # fmt: skip
        return self._offered[name]

    def get(self, name: str) -> Wrapped:
        """The model, loaded."""
        one = self.offered(name)
        with _loading:
            if one.wrapped is None:
                wrapped = load(one.source)
                if wrapped.task not in _KINDS:
                    raise ModelError(
                        f"{name!r} does {wrapped.task}, which the page cannot show.\n"
                        f"  It shows {', '.join(_KINDS)}; use whence.explain for this one."
                    )
                one.wrapped = wrapped
            return one.wrapped

    def presets(self, name: str) -> dict[str, dict[str, Any]]:
        """Parameters with which methods answer while one waits, by method."""
        one, wrapped = self.offered(name), self.get(name)
        if one.presets is None:
            one.presets = _presets(wrapped, _kind(wrapped.task))
        return one.presets

    def listed(self) -> list[dict[str, Any]]:
        """What is known without loading anything."""
        return [self._short(one) for one in self._offered.values()]

    def _short(self, one: Offered) -> dict[str, Any]:
        title = _TITLES.get(one.zoo or "", one.name)
        return {"name": one.name, "title": title, "about": one.about, "kind": one.kind}

    def described(self, name: str) -> dict[str, Any]:
        """Everything that the page wants to know of one model; it is loaded for that."""
        one, wrapped = self.offered(name), self.get(name)
        with one.lock:
            if one.described is None:
                one.described = self._described(one, wrapped)
            return one.described

    def _described(self, one: Offered, wrapped: Wrapped) -> dict[str, Any]:
        kind, why_not = _kind(wrapped.task), _why_not(wrapped)
        listed = [_method(name, why_not) for name in methods]
        return {
            **self._short(one), "kind": kind, "task": wrapped.task, "labels": _labels(wrapped),
            "exclusive": wrapped.exclusive, "examples": _examples(one.name, wrapped, kind),
            "takes_pair": wrapped.task == "text-classification" and one.zoo is None, "methods": listed,
            "families": FAMILIES, "defaults": _defaults(kind, why_not),
            "has_attention": "raw_attention" not in why_not, "presets": self.presets(one.name),
            "chat": bool(getattr(wrapped.tokenizer, "chat_template", None)),
        }  # fmt: skip


def _defaults(kind: str, why_not: Mapping[str, str]) -> list[str]:
    """Four that ask different questions, and that answer while one waits."""
    slow = set(_SAMPLED if kind in ("image", "prompt", "seq2seq") else ())
    if "transformer_attribution" not in why_not:
        slow.add("grad_cam")  # one map of patches is enough
    return first_of({name: name for name in methods if name not in why_not and name not in slow})


def zoo_sources() -> list[str]:
    """The whole zoo, but for models whose packages are not installed."""
    order = [*_FIRST, *(name for name in ZOO if name not in _FIRST)]
    return [f"zoo:{name}" for name in order if _installed(name)]


def _installed(name: str) -> bool:
    from importlib.util import find_spec

    needs = {"photos": "efficientnet_lite_pytorch", "molecules": "rdkit"}
    return name not in needs or find_spec(needs[name]) is not None


def _kind(task: str) -> str:
    return _KINDS[task]


def _labels(wrapped: Wrapped) -> list[str]:
    if wrapped.entry.writes is not None or not wrapped.labels:
        return []
    return [wrapped.labels.get(number, str(number)) for number in range(max(wrapped.labels) + 1)]


def _examples(name: str, wrapped: Wrapped, kind: str) -> list[dict[str, Any]]:
    """Inputs to try a model with; images by their number."""
    if kind == "image":
        return [
            {"example": n, "url": f"/api/models/{name}/examples/{n}", "name": Path(place).name}
            for n, place in enumerate(wrapped.examples)
        ]
    key = {"prompt": "prompt", "molecule": "smiles"}.get(kind, "text")
    return [
        {"text": given[0], "pair": given[1]} if isinstance(given, tuple | list) else {key: given}
        for given in wrapped.examples
    ]


def _method(name: str, why_not: dict[str, str]) -> dict[str, Any]:
    entry = methods[name]
    family = family_of(name)
    return {
        "name": name, "title": title_of(name), "family": family, "question": FAMILIES[family],
        "description": entry.description, "paper": entry.paper, "runs": name not in why_not,
        "why_not": why_not.get(name), "complete": bool(entry.facts.get("complete")),
        "parameters": [
            {"name": p.name, "default": p.default, "choices": list(p.choices) or None}
            for p in entry.parameters.values() if isinstance(p.default, str | int | float | bool | None)
        ],
    }  # fmt: skip


# ---- what keeps an answer quick ----

_SAMPLED = ("shapley", "kernel_shap", "lime")
LARGE = 112  # pixels of an image's side


def _presets(wrapped: Wrapped, kind: str) -> dict[str, dict[str, Any]]:
    """Removal in patches of images, as many as the deletion curves have; few samples where a pass takes long."""
    if kind != "image":
        return {"shapley": {"exact": 10}}
    side = _side(wrapped)
    found: dict[str, dict[str, Any]] = {
        name: {"units": -(-side // PATCHES)} for name in ("leave_one_out", *_SAMPLED)
    }  # fmt: skip
    if side >= LARGE:
        found |= {"smoothgrad": {"samples": 8}, "integrated_gradients": {"steps": 16},
                  "occlusion": {"window": side // 4, "stride": side // 8}}  # fmt: skip
        found["shapley"]["samples"] = 2
        for name in ("kernel_shap", "lime"):
            found[name]["samples"] = 128
    return found


def _side(wrapped: Wrapped) -> int:
    (request,) = wrapped.requests([_probe(wrapped)], None)
    inputs = request.inputs
    pixels = inputs["pixel_values"] if isinstance(inputs, Mapping) else inputs
    return int(max(pixels.shape[-2:]))


# ---- which methods run ----

_PROBE = "a b"  # a short text, to see whether a method runs at all


def _probe(wrapped: Wrapped) -> Any:
    if wrapped.examples:
        return wrapped.examples[0]
    if wrapped.task == "question-answering":
        return (_PROBE, _PROBE)
    if wrapped.task == "fill-mask":
        return f"{_PROBE} {wrapped.tokenizer.mask_token}"
    if wrapped.entry.reads_images:
        return np.full((64, 64, 3), 127, dtype=np.uint8)
    return _PROBE


def _why_not(wrapped: Wrapped) -> dict[str, str]:
    """The methods that cannot explain this model, and why: those with needs are tried once."""
    given, found = _probe(wrapped), {"permutation": "It takes values from other rows, and there is one row here."}
    for name, entry in methods.items():
        if entry.facts.get("needs") in ("attention", "maps"):
            like = "rollout" if name == "attention_flow" and wrapped.entry.reads_images else None  # which is quick
            why = found.get(like) if like else _tried(wrapped, given, name)
            if why is not None:
                found[name] = why
    return found


def _tried(wrapped: Wrapped, given: Any, name: str) -> str | None:
    from whence.api import explain

    try:
        explain(wrapped, given, method=name, progress=False)
    except NoAttention:
        return "The model has no attention that could be read."
    except WhenceError as error:
        told = str(error).splitlines()[0].removeprefix(f"{name} ")
        return told[:1].upper() + told[1:]
    return None
