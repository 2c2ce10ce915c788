"""The commands that read data-set runs: report, diff."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from whence.cli.arguments import Command, listed
from whence.errors import ParameterError
from whence.util.terminal import say, say_json

EXCEEDED = 4  # the exit code where two runs differ by more than the threshold


def add_commands(command: Command) -> None:
    """The parsers of report and diff."""
    report = command("report", report_command, "what a run says over all its rows; prints it, or writes a page")
    report.add_argument("run_folder", metavar="RUN", help="the folder of a run, or its URL")
    report.add_argument("--method", metavar="NAME", help="whose values come first (default: the run's first method)")
    report.add_argument("--rows", type=int, default=2000, metavar="N", help="rows on the page (%(default)s)")
    report.add_argument("--pages", action="store_true", help="where there are more, write all rows to pages beside it")
    changes = command(
        "diff", diff_command,
        "what changed between two runs over the same data; the exit code is 4 where it is more than the threshold",
    )  # fmt: skip
    changes.add_argument("a", metavar="A", help="the folder of a run, or its URL")
    changes.add_argument("b", metavar="B", help="the run that it is compared with")
    changes.add_argument(
        "--methods", metavar="M,N=O,…", help="those to compare; N=O: A's N with B's O (default: shared)"
    )
    changes.add_argument(
        "--threshold", metavar="T",
        help="the most that may change, from 0 to 1; or predictions=T,explanations=T,rows=T",
    )  # fmt: skip
    changes.add_argument("--json", action="store_true", help="print JSON")
    for parser in (report, changes):
        parser.add_argument("--unit", choices=("word", "token"), default="word", help="of texts (%(default)s)")
        parser.add_argument("--out", type=Path, metavar="FILE.html", help="write a page")


def report_command(options: argparse.Namespace) -> int:
    _check_out(options.out)
    from whence.runs.opened import open

    run = open(options.run_folder)
    run = run if options.method is None else run[options.method]
    if options.out is None:
        say(str(run.summary(unit=options.unit)))
    else:
        run.report(options.out, unit=options.unit, rows=options.rows, pages=options.pages)
        say(f"wrote {options.out}")
    return 0


def diff_command(options: argparse.Namespace) -> int:
    _check_out(options.out)
    threshold, pairs = _threshold(options.threshold), _pairs(options.methods)
    from whence.runs.diff import diff, limits_of

    limits = None if threshold is None else limits_of(threshold)
    found = diff(options.a, options.b, methods=pairs, unit=options.unit)
    over = [] if limits is None else found.exceeded(limits)
    if options.out is not None:
        found.to_html(options.out)
    if options.json:
        say_json(json.dumps({**found.to_dict(), "exceeded": over}, ensure_ascii=False))
    elif options.out is None:
        say(str(found))
    else:
        say(f"wrote {options.out}")
    if not options.json:
        for line in over:
            say(line)
    return EXCEEDED if over else 0


def _check_out(out: Path | None) -> None:
    """Before the work, not after it."""
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise ParameterError(f"--out {out}: a page is written, so that the name must end in .html.")


def _pairs(text: str | None) -> dict[str, str] | None:
    """A's and B's methods, from "attnlrp,gradient=deeplift"."""
    if text is None:
        return None
    found = {}
    for item in listed(text, "--methods"):
        a, _, b = item.partition("=")
        found[a] = b or a
    return found


def _threshold(text: str | None) -> dict[str, float] | float | None:
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        return {name: float(limit) for name, _, limit in (item.partition("=") for item in listed(text, "--threshold"))}
    except ValueError:
        raise ParameterError(
            f"--threshold {text}: write a number from 0 to 1, or predictions=0.01,explanations=0.1."
        ) from None
