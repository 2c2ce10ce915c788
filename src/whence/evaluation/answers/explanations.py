"""The methods' answers for the rows of an evaluation: as they are, moved by a step, and with random weights."""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from whence.adapters.wrapped import Wrapped
from whence.api import explain
from whence.errors import InputError, MethodError, ModelError, WhenceError, WhenceWarning
from whence.evaluation.data import named
from whence.evaluation.examples import Example, bytes_of, together, unbroken
from whence.evaluation.fingerprint import said
from whence.evaluation.requests import Again, Randomised, View
from whence.evaluation.writing import Writes
from whence.methods import methods
from whence.results.attribution import Attribution
from whence.results.text_units import numbers_of, parts_of


@dataclass(frozen=True, eq=False)
class Ranker:
    """A line of the table: a method with its parameters, or a function of the user's."""

    name: str
    method: str = ""
    params: Mapping[str, Any] | None = None
    function: Callable[..., Any] | None = None  # (model, inputs, targets) → a tensor of values

    @property
    def said(self) -> Any:
        """For a result file."""
        return [self.method, said(dict(self.params or {})), said(self.function)]


def rankers(given: Any) -> list[Ranker]:
    """Names, or a dict from a line's name to a method's parameters ("method" among them, if it is another) or to a
    function."""
    found = []
    for name, params in named(given, "method", InputError, functions=True).items():
        if callable(params):
            found.append(Ranker(name, function=params))
            continue
        other = params.pop("method", None)
        method = name if other is None else other
        if method not in CONTROLS:
            name = methods.label(name) if other is None else name
            method, preset = methods.resolve(method)
            params = {**preset, **params}
            methods[method].check({k: v for k, v in params.items() if k in methods[method].parameters})
        if name in {ranker.name for ranker in found}:
            raise InputError(f"The method {name!r} is listed twice.\n  Give a dict to have it with other parameters.")
        found.append(Ranker(name, method, params))
    return found


