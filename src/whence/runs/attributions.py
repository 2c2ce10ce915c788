"""Rows of a part as Attributions, with everything that was stored of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from whence.errors import FileError
from whence.results.attribution import Attribution
from whence.runs import parts
from whence.runs.plan import Shard

if TYPE_CHECKING:
    from whence.runs.opened import Run


def attributions(run: Run, shard: Shard, batch: Any, method: str) -> Iterator[Attribution]:
    """The rows of a batch by one method; those it could not explain are left out."""
    told: Mapping[str, Any] = {}
    for record in batch.to_pylist():
        if record[f"values_{method}"] is None and record[f"shape_{method}"] is None:
            continue
        told = told or parts.footer(run.storage, shard, run.manifest["fingerprint"])
        yield _attribution(run, shard, record, method, told["kinds"].get(method, {}))


def _attribution(
    run: Run, shard: Shard, record: Mapping[str, Any], method: str, kind: Mapping[str, Any]
) -> Attribution:
    values = _values(run, shard, record, method)[None].float()
    of = run.manifest["of"]["methods"][method]
    units: dict[str, Any] = {
        name: None if record[name] is None else [record[name]] for name in ("special", "words", "segments")
    }
    if record["tokens"] is None or len(record["tokens"]) != values.shape[1]:
        units, tokens, spans = {}, None, None
    else:
        tokens = [record["tokens"]]
        spans = None if record["starts"] is None else [list(zip(record["starts"], record["ends"], strict=True))]
    text = record["text"] if record["second"] is None else (record["text"], record["second"])
    own = [one.removeprefix(f"{method}: ") for one in record["warnings"] or () if one.startswith(f"{method}: ")]
    receipt = {
        "model": run.manifest["model"], "run": run.storage.address, "row": record["row"],
        "output": run.manifest["of"]["options"].get("output", "logit"), **_known(kind, "channels"),
        "probability": [record["probability"]], "prediction": [record["prediction"]], "label": [record["label"]],
        "per_row": ["probability", "prediction", "label"], "warnings": own,
        "warned": [{"text": one, "rows": None, "worst": {}} for one in own],
    }  # fmt: skip
    size = kind.get("image_size")
    return Attribution(
        values=values, raw=values, target=_target(record), output_value=torch.tensor([record["score"]], device="cpu"),
        method=of["method"], params=of["params"], receipt=receipt, units=tokens,
        baseline_value=_number(record[f"baseline_score_{method}"]), gap=_number(record[f"gap_{method}"]),
        image_size=None if size is None else (size[0], size[1]), spans=spans, **units,
        text=None if text is None else [text], labels=None if record["target_index"] is None else [record["target"]],
    )  # fmt: skip


def _known(kind: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: kind[name]} if kind.get(name) is not None else {}


def _number(value: float | None) -> Tensor | None:
    return None if value is None else torch.tensor([value], device="cpu")


def _target(record: Mapping[str, Any]) -> Any:
    index = record["target_index"]
    if index is None:
        return record["target"]
    return torch.tensor(index, device="cpu") if len(index) == 1 else [tuple(index)]


def _values(run: Run, shard: Shard, record: Mapping[str, Any], method: str) -> Tensor:
    if record[f"values_{method}"] is not None:
        return torch.tensor(record[f"values_{method}"], device="cpu")
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        if run.storage.local:
            from safetensors import safe_open

            with safe_open(run.storage.path(shard.maps), "pt") as file:
                return file.get_tensor(f"{record['row']}/{method}").clone()  # not a view of the file
        return load(run.storage.read(shard.maps) or b"")[f"{record['row']}/{method}"]
    except (SafetensorError, KeyError, OSError) as error:
        raise FileError(f"{run.storage.path(shard.maps)} cannot be read: {error}.\n  Run again.") from None
