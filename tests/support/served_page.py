"""The page of a `whence serve` that runs (tests.support.server starts it), in a real browser."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

TEXT = "Despite a clumsy start, this is one of the year's most moving dramas."
_PATIENCE = 180_000  # milliseconds


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright; the test is skipped where one of them is absent."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed (Debian's package chromium)")
    driver = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (pip install playwright)")
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def watched(browser: Any, address: str, **how: Any) -> Iterator[Any]:
    """A page without console errors, errors of scripts, and requests to anything but the server: else it fails."""
    context = browser.new_context(base_url=address, viewport={"width": 1400, "height": 900}, **how)
    context.set_default_timeout(_PATIENCE)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda told: wrong.append(told.text) if told.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    own = (address, "data:", "blob:")
    page.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(asked.url))
    page.on("dialog", lambda shown: (wrong.append(shown.message), shown.dismiss()))
    page.wrong = wrong
    try:
        yield page
        assert wrong == []
    finally:
        context.close()


def expected(locator: Any) -> Any:
    """What Playwright waits for: on a busy machine a method may take its time."""
    from playwright.sync_api import expect

    expect.set_options(timeout=_PATIENCE)
    return expect(locator)


def opened(page: Any, fragment: str = "", cards: int = 4) -> Any:
    """The page with a fragment, when all methods have answered."""
    page.goto(f"/#{fragment}")
    expected(page.locator("#say .card .tops b").first).to_be_visible()
    expected(page.locator("#say .card .end summary")).to_have_count(cards)
    return page
