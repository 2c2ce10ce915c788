"""Conversations: lists of messages as the one text that a tokenizer's chat template makes of them.

Which characters are a message's is found by rendering the conversation again with another content in its place, and
checked against the text; a template that changes more than that is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from whence.errors import InputError

Message = tuple[str, int, int]  # its role, and where its content begins and ends in the text
_ELSE = "Whence0Message"  # stands for a content: nothing that a template would strip or escape


class Conversation(str):
    """The text of a conversation up to where the model answers, with its messages, and the answer if it was given."""

    messages: list[Message]
    answer: str | None

    def __new__(cls, text: str, messages: Sequence[Message], answer: str | None = None) -> Conversation:
        made = super().__new__(cls, text)
        made.messages, made.answer = list(messages), answer
        return made


def is_conversation(given: Any) -> bool:
    """Whether this is a list of messages, each a dict with a role and a content."""
    return isinstance(given, list) and bool(given) and all(isinstance(m, Mapping) and "role" in m for m in given)


def conversations(tokenizer: Any, inputs: Any) -> Any:
    """Messages as conversations: a list of them is one, a list of such lists are several; all else stays as it is."""
    if is_conversation(inputs):
        return rendered(tokenizer, inputs)
    if isinstance(inputs, list) and any(is_conversation(row) for row in inputs):
        return [rendered(tokenizer, row) if is_conversation(row) else row for row in inputs]
    return inputs


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> Conversation:
    """One conversation; a last message of the assistant's is the answer, and not part of the text."""
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            "A conversation was given, but the tokenizer has no chat template.\n"
            "  Set tokenizer.chat_template, or give the prompt as a text."
        )
    for message in messages:
        if not isinstance(message.get("content"), str):
            kind = type(message.get("content")).__name__
            raise InputError(
                f"The content of a message of {message['role']!r} is {kind}.\n  Give a string for each content."
            )
    answer = None
    if messages[-1]["role"] == "assistant":
        *messages, last = messages
        answer = last["content"]
        if not messages or not answer.strip():
            raise InputError("The assistant's message has nothing before it, or is empty.\n  Give a question first.")
    text, before = _apply(tokenizer, messages), ""
    if answer is not None:
        before, answer = _as_written(tokenizer, [*messages, last], text)
    found = [_place(tokenizer, messages, text, number) for number in range(len(messages))]
    if any(a[2] > b[1] for a, b in pairwise(found)):
        raise _unclear(tokenizer, len(messages))
    return Conversation(text + before, found, answer)


def _apply(tokenizer: Any, messages: Sequence[Mapping[str, Any]], asks: bool = True) -> str:
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=asks))
    except Exception as error:  # whatever a template raises: roles that do not alternate, a system it does not know
        raise InputError(
            f"The chat template refuses this conversation: {error}\n"
            "  Give the roles that it knows, in the order that it wants."
        ) from error


def _as_written(tokenizer: Any, messages: Sequence[Mapping[str, Any]], text: str) -> tuple[str, str]:
    """What the template writes between the text and the last message, and this message as it writes it.

    Between the two stands what `add_generation_prompt` does not give: a role, or empty thoughts. The message may be
    stripped, and begins with the template's space.
    """
    content = str(messages[-1]["content"])
    versions = [messages, [*messages[:-1], {**messages[-1], "content": _ELSE}]]
    try:
        whole, other = (_apply(tokenizer, version, asks=False) for version in versions)
    except InputError:
        return "", content
    start = other.find(_ELSE)
    before, after = other[len(text) : start], other[start + len(_ELSE) :]
    for part in (content, content.strip(), content.lstrip("\n")):
        if start >= len(text) and other.startswith(text) and whole == text + before + part + after:
            told = before.rstrip(" ") if before.strip() else ""
            return told, before[len(told) :] + part
    return "", content  # a template that makes something else of it, such as thoughts and an answer


def _place(tokenizer: Any, messages: Sequence[Mapping[str, Any]], text: str, number: int) -> Message:
    """Where a message's content stands in the text: what changes, and nothing else, with another content."""
    message = messages[number]
    content = message["content"]
    other = _apply(tokenizer, [*messages[:number], {**message, "content": _ELSE}, *messages[number + 1 :]])
    start = other.find(_ELSE)
    after = other[start + len(_ELSE) :]
    for part in (content, content.strip()):
        if start >= 0 and other.count(_ELSE) == 1 and text == other[:start] + part + after:
            return (str(message["role"]), start, start + len(part))
    raise _unclear(tokenizer, number)


def _unclear(tokenizer: Any, number: int) -> InputError:
    return InputError(
        f"Which part of the text is message {number} cannot be told: the chat template of "
        f"{type(tokenizer).__name__} changes, repeats or leaves out its content.\n"
        "  Give the prompt as a text: tokenizer.apply_chat_template(messages, tokenize=False)."
    )
