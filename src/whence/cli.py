"""The command line: every command is a parser and a function; methods' flags come from the registry."""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whence import __version__
from whence.errors import FileError, InputError, ParameterError, WhenceError, WhenceWarning
from whence.methods import methods
from whence.registry import Parameter


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: done; 2: the user's mistake, one message on stderr; 1: ours; 130: interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these letters still gets the rest
    options = parser().parse_args(arguments)
    try:
        with _warnings():
            code: int = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `whence methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("whence: interrupted", file=sys.stderr)
        return 130
    except (WhenceError, OSError) as error:
        _shown(options)
        said = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else str(error)
        print("whence: " + _safe(said), file=sys.stderr)
        return 2
    except Exception as error:
        _shown(options)
        print(
            f"whence: {type(error).__name__}: {error}\n  This should not happen: --debug shows where.", file=sys.stderr
        )
        return 1


@contextmanager
def _warnings() -> Iterator[None]:
    """Whence's own warnings as messages, a line each and each once; others as Python shows them."""
    with warnings.catch_warnings():
        plain = warnings.showwarning
        seen: set[str] = set()

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, WhenceWarning):
                return plain(message, category, *where, **more)
            said = " ".join(str(message).split())
            if said not in seen:
                print("whence: warning: " + _safe(said), file=sys.stderr)
            seen.add(said)

        warnings.showwarning = show
        if not sys.warnoptions:  # python -W has the last word
            warnings.simplefilter("always", WhenceWarning)
        yield


def _safe(said: str) -> str:
    """A message that cannot steer the terminal, whatever name is in it."""
    from whence.views.terminal import clean

    return "\n".join(clean(line) for line in said.split("\n"))


def _shown(options: argparse.Namespace) -> None:
    if getattr(options, "debug", False):
        traceback.print_exc()


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    whole = argparse.ArgumentParser(prog="whence", description="Where did that prediction come from?")
    whole.add_argument("--version", action="version", version=f"whence {__version__}")
    commands = whole.add_subparsers(required=True, metavar="command")

    def command(name: str, run: Any, told: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=told, description=told)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.set_defaults(run=run)
        return made

    demo = command("demo", _demo, "every method on the bundled models; writes one HTML page")
    demo.add_argument("--out", type=Path, default=Path("whence-demo.html"), help="where to write (%(default)s)")
    listing = command("methods", _methods, "list the methods, or show one with its parameters")
    listing.add_argument("name", nargs="?", help="the method to show")
    animals = command("zoo", _zoo, "list the bundled models, or show one's card")
    animals.add_argument("name", nargs="?", help="the model whose card to show")

    one = command("explain", _explain, "explain predictions with one method")
    one.add_argument("--method", required=True, choices=methods, metavar="NAME", help="see `whence methods`")
    several = command("compare", _compare, "explain the same predictions with several methods")
    several.add_argument("--methods", required=True, metavar="A,B,…", help="names, by commas; see `whence methods`")
    ops = command("trace", _trace, "every op of an explanation, the rule it got, the relevance it carried")
    ops.add_argument("--method", required=True, choices=methods, metavar="NAME", help="see `whence methods`")
    for made in (one, several, ops):
        _inputs(made)
        _flags(made)
    for made in (one, several):
        made.add_argument("--words", action="store_true", help="sum the pieces of words")
        told = "how the numbers of a token's embedding, or of a pixel's channels, become one"
        made.add_argument("--channels", choices=("sum", "sum_abs", "max_abs"), help=told)
        made.add_argument("--json", action="store_true", help="print JSON instead of a table")
        told = "write .html, .png, .svg, .pdf, .json, .csv or .safetensors; may be repeated"
        made.add_argument("--out", type=Path, action="append", default=[], metavar="FILE", help=told)
    shells = command("completion", _completion, "print a completion script for a shell")
    shells.add_argument("shell", choices=("bash", "zsh", "fish"))
    return whole


PAIRS = ("text-classification", "question-answering", "image-text-similarity")
TABS = "a text a line; - is standard input; a tab parts a pair where the task is one of " + ", ".join(PAIRS)


def _inputs(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("what is explained")
    group.add_argument("--model", required=True, metavar="DIR", help="a model's folder, a hub name, or zoo:NAME")
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


def _flags(made: argparse.ArgumentParser) -> None:
    """The methods' own parameters, each with its default and the methods that take it."""
    group = made.add_argument_group("parameters of methods")
    takers: dict[str, list[str]] = {}
    for name, entry in methods.items():
        for p in entry.parameters:
            takers.setdefault(p, []).append(name)
    taken = {action.dest for action in made._actions}
    for p, names in sorted(takers.items()):
        if p in taken:
            continue
        choices = dict.fromkeys(str(choice) for name in names for choice in methods[name].parameters[p].choices)
        kinds = "|".join(choices) or getattr(methods[names[0]].parameters[p].kind, "__name__", "value")
        group.add_argument(f"--{p.replace('_', '-')}", dest=f"param_{p}", metavar=kinds.replace("%", "%%"),
                           help=_defaults(p, names).replace("%", "%%"))  # fmt: skip


def _defaults(p: str, names: Sequence[str]) -> str:
    """A parameter's default and the methods that take it, by default where they differ."""
    by: dict[str, list[str]] = {}
    for name in names:
        by.setdefault(str(methods[name].parameters[p].default), []).append(name)
    if len(by) == 1:
        return f"default {next(iter(by))}; {', '.join(names)}"
    return "default " + ", ".join(f"{default} ({', '.join(of)})" for default, of in by.items())


# ---- what the user gave ----


def _model(options: argparse.Namespace) -> Any:
    from whence.adapters.loading import load

    return load(options.model, options.task, long=options.long)


def _rows(options: argparse.Namespace, model: Any) -> Any:
    """Texts, pairs or images; standard input where nothing was given and it is no terminal."""
    given = [bool(options.text), bool(options.image), options.file is not None]
    if sum(given) > 1:
        raise ParameterError("--text, --image and --file exclude each other.\n  Give one of them.")
    if options.second and len(options.second) != len(options.text):
        raise ParameterError(
            f"There are {len(options.text)} texts and {len(options.second)} second ones.\n  Give one --second a --text."
        )
    if options.image and "image" not in model.task:
        raise InputError(f"--image was given, and {options.model!r} does {model.task}.\n  Give --text or --file.")
    if options.image:
        return list(options.image)
    if options.text:
        rows = list(zip(options.text, options.second, strict=True)) if options.second else list(options.text)
        return rows[0] if len(rows) == 1 else rows
    if options.file is None and sys.stdin.isatty():
        raise InputError("There is nothing to explain.\n  Give --text, --image or --file, or pipe in a text a line.")
    try:
        whole = sys.stdin.read() if options.file in (None, "-") else Path(options.file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        name = "Standard input" if options.file in (None, "-") else repr(options.file)
        raise InputError(f"{name} is no text in UTF-8.\n  Give a text a line.") from None
    lines = [line.rstrip("\r") for line in whole.split("\n") if line.strip()]
    rows = [tuple(line.split("\t", 1)) if "\t" in line and model.task in PAIRS else line for line in lines]
    if not rows:
        raise InputError("There is no line with text.\n  Give at least one.")
    return rows[0] if len(rows) == 1 else rows


def _asked(options: argparse.Namespace, model: Any) -> dict[str, Any]:
    """Explain's own options."""
    written = model.task == "text2text-generation"  # a target is a text there, numbers too
    channels = getattr(options, "channels", None)
    return ({} if channels is None else {"channels": channels}) | {
        "target": options.target if written else _value(options.target), "baseline": _value(options.baseline),
        "at": options.at, "output": options.output, "batch_size": options.batch_size, "seed": options.seed,
    }  # fmt: skip


def _params(options: argparse.Namespace, name: str, alone: bool = True) -> dict[str, Any]:
    """The parameters that were given, as the method's schema says; others than its own are a mistake if it is alone."""
    given = _given(options)
    known = methods[name].parameters
    if alone:
        methods[name].check(
            {key: known[key].default for key in given if key in known} | dict.fromkeys(given.keys() - known.keys())
        )
    return {key: _read(known[key], value) for key, value in given.items() if key in known}


def _given(options: argparse.Namespace) -> dict[str, str]:
    return {key.removeprefix("param_"): v for key, v in vars(options).items() if key.startswith("param_") and v}


def _read(parameter: Parameter, value: str) -> Any:
    """A flag's text as the parameter's kind."""
    if parameter.kind is bool:
        named = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if value.lower() not in named:
            raise ParameterError(f"--{parameter.name} {value}: give true or false.")
        return named[value.lower()]
    if parameter.kind is str:
        return value
    if parameter.choices:
        return next((choice for choice in parameter.choices if str(choice) == value), value)
    return _value(value)


def _value(given: str | None) -> Any:
    """A number, a tuple or a list as Python writes it, or the text itself."""
    if given is None:
        return None
    try:
        found = ast.literal_eval(given)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return given
    return found if isinstance(found, int | float | tuple | list | dict | bool) or found is None else given


# ---- commands ----


def _explain(options: argparse.Namespace) -> int:
    from whence.api import explain

    _check_out(options)
    params = _params(options, options.method)
    model = _model(options)
    a = explain(model, _rows(options, model), method=options.method, **_asked(options, model), **params)
    _told(a.merge_words() if options.words else a, options)
    return 0


def _compare(options: argparse.Namespace) -> int:
    from whence.api import compare
    from whence.comparison import Comparison

    _check_out(options)
    names = [name.strip() for name in options.methods.split(",") if name.strip()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ParameterError(f"--methods has {twice!r} twice.\n  Name each method once.")
    wanted = {name: _params(options, methods[name].name, alone=False) for name in names}
    stray = sorted({name for name in _given(options) if not any(name in taken for taken in wanted.values())})
    if stray and wanted:
        raise ParameterError(f"None of {', '.join(wanted)} has a parameter {stray[0]!r}.\n  Leave it out.")
    model = _model(options)
    c = compare(model, _rows(options, model), methods=wanted, **_asked(options, model))
    _told(Comparison({name: a.merge_words() for name, a in c.items()}) if options.words else c, options)
    return 0


def _check_out(options: argparse.Namespace) -> None:
    """Say before the work what could not be written after it."""
    from whence.views.files import check

    for path in options.out:
        check(path)


def _told(found: Any, options: argparse.Namespace) -> None:
    """Files, and on standard output a table or JSON."""
    from whence.views.files import plain, write

    for path in options.out:
        write(found, path)
        print(_safe(f"written to {path}"), file=sys.stderr)
    if options.json:
        print(json.dumps(plain(found), ensure_ascii=False))
    elif not options.out:
        found.show()


def _trace(options: argparse.Namespace) -> int:
    from whence.api import trace

    model, params = _model(options), _params(options, options.method)
    trace(model, _rows(options, model), method=options.method, **_asked(options, model), **params)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from whence.demo import run

    if options.out.is_dir() or not options.out.parent.is_dir():
        raise WhenceError(f"{str(options.out)!r} is no place for a page.\n  Give a file in a folder that exists.")
    print(run(options.out), file=sys.stderr)
    print(f"The report is at {options.out.resolve()}")
    return 0


def _methods(options: argparse.Namespace) -> int:
    shown = methods.items() if options.name is None else [(options.name, methods[options.name])]
    for name, entry in shown:
        params = ", ".join(f"{p.name}={p.default!r}" for p in entry.parameters.values())
        print(f"{name}({params})\n    {entry.description}" + (f"\n    {entry.paper}" if entry.paper else ""))
        if options.name is not None:
            for p in entry.parameters.values():
                kind = "one of " + ", ".join(map(repr, p.choices)) if p.choices else getattr(p.kind, "__name__", "any")
                print(f"    --{p.name.replace('_', '-')}: {kind}" + (f", {p.bounds}" if p.bounds else ""))
    return 0


def _zoo(options: argparse.Namespace) -> int:
    from whence import zoo
    from whence.views.terminal import card, cards

    if options.name is not None:
        print(card(_card(options.name)))
        return 0
    found = [_card_or_error(name) for name in zoo.ZOO]
    told = [one for one in found if not isinstance(one, WhenceError)]
    if told:
        print(cards(told))
    for error in found:
        if isinstance(error, WhenceError):
            print("whence: " + _safe(str(error)), file=sys.stderr)
    return 0 if told else 2


def _card(name: str) -> Any:
    """A model's card, if it can be shown."""
    from whence import zoo
    from whence.views.terminal import card, cards

    try:
        found = zoo.card(name)
        card(found), cards([found])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        raise FileError(f"The card of zoo:{name} cannot be read.\n  Install Whence again.") from None
    return found


def _card_or_error(name: str) -> Any:
    try:
        return _card(name)
    except WhenceError as error:
        return error


def _completion(options: argparse.Namespace) -> int:
    from whence.views.completion import script
    from whence.zoo import ZOO

    print(script(options.shell, parser(), {"methods": list(methods), "zoo": list(ZOO)}), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
