"""The rows of an evaluation: each with the tensors that the model takes, its units, and what is known of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whence.adapters.requests import Request, text_facts
from whence.adapters.tensors import adapt
from whence.adapters.wrapped import Wrapped
from whence.engine import blame
from whence.errors import InputError, TargetError, WhenceError
from whence.evaluation import writing
from whence.subject import Subject
from whence.subject.masks import real_units
from whence.subject.units import channel_axis, position_axes


@dataclass(frozen=True, eq=False)
class Example:
    """One row."""

    place: int
    given: Any  # as `explain` takes it: the user's text or image, or tensors of one row
    model: Callable[..., Any]
    root: nn.Module | None
    inputs: Mapping[str, Any]  # by name, tensors of one row
    form: str  # how the model takes them: "tensor", "tuple", "dict"
    name: str  # of the input whose units are removed
    ids: bool
    channel: int | None  # the axis of that input which has no places
    shape: tuple[int, ...]  # of the units
    real: Tensor  # (units,): no padding
    free: Tensor  # (units,): may be removed: neither padding nor special
    tokens: Mapping[str, int] = field(default_factory=dict)  # ids that stand in for others, by name
    exclusive: bool = True  # a row has one label: probabilities are a softmax
    cropped: bool = False  # the model sees a part of the image only
    seed: int = 0  # of the row's own: its contents
    black: Any = None  # what a black pixel is after the processor's normalisation, (1, channels, 1, 1)
    told: Mapping[str, Any] = field(default_factory=dict)  # of texts: spans, words, special, segments, text
    label: int | None = None
    mask: Tensor | None = None
    rationale: Any = None
    windows: Mapping[str, Any] | None = None  # of a text that is read in parts: their inputs, one row for each

    @property
    def x(self) -> Tensor:
        """The input whose units are removed, (1, …)."""
        found = self.inputs[self.name]
        assert isinstance(found, Tensor)
        return found

    @property
    def image(self) -> bool:
        return self.channel == 1 and len(self.shape) == 2

    def spread(self, units: Tensor) -> Tensor:
        """Something per unit, (m, units), in the shape of the input with 1 for its channels: (m, …)."""
        whole = units.view(len(units), *self.shape)
        return whole if self.channel is None else whole.unsqueeze(self.channel)


@dataclass(frozen=True)
class Failure:
    """A row that could not be evaluated, and why."""

    row: int
    method: str  # "" where no method is at fault
    metric: str
    why: str

    def __str__(self) -> str:
        by = ", ".join(part for part in (self.method, self.metric) if part)
        return f"row {self.row}{f' ({by})' if by else ''}: {self.why}"


def example_of(model: Any, row: Mapping[str, Any], place: int, wrt: Any) -> Example:
    """One row, ready to be perturbed."""
    if isinstance(model, Wrapped):
        return _wrapped(model, row, place, wrt)
    subject = adapt(model, row["inputs"], method="evaluate", wrt=wrt)
    return _made(subject, row, place)


def read_example(model: Any, row: Mapping[str, Any], place: int, wrt: Any) -> Example | WhenceError:
    """The same, or what is wrong with the row."""
    try:
        return example_of(model, row, place, wrt)
    except WhenceError as error:
        return error


def _wrapped(model: Wrapped, row: Mapping[str, Any], place: int, wrt: Any) -> Example:
    if model.task == writing.TASK:
        inputs, told, prompt = writing.written(model, row)
        subject = adapt(writing.writes(model.model), inputs, method="evaluate", wrt=("input_ids",))
        return _made(subject, {**row, "inputs": prompt}, place, told, dict(model.stand_ins))
    if model.task not in ("text-classification", "image-classification", "function"):
        raise InputError(
            f"{model!r} cannot be evaluated: its output is not one class per row.\n"
            "  Give the model itself with tensors, and target= a class."
        )
    (request,) = model.requests([row["inputs"]], None)
    inputs, told = request.inputs, {name: values[0] for name, values in request.facts.items()}
    if request.windows is not None:
        inputs, told = _whole(request)
    subject = adapt(request.model, inputs, method="evaluate", wrt=wrt)
    tokens = dict(request.stand_ins)
    named = {"label": row.get("label")}
    if isinstance(named["label"], str):
        named["label"] = model.target(named["label"])
    made = _made(subject, {**row, **named}, place, told, tokens, _black(model.processor))
    cropped = bool(getattr(model.processor, "do_center_crop", False))
    windows = None if request.windows is None else request.inputs
    return replace(made, exclusive=model.exclusive, cropped=cropped, windows=windows)


def _whole(request: Request) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The ids and the facts of a text that is read in windows, as if it were read at once."""
    assert request.windows is not None
    whole = request.windows[0].whole
    assert whole is not None
    device = request.inputs["input_ids"].device
    inputs = {name: torch.tensor([ids], device=device) for name, ids in whole.ids.items()}
    return inputs, {name: values[0] for name, values in text_facts([whole], len(whole)).items()}


def unbroken(example: Example) -> None:
    """Whether a row can be perturbed: one that is read in windows cannot."""
    if example.windows is not None:
        raise InputError(
            "A text that is read in windows cannot be perturbed.\n"
            '  Load the model with long="truncate", or use metrics that perturb nothing.'
        )


