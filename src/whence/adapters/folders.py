"""What a model's folder may ask for: its own safetensors files, and PyTorch's own ops."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from whence.errors import FileError

Find = Callable[[str], Path | None]  # a file of the model by its name, if it exists

_INDEX = ".safetensors.index.json"
_PICKLES = ("spk_dict.pt",)  # what a class of transformers would unpickle beside the weights
_LOCAL = ("bitsandbytes", "compressed-tensors", "gptq", "awq", "hqq", "quanto", "torchao")  # run by what is installed


def check_files(name: str, config: Any, find: Find) -> None:
    """Refuse what would read another file than the model's own safetensors."""
    named = getattr(config, "transformers_weights", None)
    if named is not None:
        _check_name(named, f"config.json of {name!r}", (".safetensors", _INDEX))
    indices: list[str] = [f"model{_INDEX}", *([str(named)] if str(named).endswith(_INDEX) else [])]
    for index in dict.fromkeys(indices):
        path = find(index)
        if path is not None:
            for shard in _shards(path, name):
                _check_name(shard, f"{index} of {name!r}", (".safetensors",))
    if find("adapter_config.json") is not None:
        raise FileError(
            f"{name!r} has an adapter (adapter_config.json), whose base model may come from elsewhere.\n"
            "  Merge the two (peft's merge_and_unload) and save the result with save_pretrained, or whence.wrap it."
        )
    for pickle in _PICKLES:
        if find(pickle) is not None:
            raise FileError(f"{name!r} has a pickle ({pickle}), which its class would read.\n  Remove it.")


def _shards(index: Path, name: str) -> set[Any]:
    """The files that an index of weights names."""
    try:
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return set(shards.values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise FileError(f"{index.name} of {name!r} is not an index of weights.\n  Save the model again.") from None


def _check_name(file: Any, where: str, ends: tuple[str, ...]) -> None:
    """A plain name of a safetensors file: no folder, neither this system's nor another's."""
    plain = isinstance(file, str) and file == PurePosixPath(file).name == PureWindowsPath(file).name
    if not plain or not file.endswith(ends):
        raise FileError(
            f"The {where} names {file!r} as weights, which is not a safetensors file of that folder.\n"
            "  Load it where you trust it, and save it again with save_pretrained."
        )


def own_ops(name: str, config: Any) -> Any:
    """The configuration with PyTorch's attention and experts, whatever kernels the folder names."""
    for part in _parts(config, set()):
        quantized = getattr(part, "quantization_config", None)
        kind = (
            quantized.get("quant_method") if isinstance(quantized, dict) else getattr(quantized, "quant_method", None)
        )
        kind = getattr(kind, "value", kind)
        if quantized is not None and not str(kind).startswith(_LOCAL):
            raise FileError(
                f"{name!r} is quantised ({kind}) and may ask for kernels from the hub.\n"
                "  Load it where you trust it, and whence.wrap(model, processor)."
            )
        # None is scaled_dot_product_attention where the class supports it, else eager
        part._attn_implementation = "eager" if getattr(part, "output_attentions", False) else None
        part._experts_implementation = None
    return config


def _parts(config: Any, seen: set[int]) -> Iterator[Any]:
    """A configuration and all those inside it."""
    if isinstance(config, dict | list | tuple):
        for item in config.values() if isinstance(config, dict) else config:
            yield from _parts(item, seen)
    elif hasattr(config, "_attn_implementation") and id(config) not in seen:
        seen.add(id(config))
        yield config
        for item in list(vars(config).values()):
            yield from _parts(item, seen)
