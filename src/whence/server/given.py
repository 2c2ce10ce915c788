"""From a request to what `whence.explain` takes: inputs, targets and parameters, each held to its limit."""

from __future__ import annotations

import base64
import binascii
import io
from typing import Any, TypeVar

from whence.adapters.chats import rendered
from whence.adapters.generation import Continuation
from whence.adapters.tokens import limit_of
from whence.adapters.wrapped import Wrapped
from whence.errors import InputError, ParameterError, TargetError
from whence.methods import methods
from whence.server.limits import Limits, Refused
from whence.server.schema import Ask, Export, Input, Message, Question

Asking = TypeVar("Asking", Ask, Export)
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
_INPUTS = ("text", "prompt", "messages", "smiles", "image", "example")  # of which a question has one
_WANTED = {"text": "text", "pair": "text and pair", "prompt": "prompt", "seq2seq": "text", "image": "image",
           "molecule": "smiles"}  # fmt: skip


def inputs_of(wrapped: Wrapped, kind: str, given: Input, limits: Limits) -> Any:
    """A text, a pair, messages, a SMILES or an image, as the model's kind wants it."""
    _check_one(given, kind)
    if given.example is not None:
        return _example(wrapped, given.example)
    if kind == "image":
        if given.image is None:
            raise _wanted(kind)
        return _image(given.image, limits)
    if kind == "prompt" and given.messages is not None:
        return _conversation(wrapped, given.messages, limits)
    found = {"prompt": given.prompt, "molecule": given.smiles}.get(kind, given.text)
    if found is None:
        raise _wanted(kind)
    text = _text(found, limits, _WANTED[kind])
    if kind == "molecule":
        return _molecule(text, limits)
    if kind == "pair" or (given.pair is not None and kind == "text"):
        row = (text, _text(given.pair or "", limits, "pair"))
        _tokens(wrapped, row, limits)
        return row
    _tokens(wrapped, (text,), limits)
    return text


def _check_one(given: Input, kind: str) -> None:
    """Refuse what would not be read."""
    several = [name for name in _INPUTS if getattr(given, name) is not None]
    if len(several) > 1:
        raise InputError(f"The input has {' and '.join(several)}.\n  Give one of them.")
    if given.pair is not None and kind not in ("text", "pair"):
        raise InputError("This model reads no pair.\n  Leave it out.")


def _molecule(smiles: str, limits: Limits) -> str:
    """A SMILES; the time and memory of a pass grow with the square of its atoms."""
    from whence.zoo.molecules import parsed

    count = parsed(smiles).GetNumAtoms()
    if count > limits.atoms:
        raise Refused(
            413, "atoms", f"The molecule has {count:,} atoms, and the limit is {limits.atoms:,}.\n  Give a smaller one."
        )
    return smiles


def _conversation(wrapped: Wrapped, messages: list[Message], limits: Limits) -> list[dict[str, str]]:
    """Messages, as long together as one prompt may be."""
    if not messages:
        raise InputError("The conversation has no message.\n  Write one.")
    for number, message in enumerate(messages, 1):
        if not message.role.strip():
            raise InputError(f"Message {number} has no role.\n  Give one, such as user.")
        _text(message.content, limits, f"message {number} ({message.role[:20]})")
    found = [message.model_dump() for message in messages]
    text = rendered(wrapped.tokenizer, found)
    _text(text, limits, "conversation")
    _tokens(wrapped, (str(text),), limits)
    return found


def _wanted(kind: str) -> InputError:
    return InputError(f"This model reads a different kind of input.\n  Give input: {{{_WANTED[kind]}: …}}.")


def _example(wrapped: Wrapped, number: int) -> Any:
    if number >= len(wrapped.examples):
        raise InputError(f"The model has {len(wrapped.examples)} examples, and {number} is not one of them.")
    return wrapped.examples[number]


def _text(text: str, limits: Limits, name: str) -> str:
    if not text.strip():
        raise InputError(f"The {name} is empty.\n  Write something.")
    if len(text) > limits.letters:
        raise Refused(
            413, "letters", f"The {name} has {len(text):,} letters, and the limit is {limits.letters:,}.\n  Shorten it."
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"The {name} has half a character (a lone surrogate).\n  Write it again.") from None
    return text


