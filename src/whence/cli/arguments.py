"""What the user gave: flags from the registries, the model, its rows, parameters as their schemas say."""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from whence.cli.data_files import text_of
from whence.cli.table import Known, methods
from whence.errors import InputError, ParameterError
from whence.registry import Parameter

PAIRS = ("text-classification", "question-answering", "image-text-similarity")
TABS = "a text a line; - is standard input; a tab parts a pair where the task is one of " + ", ".join(PAIRS)


def add_inputs(made: argparse.ArgumentParser, needed: bool = True) -> None:
    group = made.add_argument_group("what is explained")
    group.add_argument("--model", required=needed, metavar="DIR", help="a model's folder, a hub name, or zoo:NAME")
    group.add_argument("--task", help="what the model does, where its folder does not say")
    group.add_argument(
        "--long", choices=("error", "truncate", "window"), default="error", help="texts that are too long"
    )
    group.add_argument("--text", action="append", default=[], help="a text (or SMILES); may be repeated")
    group.add_argument("--second", action="append", default=[], metavar="TEXT", help="the second text of each pair")
    group.add_argument("--image", action="append", default=[], metavar="FILE", help="an image; may be repeated")
    group.add_argument("--file", metavar="FILE", help=TABS)
    group.add_argument("--target", help="a label, a number, or a continuation (default: the prediction)")
    group.add_argument("--baseline", help="a number or a name")
    group.add_argument("--at", metavar="MODULE", help="explain by the output of this module")
    group.add_argument("--output", choices=("logit", "probability", "log_probability"), default="logit")
    group.add_argument("--batch-size", type=int, metavar="N")
    group.add_argument("--seed", type=int, default=0)


def add_flags(
    made: argparse.ArgumentParser, registry: Mapping[str, Known], noun: str = "methods", kind: str = "param"
) -> None:
    """The methods' own parameters (or the metrics'), each with its default and those which take it."""
    group = made.add_argument_group(f"parameters of {noun}")
    lead = "" if kind == "param" else f"{kind}-"
    takers: dict[str, list[str]] = {}
    for name, entry in registry.items():
        for p in entry.parameters:
            takers.setdefault(p, []).append(name)
    taken = {action.dest for action in made._actions}
    for p, names in sorted(takers.items()):
        if kind == "param" and p in taken:
            continue
        choices = dict.fromkeys(str(choice) for name in names for choice in registry[name].parameters[p].choices)
        kinds = "|".join(choices) or getattr(registry[names[0]].parameters[p].kind, "__name__", "value")
        told = _defaults({name: registry[name].parameters[p].default for name in names})
        group.add_argument(f"--{lead}{p.replace('_', '-')}", dest=f"{kind}_{p}", metavar=kinds.replace("%", "%%"),
                           help=told.replace("%", "%%"))  # fmt: skip


def _defaults(names: Mapping[str, Any]) -> str:
    """A parameter's default and the methods that take it, by default where they differ."""
    by: dict[str, list[str]] = {}
    for name, default in names.items():
        by.setdefault(str(default), []).append(name)
    if len(by) == 1:
        return f"default {next(iter(by))}; {', '.join(names)}"
    return "default " + ", ".join(f"{default} ({', '.join(of)})" for default, of in by.items())


def model_of(options: argparse.Namespace) -> Any:
    from whence.adapters.load import load

    return load(options.model, options.task, long=options.long)


def rows_of(options: argparse.Namespace, model: Any) -> Any:
    """Texts, pairs or images; standard input where nothing was given and it is no terminal."""
    kinds = [bool(options.text), bool(options.image), options.file is not None]
    if sum(kinds) > 1:
        raise ParameterError("--text, --image and --file exclude each other.\n  Give one of them.")
    if options.second and len(options.second) != len(options.text):
        raise ParameterError(
            f"The numbers of --text ({len(options.text)}) and --second ({len(options.second)}) differ.\n"
            "  Give one --second a --text."
        )
    if options.image and "image" not in model.task:
        raise InputError(f"--image was given, and {options.model!r} does {model.task}.\n  Give --text or --file.")
    if options.image:
        return list(options.image)
    if options.text:
        rows = list(zip(options.text, options.second, strict=True)) if options.second else list(options.text)
        return rows[0] if len(rows) == 1 else rows
    if options.file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise InputError("There is nothing to explain.\n  Give --text, --image or --file, or pipe in a text a line.")
    whole = text_of(None if options.file in (None, "-") else Path(options.file), "Give a text a line.")
    lines = [line.rstrip("\r") for line in whole.split("\n") if line.strip()]
    rows = [tuple(line.split("\t", 1)) if "\t" in line and model.task in PAIRS else line for line in lines]
    if not rows:
        raise InputError("There is no line with text.\n  Give at least one.")
    return rows[0] if len(rows) == 1 else rows


def asked(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    """Explain's own options."""
    written = model.task == "text2text-generation"  # a target is a text there, numbers too
    channels = getattr(options, "channels", None)
    return ({} if channels is None else {"channels": channels}) | {
        "target": options.target if written else value(options.target), "baseline": value(options.baseline),
        "at": options.at, "output": options.output, "batch_size": options.batch_size, "seed": options.seed,
    }  # fmt: skip


def params_of(options: argparse.Namespace, name: str, alone: bool = True) -> dict[str, Any]:
    """The parameters that were given, as the method's schema says; others than its own are a mistake if it is alone."""
    flags = given(options)
    entry = methods()[name]
    known = entry.parameters
    if alone:
        entry.check(
            {key: known[key].default for key in flags if key in known} | dict.fromkeys(flags.keys() - known.keys())
        )
    return {key: read(known[key], text) for key, text in flags.items() if key in known}


def given(options: argparse.Namespace, kind: str = "param") -> dict[str, str]:
    """The flags of methods' parameters (or metrics') that were given, by the parameter's name."""
    return {key.removeprefix(f"{kind}_"): v for key, v in vars(options).items() if key.startswith(f"{kind}_") and v}


def listed(names: str, flag: str) -> list[str]:
    """Names by commas, each once."""
    found = [name.strip() for name in names.split(",") if name.strip()]
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise ParameterError(f"{flag} has {twice!r} twice.\n  Name each once.")
    return found


def by_method(options: argparse.Namespace, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each method's parameters among those which were given; what none of them takes is a mistake."""
    wanted = {name: params_of(options, name, alone=False) for name in names}
    stray = sorted({name for name in given(options) if not any(name in taken for taken in wanted.values())})
    if stray and wanted:
        raise ParameterError(f"None of {', '.join(wanted)} has a parameter {stray[0]!r}.\n  Leave it out.")
    return wanted


def read(parameter: Parameter, text: str) -> Any:
    """A flag's text as the parameter's kind."""
    if parameter.kind is bool:
        named = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in named:
            raise ParameterError(f"--{parameter.name} {text}: give true or false.")
        return named[text.lower()]
    if parameter.kind is str:
        return text
    if parameter.choices:
        return next((choice for choice in parameter.choices if str(choice) == text), text)
    return value(text)


def value(text: str | None) -> Any:
    """A number, a tuple or a list as Python writes it, or the text itself."""
    if text is None:
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return found if isinstance(found, int | float | tuple | list | dict | bool) or found is None else text
