"""What the user gave: flags from the registries, the model, its rows, parameters as their schemas say."""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from whence.cli.data_files import text_of
from whence.cli.table import Known, methods, tasks_of_pairs
from whence.errors import InputError, ParameterError
from whence.registry import Parameter

Command = Callable[[str, Any, str], argparse.ArgumentParser]  # (name, function, description) → the command's parser
NAMES = "comma-separated names"
TEXT_UNITS = ("words", "sentences", "paragraphs", "lines", "messages")  # which every method of texts takes
_WRITTEN = 40  # tokens of an answer that is not given


def add_inputs(parser: argparse.ArgumentParser, needed: bool = True) -> None:
    """The model, its rows, and the options of explain."""
    group = parser.add_argument_group("what is explained")
    _add_model(group, needed)
    group.add_argument("--text", action="append", default=[], help="a text (or SMILES); may be repeated")
    group.add_argument("--second", action="append", default=[], metavar="TEXT", help="the second text of each pair")
    group.add_argument("--image", action="append", default=[], metavar="FILE", help="an image; may be repeated")
    group.add_argument(
        "--file", metavar="FILE",
        help="a file with one text per line, or - for standard input; separate the two texts of a pair with a tab "
        f"({', '.join(tasks_of_pairs())})",
    )  # fmt: skip
    _add_options(group)


def add_data(parser: argparse.ArgumentParser) -> None:
    """The model, a data set, and the options of explain."""
    group = parser.add_argument_group("what is explained")
    _add_model(group, True)
    group.add_argument(
        "--data", required=True, metavar="FILE|DIR|GLOB",
        help=".jsonl, .csv or .parquet files, a data set that Hugging Face's save_to_disk wrote, or a folder of images",
    )  # fmt: skip
    group.add_argument("--columns", metavar="A=B,…", help="where entries have other names, such as text=comment")
    _add_options(group)


def _add_model(group: Any, needed: bool) -> None:
    group.add_argument("--model", required=needed, metavar="DIR", help="a model's folder, a hub name, or zoo:NAME")
    group.add_argument("--task", help="what the model does, where its folder does not say")
    group.add_argument(
        "--long",
        choices=("error", "truncate", "window"),
        default="error",
        help="what to do with texts that are too long",
    )


def _add_options(group: Any) -> None:
    group.add_argument("--chat", metavar="FILE", help="a conversation: a JSON list of messages with role and content")
    group.add_argument("--target", help="a label, a number, or a continuation (default: the prediction)")
    group.add_argument("--baseline", help="a number or a name")
    group.add_argument("--at", metavar="MODULE", help="explain the output of this module instead of the inputs")
    group.add_argument("--output", choices=("logit", "probability", "log_probability"), default="logit")
    group.add_argument("--batch-size", type=int, metavar="N")
    group.add_argument("--memory", metavar="SIZE", help="what a pass may take, such as 4GB: more goes layer by layer")
    group.add_argument("--seed", type=int, default=0)


