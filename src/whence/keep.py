"""`keep=`: intermediate values of the explained pass, by layer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from whence.engine.call import derivative
from whence.engine.capture import Site, layer_of
from whence.errors import NoAttention, ParameterError
from whence.passes import stacked
from whence.subject import Subject

NAMES = ("attention", "attention_gradient", "hidden")
_EXPAND = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})


def check(keep: Sequence[str]) -> tuple[str, ...]:
    """The names to keep, each known."""
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    for name in names:
        if name not in NAMES:
            raise ParameterError(f"keep={name!r} is not known.\n  Give some of {', '.join(map(repr, NAMES))}.")
    return names


def kept(subject: Subject, names: Sequence[str]) -> dict[str, list[Tensor]]:
    """Attention maps in the order of their calls, their gradients, and the hidden states that enter their layers.

    They come from a pass of their own, in which fused attention is written out. Gradients are (rows, k, …).
    """
    if not names:
        return {}
    done = subject.run({"*": derivative}, expand=_EXPAND, wants=lambda site: site.kind != "output")
    maps = {site: tensor for site, tensor in done.captured.items() if site.kind == "attention"}
    if not maps:
        raise NoAttention(
            f"keep={tuple(names)!r}: this model has no attention, so nothing was kept.\n  Leave keep out."
        )
    found: dict[str, list[Tensor]] = {}
    if "attention" in names:
        found["attention"] = [tensor.detach() for tensor in maps.values()]
    if "hidden" in names:
        found["hidden"] = [tensor.detach() for tensor in _layer_inputs(subject, done.captured)]
    if "attention_gradient" in names:
        columns = done.columns(list(maps.values()))
        found["attention_gradient"] = [
            stacked(t, [column[i] for column in columns]) for i, t in enumerate(maps.values())
        ]
    return found


def _layer_inputs(subject: Subject, captured: dict[Site, Tensor]) -> list[Tensor]:
    """The hidden state that entered the layer of each attention call, once per run of that layer."""
    if subject.root is None:
        return []
    entered: dict[str, Site] = {}
    found: dict[Site, Tensor] = {}
    for site in captured:  # in the order of the pass
        if site.kind == "input":
            entered[site.path] = site
        elif (layer := entered.get(layer_of(subject.root, site.path))) is not None:
            found[layer] = captured[layer]
    return list(found.values())
