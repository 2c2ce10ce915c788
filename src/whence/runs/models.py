"""A model by a name under which every worker can load it, and what tells it from another model."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whence.errors import ModelError, ParameterError, WhenceError
from whence.util.checks import check_choice

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_UNREAD = (".md", ".png", ".gitattributes", ".lock")  # files of a model's folder that do not make the model


def is_named(model: Any) -> bool:
    return isinstance(model, str | os.PathLike)


def name_of(model: Any) -> str:
    """The name to load a model by, the same in every folder; of a live model, its class."""
    if not is_named(model):
        return f"a live {type(getattr(model, 'model', model)).__name__}"
    name = os.fspath(model)
    return os.path.abspath(os.path.expanduser(name)) if os.path.isdir(os.path.expanduser(name)) else name


def loaded(name: str, task: str | None, long: str, device: str | None = None) -> Any:
    """The model of a name: what `whence.load` takes, or "package.module:function" that makes one."""
    model = _made(name) if _is_function(name) else _load(name, task, long)
    if device is not None:
        module = getattr(model, "model", model)
        if isinstance(module, nn.Module):
            module.to(device)
    return model


def _is_function(name: str) -> bool:
    return bool(_FUNCTION.fullmatch(name)) and not name.startswith("zoo:") and not os.path.exists(name)


def _load(name: str, task: str | None, long: str) -> Any:
    from whence.adapters.load import load

    return load(name, task, long=long)  # type: ignore[arg-type]  # which checks it


def _made(name: str) -> Any:
    place, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(place), attribute)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"The model {name!r} cannot be imported: {error}.\n"
            "  Name a function of a module that is installed, or in the folder that the run is started from."
        ) from None
    if isinstance(function, nn.Module):
        raise ModelError(f"{name!r} is a model.\n  Name a function without arguments that returns it.")
    try:
        model = function()
    except WhenceError:
        raise
    except Exception as error:
        raise ModelError(f"The model's function {name!r} raised {type(error).__name__}: {error}") from error
    if not callable(model) and not hasattr(model, "model"):
        raise ModelError(f"The model's function {name!r} returned {type(model).__name__}.\n  Return a model.")
    return model.eval() if isinstance(model, nn.Module) else model


def identity(model: Any, name: str) -> str:
    """What a model is known by: the files of its folder, or what it holds, its weights, code and settings."""
    folder = _folder(name)
    if folder is not None:
        return f"files {_files(folder)}"
    from whence.evaluation.fingerprint import Teller

    told = str(Teller()(model)).encode(errors="backslashreplace")
    return f"contents {hashlib.sha256(told).hexdigest()}"


def _folder(name: str) -> Path | None:
    if name.startswith("zoo:"):
        import whence.zoo

        return Path(whence.zoo.__file__).parent / "weights" / name.removeprefix("zoo:")
    return Path(name) if os.path.isdir(name) else None


def _files(folder: Path) -> str:
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if path.is_file() and path.suffix not in _UNREAD and not any(part.startswith(".") for part in inner.parts):
            with path.open("rb") as file:
                whole.update(f"{inner.as_posix()} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def check_name(model: Any, executor: str) -> None:
    """A model that can be asked; workers load it themselves: it is never pickled."""
    if not is_named(model) and not callable(model) and not hasattr(model, "model"):
        raise ModelError(f"The model is {type(model).__name__}, which cannot be called.\n  Give a model, or its name.")
    if executor != "inline" and not is_named(model):
        raise ParameterError(
            f"executor={executor!r} needs a model that each worker can load itself, but this is {name_of(model)}.\n"
            '  Give a folder, a name, zoo:NAME, or "package.module:function" that returns the model.'
        )


def live(model: Any, executor: str, task: str | None = None, long: str = "error") -> Any:
    """A model by its name, loaded here; it must have one where workers load it too."""
    check_name(model, executor)
    check_choice("long", long, ("error", "truncate", "window"))
    if is_named(model):
        return loaded(name_of(model), task, long)
    if task is not None or long != "error":
        raise ParameterError("task= and long= are for a model by its name.\n  Give them to whence.load.")
    return model


def limit_threads(threads: int) -> None:
    torch.set_num_threads(threads)
