"""What is on the screen as a file, and as the Python or the command that gives it again."""

from __future__ import annotations

import io
import json
import re
import shlex
import threading
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from whence.errors import ParameterError, WhenceError
from whence.evaluation.deletion_check import checked
from whence.methods import methods
from whence.results.comparison import Comparison
from whence.server import given
from whence.server.asks import Asked, Desk
from whence.server.schema import Export
from whence.server.security import FILE_POLICY
from whence.views.export import picture_of, plain

Sent = tuple[bytes, str, str]  # the content, its type, and the file's name
_drawing = threading.Lock()  # matplotlib draws one figure at a time


def export(desk: Desk, asked_for: Export) -> Sent:
    """The file in its form."""
    asked = desk.asked(asked_for)
    names = given.checked_methods(asked_for.methods)
    if asked_for.format in ("python", "shell"):
        make = python_of if asked_for.format == "python" else shell_of
        return (
            make(asked, asked_for, names).encode(),
            "text/plain; charset=utf-8",
            f"whence.{_ENDINGS[asked_for.format]}",
        )
    found = compared(asked, asked_for, names)
    if asked_for.format == "html":
        return found.to_html(title="Whence").encode(), "text/html; charset=utf-8", "whence.html"
    if asked_for.format == "json":
        return (
            (json.dumps(plain(found), ensure_ascii=False, indent=1) + "\n").encode(),
            "application/json",
            "whence.json",
        )
    out = io.BytesIO()
    with _drawing:
        picture_of(found).savefig(out, format="png")
    return out.getvalue(), "image/png", "whence.png"


_ENDINGS = {"python": "py", "shell": "sh"}
HEADERS = {"content-security-policy": FILE_POLICY}


def compared(asked: Asked, wanted: Export, names: list[str]) -> Comparison:
    """The methods' answers, and for classifiers what the model says of them."""
    by_token, found = {}, {}
    for name in names:
        try:
            by_token[name] = asked.by(name, wanted.options)
        except WhenceError:
            continue
        found[name] = asked.in_units(by_token[name])
    if not found:
        raise ParameterError("None of the methods could explain this.\n  Name others.")
    try:
        checks = checked(asked.wrapped, asked.inputs, by_token, steps=16, draws=6)
    except WhenceError:  # models that write, and what else has no class
        checks = None
    return Comparison(found, checks)


# ---- code ----


def _file(name: str) -> str:
    """The name of an image's file, without folders and whatever else a name should not have."""
    bare = re.sub(r"[^\w. -]", "_", PurePath(name.replace("\\", "/")).name).strip(". ")
    return bare[-80:] or "image.png"


def _row(asked: Asked, wanted: Export) -> tuple[str, Any]:
    """How the input is called, and its value as code has it."""
    one = wanted.input
    if asked.kind == "image":
        return ("example", one.example) if one.example is not None else ("image", _file(wanted.file))
    return "text", asked.inputs


def _params(asked: Asked, wanted: Export, names: list[str]) -> dict[str, dict[str, Any]]:
    return {name: asked.params(name, wanted.options) for name in names}


def _target(asked: Asked, wanted: Export) -> Any:
    """The target as code has it: a class by its name, an answer by its text."""
    target = wanted.target
    if asked.writes:
        return None if target is None else str(asked.target)
    return asked.wrapped.labels.get(target, target) if isinstance(target, int) else target


def python_of(asked: Asked, wanted: Export, names: list[str]) -> str:
    """A script."""
    source = asked.desk.models.offered(wanted.model).source
    kind, value = _row(asked, wanted)
    row = f"model.examples[{value}]" if kind == "example" else repr(value)
    listed = "".join(f"    {name!r}: {params!r},\n" for name, params in _params(asked, wanted, names).items())
    target, merged = _target(asked, wanted), asked.kind in ("text", "pair") and wanted.units == "words"
    lines = ["import whence", "", f"model = whence.load({source!r})", f"row = {row}"]
    ids = isinstance(wanted.target, list)
    if ids:
        lines += ["from whence.adapters.generation import Continuation", "",
                  f"target = Continuation({target!r}, {wanted.target!r})"]  # fmt: skip
    goal = "" if target is None else ", target=target" if ids else f", target={target!r}"
    lines += [f"methods = {{\n{listed}}}", f"found = whence.compare(model, row, methods=methods{goal})"]
    if merged:
        lines.append("found = whence.Comparison({name: a.merge_words() for name, a in found.items()})")
    return "\n".join([*lines, "found.show()", 'found.save("whence.html")', ""])


def shell_of(asked: Asked, wanted: Export, names: list[str]) -> str:
    """A command."""
    source = asked.desk.models.offered(wanted.model).source
    kind, value = _row(asked, wanted)
    parts = ["whence compare", f"--model {shlex.quote(source)}"]
    if kind == "text" and isinstance(value, list):
        raise ParameterError("A conversation has no one command.\n  Take the Python instead.")
    if kind == "example":
        value = asked.wrapped.examples[value] if value is not None else value
        kind = "image"
    texts = value if isinstance(value, tuple) else (value,)
    flags = ("--text", "--second") if kind == "text" else ("--image",)
    parts += [f"{flag}={shlex.quote(str(text))}" for flag, text in zip(flags, texts, strict=False)]
    parts.append(f"--methods {','.join(names)}")
    given_params = _common(_params(asked, wanted, names))
    parts += [f"--{key.replace('_', '-')}={shlex.quote(str(item))}" for key, item in given_params.items()]
    target = _target(asked, wanted)
    parts += [] if target is None else [f"--target={shlex.quote(str(target))}"]
    parts += ["--words"] if asked.kind in ("text", "pair") and wanted.units == "words" else []
    return " \\\n  ".join([*parts, "--out whence.html"]) + "\n"


def _common(by_method: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of all methods as one command has them: for every method that knows them."""
    found = {key: item for params in by_method.values() for key, item in params.items()}
    for name, params in by_method.items():
        for key, known in methods[name].parameters.items():
            if key in found and params.get(key, known.default) != found[key]:
                raise ParameterError(
                    f"The command has one --{key} for all methods, but {name} has another.\n  Take the Python instead."
                )
    return found
