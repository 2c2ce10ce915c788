"""The site: everything has a page with something to say, links lead somewhere, search works, nothing is loaded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import whence
from tests.support.browser import chromium, scroll_width
from whence.evaluation.axioms import properties

ROOT = Path(__file__).resolve().parents[1]
REGISTRIES = {"methods": whence.methods, "metrics": whence.metrics, "axioms": properties}
FIELDS = {
    "methods": {"idea", "formula", "use", "avoid", "fails"},
    "metrics": {"idea", "formula", "use", "avoid", "fails"},
    "axioms": {"idea", "formula", "why"},
}


@cache
def ideas(kind: str) -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "docs" / "ideas" / f"{kind}.toml").read_text(encoding="utf-8"))


# ---- what pages are made of ----


@pytest.mark.parametrize("kind", REGISTRIES)
def test_everything_has_an_idea_a_formula_and_its_limits(kind: str) -> None:
    assert set(ideas(kind)) == set(REGISTRIES[kind]), f"write docs/ideas/{kind}.toml"
    for name, own in ideas(kind).items():
        assert set(own) == FIELDS[kind], name
        assert all(own.values()), name
        told = str(own["idea"])
        assert told.endswith((".", "?")), name
        assert 1 <= sum(told.count(end) for end in (". ", "? ", "! ")) <= 2, f"{name}: two or three sentences"


@pytest.mark.parametrize("kind", ["methods", "metrics"])
def test_every_parameter_is_explained(kind: str) -> None:
    said, used = ideas("parameters")[kind], set()
    for name, entry in REGISTRIES[kind].items():
        for parameter in entry.parameters:
            key = f"{name}.{parameter}" if f"{name}.{parameter}" in said else parameter
            assert said.get(key), f"{name}: write {parameter} into docs/ideas/parameters.toml"
            used.add(key)
    assert set(said) == used


def test_every_method_was_measured() -> None:
    measured = json.loads((ROOT / "docs" / "ideas" / "measured.json").read_text(encoding="utf-8"))["methods"]
    missing = set(whence.methods) - set(measured)
    assert not missing, f"run `python -m benchmarks.pages {' '.join(sorted(missing))}`"
    for name, own in measured.items():
        assert own["cost"], name
        assert all(forward + backward >= 1 for forward, backward in own["cost"].values()), name


@pytest.mark.parametrize("kind", REGISTRIES)
def test_formulas_are_mathml(kind: str) -> None:
    convert = pytest.importorskip("docutils.utils.math.latex2mathml").tex2mathml
    for own in ideas(kind).values():
        assert convert(str(own["formula"]), as_block=True).startswith("<math")


def test_the_reference_shows_every_argument_of_what_is_called() -> None:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        from builder.api import pages
    finally:
        sys.path.remove(str(ROOT / "docs"))
    written = dict(pages())
    assert all(f"autofunction:: whence.{kind}(name: str, *, paper" in written["api/extending.md"]
               for kind in ("method", "metric"))  # fmt: skip
    block = written["api/captum.md"].split("whence.captum.IntegratedGradients\n")[1].split("```")[0]
    assert ":members: attribute\n   :undoc-members:" in block


def test_every_page_is_in_the_menu() -> None:
    docs = ROOT / "docs"
    menus = re.findall(r"```{toctree}\n(.*?)```", (docs / "index.md").read_text(encoding="utf-8"), re.S)
    named = [re.sub(r".*<(.*)>", r"\1", line) for menu in menus for line in menu.splitlines() if line]
    written = {page.relative_to(docs).with_suffix("").as_posix() for page in docs.rglob("*.md")} - {"index"}
    assert written <= set(named), "name it in docs/index.md"
    assert all(named.count(page) == 1 for page in written), "name it once"


# ---- the site itself ----


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    pytest.importorskip("furo", reason="the documentation's tools are not installed (make docs)")
    folder = tmp_path_factory.mktemp("site")
    source, out = folder / "source", folder / "site"
    places = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for command in (
        [str(ROOT / "docs" / "builder" / "stage.py"), str(source)],
        ["-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-c", str(ROOT / "docs"), str(source), str(out)],
    ):
        done = subprocess.run([sys.executable, *command], cwd=ROOT, env=places, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return out


class _Page(HTMLParser):
    """The anchors of a page, where it links to, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := given.get(key))}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif tag != "a":
            self.loads += [value for key in ("src", "href", "data", "srcset") if (value := given.get(key))]


