"""Captum's names of modules, which `whence.captum.aliases` makes importable."""

from whence.captum.aliases import register

register(__name__)
