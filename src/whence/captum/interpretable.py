"""Inputs that are not tensors, with their features: texts by token or by template, images by region."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.captum.calls import check


class InterpretableInput(ABC):
    """A model's input and its features: a tensor (1, n) of what is there and what is not."""

    n_itp_features: int
    values: list[str]

    @abstractmethod
    def to_tensor(self) -> Tensor:
        """All features there, (1, n)."""

    @abstractmethod
    def to_model_input(self, perturbed_tensor: Tensor | None = None) -> Any:
        """The model's input with some of the features."""

    def format_attr(self, itp_attr: Tensor) -> Tensor:
        """Attributions of features (…, n) as they are to be shown."""
        return itp_attr


class TextTokenInput(InterpretableInput):
    """A text by its tokens; those in `skip_tokens` are always there."""

    def __init__(self, text: str, tokenizer: Any, baselines: int | str = 0, skip_tokens: Any = None) -> None:
        self.tokenizer, self.skip_tokens = tokenizer, skip_tokens
        self.inp_tensor = tokenizer.encode(text, return_tensors="pt")
        self.itp_mask: Tensor | None = None
        self.itp_tensor = self.inp_tensor
        if skip_tokens:
            if isinstance(skip_tokens[0], str):
                self.skip_tokens = tokenizer.convert_tokens_to_ids(skip_tokens)
            self.itp_mask = ~torch.isin(self.inp_tensor, torch.tensor(self.skip_tokens, device=self.inp_tensor.device))
            self.itp_tensor = self.inp_tensor[self.itp_mask][None]
        self.values = tokenizer.convert_ids_to_tokens(self.itp_tensor[0].tolist())
        self.n_itp_features = len(self.values)
        self.baselines = tokenizer.convert_tokens_to_ids([baselines])[0] if isinstance(baselines, str) else baselines

    def to_tensor(self) -> Tensor:
        return torch.ones_like(self.itp_tensor)

    def to_model_input(self, perturbed_tensor: Tensor | None = None) -> Tensor:
        if perturbed_tensor is None:
            return self.inp_tensor
        device = perturbed_tensor.device
        tokens = torch.where(perturbed_tensor > 0.5, self.itp_tensor.to(device), self.baselines)
        return self.whole(tokens)

    def whole(self, tokens: Tensor) -> Tensor:
        """The ids of the whole text, with these for its features."""
        if self.itp_mask is None:
            return tokens
        ids = self.inp_tensor.to(tokens.device).repeat(len(tokens), 1)
        return ids.masked_scatter(self.itp_mask.to(ids.device).expand_as(ids), tokens.to(ids.dtype))


class TextTemplateInput(InterpretableInput):
    """A text by the values that fill a template; values of one number in `mask` go together."""

    def __init__(
        self, template: str | Callable[..., str], values: Any, baselines: Any = None, mask: Any = None
    ) -> None:
        self.dict_keys = list(values) if isinstance(values, dict) else []
        self.values = list(values.values()) if self.dict_keys else values
        kind = "dict" if self.dict_keys else "list"
        self.baselines = [""] * len(self.values) if baselines is None else baselines
        if baselines is not None and not callable(baselines):
            self.baselines = self._listed(baselines, f"If values is a {kind}, the baselines must be one too.")
        self.mask = None if mask is None else self._listed(mask, f"If values is a {kind}, the mask must be one too.")
        self.n_features = self.n_itp_features = len(self.values)
        if self.mask is not None:
            known = sorted(set(self.mask))
            self.formatted_mask = [known.index(number) for number in self.mask]
            self.n_itp_features = len(known)
        self.template = template
        self.format_fn = template.format if isinstance(template, str) else template

    def _listed(self, given: Any, message: str) -> list[Any]:
        """Values in order, from the form that the template's values have."""
        if not self.dict_keys:
            check(isinstance(given, list), message)
            return list(given)
        check(isinstance(given, dict), message)
        check(set(given) == set(self.dict_keys), f"The keys {sorted(given)} are not those of the values.")
        return [given[key] for key in self.dict_keys]

    def to_tensor(self) -> Tensor:
        return torch.ones(1, self.n_itp_features, device="cpu")

    def to_model_input(self, perturbed_tensor: Tensor | None = None) -> str:
        values = list(self.values)
        if perturbed_tensor is not None:
            instead = self.baselines() if callable(self.baselines) else self.baselines
            instead = list(instead.values()) if isinstance(instead, dict) else instead
            there = perturbed_tensor.reshape(-1).tolist()
            of = range(len(values)) if self.mask is None else self.formatted_mask
            values = [v if there[i] > 0.5 else other for v, other, i in zip(values, instead, of, strict=True)]
        return (
            self.format_fn(**dict(zip(self.dict_keys, values, strict=True)))
            if self.dict_keys
            else self.format_fn(*values)
        )

    def format_attr(self, itp_attr: Tensor) -> Tensor:
        return itp_attr if self.mask is None else itp_attr[..., self.formatted_mask]


