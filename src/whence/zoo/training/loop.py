"""One training loop for every model of the zoo, and what a recipe hands over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whence.adapters.wrapped import Wrapped
from whence.subject.logits import find_logits
from whence.util.progress import steps

MUON_RATE = 0.02  # of matrices of any size: what it changes in a step is orthogonal


@dataclass(frozen=True)
class Trained:
    """A model as `whence.load` will give it, and what its folder needs beside weights, card and examples."""

    wrapped: Wrapped
    config: Mapping[str, Any] | None = None  # of a model of our own: its arguments, its labels
    write: Callable[[Path], object] = lambda folder: None  # further files


@dataclass(frozen=True)
class Recipe:
    """How one model is trained, and what its card says."""

    train: Callable[[int], Trained]
    measure: Callable[[Wrapped], dict[str, float]]  # the first score is the one that counts
    card: Mapping[str, Any]
    examples: Sequence[str]
    resumable: bool = False  # whether `train` takes a checkpoint's file beside the seed


def fit(
    model: nn.Module, batches: Iterator[Any], loss: Callable[[Any], Tensor], *,
    count: int, rate: float, decay: float = 0.01, title: str, checkpoint: Path | None = None,
    matrices: Sequence[nn.Parameter] = (),
) -> None:  # fmt: skip
    """AdamW with a rate that rises for a tenth of the steps and falls to 0, gradients clipped at 1.

    Muon (Jordan et al. 2024) takes the `matrices`, if there are any: a transformer learns in fewer steps so.
    With a `checkpoint` file the state is written every hundred steps, and a loop that was stopped goes on from there;
    it ends with the same weights if the loss draws from nothing but its batch.
    """
    apart = {id(matrix) for matrix in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in apart]
    optimisers: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, lr=rate, weight_decay=decay)]
    if matrices:
        optimisers.append(torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=decay))
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(each, each.param_groups[0]["lr"], total_steps=count + 1, pct_start=0.1)
        for each in optimisers
    ]
    model.train()
    held = {"model": model, **_numbered("optimiser", optimisers), **_numbered("schedule", schedules)}
    done = _resumed(held, checkpoint)
    for _ in range(done):
        next(batches)
    for step in steps(range(done, count), None, title):
        model.zero_grad(set_to_none=True)
        loss(next(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser, schedule in zip(optimisers, schedules, strict=True):
            optimiser.step()
            schedule.step()
        if checkpoint is not None and (step + 1) % 100 == 0:
            _save(held, step + 1, checkpoint)
    model.eval()


def _numbered(name: str, parts: Sequence[Any]) -> dict[str, Any]:
    return {f"{name} {number}": part for number, part in enumerate(parts)}


def _save(held: Mapping[str, Any], done: int, checkpoint: Path) -> None:
    beside = checkpoint.with_name(checkpoint.name + ".part")
    torch.save({"done": done, **{name: part.state_dict() for name, part in held.items()}}, beside)
    beside.replace(checkpoint)


def _resumed(held: Mapping[str, Any], checkpoint: Path | None) -> int:
    """How many steps were made before; their state is put back."""
    if checkpoint is None or not checkpoint.is_file():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    for name, part in held.items():
        part.load_state_dict(state[name])
    return int(state["done"])


def shuffled(count: int, size: int, lengths: Sequence[int] | None = None) -> Iterator[list[int]]:
    """Batches of indices for ever; rows of like length together, where lengths are given."""
    while True:
        order = torch.randperm(count, device="cpu")
        if lengths is None:
            batches = order.split(size)
        else:  # sorted within pools of fifty batches
            ranked = [
                sorted(pool, key=lambda row: lengths[row])
                for pool in (part.tolist() for part in order.split(50 * size))
            ]
            every = [
                torch.tensor(pool[i : i + size], device="cpu") for pool in ranked for i in range(0, len(pool), size)
            ]
            batches = tuple(every[i] for i in torch.randperm(len(every), device="cpu").tolist())
        yield from (batch.tolist() for batch in batches)


@torch.no_grad()
def accuracy(wrapped: Wrapped, rows: Sequence[tuple[str, int]]) -> float:
    """The share of texts whose highest score is their label's."""
    right = 0
    for request in wrapped.requests([text for text, _ in rows], None, 256):
        found = find_logits(request.model(**request.inputs)).argmax(1)
        right += int((found == torch.tensor([rows[row][1] for row in request.rows], device="cpu")).sum())
    return right / len(rows)
