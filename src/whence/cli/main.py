"""Run a command: its exit code, its messages, and standard streams that can be written to."""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from whence.cli.parser import build_parser
from whence.errors import WhenceError, WhenceWarning
from whence.util.terminal import say


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 2 for an error of the user's, 1 for one of ours, 130 or 143 if interrupted."""
    _open_streams()
    given = sys.argv[1:] if arguments is None else arguments
    options = argparse.Namespace()
    try:
        if not given:
            build_parser().print_help()
            return 0
        options = build_parser().parse_args(given)
        with _warnings(), _terminable():
            code: int = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # `whence methods | head`
        _close_output()
        return 0
    except KeyboardInterrupt as error:
        ended = isinstance(error, _Terminated)
        say(f"whence: {'terminated' if ended else 'interrupted'}{_resumed(options)}", sys.stderr)
        return 128 + (signal.SIGTERM if ended else signal.SIGINT)
    except (WhenceError, OSError) as error:
        _traceback(options)
        say(f"whence: {_message(error)}", sys.stderr)
        return 2
    except Exception as error:
        _traceback(options)
        say(f"whence: {type(error).__name__}: {error}\n  This should not happen: --debug shows where.", sys.stderr)
        return 1


class _Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM, as batch systems and containers do."""


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a command as Ctrl-C does: what it began is tidied up, and it says how to go on."""

    def end(number: int, frame: Any) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _resumed(options: argparse.Namespace) -> str:
    """How to go on, for commands that can."""
    place = getattr(options, "goes_on", None)
    place = None if place is None else getattr(options, place)
    return "" if place is None else f"; what is done is in {place}, and the same command goes on from there"


def _open_streams() -> None:
    """Make the standard streams writable, whatever this process was started with."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # or the next file that is opened would be one of them
        pass
    os.close(number)
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (for as long as the process runs)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_PLAINLY)  # a terminal without these letters still gets the rest


class _Closed(io.TextIOBase):
    """A standard output that was closed before the process started."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "it is closed")


_PLAIN = {"█": "#", "│": "|", "─": "-", "–": "-", "−": "-", "…": "...", "±": "+-", "←": "<-", "→": "->", "×": "x"}


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """Plain letters in place of those that a terminal does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(c, "?") for c in error.object[error.start : error.end]), error.end


_PLAINLY = "whence.plainly"
codecs.register_error(_PLAINLY, _plainly)


def _message(error: WhenceError | OSError) -> str:
    if not isinstance(error, OSError):
        return str(error)
    if error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EBADF):
        return str(error)
    _close_output()
    return f"cannot write standard output: {error.strerror}"


def _close_output() -> None:
    """Drop what is still in the buffer: Python would try to write it once more at the end."""
    with suppress(OSError, ValueError):  # it has no number, or is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _warnings() -> Iterator[None]:
    """Show Whence's own warnings as messages of one line, each once, and others as Python does."""
    with warnings.catch_warnings():
        seen: set[str] = set()

        def show(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, WhenceWarning):
                return say(warnings.formatwarning(message, category, *where[:2]), sys.stderr, end="")
            line = " ".join(str(message).split())
            if line not in seen:
                say(f"whence: warning: {line}", sys.stderr)
            seen.add(line)

        warnings.showwarning = show
        if not sys.warnoptions:  # python -W has the last word
            warnings.simplefilter("always", WhenceWarning)
        yield


def _traceback(options: argparse.Namespace) -> None:
    if getattr(options, "debug", False):
        say(traceback.format_exc(), sys.stderr, end="")
