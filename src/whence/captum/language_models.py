"""Attribution of the text that a language model gives to the parts of its prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from whence.captum.base import Attribution
from whence.captum.calls import check
from whence.captum.interpretable import ImageMaskInput, InterpretableInput, TextTemplateInput, TextTokenInput
from whence.captum.layers import LayerGradientShap, LayerGradientXActivation, LayerIntegratedGradients
from whence.captum.perturbation import FeatureAblation, ShapleyValues, ShapleyValueSampling
from whence.captum.providers import RemoteLLMProvider
from whence.captum.surrogates import KernelShap, Lime

DEFAULT_GEN_ARGS = {"max_new_tokens": 25, "do_sample": False, "temperature": None, "top_p": None}


class LLMAttributionResult:
    """The attribution of a whole answer, and of each of its tokens, to the features of a prompt."""

    def __init__(
        self, *, input_tokens: list[str], output_tokens: list[str], seq_attr: Any, token_attr: Any = None,
        output_probs: Any = None, inp: InterpretableInput | None = None,
    ) -> None:  # fmt: skip
        self.input_tokens, self.output_tokens, self.inp = input_tokens, output_tokens, inp
        self._seq_attr = _tensor(seq_attr)
        self._token_attr = None if token_attr is None else _tensor(token_attr)
        self._output_probs = None if output_probs is None else _tensor(output_probs)

    @property
    def seq_attr(self) -> Tensor:
        return self._seq_attr

    @property
    def token_attr(self) -> Tensor | None:
        return self._token_attr

    @property
    def output_probs(self) -> Tensor | None:
        return self._output_probs

    @property
    def seq_attr_dict(self) -> dict[str, float]:
        """The whole answer's attribution by feature."""
        return dict(zip(self.input_tokens, self.seq_attr.tolist(), strict=True))

    def plot_token_attr(self, show: bool = False) -> Any:
        """A table of each output token's attribution to each feature."""
        check(self.token_attr is not None, "token_attr is None: this method attributes whole answers only.")
        assert self.token_attr is not None
        return _table(self.token_attr, self.input_tokens, self.output_tokens, show)

    def plot_seq_attr(self, show: bool = False) -> Any:
        """Bars of the whole answer's attribution."""
        import matplotlib.pyplot as plt

        figure, axes = plt.subplots()
        places = range(len(self.input_tokens))
        axes.bar(places, self.seq_attr.tolist(), color=["#93003a" if v < 0 else "#00429d" for v in self.seq_attr])
        axes.axhline(0, color="black", linewidth=0.5)
        axes.set_xticks(list(places), self.input_tokens, rotation=60)
        figure.tight_layout()
        return _shown(plt, figure, axes, show)

    def plot_image_heatmap(
        self, show: bool = False, target_token_pos: Any = None, border_width: int = 2, show_legends: bool = True
    ) -> Any:
        """The regions of an image in the colour of their attribution."""
        check(isinstance(self.inp, ImageMaskInput), "The input is not an ImageMaskInput, so there is no image.")
        assert isinstance(self.inp, ImageMaskInput)
        values = self.seq_attr
        if target_token_pos is not None:
            check(self.token_attr is not None, "token_attr is None: this method attributes whole answers only.")
            assert self.token_attr is not None
            one = isinstance(target_token_pos, int)
            values = self.token_attr[target_token_pos] if one else self.token_attr[slice(*target_token_pos)].sum(0)
        import matplotlib.pyplot as plt

        pixels = self.inp.format_pixel_attr(values)
        figure, axes = plt.subplots()
        most = float(pixels.abs().max()) or 1.0
        axes.imshow(self.inp.image)
        drawn = axes.imshow(pixels, cmap="coolwarm", alpha=0.6, vmin=-most, vmax=most)
        axes.set_axis_off()
        figure.colorbar(drawn, ax=axes)
        return _shown(plt, figure, axes, show)


