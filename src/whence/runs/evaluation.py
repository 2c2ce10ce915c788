"""Evaluations by workers elsewhere: a shard is a chunk of rows, and the answers come back to the one result file."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor

from whence.errors import FileError, InputError, ParameterError, WhenceError
from whence.evaluation.data import is_stream, listed
from whence.evaluation.evaluate import Answers, Prepared, prepare
from whence.results.store import packed, unpacked
from whence.runs.executors import crew_of, dispatched
from whence.runs.models import identity, live, name_of
from whence.runs.plan import Shard
from whence.util.checks import check_choice, check_count

_OF_ROWS = ("label", "mask", "rationale")


def elsewhere(
    model: Any, data: Any, given: Mapping[str, Any], executor: str, workers: int | None, **named: Any
) -> tuple[Any, Answers | None]:
    """The model of a name, loaded here too; and who answers for chunks of rows, None where that is done here.

    `named` are the task and how long texts are read, for a model that is loaded by its name.
    """
    check_choice("executor", executor, ("inline", "process", "ray"))
    if workers is not None:
        check_count("workers", workers)
    name, here = name_of(model), live(model, executor, **named)
    if executor == "inline":
        return here, None
    if is_stream(data):
        raise InputError(
            f"executor={executor!r} needs rows that can be counted, but data is a stream.\n  Give a list of rows."
        )
    rows = listed(here, data, {word: given[f"{word}s"] for word in _OF_ROWS})
    call = {**given, "rows": [_plain(row) for row in rows], **{f"{word}s": None for word in _OF_ROWS}}
    begin = {"model": name, **named, "identity": identity(here, name), "call": _sent(call)}

    def answers(chunks: list[int], sizes: list[int]) -> Iterable[tuple[int, dict[str, Any]]]:
        return _answered(chunks, sizes, begin, executor, workers)

    return here, answers


def _answered(
    chunks: Sequence[int], sizes: Sequence[int], begin: Mapping[str, Any], executor: str, workers: int | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    if not chunks:
        return
    starts = [0, *accumulate(sizes)]
    shards = [Shard(number, "", "chunk", starts[number], starts[number], sizes[number]) for number in chunks]
    count = min(workers or 2, len(shards))
    for outcome in dispatched(crew_of(executor, dict(begin), count), shards, count):
        if "aside" in outcome:
            raise WhenceError(f"The rows from {outcome['row']} on cannot be evaluated: {outcome['aside']}.")
        yield outcome["shard"], outcome["told"]


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without its axis of rows, which it gets again where it is read."""
    return {name: _without_axis(value) if name == "inputs" else _value(value) for name, value in row.items()}


def _without_axis(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value[0]
    if isinstance(value, Mapping):
        return {name: _without_axis(part) if isinstance(part, Tensor) else part for name, part in value.items()}
    if isinstance(value, tuple) and all(isinstance(part, Tensor) for part in value):
        return tuple(part[0] for part in value)
    return _value(value)


def _value(value: Any) -> Any:
    """Arrays as tensors."""
    if not isinstance(value, Tensor) and hasattr(value, "__array__") and not hasattr(value, "convert"):
        import torch

        return torch.as_tensor(value, device="cpu")
    return value


def _sent(call: Mapping[str, Any]) -> str:
    import json

    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    try:
        content = packed(call, "call", tensors)
    except FileError as error:
        raise ParameterError(
            f"Workers get plain values and tensors, but {str(error).splitlines()[0]}\n"
            '  Give texts, paths or tensors, or evaluate with executor="inline".'
        ) from None
    return base64.b64encode(save(tensors, {"content": json.dumps(content)})).decode()


def received(text: str) -> dict[str, Any]:
    """The call of an evaluation as a worker gets it."""
    import json

    from safetensors.torch import load

    content = base64.b64decode(text)
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    found: dict[str, Any] = unpacked(json.loads(head["__metadata__"]["content"]), load(content))
    return found


class Chunks:
    """A worker of an evaluation: the model is loaded and all rows are read; chunks are asked for by their number."""

    def __init__(self, model: Any, call: str) -> None:
        given = received(call)
        self.prepared: Prepared = prepare(model, given.pop("rows"), given)
        self.chunks = list(self.prepared.source)

    def __call__(self, shard: Shard) -> dict[str, Any]:
        number = shard.shard
        told = self.prepared.work.chunk(self.chunks[number], first=number == 0)
        return {"shard": number, "told": told}
