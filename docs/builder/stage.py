"""Puts the site's pages together in one folder: `python docs/builder/stage.py build/docs-source`.

Pages that people write stay where they are and are readable there; what they link to decides where a copy of them has
to point. Pages of methods, metrics and axioms and the API reference are written here, from the registries, each time:
committed copies would be some eighty files that every change of a signature makes untrue.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.M | re.S)


def sources() -> dict[Path, str]:
    """The pages that are in the repository, and what each is called on the site."""
    pages = {page: str(page.relative_to(ROOT / "docs")) for page in sorted((ROOT / "docs").rglob("*.md"))}
    pages |= {ROOT / "CONTRIBUTING.md": "contributing.md", ROOT / "CHANGELOG.md": "changelog.md"}
    for folder, name in (("reproductions", "papers"), ("examples", "examples")):
        for page in sorted((ROOT / folder).rglob("README.md")):
            inner = page.parent.relative_to(ROOT / folder)
            pages[page] = f"{name}/{inner}.md" if inner.parts else f"{name}/index.md"
    return pages


def rewritten(page: Path, names: dict[Path, str], copied: set[Path]) -> str:
    """A page whose links lead to where their targets are on the site; files that it links to are noted."""
    here = Path(names[page]).parent

    def lead(match: re.Match[str]) -> str:
        address, hash_, anchor = match[2].partition("#")
        if "://" in address or not address:
            return match[0]
        target = (page.parent / address).resolve()
        if target == ROOT / "README.md":
            place = "index.md"
        elif target in names:
            place = names[target]
        elif target.is_file():
            copied.add(target)
            place = f"files/{target.relative_to(ROOT)}"
        else:
            raise FileNotFoundError(f"{page.relative_to(ROOT)} links to {match[2]}, which is not there")
        return f"{match[1]}{os.path.relpath(place, here)}{hash_}{anchor}{match[3]}"

    parts = _FENCE.split(page.read_text(encoding="utf-8"))
    return "".join(part if part.startswith("`") else _LINK.sub(lead, part) for part in parts)


def everything() -> Iterator[tuple[str, str | Path]]:
    """Each file of the site's source: its name, and its text or where it is copied from."""
    from builder import api, axioms, methods, metrics

    names, copied = sources(), set[Path]()
    for page, name in names.items():
        yield name, rewritten(page, names, copied) + _inside(name, names)
    for file in sorted(copied):
        yield f"files/{file.relative_to(ROOT)}", file
    for section in (methods, metrics, axioms, api):
        yield from section.pages()


def _inside(name: str, names: dict[Path, str]) -> str:
    """The pages of a folder that Sphinx lists under the folder's first page."""
    from builder.api import toctree

    folder = Path(name).parent
    if name not in ("papers/index.md", "examples/index.md"):
        return ""
    inside = [Path(other).stem for other in names.values() if Path(other).parent == folder and other != name]
    return "\n" + "\n".join(toctree(inside))


def stage(out: Path) -> int:
    """Write what changed and delete what is gone, so that Sphinx reads only that again."""
    kept = set()
    for name, what in everything():
        place = out / name
        kept.add(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        content = what.read_bytes() if isinstance(what, Path) else what.encode()
        if not place.exists() or place.read_bytes() != content:
            place.write_bytes(content)
    for place in [file for file in out.rglob("*") if file.is_file() and file not in kept]:
        place.unlink()
    return len(kept)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "docs"))
    if "--clean" in sys.argv:
        shutil.rmtree(sys.argv[1], ignore_errors=True)
    print(f"{stage(Path(sys.argv[1]))} files in {sys.argv[1]}")
