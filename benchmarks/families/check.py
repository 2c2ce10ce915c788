"""One family through nine methods, each cell with its verdict."""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import whence
from benchmarks.families import independent
from benchmarks.families.case import Case
from whence.errors import WhenceError, WhenceWarning

METHODS = (
    "gradient", "integrated_gradients", "deeplift", "lrp", "attnlrp", "rollout", "generic_attention",
    "transformer_attribution", "attcat",
)  # fmt: skip
ATTENTION = METHODS[5:]
OURS = str(Path(whence.__file__).parent)
VERDICTS = ("ok", "clear error", "gap", "rows ≠", "disagreement", "raw traceback", "no end")
COMPLETE = {"integrated_gradients": 0.01, "deeplift": 0.0}  # what each promises of its gap, beyond rounding


ABOUT = {"integrated_gradients": "tolerance", "deeplift": "", "lrp": ""}  # what a warning of a gap speaks of


@dataclass
class Cell:
    verdict: str = "ok"
    amount: float | None = None  # of a gap, a difference
    compared: bool = False  # with an independent computation, not only with its own rows
    words: str = ""  # the error's or the first warning's
    seconds: float = 0.0

    def worsen(self, verdict: str, amount: float | None, words: str = "") -> None:
        if VERDICTS.index(verdict) > VERDICTS.index(self.verdict):
            self.verdict, self.amount, self.words = verdict, amount, words or self.words


@dataclass(frozen=True)
class Made:
    """A family as it stands: the model that is explained, its eager twin, and how closely it agrees with itself."""

    case: Case
    model: nn.Module
    inputs: Any
    rtol: float
    score: Tensor
    by_row: bool  # whether the model itself gives a row alone what it gives it in the batch


def made(case: Case) -> Made:
    model, inputs = build(case, case.kinds), cast(case.inputs(), case.dtype)
    with torch.no_grad(), _Dtypes() as seen:
        found = independent.score(independent.call(model, inputs), case.target)
        if not bool(found.isfinite().all()):
            raise ValueError("the model's own score is not finite")
        rtol = case.rtol or (1e-9 if seen.found <= {torch.float64} else 2e-6 if case.dtype == torch.float64 else 2e-5)
        alone = torch.cat([
            independent.score(independent.call(model, only(inputs, row)), case.target) for row in range(len(found))
        ])  # fmt: skip
    return Made(case, model, inputs, rtol, found, apart(alone, found) <= 10 * rtol)


def build(case: Case, kinds: tuple[str, ...]) -> nn.Module:
    """With the first implementation of attention that the family has."""
    try:
        model = case.build(kinds[0])
    except ValueError:
        if len(kinds) == 1:
            raise
        return build(case, kinds[1:])
    return model if case.kind == "own" else model.to(case.dtype)


class _Dtypes(TorchDispatchMode):
    """Which floating dtypes a model computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.is_floating_point() and out.numel() > 1:
            self.found.add(out.dtype)
        return out


def examine(case: Case, tell: Callable[[str, Cell], None], names: tuple[str, ...] = METHODS) -> None:
    """Every method on one family; `tell` gets each cell as it is done."""
    here = made(case)
    for name in names:
        start = time.process_time()
        cell = Cell()
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                _answer(here, name, cell, heard)
            except Exception as error:
                cell.verdict, cell.words = blame(error)
        cell.seconds = time.process_time() - start
        tell(name, cell)


def blame(error: BaseException) -> tuple[str, str]:
    """A clear error, or one that nobody meant: what is no WhenceError, or wraps what was born in our own code."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    where = traceback.extract_tb(cause.__traceback__)[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    passed_on = where.line == "return func(*args, **(kwargs or {}))"  # an op of the model's own
    ours = where.filename.startswith(OURS) and not passed_on
    said = f"{type(error).__name__}: {error}"
    if not isinstance(error, WhenceError) or (ours and not isinstance(cause, WhenceError)):
        return "raw traceback", f"{said} [{type(cause).__name__} in {place}]"
    return "clear error", said


