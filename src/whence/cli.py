"""The command line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from whence import __version__
from whence.errors import WhenceError
from whence.methods import methods


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; a user's mistake is one message on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without these letters still gets the rest
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except WhenceError as error:
        print(f"whence: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `whence methods | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        print(f"whence: {error.strerror}: {error.filename}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="whence", description="Where did that prediction come from?")
    parser.add_argument("--version", action="version", version=f"whence {__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    demo = commands.add_parser("demo", help="explain a small digit classifier with every method; writes one HTML page")
    demo.add_argument("--out", type=Path, default=Path("whence-demo.html"), help="where to write (%(default)s)")
    demo.set_defaults(run=_demo)
    listing = commands.add_parser("methods", help="list the methods and their parameters")
    listing.set_defaults(run=_methods)
    animals = commands.add_parser("zoo", help="list the bundled models, or show one's card")
    animals.add_argument("name", nargs="?", help="the model whose card to show")
    animals.set_defaults(run=_zoo)
    return parser


def _demo(options: argparse.Namespace) -> int:
    from whence.demo import run

    if options.out.is_dir() or not options.out.parent.is_dir():
        raise WhenceError(f"{str(options.out)!r} is no place for a page.\n  Give a file in a folder that exists.")
    print("Training a small classifier on handwritten digits …", file=sys.stderr, flush=True)
    print(run(options.out), file=sys.stderr)
    print(f"The report is at {options.out.resolve()}")
    return 0


def _methods(options: argparse.Namespace) -> int:
    for name, entry in methods.items():
        params = ", ".join(f"{p.name}={p.default!r}" for p in entry.parameters.values())
        print(f"{name}({params})\n    {entry.description}" + (f"\n    {entry.paper}" if entry.paper else ""))
    return 0


def _zoo(options: argparse.Namespace) -> int:
    from whence import zoo
    from whence.views.terminal import card, cards

    print(cards([zoo.card(name) for name in zoo.ZOO]) if options.name is None else card(zoo.card(options.name)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
