"""`whence.load`: a model and its processor from a folder or by name, from safetensors and without remote code."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from whence.adapters.folders import Find, check_files, own_ops
from whence.adapters.tasks import ADAPTED, TASKS, task_of
from whence.adapters.tokens import Long
from whence.adapters.wrapped import Wrapped, wrap
from whence.errors import FileError, ModelError, ParameterError, did_you_mean
from whence.util.libraries import imported


def load(
    path: str | PathLike[str], task: str | None = None, *, long: Long = "error", trust_remote_code: bool = False,
    **unknown: Any,
) -> Wrapped:  # fmt: skip
    """A Hugging Face model with its tokenizer or image processor, ready for `explain`; "zoo:NAME" is a bundled model.

    `task` is needed only where a folder does not say which class it is. Texts longer than the model takes are an error,
    truncated, or read in windows, as `long` says. Code from the folder runs only with `trust_remote_code=True`.
    """
    if unknown:
        word = next(iter(unknown))
        raise ParameterError(
            f"load has no parameter {word!r}. {did_you_mean(word, ('task', 'long', 'trust_remote_code'))}\n"
            "  Load the model yourself, with what its class takes, and whence.wrap(model, processor)."
        )
    name = fspath(path)
    if name.startswith("zoo:"):
        return _bundled(name.removeprefix("zoo:"), task, long)
    name = os.path.expanduser(name)
    _check_folder(name)
    library = transformers()
    common: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if not Path(name).is_dir() and not _reachable():
        common["local_files_only"] = True
    config = _config(library.AutoConfig, name, common)
    kind = _class(library, config, task)
    own = task_of(kind)
    if own is None or (task is not None and task != own):
        raise ModelError(
            f"{name!r} is a {kind.__name__}" + (f", which does {own}, but task={task!r} was given" if own else "")
            + f".\n  There are adapters for {', '.join(ADAPTED)}; give other models tensors."
        )  # fmt: skip
    if not isinstance(config, kind.config_class):
        config = _config(kind.config_class, name, common)
    check_files(name, config, _finder(library, name, common))
    config = own_ops(name, config)
    try:
        with quiet(library):
            model, told = kind.from_pretrained(
                name, config=config, use_safetensors=True, output_loading_info=True, **common
            )
    except Exception as error:  # each part of transformers raises errors of its own
        raise FileError(f"{name!r} has no weights that can be read: {_first_line(error)}") from None
    missing = sorted(told.get("missing_keys", ()))
    if missing:
        raise FileError(
            f"{name!r} has no weights for {missing[0]!r}" + (f" and {len(missing) - 1} more" if missing[1:] else "")
            + f" of {kind.__name__}: they would be random.\n  Give a folder with a model that was trained for this."
        )  # fmt: skip
    model = model.eval()
    found = wrap(model, _processor(library, name, own, common), task=own, long=long)
    return replace(found, name=Path(name).resolve().name if Path(name).is_dir() else name)


def transformers() -> Any:
    """The library, or an error that says how to install it."""
    return imported("transformers", "whence.load needs", "'whence[hf]'")


@contextmanager
def quiet(library: Any) -> Iterator[None]:
    """Run the block without the library's own progress bar."""
    log = library.utils.logging
    shown = log.is_progress_bar_enabled()
    log.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            log.enable_progress_bar()


def _bundled(name: str, task: str | None, long: Long) -> Wrapped:
    from whence import zoo

    wrapped = zoo.load(name, long=long)
    if task is not None and task != wrapped.task:
        raise ModelError(f"zoo:{name} does {wrapped.task}, but task={task!r} was given.\n  Leave task out.")
    return wrapped


def _reachable() -> bool:
    """Whether the hub answers one short request: the library itself retries for half a minute."""
    try:
        from huggingface_hub import constants, get_session

        get_session().head(constants.ENDPOINT, timeout=_PATIENCE)
    except Exception:  # its errors are those of its HTTP library
        return False
    return True


_PATIENCE = 3  # seconds


