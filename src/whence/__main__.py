"""`python -m whence`, and the program `whence`, which may be interrupted while it imports."""

from __future__ import annotations

import sys


def main() -> int:
    """Run a command."""
    try:
        from whence.cli import main as run

        return run()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            print("whence: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
