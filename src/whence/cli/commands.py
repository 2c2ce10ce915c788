"""The commands that explain and those that list: methods, metrics, the zoo, completion."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from whence.cli.arguments import by_method, explain_options, given, listed, model_of, params_of, rows_of
from whence.cli.table import Table, bundled, methods, metrics
from whence.errors import FileError, ParameterError, WhenceError
from whence.util.terminal import say, say_json


def explain_command(options: argparse.Namespace) -> int:
    from whence.api import explain
    from whence.views.language import is_answer

    check_out(options)
    params = params_of(options, options.method) if options.method is not None else {}
    if options.method is None and (flags := given(options)):
        raise ParameterError(
            f"--{next(iter(flags))} is a parameter of a method, but no method is given.\n  Give --method."
        )
    model = model_of(options)
    a = explain(model, rows_of(options, model), method=options.method, **explain_options(options, model), **params)
    if any(path.suffix == ".html" for path in options.out) and is_answer(a, []) and a.several:
        a = a.tried(model)  # the page shows what the model does beside what the method says
    report(a.merge_words() if options.words else a, options)
    return 0


def compare_command(options: argparse.Namespace) -> int:
    from whence.api import compare
    from whence.results.comparison import Comparison

    check_out(options)
    wanted = by_method(options, listed(options.methods, "--methods"))
    model = model_of(options)
    rows, asked = rows_of(options, model), explain_options(options, model)
    c = compare(model, rows, methods=wanted, check=options.check, **asked)
    merged = Comparison({name: a.merge_words() for name, a in c.items()}, c.checks) if options.words else c
    report(merged, options)
    return 0


def check_out(options: argparse.Namespace) -> None:
    """Report before the work what could not be written after it."""
    from whence.views.export import check

    for path in options.out:
        check(path, getattr(options, "forms", None))


def report(result: Any, options: argparse.Namespace) -> None:
    """Write the result to files, or print it as a table or JSON."""
    from whence.views.export import plain, write

    for path in options.out:
        write(result, path)
        say(f"written to {path}", sys.stderr)
    if options.json:
        say_json(json.dumps(plain(result), ensure_ascii=False))
    elif not options.out:
        result.show()


def trace_command(options: argparse.Namespace) -> int:
    from whence.api import trace

    model, params = model_of(options), params_of(options, options.method)
    trace(model, rows_of(options, model), method=options.method, **explain_options(options, model), **params)
    return 0


def demo_command(options: argparse.Namespace) -> int:
    from whence.demo import run

    if options.out.suffix.lower() not in (".html", ".htm"):
        raise WhenceError(
            f"The demo is an HTML page, but {str(options.out)!r} does not end in .html.\n  Give a name that does."
        )
    if options.out.is_dir() or not options.out.parent.is_dir():
        raise WhenceError(
            f"{str(options.out)!r} is not a file that can be written.\n  Give a file in a folder that exists."
        )
    say(run(options.out), sys.stderr)
    say(f"The report is at {options.out.resolve()}")
    return 0


def methods_command(options: argparse.Namespace) -> int:
    return _registered(methods(), options.name)


def metrics_command(options: argparse.Namespace) -> int:
    return _registered(metrics(), options.name, "metric-")


def _registered(registry: Table, only: str | None, lead: str = "") -> int:
    """Print names with their parameters, descriptions and papers; for one entry, its flags too."""
    aliases: dict[str, list[str]] = {}
    for alias, name in registry.aliases.items():
        aliases.setdefault(name, []).append(alias)
    for entry in registry.values() if only is None else [registry[only]]:
        params = ", ".join(f"{p.name}={p.default!r}" for p in entry.parameters.values())
        better = f" ({entry.facts['better']} is better)" if "better" in entry.facts else ""
        lines = [f"{entry.name}({params}){better}", entry.description, entry.paper]
        lines += [f"Also: {', '.join(aliases[entry.name])}"] if entry.name in aliases else []
        say("\n    ".join(filter(None, lines)))
        if only is not None:
            for p in entry.parameters.values():
                kind = "one of " + ", ".join(map(repr, p.choices)) if p.choices else getattr(p.kind, "__name__", "any")
                say(f"    --{lead}{p.name.replace('_', '-')}: {kind}" + (f", {p.bounds}" if p.bounds else ""))
    return 0


def zoo_command(options: argparse.Namespace) -> int:
    from whence.views.tables import card, cards

    if options.name is not None:
        say(card(_card(options.name)))
        return 0
    results = [_card_or_error(name) for name in bundled()]
    readable = [one for one in results if not isinstance(one, WhenceError)]
    if readable:
        say(cards(readable))
    for error in results:
        if isinstance(error, WhenceError):
            say(f"whence: {error}", sys.stderr)
    return 0 if readable else 2


def _card(name: str) -> Any:
    """The card of a model, checked to be printable."""
    from whence import zoo
    from whence.views.tables import card, cards

    try:
        content = zoo.card(name)
        card(content), cards([content])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, StopIteration):
        raise FileError(f"The card of zoo:{name} cannot be read.\n  Install Whence again.") from None
    return content


def _card_or_error(name: str) -> Any:
    try:
        return _card(name)
    except WhenceError as error:
        return error


def completion_command(options: argparse.Namespace) -> int:
    from whence.cli.completion import script
    from whence.cli.parser import build_parser

    names = {"methods": list(methods()), "metrics": list(metrics()), "zoo": bundled()}
    say(script(options.shell, build_parser(), names), end="")
    return 0
