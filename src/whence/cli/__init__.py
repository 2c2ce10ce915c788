"""The command line `whence`: `main` runs a command."""

from whence.cli.main import main

__all__ = ["main"]
