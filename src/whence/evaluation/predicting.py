"""The model's logits for perturbed copies of rows: equal copies once, many in one pass."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from whence.adapters.tensors import adapt
from whence.engine.capture import Site
from whence.engine.propagate import apart
from whence.engine.scope import scope
from whence.errors import ModelError, NoAttention, ParameterError
from whence.evaluation.asking import Attended, Copy, Erased, Moved, View
from whence.evaluation.cases import Case, called, joined
from whence.evaluation.operators import check, replaced, rewritten
from whence.targets import find_logits

_TOKENS, _ROWS, _NUMBERS = 8192, 128, 1 << 20  # in one pass, by default
_AT_ONCE = 1 << 24  # numbers or ids of copies that are held at the same time
Row = tuple[Case, dict[str, Any]]


def logits(rows: Sequence[Row], batch_size: int | None) -> list[Tensor]:
    """The logits (classes,) of each row, which is a case with inputs like its own, in batches of like shape."""
    found: list[Tensor | None] = [None] * len(rows)
    for numbers in _batches(rows, batch_size):
        told = _run([rows[n] for n in numbers])
        for n, line in zip(numbers, told, strict=True):
            found[n] = line
    return [line for line in found if line is not None]


def of_cases(cases: Sequence[Case], batch_size: int | None) -> list[Tensor]:
    """Of the rows as they are."""
    return logits([(case, dict(case.inputs)) for case in cases], batch_size)


def of_copies(asked: Sequence[tuple[View, Copy]], batch_size: int | None) -> list[Tensor]:
    """Of perturbed copies; what is asked twice, by other metrics or methods, is run once."""
    for view, copy in asked:
        check(view.case, copy.operator)
    keys = [(view.case.place, _key(c.operator), c.noise, c.keep.numpy().tobytes()) for view, c in asked]
    first = {key: number for number, key in reversed(list(enumerate(keys)))}
    once = sorted(first.values())
    told: dict[Any, Tensor] = {}
    for block in _blocks(asked, once):
        found = logits(_made(asked, block), batch_size)
        told |= dict(zip((keys[number] for number in block), found, strict=True))
    return [told[key] for key in keys]


def _blocks(asked: Sequence[tuple[View, Copy]], once: Sequence[int]) -> Iterator[list[int]]:
    """Copies that are made at the same time: as many as are worth sorting, and no more than memory likes."""
    block: list[int] = []
    size = 0
    for number in once:
        block.append(number)
        size += asked[number][0].case.x.numel()
        if size > _AT_ONCE:
            yield block
            block, size = [], 0
    if block:
        yield block


def _made(asked: Sequence[tuple[View, Copy]], once: Sequence[int]) -> list[Row]:
    """The rows of these copies."""
    made: list[Row] = []
    for number in once:
        view, copy = asked[number]
        if bool(copy.keep.all()):
            made.append((view.case, dict(view.case.inputs)))
        elif view.case.ids:
            made.append((view.case, rewritten(view.case, copy.keep, copy.operator)))
        else:
            made.append((view.case, {}))
    _fill(asked, once, made)
    return made


def _key(operator: Any) -> Any:
    return id(operator) if isinstance(operator, Tensor) else operator


def _fill(asked: Sequence[tuple[View, Copy]], once: Sequence[int], made: list[Row]) -> None:
    """Rows of numbers, all copies of one row by one operator together."""
    groups: dict[Any, list[int]] = {}
    for i, number in enumerate(once):
        view, copy = asked[number]
        if not made[i][1]:
            groups.setdefault((view.case.place, _key(copy.operator), copy.noise), []).append(i)
    for members in groups.values():
        view, copy = asked[once[members[0]]]
        keep = torch.stack([asked[once[i]][1].keep for i in members])
        whole = replaced(view.case, keep, copy.operator, copy.noise, [_draws(view, mask) for mask in keep])
        for i, x in zip(members, whole, strict=True):
            made[i] = (view.case, {**view.case.inputs, view.case.name: x[None]})


def _draws(view: View, keep: Tensor) -> torch.Generator:
    """A copy's own noise, whatever else is run with it."""
    return view.generator(zlib.crc32(keep.numpy().tobytes()))


def of_steps(asked: Sequence[tuple[View, Moved]], batch_size: int | None) -> list[Tensor]:
    """Of rows with a step added."""
    rows = []
    for view, moved in asked:
        case = view.case
        rows.append((case, {**case.inputs, case.name: case.x + moved.step.to(case.x)}))
    return logits(rows, batch_size)


# ---- batches ----


