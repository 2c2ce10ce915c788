"""The gradient and its product with the input."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from whence.engine.call import Call, Rule, derivative
from whence.methods import method
from whence.registry import Bounds
from whence.subject import Subject

EVERYWHERE: dict[str, Rule] = {"*": derivative}


@method(
    "gradient",
    paper="Simonyan, Vedaldi & Zisserman 2014, arXiv:1312.6034",
    order=10,
    aliases=("saliency", "saliency_map", "vanilla_gradient", "grad"),
    slope=True,
)
def gradient(
    subject: Subject,
    *,
    absolute: bool = False,
    relu: Literal["derivative", "softplus"] = "derivative",
    beta: Annotated[float, Bounds(low=0, open_low=True)] = 1.0,
) -> dict[str, Tensor]:
    """The derivative of the score by each input, φ = ∇f(x): what a small change of the input would do.

    `absolute=True` gives the saliency map |∇f(x)|. `relu="softplus"` replaces each ReLU's step in the backward
    pass by softplus's slope σ(βx), a remedy for gradients that jump.
    """
    rules: dict[str, Rule] = {"relu": softplus_slope(beta)} if relu == "softplus" else {}
    gradients = subject.run({**rules, **EVERYWHERE}).pull()
    return {key: m.abs() for key, m in gradients.items()} if absolute else gradients


@method(
    "input_x_gradient",
    paper="Shrikumar et al. 2016, arXiv:1605.01713",
    order=10,
    aliases=("ixg", "gradient_x_input", "grad_x_input", "gradient_times_input"),
)
def input_x_gradient(subject: Subject) -> dict[str, Tensor]:
    """The input times its gradient, φ = x ⊙ ∇f(x): the share of a linear model's score that each input holds."""
    done = subject.run(EVERYWHERE)
    x = done.x
    return {key: x[key] * m for key, m in done.pull().items()}


def softplus_slope(beta: float) -> Rule:
    """Rule: m · σ(βx), the derivative of softplus(βx)/β."""

    def softplus(call: Call, m: Tensor) -> Tensor:
        return m * torch.sigmoid(beta * call.x[0])

    return softplus
