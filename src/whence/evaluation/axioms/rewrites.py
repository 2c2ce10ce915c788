"""Functionally equal ways to write a model, made under a mode: no module is touched, functional ops are seen too."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import fusion
from torch.overrides import TorchFunctionMode

from whence.engine.arguments import placed
from whence.engine.ops import family_of, spelling
from whence.evaluation.axioms.functions import Scored

Spell = Callable[..., Any]  # (plain, *args, **kwargs): another way to plain(*args, **kwargs), or NotImplemented


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A function that computes the same in another way; `tells` if attributions that agree mean something."""

    name: str
    function: nn.Module
    tells: bool
    counts: deque[int] | None = None  # how many ops were rewritten at the last run, where they are counted

    def applied(self) -> bool:
        """Whether anything was rewritten at its last run."""
        return self.counts is None or any(self.counts)


@dataclass(frozen=True)
class Rewrite:
    """Ops of some families, spelled in another way. Only one that mixes units beyond a linear map `tells`."""

    name: str
    families: frozenset[str]
    spell: Spell
    tells: bool

    def of(self, function: nn.Module) -> Rewritten:
        counts: deque[int] = deque(maxlen=1)
        return Rewritten(self.name, _Respelled(function, self, counts.append), self.tells, counts)


rewrites: dict[str, Rewrite] = {}

_CURVES = "relu relu6 leaky_relu gelu silu tanh sigmoid elu softplus hardswish mish"


def rewrite(name: str, families: str, *, tells: bool = False) -> Callable[[Spell], Spell]:
    """Register another way to write ops."""

    def add(spell: Spell) -> Spell:
        rewrites[name] = Rewrite(name, frozenset(families.split()), spell, tells)
        return spell

    return add


# ---- linear ----


@rewrite("a linear layer as the sum of two halves", "linear")
def _halves(plain: Spell, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight / 2, bias) + F.linear(x, weight / 2)


