"""One server of small models for all tests that change nothing about it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import Server, served

SMALL = ("zoo:questions", "zoo:sentiment", "zoo:fashion-cnn", "zoo:fashion-vit", "zoo:language", "zoo:translation")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server of small models, for tests that change nothing about it."""
    pytest.importorskip("transformers")
    with served(tmp_path_factory.mktemp("server"), *(part for name in SMALL for part in ("--model", name))) as found:
        yield found