@cache
def parsed(page: Path) -> _Page:
    return _Page(page.read_text(encoding="utf-8"))


def _pages(site: Path) -> Iterator[tuple[Path, _Page]]:
    for page in sorted(site.rglob("*.html")):
        yield page, parsed(page)


@pytest.mark.slow
def test_links_inside_the_site_lead_somewhere(site: Path) -> None:
    broken, count = [], 0
    for page, found in _pages(site):
        for link in found.links + found.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            there = target.is_file()
            if there and parts.fragment and target.suffix == ".html":
                there = unquote(parts.fragment) in parsed(target).anchors
            if not there:
                broken.append((page.name, link))
    assert not broken
    assert count > 1000


@pytest.mark.slow
def test_pages_load_nothing_from_outside(site: Path) -> None:
    for page, found in _pages(site):
        outside = [load for load in found.loads if urlsplit(load).scheme not in ("", "data") or urlsplit(load).netloc]
        assert not outside, page
        assert "mathjax" not in page.read_text(encoding="utf-8").lower()
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert "@import" not in text, style
        assert "url(http" not in text, style


@pytest.mark.slow
def test_everything_has_a_page_and_short_names_lead_to_it(site: Path) -> None:
    for kind, registry in REGISTRIES.items():
        for name in registry:
            text = (site / kind / f"{name}.html").read_text(encoding="utf-8")
            assert "<math" in text, name
    for name in whence.methods:  # a picture of what it does
        assert '<figure class="picture">' in (site / "methods" / f"{name}.html").read_text(encoding="utf-8"), name
    described = {anchor for page in (site / "api").glob("*.html") for anchor in parsed(page).anchors}
    assert {f"whence.{name}" for name in whence.__all__} <= described
    links = set(parsed(site / "index.html").links)
    assert {"methods/deeplift.html", "metrics/comprehensiveness.html", "axioms/symmetry.html"} <= links
    assert "api/functions.html#whence.evaluate" in links
    functions = (site / "api" / "functions.html").read_text(encoding="utf-8")
    assert "baseline</span>" in functions.split('id="whence.explain"')[1].split("</dt>")[0]  # its own arguments


@pytest.mark.slow
def test_search_works_offline(site: Path, tmp_path: Path) -> None:
    page = tmp_path / "ask.html"
    address = (site / "search.html").as_uri() + "?q=summation"
    page.write_text(f'<script>location.replace("{address}")</script>')
    dom, console, outside = chromium(page, tmp_path, "--dump-dom", "--virtual-time-budget=20000")
    assert outside == []
    assert console == ""
    assert "found" in dom.split('class="search-summary"')[1][:100]
    assert "axioms/completeness.html" in dom


@pytest.mark.slow
@pytest.mark.parametrize("page", ["index", "methods/lrp", "metrics/deletion", "axioms/completeness", "api/results"])
def test_pages_fit_narrow_windows_and_ask_for_nothing(site: Path, page: str, tmp_path: Path) -> None:
    place = site / f"{page}.html"
    _, console, outside = chromium(place, tmp_path, "--dump-dom")
    assert (outside, console) == ([], "")
    base = f'<base href="{place.as_uri()}">'
    framed = place.read_text(encoding="utf-8").replace("<head>", f"<head>{base}", 1)
    for width in (400, 1100):  # a phone; a window in which Furo has no contents at the side
        assert scroll_width(framed, width, tmp_path) <= width