def add_output(parser: argparse.ArgumentParser, forms: Sequence[str]) -> None:
    """Where the result goes: a table or JSON on standard output, or files."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    written = f"write .{', .'.join(forms[:-1])} or .{forms[-1]}; may be repeated"
    parser.add_argument("--out", type=Path, action="append", default=[], metavar="FILE", help=written)


def add_flags(
    parser: argparse.ArgumentParser, registry: Mapping[str, Known], noun: str = "methods", kind: str = "param"
) -> None:
    """One flag for each parameter of the methods (or metrics), with its default and the methods that take it."""
    group = parser.add_argument_group(f"parameters of {noun}")
    lead = "" if kind == "param" else f"{kind}-"
    takers: dict[str, list[str]] = {}
    for name, entry in registry.items():
        for p in entry.parameters:
            takers.setdefault(p, []).append(name)
    taken = {action.dest for action in parser._actions}
    for p, names in sorted(takers.items()):
        if kind == "param" and p in taken:
            continue
        choices = dict.fromkeys(str(choice) for name in names for choice in registry[name].parameters[p].choices)
        kinds = "|".join(choices) or getattr(registry[names[0]].parameters[p].kind, "__name__", "value")
        defaults = _defaults({name: registry[name].parameters[p].default for name in names})
        group.add_argument(f"--{lead}{p.replace('_', '-')}", dest=f"{kind}_{p}", metavar=kinds.replace("%", "%%"),
                           help=defaults.replace("%", "%%"))  # fmt: skip


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
    """Texts, pairs or images; standard input where nothing was given and it is not a terminal."""
    from whence.adapters.tasks import TASKS

    kinds = [bool(options.text), bool(options.image), options.file is not None, options.chat is not None]
    if sum(kinds) > 1:
        raise ParameterError("--text, --image, --file and --chat cannot be combined.\n  Give one of them.")
    if options.chat is not None:
        return _messages(options, model)
    if options.second and len(options.second) != len(options.text):
        raise ParameterError(
            f"The numbers of --text ({len(options.text)}) and --second ({len(options.second)}) differ.\n"
            "  Give one --second for each --text."
        )
    if options.image and not TASKS[model.task].reads_images:
        raise InputError(f"--image was given, but {options.model!r} does {model.task}.\n  Give --text or --file.")
    if options.image:
        return list(options.image)
    if options.text:
        rows = list(zip(options.text, options.second, strict=True)) if options.second else list(options.text)
        return rows[0] if len(rows) == 1 else rows
    if options.file is None and (sys.stdin is None or sys.stdin.isatty()):
        raise InputError(
            "There is nothing to explain.\n  Give --text, --image or --file, or pipe in one text per line."
        )
    whole = text_of(None if options.file in (None, "-") else Path(options.file), "Give one text per line.")
    lines = [line.rstrip("\r") for line in whole.split("\n") if line.strip()]
    pairs = TASKS[model.task].reads_pairs
    rows = [tuple(line.split("\t", 1)) if "\t" in line and pairs else line for line in lines]
    if not rows:
        raise InputError("No line has text.\n  Give at least one.")
    return rows[0] if len(rows) == 1 else rows


def _messages(options: argparse.Namespace, model: Any) -> Any:
    """A conversation; what the model writes is its answer, where it has none and no target is given."""
    whole = text_of(Path(options.chat), "Give a JSON list of messages.")
    try:
        messages = json.loads(whole)
    except ValueError as error:
        raise InputError(f"{options.chat!r} is not JSON: {error}.\n  Give a list of messages.") from None
    plain = isinstance(messages, list) and all(
        isinstance(m, dict) and {"role", "content"} <= m.keys() for m in messages
    )
    if not messages or not plain:
        raise InputError(f'{options.chat!r} is not a list of {{"role": …, "content": …}}.\n  Give such messages.')
    if options.target is None and messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": model.complete(messages, _WRITTEN)})
    return messages


def explain_options(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    """The options of explain itself."""
    from whence.adapters.tasks import TASKS

    written = TASKS[model.task].text_target
    extra = {name: getattr(options, name, None) for name in ("channels", "memory")}
    return {name: given for name, given in extra.items() if given is not None} | {
        "target": options.target if written else value(options.target), "baseline": value(options.baseline),
        "at": options.at, "output": options.output, "batch_size": options.batch_size, "seed": options.seed,
    }  # fmt: skip


def params_of(options: argparse.Namespace, name: str, alone: bool = True) -> dict[str, Any]:
    """The parameters that were given, as the method's schema says; others are an error if the method is alone."""
    flags = given(options)
    entry = methods()[name]
    known = entry.parameters
    by_text = {"units": flags.pop("units")} if "units" not in known and flags.get("units") in TEXT_UNITS else {}
    if alone:
        entry.check(
            {key: known[key].default for key in flags if key in known} | dict.fromkeys(flags.keys() - known.keys())
        )
    return {key: read(known[key], text) for key, text in flags.items() if key in known} | by_text


def given(options: argparse.Namespace, kind: str = "param") -> dict[str, str]:
    """The flags of parameters of methods (or metrics) that were given, by the parameter's name."""
    return {key.removeprefix(f"{kind}_"): v for key, v in vars(options).items() if key.startswith(f"{kind}_") and v}


def listed(names: str, flag: str) -> list[str]:
    """Comma-separated names, each once."""
    every = [name.strip() for name in names.split(",") if name.strip()]
    twice = next((name for name in every if every.count(name) > 1), None)
    if twice is not None:
        raise ParameterError(f"{flag} has {twice!r} twice.\n  Name each once.")
    return every


def by_method(options: argparse.Namespace, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each method's parameters among those that were given; one that no method takes is an error."""
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
        parsed = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return parsed if isinstance(parsed, int | float | tuple | list | dict | bool) or parsed is None else text
