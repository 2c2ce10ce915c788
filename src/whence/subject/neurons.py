"""Units inside a model as targets: `whence.neuron("path", index)`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.engine.places import Place
from whence.errors import TargetError
from whence.subject.up_to import Arguments, UpTo

if TYPE_CHECKING:
    from whence.subject.subject import Subject


@dataclass(frozen=True, eq=False)
class Neuron:
    """A unit of a module's output, or several that are summed: the explained score."""

    path: str
    index: Any  # of one row's output; or a function from the module's output to one score per row

    @property
    def __name__(self) -> str:
        own = getattr(self.index, "__name__", self.index)
        return f"neuron {self.path} {own}"

    def __call__(self, output: Any) -> Any:
        """One score per row."""
        if callable(self.index):
            return self.index(output.alone() if isinstance(output, Arguments) else output)
        assert isinstance(output, Tensor)
        chosen = output[self.place_in(output)]
        return chosen.flatten(1).sum(1) if chosen.dim() > 1 else chosen

    def place_in(self, output: Tensor) -> tuple[Any, ...]:
        """The index into the module's output, rows first; an error if nothing is there."""
        index = self.index if isinstance(self.index, tuple) else (self.index,)
        if len(index) != output.dim() - 1 and Ellipsis not in index:
            raise TargetError(
                f"neuron({self.path!r}, {self.index!r}): this module's output is {tuple(output.shape)}, so one of its "
                f"units has {output.dim() - 1} indices after the row's.\n"
                "  Give as many; a slice among them, such as slice(None), sums over what it selects."
            )
        try:
            chosen = output[(slice(None), *index)]
        except IndexError:
            raise TargetError(
                f"neuron({self.path!r}, {self.index!r}) is out of range: this module's output is "
                f"{tuple(output.shape)}, rows first.\n  Give an index within one row of it."
            ) from None
        if not chosen.numel():
            raise TargetError(f"neuron({self.path!r}, {self.index!r}) selects nothing.\n  Give an index that does.")
        return (slice(None), *index)


def selected(unit: Neuron, values: Tensor) -> Tensor:
    """The values at the units that an index selects, and 0 elsewhere."""
    chosen, index = torch.zeros_like(values), unit.place_in(values)
    chosen[index] = values[index]
    return chosen


def neuron(path: str, index: Any) -> Neuron:
    """A unit inside the model, as `target=`: f is then a module's output at an index, and nothing after it is run.

    `path` is the module ("path@2": its second call; "path@input": what enters it). `index` is an int, a slice, a tuple
    of them into one row's output (what slices select is summed), or a function from the module's output to one score
    per row.

    >>> import torch, whence
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> whence.explain(model, torch.ones(1, 3), method="gradient", target=whence.neuron("1", 2)).values.shape
    torch.Size([1, 3])
    """
    parts = index if isinstance(index, tuple) else (index,)
    known = all(isinstance(part, int | slice | EllipsisType) and not isinstance(part, bool) for part in parts)
    if not isinstance(path, str) or not (callable(index) or (known and parts)):
        raise TargetError(
            f"neuron({path!r}, {index!r}) names no unit.\n"
            "  Give a module's path, and an int, a slice, a tuple of them, or a function of the module's output."
        )
    return Neuron(path, index)


def up_to(subject: Subject, target: Neuron, place: Place) -> Subject:
    """The subject whose model ends where the neuron is."""
    assert subject.root is not None
    return replace(subject, model=UpTo(subject.model, subject.root, place, first=not callable(target.index)))
