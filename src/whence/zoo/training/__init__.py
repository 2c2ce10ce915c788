"""The recipes by which the bundled models were trained: `python -m whence.zoo.training NAME`."""