@dataclass(frozen=True, eq=False)
class Explainer:
    """How this evaluation calls `explain`."""

    model: Any
    options: Mapping[str, Any]
    seed: int
    wrt: Any = None
    batch_size: int | None = None  # most rows that the model sees at once

    def of_rows(
        self, ranker: Ranker, examples: Sequence[Example], targets: Sequence[int]
    ) -> list[Attribution | Exception]:
        """Each row's attribution, with its axis of rows; or what went wrong for it."""
        return self._each(ranker, self.model, examples, targets)

    def of_steps(self, ranker: Ranker, asked: Sequence[tuple[View, Again]]) -> list[Any]:
        """φ of each row moved by a step, like the input."""
        for view, _ in asked:
            unbroken(view.example)
        examples = [
            replace(
                view.example,
                inputs={**view.example.inputs, view.example.name: view.example.x + again.step.to(view.example.x)},
                seed=view.example.seed + _redrawn(ranker, bytes_of(again.step)),
            )
            for view, again in asked
        ]
        found = self._each(ranker, examples[0].model, examples, [view.target for view, _ in asked])
        return [a if isinstance(a, Exception) else a.raw for a in found]

    def randomised(self, ranker: Ranker, asked: Sequence[tuple[View, Randomised]]) -> list[Any]:
        """Unit scores of each row under a model whose weights are random from the top down to a stage."""
        wanted = asked[0][1]
        root = asked[0][0].example.root
        if not isinstance(root, nn.Module) or (not isinstance(self.model, Wrapped) and self.model is not root):
            raise ModelError("Randomised weights need an nn.Module.\n  Give the module itself, not a function.")
        other: Any = randomised(root, wanted.stage, wanted.stages, wanted.alone, self.seed)
        if isinstance(self.model, Wrapped):
            other = replace(self.model, model=other.lm if isinstance(other, Writes) else other)
        salt = _redrawn(ranker, f"{wanted.stage} of {wanted.stages}, {wanted.alone}".encode())
        examples = [replace(view.example, seed=view.example.seed + salt) for view, _ in asked]
        found = self._each(ranker, other, examples, [view.target for view, _ in asked])
        return [
            a if isinstance(a, Exception) else unit_scores(example, a)
            for example, a in zip(examples, found, strict=True)
        ]

    def _each(
        self, ranker: Ranker, model: Any, examples: Sequence[Example], targets: Sequence[int]
    ) -> list[Attribution | Exception]:
        """Rows that go together in one call; one by one where that fails, so that one bad row spoils no other."""
        found: list[Any] = [None] * len(examples)
        groups: dict[Any, list[int]] = {}
        for number, example in enumerate(examples):
            shapes = tuple(tuple(v.shape) for v in example.inputs.values() if isinstance(v, Tensor))
            groups.setdefault("" if isinstance(model, Wrapped) else shapes, []).append(number)
        size = self.batch_size or len(examples)
        for members in groups.values():
            parts_of = [members[start : start + size] for start in range(0, len(members), size)]
            for some in (*parts_of, *([n] for n in members)):
                if all(found[n] is not None and not isinstance(found[n], Exception) for n in some):
                    continue
                try:
                    parts = self._called(ranker, model, [examples[n] for n in some], [targets[n] for n in some])
                except Exception as error:  # the row's, the model's or the method's: reported
                    parts = [error] * len(some)
                for n, part in zip(some, parts, strict=True):
                    found[n] = part
        return found

    def _called(self, ranker: Ranker, model: Any, examples: Sequence[Example], targets: Sequence[int]) -> list[Any]:
        if ranker.method in CONTROLS:
            return [CONTROLS[ranker.method](example) for example in examples]
        inputs = [example.given for example in examples] if isinstance(model, Wrapped) else together(examples)
        if ranker.function is not None:
            wanted = torch.tensor(list(targets), device="cpu")
            values = torch.as_tensor(ranker.function(model, inputs, wanted), device="cpu")
            if values.dim() == 0 or len(values) != len(examples):
                raise InputError(
                    f"{ranker.name} gave values of shape {tuple(values.shape)} for {len(examples)} rows.\n{_WANTED}"
                )
            return [_bare(ranker.name, values[i : i + 1], targets[i]) for i in range(len(examples))]
        sized = {} if self.batch_size is None else {"batch_size": self.batch_size}
        options = {**sized, **self.options, **(ranker.params or {})}
        seed = int(options.pop("seed", self.seed))
        seeds = [(seed * 1_000_003 + example.seed) % 2**31 for example in examples]
        asked = [example.told.get("target", number) for example, number in zip(examples, targets, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WhenceWarning)  # what matters of them is measured here
            a = explain(
                model, inputs, method=ranker.method, target=asked, seed=seeds, wrt=self.wrt, progress=False,
                **options,
            )  # fmt: skip
        return [a._pick([i]) for i in range(len(examples))]


_WANTED = "  A function f(model, inputs, targets) returns one value per element, or per unit, of each row's input."


def blamed(error: Exception, line: Ranker, row: int) -> Exception:
    """An error of a method that works for no row, with its name, the row and the way out; Whence's own stay."""
    if isinstance(error, WhenceError):
        return error
    said = f"The method {line.name!r} raised {type(error).__name__} for row {row}: {error}\n"
    way = "  Leave it out: see `whence.explain` with this method and row for where it happens."
    found = MethodError(said + (way if line.function is None else _WANTED))
    found.__cause__ = error
    return found


def _redrawn(ranker: Ranker, asked: bytes) -> int:
    """What moves a row's seed where a method is asked again: the control, which hears of no change, draws anew."""
    return 1 + zlib.crc32(asked) if ranker.method == "random" else 0


def _bare(name: str, values: Tensor, target: int) -> Attribution:
    return Attribution(
        values=values, raw=values, target=torch.tensor([target], device="cpu"),
        output_value=torch.zeros(1, device="cpu"), method=name, params={},
        receipt={"forward_passes": 0, "backward_passes": 0},
    )  # fmt: skip


def edges(example: Example) -> Attribution:
    """The control of images: where the picture has edges, by Sobel's filters."""
    if not example.image:
        raise InputError("edges is a control for images.\n  Leave it out.")
    gray = example.x.detach().cpu().double().mean(1, keepdim=True)
    across = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=torch.float64, device="cpu")
    padded = nn.functional.pad(gray, (1, 1, 1, 1), mode="replicate")
    found = [nn.functional.conv2d(padded, filter_[None, None]) for filter_ in (across, across.T)]
    return _bare("edges", (found[0] ** 2 + found[1] ** 2).sqrt()[:, 0], 0)