def _batches(rows: Sequence[Row], batch_size: int | None) -> Iterator[list[int]]:
    """Numbers of rows that go into one pass: of one shape, or of like length where an attention mask hides padding."""
    groups: dict[Any, list[int]] = {}
    for number, (case, inputs) in enumerate(rows):
        groups.setdefault(_alike(case, inputs), []).append(number)
    for members in groups.values():
        case = rows[members[0]][0]
        ranked = sorted(members, key=lambda n: _length(*rows[n]))
        limit = batch_size or (1 if _alone(case) else _ROWS)
        batch: list[int] = []
        for number in ranked:
            size = _size(*rows[number]) * (len(batch) + 1)
            if batch and (len(batch) == limit or (batch_size is None and size > (_TOKENS if case.ids else _NUMBERS))):
                yield batch
                batch = []
            batch.append(number)
        yield batch


def _alike(case: Case, inputs: dict[str, Any]) -> Any:
    shapes = tuple(
        (name, tuple(value.shape[2:] if _padded(case) and value.dim() > 1 else value.shape))
        for name, value in inputs.items()
        if isinstance(value, Tensor)
    )
    return id(case.root) if case.root is not None else id(case.model), shapes


def _padded(case: Case) -> bool:
    """Whether rows of other lengths can be padded: there is a mask, and the model gives a padded row the same score."""
    if not case.ids or not isinstance(case.inputs.get("attention_mask"), Tensor):
        return False
    if case.root is None:
        return False
    if case.root not in _PADS:
        longer = {name: _longer(case, name, value, 3) for name, value in case.inputs.items()}
        alone, padded = _run([(case, dict(case.inputs))]), _run([(case, longer)])
        _PADS[case.root] = bool((alone - padded).abs().max() <= 1e-3 * alone.abs().max().clamp(min=1e-3))
    return _PADS[case.root]


_PADS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _longer(case: Case, name: str, value: Any, more: int) -> Any:
    """An input with padding at the end of each row."""
    if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[1] != case.x.shape[1]:
        return value
    fill = case.tokens.get("pad", 0) if name == case.name else 0
    return torch.cat([value, value.new_full((len(value), more, *value.shape[2:]), fill)], 1)


def _alone(case: Case) -> bool:
    """A model without a padding token would not find the ends of padded rows."""
    config = getattr(case.root, "config", None)
    return case.ids and config is not None and getattr(config, "pad_token_id", 0) is None


def _length(case: Case, inputs: dict[str, Any]) -> int:
    return int(inputs[case.name].shape[1]) if case.ids else 0


def _size(case: Case, inputs: dict[str, Any]) -> int:
    return int(inputs[case.name].numel())


def _run(rows: Sequence[Row]) -> Tensor:
    """(rows, classes) in float64."""
    case = rows[0][0]
    inputs = {name: _together(rows, name) for name in rows[0][1]}
    with apart(), scope(case.root), torch.no_grad():
        found = find_logits(called(case, inputs))
    return _checked(found, len(rows))


def _checked(found: Tensor, rows: int) -> Tensor:
    found = found.detach().cpu().double()
    found = found[:, None] if found.dim() == 1 else found
    if found.dim() != 2 or len(found) != rows:
        raise ModelError(
            f"The model's output is {tuple(found.shape)} for {rows} rows, and a metric reads (rows, classes).\n"
            "  Give a model, or a function around it, with one score per class."
        )
    return found


def _together(rows: Sequence[Row], name: str) -> Any:
    values = [inputs[name] for _, inputs in rows]
    if not all(isinstance(v, Tensor) and v.dim() and len(v) == 1 for v in values):
        return values[0]
    if len({v.shape for v in values}) == 1:
        return torch.cat(values)
    longest = max(v.shape[1] for v in values)
    case = rows[0][0]
    fill = case.tokens.get("pad", 0) if name == case.name else 0
    whole = values[0].new_full((len(values), longest, *values[0].shape[2:]), fill)
    for line, v in zip(whole, values, strict=True):
        line[: v.shape[1]] = v[0]
    return whole


# ---- attention ----

_WRITTEN_OUT = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward"})


def of_erasures(asked: Sequence[tuple[View, Erased]], batch_size: int | None) -> list[Tensor]:
    """Of rows whose attention to some positions is erased; rows of one length go together."""
    return _in_groups(asked, batch_size, _erased)


def attention(asked: Sequence[tuple[View, Attended]], batch_size: int | None) -> list[Tensor]:
    """What each position is given of attention."""
    return _in_groups(asked, batch_size, _attended)


