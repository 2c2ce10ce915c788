"""A model's own `torch.autograd.Function`: reported to the pass that runs, which otherwise could not see it.

Nothing announces such a function to a mode, so the code of `Function.apply` is another while a pass runs: a model may
hold the method itself (`run = Own.apply`). Calls of other threads, and of suspended passes, go straight on. A function
that works entry by entry is one op, of the family that computes the same if there is one. The forward of any other is
run openly, op by op, where a method has rules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from whence.engine import quantised
from whence.engine.nodes import untold
from whence.engine.ops import Spelling
from whence.engine.tape import CopiesNeeded, RowsNeeded
from whence.errors import DivergedError
from whence.util.tree import tensors_in

if TYPE_CHECKING:
    from whence.engine.flow import Flow

_lock = threading.Lock()
_listening = 0  # passes that run, in all threads
_APPLY = Function.__dict__["apply"].__func__
_OWN = _APPLY.__code__
_hears = threading.local()  # `flow`: the pass that runs in this thread

KNOWN: dict[str, Sequence[Callable[[Tensor], Tensor]]] = {
    "relu": (F.relu,),
    "relu6": (F.relu6,),
    "gelu": (F.gelu, lambda x: F.gelu(x, approximate="tanh")),
    "silu": (F.silu,),
    "mish": (F.mish,),
    "elu": (F.elu,),
    "hardswish": (F.hardswish,),
    "softplus": (F.softplus,),
    "sigmoid": (torch.sigmoid,),
    "tanh": (torch.tanh,),
}
_GIST = 1e-5  # how near a function must come to a known one: authors shorten their constants


class _Told:
    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        __class__  # type: ignore[name-defined] # noqa: B018  (in the closure of torch's own, too)
        from whence.engine.custom_functions import told  # the code runs with torch's names

        return told(cls, *args, **kwargs)


_TOLD = _Told.__dict__["apply"].__func__.__code__


def current() -> Flow | None:
    """The pass that runs in this thread, the innermost if there are several."""
    return getattr(_hears, "flow", None)


@contextmanager
def suspended() -> Iterator[None]:
    """While an explanation runs inside another one's model or target, the outer pass ignores what is called."""
    outer = current()
    before = outer.suspended if outer is not None else False
    if outer is not None:
        outer.suspended = True
    try:
        yield
    finally:
        if outer is not None:
            outer.suspended = before


def listen(flow: Flow) -> Flow | None:
    """From now on this pass is told of custom functions; what comes back is the one that was told before."""
    global _listening
    with _lock:
        _listening += 1
        if _listening == 1 and _OWN.co_freevars == _TOLD.co_freevars:
            _APPLY.__code__ = _TOLD
    before, _hears.flow = current(), flow
    return before


def leave(before: Flow | None) -> None:
    """The reverse of `listen`."""
    global _listening
    _hears.flow = before
    with _lock:
        _listening -= 1
        if not _listening:
            _APPLY.__code__ = _OWN


