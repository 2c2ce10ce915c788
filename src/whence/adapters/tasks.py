"""The table of tasks: how each reads rows, what its targets are, and what they are called. A new task is one entry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from whence.adapters import answers, generation, images, tokens
from whence.adapters.decoding import texts_of
from whence.adapters.functions import function_requests
from whence.adapters.requests import Request, padded, text_rows
from whence.adapters.texts import check_positions, logits, text_requests
from whence.adapters.tokens import Tokens
from whence.errors import InputError, TargetError, nearest

if TYPE_CHECKING:
    from whence.adapters.wrapped import Wrapped

# (wrapped, inputs, target, batch size, all rows in one request) → requests
Requests = Callable[["Wrapped", Any, Any, int | None, bool], list[Request]]
Batch = dict[str, Any]


# ---- what a string means as a target, and how explained targets are called ----


def class_number(wrapped: Wrapped, name: str) -> int:
    """The number of a class, given by its name."""
    known = {label: number for number, label in wrapped.labels.items()}
    if name not in known:
        names = ", ".join(map(repr, list(known)[:12])) + (", …" if len(known) > 12 else "")
        raise TargetError(
            f"target={name!r} is not a label of this model. {nearest(name, known)}".rstrip()
            + f"\n  Its labels: {names or 'none'}."
        )
    return known[name]


def token_id(wrapped: Wrapped, piece: str) -> int:
    """The id of one token, given as text."""
    ids = wrapped.tokenizer(piece, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise TargetError(
            f"target={piece!r} is {len(ids)} tokens of this model.\n  Give a text of one token, or its id."
        )
    return int(ids[0])


def _side(wrapped: Wrapped, name: str) -> str:
    if name not in ("start", "end"):
        raise _not_a_side(name)
    return name


def _not_one_continuation(wrapped: Wrapped, name: str) -> Any:
    raise TargetError("Continuations are explained one text at a time.\n  Give one text and one continuation.")


def class_names(wrapped: Wrapped, target: Any) -> list[Any] | None:
    """The names of the explained classes, one per row."""
    if not wrapped.labels or not isinstance(target, Tensor):
        return None

    def name(number: int) -> str:
        return wrapped.labels.get(number, str(number))

    return [[name(n) for n in row] if isinstance(row, list) else name(row) for row in target.tolist()]


def _position_classes(wrapped: Wrapped, target: Any) -> list[Any] | None:
    """The names of classes that are explained at a position."""
    if not isinstance(target, list):
        return class_names(wrapped, target)
    return [wrapped.labels.get(index[-1], str(index[-1])) for index in target]


def _token_texts(wrapped: Wrapped, target: Any) -> list[Any] | None:
    if not isinstance(target, list):
        return class_names(wrapped, target)
    return [texts_of(wrapped.tokenizer, [index[-1]])[0] for index in target]


def _no_names(wrapped: Wrapped, target: Any) -> None:
    return None


# ---- one class for each text ----


def _text_classification(
    wrapped: Wrapped, inputs: Any, target: Any, batch_size: int | None, whole: bool
) -> list[Request]:
    rows = text_rows(inputs)
    padding = getattr(getattr(wrapped.model, "config", None), "pad_token_id", 0)
    size = 1 if padding is None else batch_size  # without an id for padding, the head finds no row's end
    return text_requests(wrapped, rows, target, len(rows) if whole else size, _classes, windows=True)


def _token_classification(
    wrapped: Wrapped, inputs: Any, target: Any, batch_size: int | None, whole: bool
) -> list[Request]:
    rows = text_rows(inputs)
    return text_requests(wrapped, rows, target, len(rows) if whole else batch_size, _classes)


def _classes(wrapped: Wrapped, rows: list[Tokens], inputs: Batch, targets: list[Any]) -> tuple[Any, Any]:
    check_positions(rows, targets)
    return wrapped.model, _or_highest(wrapped, wrapped.model, inputs, targets)


def _or_highest(wrapped: Wrapped, model: Any, inputs: Batch, targets: list[Any]) -> list[Any] | None:
    """Each row's target; the highest logit's where none is given, which the engine finds itself if no row has one."""
    if all(target is None for target in targets):
        return None
    if all(target is not None for target in targets):
        return targets
    scores = logits(wrapped, model, inputs)
    return [int(scores[row].argmax()) if target is None else target for row, target in enumerate(targets)]


# ---- where an answer begins or ends ----


def _question_answering(
    wrapped: Wrapped, inputs: Any, target: Any, batch_size: int | None, whole: bool
) -> list[Request]:
    rows = text_rows(inputs)
    if any(len(row) != 2 for row in rows):
        raise InputError("Question answering reads a pair.\n  Give (question, context).")
    return text_requests(wrapped, rows, target, len(rows) if whole else batch_size, _positions)


def _positions(wrapped: Wrapped, rows: list[Tokens], inputs: Batch, targets: list[Any]) -> tuple[Any, Any]:
    """The model as a classifier of positions, of starts or of ends, and the positions."""
    sides = {"start" if t is None or isinstance(t, int) else t[0] if isinstance(t, tuple) else t for t in targets}
    if len(sides) > 1 or sides - {"start", "end"}:
        raise _not_a_side(targets)
    model = _Side(wrapped.model, f"{sides.pop()}_logits")
    positions = [t[1] if isinstance(t, tuple) else t if isinstance(t, int) else None for t in targets]
    check_positions(rows, positions)
    return model, _or_highest(wrapped, model, inputs, positions)


def _not_a_side(given: Any) -> TargetError:
    return TargetError(
        f'target={given!r}: question answering explains "start" or "end", the same for all rows.\n'
        '  Give one of them, or ("start", position).'
    )


class _Side(nn.Module):
    """One of a model's outputs; the model's modules keep their paths behind `model`."""

    def __init__(self, model: nn.Module, side: str) -> None:
        super().__init__()
        self.model, self.side = model, side
        self.train(model.training)

    def forward(self, **inputs: Any) -> Any:
        scores = self.model(**inputs)[self.side]
        mask = inputs.get("attention_mask")
        return scores if mask is None else scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)


# ---- one token of a language model ----


def _fill_mask(wrapped: Wrapped, inputs: Any, target: Any, batch_size: int | None, whole: bool) -> list[Request]:
    rows = text_rows(inputs)
    return text_requests(wrapped, rows, target, len(rows) if whole else batch_size, _at_masks)


def _at_masks(wrapped: Wrapped, rows: list[Tokens], inputs: Batch, targets: list[Any]) -> tuple[Any, Any]:
    wanted = [_at_mask(wrapped.tokenizer, row, target) for row, target in zip(rows, targets, strict=True)]
    check_positions(rows, wanted)
    return wrapped.model, _or_likeliest(wrapped, inputs, wanted)


def _at_mask(tokenizer: Any, row: Tokens, target: Any) -> tuple[int, Any]:
    """Where a text has its mask, and the token that is asked for there."""
    positions = [i for i, number in enumerate(row.ids["input_ids"]) if number == tokenizer.mask_token_id]
    if isinstance(target, tuple):
        return (int(target[0]), target[1])
    if len(positions) != 1:
        raise InputError(
            f"A text has {len(positions)} masks.\n"
            f"  Write one {tokenizer.mask_token} into it, or give target=(position, token)."
        )
    return (positions[0], target)


def _text_generation(wrapped: Wrapped, inputs: Any, target: Any, batch_size: int | None, whole: bool) -> list[Request]:
    rows = text_rows(inputs)
    if answers.is_about_answers(target):
        return answers.answer_requests(wrapped, rows, target)
    if target is None and len(rows) == 1:
        target = getattr(rows[0][0], "answer", None)  # a conversation that ends with one
    if target is ... or isinstance(target, str):
        return [generation.continued(wrapped, rows, target)]
    return text_requests(wrapped, rows, target, len(rows) if whole else batch_size, _next_tokens)


def _next_tokens(wrapped: Wrapped, rows: list[Tokens], inputs: Batch, targets: list[Any]) -> tuple[Any, Any]:
    length = inputs["input_ids"].shape[1]
    inputs |= generation.asked_of(wrapped.model, length + 1 - min(map(len, rows)))  # from the shortest row's end on
    before = length - inputs.get("logits_to_keep", length)  # positions without logits
    wanted = [(len(row) - 1 - before, _next_token(target)) for row, target in zip(rows, targets, strict=True)]
    return wrapped.model, _or_likeliest(wrapped, inputs, wanted)


def _next_token(target: Any) -> int | None:
    """A token's id as the target of a language model's next position; None is the likeliest one."""
    if target is None:
        return None
    if not isinstance(target, Integral) or isinstance(target, bool) or target < 0:
        raise TargetError(
            f"target={target!r} is not the id of a token.\n"
            "  Give an id from 0 on, the text that goes on, or a function of the output; "
            "leave it out for the predicted token."
        )
    return int(target)


def _or_likeliest(wrapped: Wrapped, inputs: Batch, targets: Sequence[tuple[int, Any]]) -> list[tuple[int, int]]:
    """(position, token) for each row: the likeliest token there, where none is given."""
    if all(token is not None for _, token in targets):
        return list(targets)
    scores = logits(wrapped, wrapped.model, inputs)
    return [
        (position, int(scores[row, position].argmax()) if token is None else token)
        for row, (position, token) in enumerate(targets)
    ]


def _translation(wrapped: Wrapped, inputs: Any, target: Any, batch_size: int | None, whole: bool) -> list[Request]:
    rows = text_rows(inputs)
    if answers.is_about_answers(target):
        return answers.answer_requests(wrapped, rows, target)
    return [generation.translated(wrapped, rows, target)]


# ---- images ----


def _image_classification(
    wrapped: Wrapped, inputs: Any, target: Any, batch_size: int | None, whole: bool
) -> list[Request]:
    pixels = images.pixels(wrapped.processor, inputs)
    shown, rows = images.shown(wrapped.processor, pixels), list(range(len(pixels)))
    given = pixels.to(wrapped.device, wrapped.dtype)
    batch = {"pixel_values": given} if _takes(wrapped.model, "pixel_values") else given
    return [Request(wrapped.model, batch, wrapped.target(target), rows, image=shown)]


def _takes(model: Any, name: str) -> bool:
    """Whether a model's `forward` has a parameter of that name, or takes any."""
    parameters = inspect.signature(model.forward).parameters.values()
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _image_text_similarity(
    wrapped: Wrapped, inputs: Any, target: Any, batch_size: int | None, whole: bool
) -> list[Request]:
    if target is not None:
        raise TargetError("The similarity of an image and a text is one score.\n  Leave target out.")
    pairs = [inputs] if isinstance(inputs, tuple) else list(inputs)
    if not all(isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], str) for pair in pairs):
        raise InputError("An image–text model compares pairs.\n  Give (image, text), or a list of such pairs.")
    limit = tokens.limit_of(wrapped.tokenizer, getattr(wrapped.model.config, "text_config", None))
    long = "error" if wrapped.long == "window" else wrapped.long  # one score has no windows
    texts = [part for part, *_ in tokens.tokens_of_all(wrapped.tokenizer, [(t,) for _, t in pairs], limit, long, False)]
    words = tokens.batch(texts, wrapped.pad, wrapped.device)
    words.pop("token_type_ids", None)
    pixels = images.pixels(getattr(wrapped.processor, "image_processor", None), [image for image, _ in pairs])
    length = words["input_ids"].shape[1]
    facts: dict[str, list[Any]] = {
        "units": [padded(t.units, length, "[PAD]") for t in texts],
        "text": [t.text[0] for t in texts],
    }
    batch = {**words, "pixel_values": pixels.to(wrapped.device, wrapped.dtype)}
    return [Request(wrapped.model, batch, similarity, list(range(len(pairs))), facts)]


