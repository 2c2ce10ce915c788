"""Results as files: the ending of the name says in which form."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from whence.errors import FileError, ParameterError
from whence.evaluation.scoreboard import Scoreboard
from whence.results import store
from whence.results.attribution import Attribution
from whence.results.comparison import Comparison
from whence.util.files import csv_text, put
from whence.views.maps import has_tokens, maps
from whence.views.plot import pyplot, titled

Result = Attribution | Comparison
Writer = Callable[[Any, Path], None]


def write(found: Any, path: str | PathLike[str]) -> None:
    """Write a result to a file in the form that its name's ending says; an attribution also without an ending."""
    place = Path(path)
    if isinstance(found, Attribution) and not place.suffix:
        return store.save(found, place)
    forms = forms_of(found)
    forms[form_of(place, forms)](found, place)
    return None


def forms_of(found: Any) -> Mapping[str, Writer]:
    """The forms that a result can be written in, and how."""
    if isinstance(found, Attribution):
        return FORMS
    if isinstance(found, Comparison):
        return {kind: writer for kind, writer in FORMS.items() if kind != "safetensors"}
    tables: dict[str, Writer] = {kind: _table for kind, form in _TABLES.items() if hasattr(found, f"to_{form}")}
    return tables | (dict.fromkeys(("png", "svg", "pdf"), _curves) if isinstance(found, Scoreboard) else {})


def form_of(path: Path, known: Iterable[str]) -> str:
    """The form that a name asks for, if it is one of these."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in known:
        raise ParameterError(f"{str(path)!r} ends in none of {', '.join(known)}.\n  Give a name that does.")
    return kind


def check(path: Path, forms: Iterable[str] | None = None) -> str:
    """The form that a name asks for, if it is one of these and such a file can be written there."""
    kind = form_of(path, list(FORMS if forms is None else forms))
    if path.is_dir() or not path.parent.is_dir():
        raise FileError(f"{str(path)!r} is not a place for a file.\n  Give a name in a folder that exists.")
    return kind


def _table(found: Any, path: Path) -> None:
    put(path, getattr(found, f"to_{_TABLES[path.suffix.lower().removeprefix('.')]}")())


_TABLES = {"html": "html", "csv": "csv", "json": "json", "md": "markdown", "tex": "latex"}  # by ending


def _curves(found: Scoreboard, path: Path) -> None:
    from whence.views import curves

    axes = curves.plot(found, None, None, _figure)
    draw((axes[0] if isinstance(axes, list) else axes).figure, path)


def _figure(**how: Any) -> Any:
    """A figure of its own, which no window shows."""
    pyplot()
    from matplotlib.figure import Figure

    return Figure(**how)


def _html(found: Result, path: Path) -> None:
    put(path, found.to_html())


def _json(found: Result, path: Path) -> None:
    put(path, json.dumps(plain(found), ensure_ascii=False, indent=1) + "\n")


def _safetensors(found: Attribution, path: Path) -> None:
    store.save(found, path)


def _csv(found: Result, path: Path) -> None:
    lines = [
        [name, part.row, part.target, part.score, part.input, unit, value]
        for name, a in _named(found).items()
        for part in maps(a, len(a))
        for unit, value in part.every()
    ]
    put(path, csv_text(["method", "row", "target", "score", "input", "unit", "value"], lines))


def _picture(found: Result, path: Path) -> None:
    draw(picture_of(found), path)


def picture_of(found: Result) -> Any:
    """The first rows as a figure of matplotlib's, a method below the other."""
    named = _named(found)
    rows = min(12, len(next(iter(named.values()))))
    tall = 1.3 if all(_is_text(a) for a in named.values()) else 3.2
    figure = _figure(figsize=(8, tall * rows * len(named)), layout="constrained")
    figure.set_dpi(150)
    axes = figure.subplots(rows * len(named), 1, squeeze=False)[:, 0]
    for i, axis in enumerate(axes):
        name, a = list(named.items())[i % len(named)]
        a.plot(axis, row=i // len(named))
        titled(axis, ": ".join(filter(None, [name, axis.get_title("left")])))
    return figure


def draw(figure: Any, path: Path) -> None:
    """Write a figure: matplotlib's own writers stumble over a full disk."""
    whole = io.BytesIO()
    figure.savefig(whole, format=path.suffix.lower().removeprefix("."))
    put(path, whole.getvalue())


def _is_text(a: Attribution) -> bool:
    return a.one_input and has_tokens(a) and a.values.dim() == 2


FORMS: dict[str, Writer] = {
    "html": _html, "png": _picture, "svg": _picture, "pdf": _picture, "json": _json, "csv": _csv,
    "safetensors": _safetensors,
}  # fmt: skip


def plain(found: Result) -> Any:
    """As JSON takes it."""
    if isinstance(found, Comparison):
        checks = {"checks": [_clean(asdict(check)) for check in found.checks]} if found.checks is not None else {}
        return {"methods": {name: plain(a) for name, a in found.items()}, **checks}
    rows: list[dict[str, Any]] = [{} for _ in range(len(found))]
    for part in maps(found, len(found)):
        row = rows[part.row]
        row.setdefault("text", None if found.text is None else found.text[part.row])
        told = {"target": part.target, "score": part.score, "probability": part.probability}
        if part.input:
            told["input"] = part.input
        told |= {"units": [unit for unit, _ in part.every()], "values": [_number(v) for _, v in part.every()]}
        row.setdefault("maps", []).append(told)
    for number, row in enumerate(rows):
        row["gap"] = None if found.gap is None else found.gap[number].tolist()
        row["baseline"] = None if found.baseline_value is None else found.baseline_value[number].tolist()
    return {
        "method": found.method, "model": _clean(found.receipt.get("model")), "parameters": _clean(found.params),
        "rows": rows, "receipt": _clean(found.receipt),
    }  # fmt: skip


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _clean(value: Any) -> Any:
    """Tensors as lists, and what JSON has no word for as text."""
    if isinstance(value, Tensor):
        return _clean(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if isinstance(value, float):
        return _number(value)
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _named(found: Result) -> Mapping[str, Attribution]:
    return found if isinstance(found, Comparison) else {found.method: found}
