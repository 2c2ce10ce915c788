"""Run the code of pages and put in what it gave: `python docs/pictures.py docs/start.md …`.

- A block fenced as `text` right after a `python` block becomes what that block printed; in both, a line `…` stands for
  lines that are left out, and such a block is left alone.
- A picture `pictures/NAME.png` is the file NAME.png that the page's code wrote, or NAME.html as Chromium shows it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

_BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.S)
_PICTURE = re.compile(r"\]\((\S*pictures/(\S+?)\.png)\)")


def run(page: Path, folder: Path) -> str:
    """The page with what its blocks print, which run in this folder."""
    space: dict[str, object] = {}

    def replaced(match: re.Match[str]) -> str:
        code, shown = match[1], match[2]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, str(page), "exec"), space)
        if shown is None or re.search(r"^…$", shown, re.M):
            return match[0]
        lines = [part for line in printed.getvalue().splitlines() for part in wrapped(line.rstrip())]
        return f"```python\n{code}```\n\n```text\n" + "\n".join(lines).strip("\n") + "\n```"

    before = Path.cwd()
    os.chdir(folder)
    try:
        return _BLOCK.sub(replaced, page.read_text(encoding="utf-8"))
    finally:
        os.chdir(before)


def wrapped(line: str, width: int = 104) -> list[str]:
    """A line in parts that fit on a page, but for the lines of tables."""
    is_table = "  " in line.strip()
    return [line] if is_table or not line else textwrap.wrap(line, width, subsequent_indent="    ")


def pictures(page: Path, folder: Path) -> None:
    """Copy what the page shows from where its code wrote it."""
    for address, name in _PICTURE.findall(page.read_text(encoding="utf-8")):
        picture = folder / f"{name}.png"
        if not picture.exists():
            screenshot(folder / f"{name}.html", picture)
        place = page.parent / address
        place.parent.mkdir(exist_ok=True)
        shutil.copy(picture, place)


def screenshot(page: Path, picture: Path, size: str = "1100,820") -> None:
    """The top of an HTML page, as Chromium shows it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise SystemExit(f"{page.name} is shown by Chromium, which is not installed (Debian's package chromium)")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}",
             f"--user-data-dir={profile}", f"--screenshot={picture}", page.as_uri()],
            check=True, capture_output=True, timeout=300,
        )  # fmt: skip


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        place = Path(argument).resolve()
        with tempfile.TemporaryDirectory() as folder:
            place.write_text(run(place, Path(folder)), encoding="utf-8")
            pictures(place, Path(folder))
