"""The command that serves the page: serve."""

from __future__ import annotations

import argparse

from whence.cli.arguments import Command


def add_command(command: Command) -> None:
    """The parser of serve."""
    serve = command("serve", serve_command, "explain, question and browse in a web page on this machine")
    serve.add_argument(
        "--model", action="append", default=[], metavar="DIR",
        help="a model's folder, a hub name, or zoo:NAME; may be repeated (default: all bundled models)",
    )  # fmt: skip
    serve.add_argument("--run", dest="run_folder", metavar="FOLDER", help="a data-set run to browse")
    serve.add_argument(
        "--host", default="127.0.0.1", help="the address to listen at (%(default)s); others need a token"
    )
    serve.add_argument("--port", type=int, default=8000, help="%(default)s; 0: any that is free")
    serve.add_argument("--open", action="store_true", help="open the page in the browser")
    serve.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME",
        help="a name under which a proxy serves the page; asks for a token; may be repeated",
    )  # fmt: skip


def serve_command(options: argparse.Namespace) -> int:
    from whence.server.serve import serve

    return serve(
        options.model, options.run_folder, host=options.host, port=options.port, opened=options.open,
        allowed=options.allow_host,
    )  # fmt: skip
