"""Whose error it is: what a model raises becomes a ModelError with its own words inside, what we raise stays ours."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from whence.engine.scope import begin_pass
from whence.errors import ModelError, WhenceError

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_INTEGERS = re.compile(r"\b(Long|Int|Short|Char|Byte|int(8|16|32|64)|uint8)\b")
_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, which is nobody's mistake."""
    kinds: Any = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or "not enough memory" in str(error) or "can't allocate memory" in str(error)


def called(model: Callable[..., Any], inputs: Mapping[str, Any], form: str, root: nn.Module | None = None) -> Any:
    """A model's output, outside of any explanation; whatever it raises is its own."""
    begin_pass()
    try:
        return model(**inputs) if form == "dict" else model(*inputs.values())
    except Exception as error:
        if isinstance(error, WhenceError) or out_of_memory(error):
            raise
        raise of_model(error, model, inputs, root) from error


def born_in_the_model(error: Exception, again: Callable[[], Any]) -> Exception | None:
    """What the model raised of itself, if that came out of an explained pass: `again` alone, or its own code did.

    Every op of an explained pass runs inside our code, so that the place where a torch error was raised says nothing.
    """
    if isinstance(error, WhenceError) or out_of_memory(error) or type(error).__module__.startswith("whence."):
        return None
    try:
        again()
    except Exception as alone:
        return alone if type(alone) is type(error) else None
    return error if not _innermost(error).startswith((_OURS, _TORCH)) else None


def of_model(
    error: Exception, model: Any, inputs: Mapping[str, Any], root: nn.Module | None = None, *, advice: str = ""
) -> ModelError:
    """What a model raised, with where it was and what it had been given."""
    message = str(error).strip() or "no message"
    path = _path(error, root)
    handed = ", ".join(f"{name} {_kind(value)}" for name, value in inputs.items())
    return ModelError(
        f"The model raised {type(error).__name__}{f' in {path!r}' if path else ''}: {message}\n"
        f"  It was given {handed}. {_signature(model)}{advice or _advice(message, inputs)}"
    )


def the_way_back(error: Exception, method: str, inputs: Mapping[str, Any]) -> None:
    """Raise a ModelError for what torch, or a hook of the model's, raised while the score was differentiated."""
    files = _files(error)
    begun = next((i for i, file in enumerate(files) if file.startswith(_TORCH)), len(files))
    ours = any(file.startswith(_OURS) for file in files[begun:])
    if ours or begun == len(files) or type(error).__module__.startswith("whence.") or out_of_memory(error):
        return
    handed = ", ".join(f"{name} {_kind(value)}" for name, value in inputs.items())
    raise ModelError(
        f"The model cannot be differentiated here. On the way back from its score, {type(error).__name__} was raised: "
        f"{str(error).strip() or 'no message'}\n  It was given {handed}; {method} may run more rows at once than you "
        "gave. Choose a method that reads outputs alone, such as occlusion, or try score.sum().backward()."
    ) from error


def _advice(message: str, inputs: Mapping[str, Any]) -> str:
    """What to look at; where a model stumbles over whole numbers, what to do about them."""
    whole = [
        repr(name)
        for name, value in inputs.items()
        if isinstance(value, Tensor) and not (value.is_floating_point() or value.is_complex())
    ]
    if not whole or not _INTEGERS.search(message) or "indices" in message:
        return "Check the names, shapes and dtypes of the inputs."
    return (
        f"{' and '.join(whole)} holds integers; if they are features and not ids, give floating numbers: x.float(), or "
        "array.astype(float)."
    )


def _innermost(error: Exception) -> str:
    """The file that raised."""
    return (_files(error) or [""])[-1]


def _files(error: Exception) -> list[str]:
    """The files that the error came through, the one that raised it last."""
    trace, files = error.__traceback__, []
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return files


def _path(error: Exception, root: nn.Module | None) -> str:
    """The innermost module that was running."""
    running: nn.Module | None = None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code.co_varnames[:1] == ("self",) and isinstance(frame.f_locals.get("self"), nn.Module):
            running = frame.f_locals["self"]
        trace = trace.tb_next
    if root is None or running is None:
        return ""
    return next((name for name, module in root.named_modules() if module is running), "")


def _kind(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"({type(value).__name__})"
    return f"({str(value.dtype).removeprefix('torch.')}, {tuple(value.shape)})"


def _signature(model: Any) -> str:
    """What the model's forward takes, if that can be told."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):
        return ""
    names = [_STARS.get(p.kind, "") + p.name for p in signature.parameters.values()]
    return f"It takes ({', '.join(names)}). " if len(names) <= 12 else ""
