"""The papers' experiments, run again: `python -m reproductions NAME [--quick]`, one folder each."""
