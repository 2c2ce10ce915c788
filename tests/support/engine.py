"""Running the engine below the front door, for tests of the engine itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from whence import Call
from whence.adapters.tensors import adapt
from whence.engine.expand import EXPANSIONS
from whence.engine.scope import scope
from whence.rules.deeplift import DEEPLIFT_RULES as REFERENCE
from whence.subject import Subject, baselines
from whence.subject.passes import Pass
from whence.subject.targets import read_target

EVERY = frozenset(EXPANSIONS)


def own(call: Call, m: Any) -> Any:
    """The derivative as a rule: runs the op in a node of its own."""
    return call.vjp(m)


OWN = {"*": own}


def subject(model: Any, inputs: Any, target: Any = 0, **options: Any) -> Subject:
    made = adapt(model, inputs, method="test", **options)
    return replace(made, target=read_target(target, made.rows), seeds=(0,) * made.rows)


def as_inputs(made: Subject, baseline: Any) -> Subject:
    """The subject with a baseline in the place of its inputs."""
    return baselines.parse(made, baseline)[0].as_inputs_of(made)


def run(model: Any, inputs: Any, rules: Any = None, target: Any = 0, wrt: Any = None, **plan: Any) -> Pass:
    made = subject(model, inputs, target, wrt=wrt)
    with scope(made.root):
        return made.run(rules, **plan)


def gradients(model: Any, inputs: Any, rules: Any = None, **plan: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Scores and what they send back to the inputs."""
    done = run(model, inputs, rules, **plan)
    return done.score.detach(), done.pull()


def gap(model: Any, x: Any, baseline: Any, rules: Any = None, target: Any = 0, **plan: Any) -> float:
    """Worst row of |Σ m·Δx − Δf| / |Δf| for a reference method."""
    made = subject(model, x, target)
    with scope(made.root):
        reference = as_inputs(made, baseline)
        done = made.run(rules or REFERENCE, reference=reference, **plan)
        found = done.pull()
    assert done.reference is not None
    total = sum(
        (found[key][:, 0] * (leaf.detach() - done.reference.leaves[key].detach())).flatten(1).sum(1)
        for key, leaf in done.leaves.items()
    )
    delta = (done.score - done.reference.score)[:, 0].detach()
    return float(((total - delta).abs() / delta.abs().clamp(min=1e-9)).max())


def all_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor], rtol: float) -> None:
    assert a.keys() == b.keys()
    for key in a:
        apart, size = float((a[key] - b[key]).abs().max()), float(b[key].abs().max())
        assert apart <= rtol * size, f"{key}: apart by {apart:.3g}, largest {size:.3g}"
    assert all(torch.isfinite(v).all() for v in a.values())
