"""Grad-CAM: a convolutional layer's maps, each weighted by its mean gradient; and guided Grad-CAM."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from whence.engine.call import derivative
from whence.engine.captures import Site
from whence.engine.liveness import born_in_a_pass
from whence.engine.places import Place
from whence.errors import InputError, MethodError
from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.guided import GUIDED, pulled
from whence.subject import Subject, inside

_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}  # interpolation, by the number of a map's dimensions
_READS_MAPS: dict[str, Any] = {
    "paper": "Selvaraju et al. 2017, arXiv:1610.02391",
    "order": 35,
    "needs": "maps",
    "at": "read",
    "nothing": "The layer's maps add nothing to the target's score, or only lower it: explain another target or "
    "another layer (at=), or use grad_cam with positive=False, which keeps signs.",
}


@method("grad_cam", **_READS_MAPS)
def grad_cam(subject: Subject, *, positive: bool = True) -> Answer:
    """A layer's maps A_c, each weighted by its mean gradient, φ = (Σ_c w_c·A_c)⁺ with w_c = E_places(∂f/∂A_c).

    The layer is `at=`, or the last module before the read-out whose output is maps; `receipt["layer"]` says which.
    `positive=False` keeps what speaks against the target, too.
    """
    name, layer, maps = _maps(subject, positive)
    return Answer({name: maps}, overall={"layer": layer})


@method("guided_grad_cam", **_READS_MAPS)
def guided_grad_cam(subject: Subject, *, upsample: Literal["linear", "nearest"] = "linear") -> Answer:
    """Guided backpropagation's signal m times Grad-CAM's map, stretched to the input, φ = m ⊙ ↑(Σ_c w_c·A_c)⁺.

    The layer is chosen as grad_cam chooses it.
    """
    name, layer, maps = _maps(subject, positive=True)
    signal = pulled(subject, GUIDED)[name]  # (rows, k, channels, places…)
    size = signal.shape[3:]
    mode = _LINEAR.get(len(size), "nearest") if upsample == "linear" else "nearest"
    stretched = nn.functional.interpolate(maps.flatten(0, 1)[:, None], size, mode=mode)  # (rows·k, 1, places…)
    return Answer({name: signal * stretched.view(*signal.shape[:2], 1, *size)}, overall={"layer": layer})


def _maps(subject: Subject, positive: bool) -> tuple[str, str, Tensor]:
    """The input's name, the layer, and one map (rows, k, places…) of what its channels add to the score."""
    name, dims = _input(subject)
    layer = subject.layer or _last_maps(subject, dims)
    read = inside.read(subject, layer)
    if read.value.dim() != dims or len(read.value) != subject.rows:
        raise InputError(
            f"{subject.method} at={layer!r}: this module's output is {tuple(read.value.shape)}, but maps over "
            f"{name!r} have {dims} dimensions: rows, channels, then places.\n  Name a convolutional layer."
        )
    weights = read.gradient.flatten(3).mean(3)  # (rows, k, channels)
    maps = torch.einsum("rkc,rc...->rk...", weights, read.value)
    return name, layer, maps.clamp(min=0) if positive else maps


def _input(subject: Subject) -> tuple[str, int]:
    """The one explained image or signal, and its number of dimensions."""
    names = list(subject.roles)
    if subject.at is not None:
        raise MethodError(
            f"{subject.method}: a layer's maps are laid over an input, but at={subject.at!r} explains a module.\n"
            "  Leave at= out here; grad_cam by itself takes it as the layer whose maps it reads."
        )
    if len(names) > 1:
        raise MethodError(
            f"{subject.method} lays one layer's maps over one input, but {' and '.join(map(repr, names))} are "
            "explained.\n  Name the image or signal with wrt=."
        )
    name, x = names[0], subject.inputs[names[0]]
    if subject.roles[name] == "ids" or x.dim() < 3:
        what = "holds ids" if subject.roles[name] == "ids" else f"is {tuple(x.shape)}"
        raise MethodError(
            f"{subject.method} lays a layer's maps over an image or a signal (rows, channels, places…), but {name!r} "
            f"{what}.\n  Choose another method, such as integrated_gradients, or attention_gradcam for attention."
        )
    return name, x.dim()


# ---- the layer, where none is named ----


@dataclass(eq=False)
class _Search:
    """Notes which modules give maps with these many dimensions, in the order of the pass."""

    subject: Subject
    dims: int
    found: list[tuple[Site, torch.Size, Any]] = field(default_factory=list)  # the last entry is its gradient's edge
    calls: dict[str, int] = field(default_factory=dict)  # how often each module has run
    convolved: torch.Size | None = None  # what the last 1-D convolution gave

    def begin(self) -> None:
        self.found.clear()

    def value(self, site: Site, tensor: Tensor) -> None:
        self.calls[site.path] = site.call
        if site.kind != "output" or not site.path or tensor.dim() != self.dims or not born_in_a_pass(tensor):
            return
        if self.dims == 3:  # (rows, tokens, hidden) looks like (rows, channels, places)
            assert self.subject.root is not None
            module = self.subject.root.get_submodule(site.path)
            self.convolved = tensor.shape if isinstance(module, nn.Conv1d | nn.ConvTranspose1d) else self.convolved
            if tensor.shape != self.convolved:
                return
        if len(tensor) == self.subject.rows and tensor.shape[2:].numel() > 1:
            self.found.append((site, tensor.shape, get_gradient_edge(tensor)))

    def fused(self, site: Site, modalities: Any, depth: int, numbers: tuple[Tensor, ...]) -> None:
        """Attention has no maps of this kind."""


def _last_maps(subject: Subject, dims: int) -> str:
    """The last module whose output is maps that the score is computed from, and not the scores themselves."""
    search = _Search(subject, dims)
    done = subject.run({"*": derivative}, tell=search)
    scores = done.held.shape if done.held.dim() == dims else None  # a dense output has maps of its own
    behind = _nodes(done.score.grad_fn)
    for site, shape, edge in reversed(search.found):
        dense = scores is not None and shape[1] == scores[1]
        if edge.node in behind and not dense:
            return str(Place(site.path, site.call if search.calls[site.path] > 1 else None))
    raise MethodError(
        f"{subject.method} reads the maps of a convolutional layer, but no module of this model gives any: none has an "
        f"output of {dims} dimensions (rows, channels, places…) that the score comes from.\n"
        "  Name a module with at=, or choose a method that works on any model, such as guided_backprop."
    )


def _nodes(last: Any) -> set[Any]:
    """All nodes of the graph behind this one."""
    seen, waiting = set(), [last]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [before for before, _ in node.next_functions]
    return seen
