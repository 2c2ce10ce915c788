"""Modules around users' own: embeddings that are handed in, inputs as layers, sums as modules, reference tokens."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from whence.captum.calls import check


class InterpretableEmbeddingBase(nn.Module):
    """Stands where an embedding stood, and passes on embeddings that were computed before."""

    def __init__(self, embedding: nn.Module, full_name: str) -> None:
        super().__init__()
        self.num_embeddings = getattr(embedding, "num_embeddings", None)
        self.embedding_dim = getattr(embedding, "embedding_dim", None)
        self.embedding, self.full_name = embedding, full_name

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        check(inputs or kwargs, "No embeddings were given.\n  Give them as an argument or by a keyword.")
        check(len(inputs) <= 1, "Several arguments were given.\n  Give the embeddings alone.")
        if inputs and kwargs:
            warnings.warn("Only the first argument is passed on: keywords are not.", stacklevel=2)
        return inputs[0] if inputs else next(iter(kwargs.values()))

    def indices_to_embeddings(self, *input: Any, **kwargs: Any) -> Any:
        """The embeddings of ids, by the module that was here."""
        return self.embedding(*input, **kwargs)


def configure_interpretable_embedding_layer(
    model: nn.Module, embedding_layer_name: str = "embedding"
) -> InterpretableEmbeddingBase:
    """Put an `InterpretableEmbeddingBase` in the place of a module, and give it back."""
    embedding = _get_deep_layer_name(model, embedding_layer_name)
    check(
        not isinstance(embedding, InterpretableEmbeddingBase),
        f"{embedding_layer_name!r} is interpretable already.\n"
        "  Call remove_interpretable_embedding_layer before it is configured again.",
    )
    instead = InterpretableEmbeddingBase(embedding, embedding_layer_name)
    _set_deep_layer_value(model, embedding_layer_name, instead)
    return instead


def remove_interpretable_embedding_layer(model: nn.Module, interpretable_emb: InterpretableEmbeddingBase) -> None:
    """Put the original embedding back."""
    _set_deep_layer_value(model, interpretable_emb.full_name, interpretable_emb.embedding)


def _get_deep_layer_name(obj: Any, layer_names: str) -> Any:
    """A part of an object by its dotted path."""
    for name in layer_names.split("."):
        obj = getattr(obj, name)
    return obj


def _set_deep_layer_value(obj: Any, layer_names: str, value: Any) -> None:
    """Set a part of an object by its dotted path."""
    *above, last = layer_names.split(".")
    setattr(_get_deep_layer_name(obj, ".".join(above)) if above else obj, last, value)


class TokenReferenceBase:
    """A sequence of one token, such as padding, as a baseline."""

    def __init__(self, reference_token_idx: int = 0) -> None:
        self.reference_token_idx = reference_token_idx

    def generate_reference(self, sequence_length: int, device: Any) -> Tensor:
        return torch.full((sequence_length,), self.reference_token_idx, device=device)


class InputIdentity(nn.Module):
    """Passes an input on as it is, so that a layer class can name it."""

    def __init__(self, input_name: str) -> None:
        super().__init__()
        self.input_name = input_name

    def forward(self, x: Tensor) -> Tensor:
        return x


class ModelInputWrapper(nn.Module):
    """A model of which each input goes through a module of its own, `input_maps[name]`."""

    def __init__(self, module_to_wrap: nn.Module) -> None:
        super().__init__()
        self.module = module_to_wrap
        self.arg_name_list = list(inspect.signature(module_to_wrap.forward).parameters)
        self.input_maps = nn.ModuleDict({name: InputIdentity(name) for name in self.arg_name_list})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        named = [*zip(self.arg_name_list, args, strict=False)]
        first = [self.input_maps[name](value) for name, value in named]
        rest = {name: self.input_maps[name](value) for name, value in kwargs.items()}
        return self.module(*first, **rest)


class Addition_Module(nn.Module):
    """A sum as a module."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return x1 + x2