class ImageMaskInput(InterpretableInput):
    """An image by regions, which are painted over when they are missing."""

    def __init__(
        self,
        image: Any,
        mask: Tensor | None = None,
        mask_list: list[Tensor] | None = None,
        baseline: tuple[int, int, int] = (255, 255, 255),
        processor_fn: Callable[[Any], Any] = lambda image: image,
    ) -> None:
        size = (image.size[1], image.size[0])
        self.image, self.baseline, self.processor_fn = image, baseline, processor_fn
        self.mask, self.mask_list = mask, mask_list
        if mask_list is None:
            whole = torch.zeros(size, dtype=torch.long, device="cpu") if mask is None else mask
            check(tuple(whole.shape) == size, f"The mask has the shape {tuple(whole.shape)}, the image {size}.")
            self.regions = [whole == number for number in whole.unique().tolist()]
        else:
            self.regions = [region.bool() for region in mask_list]
            check(
                all(tuple(r.shape) == size for r in self.regions), f"A mask has another shape than the image, {size}."
            )
        self.n_itp_features = len(self.regions)
        self.values = [f"image_feature_{i}" for i in range(self.n_itp_features)]

    def get_mask_list(self) -> list[Tensor]:
        """Each region, true where it is."""
        return self.regions

    def to_tensor(self) -> Tensor:
        return torch.ones(1, self.n_itp_features, device="cpu")

    def to_model_input(self, perturbed_tensor: Tensor | None = None) -> Any:
        if perturbed_tensor is None:
            return self.processor_fn(self.image)
        import numpy as np
        from PIL import Image

        pixels = np.array(self.image.convert("RGB"))
        for region, there in zip(self.regions, perturbed_tensor.reshape(-1).tolist(), strict=True):
            if there < 0.5:
                pixels[region.numpy()] = self.baseline
        return self.processor_fn(Image.fromarray(pixels))

    def format_pixel_attr(self, itp_attr: Tensor) -> Tensor:
        """The sum of the attributions of each pixel's regions, (height, width)."""
        values = itp_attr.reshape(-1).tolist()
        return sum(region * value for region, value in zip(self.regions, values, strict=True))

    def plot_mask_overlay(self, show: bool = False, border_width: int = 0, show_legends: bool = True) -> Any:
        """The image with its regions in colours."""
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots()
        axes.imshow(self.image)
        numbered = torch.zeros(self.regions[0].shape, device="cpu")
        for number, region in enumerate(self.regions, 1):
            numbered[region] = number
        shown = axes.imshow(numbered, alpha=0.4, cmap="tab20")
        axes.set_axis_off()
        if show_legends:
            figure.colorbar(shown, ax=axes)
        if show:
            plt.show()
            return None
        return figure, axes


class ProductBaselines:
    """Baselines drawn for each feature, or each group of features, by itself."""

    def __init__(self, baseline_values: Any) -> None:
        self.dict_keys = list(baseline_values) if isinstance(baseline_values, dict) else []
        self.baseline_values = list(baseline_values.values()) if self.dict_keys else baseline_values

    def sample(self) -> Any:
        """One baseline: a list, or a dict by feature."""
        drawn = [random.choice(values) for values in self.baseline_values]
        if not self.dict_keys:
            return drawn
        made: dict[str, Any] = {}
        for key, value in zip(self.dict_keys, drawn, strict=True):
            made |= dict(zip(key, value, strict=True)) if isinstance(key, tuple) else {key: value}
        return made

    def __call__(self) -> Any:
        return self.sample()
