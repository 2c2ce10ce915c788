"""The mode: one forward pass of an unmodified model, which can be propagated back any number of times.

Every op that the model calls passes through `Flow.__torch_function__`. Liveness is a mark on the tensor object:
outputs of ops with a live input are live. An op whose family has a rule runs inside a node of its own (`nodes.py`);
every other op stays plain autograd's. Parameters are detached on the way in, so that only the data path is
differentiated; nothing of the model is changed.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.engine import custom_functions
from whence.engine.arguments import placed
from whence.engine.call import Call, Rule, derivative, find_rule
from whence.engine.captures import Captures
from whence.engine.expand import EXPANSIONS, expandable
from whence.engine.expand.agreement import check_same
from whence.engine.expand.attention import odd_attention
from whence.engine.inplace import in_rows, protected, same, target_of
from whence.engine.leaves import Leaves
from whence.engine.liveness import Marks
from whence.engine.log import Log, lose, no_derivative, no_rule
from whence.engine.modules import Running
from whence.engine.nodes import Signal, only_views, rule_name, run_with_rule
from whence.engine.operands import Operands
from whence.engine.ops import GROUP, LINEAR_GROUPS, SPELLINGS, Spelling, family_of, spelling
from whence.engine.plan import Plan, trackers_of
from whence.engine.quantised import BYTES, DYNAMIC
from whence.engine.scope import observe
from whence.engine.tape import Tape
from whence.engine.trackers import HOOKS, NOT_RUN, Birth, Op, Tracker, hooks
from whence.engine.trackers.modality import modality_of
from whence.engine.trackers.ordering import SORTS, Orders
from whence.errors import NoRule
from whence.util.tree import swapped, tensors_in

_packing = torch._C._autograd._top_saved_tensors_default_hooks  # whether someone packs saved tensors
_DETACHING = frozenset({"detach", "data", "_set_grad_enabled"})


class Flow(TorchFunctionMode):
    """A forward pass under the mode: `with Flow(plan) as flow: ...`, then `flow.pull(score, ...)` as often as wanted.

    `rules` is the table of the pass (the plan's, with the user's own merged in); other tables may be given to `pull`,
    for the same families. A `tape` is recorded, or replayed. With `refuse`, an op without a rule is an error.
    """

    def __init__(
        self, plan: Plan, *, rules: Mapping[str, Rule] | None = None, leaves: Leaves | None = None,
        captures: Captures | None = None, tape: Tape | None = None, trackers: Sequence[Tracker] = (),
        log: Log | None = None, method: str = "this method", refuse: bool = False, root: nn.Module | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.plan, self.rules = plan, dict(plan.rules or {} if rules is None else rules)
        self.leaves, self.captures, self.tape = leaves or Leaves(), captures or Captures(), tape
        self.log, self.method, self.refuse = log or Log(), method, refuse
        self.records = tape is not None and not tape.replays
        self.replays = tape is not None and tape.replays
        self.thread = threading.get_ident()
        self.suspended = False
        self.opening = 0  # how deep in the forwards of custom functions
        self.closed: set[str] = set()  # custom functions that were left to their own derivative
        self.detached: dict[str, tuple[Tensor, Any]] = {}  # the last leaf at each module of `detach_at`; its modality
        # ops outside the table and the linear groups are without a rule: they get the derivative, and are counted
        self._strict = bool(plan.rules) and "*" not in (plan.rules or {})
        self._signal = Signal()
        self._known_rules: dict[tuple[str, str], tuple[Rule | None, str]] = {}  # and titles, by family and spelling
        self.modifies = any(rule is not derivative for rule in self.rules.values())  # not all are the derivative
        self._expanding: list[str] = []
        self._visiting = False
        self._outer: Flow | None = None
        self.root, self._running = root, Running(root)
        self.here = self._running.path  # of the module that runs now
        tracks = not plan.gradient and (self.records or plan.marks or self.captures.active)
        self.marks = Marks(tracks, self.log.unseen, self.here)
        self.mark, self.is_live = self.marks.put, self.marks.is_live
        self._operands = Operands(plan.parameters, self.is_live)
        self.layers: Any = None if plan.layers is None else plan.layers.begin()
        self.propagates = plan.gradient or tape is not None
        self._through = plan.through and tape is not None
        self._ahead = self.replays if plan.ahead is None else plan.ahead
        self.trackers = [*trackers, *trackers_of(plan, self.captures, tape, self.leaves.rows)]
        self._untracked = not self.trackers and self.log.steps is None
        self._orders = next((tracker for tracker in self.trackers if isinstance(tracker, Orders)), None)
        self._hooks = {name: hooks(self.trackers, name) if self.trackers else [] for name in HOOKS}
        self._before, self._describe = self._hooks["before"], self._hooks["describe"]
        self._run_instead, self._follow = self._hooks["run"], self._hooks["follow"]

    # ---- the pass ----

    def __enter__(self) -> Flow:
        self._outer = custom_functions.listen(self)
        self._running.bottom = sys._getframe(1)
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._running.bottom = None  # a frame keeps alive what it knows
        custom_functions.leave(self._outer)
        if error is None and self.tape is not None and self.replays:
            self.tape.finish()

    def start(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """A leaf with this value, and the live copy of it that the model gets (which it may overwrite)."""
        before, self.suspended = self.suspended, True  # not an op of the model's
        try:
            leaf = tensor.detach().clone().requires_grad_(tensor.is_floating_point())
            handed = leaf.clone()
        finally:
            self.suspended = before
        self.mark(handed)
        return leaf, handed

    def begin(self, handed: Tensor, birth: Birth) -> None:
        """Tell the trackers of an explained value, as the model gets it."""
        for begin in self._hooks["begin"]:
            begin(handed, birth)

    def detach_here(self, path: str, tensor: Tensor) -> Tensor:
        """Let the graph begin anew at a module's output, which is then a leaf; what came before is let go."""
        if not self.is_live(tensor):
            return tensor
        leaf, handed = self.start(tensor)
        self.begin(handed, Birth())
        for copy in self._hooks["copy"]:
            copy(tensor, handed)
            copy(tensor, leaf)
        self.detached[path] = (leaf, modality_of(tensor))
        return handed

    def pull(
        self, outputs: Tensor, start: Tensor, leaves: Sequence[Tensor], rules: Mapping[str, Rule] | None = None,
        *, again: bool = False,
    ) -> list[Tensor | None]:  # fmt: skip
        """Propagate `start` from the outputs to the leaves under a table of rules (by default the pass's own)."""
        return self.pull_all([(outputs, start)], leaves, rules, again=again)

    def pull_all(
        self, starts: Sequence[tuple[Tensor, Tensor]], leaves: Sequence[Tensor],
        rules: Mapping[str, Rule] | None = None, *, again: bool = False,
    ) -> list[Tensor | None]:  # fmt: skip
        """The same from several outputs at once, each with its start."""
        self._signal.rules = self.rules if rules is None else rules
        first, *more = ((outputs * start).sum() for outputs, start in starts)
        total = sum(more, first)  # torch loads a second's worth of modules where it is given a start itself
        try:
            return list(torch.autograd.grad(total, leaves, retain_graph=again, allow_unused=True))
        finally:
            self._signal.rules = {}

    def is_on(self) -> bool:
        """Whether the model's code runs now, and not an op's."""
        return not self.suspended and self in torch.overrides._get_current_function_mode_stack()

    # ---- the handler ----

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        spelled = SPELLINGS.get(func) or spelling(func)
        detaches = (self._through or self.opening) and spelled.name in _DETACHING
        if self.suspended or (spelled.metadata and not detaches):
            if spelled.lends and not self.suspended:
                observe(spelled, args, kwargs or {})
            return func(*args, **(kwargs or {}))
        if kwargs:
            args, kwargs = placed(func, args, kwargs)
            if self.opening and kwargs.get("out") is not None:
                raise TypeError(f"{spelled.name}(out=…) has no derivative: the function is to stay closed")
        if detaches:
            return self._look_through(spelled.name, func, args)
        if self.plan.light and self.leaves.all_entered():
            return self._plainly(spelled, func, args, kwargs or {})
        if self.plan.copies or _packing(True) is not None:  # a checkpoint would run the model again, outside this mode
            self.log.plain = False
            with torch.autograd.graph.saved_tensors_hooks(torch.clone if self.plan.copies else same, same):
                return self.handle(spelled, func, args, kwargs or {})
        return self.handle(spelled, func, args, kwargs or {})

    def handle(self, spelled: Spelling, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """One call of the model's, which runs once: expanded, followed as a live op, or as it is."""
        if spelled.observed or kwargs:
            self._operands.forget(observe(spelled, args, kwargs))
        live: list[Tensor] = []
        loose: list[Tensor] = []
        sort = self._operands.sorted_out
        used = tuple([sort(a, live, loose) for a in args])
        named = {key: sort(a, live, loose) for key, a in kwargs.items()} if kwargs else {}
        if spelled.name in EXPANSIONS and self._expands(spelled.name, live, used, named):
            return self._expanded(spelled.name, func, used, named)
        if spelled.blind and live and self.propagates and spelled.name not in self.rules:
            raise no_derivative(self.method, spelled.name, self.here())
        if live and not spelled.constant:
            result = self._live(spelled, func, used, named, live, loose)
        else:
            result = self._constant(spelled, func, used, named)
        rounds = isinstance(result, Tensor) and result.dtype in BYTES and live and live[0].is_floating_point()
        if rounds and self.propagates and spelled.name not in self.rules:
            raise no_derivative(self.method, f"{spelled.name}({result.dtype})", self.here())
        if self._orders is not None and spelled.name in SORTS:
            self._orders.sorted(result)
        return args[0] if used and result is used[0] else result  # not its stand-in

    def _plainly(self, spelled: Spelling, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """As plain autograd does it, but for parameters, and what is written to is remembered all the same."""
        if spelled.observed or kwargs:
            self._operands.forget(observe(spelled, args, kwargs))
        used = tuple(map(self._operands.plain, args))
        named = {key: self._operands.plain(a) for key, a in kwargs.items()}
        given, named = protected(spelled.name, used, named)
        result = func(*given, **named)
        result = in_rows(result) if spelled.name == "batch_norm" else result
        return args[0] if used and result is used[0] else result

    def _look_through(self, name: str, func: Any, args: Sequence[Any]) -> Any:
        """With a reference, what a model detaches counts all the same: a copy, and gradients stay as they are."""
        if name == "_set_grad_enabled":
            return None
        if not self.is_live(args[0]):
            return func(*args)
        seen = args[0].view_as(args[0])  # shares its memory, as what it stands for does
        self.mark(seen)
        return seen

    # ---- fused ops ----

    def _expands(self, name: str, live: list[Tensor], args: Any, kwargs: Any) -> bool:
        if name in self._expanding or not expandable(name, args, kwargs, live):
            return False
        if name == "embedding_bag":
            return bool(live) or self.leaves.ids.among(args, kwargs)  # ids enter the embedding inside
        if name in DYNAMIC:
            return bool(live) and self.propagates and name not in self.rules
        expand = self.plan.expand
        odd = "odd_attention" in expand and name == "scaled_dot_product_attention"
        return bool(live) and (name in expand or (odd and odd_attention(args, kwargs, live)))

    def _expanded(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        self._expanding.append(name)
        try:
            result = self._again(lambda: EXPANSIONS[name](*args, **kwargs))
        finally:
            self._expanding.pop()
        if name in DYNAMIC:
            self.log.note_quantised(self.here())
        if self.plan.tell is not None and GROUP.get(family_of(name, args, kwargs, ())) == "attention":
            with torch.no_grad():
                check_same(name, self.here(), result, func(*args, **kwargs))
        return result

    def _again(self, run: Callable[[], Any]) -> Any:
        """Run something under the mode from within the handler, where it is off."""
        super().__enter__()
        try:
            return run()
        finally:
            super().__exit__(None, None, None)

    # ---- one op ----

    def _constant(self, spelled: Spelling, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = protected(spelled.name, args, kwargs)
        embedding = self.leaves.embedding(self, spelled, func, args, kwargs)
        if embedding is not None:
            return embedding
        result = func(*args, **kwargs)
        self.leaves.ids.follow(spelled, func, args, kwargs, result)
        return result

    def _live(
        self, spelled: Spelling, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], live: list[Tensor],
        loose: list[Tensor],
    ) -> Any:  # fmt: skip
        """Run an op on live tensors, by its rule if it has one, and have every tracker follow it."""
        name, family = spelled.name, spelled.family or family_of(spelled.name, args, kwargs, live)
        target = target_of(args, kwargs) if spelled.writes_to_first(args, kwargs) else None
        rule, title = self._rule(family, name)
        if self._untracked and (rule is derivative or (rule is None and not self._strict)):
            result = func(*args, **kwargs)  # left to autograd
            result = in_rows(result) if name == "batch_norm" else result
            results = [result] if isinstance(result, Tensor) else list(tensors_in(result))
            self.log.note(family, name, rule, title, self._marked(results, target))
            return result
        weights = None if self._visiting or not self.captures.counts else self.captures.weights(family, live)
        if weights is not None:
            args, kwargs, live = self._visited(weights, args, kwargs, live)
        op = Op(name, family, self.here(), func, args, kwargs, live, loose, target, rule)
        when = getattr(rule, "when", None)  # a rule for some ops of its family
        if rule is not None and rule is not derivative and not isinstance(op.target, list | tuple):
            op.ruled = bool(loose) or not rule.loose if when else not only_views(op)  # type: ignore[attr-defined]
        for before in self._before:
            before(op)
        if op.wants_call or (op.ruled and not self.records):
            op.call = self._call(op)
            op.ruled = op.ruled and (when is None or (when(op.call) and not only_views(op)))
        op.result = self._run(op)
        op.results = list(tensors_in(op.result))
        op.outputs = self._marked(op.results, op.target)
        applied = rule if op.ruled or rule is derivative else None
        named = getattr(applied, "named", None)  # a rule that depends on the call
        title = "autograd" if applied is None else named(op.call) if named is not None and op.call else title
        if self.log.note(family, name, applied, title, op.outputs) and self.log.steps is not None:
            op.step = self.log.note_step(op, title)
        for follow in self._follow:
            follow(op)
        if getattr(rule, "generic", self._strict and rule is None and GROUP.get(family) not in LINEAR_GROUPS):
            self._unruled(op)
        return op.result

    def _marked(self, results: list[Tensor], target: Any) -> list[Tensor]:
        """What is live now: an op's results, what it wrote to, and of what that is a view."""
        outputs = results
        if target is not None:
            written = [t for own in tensors_in(target) for t in (own, own._base) if t is not None]
            outputs = [*results, *written]
        for tensor in outputs:
            self.mark(tensor)
        return outputs

    def _run(self, op: Op) -> Any:
        if op.call is not None:
            for run in self._run_instead:
                result = run(op)
                if result is not NOT_RUN:
                    return result
            if op.ruled:
                return run_with_rule(self._signal, op, op.call, op.rule if self._ahead else None)
        if op.family == "linear":
            from whence.engine import dense  # not every call needs it

            return dense.run(op)
        result = op.func(*op.args, **op.kwargs)
        return in_rows(result) if op.name == "batch_norm" else result

    def _rule(self, family: str, name: str) -> tuple[Rule | None, str]:
        """The rule for an op, and what it is called."""
        key = (family, name)
        if key not in self._known_rules:
            rule = find_rule(self.rules, family, name)
            self._known_rules[key] = rule, "autograd" if rule is None else rule_name(rule)
        return self._known_rules[key]

    def _visited(self, weights: Tensor, args: Any, kwargs: Any, live: list[Tensor]) -> tuple[Any, Any, list[Tensor]]:
        """Show attention probabilities to the captures just before they multiply; go on with what they give."""
        self.captures.attention += 1
        if not self.captures.active:
            return args, kwargs, live
        self._visiting = True  # an edit may multiply attention too
        try:
            new = self._again(lambda: self.captures.visit("attention", self.here(), weights.view_as(weights)))
        finally:
            self._visiting = False
        swap = {id(weights): new}
        live = [t for t in (new if t is weights else t for t in live) if self.is_live(t)]
        return swapped(args, swap), swapped(kwargs, swap), live

    def _call(self, op: Op) -> Call:
        """What a rule will see of an op."""
        args, kwargs, loose = op.args, op.kwargs, op.loose
        if self.plan.copies:
            swap = {id(t): t.clone() for t in loose}
            args, kwargs, loose = swapped(args, swap), swapped(kwargs, swap), list(swap.values())
        call = Call(op.family, op.name, op.path, op.func, args, kwargs, tuple(op.live), reference=op.entry)
        call.loose, call.copies = tuple(loose), self.plan.copies
        refused = self._no_rule(op) if self.refuse else None
        call.lose = functools.partial(lose, self.log, refused, op.family, op.path)  # a call must not hold the pass
        op.call = call
        for describe in self._describe:
            describe(op)
        return call

    def _unruled(self, op: Op) -> None:
        if self.log.note_unruled(op.family, op.path, op.outputs) and self.refuse:
            raise self._no_rule(op)

    def _no_rule(self, op: Op) -> NoRule:
        generic = "the local path integral" if self.replays else getattr(self.rules.get("*"), "__name__", "")
        return no_rule(self.method, op.family, op.path, generic)