def _made(
    subject: Subject, row: Mapping[str, Any], place: int, told: Mapping[str, Any] | None = None,
    tokens: Mapping[str, int] | None = None, black: Tensor | None = None,
) -> Example:  # fmt: skip
    names, told = list(subject.roles), told or {}
    if len(names) != 1:
        raise InputError(
            f"{len(names)} inputs are explained: {', '.join(map(repr, names))}.\n  Name the one to evaluate with wrt=."
        )
    (name,) = names
    x = subject.inputs[name]
    if subject.roles[name] == "ids" and x.dim() != 2:
        raise InputError(
            f"The input {name!r} holds integers in the shape {tuple(x.shape)}, which are not token ids.\n"
            "  Give images as floating numbers."
        )
    shape = tuple(x.shape[axis] for axis in position_axes(subject, name))
    units = int(np.prod(shape, dtype=int))
    real = torch.ones(units, dtype=torch.bool, device="cpu")
    mask = real_units(subject, name, x.shape)
    if mask is not None:
        real = mask[0].cpu()
    special = torch.tensor(told.get("special", [False] * units), device="cpu")
    if "special" not in told and subject.roles[name] == "ids":
        special = _special(subject, x[0])
    if not tokens:
        tokens = {kind: n for kind in ("pad", "mask") if isinstance(n := _configured(subject, kind), int)}
    free = real & ~special
    if not bool(free.any()):
        raise InputError("There is nothing to remove in this row: every unit is special or padding.\n  Leave it out.")
    return Example(
        place=place, given=row["inputs"], model=subject.model, root=subject.root, inputs=dict(subject.inputs),
        form=subject.form, name=name, ids=subject.roles[name] == "ids", channel=channel_axis(subject, name),
        shape=shape, real=real, free=free, tokens=tokens, black=black, told=told, label=_label(row.get("label"), place),
        mask=_mask(row.get("mask"), place), rationale=row.get("rationale"),
    )  # fmt: skip


def _configured(subject: Subject, kind: str) -> Any:
    return getattr(getattr(subject.root, "config", None), f"{kind}_token_id", None)


def _special(subject: Subject, ids: Tensor) -> Tensor:
    known = [_configured(subject, kind) for kind in ("bos", "eos", "cls", "sep", "pad")]
    return torch.isin(ids.cpu(), torch.tensor([n for n in known if isinstance(n, int)], dtype=ids.dtype, device="cpu"))


def _black(processor: Any) -> Tensor | None:
    """What the processor makes of black."""
    mean, deviation = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    if mean is None or deviation is None or not getattr(processor, "do_normalize", True):
        return None
    m, d = (torch.as_tensor(part, dtype=torch.float64, device="cpu").flatten() for part in (mean, deviation))
    return (-m / d).view(1, -1, 1, 1)


def _label(given: Any, place: int) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool | str) or not np.issubdtype(np.asarray(given).dtype, np.integer) or np.ndim(given):
        raise TargetError(f"The label of row {place} is {given!r}.\n  Give the number of its class.")
    return int(given)


def _mask(given: Any, place: int) -> Tensor | None:
    if given is None:
        return None
    try:
        found = given if isinstance(given, Tensor) else torch.as_tensor(np.array(given), device="cpu")
    except (TypeError, ValueError):
        raise InputError(f"The mask of row {place} holds no numbers.\n  Give (height, width) of 0 and 1.") from None
    found = found[0] if found.dim() == 3 and len(found) == 1 else found
    if found.dim() != 2 or not found.numel():
        raise InputError(f"The mask of row {place} is {tuple(found.shape)}.\n  Give (height, width).")
    return found


def content(example: Example) -> bytes:
    """What tells a row's inputs from others': padding does not matter."""
    beside = [value for name, value in example.inputs.items() if name == "answer"]
    values = [example.x[:, example.real], *beside] if example.ids else example.inputs.values()
    parts = [bytes_of(v) if isinstance(v, Tensor) else repr(v).encode() for v in values]
    return hashlib.sha256(b"|".join(parts)).digest()


def masks_by_255(examples: Sequence[Example]) -> bool:
    """Whether masks hold nothing but 0 and 255, all of them, so that 255 shows the object."""
    values = {int(v) for example in examples if example.mask is not None for v in example.mask.unique().tolist()}
    return values <= {0, 255} and 255 in values


def bytes_of(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().flatten()
    return str(tuple(tensor.shape)).encode() + (flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")


# ---- what a model says ----


def called(example: Example, inputs: Mapping[str, Any]) -> Any:
    """The model's output for a batch of rows like the example's."""
    return blame.called(example.model, inputs, example.form, example.root)


def together(examples: Sequence[Example]) -> Any:
    """The inputs of several rows of one shape, in the form in which the user gave them."""
    whole = {name: joined(examples, name) for name in examples[0].inputs}
    form = examples[0].form
    return whole if form == "dict" else next(iter(whole.values())) if form == "tensor" else tuple(whole.values())


def joined(examples: Sequence[Example], name: str) -> Any:
    """An input of several rows, one after the other; what goes with no row is the first row's."""
    parts = [example.inputs[name] for example in examples]
    per_row = all(isinstance(part, Tensor) and part.dim() and len(part) == 1 for part in parts)
    return torch.cat(parts) if per_row else parts[0]


def failed(error: Exception, row: int, method: str = "", metric: str = "") -> Failure:
    """A failure to report: the first line of what was said."""
    said = str(error).strip().split("\n")[0] or type(error).__name__
    kind = "" if isinstance(error, WhenceError) else f"{type(error).__name__}: "
    return Failure(row, method, metric, kind + said)
