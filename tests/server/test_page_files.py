"""The page's files: small modules, each loaded at once, nothing inline and nothing from outside."""

from __future__ import annotations

import re
from pathlib import Path

import whence

STATIC = Path(whence.__file__).parent / "server" / "static"
MODULES = {file.name: file.read_text(encoding="utf-8") for file in sorted(STATIC.glob("*.js"))}
INDEX = (STATIC / "index.html").read_text(encoding="utf-8")


def test_every_module_is_used_and_preloaded() -> None:
    imported = {name for text in MODULES.values() for name in re.findall(r'from "\./(\w+\.js)"', text)}
    assert imported | {"main.js"} == set(MODULES)
    assert set(re.findall(r'modulepreload" href="/static/(\w+\.js)"', INDEX)) == imported


def test_every_import_names_something_that_is_exported_and_used() -> None:
    for name, text in MODULES.items():
        for names, source in re.findall(r'import \{([^}]*)\} from "\./(\w+\.js)"', text):
            for one in filter(None, (part.strip() for part in names.split(","))):
                given, _, own = one.partition(" as ")
                exported = rf"export (?:async )?(?:const|function|class) {re.escape(given)}(?![\w$])"
                assert re.search(exported, MODULES[source]), f"{name} imports {given}, which {source} does not export"
                used = text.count(own or given)
                assert used > 1, f"{name} imports {one} for nothing"


def test_modules_are_short_and_nothing_becomes_markup() -> None:
    for name, text in MODULES.items():
        lines = text.splitlines()
        assert len(lines) <= 400, name
        assert max(map(len, lines)) <= 120, name
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "http:",
        ):
            assert word not in text.replace('"http://www.w3.org/2000/svg"', ""), f"{name} has {word}"
        assert not re.search(r'setAttribute\("style"|style: "', text), name


def test_the_page_has_nothing_inline_and_nothing_from_outside() -> None:
    assert not re.search(r"<style|style=|\son\w+=|<script(?![^>]*src=)", INDEX)
    assert all(
        address.startswith(("/static/", "#", "data:,")) for address in re.findall(r'(?:src|href)="([^"]*)"', INDEX)
    )
    assert not re.search(r"url\(|@import", (STATIC / "page.css").read_text(encoding="utf-8"))
