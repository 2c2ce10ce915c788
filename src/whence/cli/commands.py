"""The commands that explain, list and show."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from whence.cli.arguments import asked, by_method, given, listed, model_of, params_of, rows_of
from whence.cli.table import Table, bundled, methods, metrics
from whence.errors import FileError, ParameterError, WhenceError
from whence.util.terminal import say, say_json


def explain_command(options: argparse.Namespace) -> int:
    from whence.api import explain

    check_out(options)
    params = params_of(options, options.method) if options.method is not None else {}
    if options.method is None and (flags := given(options)):
        raise ParameterError(f"--{next(iter(flags))} is for a method, and none is named.\n  Give --method.")
    model = model_of(options)
    a = explain(model, rows_of(options, model), method=options.method, **asked(options, model), **params)
    tell(a.merge_words() if options.words else a, options)
    return 0


def compare_command(options: argparse.Namespace) -> int:
    from whence.api import compare
    from whence.results.comparison import Comparison

    check_out(options)
    wanted = by_method(options, listed(options.methods, "--methods"))
    model = model_of(options)
    c = compare(model, rows_of(options, model), methods=wanted, **asked(options, model))
    tell(Comparison({name: a.merge_words() for name, a in c.items()}) if options.words else c, options)
    return 0


def check_out(options: argparse.Namespace) -> None:
    """Say before the work what could not be written after it."""
    from whence.views.export import check

    for path in options.out:
        check(path, getattr(options, "forms", None))


def tell(found: Any, options: argparse.Namespace) -> None:
    """Files, and on standard output a table or JSON."""
    from whence.views.export import plain, write

    for path in options.out:
        write(found, path)
        say(f"written to {path}", sys.stderr)
    if options.json:
        say_json(json.dumps(plain(found), ensure_ascii=False))
    elif not options.out:
        found.show()


def trace_command(options: argparse.Namespace) -> int:
    from whence.api import trace

    model, params = model_of(options), params_of(options, options.method)
    trace(model, rows_of(options, model), method=options.method, **asked(options, model), **params)
    return 0


def demo_command(options: argparse.Namespace) -> int:
    from whence.demo import run

    if options.out.suffix.lower() not in (".html", ".htm"):
        raise WhenceError(f"The demo is an HTML page, and {str(options.out)!r} is no name of one.\n  End it in .html.")
    if options.out.is_dir() or not options.out.parent.is_dir():
        raise WhenceError(f"{str(options.out)!r} is no place for a page.\n  Give a file in a folder that exists.")
    say(run(options.out), sys.stderr)
    say(f"The report is at {options.out.resolve()}")
    return 0


def methods_command(options: argparse.Namespace) -> int:
    return _registered(methods(), options.name)


def metrics_command(options: argparse.Namespace) -> int:
    return _registered(metrics(), options.name, "metric-")


def _registered(registry: Table, only: str | None, lead: str = "") -> int:
    """Names with parameters, what each is, and the paper; of one, its flags too."""
    others: dict[str, list[str]] = {}
    for alias, name in registry.aliases.items():
        others.setdefault(name, []).append(alias)
    for entry in registry.values() if only is None else [registry[only]]:
        params = ", ".join(f"{p.name}={p.default!r}" for p in entry.parameters.values())
        better = f" ({entry.facts['better']} is better)" if "better" in entry.facts else ""
        lines = [f"{entry.name}({params}){better}", entry.description, entry.paper]
        lines += [f"Also: {', '.join(others[entry.name])}"] if entry.name in others else []
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
    found = [_card_or_error(name) for name in bundled()]
    told = [one for one in found if not isinstance(one, WhenceError)]
    if told:
        say(cards(told))
    for error in found:
        if isinstance(error, WhenceError):
            say(f"whence: {error}", sys.stderr)
    return 0 if told else 2


def _card(name: str) -> Any:
    """A model's card, if it can be shown."""
    from whence import zoo
    from whence.views.tables import card, cards

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


def completion_command(options: argparse.Namespace) -> int:
    from whence.cli import parser
    from whence.cli.completion import script

    names = {"methods": list(methods()), "metrics": list(metrics()), "zoo": bundled()}
    say(script(options.shell, parser(), names), end="")
    return 0