def _in_groups(
    asked: Sequence[tuple[View, Any]], batch_size: int | None, answer: Callable[..., Tensor]
) -> list[Tensor]:
    found: list[Any] = [None] * len(asked)
    groups: dict[Any, list[int]] = {}
    for number, (view, want) in enumerate(asked):
        groups.setdefault((view.case.x.shape, str(want.layers), str(want.heads)), []).append(number)
    for members in groups.values():
        size = batch_size or max(1, min(_ROWS, _TOKENS // max(1, asked[members[0]][0].case.x.shape[1])))
        for start in range(0, len(members), size):
            some = members[start : start + size]
            for number, line in zip(some, answer([asked[n] for n in some]), strict=True):
                found[number] = line
    return found


def _erased(asked: Sequence[tuple[View, Erased]]) -> Tensor:
    gone = torch.stack([erased.which for _, erased in asked])
    heads = asked[0][1].heads
    logits, _ = _attending(asked, lambda weights: without(weights, gone, heads))
    return logits


def _attended(asked: Sequence[tuple[View, Attended]]) -> Tensor:
    units = len(asked[0][0].scores)
    heads = asked[0][1].heads
    found: list[Tensor] = []

    def read(weights: Tensor) -> None:
        chosen = weights if heads == "all" or weights.dim() != 4 else weights[:, list(heads)]
        pooled = weights.dim() == 3 and weights.shape[-1] == 1
        keys = chosen[..., 0] if pooled else chosen.flatten(1, -2).mean(1)
        _check_keys(keys, units)
        found.append(keys.detach().cpu().double())

    _attending(asked, read)
    return torch.stack(found).mean(0)


def _attending(asked: Sequence[tuple[View, Any]], work: Callable[[Tensor], Tensor | None]) -> tuple[Tensor, list[Site]]:
    """The logits of one pass in which attention weights of the chosen calls are read, or replaced."""
    case, layers = asked[0][0].case, asked[0][1].layers
    inputs: Any = {name: joined([view.case for view, _ in asked], name) for name in case.inputs}
    inputs = inputs if case.form == "dict" else tuple(inputs.values())
    subject = adapt(case.model, inputs[0] if case.form == "tensor" else inputs, method="attention erasure")
    met: list[Site] = []
    held: dict[str, Tensor] = {}

    def edit(site: Site, weights: Tensor) -> Tensor | None:
        if site.kind != "attention":
            return None
        met.append(site)
        return work(weights) if layers == "all" or len(met) - 1 in layers else None

    def read(output: Any) -> Tensor:
        held["logits"] = _checked(find_logits(output), len(asked))
        return find_logits(output).flatten(1).sum(1)

    with apart(), scope(case.root):
        replace(subject, target=read).run(gradient=False, marks=True, expand=_WRITTEN_OUT, edit=edit)
    if not met:
        raise NoAttention("Attention erasure needs attention, and this model has none.\n  Leave these metrics out.")
    if layers != "all" and max(layers, default=-1) >= len(met):
        raise ParameterError(f"layers={layers!r}: the model attends {len(met)} times.\n  Count from 0.")
    return held["logits"], met


def without(weights: Tensor, gone: Tensor, heads: Any = "all") -> Tensor:
    """Attention weights with some keys at 0 and the rest renormalised; where nothing is left, 0 stays.

    Weights are (rows, heads, query, key), or (rows, n, 1) where one weight per position pools.
    """
    pooled = weights.dim() == 3 and weights.shape[-1] == 1
    if pooled:
        return without(weights.transpose(1, 2), gone).transpose(1, 2)
    _check_keys(weights, gone.shape[1])
    shape = [len(gone), *[1] * (weights.dim() - 2), gone.shape[1]]
    here = gone.view(shape).to(weights.device)
    if heads != "all" and weights.dim() == 4:
        chosen = torch.zeros(weights.shape[1], dtype=torch.bool, device=weights.device)
        chosen[list(heads)] = True
        here = here & chosen.view(1, -1, 1, 1)
    left = weights.masked_fill(here, 0.0)
    total = left.sum(-1, keepdim=True)
    return torch.where(total > 0, left / total.clamp(min=torch.finfo(left.dtype).tiny), left)


def _check_keys(weights: Tensor, units: int) -> None:
    if weights.shape[-1] != units:
        raise NoAttention(
            f"An attention map is {tuple(weights.shape)}, and the rows have {units} units: they are not its keys.\n"
            "  Erasure is for attention over the units themselves; name such calls with layers=."
        )