def _tokens(wrapped: Wrapped, row: tuple[str, ...], limits: Limits) -> None:
    """Refuse texts that are longer than the model or the server takes."""
    count = len(wrapped.tokenizer(*row, add_special_tokens=True, verbose=False)["input_ids"])
    own = limit_of(wrapped.tokenizer, getattr(wrapped.model, "config", None))
    most = limits.tokens if own is None else min(own, limits.tokens)
    if count > most:
        why = "the limit is" if most == limits.tokens else "the model takes"
        raise Refused(413, "tokens", f"The text has {count:,} tokens, and {why} {most:,}.\n  Shorten it.")


def _image(encoded: str, limits: Limits) -> Any:
    """A picture, whose size is read before its pixels are."""
    from PIL import Image

    try:
        content = base64.b64decode(encoded.rpartition(",")[2], validate=True)
    except (binascii.Error, ValueError):
        raise InputError("The image is not in base64.\n  Send the file's bytes in base64.") from None
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
        if image.width * image.height > limits.pixels:
            raise _large(f"{image.width:,} × {image.height:,}", limits)
        if max(image.size) > limits.sides * min(image.size):
            size = f"{image.width:,} × {image.height:,}"
            raise Refused(
                413,
                "sides",
                f"The image is {size}; one side may be {limits.sides} times as long as the other at most.\n  Cut it.",
            )
        image.load()
        return image.convert("RGB") if image.mode == "P" else image
    except Image.DecompressionBombError:
        raise _large("far too many", limits) from None
    except (OSError, SyntaxError, ValueError):
        raise InputError(
            f"The image cannot be read.\n  Give a file of one of these kinds: {', '.join(_FORMATS)}."
        ) from None


def _large(size: str, limits: Limits) -> Refused:
    text = f"The image has {size} pixels, and the limit is {limits.pixels:,} in all.\n  Make it smaller."
    return Refused(413, "pixels", text)


def target_of(wrapped: Wrapped, kind: str, asked: Question) -> Any:
    """A class by its number; of models that write, the answer."""
    target, messages = asked.target, asked.input.messages
    if target is None and kind == "prompt" and messages and messages[-1].role == "assistant":
        return messages[-1].content  # the answer was given
    if kind in ("prompt", "seq2seq"):
        if isinstance(target, int):
            raise TargetError("The target of a model that writes is its answer.\n  Give it as text or as ids.")
        return _continuation(wrapped, target) if isinstance(target, list) else target
    if isinstance(target, list):
        raise TargetError("The target is a list.\n  Give the number or the name of a class.")
    if isinstance(target, int) and wrapped.labels and target not in wrapped.labels:
        raise TargetError(f"The model has {len(wrapped.labels)} classes, and {target} is not one of them.")
    return wrapped.target(target)


def _continuation(wrapped: Wrapped, ids: list[int]) -> Continuation:
    size = len(wrapped.tokenizer)
    if not ids or not all(0 <= number < size for number in ids):
        raise TargetError(f"The answer's ids are not all tokens of this model, which has {size:,}.")
    return Continuation(wrapped.tokenizer.decode(ids), ids)


def params_of(method: str, given: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """A method's parameters: plain values, none of them huge."""
    for name, value in given.items():
        if not isinstance(value, str | int | float | bool | None):
            raise ParameterError(
                f"{method}: {name} is {type(value).__name__}.\n  Give a number, a name, true or false."
            )
        if isinstance(value, int | float) and abs(value) > limits.number:
            raise Refused(
                413,
                "number",
                f"{method}: {name}={value} is beyond the limit of {limits.number:,}.\n  Give a smaller one.",
            )
    methods[method].check(dict(given))
    return dict(given)


def settled(asked: Asking) -> Asking:
    """The same with methods by their own names, and what an alias stands for among the options."""
    stand: dict[str, dict[str, Any]] = {}
    for name in asked.methods:
        own, params = methods.resolve(name)
        if stand.setdefault(own, params) != params:
            raise ParameterError(
                f"{name} is {own} with parameters of its own, and {own} is asked for with others.\n"
                "  Ask for one after the other."
            )
    for name, params in asked.options.items():
        own, meant = methods.resolve(name)
        stand[own] = {**stand.get(own, {}), **meant, **params}
    names = [methods[name].name for name in asked.methods]
    return asked.model_copy(update={"methods": names, "options": stand})


def checked_methods(names: list[str]) -> list[str]:
    """Names of methods, each once and each known."""
    found = [methods[name].name for name in names]
    if not found:
        raise ParameterError("No method was named.\n  Name at least one: methods: […].")
    return list(dict.fromkeys(found))