def _table(values: Tensor, columns: list[str], rows: list[str], show: bool) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(0.8 * len(columns) + 2, 0.4 * len(rows) + 2))
    most = float(values.abs().max()) or 1.0
    drawn = axes.imshow(values, cmap="coolwarm", vmin=-most, vmax=most, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=60)
    axes.set_yticks(range(len(rows)), rows)
    for (i, j), value in zip(product(range(len(rows)), range(len(columns))), values.flatten().tolist(), strict=True):
        axes.text(j, i, f"{value:.4f}", ha="center", va="center", fontsize=7)
    figure.colorbar(drawn, ax=axes)
    figure.tight_layout()
    return _shown(plt, figure, axes, show)


def _tensor(given: Any) -> Tensor:
    return given if isinstance(given, Tensor) else torch.as_tensor(given, device="cpu")


def _shown(plt: Any, figure: Any, axes: Any, show: bool) -> Any:
    if show:
        plt.show()
        return None
    return figure, axes


class BaseLLMAttribution(Attribution):
    """A language model with its tokenizer, and an attribution method made with it."""

    SUPPORTED_METHODS: tuple[type, ...] = ()
    SUPPORTED_INPUTS: tuple[type, ...] = ()

    def __init__(self, attr_method: Any, tokenizer: Any) -> None:
        name = type(self).__name__
        check(isinstance(attr_method, self.SUPPORTED_METHODS), f"{name} does not take {type(attr_method).__name__}.")
        super().__init__(attr_method.forward_func)
        self.attr_method, self.model, self.tokenizer = attr_method, attr_method.forward_func, tokenizer
        self.device = getattr(self.model, "device", torch.device("cpu"))

    def _prompt(self, model_input: Any) -> Any:
        """The prompt's ids, or a mapping that holds them with what else the model takes."""
        if isinstance(model_input, str):
            return self.tokenizer.encode(model_input, return_tensors="pt").to(self.device)
        return model_input.to(self.device) if hasattr(model_input, "to") else model_input

    def _target(self, inp: InterpretableInput, target: Any, gen_args: Any) -> Tensor:
        """The ids of the answer: the given one, or what the model generates."""
        check(isinstance(inp, self.SUPPORTED_INPUTS), f"{type(self).__name__} does not take {type(inp).__name__}.")
        if target is None:
            check(hasattr(self.model, "generate"), "The model has no generate().\n  Give a target.")
            prompt = self._prompt(inp.to_model_input())
            options = DEFAULT_GEN_ARGS if gen_args is None else gen_args
            with torch.no_grad():
                ids = prompt["input_ids"] if isinstance(prompt, Mapping) else prompt
                made = (
                    self.model.generate(**prompt, **options)
                    if isinstance(prompt, Mapping)
                    else self.model.generate(prompt, **options)
                )
            return made[0][ids.shape[1] :]
        check(gen_args is None, "gen_args is for generating an answer, but a target was given.")
        if isinstance(target, str):
            return torch.tensor(self.tokenizer.encode(target, add_special_tokens=False), device="cpu").to(self.device)
        check(isinstance(target, Tensor), f"The target is {type(target)}.\n  Give a string or a tensor of ids.")
        return target.reshape(-1).to(self.device)

    def _log_probabilities(self, prompt: Any, answer: Tensor) -> Tensor:
        """The log-probability of each token of the answer after the prompt, from one pass."""
        ids, rest = _parted(prompt)
        whole = torch.cat([ids, answer.expand(len(ids), -1)], 1)
        logits = _logits(self.model(whole, attention_mask=torch.ones_like(whole), **rest))
        start = ids.shape[1] - 1
        chosen = logits[:, start : start + len(answer)].log_softmax(-1)
        return chosen.gather(2, answer.expand(len(ids), -1)[..., None].to(chosen.device))[..., 0]

    def _token_by_token(self, prompt: Any, answer: Tensor, cached: bool) -> Tensor:
        """The same from one pass for each token, as the model generates; with the keys and values of the last one."""
        (ids, rest), logs, past = _parted(prompt), [], None
        cached = cached and hasattr(self.model, "_update_model_kwargs_for_generation")
        for token in answer:
            more = {"use_cache": True} if cached else {}
            now = ids if past is None else ids[:, -1:]
            if past is not None:
                more["past_key_values"] = past
            output = self.model(now, attention_mask=torch.ones_like(ids), **(rest if past is None else {}), **more)
            logs.append(_logits(output)[:, -1].log_softmax(-1)[:, token])
            past = getattr(output, "past_key_values", None) if cached else None
            ids = torch.cat([ids, token.expand(len(ids), 1)], 1)
        return torch.stack(logs, 1)


