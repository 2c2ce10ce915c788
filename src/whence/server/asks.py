"""What can be asked: functions from a question to plain dicts, on top of whence's own API."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from whence.adapters.wrapped import Wrapped
from whence.api import explain
from whence.engine import blame
from whence.engine.scope import scope
from whence.errors import InputError, WhenceError
from whence.evaluation.requests import both_classes, probabilities
from whence.results.attribution import Attribution
from whence.server import given, shown
from whence.server.limits import Limits
from whence.server.models import Models
from whence.server.schema import Ask, Predict, Question
from whence.subject.logits import find_logits
from whence.views.maps import maps

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

    def key(self, method: str, params: Mapping[str, Any], target: Any) -> str:
        """What tells this explanation from all others."""
        goal = getattr(target, "ids", None) or repr(target)
        parts = (self.question.model, self.question.input.model_dump(), goal, method, sorted(params.items()))
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def explained(self, method: str, params: Mapping[str, Any] | None = None, target: Any = None) -> Attribution:
        """By one method, in tokens; kept for the next question about it."""
        return self.timed(method, params, target)[0]

    def timed(
        self, method: str, params: Mapping[str, Any] | None = None, target: Any = None
    ) -> tuple[Attribution, float]:
        """The same, and the seconds that it took."""
        params, target = params or {}, self.goal() if target is None else target
        return self.desk.kept(
            self.key(method, params, target),
            lambda: explain(self.wrapped, self.inputs, method=method, target=target, progress=False, **params),
        )

    def params(self, method: str, options: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
        """The parameters of a method: what keeps it quick here, unless the question says otherwise."""
        return {
            **self.desk.models.presets(self.question.model).get(method, {}),
            **given.params_of(method, options.get(method, {}), self.desk.limits),
        }

    def by(self, method: str, options: Mapping[str, dict[str, Any]], target: Any = None) -> Attribution:
        """By one method with the question's options."""
        return self.explained(method, self.params(method, options), target)

    def goal(self) -> Any:
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
        self._kept: OrderedDict[str, tuple[Attribution, float]] = OrderedDict()
        self._lock = threading.Lock()

    def kept(self, key: str, make: Callable[[], Attribution]) -> tuple[Attribution, float]:
        """An attribution, and the seconds that it took when it was made."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        start = time.perf_counter()
        made = make()
        with self._lock:
            self._kept[key] = made, time.perf_counter() - start
            while len(self._kept) > _CACHED:
                self._kept.popitem(last=False)
        return made, time.perf_counter() - start

    def asked(self, question: Question) -> Asked:
        return Asked(self, question)


# ---- predictions ----


def predict(desk: Desk, question: Predict) -> dict[str, Any]:
    """The classes with their probabilities, and the units of the input."""
    asked = desk.asked(question)
    whole = _next_token(asked) if asked.writes else asked.explained("random")
    a = asked.in_units(whole)
    named = asked.kind not in ("image", "molecule")
    classes = _likely(asked, question.top) if asked.writes else _classes(asked, whole, question.top)
    found: dict[str, Any] = {
        "model": question.model, "kind": asked.kind, "units": shown.units_of(a),
        "tokens": shown.units_of(whole) if named else [],
        "text": None if a.text is None else a.text[0], "image": shown.picture(a), "classes": classes,
        "chosen": next((c["index"] for c in classes if c["chosen"]), None),
    }  # fmt: skip
    if asked.kind == "molecule":
        found["molecule"] = shown.drawing(asked.inputs)
    return found


def _likely(asked: Asked, top: int) -> list[dict[str, Any]]:
    """The likeliest next tokens of a model that writes."""
    from whence.server.written import next_tokens

    return next_tokens(asked, top)


def _next_token(asked: Asked) -> Attribution:
    """Of a model that writes: the prompt, and its next token; for an encoder and a decoder the first."""
    first = asked.wrapped.complete(asked.inputs, 1)
    return asked.explained("random", {}, first)


def _classes(asked: Asked, a: Attribution, top: int) -> list[dict[str, Any]]:
    if not asked.classifies:
        part = next(maps(a, 1))
        return [{"label": part.target, "index": None, "probability": part.probability, "score": part.score,
                 "chosen": True}]  # fmt: skip
    scores = logits_of(asked)
    p = probabilities(both_classes(scores), "probability", asked.wrapped.exclusive, scores)
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
    (request,) = asked.wrapped.requests([asked.inputs], None)
    inputs = request.inputs
    form = "dict" if isinstance(inputs, Mapping) else "tensor"
    handed = inputs if isinstance(inputs, Mapping) else {"x": inputs}
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
    if ask.contrast is not None and not asked.writes:
        raise InputError("Tokens of an answer are contrasted, and this model does not write text.\n  Name a class.")
    names = given.checked_methods(ask.methods)
    for place, name in enumerate(names):
        job.progress = {"done": place, "of": len(names), "method": name}
        job.tell("progress", {**job.progress, "passes": job.passes})
        try:
            a, seconds = _one(asked, ask, name)
        except WhenceError as error:
            told = str(error).removeprefix(f"{name}: ").removeprefix(f"{name} ")
            job.tell("failed", {"method": name, "error": told[:1].upper() + told[1:], "kind": type(error).__name__})
            continue
        found[name] = a
        own = {"place": place, "params": asked.params(name, ask.options)}
        job.tell("result", {**shown.answer(name, a, seconds), **own})
    job.tell("done", {**(shown.together(found) if found else {}), "passes": job.passes})


def _one(asked: Asked, ask: Ask, name: str) -> tuple[Attribution, float]:
    from whence.server.written import contrasted

    if ask.contrast is None:
        a, seconds = asked.timed(name, asked.params(name, ask.options))
        return asked.in_units(a), seconds
    start = time.perf_counter()
    return contrasted(asked, ask, name), time.perf_counter() - start


def answers(asked: Asked, ask: Ask) -> dict[str, Attribution]:
    """The answers of the methods that were named, those that have one."""
    found = {}
    for name in given.checked_methods(ask.methods) if ask.methods else []:
        try:
            found[name] = asked.by(name, ask.options)
        except WhenceError:
            continue  # told where it is explained
    return found
