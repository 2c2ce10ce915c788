"""Perturbation: a batch's scores as a function of which features are there, which `whence.explain` takes apart.

The explained model is `Presence`: from coalitions of features, (m, n) numbers that are 1 or 0, to the model's outputs.
So a feature may be any set of elements of any inputs of any type, and a model may give one number for the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.api import explain
from whence.captum.calls import Tensors, check, more_targets, read_target, repeated, select, undisturbed
from whence.captum.views import View, own_errors


@dataclass(frozen=True, eq=False)
class Features:
    """Which feature each element of each input belongs to, (1 or rows, …), numbered from 0 without gaps."""

    index: Tensors
    count: int

    @staticmethod
    def of(inputs: Tensors, mask: Any) -> Features:
        """One feature for each element of a row, or for each number of a mask."""
        if mask is None:
            sizes = [x[0].numel() if x.dim() and len(x) else 0 for x in inputs]
            starts = [sum(sizes[:i]) for i in range(len(sizes))]
            index = tuple(
                torch.arange(start, start + size, device=x.device).reshape(1, *x.shape[1:])
                for x, size, start in zip(inputs, sizes, starts, strict=True)
            )
            return Features(index, sum(sizes))
        masks = mask if isinstance(mask, tuple) else (mask,)
        check(len(masks) == len(inputs), f"There are {len(masks)} feature masks for {len(inputs)} inputs.")
        known, place = torch.cat([m.detach().flatten().double().cpu() for m in masks]).unique(return_inverse=True)
        index = tuple(
            part.reshape(m.shape).to(x.device)
            for part, m, x in zip(place.split([m.numel() for m in masks]), masks, inputs, strict=True)
        )
        index = tuple(i[(None,) * (x.dim() - i.dim())] for i, x in zip(index, inputs, strict=True))
        for i, x in zip(index, inputs, strict=True):
            check(
                i.dim() == x.dim() and all(size in (1, whole) for size, whole in zip(i.shape, x.shape, strict=True)),
                f"A feature mask has the shape {tuple(i.shape)}, its input {tuple(x.shape)}.\n"
                "  Give a mask of the input's shape, or one that broadcasts to it.",
            )
        return Features(tuple(i.expand(len(i), *x.shape[1:]) for i, x in zip(index, inputs, strict=True)), len(known))

    def there(self, present: Tensor, which: int) -> Tensor:
        """Whether each element of an input is there, (m, 1 or rows, …), for coalitions (m, n)."""
        return present[:, self.index[which]]

    def spread(self, values: Tensor, which: int, rows: int) -> Tensor:
        """Values (outputs, n) at the elements of an input, (outputs, …)."""
        index = self.index[which]
        if len(index) == 1:
            return values[:, index[0]]
        owner = torch.arange(len(values), device=index.device) * rows // len(values)
        return torch.stack([value[index[row]] for value, row in zip(values, owner.tolist(), strict=True)])


class Presence(View):
    """The model's outputs for coalitions of features: those that are missing have their baseline's values."""

    def __init__(
        self, function: Callable[..., Any], inputs: Tensors, absent: Tensors, features: Any, args: tuple[Any, ...],
        target: Any,
    ) -> None:  # fmt: skip
        super().__init__(function)
        self.inputs, self.absent, self.features = inputs, absent, features
        self.args, self.target = args, target
        self.done: Callable[[], Any] = lambda: None
        self.tensors = True
        with undisturbed(function):
            self.first = self.outputs(inputs, 1)

    def outputs(self, inputs: Tensors, times: int) -> Tensor:
        """What the model gives for inputs that hold so many copies of the batch."""
        args = tuple(repeated(arg, times) for arg in self.args)
        found = self.function(*inputs, *args)
        self.tensors = isinstance(found, Tensor)
        output = select(found, read_target(more_targets(self.target, times)))
        self.done()
        return output

    def forward(self, coalitions: Tensor) -> Tensor:
        present, times = coalitions > 0.5, len(coalitions)
        inputs = []
        for which, (x, other) in enumerate(zip(self.inputs, self.absent, strict=True)):
            keep = self.features.there(present, which).expand(times, *x.shape)
            inputs.append(torch.where(keep, x, other).flatten(0, 1))
        output = self.outputs(tuple(inputs), times)
        grows = output.dim() and len(output) == times * len(self.first) if self.first.dim() else times == 1
        check(
            times == 1 or grows,
            "With perturbations_per_eval > 1 the output must have one entry per row of input, but its shape is "
            f"{tuple(self.first.shape)} for one batch and {tuple(output.shape)} for {times}.",
        )
        score = output.reshape(times, -1)
        score = score if score.is_floating_point() else score.double()
        return score + 0 * coalitions.sum(1, keepdim=True).to(score)  # also where a number came by .item()


@contextmanager
def _progress(view: Presence, show: bool, title: str, total: int) -> Iterator[None]:
    """A bar that counts the model's runs."""
    if not show:
        yield
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=f"{title} attribution") as bar:
        view.done = lambda: bar.update(int(bar.n < total))
        yield
        bar.update(total - bar.n)


def by_feature(
    view: Presence, method: str, per_eval: int, *, show: bool = False, title: str = "", runs: int = 0, **params: Any
) -> Tensor:
    """`whence.explain` of a view: the attribution of each of its outputs to each feature, (outputs, n)."""
    check(
        isinstance(per_eval, int) and per_eval >= 1,
        f"perturbations_per_eval={per_eval!r} is not allowed.\n  Give a whole number of at least 1.",
    )
    n, k = view.features.count, view.first.numel()
    if n == 0 or k == 0:
        return torch.zeros(k, n, device="cpu")
    like = view.first if view.first.is_floating_point() else view.first.double()
    seed = 0 if method == "leave_one_out" else int(torch.randint(2**31, (), device="cpu"))  # that draws nothing
    with _progress(view, show, title, -(-runs // per_eval) + 1), own_errors():
        answer = explain(
            view, torch.ones(1, n, dtype=like.dtype, device=like.device), method=method,
            target=torch.arange(k, device="cpu")[None], baseline=0.0, batch_size=per_eval, progress=False, seed=seed,
            **params,
        )  # fmt: skip
    return answer.raw[0]
