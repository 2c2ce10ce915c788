"""What can be asked: functions from a question to plain dicts, on top of whence's own API."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from whence.adapters.wrapped import Wrapped
from whence.api import explain
from whence.errors import InputError, WhenceError
from whence.results.attribution import Attribution
from whence.server import given, shown
from whence.server.limits import Limits
from whence.server.models import Models
from whence.server.schema import Ask, Predict, Question

Tell = Callable[[str, dict[str, Any]], None]
_CACHED = 64  # attributions that are kept, so that a click does not compute them again
_CLASSIFIERS = ("text-classification", "image-classification", "function")


class Asked:
    """A question with its model, inputs and target in the forms that `explain` takes."""

    def __init__(self, desk: Desk, question: Question) -> None:
        self.desk, self.question = desk, question
        self.wrapped: Wrapped = desk.models.get(question.model)
        self.kind = str(desk.models.offered(question.model).kind)
        self.inputs = given.inputs_of(self.wrapped, self.kind, question.input, desk.limits)
        self.target = given.target_of(self.wrapped, self.kind, question)

    @property
    def writes(self) -> bool:
        return self.kind in ("prompt", "seq2seq")

    @property
    def classifies(self) -> bool:
        return self.wrapped.task in _CLASSIFIERS

    def key(self, method: str, params: dict[str, Any]) -> str:
        """What tells this explanation from all others."""
        parts = (self.question.model, self.question.input.model_dump_json(), repr(self.question.target), method,
                 repr(sorted(params.items())))  # fmt: skip
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def explained(self, method: str, params: dict[str, Any]) -> Attribution:
        """By one method, in tokens; kept for the next question about it."""
        return self.desk.kept(
            self.key(method, params),
            lambda: explain(
                self.wrapped, self.inputs, method=method, target=self._goal(), progress=False, **params
            ),
        )  # fmt: skip

    def _goal(self) -> Any:
        """The target; what a model writes is written once, and not by every method anew."""
        if self.writes and self.target is None:
            self.target = self.wrapped.complete(self.inputs, self.desk.limits.written // 3)
        return self.target

    def in_units(self, a: Attribution) -> Attribution:
        """In words, where the question wants them and there are any."""
        wanted = self.question.units == "words" and not self.writes
        return a.merge_words() if wanted and a.words is not None and a.one_input else a


class Desk:
    """The models that are offered, the limits, and the latest answers."""

    def __init__(self, models: Models, limits: Limits) -> None:
        self.models, self.limits = models, limits
        self._kept: OrderedDict[str, Attribution] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self, key: str, make: Callable[[], Attribution]) -> Attribution:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = make()
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > _CACHED:
                self._kept.popitem(last=False)
        return made

    def asked(self, question: Question) -> Asked:
        return Asked(self, question)


# ---- predictions ----


def predict(desk: Desk, question: Predict) -> dict[str, Any]:
    """The classes with their probabilities, and the units of the input."""
    asked = desk.asked(question)
    whole = asked.explained("random", {}) if not asked.writes else _next_token(asked)
    a = asked.in_units(whole)
    d = shown.drawn("random", a)
    found: dict[str, Any] = {
        "model": question.model, "kind": asked.kind, "units": shown.units_of(a, d), "tokens": shown.units_of(whole, d),
        "text": None if a.text is None else a.text[0], "image": shown.picture(a),
        "classes": _classes(asked, whole, question.top),
    }  # fmt: skip
    if asked.kind == "molecule":
        found["molecule"] = shown.drawing(asked.inputs)
    found["tokens"] = [] if asked.kind in ("image", "molecule") else found["tokens"]
    chosen = next((c["index"] for c in found["classes"] if c["chosen"]), None)
    return {**found, "chosen": chosen}


def _next_token(asked: Asked) -> Attribution:
    """Of a model that writes: its next token, or for an encoder and a decoder the first."""
    if asked.kind == "seq2seq":
        first = asked.wrapped.complete(asked.inputs, 1)
        return asked.desk.kept(
            asked.key("first token", {}),
            lambda: explain(asked.wrapped, asked.inputs, method="random", target=first, progress=False),
        )
    return asked.desk.kept(
        asked.key("next token", {}), lambda: explain(asked.wrapped, asked.inputs, method="random", progress=False)
    )


def _classes(asked: Asked, a: Attribution, top: int) -> list[dict[str, Any]]:
    if not asked.classifies:
        part = shown.drawn("random", a).maps[0]
        return [{"label": part.target, "index": None, "probability": part.probability, "score": part.score,
                 "chosen": True}]  # fmt: skip
    scores = logits_of(asked)
    from whence.evaluation.requests import both_classes, probabilities

    p = probabilities(both_classes(scores), "probability", asked.wrapped.exclusive)
    both = both_classes(scores)
    target = _class_of(a)
    best = p.argsort(descending=True, stable=True).tolist()[:top]
    best = best if target in best else [*best[:-1], target]
    labels = asked.wrapped.labels
    return [
        {"label": labels.get(n, f"class {n}"), "index": n, "probability": float(p[n]), "score": float(both[n]),
         "chosen": n == target}
        for n in best
    ]  # fmt: skip


def _class_of(a: Attribution) -> int:
    return int(a.target[0]) if isinstance(a.target, torch.Tensor) else -1


def logits_of(asked: Asked) -> torch.Tensor:
    """The scores of all classes."""
    from whence.engine import blame
    from whence.engine.scope import scope
    from whence.subject.logits import find_logits

    (request,) = asked.wrapped.requests([asked.inputs], None)
    inputs = request.inputs
    form = "dict" if isinstance(inputs, dict) else "tensor"
    handed = inputs if form == "dict" else {"x": inputs}
    root = asked.wrapped.model
    with scope(root), torch.no_grad():
        found = find_logits(blame.called(request.model, handed, form, root)).detach().cpu().double()
    if found.dim() != 2:
        raise InputError(f"The model's output is {tuple(found.shape)}, not one score per class.")
    return found.mean(0)


# ---- explanations ----


def explain_all(desk: Desk, ask: Ask, job: Any) -> None:
    """One result after the other; what a method cannot do is told, and the others go on."""
    asked, found = desk.asked(ask), {}
    names = given.checked_methods(ask.methods)
    for place, name in enumerate(names):
        job.progress = {"done": place, "of": len(names), "method": name}
        job.tell("progress", {**job.progress, "passes": job.passes})
        start = time.perf_counter()
        try:
            params = given.params_of(name, ask.options.get(name, {}), desk.limits)
            a = asked.in_units(asked.explained(name, params))
        except WhenceError as error:
            told = str(error)
            job.tell("failed", {"method": name, "error": told.removeprefix(f"{name} "), "kind": type(error).__name__})
            continue
        found[name] = a
        job.tell("result", {**shown.answer(name, a, time.perf_counter() - start), "place": place})
    job.tell("done", {**(shown.together(found) if found else {}), "passes": job.passes})