def similarity(output: Any) -> Tensor:
    """The similarity of each image with its own text."""
    return output.logits_per_image.diagonal()


# ---- the table ----


@dataclass(frozen=True)
class Task:
    """What Whence knows of one task."""

    requests: Requests
    classes: tuple[str, ...] = ()  # how the names of its models' classes end
    auto: str = ""  # the class of transformers that chooses one of them by a configuration
    processor: str = "AutoTokenizer"  # the class of transformers that loads its processor
    number: Callable[[Wrapped, str], Any] = class_number  # what a string stands for as a target
    names: Callable[[Wrapped, Any], list[Any] | None] = class_names  # of explained targets, one per row
    writes: generation.Step | None = None  # the inputs for the next token, if the model writes text
    reads_pairs: bool = False  # a row may be two texts
    reads_images: bool = False
    text_target: bool = False  # a target is always a text, never a number


TASKS: dict[str, Task] = {
    "text-classification": Task(
        _text_classification, ("ForSequenceClassification",), "AutoModelForSequenceClassification", reads_pairs=True
    ),
    "token-classification": Task(
        _token_classification, ("ForTokenClassification",), "AutoModelForTokenClassification", names=_position_classes
    ),
    "question-answering": Task(
        _question_answering, ("ForQuestionAnswering",), "AutoModelForQuestionAnswering", number=_side, names=_no_names,
        reads_pairs=True,
    ),
    "fill-mask": Task(_fill_mask, ("ForMaskedLM",), "AutoModelForMaskedLM", number=token_id, names=_token_texts),
    "image-classification": Task(
        _image_classification, ("ForImageClassification", "ForImageClassificationWithTeacher"),
        "AutoModelForImageClassification", "AutoImageProcessor", reads_images=True,
    ),
    "image-text-similarity": Task(
        _image_text_similarity, ("CLIPModel",), processor="AutoProcessor", reads_pairs=True, reads_images=True
    ),
    "text-generation": Task(
        _text_generation, ("ForCausalLM", "LMHeadModel"), "AutoModelForCausalLM", number=_not_one_continuation,
        names=_token_texts, writes=generation.after_the_text,
    ),
    "text2text-generation": Task(
        _translation, ("ForConditionalGeneration", "MarianMTModel"), "AutoModelForSeq2SeqLM",
        writes=generation.beside_the_text, text_target=True,
    ),
    "function": Task(function_requests),  # a processor of the user's own
}  # fmt: skip
ADAPTED = [name for name, task in TASKS.items() if task.classes]  # those of transformers' models


def task_of(kind: type) -> str | None:
    """The task of a class of transformers, by its name."""
    return next((name for name, task in TASKS.items() if kind.__name__.endswith(task.classes)), None)
