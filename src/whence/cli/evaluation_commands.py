"""The commands that measure: evaluate, recommend, axioms."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from whence.cli.arguments import (
    NAMES,
    Command,
    add_flags,
    add_inputs,
    add_output,
    by_method,
    given,
    listed,
    model_of,
    read,
    rows_of,
    value,
)
from whence.cli.commands import check_out
from whence.cli.data_files import objects_of, table_of, text_of
from whence.cli.table import methods, metrics
from whence.errors import FileError, ParameterError
from whence.util.terminal import say, say_json

_BOARDS = ("html", "csv", "json", "png", "svg", "pdf")
_TABLES = ("html", "csv", "json")


def add_commands(command: Command) -> None:
    """The parsers of evaluate, recommend and axioms."""
    table = command("evaluate", evaluate_command, "measure methods by metrics on a data set")
    table.add_argument("--methods", required=True, metavar="A,B,…", help=f"{NAMES}; see `whence methods`")
    table.add_argument("--metrics", required=True, metavar="A,B,…", help=f"{NAMES}; see `whence metrics`")
    table.add_argument("--resume", metavar="FILE", help="store results in this file, and continue from it")
    table.set_defaults(goes_on="resume")
    choice = command("recommend", recommend_command, "which method to trust on a data set, with the evidence")
    choice.add_argument("--methods", metavar="A,B,…", help=f"{NAMES} (default: all)")
    choice.add_argument("--metrics", metavar="A,B,…", default="comprehensiveness,sufficiency", help="%(default)s")
    choice.add_argument("--rows", type=int, default=64, help="the number of rows, at most (%(default)s)")
    choice.add_argument("--seconds", type=float, default=120.0, help="time budget for explaining (%(default)s)")
    laws = command("axioms", axioms_command, "the table of axioms, measured on a model; without one, on toy functions")
    laws.add_argument("--methods", metavar="A,B,…", help=f"{NAMES} (default: all)")
    laws.add_argument("--only", metavar="A,B,…", help="the axioms to measure")
    for parser in (table, choice):
        parser.add_argument("--executor", choices=("inline", "process", "ray"), default="inline", help="%(default)s")
        parser.add_argument("--workers", type=int, metavar="N", help="processes or actors (default: 2)")
        add_inputs(parser)
        add_flags(parser, methods())
        add_flags(parser, metrics(), "metrics", "metric")
    add_inputs(laws, needed=False)
    add_flags(laws, methods())
    for parser, forms in ((table, _BOARDS), (choice, ("html", "json")), (laws, _TABLES)):
        add_output(parser, forms)
        parser.set_defaults(forms=forms)


def evaluate_command(options: argparse.Namespace) -> int:
    from whence.evaluation.evaluate import evaluate

    check_out(options)
    wanted, columns = by_method(options, listed(options.methods, "--methods")), _columns(options)
    model = model_of(options)
    board = evaluate(
        _named(options, model), _data(options, model), methods=wanted, metrics=columns, resume=options.resume,
        **_elsewhere(options), **_options(options),
    )  # fmt: skip
    _report(board, options)
    return 0


def recommend_command(options: argparse.Namespace) -> int:
    from whence.evaluation.recommend import recommend

    check_out(options)
    wanted = None if options.methods is None else by_method(options, listed(options.methods, "--methods"))
    columns = _columns(options)
    model = model_of(options)
    found = recommend(
        _named(options, model), _data(options, model), methods=wanted, metrics=columns, rows=options.rows,
        seconds=options.seconds, **_elsewhere(options), **_options(options),
    )  # fmt: skip
    _report(found, options)
    return 0


def axioms_command(options: argparse.Namespace) -> int:
    from whence.evaluation.axioms import axioms, textbook_table

    check_out(options)
    names = listed(options.methods, "--methods") if options.methods else None
    if options.model is None:
        if options.text or options.image or options.file or options.only:
            raise ParameterError("--text, --image, --file and --only need a model.\n  Give --model.")
        _report(textbook_table(names, seed=options.seed), options)
        return 0
    wanted = None if names is None else by_method(options, names)
    only = listed(options.only, "--only") if options.only else None
    model = model_of(options)
    target = value(options.target)
    own = {} if options.batch_size is None else {"batch_size": options.batch_size}
    found = axioms(
        model, rows_of(options, model), methods=wanted, only=only, baseline=value(options.baseline), target=target,
        output=options.output, seed=options.seed, **own,
    )  # fmt: skip
    _report(found, options)
    return 0


# ---- what the user gave ----


def _options(options: argparse.Namespace) -> dict[str, Any]:
    if options.at is not None:
        raise ParameterError("--at explains the output of a module, but metrics change the inputs.\n  Leave it out.")
    target = "predicted" if options.target is None else value(options.target)
    found = {"target": target, "seed": options.seed, "batch_size": options.batch_size, "output": options.output}
    return found if options.baseline is None else {**found, "baseline": value(options.baseline)}


def _named(options: argparse.Namespace, model: Any) -> Any:
    """The model, or its name where workers load it themselves."""
    return model if options.executor == "inline" else options.model


def _elsewhere(options: argparse.Namespace) -> dict[str, Any]:
    """Who does the work, and what workers are told of the model."""
    if options.executor == "inline":
        return {"workers": options.workers}
    return {"executor": options.executor, "workers": options.workers, "task": options.task, "long": options.long}


def _columns(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Each metric with those of the given parameters that it takes."""
    flags, found = given(options, "metric"), {}
    for name in listed(options.metrics, "--metrics"):
        known = metrics()[name].parameters
        found[name] = {key: read(known[key], text) for key, text in flags.items() if key in known}
    stray = sorted(key for key in flags if not any(key in taken for taken in found.values()))
    if stray:
        raise ParameterError(f"None of {', '.join(found)} has a parameter {stray[0]!r}.\n  Leave it out.")
    return found


def _data(options: argparse.Namespace, model: Any) -> Any:
    """Rows of --text or --image, or of a file: one text per line, a .csv with named columns, or .jsonl."""
    path = Path(options.file) if options.file not in (None, "-") else None
    if path is None or path.suffix.lower() not in (".jsonl", ".csv"):
        rows = rows_of(options, model)
        return rows if isinstance(rows, list) else [rows]
    text = text_of(path, "Give a file of rows.")
    rows = objects_of(text, path) if path.suffix.lower() == ".jsonl" else table_of(text, path)
    return [_row(row, path.parent) for row in rows]


def _row(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A row with numbers for labels; files of images and masks are relative to the data's folder."""
    fields = {key: item for key, item in row.items() if item is not None and (item != "" or key == "text")}
    for key in ("label", "rationale"):
        if isinstance(fields.get(key), str):
            fields[key] = value(fields[key])
    if isinstance(fields.get("image"), str):
        fields["image"] = str(folder / fields["image"])
    if isinstance(fields.get("mask"), str):
        fields["mask"] = _mask(folder / fields["mask"])
    return fields


def _mask(path: Path) -> Any:
    """The mask in an image file, its values unchanged."""
    import numpy as np

    try:
        from PIL import Image

        with Image.open(path) as opened:
            return np.asarray(opened.convert("L"))
    except ImportError:
        raise ParameterError("Masks need Pillow, which is not installed.\n  pip install pillow") from None
    except OSError:
        raise FileError(f"The mask {str(path)!r} cannot be read as an image.") from None


# ---- output ----


def _report(result: Any, options: argparse.Namespace) -> None:
    for path in options.out:
        result.save(path)
        say(f"written to {path}", sys.stderr)
    if options.json:
        say_json(result.to_json())
    elif not options.out:
        say(result)
