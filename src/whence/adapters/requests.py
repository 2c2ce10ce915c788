"""What a user's rows become: requests, each of which is one explanation of tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import InputError, ParameterError, TargetError, gathered, warn

if TYPE_CHECKING:
    from whence.adapters.tokens import Tokens


@dataclass(frozen=True, eq=False)
class Request:
    """Some of the user's rows as the engine takes them, and the facts to add to the answer."""

    model: Callable[..., Any]
    inputs: Any
    target: Any
    rows: list[int]  # their numbers among the user's rows
    facts: Mapping[str, list[Any]] = field(default_factory=dict)  # by name, one entry per row
    units: Any = None  # of several inputs, by name
    real: Any = None  # likewise: what is not padding, where no attention mask says so
    image: Tensor | None = None  # the rows as bytes, for display
    windows: list[Tokens] | None = None  # set where the rows are windows of one text
    stand_ins: Mapping[str, int] = field(default_factory=dict)  # ids of the tokens that baselines name
    total: int = 1  # number of the user's rows
    held: list[bool] | None = None  # tokens that no method removes, of the one row: an answer's own, a template's

    def baseline(self, given: Any) -> Any:
        """The baseline for these rows; a named token replaces every token that is not special."""
        if not isinstance(given, str) or given not in self.stand_ins:
            return self._of_rows(given)
        ids = self.inputs["input_ids"]
        return torch.where(torch.tensor(self.facts["special"], device=ids.device), ids, self.stand_ins[given])

    def params(self, given: Mapping[str, Any], wrt: Any = None) -> dict[str, Any]:
        """A method's parameters; units="words" becomes the number of each token's word, -1 for special tokens."""
        from whence.results.text_units import is_text_unit

        units = given.get("units")
        if is_text_unit(units) and "sides" in self.facts:
            return {**given, "units": self._units_by_side(units, wrt)}
        if self.held is not None and isinstance(units, str) and units in ("auto", "tokens"):
            own = [-1 if held else i for i, held in enumerate(self.held)]
            return {**given, "units": torch.tensor([own], device="cpu")}
        if "messages" in self.facts and isinstance(units, str) and units in ("auto", "tokens"):
            kept = [[-1 if special else i for i, special in enumerate(row)] for row in self.facts["special"]]
            return {**given, "units": torch.tensor(kept, device="cpu")}
        if is_text_unit(units) and units != "words":
            return {**given, "units": self._text_units(units)}
        if not isinstance(units, str) or units != "words":
            return {**given, "units": self._of_rows(units)} if isinstance(units, Tensor) else dict(given)
        if "words" not in self.facts:
            raise ParameterError('units="words" is for texts.\n  Leave it out.')
        numbers = []
        for words, segments in zip(self.facts["words"], self.facts["segments"], strict=True):
            pairs = list(zip(segments, words, strict=True))
            known = {pair: n for n, pair in enumerate(dict.fromkeys(p for p in pairs if p[1] is not None))}
            numbers.append([known.get(pair, -1) for pair in pairs])
        return {**given, "units": torch.tensor(numbers, device="cpu")}

    def _units_by_side(self, units: Any, wrt: Any) -> dict[str, Tensor]:
        """The number of each token's unit, by the explained inputs of an encoder and a decoder."""
        from whence.results.sides import numbers

        found = numbers(self.facts["sides"][0], units)
        named = [wrt] if isinstance(wrt, str) else list(wrt) if isinstance(wrt, list | tuple) else list(found)
        return {name: own for name, own in found.items() if name in named}

    def _text_units(self, units: Any) -> Tensor:
        """The number of each token's unit, below 0 for what is never removed."""
        from whence.results.text_units import numbers_of, parts_of

        if isinstance(self.units, Mapping) or "spans" not in self.facts:
            raise ParameterError(f"units={units!r} is for one text.\n  Leave it out.")
        facts, rows = self.facts, []
        for row, spans in enumerate(facts["spans"]):
            parts = parts_of(facts["text"][row], units, facts["messages"][row] if "messages" in facts else None)
            own = facts["answer"][row][1] if "answer" in facts else 0
            rows.append(numbers_of(parts, spans, facts["special"][row], own, isinstance(units, Mapping)))
        return torch.tensor(rows, device="cpu")

    def seeds(self, given: Sequence[int]) -> list[int]:
        """The seeds of these rows, out of the seeds of all rows."""
        return [given[row] for row in self.rows] * (1 if self.windows is None else len(self.windows))

    @contextmanager
    def row_numbers(self) -> Iterator[None]:
        """Warnings inside of the block name rows by the user's numbers; all windows of a text are one row."""
        with gathered() as warnings:
            yield
        for one in warnings:
            rows = None if one.rows is None else [self.rows[0 if self.windows else row] for row in one.rows]
            warn(one.text, rows, **one.worst)

    def _of_rows(self, given: Any) -> Any:
        """What the user laid out like a padded batch of all rows, for these rows."""
        many = isinstance(given, Tensor) and given.dim() > 0 and len(given) == self.total > 1
        if not many or "words" not in self.facts:
            return given
        picked = given[self.rows]
        return picked[:, : self.inputs["input_ids"].shape[1]] if picked.dim() > 1 else picked


# ---- rows, targets and facts, as the tasks share them ----


_HALVES = re.compile("[\ud800-\udfff]")


def text_rows(inputs: Any) -> list[tuple[str, ...]]:
    """Rows of one text or of a pair."""
    rows = [row if isinstance(row, tuple) else (row,) for row in (inputs if isinstance(inputs, list) else [inputs])]
    if not rows:
        raise InputError("There is no text to explain.\n  Give at least one.")
    for row in rows:
        if not row or not all(isinstance(part, str) for part in row) or len(row) > 2:
            kinds = ", ".join(type(part).__name__ for part in row)
            raise InputError(f"A row is {kinds}, but this model reads text.\n  Give a string, or a pair of strings.")
        for part in row:
            if _HALVES.search(part):
                raise InputError(f"The text {part[:40]!r} has half a character (a lone surrogate).\n  Repair it first.")
    return rows


def per_row(target: Any, rows: int) -> list[Any]:
    """One target per row."""
    if hasattr(target, "tolist"):  # a tensor or an array
        target = target.tolist()
    if not isinstance(target, list):
        return [target] * rows
    if len(target) not in (1, rows):
        raise TargetError(
            f"target has {len(target)} entries, but there are {rows} rows.\n"
            "  Give one per row, or a single one for all."
        )
    return target if len(target) == rows else target * rows


def text_facts(tokens: Sequence[Tokens], length: int) -> dict[str, list[Any]]:
    """The facts of each row's tokens, padded to the length of the batch."""
    chats = [getattr(t.text[0], "messages", None) for t in tokens]
    return {
        "units": [padded(t.units, length, "[PAD]") for t in tokens],
        "spans": [padded(t.spans, length, (0, 0)) for t in tokens],
        "special": [padded(t.special, length, True) for t in tokens],
        "words": [padded(t.words, length, None) for t in tokens],
        "segments": [padded(t.segments, length, None) for t in tokens],
        "text": [str(t.text[0]) if len(t.text) == 1 else t.text for t in tokens],
        **({"messages": chats} if any(chats) else {}),
    }


def padded(values: Sequence[Any], length: int, fill: Any) -> list[Any]:
    return [*values, *[fill] * (length - len(values))]
