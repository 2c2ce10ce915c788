"""The mode: one forward pass of an unmodified model, which can be propagated back any number of times.

Every op that the model calls passes through `Flow.__torch_function__`. Liveness is a mark on the tensor object:
outputs of ops with a live input are live. An op whose family has a rule runs inside a node of its own (`call.py`);
every other op stays plain autograd's. Parameters are detached on the way in, so that only the data path is
differentiated; nothing of the model is changed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.engine.call import Call, Rule, Stream, derivative, find_rule, rule_name, run_with_rule
from whence.engine.ops import GROUP, LINEAR_GROUPS, Spelling, family_of, spelling
from whence.engine.sites import Sites
from whence.errors import NoRule

_MARK, _WEIGHTS = "_whence", "_whence_weights"  # attributes of tensors that were born in a pass
_active = threading.local()


@dataclass(frozen=True, slots=True)
class Step:
    """One live op of a traced pass."""

    op: str
    family: str
    path: str
    rule: str
    shape: tuple[int, ...]


class Flow(TorchFunctionMode):
    """A forward pass under the mode: `with Flow(...) as flow: ...`, then `flow.pull(score)` as often as wanted.

    `rules` maps families or groups to rules. `strict` says that ops outside the table and the linear groups are
    without a rule: they get the derivative and are counted in `unruled`, or raise with `refuse`.
    `copies` saves copies of whatever backward needs, for models that overwrite it in place.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule] | None = None,
        *,
        sites: Sites | None = None,
        strict: bool = False,
        refuse: bool = False,
        method: str = "this method",
        trace: bool = False,
        copies: bool = False,
    ) -> None:
        super().__init__()
        self.rules = dict(rules or {})
        self.sites = sites or Sites()
        self.strict, self.refuse, self.method = strict, refuse, method
        self.path: list[str] = []  # the modules that are running now, kept by hooks
        self.thread = threading.get_ident()
        self.suspended = False
        self.ops: Counter[tuple[str, str, str]] = Counter()  # (family, path, rule)
        self.unruled: Counter[tuple[str, str]] = Counter()  # (family, path)
        self.unseen: Counter[tuple[str, str]] = Counter()  # (graph node, path at which its result came back)
        self.steps: list[Step] | None = [] if trace else None
        self.copies = copies
        self.attention = 0
        self._stream = Stream()
        self._token = object()  # not self: a tensor must not keep the pass alive
        self._nodes: set[Any] = set()  # graph nodes whose op was seen
        self._stand_ins: dict[int, tuple[Tensor, Tensor]] = {}  # parameters and inference tensors
        self._outer: Flow | None = None

    # ---- the pass ----

    def __enter__(self) -> Flow:
        self._outer = getattr(_active, "flow", None)
        if self._outer is not None:
            self._outer.suspended = True  # an `explain` inside a model or a target is none of the outer one's business
        _active.flow = self
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        _active.flow = self._outer
        if self._outer is not None:
            self._outer.suspended = False

    def start(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """A leaf with this value, and the live copy of it that the model gets (which it may overwrite)."""
        leaf = tensor.detach().clone().requires_grad_()
        handed = leaf.clone()
        self.mark(handed)
        return leaf, handed

    def pull(
        self, outputs: Tensor, start: Tensor, leaves: Sequence[Tensor], rules: Mapping[str, Rule] | None = None,
        *, again: bool = False,
    ) -> list[Tensor | None]:  # fmt: skip
        """Propagate `start` from the outputs to the leaves under a table of rules (by default the pass's own)."""
        self._stream.rules = self.rules if rules is None else rules
        try:
            return list(torch.autograd.grad([outputs], leaves, [start], retain_graph=again, allow_unused=True))
        finally:
            self._stream.rules = {}

    def modifies(self) -> bool:
        """Whether some rule is other than the derivative."""
        return any(rule is not derivative for rule in self.rules.values())

    # ---- liveness ----

    def mark(self, tensor: Tensor) -> None:
        if tensor.requires_grad:
            setattr(tensor, _MARK, self._token)
            self._nodes.add(tensor.grad_fn)

    def is_live(self, tensor: Tensor) -> bool:
        if not tensor.requires_grad:
            return False
        return getattr(tensor, _MARK, None) is self._token or self._came_from_outside(tensor)

    def _came_from_outside(self, tensor: Tensor) -> bool:
        """Audit: a tensor without a mark is live if its graph reaches a known node; what lies between was not seen."""
        if tensor.grad_fn is None:
            return False
        stack, visited, unknown, reached = [tensor.grad_fn], set(), [], False
        while stack:
            node = stack.pop()
            if node in visited:
                continue
            visited.add(node)
            if node in self._nodes:
                reached = True
                continue
            unknown.append(node.name())
            stack.extend(following for following, _ in node.next_functions if following is not None)
        if reached:
            for name in unknown:
                if not _is_plumbing(name):
                    self.unseen[name, self._here()] += 1
            self.mark(tensor)
        return reached

    # ---- the handler ----

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        spelled = spelling(func)
        if spelled.metadata or self.suspended:
            return func(*args, **(kwargs or {}))
        if self.copies or _checkpointing():
            with torch.autograd.graph.saved_tensors_hooks(torch.clone if self.copies else _same, _same):
                return self._handle(spelled, func, args, kwargs or {})
        return self._handle(spelled, func, args, kwargs or {})

    def _handle(self, spelled: Spelling, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        live: list[Tensor] = []
        used = tuple(self._inspect(a, live) for a in args)
        named = {key: self._inspect(a, live) for key, a in kwargs.items()}
        if live:
            result = self._live(spelled, func, used, named, live)
        else:
            result = self._constant(spelled, func, used, named)
        return args[0] if spelled.writes and args and result is used[0] else result  # not its stand-in

    def _inspect(self, value: Any, live: list[Tensor]) -> Any:
        """Collect live tensors; replace what autograd must not see by a stand-in that shares its memory."""
        if isinstance(value, Tensor):
            if value.is_inference():
                return self._stand_in(value)
            if value.requires_grad:
                if type(value) is nn.Parameter or isinstance(value, nn.Parameter):
                    return self._stand_in(value)
                if self.is_live(value) and not any(value is other for other in live):
                    live.append(value)
            return value
        if type(value) in (list, tuple):
            items = [self._inspect(item, live) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else type(value)(items)
        return value

    def _stand_in(self, tensor: Tensor) -> Tensor:
        known = self._stand_ins.get(id(tensor))
        if known is None:
            plain = tensor.clone().detach() if tensor.is_inference() else tensor.detach()
            known = self._stand_ins[id(tensor)] = (tensor, plain)
        return known[1]

    def _constant(self, spelled: Spelling, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = _protect(spelled.name, args, kwargs)
        found = self.sites.embedding(self, spelled, func, args, kwargs)
        if found is not None:
            return found
        result = func(*args, **kwargs)
        self.sites.follow(spelled, func, args, kwargs, result)
        return result

    def _live(
        self, spelled: Spelling, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], live: list[Tensor]
    ) -> Any:
        family = family_of(spelled.name, args, kwargs, live)
        rule = find_rule(self.rules, family)
        writes = spelled.writes_to_first(args, kwargs)
        if rule is None and self.strict and GROUP.get(family) not in LINEAR_GROUPS:
            self._note_unruled(family)
        if rule is None or rule is derivative:
            result = func(*args, **kwargs)
        else:
            call = Call(family, spelled.name, self._here(), args, kwargs)
            if writes:
                result = self._ruled_in_place(call, func, args, live)
            else:
                result = run_with_rule(self._stream, call, func, live)
        outputs = list(_tensors(result))
        if writes:
            outputs += [t for t in (args[0], args[0]._base) if t is not None]
        for tensor in outputs:
            self.mark(tensor)
        self._find_attention(family, live, outputs)
        self._note(spelled.name, family, rule, outputs)
        return result

    def _ruled_in_place(self, call: Call, func: Any, args: tuple[Any, ...], live: list[Tensor]) -> Tensor:
        """x.relu_() as x.copy_(rule(x.clone())): autograd then keeps views and their bases right."""
        target = args[0]
        copy = target.clone()
        call.args = (copy, *args[1:])
        inputs = [copy if t is target else t for t in live]

        def out_of_place(first: Tensor, *rest: Any, **named: Any) -> Tensor:
            fresh = first.clone()
            func(fresh, *rest, **named)
            return fresh

        target.copy_(run_with_rule(self._stream, call, out_of_place, inputs))
        return target

    # ---- notes for the receipt ----

    def _here(self) -> str:
        return self.path[-1] if self.path else ""

    def _note(self, name: str, family: str, rule: Rule | None, outputs: list[Tensor]) -> None:
        first = next((t for t in outputs if t.requires_grad), None)
        if first is None:
            return  # a comparison, an arg-max: a constant
        title = "autograd" if rule is None else rule_name(rule)
        self.ops[family, self._here(), title] += 1
        if self.steps is not None:
            self.steps.append(Step(name, family, self._here(), title, tuple(first.shape)))

    def _note_unruled(self, family: str) -> None:
        self.unruled[family, self._here()] += 1
        if self.refuse:
            raise NoRule(
                f"{self.method} has no rule for {family!r} (met in {self._here() or 'the model itself'}).\n"
                f'  Give one with rules={{"{family}": ...}}, or drop unruled="error" to take the derivative.'
            )

    def _find_attention(self, family: str, live: list[Tensor], outputs: list[Tensor]) -> None:
        """Attention is a softmax whose result, copied or scaled perhaps, multiplies something else that is live."""
        group = GROUP.get(family)
        if group == "attention":
            self.attention += 1
        elif any(getattr(t, _WEIGHTS, False) for t in live):
            if group == "product":
                self.attention += 1
            elif group == "view" or family in ("dropout", "scale"):
                _tag_weights(outputs)
        if family == "softmax":
            _tag_weights(outputs)


def _tag_weights(tensors: list[Tensor]) -> None:
    for tensor in tensors:
        setattr(tensor, _WEIGHTS, True)


def _checkpointing() -> bool:
    """Whether someone packs saved tensors: a checkpoint would later run the model again, outside this mode."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _tensors(value: Any) -> Iterable[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _protect(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`F.embedding(max_norm=...)` rescales its table in place without saying so: it gets a copy."""
    if name == "embedding" and ((len(args) > 3 and args[3]) or kwargs.get("max_norm")) is not None:
        args = tuple(a.clone() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    return args, kwargs


_PLUMBING = """View Reshape UnsafeView AsStrided Alias Select Slice Index Expand Permute Transpose T Unsqueeze Squeeze
    Clone Copy CopySlices ToCopy Split Unbind Cat Stack Repeat Add Sub Neg Mean Sum AccumulateGrad Detach""".split()


def _is_plumbing(node: str) -> bool:
    """Nodes which carry any stream unchanged: they appear without a call when views of one memory are written to."""
    return node.split("::")[-1].split("Backward")[0] in _PLUMBING
