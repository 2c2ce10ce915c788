"""What the command line knows of methods, metrics and bundled models without importing them, and so without torch.

`make table` writes table.json anew from the registries; a test compares the two.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from whence.errors import MethodError, did_you_mean, nearest
from whence.registry import Bounds, Entry, Parameter, sound

FILE = Path(__file__).with_name("table.json")
_KINDS = {kind.__name__: kind for kind in (int, float, bool, str)}

Known = Entry[Callable[..., Any]]


@dataclass(frozen=True)
class Table(Mapping[str, Known]):
    """Entries by name, as in the registry that they come from, but for their functions."""

    noun: str
    entries: Mapping[str, Known]
    aliases: Mapping[str, str]  # other usual names

    def __getitem__(self, name: str) -> Known:
        word = self.word(name)
        return self.entries[self.aliases.get(word, word)]

    def word(self, name: str) -> str:
        """A name or an alias as it is written here: case, hyphens, spaces and underscores do not matter."""
        known = {sound(word): word for word in (*self.aliases, *self.entries)}
        if sound(name) not in known:
            advice = nearest(name.lower(), [*self.entries, *self.aliases]) or did_you_mean(name, self.entries)
            raise MethodError(f"There is no {self.noun} {name!r}. {advice}")
        return known[sound(name)]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and sound(name) in {sound(word) for word in (*self.aliases, *self.entries)}

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def methods() -> Table:
    """What `whence.methods` has."""
    return _table("method", "methods")


def metrics() -> Table:
    """What `whence.metrics` has."""
    return _table("metric", "metrics")


def bundled() -> list[str]:
    """The names of the zoo."""
    return list(_file()["zoo"])


def _table(noun: str, name: str) -> Table:
    told = _file()[name]
    return Table(noun, {one["name"]: _entry(one) for one in told["entries"]}, told["aliases"])


# ---- one entry as JSON, and back ----


def _entry(told: Mapping[str, Any]) -> Known:
    parameters = {one["name"]: _parameter(one) for one in told["parameters"]}
    facts = {"better": told["better"]} if told["better"] else {}
    return Entry(told["name"], _absent, told["description"], told["paper"], parameters, facts)


def _absent(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the table knows functions by their names only")


def _parameter(told: Mapping[str, Any]) -> Parameter:
    kind: Any = _KINDS.get(told["kind"], Any)
    if told["choices"] is not None:
        kind = Literal[tuple(map(ast.literal_eval, told["choices"]))]
    bounds = None if told["bounds"] is None else Bounds(*told["bounds"])
    return Parameter(told["name"], ast.literal_eval(told["default"]), kind, bounds, told["optional"])


def _told(entry: Known) -> dict[str, Any]:
    return {
        "name": entry.name, "description": entry.description, "paper": entry.paper,
        "better": entry.facts.get("better", ""), "parameters": [_said(p) for p in entry.parameters.values()],
    }  # fmt: skip


def _said(p: Parameter) -> dict[str, Any]:
    bounds = None if p.bounds is None else [p.bounds.low, p.bounds.high, p.bounds.open_low]
    return {
        "name": p.name, "default": repr(p.default), "kind": p.kind.__name__ if p.kind in _KINDS.values() else "any",
        "choices": [repr(choice) for choice in p.choices] or None, "bounds": bounds, "optional": p.optional,
    }  # fmt: skip


def made() -> str:
    """The file as it should be, by the registries."""
    import whence
    from whence.zoo import ZOO

    told: dict[str, Any] = {}
    for name, registry in (("methods", whence.methods), ("metrics", whence.metrics)):
        others = dict(getattr(registry, "aliases", {}))
        told[name] = {"entries": [_told(entry) for entry in registry.values()], "aliases": others}
    return json.dumps({**told, "zoo": list(ZOO)}, ensure_ascii=False, indent=1) + "\n"


def write() -> None:
    """Write the file anew."""
    from whence.util.files import put

    put(FILE, made())