def _config(kind: Any, name: str, common: Mapping[str, Any]) -> Any:
    try:
        return kind.from_pretrained(name, **common)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if common.get("local_files_only"):
            from huggingface_hub import constants

            raise FileError(
                f"{name!r} is not a folder, and {constants.ENDPOINT} cannot be reached.\n"
                "  Give a model's folder, or zoo:NAME for a bundled model."
            ) from None
        raise FileError(f"{name!r} has no model configuration that can be read: {_first_line(error)}") from None


def _finder(library: Any, name: str, common: Mapping[str, Any]) -> Find:
    """A function that finds a file of the model by its name."""
    folder = Path(name)
    if folder.is_dir():
        return lambda file: folder / file if (folder / file).exists() else None
    how = {"local_files_only": common.get("local_files_only", False)}

    def find(file: str) -> Path | None:
        found = library.utils.cached_file(
            name, file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False,
            **how,
        )  # fmt: skip
        return None if found is None else Path(found)

    return find


def _check_folder(name: str) -> None:
    """Report early what a folder lacks; a path that cannot be a name on the hub must be a folder."""
    folder = Path(name)
    if not folder.exists():
        if name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") > 1:
            raise FileError(f"There is no folder {name!r}.\n  Give a model's folder, a hub name, or zoo:NAME.")
        return  # a name
    if not (folder / "config.json").exists():
        raise FileError(f"{str(folder)!r} has no config.json.\n  Give a folder that save_pretrained wrote.")
    if any(folder.glob("*.safetensors")) or any(folder.glob("*.safetensors.index.json")):
        return
    pickles = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
    if pickles:
        raise FileError(
            f"{str(folder)!r} has its weights as a pickle ({pickles[0]}), which runs code when it is read.\n"
            "  Load it where you trust it and save it again with save_pretrained, which writes safetensors."
        )
    raise FileError(f"{str(folder)!r} has no weights.\n  Give a folder with model.safetensors.")


def _class(library: Any, config: Any, task: str | None) -> Any:
    for name in getattr(config, "architectures", None) or ():
        found = getattr(library, str(name), None)
        if isinstance(found, type) and issubclass(found, library.PreTrainedModel):
            return found
    autos = {name: known.auto for name, known in TASKS.items() if known.auto}
    if task not in autos:
        raise ModelError(
            f"The configuration does not name the model's class.\n  Say what it does: task= one of {', '.join(autos)}."
        )
    auto = getattr(library, autos[task])
    mapping = auto._model_mapping
    if type(config) not in mapping:
        raise ModelError(
            f"A model of type {config.model_type!r} has no class for task={task!r}.\n  Choose another task."
        )
    return mapping[type(config)]


_VOCABULARIES = ("tokenizer.json", "vocab.*", "*.model", "*.vocab", "merges.txt", "tokenizer*.json")


def _processor(library: Any, name: str, task: str, common: dict[str, Any]) -> Any:
    folder, kind = Path(name), TASKS[task].processor
    reads_text = kind != "AutoImageProcessor"
    if folder.is_dir() and reads_text and not any(p for g in _VOCABULARIES for p in folder.glob(g)):
        raise _no_tokenizer(name)
    try:
        processor = getattr(library, kind).from_pretrained(name, **common)
    except Exception as error:  # tokenizers raise errors of their own
        what = {"AutoImageProcessor": "image processor", "AutoProcessor": "processor"}.get(kind, "tokenizer")
        raise FileError(
            f"{name!r} has no {what} that can be read: {_first_line(error)}\n"
            "  Load the model yourself, and whence.wrap(model, processor)."
        ) from None
    tokenizer = processor if kind == "AutoTokenizer" else getattr(processor, "tokenizer", None)
    if folder.is_dir() and _knows_no_word(tokenizer):
        raise _no_tokenizer(name)
    return processor


def _knows_no_word(tokenizer: Any) -> bool:
    """Whether a tokenizer was built without its files: it has special tokens only, all else is unknown."""
    known = getattr(tokenizer, "get_vocab", None)
    return known is not None and len(known().keys() - set(tokenizer.all_special_tokens)) < 2


def _no_tokenizer(name: str) -> FileError:
    return FileError(
        f"{name!r} has no tokenizer files, such as tokenizer.json or vocab.txt.\n"
        "  Save them there too (tokenizer.save_pretrained), or whence.wrap(model, tokenizer)."
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
