"""A running `whence serve`, and a page of it in a real browser."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

TEXT = "Despite a clumsy start, this is one of the year's most moving dramas."
_PATIENCE = 180_000  # milliseconds


@contextlib.contextmanager
def serving(*arguments: str) -> Iterator[str]:
    """The address of `whence serve` with these arguments, in a process of its own, at a port that is free."""
    process = subprocess.Popen(
        [sys.executable, "-m", "whence", "serve", "--port", "0", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        address = _address(process)
        _answers(address)
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(line)
        if found := re.search(r"http://\S+/", line):
            return found[0]
    raise AssertionError(f"whence serve ended: {''.join(told)}")


def _answers(address: str) -> None:
    """Wait until somebody listens there."""
    parts = urlsplit(address)
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection((parts.hostname, parts.port or 80), 5):
            return
        time.sleep(0.1)
    raise AssertionError(f"nobody listens at {address}")


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
