"""Methods, metrics, tasks and bundled models as the command line knows them without importing torch.

`make table` writes table.json from the registries; a test compares the two.
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
    """Entries by name, as in the registry they come from but without their functions."""

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
    """The entries of `whence.methods`."""
    return _table("method", "methods")


def metrics() -> Table:
    """What `whence.metrics` has."""
    return _table("metric", "metrics")


def bundled() -> list[str]:
    """The names of the models in the zoo."""
    return list(_file()["zoo"])


def tasks_of_pairs() -> list[str]:
    """The tasks in which a row may be two texts."""
    return list(_file()["tasks_of_pairs"])


def _table(noun: str, name: str) -> Table:
    stored = _file()[name]
    return Table(noun, {one["name"]: _entry(one) for one in stored["entries"]}, stored["aliases"])


# ---- one entry as JSON, and back ----


def _entry(stored: Mapping[str, Any]) -> Known:
    parameters = {one["name"]: _parameter(one) for one in stored["parameters"]}
    facts = {"better": stored["better"]} if stored["better"] else {}
    return Entry(stored["name"], _absent, stored["description"], stored["paper"], parameters, facts)


def _absent(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("the table knows functions by their names only")


def _parameter(stored: Mapping[str, Any]) -> Parameter:
    kind: Any = _KINDS.get(stored["kind"], Any)
    if stored["choices"] is not None:
        kind = Literal[tuple(map(ast.literal_eval, stored["choices"]))]
    bounds = None if stored["bounds"] is None else Bounds(*stored["bounds"])
    return Parameter(stored["name"], ast.literal_eval(stored["default"]), kind, bounds, stored["optional"])


def _stored_entry(entry: Known) -> dict[str, Any]:
    return {
        "name": entry.name, "description": entry.description, "paper": entry.paper,
        "better": entry.facts.get("better", ""),
        "parameters": [_stored_parameter(p) for p in entry.parameters.values()],
    }  # fmt: skip


def _stored_parameter(p: Parameter) -> dict[str, Any]:
    bounds = None if p.bounds is None else [p.bounds.low, p.bounds.high, p.bounds.open_low]
    return {
        "name": p.name, "default": repr(p.default), "kind": p.kind.__name__ if p.kind in _KINDS.values() else "any",
        "choices": [repr(choice) for choice in p.choices] or None, "bounds": bounds, "optional": p.optional,
    }  # fmt: skip


def made() -> str:
    """The content of the file, by the registries."""
    import whence
    from whence.adapters.tasks import TASKS
    from whence.zoo import ZOO

    stored: dict[str, Any] = {}
    for name, registry in (("methods", whence.methods), ("metrics", whence.metrics)):
        aliases = dict(getattr(registry, "aliases", {}))
        stored[name] = {"entries": [_stored_entry(entry) for entry in registry.values()], "aliases": aliases}
    stored["tasks_of_pairs"] = [name for name, task in TASKS.items() if task.reads_pairs]
    return json.dumps({**stored, "zoo": list(ZOO)}, ensure_ascii=False, indent=1) + "\n"


def write() -> None:
    """Write the file."""
    from whence.util.files import put

    put(FILE, made())
