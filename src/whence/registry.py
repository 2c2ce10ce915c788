"""One registry: a decorator fills it, everything else (command line, docs, contract tests) is derived from it."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import pkgutil
import re
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Generic, Literal, TypeVar

from whence.errors import MethodError, ParameterError, did_you_mean, nearest
from whence.util.checks import is_whole, not_allowed

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Bounds:
    """Allowed numbers, written in a signature as Annotated[float, Bounds(low=0)]."""

    low: float | None = None
    high: float | None = None
    open_low: bool = False  # low itself is not allowed

    def allows(self, value: float) -> bool:
        above = self.low is None or value > self.low or (value == self.low and not self.open_low)
        return above and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        low = "" if self.low is None else f"{'above' if self.open_low else 'at least'} {self.low:g}"
        return " and ".join(part for part in (low, "" if self.high is None else f"at most {self.high:g}") if part)


@dataclass(frozen=True)
class Parameter:
    """One keyword of a registered function."""

    name: str
    default: Any
    kind: Any  # int, float, bool, str, or a Literal
    bounds: Bounds | None
    optional: bool = False  # None is allowed

    @property
    def choices(self) -> tuple[Any, ...]:
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    def check(self, value: Any, owner: str) -> Any:
        """The value, or an error that says what is allowed."""
        if self.optional and value is None:
            return None
        if self.choices:
            fine, wanted = value in self.choices, "one of " + ", ".join(map(repr, self.choices))
        elif self.kind is float:
            fine, wanted = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value), "a number"
            value = float(value) if fine else value
        elif self.kind is int:
            fine, wanted = is_whole(value), "a whole number"
            value = int(value) if fine else value
        elif self.kind in (bool, str):
            fine, wanted = isinstance(value, self.kind), {bool: "True or False", str: "a string"}[self.kind]
        else:
            return value
        if self.bounds is not None:
            fine, wanted = fine and self.bounds.allows(value), f"{wanted}, {self.bounds}"
        if not fine:
            raise not_allowed(self.name, value, wanted, owner)
        return value


@dataclass(frozen=True)
class Entry(Generic[F]):
    """A registered function and what is known of it."""

    name: str
    function: F
    description: str
    paper: str
    parameters: Mapping[str, Parameter]
    facts: Mapping[str, Any]

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """The parameters of a call that gives none."""
        return {p.name: p.check(p.default, self.name) for p in self.parameters.values()}

    def check(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters, complete with defaults; unknown and forbidden ones raise."""
        checked = dict(self.defaults)
        for name, value in params.items():
            if name not in self.parameters:
                known = did_you_mean(name, self.parameters) if self.parameters else "It takes none."
                raise ParameterError(f"{self.name} has no parameter {name!r}. {known}")
            checked[name] = self.parameters[name].check(value, self.name)
        return checked


class Registry(Mapping[str, Entry[F]]):
    """Names to entries. Case, hyphens, spaces and underscores of a name do not matter, and entries may have aliases.

    With a `package`, the first use of the contents imports every module in it, so that each registers what it defines.
    """

    def __init__(self, noun: str, package: str | None = None) -> None:
        self._noun = noun
        self._package = package
        self._loaded, self._loading, self._lock = package is None, False, threading.RLock()
        self._entries: dict[str, Entry[F]] = {}
        self._known: dict[str, tuple[str, Mapping[str, Any]]] = {}  # by how a word sounds: name, the alias's parameters
        self._aliases: dict[str, str] = {}
        self._order: dict[str, float] = {}

    def register(
        self, name: str, *, paper: str = "", aliases: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
        order: float = math.inf, **facts: Any,
    ) -> Callable[[F], F]:  # fmt: skip
        """Decorate a function: its keyword-only parameters are the schema, its docstring opens with the description.

        `aliases` are other usual names, or a dict from such a name to the parameters that it stands for. Entries are
        listed by `order`, those of one module as they stand there; without it they come last.
        """
        others = aliases if isinstance(aliases, Mapping) else {word: {} for word in aliases}

        def decorate(function: F) -> F:
            if not str(getattr(function, "__module__", "")).startswith(f"{self._package}."):
                self._load()  # what comes from elsewhere comes after, and may not take a name
            for word in (name, *others):
                if self._has(word):
                    raise ValueError(f"There is a {self._noun} {word!r} already.")
            doc = inspect.getdoc(function) or ""
            first = " ".join(doc.split("\n\n")[0].split())
            self._entries[name] = Entry(name, function, first, paper, _parameters(function), facts)
            self._known[sound(name)] = (name, {})
            self._order[name] = order
            for word, params in others.items():
                self._known[sound(word)] = (name, params)
                self._aliases[word] = name
            return function

        return decorate

    def _load(self) -> None:
        """Import the package's modules once, and list what they registered in its order."""
        if self._loaded:
            return
        with self._lock:
            if self._loaded or self._loading:  # a module that is being imported sees what there is so far
                return
            self._loading = True
            try:
                package = importlib.import_module(str(self._package))
                for module in pkgutil.walk_packages(package.__path__, f"{self._package}."):
                    importlib.import_module(module.name)
            finally:
                self._loading = False
            place = {name: (self._order[name], entry.function.__module__) for name, entry in self._entries.items()}
            self._entries = {name: self._entries[name] for name in sorted(self._entries, key=place.__getitem__)}
            self._aliases = dict(sorted(self._aliases.items(), key=lambda alias: place[alias[1]]))
            self._loaded = True

    @property
    def aliases(self) -> Mapping[str, str]:
        """Other words for entries."""
        self._load()
        return self._aliases

    def __getitem__(self, name: str) -> Entry[F]:
        entry = self._entries.get(name) if self._loaded else None
        return entry or self._entries[self.resolve(name)[0]]

    def resolve(self, name: Any) -> tuple[str, dict[str, Any]]:
        """The name of an entry that is given by its name or an alias, and the parameters that the alias stands for."""
        self._load()
        known = self._known.get(sound(name)) if isinstance(name, str) else None
        if known is None or known[0] not in self._entries:
            words = [*self._entries, *self._aliases]
            advice = nearest(str(name).lower(), words) or did_you_mean(str(name), self._entries)
            raise MethodError(f"There is no {self._noun} {name!r}. {advice}")
        return known[0], dict(known[1])

    def label(self, name: str) -> str:
        """What a line of a table is called: the entry's own name, unless an alias says more than that."""
        own, params = self.resolve(name)
        return name if params else own

    def __contains__(self, name: object) -> bool:
        self._load()
        return isinstance(name, str) and self._has(name)

    def _has(self, name: str) -> bool:
        return self._known.get(sound(name), ("",))[0] in self._entries

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(f"{name:<{width}}  {entry.description}" for name, entry in self.items())


@functools.lru_cache(maxsize=1024)
def sound(word: str) -> str:
    """A name without what people write in other ways: Integrated-Gradients is integrated_gradients."""
    return re.sub(r"[\s_-]+", "", word.lower())


def _parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for p in inspect.signature(function).parameters.values():
        if p.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        kind = hints.get(p.name, Any)
        bounds = None
        if typing.get_origin(kind) is typing.Annotated:
            kind, bounds = typing.get_args(kind)[:2]
        inner = [part for part in typing.get_args(kind) if part is not type(None)]
        optional = typing.get_origin(kind) in (typing.Union, types.UnionType) and len(inner) == 1
        found[p.name] = Parameter(p.name, p.default, inner[0] if optional else kind, bounds, optional)
    return found