def _answer(here: Made, name: str, cell: Cell, heard: list[warnings.WarningMessage]) -> None:
    a = explain(here, name, here.inputs)
    said = [str(w.message) for w in heard if issubclass(w.category, WhenceWarning)]
    about = ABOUT.get(name, "")
    warned = next((words for words in said if about in words), "")
    if name in ATTENTION and not here.case.attends:
        cell.worsen("disagreement", None, "there is no attention, and there are values")
        return
    values = by_name(here.inputs, a.values)
    for value in values.values():
        if not bool(value.isfinite().all()):
            cell.worsen("disagreement" if not warned else "gap", None, warned or "not finite, without a word")
            return
    empty = sum(v.flatten(1).abs().sum(1) if v.dim() > 1 else v.abs() for v in values.values()) == 0
    if bool(torch.as_tensor(empty).any()) and not warned:
        cell.worsen("disagreement", None, "all 0, without a word")
    off = apart(a.output_value, here.score)
    if off > 10 * here.rtol:
        cell.worsen("disagreement", off, "output_value is not the model's score")
    try:
        _compare(here, name, a, cell, warned)
    except independent.Unable as error:
        cell.words = cell.words or str(error)
    if here.by_row:
        _rows(here, name, a, cell)


def _compare(here: Made, name: str, a: Any, cell: Cell, warned: str) -> None:
    """With the independent computation that there is for this method, if any."""
    case = here.case
    if name == "gradient":
        _against_autograd(here, a, cell)
    elif name in COMPLETE:
        _complete(here, name, a, cell, warned)
    elif name == "lrp":
        _conserves(here, a, cell, warned)
    elif name in ("rollout", "generic_attention", "attcat") and case.reports:
        _against_reported(here, name, by_name(here.inputs, a.values), cell)


def explain(here: Made, name: str, inputs: Any) -> Any:
    return whence.explain(here.model, inputs, method=name, target=here.case.target)


def _against_autograd(here: Made, a: Any, cell: Cell) -> None:
    found = by_name(here.inputs, a.raw)
    theirs = independent.gradient(here.model, here.inputs, here.case.target, list(found))
    cell.compared = True
    for key, value in found.items():
        ours, plain = value if isinstance(value, tuple) else (value,), theirs.get(key, ())
        if [t.shape for t in ours] != [t.shape for t in plain]:
            cell.worsen("disagreement", None, f"autograd has {key} as {[[*t.shape] for t in plain]}")
            return
        off = max(apart(mine, its) for mine, its in zip(ours, plain, strict=True))
        if off > here.rtol:
            cell.worsen("disagreement", off, f"autograd's gradient of {key}")


def _complete(here: Made, name: str, a: Any, cell: Cell, warned: str) -> None:
    """Its gap, and whether that is what its values and two plain forward passes say."""
    values = by_name(here.inputs, a.values)
    total = sum(v.double().flatten(1).sum(1) if v.dim() > 1 else v.double() for v in values.values())
    score = here.score.double()
    before = a.baseline_value.double()
    if set(a.receipt.get("baseline") or ["zero"]) == {"zero"}:
        plain = independent.at_zero(here.model, here.inputs, here.case.target, list(values)).double()
        if (off := float((before - plain).abs().max() / score.abs().max())) > 10 * here.rtol:
            cell.worsen("disagreement", off, "baseline_value is not the model's score at 0")
    size = torch.maximum((score - before).abs(), 0.1 * torch.maximum(score.abs(), before.abs()))
    gap = float(((torch.as_tensor(total) - (score - before)).abs() / size).max())
    cell.compared = True
    if abs(gap - float(a.gap.max())) > max(1e-3 * gap, 100 * here.rtol):
        cell.worsen("disagreement", gap, f"its own gap says {float(a.gap.max()):.1e}")
    if gap > COMPLETE[name] + 100 * here.rtol:
        cell.worsen("gap" if warned else "disagreement", gap, warned or "a gap without a word")


def _conserves(here: Made, a: Any, cell: Cell, warned: str) -> None:
    """What started is what arrived and what the receipt says was lost, by the values themselves."""
    values = by_name(here.inputs, a.values)
    arrived = sum(v.double().flatten(1).sum(1) if v.dim() > 1 else v.double() for v in values.values())
    cell.compared = True
    for row, said in enumerate(a.receipt["relevance"]):
        rest = abs(said["start"] - float(torch.as_tensor(arrived)[row]) - sum(said["lost"].values()))
        if rest > max(1e-4, 100 * here.rtol) * max(abs(said["start"]), 1.0):
            cell.worsen("gap" if warned else "disagreement", rest, warned or "relevance is lost without a word")


