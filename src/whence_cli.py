"""The program `whence`. It stands outside of the package, whose import takes a second that may be interrupted too."""

from __future__ import annotations

import sys


def main() -> int:
    """Run a command."""
    try:
        from whence.cli import main as run

        return run()
    except KeyboardInterrupt:
        print("whence: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