def readable(ids: Tensor, tokenizer: Any) -> list[str]:
    """Tokens without the marks that tokenizers write for spaces."""
    tokens = tokenizer.convert_ids_to_tokens(ids.tolist())
    return [str(token).replace("Ġ", " ").replace("▁", " ").strip() or str(token) for token in tokens]


def _parted(prompt: Any) -> tuple[Tensor, dict[str, Any]]:
    """The ids of a prompt, and what else it holds for the model."""
    if not isinstance(prompt, Mapping):
        return prompt, {}
    return prompt["input_ids"], {k: v for k, v in prompt.items() if k not in ("input_ids", "attention_mask")}


def _logits(output: Any) -> Tensor:
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple) else output


class LLMAttribution(BaseLLMAttribution):
    """A perturbation method on the (log-)probability of an answer, of which the prompt's features are taken away."""

    SUPPORTED_METHODS = (FeatureAblation, ShapleyValueSampling, ShapleyValues, Lime, KernelShap)
    SUPPORTED_PER_TOKEN_ATTR_METHODS = (FeatureAblation, ShapleyValueSampling, ShapleyValues)
    SUPPORTED_INPUTS = (TextTemplateInput, TextTokenInput, ImageMaskInput)

    def __init__(self, attr_method: Any, tokenizer: Any, attr_target: str = "log_prob") -> None:
        super().__init__(attr_method, tokenizer)
        check(attr_target in ("log_prob", "prob"), f'attr_target={attr_target!r}: give "log_prob" or "prob".')
        self.attr_target = attr_target
        self.include_per_token_attr = isinstance(attr_method, self.SUPPORTED_PER_TOKEN_ATTR_METHODS)

    def attribute(
        self,
        inp: InterpretableInput,
        target: Any = None,
        num_trials: int = 1,
        gen_args: dict[str, Any] | None = None,
        use_cached_outputs: bool = True,
        _inspect_forward: Callable[..., None] | None = None,
        forward_in_tokens: bool = True,
        **kwargs: Any,
    ) -> LLMAttributionResult:
        answer = self._target(inp, target, gen_args)
        features, per_token = inp.to_tensor().to(self.device), self.include_per_token_attr
        read = (
            partial(self._token_by_token, cached=use_cached_outputs) if forward_in_tokens else self._log_probabilities
        )

        def scores(present: Tensor) -> Tensor:
            rows = [self._scores(inp, row[None], answer, _inspect_forward, read) for row in present]
            return torch.stack(rows) if per_token else torch.stack(rows)[:, 0]

        plain, total = self.attr_method.forward_func, torch.zeros((), device="cpu")
        self.attr_method.forward_func = scores
        try:
            for _ in range(num_trials):
                found = self.attr_method.attribute(features.float(), **kwargs)
                found = found.detach().cpu().reshape(-1, inp.n_itp_features)
                total = total + inp.format_attr(found)
        finally:
            self.attr_method.forward_func = plain
        mean = total / num_trials
        return LLMAttributionResult(
            seq_attr=mean[0],
            token_attr=mean[1:] if per_token else None,
            input_tokens=inp.values,
            output_tokens=readable(answer, self.tokenizer),
            inp=inp,
        )

    def _scores(self, inp: InterpretableInput, present: Tensor, answer: Tensor, tell: Any, read: Any) -> Tensor:
        """The score of the whole answer, then of each token."""
        prompt = self._prompt(inp.to_model_input(present))
        with torch.no_grad():
            logs = read(prompt, answer)[0]
        if tell is not None:
            ids = prompt["input_ids"] if isinstance(prompt, Mapping) else prompt
            tell(self.tokenizer.decode(ids[0]), self.tokenizer.decode(answer), logs.tolist())
        total = logs.sum()
        if self.attr_target == "prob":
            total, logs = total.exp(), logs.exp()
        return torch.cat([total[None], logs])


