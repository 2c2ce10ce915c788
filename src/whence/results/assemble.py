"""From a method's answers, part by part, to one Attribution in the form of the user's input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.engine.call import keys
from whence.errors import InputError, warn
from whence.methods.answer import Answer
from whence.methods.kept import PER_TARGET
from whence.results.attribution import Attribution
from whence.results.forms import embeddings
from whence.subject import Subject
from whence.subject.masks import has_tokens, real_units
from whence.util.keys import input_of
from whence.util.receipt import Receipt
from whence.util.stats import all_finite, completeness


@dataclass(frozen=True, eq=False)
class Part:
    """The answer for some of the rows; every tensor is (rows, k, …)."""

    answer: Answer
    score: Tensor
    index: Tensor | None
    baseline_value: Tensor | None
    kept: Mapping[str, list[Tensor]]


def join(
    subject: Subject, parts: list[Part], k_shown: bool, params: Mapping[str, Any], channels: str | None, per_token: str,
    complete: bool | str = False,
) -> Attribution:  # fmt: skip
    """One attribution of all rows; `k_shown` keeps the axis of targets, `complete` asks for the gap.

    `channels` is what the user wants of images and tokens, `per_token` what becomes of a token's embedding otherwise. A
    method that is complete "exactly" has nothing to converge: a gap is worth a warning.
    """

    def whole(tensors: list[Tensor]) -> Tensor:
        joined = torch.cat(tensors) if len(tensors) > 1 else tensors[0]
        narrow = joined.is_floating_point() and torch.finfo(joined.dtype).bits < 32
        joined = joined.float() if narrow else joined
        return joined if k_shown else joined.squeeze(1)

    answers = [part.answer for part in parts]
    full = {key: whole([answer.values[key] for answer in answers]) for key in answers[0].values}
    raw = {name: _of_input(full, name) for name in _names(subject, full)}
    padded = answers[0].keeps_padding
    real = {name: None if padded else _real(subject, name, value, k_shown) for name, value in raw.items()}
    how = channels if channels in ("sum", "l2") else per_token
    values = {name: _per_unit(subject, name, value, real[name], k_shown, how, True) for name, value in raw.items()}
    extras = {kind: _extra(subject, answers, kind, raw, real, whole, k_shown) for kind in answers[0].extras}
    positive = extras.pop("positive", {})
    more = {kind: _like_input(subject, numbers) for kind, numbers in extras.items()}
    sums = complete if answers[0].sums else False
    before = [part.baseline_value for part in parts if part.baseline_value is not None]
    shown = {name: mask for name, mask in real.items() if mask is not None}
    score = whole([part.score for part in parts])
    residual, gap = _completeness(values, score, whole(before), k_shown) if sums and before else (None, None)
    attribution = Attribution(
        values=_like_input(subject, values),
        raw=_like_input(subject, raw),
        target=_shown_target(subject, parts, k_shown),
        output_value=score,
        baseline_value=whole(before) if before else None,
        gap=gap,
        residual=residual,
        raising=_like_input(subject, positive) if positive else None,
        kept={**{name: _kept(parts, name, k_shown) for name in parts[0].kept}, **more},
        method=subject.method,
        params=dict(params),
        receipt=_receipt(subject),
        image_size=_image_size(subject, raw, k_shown),
        real=_like_input(subject, real) if shown else None,
        channel_axis=_like_input(subject, {name: _channel_axis(subject, name, raw[name], k_shown) for name in raw}),
    )
    _warn_of_non_finite(subject, values)
    if sums == "exactly" and gap is not None:
        _warn_of_a_gap(subject, gap)
    embedded = [name for name in raw if _is_embedded(subject, name, raw[name], k_shown)]
    if channels is not None and (channels != how or len(embedded) < len(raw)):
        return attribution.channels(channels)
    if not embedded:
        return attribution
    reduced = {
        shown: how for shown, name in zip(attribution.by_name(), _shown(subject, raw), strict=True) if name in embedded
    }
    return attribution.with_channels(reduced)


def _extra(
    subject: Subject, answers: list[Answer], kind: str, raw: Mapping[str, Any], real: Mapping[str, Tensor | None],
    whole: Callable[[list[Tensor]], Tensor], k_shown: bool,
) -> dict[str, Any]:  # fmt: skip
    """Numbers beside the values, by input and in their form: a multiplier as `raw` is, all else one per unit."""
    keys = answers[0].extras[kind]
    full = {key: whole([answer.extras[kind][key] for answer in answers]) for key in keys}
    by_input = {name: _of_input(full, name) for name in raw}
    if kind == "multiplier":
        return by_input
    return {name: _per_unit(subject, name, v, real[name], k_shown, "sum") for name, v in by_input.items()}


def _completeness(values: Mapping[str, Tensor], score: Tensor, before: Tensor, k_shown: bool) -> tuple[Tensor, Tensor]:
    """Σφ − (f(x) − f(x')) per row (and target), and its size relative to that rise."""
    lead = 1 + k_shown
    total = sum(
        value.double().flatten(lead).sum(-1) if value.dim() > lead else value.double() for value in values.values()
    )
    assert isinstance(total, Tensor)
    return completeness(total, score.double(), before.double())


def _kept(parts: list[Part], name: str, k_shown: bool) -> list[Tensor]:
    joined = [
        torch.cat(layer) if len(layer) > 1 else layer[0] for layer in zip(*(p.kept[name] for p in parts), strict=True)
    ]
    return joined if k_shown or name not in PER_TARGET else [layer.squeeze(1) for layer in joined]


def _names(subject: Subject, full: Mapping[str, Tensor]) -> list[str]:
    """Explained inputs, in the order given; ids that enter two embeddings have two keys and one name."""
    if subject.at is not None:
        return list(full)
    for name in subject.wrt:
        if name not in full:
            raise InputError(f"wrt={name!r}: these ids enter no embedding.\n  Name the input that does.")
    return [name for name in subject.inputs if name in full]


def _of_input(full: Mapping[str, Tensor], name: str) -> Any:
    """An input's values, or one for each embedding that its ids enter."""
    if name in full and len(full) == 1:
        return full[name]
    own = [value for key, value in full.items() if input_of(key) == name]
    return own[0] if len(own) == 1 else tuple(own)


def _shape(subject: Subject, name: str, raw: Any, k_shown: bool) -> Sequence[int]:
    """The shape of the explained value itself."""
    value = subject.inputs.get(name)
    return (
        value.shape if isinstance(value, Tensor) else [n for i, n in enumerate(raw.shape) if not (k_shown and i == 1)]
    )


def _real(subject: Subject, name: str, raw: Any, k_shown: bool) -> Tensor | None:
    """Which of an input's units are not padding; of several ids per token with scores of their own, all or none."""
    if subject.form != "dict" or subject.whole:
        return None  # no mask is given, or it is one of rows that have one score
    shape = _shape(subject, name, raw, k_shown)
    mask = real_units(subject, name, shape)
    if mask is None or subject.roles.get(name) != "ids" or embeddings(raw)[0].dim() - k_shown < len(shape):
        return mask
    return mask.view(*mask.shape, *[1] * (len(shape) - mask.dim())).expand(*shape)


def _image_size(subject: Subject, raw: Mapping[str, Any], k_shown: bool) -> tuple[int, int] | None:
    """Of the one explained image whose values are a grid."""
    (name, value), *others = raw.items()
    x = subject.inputs.get(name)
    grid = not others and isinstance(x, Tensor) and x.dim() == 4 and value.dim() - k_shown == 3
    return (int(x.shape[-2]), int(x.shape[-1])) if grid and isinstance(x, Tensor) else None


def _channel_axis(subject: Subject, name: str, raw: Any, k_shown: bool) -> int | None:
    """Tokens have their hidden dimensions behind them; images and signals have channels before their places."""
    shape = _shape(subject, name, raw, k_shown)
    if isinstance(raw, Tensor) and raw.dim() - k_shown < len(shape):
        return None  # one number per position already
    if subject.roles.get(name) == "ids":
        return len(shape)
    if len(shape) == 3 and has_tokens(subject, name, shape):
        return 2
    return 1 if len(shape) > 2 else None


def _warn_of_non_finite(subject: Subject, values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        if all_finite(value):
            continue
        bad = ~torch.isfinite(value).reshape(len(value), -1).all(1)
        warn(
            f"{subject.method}: the values of {name!r} are not finite in {{rows}}. The model has no finite "
            "derivative there (a square root or a logarithm at 0?), or its numbers overflow in this dtype.",
            bad.nonzero().flatten().tolist(),
        )


def _warn_of_a_gap(subject: Subject, gap: Tensor) -> None:
    """Beyond rounding, which is coarse in half precision."""
    score = subject.measured.score
    values = [x for x in (subject.measured.values or {}).values() if x.is_floating_point()]  # and not whole numbers
    coarse = max(torch.finfo(value.dtype).eps for value in values or [gap if score is None else score])
    worst = gap.reshape(len(gap), -1).amax(1)
    rows = (worst > max(1e-4, min(1e4 * coarse, 16 * coarse + 1e-3))).nonzero().flatten().tolist()
    if not rows or (subject.record.chance and not subject.record.backwards):
        return
    lost = [
        f"{op} (in {path or 'the model itself'})" for (op, path), missed in subject.record.lost.items() if any(missed)
    ]
    what = f"Ops without a rule of their own: {', '.join(lost)}. " if lost else ""
    cause = (
        "Something may depend on the input in a way that no op shows: an integer, a sorting order, a number read out "
        "with .item(), an infinity that comes and goes."
        if subject.record.backwards
        else "The model may give a row another score beside other rows: explain rows one at a time."
    )
    warn(
        f"{subject.method}: the sum over the inputs misses the delta by up to {{worst}} of it in {{rows}}. "
        f"{what}{cause}",
        rows,
        worst=float(worst.max()),
    )


def _is_embedded(subject: Subject, name: str, raw: Any, k_shown: bool) -> bool:
    """Whether an input is ids, and its values have the hidden dimensions of their embedding."""
    value = subject.inputs.get(name)
    return subject.roles.get(name) == "ids" and any(
        part.dim() > value.dim() + k_shown for part in embeddings(raw) if isinstance(value, Tensor)
    )


def _per_unit(
    subject: Subject, name: str, raw: Any, real: Tensor | None, k_shown: bool, how: str, exact: bool = False
) -> Tensor:
    """ids: one score per token, its hidden dimensions' sum or length, padding exactly 0; all else as it is.

    `exact` does not let pass for a sum what is rounding.
    """
    if subject.roles.get(name) != "ids":
        return raw
    ids: Tensor = subject.inputs[name]
    lead = ids.dim() + k_shown  # (rows, [k,] n)
    parts = [part.flatten(lead) if part.dim() > lead else part[..., None] for part in embeddings(raw)]
    if how == "l2" and _is_embedded(subject, name, raw, k_shown):
        total = torch.linalg.vector_norm(torch.cat(parts, -1), dim=-1)
    else:
        total = sum((part.sum(-1) for part in parts[1:]), parts[0].sum(-1))
        total = _without_rounding(subject, total, embeddings(raw), lead) if exact else total
    if real is None:
        return total
    return total * (real[:, None] if k_shown else real).to(total)


def _without_rounding(subject: Subject, total: Tensor, parts: tuple[Tensor, ...], lead: int) -> Tensor:
    """Rows whose sums over the hidden dimension are nothing but rounding become 0, with a warning.

    It happens to every gradient under a LayerNorm that follows the embedding: shifting a whole embedding by a
    constant changes nothing there, so the gradient's sum over it is 0.
    """
    size = sum(part.abs().flatten(lead).sum(-1) if part.dim() > lead else part.abs() for part in parts)
    assert isinstance(size, Tensor)
    limit = min(64 * torch.finfo(total.dtype).eps, 1e-3)
    most, whole = (t.abs().reshape(len(t), -1).amax(1) for t in (total, size))
    nothing = most <= limit * whole
    if bool((nothing & (whole > 0)).any()):
        warn(
            f"{subject.method}: the hidden dimension of each token's values sums to 0 (a normalisation follows the "
            'embedding), so `values` is 0. The full tensor is `raw`; channels="l2" gives one magnitude per token, '
            "input_x_gradient a signed score.",
        )
    return total.masked_fill(nothing.view(-1, *[1] * (total.dim() - 1)), 0)


def _like_input(subject: Subject, named: Mapping[str, Any]) -> Any:
    """One explained input: its tensor; several: a dict or a tuple, as the input was. Empty ones have empty values."""
    if subject.empty and subject.at is None:
        numbers = isinstance(next(iter(named.values())), Tensor | tuple)
        empty = {name: torch.zeros_like(subject.inputs[name]) if numbers else None for name in subject.empty}
        named = {name: named.get(name, empty.get(name)) for name in _shown(subject, named)}
    if len(named) == 1:
        return next(iter(named.values()))
    if subject.at is not None:  # a module's outputs by name
        return {name.partition(".")[2]: value for name, value in named.items()}
    return dict(named) if subject.form == "dict" else tuple(named.values())


def _shown(subject: Subject, named: Mapping[str, Any]) -> list[str]:
    """The names of explained inputs in the order given, empty ones among them."""
    if not subject.empty or subject.at is not None:
        return list(named)
    return [name for name in subject.inputs if name in named or name in subject.empty]


def _shown_target(subject: Subject, parts: list[Part], k_shown: bool) -> Any:
    if callable(subject.target):
        return str(getattr(subject.target, "__name__", type(subject.target).__name__))
    index = torch.cat([part.index for part in parts if part.index is not None])  # (rows, k, depth)
    if index.shape[-1] < 2:  # depth 0 is a model with one score per row
        flat = index.sum(-1)
        return flat if k_shown else flat[:, 0]
    return [tuple(row[0].tolist()) for row in index]


def _receipt(subject: Subject) -> Receipt:
    record = subject.record
    if record.overall.get("held"):
        names = ", ".join(map(repr, record.overall["held"]))
        warn(
            f"{subject.method}: at={subject.at!r} has outputs whose first dimension is not the rows ({names}). They "
            "were held at the input's values, so what goes through them is not part of the answer."
        )
    used = {key for op in record.ruled for key in keys(*op)} if subject.rules else set()
    unused = [name for name in subject.rules if name != "*" and name not in used]
    if unused:
        warn(f"{subject.method}: rules={{{', '.join(map(repr, unused))}}} met no op here; whence.trace shows them all.")
    if record.unseen and record.modified:
        seen = ", ".join(f"{node} (before {path or 'the output'})" for node, path in record.unseen)
        warn(
            f"{subject.method}: the model ran ops that the engine could not see, so no rule reached them: {seen}. "
            "They kept the plain derivative. Scripted code, vmap, custom autograd functions and the model's own "
            "threads do this; replace them by plain ops to have them explained.",
        )
    return Receipt({"output": "score" if callable(subject.target) else subject.output}, record.summary())
