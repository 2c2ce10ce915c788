"""The command line: every command is a parser and a function; methods' and metrics' flags come from the registries."""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from whence import __version__
from whence.cli import commands, evaluation_commands
from whence.cli.arguments import add_flags, add_inputs
from whence.cli.table import methods
from whence.errors import ParameterError, WhenceError, WhenceWarning
from whence.util.terminal import say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. 0: done; 2: the user's mistake, one message on stderr; 1: ours; 130: interrupted."""
    _streams()
    given = sys.argv[1:] if arguments is None else arguments
    options = argparse.Namespace()
    try:
        if not given:
            parser().print_help()
            return 0
        options = parser().parse_args(given)
        with _warnings():
            code: int = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `whence methods | head`
        _close_output()
        return 0
    except KeyboardInterrupt:
        say("whence: interrupted", sys.stderr)
        return 130
    except (WhenceError, OSError) as error:
        _shown(options)
        say(f"whence: {_said(error)}", sys.stderr)
        return 2
    except Exception as error:
        _shown(options)
        say(f"whence: {type(error).__name__}: {error}\n  This should not happen: --debug shows where.", sys.stderr)
        return 1


def _streams() -> None:
    """Standard streams that may be written to, whatever this process was started with."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # or the next file that is opened would be one of them
        pass
    os.close(number)
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (for as long as the process runs)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_LETTERS)  # a terminal without these letters still gets the rest


class _Closed(io.TextIOBase):
    """A standard output that is none."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


_PLAIN = {"█": "#", "│": "|", "─": "-", "–": "-", "−": "-", "…": "...", "±": "+-", "←": "<-", "→": "->", "×": "x"}


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """What stands for letters that a terminal does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


_LETTERS = "whence.plainly"
codecs.register_error(_LETTERS, _plainly)


def _said(error: WhenceError | OSError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EBADF):
        return str(error)
    _close_output()
    return f"cannot write standard output: {error.strerror}"


def _close_output() -> None:
    """What is still in its buffer is dropped, or Python would try it once more at the end."""
    with suppress(OSError, ValueError):  # it has no number, or is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _warnings() -> Iterator[None]:
    """Whence's own warnings as messages, a line each and each once; others as Python shows them."""
    with warnings.catch_warnings():
        seen: set[str] = set()

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, WhenceWarning):
                return say(warnings.formatwarning(message, category, *where[:2]), sys.stderr, end="")
            said = " ".join(str(message).split())
            if said not in seen:
                say(f"whence: warning: {said}", sys.stderr)
            seen.add(said)

        warnings.showwarning = show
        if not sys.warnoptions:  # python -W has the last word
            warnings.simplefilter("always", WhenceWarning)
        yield


def _shown(options: argparse.Namespace) -> None:
    if getattr(options, "debug", False):
        say(traceback.format_exc(), sys.stderr, end="")


class Parser(argparse.ArgumentParser):
    """One whose mistakes are errors like all others, without its usage."""

    def _print_message(self, message: str, file: Any = None) -> None:
        say(message, file, end="")  # which does not let a failure pass

    def error(self, message: str) -> NoReturn:
        raise ParameterError(f"{message}\n  See {self.prog} --help.")


def _method(name: str) -> str:
    return methods().word(name)  # an alias may stand for parameters, too: explain knows them


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    whole = Parser(prog="whence", description="Where did that prediction come from?")
    whole.add_argument("--version", action="version", version=f"whence {__version__}")
    every = whole.add_subparsers(required=True, metavar="command")

    def command(name: str, run: Any, told: str) -> argparse.ArgumentParser:
        made = every.add_parser(name, help=told, description=told)
        made.add_argument("--debug", action="store_true", help="show the traceback of an error")
        made.set_defaults(run=run)
        return made

    demo = command("demo", commands.demo_command, "every method on the bundled models; writes one HTML page")
    demo.add_argument("--out", type=Path, default=Path("whence-demo.html"), help="where to write (%(default)s)")
    listing = command("methods", commands.methods_command, "list the methods, or show one with its parameters")
    listing.add_argument("name", nargs="?", help="the method to show")
    scores = command("metrics", commands.metrics_command, "list the metrics, or show one with its parameters")
    scores.add_argument("name", nargs="?", help="the metric to show")
    animals = command("zoo", commands.zoo_command, "list the bundled models, or show one's card")
    animals.add_argument("name", nargs="?", help="the model whose card to show")

    one = command("explain", commands.explain_command, "explain predictions with one method")
    one.add_argument(
        "--method",
        type=_method,
        choices=methods(),
        metavar="NAME",
        help="see `whence methods`; without it, one is taken by what the model is made of",
    )
    several = command("compare", commands.compare_command, "explain the same predictions with several methods")
    several.add_argument("--methods", required=True, metavar="A,B,…", help="names, by commas; see `whence methods`")
    ops = command(
        "trace", commands.trace_command, "every op of an explanation, the rule it got, the relevance it carried"
    )
    ops.add_argument(
        "--method", required=True, type=_method, choices=methods(), metavar="NAME", help="see `whence methods`"
    )
    for made in (one, several, ops):
        add_inputs(made)
        add_flags(made, methods())
    for made in (one, several):
        made.add_argument("--words", action="store_true", help="sum the pieces of words")
        told = "how the numbers of a token's embedding, or of a pixel's channels, become one"
        made.add_argument("--channels", choices=("l2", "sum", "sum_abs", "max_abs"), help=told)
        made.add_argument("--json", action="store_true", help="print JSON instead of a table")
        told = "write .html, .png, .svg, .pdf, .json, .csv or .safetensors; may be repeated"
        made.add_argument("--out", type=Path, action="append", default=[], metavar="FILE", help=told)
    evaluation_commands.add(command)
    shells = command("completion", commands.completion_command, "print a completion script for a shell")
    shells.add_argument("shell", choices=("bash", "zsh", "fish"))
    return whole
