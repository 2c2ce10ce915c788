"""The parser: every command is a subparser and a function; methods' and metrics' flags come from the registries."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from whence import __version__
from whence.cli import commands, evaluation_commands, reading_commands, run_commands, serve_command
from whence.cli.arguments import NAMES, Command, add_flags, add_inputs, add_output
from whence.cli.table import methods
from whence.errors import ParameterError
from whence.util.terminal import say


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are Whence's own, without the usage."""

    def _print_message(self, message: str, file: Any = None) -> None:
        say(message, file, end="")  # which reports an output that cannot be written

    def error(self, message: str) -> NoReturn:
        raise ParameterError(f"{message}\n  See {self.prog} --help.")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    whole = _Parser(prog="whence", description="Where did that prediction come from?")
    whole.add_argument("--version", action="version", version=f"whence {__version__}")
    subparsers = whole.add_subparsers(required=True, metavar="command")

    def command(name: str, run: Any, description: str) -> argparse.ArgumentParser:
        parser = subparsers.add_parser(name, help=description, description=description)
        parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
        parser.set_defaults(run=run)
        return parser

    demo = command("demo", commands.demo_command, "every method on the bundled models; writes one HTML page")
    demo.add_argument("--out", type=Path, default=Path("whence-demo.html"), help="where to write (%(default)s)")
    _add_listings(command)
    _add_explaining(command)
    evaluation_commands.add_commands(command)
    run_commands.add_commands(command)
    reading_commands.add_commands(command)
    serve_command.add_command(command)
    shells = command("completion", commands.completion_command, "print a completion script for a shell")
    shells.add_argument("shell", choices=("bash", "zsh", "fish"))
    return whole


def _add_listings(command: Command) -> None:
    methods_parser = command("methods", commands.methods_command, "list the methods, or show one with its parameters")
    methods_parser.add_argument("name", nargs="?", help="the method to show")
    metrics_parser = command("metrics", commands.metrics_command, "list the metrics, or show one with its parameters")
    metrics_parser.add_argument("name", nargs="?", help="the metric to show")
    zoo_parser = command("zoo", commands.zoo_command, "list the bundled models, or show the card of one")
    zoo_parser.add_argument("name", nargs="?", help="the model whose card to show")


def _add_explaining(command: Command) -> None:
    """explain, compare and trace."""
    one = command("explain", commands.explain_command, "explain predictions with one method")
    chosen = "see `whence methods` (default: chosen by the model's architecture)"
    one.add_argument("--method", type=_method, choices=methods(), metavar="NAME", help=chosen)
    several = command("compare", commands.compare_command, "explain the same predictions with several methods")
    several.add_argument("--methods", required=True, metavar="A,B,…", help=f"{NAMES}; see `whence methods`")
    several.add_argument("--check", action="store_true", help="ask the model without what each method puts first")
    ops = command("trace", commands.trace_command, "list every op of an explanation, its rule and its relevance")
    ops.add_argument(
        "--method", required=True, type=_method, choices=methods(), metavar="NAME", help="see `whence methods`"
    )
    for parser in (one, several, ops):
        add_inputs(parser)
        add_flags(parser, methods())
    for parser in (one, several):
        parser.add_argument("--words", action="store_true", help="sum the pieces of words")
        reduction = "how a token's embedding dimensions, or a pixel's channels, are reduced to one number"
        parser.add_argument("--channels", choices=("l2", "sum", "sum_abs", "max_abs"), help=reduction)
        add_output(parser, ("html", "png", "svg", "pdf", "json", "csv", "safetensors"))


def _method(name: str) -> str:
    return methods().word(name)  # an alias may stand for parameters too, which explain knows
