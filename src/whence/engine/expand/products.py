"""Products of matrices and of several factors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from whence.engine.expand import expansion


def _both_live(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """More than a constant matrix and a bias."""
    return len(live) > 1 or any(args[0] is t for t in live)


def _not_dense(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """More than a constant matrix and a bias, or either of them scaled."""
    return kwargs.get("alpha", 1) != 1 or kwargs.get("beta", 1) != 1 or _both_live(args, kwargs, live)


@expansion("baddbmm")
@expansion("addmm", "addmv", when=_not_dense)
def addmm(input: Tensor, *factors: Tensor, beta: float = 1, alpha: float = 1, **named: Tensor) -> Tensor:
    """With two live factors, as addmv and baddbmm too: a product, then a sum."""
    a, b = (*factors, *named.values())
    product = a @ b if alpha == 1 else (a @ b) * alpha
    return product + (input if beta == 1 else input * beta)


@expansion("addbmm", when=_not_dense)
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return input * beta + (batch1 @ batch2).sum(0) * alpha


@expansion("addcmul", when=_both_live)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return input + (tensor1 * tensor2 if value == 1 else tensor1 * tensor2 * value)


@expansion("addcdiv", when=_both_live)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    return input + tensor1 / tensor2 * value


@expansion("lerp", when=_both_live)
def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    return input * (1 - weight) + end * weight


@expansion("bilinear")
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x₁ᵀ W x₂ + b: a linear map of one, then a product with the other."""
    mixed = torch.einsum("...i,oij->...oj", input1, weight)
    product = torch.einsum("...oj,...j->...o", mixed, input2)
    return product if bias is None else product + bias


@expansion("chain_matmul", "linalg_multi_dot")
def chain(*matrices: Any) -> Tensor:
    """torch.chain_matmul(a, b, c), torch.linalg.multi_dot([a, b, c]): one product after the other."""
    given = matrices[0] if isinstance(matrices[0], list | tuple) else matrices
    return functools.reduce(torch.matmul, given)


@expansion("einsum")
def einsum(*args: Any) -> Tensor:
    """Several operands contracted two at a time, so that every step is a product of two."""
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    equation = equation.replace(" ", "")
    left, arrow, out = equation.partition("->")
    terms = left.split(",")
    if not arrow:
        out = "".join(sorted(c for c in set(left) - {",", "."} if left.count(c) == 1))
        out = ("..." if "..." in left else "") + out
    while len(operands) > 2:
        needed = set("".join(terms[2:]) + out)
        both = terms[0] + terms[1]
        kept = "".join(dict.fromkeys(c for c in both if c in needed and c != "."))
        kept = ("..." if "..." in both else "") + kept
        first = torch.einsum(f"{terms[0]},{terms[1]}->{kept}", operands[0], operands[1])
        operands, terms = [first, *operands[2:]], [kept, *terms[2:]]
    return torch.einsum(f"{','.join(terms)}->{out}", *operands)


def _by_group(args: Any, kwargs: Any, live: Sequence[Tensor]) -> bool:
    """Rows by constant matrices, and nothing else."""
    given = {**dict(zip(inspect.signature(grouped_mm).parameters, args, strict=False)), **kwargs}
    plain = given.get("bias") is None and given.get("out_dtype") is None and isinstance(given.get("offs"), Tensor)
    return plain and len(live) == 1 and args[0] is live[0] and args[0].dim() == 2 and args[1].dim() == 3


@expansion("grouped_mm", "transformers::grouped_mm_fallback", when=_by_group)
def grouped_mm(
    input: Tensor, weight: Tensor, offs: Tensor, bias: None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """A matrix for each group of rows, of which `offs` says where they end; rows after the last group get 0."""
    rows = torch.arange(len(input), device=offs.device, dtype=offs.dtype)
    return grouped_rows(input, weight, torch.searchsorted(offs, rows, right=True))


def grouped_rows(input: Tensor, weight: Tensor, group: Tensor) -> Tensor:
    """Each row times the matrix of its group, whatever the order of the rows is; an op of its own for the mode."""
    if torch.overrides.has_torch_function((input, weight, group)):
        seen: Tensor = torch.overrides.handle_torch_function(grouped_rows, (input,), input, weight, group)
        return seen
    by = group.argsort(stable=True)
    counts = group.bincount(minlength=len(weight) + 1).tolist()
    parts = [
        part @ weight[n] if n < len(weight) else part.new_zeros(len(part), weight.shape[-1])
        for n, part in enumerate(input[by].split(counts))
    ]
    return torch.cat(parts)[by.argsort()]
