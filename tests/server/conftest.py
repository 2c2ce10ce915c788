"""What the tests of the page share: one server of the zoo, one browser, and a page for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.served_page import chromium, watched
from tests.support.server import served


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def zoo(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of all bundled models."""
    with served(tmp_path_factory.mktemp("zoo")) as server:
        yield server.address


@pytest.fixture
def page(browser: Any, zoo: str) -> Iterator[Any]:
    """An empty page of that server, which fails the test if something goes wrong in it."""
    with watched(browser, zoo) as opened:
        yield opened