def _against_reported(here: Made, name: str, values: dict[str, Tensor], cell: Cell) -> None:
    case, eager = here.case, build(here.case, here.case.kinds[-1:])
    placed: dict[str, Tensor] = {}
    for part in (case.parts or {None: lambda output: output}).items():
        told = independent.tell(eager, here.inputs, case.target, part[1])
        theirs = _by_hand(name, told, _real(here, told.read))
        own = values if part[0] is None else {part[0]: values[part[0]]}
        laid = case.lay(eager, here, theirs) if case.lay else lay(here, theirs, own)
        placed.update(laid or {})
    for key, value in placed.items():
        cell.compared = True
        if value.shape != values[key].shape:
            cell.worsen("disagreement", None, f"{key} has {[*values[key].shape]}, by hand {[*value.shape]}")
        elif (off := apart(values[key], value)) > max(1e-6, here.rtol):
            cell.worsen("disagreement", off, f"the model's own attention, at {key}")


def _by_hand(name: str, told: independent.Told, real: Tensor) -> list[Tensor]:
    if name == "attcat":
        return independent.attcat(told, real)
    return independent.rollout(told) if name == "rollout" else independent.generic(told)


def lay(here: Made, theirs: list[Tensor], values: dict[str, Tensor]) -> dict[str, Tensor] | None:
    """Positions as scores of the inputs: tokens as they are, without padding; of an image the last ones, in rows."""
    given = independent.named(here.inputs)
    names = ["decoder_input_ids", next(iter(values))] if len(theirs) > 1 else [next(iter(values))]
    if set(names) != set(values):
        return None
    placed = {}
    for name, found in zip(names, theirs, strict=True):
        value = values[name]
        if value.dim() > 2 and found.shape[1] >= value[0].numel():
            found = found[:, found.shape[1] - value[0].numel() :].reshape(value.shape)
        elif not given[name].is_floating_point():
            mask = independent.padding(given, name)
            found = found if mask is None or mask.shape != found.shape else found * mask
        placed[name] = found
    return placed


def _real(here: Made, like: Tensor) -> Tensor:
    """1 for positions that are no padding, (rows, n)."""
    mask = here.case.real(here.inputs) if here.case.real else independent.named(here.inputs).get("attention_mask")
    return mask.to(like) if mask is not None and mask.shape == like.shape else torch.ones_like(like)


def _rows(here: Made, name: str, a: Any, cell: Cell) -> None:
    """Each row alone against the same row of the batch."""
    whole = by_name(here.inputs, a.values)
    for row in range(len(here.score)):
        alone = by_name(here.inputs, explain(here, name, only(here.inputs, row)).values)
        size = max(float(v[row].abs().max()) for v in whole.values()) or 1.0
        off = max(float((alone[key][0] - value[row]).abs().max()) / size for key, value in whole.items())
        if not off <= here.rtol:
            cell.worsen("rows ≠", off)


# ---- pieces ----


def apart(ours: Tensor, theirs: Tensor) -> float:
    """max|a − b| / max|b|."""
    size = float(theirs.abs().max()) or 1.0
    return float((ours.double() - theirs.double()).abs().max()) / size


def by_name(inputs: Any, values: Any) -> dict[str, Tensor]:
    if isinstance(values, Mapping):
        return dict(values)
    if isinstance(values, tuple) and isinstance(inputs, tuple):
        return {str(n): t for n, t in enumerate(values)}
    given = independent.named(inputs)
    if len(given) == 1:
        return {next(iter(given)): values}
    usual = [k for k in given if not any(w in k for w in ("mask", "position", "token_type", "labels", "bbox", "edges"))]
    return {usual[0]: values}


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    found = {k: t.to(dtype) if t.is_floating_point() else t for k, t in independent.named(inputs).items()}
    return independent.like(inputs, found)


def only(inputs: Any, row: int) -> Any:
    found = {key: t[row : row + 1].clone() for key, t in independent.named(inputs).items()}
    return independent.like(inputs, found)


def stored(cell: Cell) -> dict[str, Any]:
    return asdict(cell)
