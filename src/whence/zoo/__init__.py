"""The bundled models: `whence.load("zoo:NAME")`; trained by `python -m whence.zoo.training NAME`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.errors import FileError, ParameterError, nearest

if TYPE_CHECKING:
    from torch import nn

    from whence.adapters.wrapped import Wrapped

FOLDER = Path(__file__).parent / "weights"


def load(name: str, **how: Any) -> Wrapped:
    """One of the bundled models, ready for `explain`; its `examples` are inputs to try it with."""
    folder = _checked(name)
    return replace(ZOO[name](folder, **how), examples=_examples(folder), name=f"zoo:{name}")


def card(name: str) -> dict[str, Any]:
    """What a model is, what it was trained on, how good it is, and what it cannot do."""
    return json.loads((_checked(name) / "card.json").read_text(encoding="utf-8"))


def _checked(name: str) -> Path:
    if name not in ZOO:
        raise ParameterError(
            f"The zoo has no {name!r}. {nearest(name, ZOO)}".rstrip() + f"\n  It has {', '.join(ZOO)}."
        )
    if not (FOLDER / name / "card.json").is_file():
        raise FileError(
            f"zoo:{name} is not in this installation.\n  Install Whence again, or train it: {__name__}.training."
        )
    return FOLDER / name


def _examples(folder: Path) -> list[Any]:
    given = json.loads((folder / "examples.json").read_text(encoding="utf-8"))
    files = {path.name for path in folder.iterdir()}
    return [str(folder / item) if item in files else item for item in given]


# ---- how each model is loaded ----


def _folder(folder: Path, **how: Any) -> Wrapped:
    from whence.adapters.load import load

    return load(folder, **how)


def _weights(model: nn.Module, folder: Path) -> Any:
    from safetensors.torch import load_file

    model.load_state_dict({name: value.float() for name, value in load_file(folder / "model.safetensors").items()})
    return model.eval()


def _own(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A model of `whence.zoo.models`, and its configuration."""
    from whence.zoo import models

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return _weights(getattr(models, config["class"])(**config["arguments"]), folder), config


def _texts(folder: Path, *, task: str, **how: Any) -> Wrapped:
    from whence.adapters.load import transformers
    from whence.adapters.wrapped import wrap

    model, config = _own(folder)
    tokenizer = transformers().PreTrainedTokenizerFast.from_pretrained(folder)
    return wrap(model, tokenizer, task=task, labels=config.get("labels"), **how)


def _cnn(folder: Path, **how: Any) -> Wrapped:
    from whence.adapters.wrapped import wrap
    from whence.zoo.images import Gray

    model, config = _own(folder)
    return wrap(model, Gray(), task="image-classification", labels=config["labels"], **how)


def _vit(folder: Path, **how: Any) -> Wrapped:
    from whence.adapters.load import quiet, transformers
    from whence.adapters.wrapped import wrap
    from whence.zoo.images import Gray

    library = transformers()
    with quiet(library):
        model = library.ViTForImageClassification.from_pretrained(folder, use_safetensors=True)
    return wrap(model.eval(), Gray(model.config.image_size), **how)


def _molecules(folder: Path, **how: Any) -> Wrapped:
    from whence.adapters.wrapped import wrap
    from whence.zoo.molecules import Reader

    model, config = _own(folder)
    return replace(wrap(model, Reader(config["atoms"]), labels=config["labels"], **how), exclusive=False)


def _photos(folder: Path, **how: Any) -> Wrapped:
    from whence.adapters.wrapped import wrap
    from whence.zoo.photos import Photo, labels, network

    return wrap(network(), Photo(), task="image-classification", labels=labels(folder), **how)


ZOO: dict[str, Callable[..., Wrapped]] = {
    "sentiment": _folder,
    "questions": partial(_texts, task="text-classification"),
    "translation": partial(_texts, task="text2text-generation"),
    "language": _folder,
    "needle": _folder,
    "fashion-cnn": _cnn,
    "fashion-vit": _vit,
    "mosaic-vit": _vit,
    "molecules": _molecules,
    "photos": _photos,
}