@rewrite("a linear layer as two layers", "linear")
def _two_layers(plain: Spell, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    twice = 2 * torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    return F.linear(F.linear(x, twice), weight / 2, bias)


@rewrite("batch-norm as a scale and a shift", "batch_norm")
def _affine(plain: Spell, x: Tensor, mean: Tensor, var: Tensor, weight: Any = None, bias: Any = None, *rest: Any,
            **named: Any) -> Tensor:  # fmt: skip
    if named.get("training", rest[0] if rest else False):
        return NotImplemented
    scale = (var + named.get("eps", rest[2] if len(rest) > 2 else 1e-5)).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    shape = (1, -1, *[1] * (x.dim() - 2))
    return x * scale.view(shape) + shift.view(shape)


# ---- not linear, unit by unit: many modified gradients see no difference ----


@rewrite("relu(x) as relu(relu(x))", "relu")
def _twice(plain: Spell, x: Tensor, *rest: Any, **named: Any) -> Tensor:
    return torch.relu(torch.relu(x))


@rewrite("g(x) as x + g(−x)", "relu gelu silu")
def _reflected(plain: Spell, x: Tensor, *rest: Any, **named: Any) -> Tensor:
    return x + plain(-x, *rest, **{k: v for k, v in named.items() if k != "inplace"})


# ---- not linear, and units are mixed: what only depends on the function agrees ----


@rewrite("relu(x) as q − relu(q − relu(x)) + relu(x − q), q its neighbour", "relu", tells=True)
def _neighbour(plain: Spell, x: Tensor, *rest: Any, **named: Any) -> Tensor:
    p = torch.relu(x)
    q = _neighbour_of(p)
    return q - torch.relu(q - p) + torch.relu(x - q)


@rewrite("g(x) as g(x)·q / q, q made of its neighbour", _CURVES, tells=True)
def _over_itself(plain: Spell, x: Tensor, *rest: Any, **named: Any) -> Tensor:
    p = plain(x, *rest, **{k: v for k, v in named.items() if k != "inplace"})
    q = torch.exp(2 * torch.tanh(_neighbour_of(p)))
    return p * q / q


@rewrite("max-pool of pairs as b + relu(a − b)", "max_pool", tells=True)
def _pairs(plain: Spell, x: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
           ceil_mode: Any = False, return_indices: Any = False) -> Tensor:  # fmt: skip
    if x.dim() != 4 or return_indices or padding not in (0, (0, 0)) or dilation not in (1, (1, 1)) or ceil_mode:
        return NotImplemented
    high, wide = (kernel_size, kernel_size) if isinstance(kernel_size, int) else kernel_size
    down, right = (high, wide) if stride in (None, []) else (stride, stride) if isinstance(stride, int) else stride
    windows = x.unfold(2, high, down).unfold(3, wide, right).flatten(4)  # (rows, channels, h, w, high·wide)
    best = windows[..., 0]
    for k in range(1, windows.shape[-1]):
        best = best + torch.relu(windows[..., k] - best)
    return best


@rewrite("attention over its keys in another order", "scaled_dot_product_attention", tells=True)
def _keys_turned(plain: Spell, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None,
                 dropout_p: float = 0.0, is_causal: bool = False, **named: Any) -> Tensor:  # fmt: skip
    if is_causal:
        return NotImplemented
    mask = attn_mask if attn_mask is None or attn_mask.shape[-1] == 1 else attn_mask.roll(1, -1)
    return plain(query, key.roll(1, -2), value.roll(1, -2), mask, dropout_p, False, **named)


def _neighbour_of(p: Tensor) -> Tensor:
    """Another unit of the same row: the next channel, or the next of the last axis; itself where there is no other."""
    return p if p.dim() < 2 else p.roll(1, 1 if p.dim() in (4, 5) else -1)


class _Respelled(nn.Module):
    """A function whose ops of some families are written in another way.

    It tells how many were by a function, because whatever a module holds is put back after each run.
    """

    def __init__(self, function: nn.Module, rewrite: Rewrite, tell: Callable[[int], None]) -> None:
        super().__init__()
        self.function, self.rewrite, self.tell = function, rewrite, tell

    def forward(self, **given: Any) -> Tensor:
        with _Mode(self.rewrite) as mode:
            found: Tensor = self.function(**given)
        self.tell(mode.count)
        return found


class _Mode(TorchFunctionMode):
    """Spells ops of some families in another way, and counts them."""

    def __init__(self, rewrite: Rewrite) -> None:
        super().__init__()
        self.rewrite, self.count = rewrite, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = placed(func, args, kwargs) if kwargs else (args, {})
        if not args or not isinstance(args[0], Tensor) or spelling(func).metadata:
            return func(*args, **kwargs)
        family = family_of(spelling(func).name, args, kwargs, [args[0]])
        if family not in self.rewrite.families:
            return func(*args, **kwargs)
        found = self.rewrite.spell(func, *args, **kwargs)
        if found is NotImplemented:
            return func(*args, **kwargs)
        self.count += 1
        return found


# ---- batch-norm folded into the layer before it ----


def folded(function: Scored) -> Rewritten | None:
    """The model with each batch-norm folded into the convolution or linear layer registered before it, on a copy."""
    if not isinstance(function.root, nn.Module) or function.call[0] is not function.root:
        return None
    try:
        root = copy.deepcopy(function.root).eval()
    except Exception:  # a model that cannot be copied cannot be folded
        return None
    if not sum(_fold(parent) for parent in root.modules()):
        return None
    made = copy.copy(function)
    made._modules = {**function._modules, "root": root}
    made.call = [root]
    return Rewritten("batch-norm folded into the layer before it", made, False)


def _fold(parent: nn.Module) -> int:
    children: Sequence[tuple[str, nn.Module]] = list(parent.named_children())
    count = 0
    for (name, layer), (norm_name, norm) in pairwise(children):
        if not isinstance(norm, nn.modules.batchnorm._BatchNorm) or norm.running_mean is None:
            continue
        if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and layer.out_channels == norm.num_features:
            fused: nn.Module = fusion.fuse_conv_bn_eval(layer, norm)
        elif isinstance(layer, nn.Linear) and layer.out_features == norm.num_features:
            fused = fusion.fuse_linear_bn_eval(layer, norm)
        else:
            continue
        setattr(parent, name, fused)
        setattr(parent, norm_name, nn.Identity())
        count += 1
    return count
