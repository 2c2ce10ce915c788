"""Attribution: the frozen result of one explanation."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import InputError, Message, ParameterError, emit
from whence.results import forms
from whence.util.checks import check_choice, not_allowed
from whence.util.files import Place, page_written
from whence.util.receipt import Later, Receipt, waiting
from whence.util.terminal import clean, say

if TYPE_CHECKING:
    import pandas

    from whence.results.citations import Citation

_AGGREGATES = ("l2", "max_abs", "sum_abs", "sum")


@dataclass(frozen=True, eq=False)
class Attribution:
    """How much each unit of the inputs contributed to the score, row by row, and how that was computed.

    `values` has one number per unit (ids: one per token), `raw` the full tensors; with several targets both are
    (rows, k, …). Slicing and iteration go by row.
    """

    values: Any
    raw: Any
    target: Any  # LongTensor (rows,) or (rows, k); a list of tuples; the name of a function
    output_value: Tensor
    method: str
    params: Mapping[str, Any]
    receipt: Mapping[str, Any]
    units: list[list[str]] | None = None
    baseline_value: Tensor | None = None
    gap: Tensor | None = None
    residual: Tensor | None = None
    raising: Any = None  # what `positive` gives
    kept: Mapping[str, Any] = field(default_factory=dict)
    real: Any = None  # bool (rows, n) where padding is known, in the form of `values`
    image_size: tuple[int, int] | None = None  # of the image, where the values are a grid of its patches
    channel_axis: Any = None  # of `raw`, without the axis of targets: 1 for images, the hidden one for tokens
    # of texts, one list per row with one entry per unit: where it stands, whether it is special, its word, its text
    spans: list[list[tuple[int, int]]] | None = None
    special: list[list[bool]] | None = None
    words: list[list[int | None]] | None = None
    segments: list[list[int | None]] | None = None
    text: list[Any] | None = None  # what was explained, a string or a pair per row
    labels: list[Any] | None = None  # the explained classes by name
    messages: list[Any] | None = None  # of conversations: (role, start, end) of each message in the text
    # what was written after the text, how many of the row's last tokens are its, its ids, where in it each begins; of a
    # contrast, also the two answers with their ids
    answer: list[Any] | None = None
    sides: list[Any] | None = None  # of an encoder and a decoder: the text, spans and special tokens of each, by input
    image: Tensor | None = None  # what was explained, as bytes (rows, 1 or 3, height, width)

    # ---- rows ----

    def __len__(self) -> int:
        return len(self.output_value)

    def __iter__(self) -> Iterator[Attribution]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: Any) -> Attribution:
        """The attribution of some rows; a single row loses its padding."""
        if isinstance(row, slice):
            return self._pick(list(range(len(self))[row]))
        number = operator.index(row)
        if not -len(self) <= number < len(self):
            raise IndexError(f"Row {number} does not exist: there are {len(self)} rows.")
        return self._pick([number % len(self)])._trimmed()

    def _pick(self, rows: list[int]) -> Attribution:
        count = len(self)

        def pick(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value[rows] if value.dim() and len(value) == count else value
            if isinstance(value, Mapping):
                return {key: pick(item) for key, item in value.items()}
            if isinstance(value, tuple):
                return tuple(pick(item) for item in value)
            if isinstance(value, Later):
                return value.pick(rows) if len(value) == count else value
            return [value[row] for row in rows] if isinstance(value, list) and len(value) == count else value

        plain = ("method", "params", "receipt", "channel_axis", "kept")
        kept = {  # a list has one entry per layer; everything else is like `values`
            name: [pick(layer) for layer in layers] if isinstance(layers, list) else pick(layers)
            for name, layers in self.kept.items()
        }
        picked = {f.name: pick(getattr(self, f.name)) for f in fields(self) if f.name not in plain}
        per_row = {name: pick(waiting(self.receipt, name)) for name in self.receipt.get("per_row", ())}
        messages = [_about(Message(**one), rows) for one in self.receipt.get("warned", ())]
        about = [message for message in messages if message is not None]
        params = {name: pick(value) if name == "units" else value for name, value in self.params.items()}
        receipt = Receipt(self.receipt, per_row, _receipt(about))
        return replace(self, **picked, params=params, kept=kept, receipt=receipt)

    def _trimmed(self) -> Attribution:
        """A single row without its padding."""
        if self.real is None:
            return self
        axis = 1 + self.several

        def trim(field: Any) -> Any:
            cut = lambda part, real: part if real is None else _trimmed(part, real[0], axis)  # noqa: E731
            return None if field is None else forms.each(cut, self.values, field, self.real)

        trimmed = {name: trim(getattr(self, name)) for name in ("values", "raw", "raising")}
        if self.one_input:
            for name in ("units", "spans", "special", "words", "segments"):
                trimmed[name] = _there(getattr(self, name), self.real)
            units = self.params.get("units")
            if isinstance(units, Tensor) and isinstance(self.real, Tensor) and units.shape == self.real.shape:
                trimmed["params"] = {**self.params, "units": units[:, self.real[0].to(units.device)]}
        elif isinstance(self.units, Mapping):
            masks = self.by_name("real")
            trimmed["units"] = {name: _there(units, masks.get(name)) for name, units in self.units.items()}
        kept = {name: v if isinstance(v, list) else trim(v) for name, v in self.kept.items()}
        return replace(self, **trimmed, kept=kept, real=None)

    @property
    def several(self) -> bool:
        """Whether there are several targets per row, so that values are (rows, k, …)."""
        return self.output_value.dim() == 2

    # ---- inputs ----

    @property
    def one_input(self) -> bool:
        """Whether one input is explained, so that values are a tensor and not a tuple or a dict of tensors."""
        return isinstance(self.values, Tensor)

    def by_name(self, field: str = "values") -> dict[str, Any]:
        """A field by explained input; the only one is named "", those of a tuple "0", "1", …"""
        return forms.by_name(getattr(self, field), self.values)

    # ---- reading ----

    @property
    def positive(self) -> Any:
        """The contributions to what raised the score, where the method has them."""
        if self.raising is None and (way := self.receipt.get("on_request", {}).get("positive")):
            raise ParameterError(
                f"{self.method} did not tell positive and negative contributions apart: they take one more backward "
                f"pass.\n  Ask for them with {way}."
            )
        return self.raising

    @property
    def negative(self) -> Any:
        """The contributions to what lowered the score, where the method has them; with `positive` they are `values`."""
        up = self.positive
        return None if up is None else forms.each(torch.sub, self.values, self.values, up)

    def channels(self, how: str = "max_abs") -> Attribution:
        """One number per pixel from an image's channels, or per token from its embedding: how they are put together.

        "l2" is their length, "max_abs" the largest magnitude, "sum_abs" the sum of magnitudes; "sum" keeps the sign and
        completeness.
        """
        check_choice("channels", how, _AGGREGATES)
        k = int(self.several)

        def aggregate(raw: Any, axis: int | None, real: Tensor | None) -> Tensor:
            if axis is None:
                raise InputError(
                    f"channels={how!r} needs a channel axis, but the values are {tuple(raw.shape)}.\n"
                    "  Leave channels out for inputs that are neither images nor ids."
                )
            parts = [part[..., None] if part.dim() == axis + k else part for part in forms.embeddings(raw)]
            last = [part.flatten(axis + k) if axis > 1 else part.movedim(1 + k, -1) for part in parts]
            return self._without_padding(_aggregated(torch.cat(last, -1), how), real)

        values = forms.each(aggregate, self.values, self.raw, self.channel_axis, self.real)
        reduced = replace(self, values=values).with_channels(dict.fromkeys(self.by_name(), how))
        summed = how == "sum" and self.channel_axis == 1 and isinstance(self.raising, Tensor)
        of_tokens = how == "sum" and isinstance(self.channel_axis, int) and self.channel_axis > 1
        if self.raising is None or of_tokens:
            return reduced
        return replace(reduced, raising=self.raising.sum(1 + k) if summed else None)

    def with_channels(self, how: Mapping[str, str]) -> Attribution:
        """The same with a receipt entry of how the channels of some inputs were put together, by the input's name."""
        entry = next(iter(how.values())) if len(self.by_name()) == 1 else dict(how)
        return replace(self, receipt=Receipt(self.receipt, {"channels": entry}))

    def signed(self, name: str = "") -> bool:
        """Whether the values of an input (by default, of all) are for and against the target, and not magnitudes."""
        how = self.receipt.get("channels")
        every = (how.values() if not name else [how.get(name)]) if isinstance(how, Mapping) else [how]
        sizes = self.params.get("absolute") is True or self.params.get("kind") in ("square", "variance")
        return all(one in (None, "sum") for one in every) and not sizes

    def _without_padding(self, values: Tensor, real: Tensor | None) -> Tensor:
        if real is None:
            return values
        mask = real[:, None] if self.several else real
        return values * mask.view(*mask.shape, *[1] * (values.dim() - mask.dim())).to(values)

    def to_image_size(self) -> Attribution:
        """A grid of patches stretched to the image, bilinearly."""
        if self.image_size is None or not self.one_input:
            raise InputError("to_image_size() needs a grid of patches, but these values have none.\n  Leave it out.")
        lead = self.values.shape[:-2]
        flat = self.values.reshape(-1, 1, *self.values.shape[-2:])
        whole = torch.nn.functional.interpolate(flat, self.image_size, mode="bilinear", align_corners=False)
        return replace(self, values=whole.view(*lead, *self.image_size), image_size=None)

    def merge_words(self) -> Attribution:
        """One value per word, the sum of its tokens'; special tokens stay by themselves."""
        from whence.results.words import merged

        if not self.one_input:
            names = ", ".join(self.by_name())
            raise InputError(
                f"merge_words() merges the tokens of one text, but several inputs are explained: {names}.\n"
                "  Read `values` and `units` of each by its name."
            )
        return merged(self)

    def merge(self, units: Any, *, absolute: bool = False) -> Attribution:
        """One value per word, sentence, paragraph, line or message, or per span of the text by name.

        It is the sum of the tokens' values, or of their magnitudes. `units` is "words", "sentences", "paragraphs",
        "lines", "messages", or a dict from names to (start, end) or to a part of the text. A chat template's tokens are
        one unit, and so are those of the answer itself.
        """
        from whence.results.text_units import merged

        return merged(self, units, absolute=absolute)

    def cite(self, k: int = 3, *, units: Any = "sentences", model: Any = None) -> list[Citation]:
        """The k parts of the prompt that each sentence of the answer rests on most, of one explained answer.

        With the `model`, each comes with what the sentence's log-probability loses without it.
        """
        from whence.results.citations import cited

        return cited(self, k, units, model)

    def tried(self, model: Any, k: int = 3) -> Attribution:
        """The same with what the model does, for pages and the terminal: what an answer loses without its k sources,
        and what else could stand at each of its tokens (`receipt["sources"]`, `receipt["alternatives"]`)."""
        from whence.results.citations import tried

        return tried(self, k, model)

    def top(self, k: int = 5) -> list[list[tuple[Any, float]]]:
        """For each row, the k units of largest magnitude: (unit or index, value), largest first."""
        if not self.one_input or self.several:
            raise InputError("top(k) reads one map per row.\n  Take one input's values, or one target, first.")
        if k < 1:
            raise not_allowed("k", k, "a whole number, at least 1", "top")
        from whence.views.maps import maps

        return [part.strongest(k) for part in maps(self, len(self))]

    def to_pandas(self) -> pandas.DataFrame:
        """One line per row and unit, and per target where there are several; padding is left out."""
        from whence.util.libraries import imported

        pandas = imported("pandas", "to_pandas() needs", "pandas")
        if not self.one_input:
            raise InputError("to_pandas() reads one explained input.\n  Explain one with wrt=.")
        from whence.views.maps import maps

        lines = []
        for part in maps(self, len(self)):
            own = {"row": part.row, **({"target": part.target} if self.several else {})}
            lines += [{**own, "unit": unit, "value": value} for unit, value in part.every()]
        return pandas.DataFrame(lines)

    # ---- showing and keeping ----

    def show(self) -> None:
        """Print the attribution."""
        from whence.views.terminal import coloured, describe

        say(describe(self, coloured()))

    def __repr__(self) -> str:
        named = {name: tuple(part.shape) for name, part in self.by_name().items()}
        shapes = list(named.values()) if isinstance(self.values, tuple | list) else forms.in_form(named, self.values)
        gap = "" if self.gap is None else f", worst gap {float(self.gap.max()):.2g}"
        return f"Attribution({clean(str(self.method))}, {len(self)} row{'s' * (len(self) != 1)}, values {shapes}{gap})"

    def plot(self, ax: Any = None, row: int = 0, target: int | None = None, **how: Any) -> Any:
        """Draw one row with matplotlib, on the given axes or on new ones, which are given back.

        `target` is a number among several targets; images take `style="overlay" | "masked" | "positive" | "negative" |
        "contour"`.
        """
        from whence.views.plot import plot

        return plot(self, ax, row, target, **how)

    def to_html(self, path: Place = None, *, title: str | None = None) -> str:
        """A self-contained page; written to a file, if there is a path."""
        from whence.views.html import page, section

        return page_written(page(title or f"Whence: {self.method}", [section(self)]), path)

    def _repr_html_(self) -> str:
        from whence.views.html import section

        return section(self)

    def save(self, path: str | PathLike[str]) -> None:
        """Write what the name's ending says: html, png, svg, pdf, json, csv or safetensors (also without an ending).

        A safetensors file holds all of it, the rest as JSON in its header, and is what `load` reads.
        """
        from whence.views.export import write

        write(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Attribution:
        """Read a safetensors file that `save` wrote."""
        from whence.results.store import load

        return load(path)


def with_warnings(a: Attribution, messages: Sequence[Message], **more: Any) -> Attribution:
    """Emit the warnings, and write them into the receipt: `warnings` as text, `warned` with their rows and numbers.

    What else is to be there, `more`, comes first.
    """
    for message in messages:
        emit(message)
    return replace(a, receipt=Receipt(more, a.receipt, _receipt(messages)))


def _receipt(messages: Sequence[Message]) -> dict[str, Any]:
    return {"warnings": [str(message) for message in messages], "warned": [asdict(message) for message in messages]}


def _about(message: Message, rows: Sequence[int]) -> Message | None:
    """A warning about some of the rows, which are numbered anew; None where it is not about them."""
    if message.rows is None:
        return message
    numbers = [new for new, old in enumerate(rows) if old in message.rows]
    return replace(message, rows=numbers) if numbers else None


def _aggregated(raw: Tensor, how: str) -> Tensor:
    if how == "l2":
        return torch.linalg.vector_norm(raw, dim=-1)
    if how == "sum":
        return raw.sum(-1)
    return raw.abs().amax(-1) if how == "max_abs" else raw.abs().sum(-1)


def _trimmed(part: Any, real: Tensor, axis: int) -> Any:
    """One input's part of a row without padding; pairs of units lose it on both sides."""
    if isinstance(part, tuple):  # ids that enter two embeddings
        return tuple(_trimmed(own, real, axis) for own in part)
    for i in range(real.dim()):
        there = real.any(tuple(j for j in range(real.dim()) if j != i)) if real.dim() > 1 else real
        part = part.index_select(axis + i, there.nonzero().flatten())
    return part


def _there(rows: list[list[Any]] | None, real: Tensor | None) -> list[list[Any]] | None:
    """What is known of each unit of a single row, without padding."""
    if rows is None or real is None:
        return rows
    there = real[0].flatten(1).any(1) if real.dim() > 2 else real[0]
    return [[row[i] for i in there.nonzero().flatten().tolist()] for row in rows]
