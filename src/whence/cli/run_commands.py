"""The commands of data-set runs: run."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from whence.cli.arguments import NAMES, Command, add_data, add_flags, by_method, listed, value
from whence.cli.table import methods, metrics
from whence.errors import ParameterError
from whence.util.terminal import say, say_json

if TYPE_CHECKING:
    from whence.runs.opened import Run

INCOMPLETE = 3  # the exit code where shards were set aside


def add_commands(command: Command) -> None:
    """The parser of run."""
    run = command("run", run_command, "explain every row of a data set, in parts that can be interrupted and resumed")
    run.add_argument("--methods", required=True, metavar="A,B,…", help=f"{NAMES}; see `whence methods`")
    run.add_argument("--metrics", metavar="A,B,…", help=f"{NAMES}; see `whence metrics` (default: none)")
    run.add_argument("--out", required=True, metavar="FOLDER", help="where the answers go, a folder or a URL")
    run.add_argument("--executor", choices=("inline", "process", "ray"), default="inline", help="%(default)s")
    run.add_argument("--workers", type=int, metavar="N", help="processes or actors (default: 2)")
    run.add_argument("--shard-rows", type=int, metavar="N", help="rows of one file of answers (default: 256)")
    run.add_argument("--address", help='of a Ray cluster, or "auto"')
    run.add_argument("--gpus-per-worker", type=float, default=0, metavar="G", help="(default: %(default)s)")
    run.add_argument("--dtype", choices=("float32", "float16"), default="float32", help="of the values (%(default)s)")
    run.add_argument("--retry-errors", action="store_true", help="try rows again that had an error")
    run.add_argument("--json", action="store_true", help="print JSON instead of a sentence")
    run.set_defaults(goes_on="out")
    add_data(run)
    add_flags(run, methods())


def run_command(options: argparse.Namespace) -> int:
    from whence.runs.run import run

    wanted = by_method(options, listed(options.methods, "--methods"))
    measures = None if options.metrics is None else listed(options.metrics, "--metrics")
    for name in measures or ():
        metrics()[name]
    given = {
        "target": value(options.target), "baseline": value(options.baseline), "at": options.at,
        "output": options.output, "seed": options.seed,
    }  # fmt: skip
    found = run(
        options.model, options.data, methods=wanted, out=options.out, metrics=measures, executor=options.executor,
        workers=options.workers, shard_rows=options.shard_rows, address=options.address,
        gpus_per_worker=options.gpus_per_worker, columns=_columns(options.columns), task=options.task,
        long=options.long, batch_size=options.batch_size, dtype=options.dtype, retry_errors=options.retry_errors,
        **{name: item for name, item in given.items() if item is not None},
    )  # fmt: skip
    return told(found, options.json)


def told(found: Run, as_json: bool) -> int:
    """Say what became of a run; its exit code."""
    from whence.runs.run import ASIDE

    errors = list(found.errors())
    failed = len({error["row"] for error in errors if error["kind"] != ASIDE})  # those set aside are in missing shards
    numbers = {
        "out": found.storage.address, "rows": found.manifest["rows"], "explained": len(found), "failed": failed,
        "shards": found.manifest["shards"], "missing": [shard.shard for shard in found.missing],
    }  # fmt: skip
    if as_json:
        say_json(json.dumps(numbers, ensure_ascii=False))
    else:
        say(_sentence(numbers))
    if errors:
        say(f"whence: the first error, in {_place(errors[0])}: {errors[0]['error']}", sys.stderr)
    nothing = numbers["rows"] and not numbers["explained"]
    return INCOMPLETE if nothing or not found.complete else 0


def _place(error: dict[str, Any]) -> str:
    return f"row {error['row']}" if "last" not in error else f"rows {error['row']} to {error['last']}"


def _sentence(told: dict[str, Any]) -> str:
    left = f", {len(told['missing'])} of {told['shards']} shards missing" if told["missing"] else ""
    return f"{told['explained']} of {told['rows']} rows explained, {told['failed']} with errors{left}: {told['out']}"


def _columns(text: str | None) -> dict[str, str]:
    """Names of entries, from "text=comment,label=y"."""
    found = {}
    for pair in listed(text or "", "--columns"):
        name, equals, column = pair.partition("=")
        if not equals or not name or not column:
            raise ParameterError(f"--columns {pair}: write the entry's usual name, =, and its name in the data.")
        found[name] = column
    return found
