"""The model's logits for perturbed copies of rows: equal copies once, many in one pass."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from whence.engine.custom_functions import suspended
from whence.engine.scope import scope
from whence.errors import ModelError
from whence.evaluation.examples import Example, called, unbroken
from whence.evaluation.removal import check, replaced, rewritten
from whence.evaluation.requests import Copy, Moved, View
from whence.subject.logits import find_logits

TOKENS, ROWS, _NUMBERS = 8192, 128, 1 << 20  # in one pass, by default
_AT_ONCE = 1 << 24  # numbers or ids of copies that are held at the same time
Row = tuple[Example, dict[str, Any]]


def logits(rows: Sequence[Row], batch_size: int | None) -> list[Tensor]:
    """The logits (classes,) of each row, which is a example with inputs like its own, in batches of like shape."""
    found: list[Tensor | None] = [None] * len(rows)
    for numbers in _batches(rows, batch_size):
        told = _run([rows[n] for n in numbers])
        for n, line in zip(numbers, told, strict=True):
            found[n] = line
    return [line for line in found if line is not None]


def of_examples(examples: Sequence[Example], batch_size: int | None) -> list[Tensor]:
    """Of the rows as they are; of a text that is read in windows, the mean over them."""
    short = [example for example in examples if example.windows is None]
    found = iter(logits([(example, dict(example.inputs)) for example in short], batch_size))
    return [next(found) if example.windows is None else _of_windows(example) for example in examples]


def _of_windows(example: Example) -> Tensor:
    assert example.windows is not None
    with suspended(), scope(example.root), torch.no_grad():
        found = find_logits(called(example, example.windows))
    return checked(found, len(found)).mean(0)


def of_copies(asked: Sequence[tuple[View, Copy]], batch_size: int | None) -> list[Tensor]:
    """Of perturbed copies; what is asked twice, by other metrics or methods, is run once."""
    for view, copy in asked:
        check(view.example, copy.operator)
    keys = [(view.example.place, _key(c.operator), c.noise, c.keep.numpy().tobytes()) for view, c in asked]
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
        size += asked[number][0].example.x.numel()
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
            made.append((view.example, dict(view.example.inputs)))
        elif view.example.ids:
            made.append((view.example, rewritten(view.example, copy.keep, copy.operator)))
        else:
            made.append((view.example, {}))
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
            groups.setdefault((view.example.place, _key(copy.operator), copy.noise), []).append(i)
    for members in groups.values():
        view, copy = asked[once[members[0]]]
        keep = torch.stack([asked[once[i]][1].keep for i in members])
        draws = [_draws(view, mask) for mask in keep]
        whole = replaced(view.example, keep, copy.operator, copy.noise, draws, view.generator(5))
        for i, x in zip(members, whole, strict=True):
            made[i] = (view.example, {**view.example.inputs, view.example.name: x[None]})


def _draws(view: View, keep: Tensor) -> torch.Generator:
    """A copy's own noise, whatever else is run with it."""
    return view.generator(zlib.crc32(keep.numpy().tobytes()))


def of_steps(asked: Sequence[tuple[View, Moved]], batch_size: int | None) -> list[Tensor]:
    """Of rows with a step added."""
    rows = []
    for view, moved in asked:
        example = view.example
        unbroken(example)
        rows.append((example, {**example.inputs, example.name: example.x + moved.step.to(example.x)}))
    return logits(rows, batch_size)


# ---- batches ----


def _batches(rows: Sequence[Row], batch_size: int | None) -> Iterator[list[int]]:
    """Numbers of rows that go into one pass: of one shape, or of like length where an attention mask hides padding."""
    groups: dict[Any, list[int]] = {}
    for number, (example, inputs) in enumerate(rows):
        groups.setdefault(_alike(example, inputs), []).append(number)
    for members in groups.values():
        example = rows[members[0]][0]
        ranked = sorted(members, key=lambda n: _length(*rows[n]))
        limit = batch_size or (1 if _alone(example) else ROWS)
        batch: list[int] = []
        for number in ranked:
            size = _size(*rows[number]) * (len(batch) + 1)
            if batch and (len(batch) == limit or (batch_size is None and size > (TOKENS if example.ids else _NUMBERS))):
                yield batch
                batch = []
            batch.append(number)
        yield batch


def _alike(example: Example, inputs: dict[str, Any]) -> Any:
    shapes = tuple(
        (name, tuple(value.shape[2:] if _padded(example) and value.dim() > 1 else value.shape))
        for name, value in inputs.items()
        if isinstance(value, Tensor)
    )
    return id(example.root) if example.root is not None else id(example.model), shapes


def _padded(example: Example) -> bool:
    """Whether rows of other lengths can be padded: there is a mask, and the model gives a padded row the same score."""
    if not example.ids or not isinstance(example.inputs.get("attention_mask"), Tensor):
        return False
    if example.root is None:
        return False
    if example.root not in _PADS:
        known = _pads(example)
        if known is None:
            return False  # this row cannot tell, and the next one may
        _PADS[example.root] = known
    return _PADS[example.root]


def _pads(example: Example) -> bool | None:
    """Whether the model gives a row the same score when it is padded, told by the row without a few of its tokens.

    What is run is no longer than the row, which may be as long as the model takes; None where nothing can be left out.
    """
    free = example.free.nonzero().flatten()
    more = min(_PROBED, len(free) - 1)
    if more < 1:
        return None
    keep = torch.ones_like(example.free)
    keep[free[-more:]] = False
    short = rewritten(example, keep, "delete")
    length = short[example.name].shape
    whole = {
        name: _longer(example, name, value, more) if isinstance(value, Tensor) and value.shape[:2] == length else value
        for name, value in short.items()
    }
    alone = _run([(example, short)])
    try:
        padded = _run([(example, whole)])
    except ModelError:
        return False
    return bool((alone - padded).abs().max() <= 1e-3 * alone.abs().max().clamp(min=1e-3))


_PROBED = 3  # tokens that are left out, and padding put in their place
_PADS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def _longer(example: Example, name: str, value: Tensor, more: int) -> Tensor:
    """An input with padding at the end of each row."""
    fill = example.tokens.get("pad", 0) if name == example.name else 0
    return torch.cat([value, value.new_full((len(value), more, *value.shape[2:]), fill)], 1)


def _alone(example: Example) -> bool:
    """A model without a padding token would not find the ends of padded rows."""
    config = getattr(example.root, "config", None)
    return example.ids and config is not None and getattr(config, "pad_token_id", 0) is None


def _length(example: Example, inputs: dict[str, Any]) -> int:
    return int(inputs[example.name].shape[1]) if example.ids else 0


def _size(example: Example, inputs: dict[str, Any]) -> int:
    return int(inputs[example.name].numel())


def _run(rows: Sequence[Row]) -> Tensor:
    """(rows, classes) in float64."""
    example = rows[0][0]
    inputs = {name: _together(rows, name) for name in rows[0][1]}
    with suspended(), scope(example.root), torch.no_grad():
        found = find_logits(called(example, inputs))
    return checked(found, len(rows))


def checked(found: Tensor, rows: int) -> Tensor:
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
    return torch.cat([_longer(rows[0][0], name, v, longest - v.shape[1]) for v in values])
