"""An Attribution taken apart for showing: one map per row, target and input, with its words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whence.results.attribution import Attribution


@dataclass(frozen=True, eq=False)
class Map:
    """What one row's input has to do with one target."""

    row: int
    values: Tensor  # of the row's units, padding and all
    target: str
    score: float
    input: str = ""  # its name, where several are explained
    title: str = ""  # the same in words
    units: list[str] | None = None
    real: Tensor | None = None
    space: str = "score"  # what the score is: a logit, a probability, a log-probability
    probability: float | None = None  # of the target, where the model chooses among classes
    signed: bool = True  # values speak for and against; magnitudes do not

    @property
    def caption(self) -> str:
        lead = f"{self.title}, " if self.title else ""
        return f"{lead}row {self.row}, target {spelled(self.target)}, {self.scored}"

    @property
    def scored(self) -> str:
        """The score, and beside a logit the probability that it stands for."""
        beside = self.probability is not None and self.space != "probability"
        return f"{self.space} {self.score:.4g}" + (f", probability {percent(self.probability)}" if beside else "")

    def strongest(self, count: int) -> list[tuple[Any, float]]:
        """The units of largest magnitude, by name or index, and their values; padding is left out."""
        flat = self.values.flatten().detach()
        order = flat.abs().nan_to_num(float("inf")).argsort(descending=True, stable=True).tolist()
        return [(self._unit(i), float(flat[i])) for i in self._there(order)[:count]]

    def every(self) -> list[tuple[Any, float]]:
        """All units in order and their values; padding is left out."""
        flat = self.values.flatten().tolist()
        return [(self._unit(i), flat[i]) for i in self._there(list(range(len(flat))))]

    @property
    def count(self) -> int:
        """How many units there are, padding left out."""
        return len(self._there(list(range(self.values.numel()))))

    def _there(self, order: list[int]) -> list[int]:
        if self.real is None or self.real.shape != self.values.shape:
            return order
        there = self.real.flatten().tolist()
        return [i for i in order if there[i]]

    def _unit(self, flat: int) -> Any:
        found: list[int] = []
        for size in reversed(self.values.shape):
            flat, place = divmod(flat, size)
            found.append(place)
        index = tuple(reversed(found))
        if self.units is None:
            return index[0] if len(index) == 1 else index
        return "–".join(self.units[i] for i in index)


def percent(part: float | None) -> str:
    """A probability as people write it; what is all but certain does not look certain."""
    if part is None:
        return "–"
    if 0 < part < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.999 < part < 1 else f"{100 * part:.1f} %"


_SIZES = {
    "l2": "the L2 norm of what each unit's channels have",
    "sum_abs": "sums of magnitudes over each unit's channels",
    "max_abs": "the largest magnitude among each unit's channels",
}


def sizes_of(a: Attribution) -> str:
    """What values without a sign are, in words; nothing where they have one."""
    how = a.receipt.get("channels")
    said = set(how.values()) if isinstance(how, Mapping) else {how}
    told = [_SIZES[one] for one in sorted(map(str, said)) if one in _SIZES]
    if not told and not a.signed():
        told = ["magnitudes"]
    return f"shown is {' and '.join(told)}: how much, not for or against" if told else ""


def counted(count: int, one: str, more: str = "") -> str:
    """A number and its noun."""
    return f"{count} {one if count == 1 else more or one + 's'}"


def has_tokens(a: Attribution) -> bool:
    """Whether units are tokens, to be read one after the other, and not names of features."""
    return a.units is not None and not a.receipt.get("names")


def spelled(unit: str) -> str:
    """A token as it is shown: without the space before it (or a tokenizer's sign for one), other spaces as signs."""
    bare = unit[1:] if len(unit) > 1 and unit[0] in "Ġ▁" else unit
    return (bare.lstrip(" ") or "␣" * len(bare)).translate(_SIGNS)


_SIGNS = str.maketrans({"\n": "⏎", "\t": "⇥", "\r": "␍"})


_TRANSLATED = {"input_ids": "source", "decoder_input_ids": "written so far"}  # of an encoder and a decoder


def maps(a: Attribution, rows: int) -> Iterator[Map]:
    """The maps of the first rows, input by input and target by target."""
    named, all_units, masks = a.by_name(), a.by_name("units"), a.by_name("real")
    titles = _TRANSLATED if _TRANSLATED.keys() <= named.keys() else {}
    for row in range(min(len(a), rows)):
        for name, values in named.items():
            for k, part in enumerate(values[row] if a.several else [values[row]]):
                target, score = _asked(a, row, k)
                units, real = (None if own is None else own[row] for own in (all_units[name], masks[name]))
                fits = units is not None and part.dim() and all(size <= len(units) for size in part.shape)
                yield Map(
                    row, part, target, score, name, titles.get(name, name), units if fits else None, real, space_of(a),
                    probability_of(a, row, k), a.signed(name),
                )  # fmt: skip


def probability_of(a: Attribution, row: int, k: int = 0, name: str = "probability") -> float | None:
    """A target's probability at the input, or with `name="baseline_probability"` at the baseline."""
    told = a.receipt.get(name)
    if not isinstance(told, list) or len(told) != len(a):
        return None
    own = told[row][k] if isinstance(told[row], list) else told[row]
    return float(own) if isinstance(own, int | float) else None


def start_of(a: Attribution, row: int) -> str:
    """What the baseline's score is, where there is one, for one target a row."""
    if a.baseline_value is None:
        return ""
    before = probability_of(a, row, name="baseline_probability")
    return f" (baseline: {f'{float(a.baseline_value[row]):.4g}' if before is None else percent(before)})"


def notices(a: Attribution) -> list[str]:
    """What a reader has to know before looking at the picture: the warnings of a run, without the method's name."""
    told = [str(message) for message in a.receipt.get("warnings", ())]
    if not told and False in a.receipt.get("converged", ()):  # saved before receipts held warnings
        failed = counted(list(a.receipt["converged"]).count(False), "row")
        told = [f"{failed} did not reach the tolerance: the values are not converged."]
    own = [message.removeprefix(f"{a.method}: ") for message in told]
    return [message[:1].upper() + message[1:] for message in own]


def space_of(a: Attribution) -> str:
    """What the explained scores are, in words."""
    asked = str(a.receipt.get("output"))
    return asked.replace("_", "-") if asked in ("logit", "probability", "log_probability") else "score"


def _asked(a: Attribution, row: int, k: int) -> tuple[str, float]:
    """The target's name and the score."""
    target = a.target if isinstance(a.target, str) else a.target[row]
    if isinstance(target, Tensor):
        target = target.tolist()[k] if a.several and target.dim() else target.tolist()
    if a.labels:
        target = a.labels[row][k] if a.several else a.labels[row]
    return str(target), float(a.output_value[row, k] if a.several else a.output_value[row])
