"""Models with what turns a user's texts and images into their tensors: `whence.load`, `whence.wrap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from whence.adapters.requests import Request
from whence.errors import ModelError, ParameterError, did_you_mean
from whence.util.checks import check_choice

if TYPE_CHECKING:  # texts and images are read where a model is wrapped, not wherever tensors are explained
    from whence.adapters.generation import Continuation
    from whence.adapters.tasks import Task
    from whence.adapters.tokens import Long


@dataclass(frozen=True, eq=False)
class Wrapped:
    """A model, its processor, its task and the names of its classes."""

    model: Any
    processor: Any
    task: str  # a name in the table of tasks
    labels: Mapping[int, str] = field(default_factory=dict)
    long: Long = "error"
    examples: Sequence[Any] = ()  # inputs to try it with
    exclusive: bool = True  # a row has one label: probabilities are a softmax
    name: str = ""  # where it was loaded from
    names: Callable[[Any], Any] | None = None  # of a row's positions, where a function reads the rows

    def __repr__(self) -> str:
        return f"Wrapped({type(self.model).__name__}, {self.task})"

    @property
    def tokenizer(self) -> Any:
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def device(self) -> torch.device:
        """Where the model is, and its inputs go; weights of a split model that wait on a disk are nowhere yet."""
        weights = self.model.parameters() if isinstance(self.model, nn.Module) else iter(())
        split = hasattr(self.model, "hf_device_map")
        return next((p.device for p in weights if not (split and p.is_meta)), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """Of the model's weights."""
        return next((p.dtype for p in self.model.parameters() if p.is_floating_point()), torch.float32)

    @property
    def pad(self) -> int:
        """The id that fills rows of a batch up to one length."""
        own = getattr(getattr(self.model, "config", None), "pad_token_id", None)
        own = own if isinstance(own, int) else getattr(self.tokenizer, "pad_token_id", None)
        return int(own if own is not None else getattr(self.tokenizer, "eos_token_id", None) or 0)

    @property
    def stand_ins(self) -> dict[str, int]:
        """The ids of the tokens that a baseline may name."""
        ids = {name: getattr(self.tokenizer, f"{name}_token_id", None) for name in ("pad", "mask")}
        return {name: int(number) for name, number in ids.items() if number is not None}

    @property
    def entry(self) -> Task:
        """The task's entry in the table of tasks."""
        from whence.adapters.tasks import TASKS

        return TASKS[self.task]

    def check_output(self, output: str, target: Any) -> None:
        """Raise where a softmax is asked for, but a row may have several labels."""
        if output != "logit" and not self.exclusive and not callable(target):
            raise ParameterError(
                f"output={output!r} is a softmax, but a row of this model may have several labels.\n"
                "  Explain the logit, or give target=lambda output: output[:, i].sigmoid()."
            )

    def requests(self, inputs: Any, target: Any, batch_size: int | None = None, whole: bool = False) -> list[Request]:
        """What the rows become: requests of rows of similar length, or one of all rows (`whole`)."""
        if self.entry.writes is not None:
            from whence.adapters.chats import conversations

            inputs = conversations(self.tokenizer, inputs)
        requests = self.entry.requests(self, inputs, target, batch_size, whole)
        total = 1 + max(row for request in requests for row in request.rows)
        return [replace(request, total=total) for request in requests]

    def target(self, given: Any) -> Any:
        """A target in which names of classes are their numbers; everything else stays as it is."""
        number = self.entry.number
        if isinstance(given, str):
            return number(self, given)
        if isinstance(given, tuple):
            return tuple(number(self, item) if isinstance(item, str) else item for item in given)
        return [self.target(item) for item in given] if isinstance(given, list) else given

    def complete(
        self, text: Any, tokens: int = 20, *, temperature: float | None = None, top_k: int | None = None,
        top_p: float | None = None, seed: int = 0,
    ) -> Continuation:  # fmt: skip
        """What the model writes for a text or a conversation; a target for `explain`.

        It takes the likeliest token each time, or draws one at a temperature, among the `top_k` likeliest or those that
        together have a probability of `top_p`; one seed gives one text.
        """
        from whence.adapters import generation

        step = self.entry.writes
        if step is None:
            raise ModelError(f"{self!r} does not write text.\n  Load a causal or an encoder–decoder model.")
        from whence.adapters.chats import conversations

        sampling = generation.Sampling(temperature, top_k, top_p, seed)
        return generation.complete(self, conversations(self.tokenizer, text), tokens, step, sampling)


def wrap(
    model: Any, processor: Any, *, task: str | None = None, labels: Sequence[str] | Mapping[int, str] | None = None,
    long: Long = "error", names: Callable[[Any], Any] | None = None,
) -> Wrapped:  # fmt: skip
    """A model with its tokenizer, image processor, or a function from what you have to its tensors.

    Such a function gets a list of rows, also where one is explained, and gives the model's tensors for all of them:

    >>> import torch, whence
    >>> read = lambda texts: torch.tensor([[len(text), text.count("a"), 1.0] for text in texts])
    >>> clf = whence.wrap(torch.nn.Linear(3, 2), read, labels=["no", "yes"])
    >>> whence.explain(clf, "banana", method="gradient", target="yes").values.shape
    torch.Size([1, 3])

    `names` is then a function from one row to the names of its features or tokens, by which they are shown; of several
    inputs, to a dict by input. Positions after the last name are padding.
    """
    check_choice("long", long, ("error", "truncate", "window"))
    config = getattr(model, "config", None)
    named = labels if labels is not None else getattr(config, "id2label", None) or {}
    classes = dict(named) if isinstance(named, Mapping) else dict(enumerate(named))
    several = getattr(config, "problem_type", None) == "multi_label_classification"
    return Wrapped(
        model, processor, _task(model, processor, task), {int(i): str(n) for i, n in classes.items()}, long,
        exclusive=not several, names=names,
    )  # fmt: skip


def _task(model: Any, processor: Any, task: str | None) -> str:
    """The task that was given, or the one that the model's class has; "function" where neither says it."""
    from whence.adapters.tasks import ADAPTED, task_of

    own = task_of(type(model))
    if task is None and own is None and _is_known(processor):
        raise ModelError(
            f"{type(model).__name__} is not a model that Whence has an adapter for.\n"
            "  Give it tensors, or wrap it with a function from your inputs to its tensors."
        )
    if task is None and (own is None or not _is_known(processor)):
        if not callable(processor):
            raise ParameterError(
                f"The processor is {type(processor).__name__}.\n"
                "  Give a tokenizer, an image processor, or a function from a list of your rows to the model's tensors."
            )
        return "function"
    if task is not None and task not in ADAPTED:
        raise ParameterError(f"task={task!r} is not known. {did_you_mean(task, ADAPTED)}")
    if task is not None and own is not None and task != own:
        raise ModelError(
            f"{type(model).__name__} does {own}, but task={task!r} was given.\n  Leave task out, or load another model."
        )
    return task or own or "function"


def _is_known(processor: Any) -> bool:
    """Whether this is a processor of transformers', or like one."""
    return any(
        hasattr(processor, name) for name in ("convert_ids_to_tokens", "image_processor", "image_mean", "preprocess")
    )
