"""Pages in a headless browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest


def chromium(page: Path, tmp_path: Path, *more: str) -> tuple[str, str, list[str]]:
    """The page as Chromium leaves it, its console, and the addresses that it asked for."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed (Debian's package chromium)")
    log = tmp_path / "net.json"
    done = subprocess.run(
        [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}",
         f"--log-net-log={log}", "--enable-logging=stderr", "--virtual-time-budget=3000", *more, page.as_uri()],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    events = [json.loads(line.rstrip(",")) for line in log.read_text().splitlines() if line.startswith('{"params"')]
    asked = [e["params"] for e in events if "url" in e["params"] and "initiator" in e["params"]]
    pages = [e["url"] for e in asked if e["initiator"] != "not an origin"]  # the browser's own requests have no origin
    outside = [url for url in pages if not url.startswith(("file:", "data:", "chrome", "about:"))]
    console = "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)
    return done.stdout, console, outside


def scroll_width(page: str, width: int, tmp_path: Path) -> int:
    """How wide a page is in a frame of this width (windows are at least 500 wide), with everything that folds open."""
    opened = escape(page.replace("<details", "<details open"))
    told = "document.title = 'wide ' + this.contentDocument.documentElement.scrollWidth"
    place = tmp_path / "framed.html"
    place.write_text(
        f'<iframe width="{width}" height="900" style="border:0" onload="{told}" srcdoc="{opened}"></iframe>'
    )
    dom, _, _ = chromium(place, tmp_path, "--dump-dom", "--window-size=1400,1000")
    return int(dom.split("<title>wide ")[1].split("<")[0])