class LLMGradientAttribution(BaseLLMAttribution):
    """A layer's gradient method on the log-probability of each token of an answer, summed over the embedding."""

    SUPPORTED_METHODS = (LayerGradientShap, LayerGradientXActivation, LayerIntegratedGradients)
    SUPPORTED_INPUTS = (TextTokenInput,)

    def attribute(
        self, inp: InterpretableInput, target: Any = None, gen_args: dict[str, Any] | None = None, **kwargs: Any
    ) -> LLMAttributionResult:
        answer = self._target(inp, target, gen_args)
        assert isinstance(inp, TextTokenInput)
        ids = inp.itp_tensor.to(self.device)
        length, per_token = inp.inp_tensor.shape[1], []
        plain = self.attr_method.forward_func
        try:
            for last in range(len(answer)):
                self.attr_method.forward_func = self._score_of(inp, answer[: last + 1])
                found = self.attr_method.attribute(ids, **kwargs)
                values = (found[0] if isinstance(found, tuple | list) else found).detach().cpu()
                values = values.reshape(values.shape[0], values.shape[1], -1).sum(2)[0, :length]
                per_token.append(values if inp.itp_mask is None else values[inp.itp_mask[0]])
        finally:
            self.attr_method.forward_func = plain
        tokens = inp.format_attr(torch.stack(per_token))
        return LLMAttributionResult(
            seq_attr=tokens.sum(0),
            token_attr=tokens,
            input_tokens=inp.values,
            output_tokens=readable(answer, self.tokenizer),
        )

    def _score_of(self, inp: TextTokenInput, answer: Tensor) -> Callable[..., Tensor]:
        """The log-probability of the last of these tokens as a function of the prompt's ids."""

        def score(tokens: Tensor) -> Tensor:
            ids = torch.cat([inp.whole(tokens), answer[:-1].expand(len(tokens), -1)], 1)
            return self._log_probabilities(ids, answer[-1:])[:, 0]

        return score


class _PlaceholderModel:
    """Stands for the model where a method wants one."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        return 0


class RemoteLLMAttribution(LLMAttribution):
    """`LLMAttribution` of a model that a provider of the user's runs elsewhere."""

    def __init__(
        self, attr_method: Any, tokenizer: Any, provider: RemoteLLMProvider, attr_target: str = "log_prob"
    ) -> None:
        super().__init__(attr_method, tokenizer, attr_target)
        self.provider = provider

    placeholder_model = _PlaceholderModel()

    def _target(self, inp: InterpretableInput, target: Any, gen_args: Any) -> Tensor:
        if target is None:
            target = self.provider.generate(self._text(inp.to_model_input()), **(gen_args or {"max_tokens": 25}))
            gen_args = None
        return super()._target(inp, target, gen_args)

    def _text(self, model_input: Any) -> str:
        return model_input if isinstance(model_input, str) else self.tokenizer.decode(model_input[0])

    def _scores(self, inp: InterpretableInput, present: Tensor, answer: Tensor, tell: Any, read: Any) -> Tensor:
        prompt, text = self._text(inp.to_model_input(present)), self.tokenizer.decode(answer)
        logs = torch.tensor(self.provider.get_logprobs(prompt, text, self.tokenizer), device="cpu")
        check(len(logs) == len(answer), f"The provider gave {len(logs)} numbers for {len(answer)} tokens.")
        if tell is not None:
            tell(prompt, text, logs.tolist())
        total = logs.sum()
        if self.attr_target == "prob":
            total, logs = total.exp(), logs.exp()
        return torch.cat([total[None], logs])