CONTROLS: dict[str, Callable[[Example], Attribution]] = {"edges": edges}  # beside the method `random`


def unit_scores(example: Example, a: Attribution) -> Tensor:
    """One number per unit, (units,) in float64, of one row's attribution."""
    if not a.one_input:
        raise InputError(f"{a.method} explains several inputs.\n  Name the one to evaluate with wrt=.")
    if a.image_size is not None and tuple(a.values.shape[1:]) != example.shape:
        a = a.to_image_size()
    values = _of_tokens(example, a) if _is_by_parts(example, a) else a.values[0].detach().cpu().double()
    if values.dim() == len(example.shape) + 1 and example.channel is not None:
        values = values.sum(example.channel - 1)
    if example.ids and values.dim() == 1:
        values = values[: example.shape[0]]  # beyond are the paddings of a longer row
    if tuple(values.shape) != example.shape:
        raise InputError(
            f"{a.method} gave values of shape {tuple(values.shape)}, but the row's units have shape {example.shape}.\n"
            + (_WANTED if a.method not in methods else "  Leave at= out, or this method.")
        )
    if not bool(torch.isfinite(values[example.real.view(example.shape)]).all()):
        raise InputError(f"{a.method} gave values that are not finite.\n  Leave the row out.")
    return values.flatten()


def _is_by_parts(example: Example, a: Attribution) -> bool:
    """Whether a text was explained by sentences or other parts."""
    return example.ids and isinstance(a.params.get("units"), str) and a.words is None and a.spans is not None


def _of_tokens(example: Example, a: Attribution) -> Tensor:
    """The values of a text's parts, shared equally among the tokens of each; 0 for tokens of no part."""
    told, values = example.told, a.values[0].detach().cpu().double()
    parts = parts_of(told["text"], a.params["units"], told.get("messages"))
    numbers = torch.tensor(numbers_of(parts, told["spans"], told["special"], 0, False), device="cpu")
    sizes = torch.bincount(numbers.clamp(min=0), weights=(numbers >= 0).double(), minlength=len(parts))
    shared = values[: len(parts)] / sizes.clamp(min=1)[: len(parts)]
    return torch.where(numbers >= 0, shared[numbers.clamp(min=0)], 0.0)


def scores_or_error(example: Example, a: Attribution | Exception) -> Tensor | Exception:
    """One number per unit, or what is wrong with them."""
    if isinstance(a, Exception):
        return a
    try:
        return unit_scores(example, a)
    except Exception as error:
        return error


# ---- random weights ----


def stages_of(root: nn.Module, stages: int) -> list[list[nn.Module]]:
    """The modules with weights of their own, from the top down, in so many groups."""
    layers = [module for module in root.modules() if next(module.parameters(recurse=False), None) is not None][::-1]
    count = min(stages, len(layers))
    if count == 0:
        raise ModelError("The model has no weights to randomise.\n  Leave this metric out.")
    ends = [round(i * len(layers) / count) for i in range(count + 1)]
    return [layers[a:b] for a, b in pairwise(ends)]


@torch.no_grad()
def randomised(root: nn.Module, stage: int, stages: int, alone: bool, seed: int) -> nn.Module:
    """A copy with the weights of some stages drawn anew, from a normal with each tensor's own mean and deviation."""
    other = copy.deepcopy(root)
    groups = stages_of(other, stages)
    for number, group in enumerate(groups):
        if number != stage if alone else number > stage:
            continue
        generator = torch.Generator().manual_seed(seed * 1009 + number)
        for module in group:
            for p in module.parameters(recurse=False):
                if p.is_floating_point():
                    draw = torch.randn(p.shape, generator=generator, dtype=torch.float64, device="cpu")
                    spread = p.double().std(correction=0).cpu() if p.numel() > 1 else torch.zeros((), device="cpu")
                    p.copy_(draw * spread + p.double().mean().cpu())
    return other
