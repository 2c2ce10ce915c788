"""What an evaluation was about, as text that is the same in every process: rows, weights, and the model's own code."""

from __future__ import annotations

import dis
import functools
import hashlib
import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whence.adapters.wrapped import Wrapped
from whence.evaluation.examples import Example, bytes_of


def fingerprint_of(model: Any, examples: list[Example]) -> dict[str, str]:
    """Which rows, which weights, and which model beside its weights: its classes, their code, its settings."""
    weights = hashlib.sha256()
    root = examples[0].root
    weights.update(str(said(examples[0].model) if root is None or examples[0].model is not root else "").encode())
    for name, tensor in root.state_dict().items() if root is not None else ():
        weights.update(name.encode() + (bytes_of(tensor) if isinstance(tensor, Tensor) else b""))
    teller = Teller(() if root is None else root.modules())
    told = [teller(model), *(teller(part) for part in (root, examples[0].model))]
    return {"rows": rows_of(examples), "weights": weights.hexdigest(), "model": _digest(told)}


def rows_of(examples: list[Example]) -> str:
    """Which rows, with what came with them."""
    rows = hashlib.sha256()
    for example in examples:
        for name, value in example.inputs.items():
            rows.update(name.encode() + (bytes_of(value) if isinstance(value, Tensor) else str(value).encode()))
        rows.update(str((example.label, example.rationale)).encode())
        rows.update(b"" if example.mask is None else bytes_of(example.mask))
    return rows.hexdigest()


