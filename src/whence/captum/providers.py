"""Language models behind an address: an interface; Whence explains models that it can run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

_WAY_OUT = (
    "Whence opens no connection.\n  Subclass RemoteLLMProvider with your own client, or load the model with "
    "whence.load and take LLMAttribution."
)


class RemoteLLMProvider(ABC):
    """What a remote model has to offer: text, and the log-probabilities of a text."""

    api_url: str

    @abstractmethod
    def generate(self, prompt: str, **gen_args: Any) -> str:
        """A continuation of the prompt."""

    @abstractmethod
    def get_logprobs(self, input_prompt: str, target_str: str, tokenizer: Any = None) -> list[float]:
        """The log-probability of each token of the target, after the prompt."""


class VLLMProvider(RemoteLLMProvider):
    """Not offered: it would open a connection."""

    def __init__(self, api_url: str, model_name: str | None = None) -> None:
        raise NotImplementedError(f"VLLMProvider({api_url!r}): {_WAY_OUT}")

    def generate(self, prompt: str, **gen_args: Any) -> str:
        raise NotImplementedError(_WAY_OUT)

    def get_logprobs(self, input_prompt: str, target_str: str, tokenizer: Any = None) -> list[float]:
        raise NotImplementedError(_WAY_OUT)
