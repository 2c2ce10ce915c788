"""How fast the page browses a long run: `python -m benchmarks.page [--rows 100000]`.

A short run is explained and its shards repeated; `whence serve` shows it to Chromium. Printed are the seconds from the
request of the page to its first rows and to the summary; while the table scrolls from top to bottom in 240 steps, the
median and the longest time between two frames, and how long rows were missing after the last step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import whence
from tests.support.long_runs import repeated, sentences
from tests.support.served_page import chromium
from tests.support.server import served

_SCROLL = """async () => {
    const box = document.querySelector(".scroller"), steps = 240, gaps = [];
    let last = performance.now();
    for (let i = 0; i <= steps; i++) {
        box.scrollTop = (box.scrollHeight - box.clientHeight) * i / steps;
        await new Promise(requestAnimationFrame);
        gaps.push(performance.now() - last);
        last = performance.now();
    }
    while (document.querySelector(".tr[data-empty]")) await new Promise(requestAnimationFrame);
    const sorted = gaps.toSorted((a, b) => a - b);
    return [sorted[sorted.length >> 1], sorted.at(-1), performance.now() - last];
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        data = sentences(place / "reviews.jsonl")
        whence.run("zoo:sentiment", str(data), methods=["integrated_gradients", "attnlrp"], out=str(place / "short"),
                   shard_rows=576, progress=False)  # fmt: skip
        run = repeated(place / "short", place / "long", rows)
        with served(place, "--model", "zoo:sentiment", "--run", str(run)) as server, chromium() as browser:
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            start = time.perf_counter()
            page.goto(f"{server.address}#view=run")
            page.wait_for_selector(".tr[data-row]")
            print(f"first rows       {time.perf_counter() - start:6.2f} s")
            median, longest, missing = page.evaluate(_SCROLL)
            print(f"frames           {median:6.1f} ms (median), {longest:.1f} ms (longest)")
            print(f"rows after       {missing:6.1f} ms")
            page.wait_for_selector("#movers", timeout=600_000)
            print(f"summary          {time.perf_counter() - start:6.2f} s")


if __name__ == "__main__":
    main()
