"""Infidelity and largest sensitivity of attributions from anywhere: free-standing, row by row (Yeh et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from whence.adapters.options import Options, subject_of
from whence.adapters.reachable import modules_behind
from whence.engine.custom_functions import suspended
from whence.engine.scope import scope
from whence.errors import InputError, gathered
from whence.evaluation.metrics.infidelity import squared_error
from whence.evaluation.metrics.sensitivity import largest_move
from whence.results.attribution import Attribution
from whence.util.checks import check_count

_SEED_STEP = 1_000_003  # so that the draws of one seed never meet those of the next
Perturb = Callable[[Any], Any]


def infidelity(
    model: Any, inputs: Any, attributions: Any, *, target: Any = None, perturb: Perturb | None = None,
    noise: float = 0.2, samples: int = 20, scaled: bool = False, seed: int = 0,
) -> Tensor:  # fmt: skip
    """E[(Iᵀφ − (f(x) − f(x − I)))²] of each row, (rows,): how well φ predicts what a perturbation I does to the score.

    `attributions` have the form of the explained inputs (an Attribution counts with its `raw`), or are a function that
    makes them from the inputs. `perturb` is a function from the inputs to I, in their form, called `samples` times with
    torch's generator at a seed of its own; without one I is Gaussian noise. `scaled` takes φ at each row's best scale.

    >>> import torch, whence
    >>> model, x = torch.nn.Linear(3, 2), torch.ones(2, 3)
    >>> phi = whence.explain(model, x, method="gradient", target=0)
    >>> bool(whence.infidelity(model, x, phi, target=0).max() < 1e-8)
    True
    """
    check_count("samples", samples)
    phi = attributions(inputs) if callable(attributions) else attributions
    with gathered(), suspended():
        subject = subject_of(model, inputs, Options("infidelity", target), {})
        with scope(subject.root, *modules_behind(subject.target).values()):
            subject.run(gradient=False)
            pinned = subject.pinned()
            xs = {name: subject.inputs[name] for name in subject.roles}
            _check_floating(xs)
            values = _named(phi, xs, "attributions")
            assert subject.measured.score is not None
            whole, guesses, rises = subject.measured.score[:, 0].double(), [], []
            for draw in range(samples):
                given = _like(xs, inputs)
                taken = _named(_drawn(perturb, given, seed, draw, lambda n: noise * n.randn()), xs, "perturb")
                there = pinned.valued({name: x - taken[name] for name, x in xs.items()})
                rises.append(whole - there.run(gradient=False).score[:, 0].double())
                guesses.append(torch.stack([_dot(taken[name], values[name]) for name in xs]).sum(0))
    return squared_error(torch.stack(guesses, 1), torch.stack(rises, 1), scaled)


def sensitivity_max(
    explaining: Callable[[Any], Any], inputs: Any, *, perturb: Perturb | None = None, radius: float = 0.02,
    samples: int = 10, norm: float = 2.0, seed: int = 0,
) -> Tensor:  # fmt: skip
    """max ‖φ(x+δ) − φ(x)‖ / ‖φ(x)‖ of each row, (rows,): how far an explanation moves when its input hardly does.

    `explaining` is a function from the inputs (a tensor, or a tuple or dict of tensors) to attributions in their form,
    or to an Attribution. `perturb` is a function from the inputs to x+δ, called `samples` times with torch's generator
    at a seed of its own; without one δ is uniform within ±`radius`. All inputs of a row count together.

    >>> import torch, whence
    >>> model, x = torch.nn.Linear(3, 2), torch.ones(2, 3)
    >>> whence.sensitivity_max(lambda x: whence.explain(model, x, method="gradient", target=0), x)
    tensor([0., 0.], dtype=torch.float64)
    """
    check_count("samples", samples)
    xs = _by_name(inputs)
    _check_floating(xs)
    here, moved = _flat(explaining(inputs), xs), []
    for draw in range(samples):
        step = (lambda n: radius * (2 * n.rand() - 1)) if perturb is None else None
        there = _named(_drawn(perturb, inputs, seed, draw, step), xs, "perturb")
        there = {name: xs[name] + there[name] for name in xs} if perturb is None else there
        moved.append(_flat(explaining(_like(there, inputs)), xs))
    return largest_move(here, torch.stack(moved), norm)


class _Numbers:
    """Random numbers in the shape of one row, the same for every row, such that none depends on its position."""

    def __init__(self, x: Tensor, generator: torch.Generator) -> None:
        self.x, self.generator = x, generator

    def randn(self) -> Tensor:
        return self._like(torch.randn(self.x.shape[1:], generator=self.generator, dtype=torch.float64, device="cpu"))

    def rand(self) -> Tensor:
        return self._like(torch.rand(self.x.shape[1:], generator=self.generator, dtype=torch.float64, device="cpu"))

    def _like(self, numbers: Tensor) -> Tensor:
        return numbers.to(self.x).expand_as(self.x)


def _drawn(perturb: Perturb | None, inputs: Any, seed: int, draw: int, own: Any) -> Any:
    """What a perturbation gives in this draw; torch's own random state is as it was afterwards."""
    number = (seed * _SEED_STEP + draw) % 2**63
    if perturb is None:
        generator = torch.Generator().manual_seed(number)
        made = {name: own(_Numbers(x, generator)) for name, x in _by_name(inputs).items()}
        return _like(made, inputs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number)
        return perturb(inputs)


# ---- what has the form of the inputs ----


def _by_name(inputs: Any) -> dict[str, Tensor]:
    """The floating tensors among some inputs."""
    if isinstance(inputs, Tensor):
        return {"input": inputs}
    items = inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs) if _listed(inputs) else ()
    return {str(name): x for name, x in items if isinstance(x, Tensor) and x.is_floating_point()}


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _check_floating(xs: Mapping[str, Tensor]) -> None:
    if not xs or not all(x.is_floating_point() for x in xs.values()):
        raise InputError("Perturbations are added to numbers, but the rows are ids.\n  Give embeddings, or features.")


def _named(given: Any, xs: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """One tensor for each explained input, of its shape."""
    if isinstance(given, Attribution):
        given = given.raw
    if not isinstance(given, Mapping):
        given = dict(zip(xs, [given] if isinstance(given, Tensor) else list(given), strict=False))
    found: dict[str, Tensor] = {}
    for name, x in xs.items():
        value = given.get(name)
        if not isinstance(value, Tensor) or value.shape != x.shape:
            shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise InputError(
                f"{what}: there is {shape} for the input {name!r}, which is {tuple(x.shape)}.\n  Give one like it."
            )
        found[name] = value.detach()
    return found


def _like(xs: Mapping[str, Tensor], inputs: Any) -> Any:
    """The inputs with these in their places."""
    if isinstance(inputs, Mapping):
        return {name: xs.get(str(name), x) for name, x in inputs.items()}
    if _listed(inputs):
        return type(inputs)(xs.get(str(i), x) for i, x in enumerate(inputs))
    return next(iter(xs.values()))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The product of two inputs of a row, summed: (rows,)."""
    return (a.double() * b.double()).flatten(1).sum(1)


def _flat(given: Any, xs: Mapping[str, Tensor]) -> Tensor:
    """All attributions of a row in one vector, (rows, n)."""
    return torch.cat([value.double().flatten(1) for value in _named(given, xs, "attributions").values()], 1)
