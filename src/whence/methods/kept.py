"""`keep=`: intermediate values of the explained pass, by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from whence.engine.call import derivative
from whence.engine.captures import Site, layer_of, layers
from whence.errors import ParameterError
from whence.subject import Subject
from whence.subject.passes import IN_PLACE, stacked

NAMES = ("attention", "attention_gradient", "attention_relevance", "head_relevance", "hidden", "activation")
PER_TARGET = frozenset(NAMES) - {"attention", "hidden", "activation"}
_EXPAND = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})


def check(keep: Sequence[str]) -> tuple[str, ...]:
    """The names to keep, each known."""
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    for name in names:
        if name not in NAMES:
            raise ParameterError(f"keep={name!r} is not known.\n  Give some of {', '.join(map(repr, NAMES))}.")
    return names


def kept(subject: Subject, names: Sequence[str], params: Mapping[str, Any]) -> dict[str, list[Tensor]]:
    """Attention maps in the order of their calls, what came back to them, and the hidden states that enter layers.

    They come from passes of their own, in which fused attention is written out. What is of targets is (rows, k, …).
    Relevance is by the method's own rules if it has some, by LRP's default otherwise.
    """
    by_name: dict[str, list[Tensor]] = {}
    if not names:
        return by_name
    from whence.methods.relevance.reading import relevance_of_attention

    if "activation" in names:
        by_name["activation"] = _activation(subject)
    if set(names) & {"attention", "attention_gradient", "hidden"}:
        by_name |= _values(subject, names)
    if "attention_relevance" in names:
        by_name["attention_relevance"] = relevance_of_attention(subject, params, lambda r: r)
        heads = [2 * r.sum((-2, -1)) for r in by_name["attention_relevance"]]
    elif "head_relevance" in names:
        heads = relevance_of_attention(subject, params, lambda r: 2 * r.sum((-2, -1)))
    if "head_relevance" in names:
        by_name["head_relevance"] = heads
    return by_name


def _activation(subject: Subject) -> list[Tensor]:
    """What the module gives that is explained, or at which the method reads: each of its floating tensors."""
    if subject.at is not None:
        return list(subject.values.values())
    if subject.layer is None:
        raise ParameterError(
            'keep="activation" keeps what a module gives, but none is named.\n  Name one with at=, or leave it out.'
        )
    from whence.subject import inside

    return [inside.read(subject, subject.layer).value]


def _values(subject: Subject, names: Sequence[str], copies: bool = False) -> dict[str, list[Tensor]]:
    members = layers(subject.root)
    wants = lambda site: site.kind == "attention" or (site.kind == "input" and site.path in members)  # noqa: E731
    done = subject.run({"*": derivative}, expand=_EXPAND, wants=wants, copies=copies)
    maps = [site for site in done.captured if site.kind == "attention"]
    if not maps:
        from whence.methods.relevance.reading import no_attention

        raise no_attention(names)
    by_name: dict[str, list[Tensor]] = {}
    if "attention" in names:
        by_name["attention"] = [done.captured[site] for site in maps]
    if "hidden" in names:
        by_name["hidden"] = _layer_inputs(done.captured, members)
    if "attention_gradient" in names:
        try:
            columns = done.columns([done.edges[site] for site in maps])
        except RuntimeError as error:
            if copies or IN_PLACE not in str(error):
                raise
            return _values(subject, names, copies=True)
        by_name["attention_gradient"] = [
            stacked(done.captured[site], [column[i] for column in columns]) for i, site in enumerate(maps)
        ]
    return by_name


def _layer_inputs(captured: dict[Site, Tensor], members: set[str]) -> list[Tensor]:
    """The hidden state that entered the layer of each attention call, once per run of that layer."""
    entered: dict[str, Site] = {}
    inputs: dict[Site, Tensor] = {}
    for site in captured:  # in the order of the pass
        if site.kind == "input":
            entered[site.path] = site
        elif (layer := entered.get(layer_of(members, site.path))) is not None:
            inputs[layer] = captured[layer]
    return list(inputs.values())
