"""A batch explained by one method: taken apart where it fails, and its answer as one record per row."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.api import explain
from whence.errors import InputError, WhenceError, WhenceWarning
from whence.results.attribution import Attribution
from whence.runs.rows import Row, together

Found = tuple[list[Row], Attribution | Exception]
_LISTS = ("special", "words", "segments")


class Explainer:
    """Explains batches. Where memory runs out, the batch is halved, here and from then on."""

    def __init__(self, model: Any, kind: str, options: Mapping[str, Any], batch_size: int | None) -> None:
        self.model, self.kind, self.options = model, kind, options
        self.batch_size = batch_size

    def __call__(self, rows: list[Row], method: str, params: Mapping[str, Any], targets: Any) -> list[Found]:
        """The answers for all rows, in the pieces that could be explained, and the errors of the others."""
        if self.batch_size is not None and len(rows) > self.batch_size:
            return [found for half in _halves(rows) for found in self(half, method, params, targets)]
        try:
            return [(rows, self._explained(rows, method, params, targets))]
        except Exception as error:
            short = is_out_of_memory(error)
            if short:
                if torch.cuda.is_available():
                    torch.cuda.empty_cache()
                self.batch_size = max(1, min(self.batch_size or len(rows), len(rows)) // 2)
            if len(rows) == 1:
                if not short or params.get("batch_size") == 1:
                    return [(rows, error)]
                return self(rows, method, {**params, "batch_size": 1}, targets)  # copies of the row, one by one
            return [found for half in _halves(rows) for found in self(half, method, params, targets)]

    def _explained(self, rows: list[Row], method: str, params: Mapping[str, Any], targets: Any) -> Attribution:
        given, own = together(rows, self.kind)
        size = {} if self.batch_size is None else {"batch_size": self.batch_size}
        target = {"target": [targets[row.place] for row in rows]} if isinstance(targets, Mapping) else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)  # they are in the receipt, and go into the file
            a = explain(
                self.model,
                given,
                method=method,
                **{**self.options, **size, **own, **target, **params, "progress": False},
            )
        if not isinstance(a, Attribution) or not a.one_input or a.several:
            what = "several maps per row" if a.several else f"{', '.join(a.by_name())}"
            raise InputError(f"A run stores one map per row, but {what} are explained.\n  Choose one with wrt=.")
        return a


def _halves(rows: list[Row]) -> list[list[Row]]:
    middle = (len(rows) + 1) // 2
    return [rows[:middle], rows[middle:]]


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, on the device or here; the engine wraps what a model raises."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        text = str(error).lower()
        if isinstance(error, RuntimeError | WhenceError) and (
            "out of memory" in text or "can't allocate memory" in text
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


# ---- an answer as records ----


def facts(a: Attribution) -> list[dict[str, Any]]:
    """What is the same for every method: the tokens, the target, the score."""
    scores, real = a.output_value.double().tolist(), _real(a)
    found = []
    for i, score in enumerate(scores):
        own: dict[str, Any] = {"score": score, **_target(a, i)}
        if a.units is not None and isinstance(a.units, list):
            own["tokens"] = _kept(a.units[i], real, i)
        if a.spans is not None:
            spans = _kept(a.spans[i], real, i)
            own["starts"], own["ends"] = [start for start, _ in spans], [end for _, end in spans]
        for name in _LISTS:
            if (given := getattr(a, name)) is not None:
                own[name] = _kept(given[i], real, i)
        if a.text is not None:
            text = a.text[i]
            own["text"], own["second"] = (text, None) if isinstance(text, str) else text
        found.append(own)
    return found


def answers(a: Attribution, label: str, dtype: str) -> list[tuple[dict[str, Any], Tensor | InputError | None]]:
    """A method's own columns for each row, and its map where the values are more than a list; or why it has none."""
    values, real = a.values.detach().cpu(), _real(a)
    gaps, starts = (None if t is None else t.double().tolist() for t in (a.gap, a.baseline_value))
    kind = torch.float16 if dtype == "float16" else torch.float32
    found: list[tuple[dict[str, Any], Tensor | InputError | None]] = []
    for i in range(len(a)):
        own: dict[str, Any] = {f"gap_{label}": None if gaps is None else gaps[i]}
        own[f"baseline_score_{label}"] = None if starts is None else starts[i]
        row = values[i] if real is None else values[i][real[i]]
        if not _fits(row, kind):
            found.append(({}, _too_far(row, dtype)))
            continue
        row = row.to(kind)
        whole = row.dim() > 1
        own[f"shape_{label}"] = list(row.shape) if whole else None
        own[f"values_{label}"] = None if whole else np.atleast_1d(row.numpy())
        found.append((own, row.contiguous() if whole else None))
    return found


def _fits(values: Tensor, kind: torch.dtype) -> bool:
    """Whether values are still finite as numbers of another kind, and not all of them nothing."""
    stored = values.to(kind)
    return bool((stored.isfinite() | ~values.isfinite()).all()) and bool(stored.any()) == bool(values.any())


def _too_far(values: Tensor, dtype: str) -> InputError:
    told = f"The values do not fit into {dtype}: the largest magnitude is {float(values.abs().max()):.3g}."
    way = 'Run with dtype="float32" (--dtype float32).' if dtype == "float16" else "Scale the model's output."
    return InputError(f"{told}\n  {way}")


def warned(a: Attribution, label: str) -> list[list[str]]:
    """Each row's warnings."""
    found: list[list[str]] = [[] for _ in range(len(a))]
    texts = a.receipt.get("warnings", [])
    for text, message in zip(texts, a.receipt.get("warned", []), strict=False):
        rows = message["rows"]
        for row in range(len(a)) if rows is None else rows:
            found[row].append(f"{label}: {text if rows is None else message['text'].split(' {rows}')[0]}")
    return found


def _real(a: Attribution) -> Any:
    return None if a.real is None or not isinstance(a.real, Tensor) else a.real.cpu()


def _kept(items: Sequence[Any], real: Any, row: int) -> list[Any]:
    if real is None or len(items) != real.shape[1]:
        return list(items)
    return [item for item, there in zip(items, real[row].tolist(), strict=True) if there]


def _target(a: Attribution, row: int) -> dict[str, Any]:
    """The explained class by its name, and its number or index."""
    name = None if a.labels is None else a.labels[row]
    if isinstance(a.target, str):
        return {"target": a.target, "target_index": None}
    given = a.target[row]
    index = given.tolist() if isinstance(given, Tensor) else given
    index = [int(n) for n in index] if isinstance(index, list | tuple) else [int(index)]
    return {"target": str(name) if name is not None else ",".join(map(str, index)), "target_index": index}