def said(value: Any) -> Any:
    """A setting for the header: tensors and functions by what they hold."""
    if isinstance(value, Tensor):
        return f"tensor {hashlib.sha256(bytes_of(value)).hexdigest()}"
    if isinstance(value, nn.Module):
        return f"module {_digest(Teller()(value))}"  # its weights too, which are not in its name
    if isinstance(value, Mapping):
        return {str(key): said(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [said(item) for item in value]
    code = getattr(value, "__code__", None)
    if code is not None:
        cells = [_inside(cell) for cell in getattr(value, "__closure__", None) or ()]
        parts = [code.co_code.hex(), str(_constants(code)), code.co_names, said(cells), said(value.__defaults__)]
        return f"function {_digest(parts)}"
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    plain = str(value)
    return Teller()(value) if " at 0x" in plain else plain  # an address is another one in each process


def _digest(value: Any) -> str:
    return hashlib.sha256(str(value).encode(errors="backslashreplace")).hexdigest()


def _inside(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _constants(code: types.CodeType) -> tuple[Any, ...]:
    """A function's constants: inner functions by their code, sets in order."""

    def told(value: Any) -> Any:
        if isinstance(value, types.CodeType):
            return ["code", value.co_code.hex(), _constants(value), value.co_names]
        if isinstance(value, frozenset):
            return ["set", *sorted(map(repr, value))]
        return tuple(map(told, value)) if isinstance(value, tuple) else value

    return tuple(map(told, code.co_consts))


_OPAQUE = (
    "torch",
    "numpy",
    "logging",
    "threading",
    "_thread",
    "weakref",
    "contextvars",
    "io",
    "builtins",
    "tokenizers",
)
_PASSING = {"_name_or_path", "name_or_path", "transformers_version", "warnings_issued", "training"}  # no settings
_HOOKS = {"_forward_hooks", "_forward_pre_hooks"}


class Teller:
    """Describes objects by what they hold: no address, no order of a set, and each object once."""

    def __init__(self, weighed: Any = ()) -> None:
        self.seen: dict[int, int] = {}
        self.kept: list[Any] = []  # so that no number of an object is used again
        self.weighed = {id(module) for module in weighed}  # modules whose weights are told elsewhere

    def __call__(self, value: Any) -> Any:
        """Lists, numbers and texts."""
        if value is None or isinstance(value, str | int | float | bool | bytes | complex):
            return repr(value)
        if isinstance(value, Tensor):
            return [_kind(value), str(value.dtype), hashlib.sha256(bytes_of(value)).hexdigest()]
        if isinstance(value, torch.dtype | torch.device | torch.Size | Enum | types.ModuleType | np.dtype):
            return getattr(value, "__name__", None) or str(value)
        if id(value) in self.seen:
            return ["again", self.seen[id(value)]]
        self.seen[id(value)] = len(self.seen)
        self.kept.append(value)
        return next(told(self, value) for fits, told in _TOLD if fits(value))

    def each(self, values: Any) -> list[Any]:
        return [self(value) for value in values]

    def named(self, values: Mapping[Any, Any]) -> list[Any]:
        return sorted(([str(self(key)), self(values[key])] for key in sorted(values, key=str)), key=lambda one: one[0])


def _kind(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _module(tell: Teller, module: nn.Module) -> Any:
    """A module's class with its code, its settings, what hangs on it, and what is in it."""
    stored = _stored(type(module))  # type: ignore[arg-type]  # mypy asks a class for its instances' hash
    settings = {
        name: value
        for name, value in vars(module).items()
        if name not in _PASSING | stored and not name.startswith("_") and "cache" not in name
    }
    hooks = [list(vars(module).get(name, {}).values()) for name in sorted(_HOOKS)]
    held = {} if id(module) in tell.weighed else dict(module._parameters)
    unsaved = getattr(module, "_non_persistent_buffers_set", ())
    buffers = {n: b for n, b in module._buffers.items() if n in unsaved or id(module) not in tell.weighed}
    return [
        tell(type(module)), tell.named(settings), tell.each(hooks), tell.named(held), tell.named(buffers),
        str(getattr(module, "code", "")) if isinstance(module, torch.jit.ScriptModule) else "",
        [[name, tell(child)] for name, child in module._modules.items()],
    ]  # fmt: skip


@functools.lru_cache(maxsize=256)
def _stored(kind: Any) -> set[str]:
    """Attributes that a class's forward writes: its state, such as a counter, and no setting.

    Of transformers, whose settings are in the configuration, whatever is written after a model was made.
    """
    whole = _root(kind) == "transformers"
    written = [getattr(kind, name, None) for name in (dir(kind) if whole else ("forward",)) if name != "__init__"]
    codes = [code for one in written if isinstance(code := getattr(one, "__code__", None), types.CodeType)]
    return {i.argval for code in codes for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}


def _class(tell: Teller, kind: type) -> Any:
    """A class by its name, and with the code of its methods where it is not of a library."""
    lines: list[Any] = [_kind(kind)]
    for base in kind.__mro__:
        if _root(base) in (*_OPAQUE, "abc", "typing", "collections", "enum", "transformers"):
            continue
        for name, member in sorted(vars(base).items()):
            inner = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if isinstance(inner, types.FunctionType):
                lines.append([base.__qualname__, name, tell(inner)])
            elif not name.startswith("__") and isinstance(member, str | int | float | bool | tuple):
                lines.append([base.__qualname__, name, tell(member)])
    return lines


def _root(kind: Any) -> str:
    return str(getattr(kind, "__module__", "") or "").partition(".")[0]


def _function(tell: Teller, function: types.FunctionType) -> Any:
    """Its code, what it closes over, its defaults, and what it takes from its own file."""
    code = function.__code__
    cells = [_inside(cell) for cell in function.__closure__ or ()]
    given = [code.co_code.hex(), str(_constants(code)), list(code.co_names), tell.each(cells)]
    taken = {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
    own = {
        name: value
        for name, value in taken.items()
        if isinstance(value, str | int | float | bool | tuple)
        or (isinstance(value, types.FunctionType | type) and value.__module__ == function.__module__)
    }
    if _root(function) in (*_OPAQUE, "transformers"):
        return [function.__qualname__, *given]
    defaults = [tell(function.__defaults__), tell(function.__kwdefaults__)]
    return [function.__qualname__, *given, *defaults, tell.named(own)]


def _names(code: types.CodeType) -> set[str]:
    """What a function and those inside it take by name."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return {*code.co_names, *(name for c in inner for name in _names(c))}


def _tokenizer(tell: Teller, value: Any) -> Any:
    """Of a fast tokenizer all that its file would hold, of another its words; and which tokens are special."""
    whole = getattr(value, "backend_tokenizer", None)
    words = whole.to_str() if whole is not None else sorted(value.get_vocab().items())
    side = [getattr(value, name, None) for name in ("model_max_length", "padding_side", "truncation_side")]
    return [_kind(value), _digest(words), sorted(map(str, value.all_special_tokens)), str(side)]


def _configuration(tell: Teller, value: Any) -> Any:
    told = {name: item for name, item in value.to_dict().items() if name not in _PASSING}
    return [_kind(value), tell.named(told), tell(getattr(value, "tokenizer", None))]


def _wrapped(tell: Teller, value: Wrapped) -> Any:
    own = (value.task, value.long, value.exclusive, dict(value.labels), value.processor, value.model)
    return ["Wrapped", *tell.each(own)]


def _array(tell: Teller, value: Any) -> Any:
    whole = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest() if value.dtype != object else ""
    return ["array", str(value.dtype), list(value.shape), whole or tell.each(value.tolist())]


def _partial(tell: Teller, value: Any) -> Any:
    return ["partial", tell(value.func), tell.each(value.args), tell.named(value.keywords)]


def _method(tell: Teller, value: Any) -> Any:
    return ["method", tell(value.__func__), tell(value.__self__)]


def _object(tell: Teller, value: Any) -> Any:
    """Anything else by its class and its attributes; of a library's own, the class alone."""
    if _root(type(value)) in _OPAQUE or not hasattr(value, "__dict__"):
        return [_kind(value), str(getattr(value, "__qualname__", "")), str(getattr(value, "code", ""))]  # of scripts
    public = {name: item for name, item in vars(value).items() if "cache" not in name}
    return [tell(type(value)), tell.named(public)]


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


_TOLD: list[tuple[Callable[[Any], bool], Callable[[Teller, Any], Any]]] = [
    (_is(Wrapped), _wrapped),
    (_is(nn.Module), _module),
    (_is(type), _class),
    (_is(types.FunctionType), _function),
    (_is(types.MethodType), _method),
    (_is(functools.partial), _partial),
    (_is(np.ndarray, np.generic), _array),
    (_is(Mapping), lambda tell, value: ["dict", tell.named(value)]),
    (_is(list, tuple), lambda tell, value: [_kind(value), *tell.each(value)]),
    (_is(set, frozenset), lambda tell, value: ["set", *sorted(str(Teller()(item)) for item in value)]),
    (lambda value: hasattr(value, "get_vocab") and hasattr(value, "all_special_tokens"), _tokenizer),
    (lambda value: hasattr(value, "to_dict") and hasattr(value, "to_json_string"), _configuration),
    (lambda value: True, _object),
]