def told(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """What a call of a custom function comes to while a pass runs."""
    flow = current()

    def plain(*args: Any, **kwargs: Any) -> Any:
        return untold(cls, *args, **kwargs)

    if flow is None or cls.__module__.startswith("whence.") or not flow.is_on():
        return plain(*args, **kwargs)
    return _run(flow, cls, plain, args, kwargs)


def _run(flow: Flow, cls: Any, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """One op if the function works entry by entry, else its forward op by op, else the function as it is."""
    if not [t for t in tensors_in([*args, *kwargs.values()]) if flow.is_live(t)]:
        return plain(*args, **kwargs)
    if flow.propagates and (layer := _quantised(flow, plain, args, kwargs)) is not None:
        return layer
    ruled = not flow.plan.light and (flow.tape is not None or flow.modifies)
    family = elementwise(plain, args, kwargs) if ruled else None
    if family == WRITES:
        flow.closed.add(cls.__name__)
        return plain(*args, **kwargs)
    if family is not None:
        return _as_one_op(flow, cls, family, plain, args, kwargs)
    begun = flow.tape.open() if flow.tape is not None else ()
    if begun is not None and (ruled or flow.captures.active or flow.plan.opens):
        flow.opening += 1
        try:
            result = opened(cls, args, kwargs)
            if any(flow.is_live(t) for t in tensors_in(result)):
                return result
        except (DivergedError, RowsNeeded, CopiesNeeded):
            raise
        except Exception:  # it needs more of its context than is here
            flow.log.plain = False
        finally:
            flow.opening -= 1
        if flow.tape is not None:
            flow.tape.close(begun)
    flow.closed.add(cls.__name__)
    return _as_one_op(flow, cls, "", plain, args, kwargs) if ruled else plain(*args, **kwargs)


def _as_one_op(flow: Flow, cls: Any, family: str, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The function with the derivative that it gives itself, under its own name if it is of no known family."""
    spelled = Spelling(cls.__name__, writes=False, inplace_at=None, metadata=False, family=family)
    with torch._C.DisableTorchFunction():  # as in the handler
        return flow.handle(spelled, plain, args, kwargs)


def _quantised(flow: Flow, plain: Callable[..., Any], args: Any, kwargs: Any) -> Tensor | None:
    """What a function with weights of a few bits gives, as the linear map that it computes; None if it is none."""
    x, *others = args
    held = list(tensors_in([*others, *kwargs.values()]))
    if not isinstance(x, Tensor) or any(map(flow.is_live, held)) or not any(t.dtype in quantised.BYTES for t in held):
        return None
    found = quantised.as_dense(lambda some: plain(some, *others, **kwargs), x)
    if found is None:
        return None
    flow.log.note_quantised(flow.here())
    return F.linear(x, *found)


class Context:
    """What a function's forward gets instead of its context; nothing of it is used."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(a, Tensor) and a.requires_grad for a in args)
        self.constants: list[Tensor] = []
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        self.constants += tensors

    def save_for_forward(self, *tensors: Any) -> None: ...

    def mark_dirty(self, *tensors: Any) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


def opened(cls: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """A function's forward as plain ops."""
    if cls.setup_context is not Function.setup_context:
        return cls.forward(*args, **kwargs)
    context = Context(args)
    result = cls.forward(context, *args, **kwargs)
    fixed = {id(t) for t in context.constants}
    if isinstance(result, tuple):
        return tuple(t.detach() if id(t) in fixed else t for t in result)
    return result


WRITES = "writes"  # in place of a family: the function changes its argument in place, and is left as it is


def elementwise(run: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> str | None:
    """The family of a function each of whose entries depends on the same entry of its one tensor; None if it does not.

    Found by asking: with other values at some places, only these places may change.
    """
    plain = all(a is None or isinstance(a, int | float | str) for a in (*args[1:], *kwargs.values()))
    if not plain or not args or not isinstance(args[0], Tensor):  # a module, a cache or a list might change by asking
        return None
    x = args[0].detach()
    if not x.is_floating_point() or x.numel() < 2:
        return None

    written = False

    def at(point: Tensor) -> Any:
        nonlocal written
        handed = point.clone()
        result = run(handed, *args[1:], **kwargs)
        written |= not torch.equal(handed, point)
        return result

    with torch.no_grad(), torch._C.DisableTorchFunction():
        other = x.flatten().roll(1).view_as(x) * 0.5 - 0.25
        try:
            y, there = at(x), at(other)
            if not all(isinstance(t, Tensor) and t.shape == x.shape and t.dtype == x.dtype for t in (y, there)):
                return WRITES if written else None
            mixed = all(
                _near(at(torch.where(some, x, other)), torch.where(some, y, there), 8 * torch.finfo(x.dtype).eps)
                for some in _places(x)
            )
        except Exception:  # of its own, or because it cannot take these values
            return None
        if written:
            return WRITES
        return _known(at, x, other) if mixed else None


def _known(at: Callable[[Tensor], Any], x: Tensor, other: Tensor) -> str:
    """The family that gives the same values as this function of entries."""
    points = torch.cat([x.flatten(), other.flatten(), torch.linspace(-5, 5, 41, dtype=x.dtype, device=x.device)])
    try:
        values = at(points)
    except Exception:  # it takes images only, for example
        return "custom"
    if values.shape != points.shape:
        return "custom"
    same = (name for name, spelled in KNOWN.items() if any(_near(values, f(points), _GIST) for f in spelled))
    return next(same, "custom")


def _places(x: Tensor) -> Iterator[Tensor]:
    """Where values are exchanged: in neither pattern are all entries along an axis treated alike."""
    steps = [torch.arange(n, device=x.device).view(-1, *[1] * (x.dim() - axis - 1)) for axis, n in enumerate(x.shape)]
    yield sum(steps, torch.zeros(x.shape, dtype=torch.int64, device=x.device)) % 2 == 0
    yield (torch.rand(x.shape, generator=torch.Generator().manual_seed(0), device="cpu") < 0.5).to(x.device)


def _near(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))
