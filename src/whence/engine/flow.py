"""The mode: one forward pass of an unmodified model, which can be propagated back any number of times.

Every op that the model calls passes through `Flow.__torch_function__`. Liveness is a mark on the tensor object:
outputs of ops with a live input are live. An op whose family has a rule runs inside a node of its own (`call.py`);
every other op stays plain autograd's. Parameters are detached on the way in, so that only the data path is
differentiated; nothing of the model is changed.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.engine import custom_functions
from whence.engine.against import Against, reveal
from whence.engine.arguments import placed
from whence.engine.call import Call, Rule, Stream, derivative, find_rule, run_with_rule, swapped, version_of
from whence.engine.captures import Captures
from whence.engine.expand import EXPANSIONS, expandable
from whence.engine.expand.attention import odd_attention, operands
from whence.engine.inplace import (
    checkpointing,
    in_rows,
    makes_constants,
    out_of_place,
    protected,
    same,
    target_of,
)
from whence.engine.leaves import Sites
from whence.engine.liveness import Marks
from whence.engine.log import Log
from whence.engine.ops import GROUP, LINEAR_GROUPS, Spelling, family_of, spelling
from whence.engine.scope import observe
from whence.engine.tape import Tape
from whence.engine.trackers import modality, provenance, rows, store, tokens
from whence.engine.trackers.ordering import SORTS, Orders
from whence.errors import ModelError, NoRule
from whence.rules.ledger import Ledger
from whence.rules.reveal_cancel import Parts, carry
from whence.util.tree import tensors_in

_active = threading.local()


@contextmanager
def apart() -> Iterator[None]:
    """While an explanation runs inside another one's model or target, the outer pass looks away."""
    outer = getattr(_active, "flow", None)
    before = outer.suspended if outer is not None else False
    if outer is not None:
        outer.suspended = True
    try:
        yield
    finally:
        if outer is not None:
            outer.suspended = before


class Flow(TorchFunctionMode):
    """A forward pass under the mode: `with Flow(...) as flow: ...`, then `flow.pull(score)` as often as wanted.

    - `rules` maps families or groups to rules; other tables may be given to `pull`, for the same families.
    - `strict`: ops outside the table and the linear groups are without a rule. They get the derivative and are counted
      in the log, or raise with `refuse`.
    - `expand` names fused ops to be written out in plain ones.
    - `record` a reference pass onto a tape, or `replay` against one; both look `through` `detach` and `no_grad`.
    - `copies` saves copies of whatever backward needs, for models that overwrite it in place; `parameters` leaves
      parameters in the graph, for models that differentiate by them.
    - `rows`: how many there are, for rules that sum per row; `call.places` and `call.place` then say where they are.
    - `marks`: take down live ops in a pass without gradients too.
    - `ahead`: rules of a replayed pass that can be prepared are, and no other table will do on the way back.
    - `parts`: which ops give positive and negative parts; noted in the recording, asked in the replay.
    - `cut`: modules at whose outputs the graph begins anew; the last of each is in `cuts`.
    - `ledger`: the account of a relevance pass; `origins`: follow what values were made of.
    - `opens`: run the forward of a custom function openly, although its own derivative would do.
    - `light`: take down nothing, and leave everything after the last explained value to autograd; for further passes
      of a model that was seen before.
    """

    def __init__(
        self,
        rules: Mapping[str, Rule] | None = None,
        *,
        sites: Sites | None = None,
        captures: Captures | None = None,
        expand: Iterable[str] = (),
        record: Tape | None = None,
        replay: Tape | None = None,
        strict: bool = False,
        refuse: bool = False,
        method: str = "this method",
        trace: bool = False,
        copies: bool = False,
        parameters: bool = False,
        rows: int | None = None,
        gradient: bool = True,
        marks: bool = False,
        light: bool = False,
        through: bool = True,
        ahead: bool = True,
        parts: Parts | None = None,
        cut: Callable[[str], bool] | None = None,
        ledger: Ledger | None = None,
        origins: bool = False,
        opens: bool = False,
    ) -> None:
        super().__init__()
        self.rules = dict(rules or {})
        self.sites, self.captures = sites or Sites(), captures or Captures()
        self.expand = frozenset(expand)
        self.record, self.replay = record, replay
        self.strict, self.refuse, self.method = strict, refuse, method
        self.copies, self.parameters, self.rows = copies, parameters, rows
        self.path: list[str] = []  # the modules that are running now, kept by hooks
        self.thread = threading.get_ident()
        self.suspended = False
        self.log = Log(trace)
        self._stream = Stream()
        self._stand_ins: dict[int, tuple[Tensor, Tensor]] = {}  # copies of inference tensors
        self._expanding: list[str] = []
        self._visiting = False
        self._outer: Flow | None = None
        self._heard: Any = None
        self._opening = 0  # how deep in the forwards of custom functions
        self._opens = opens
        self.closed: set[str] = set()  # custom functions that were left to their own derivative
        self._marks = Marks(not gradient and (record is not None or self.captures.active or marks))
        self._propagates = gradient or record is not None or replay is not None
        self._through = through and (record is not None or replay is not None)
        self._light = light
        self._ahead = ahead
        self._tape = Against(record, replay, parts)
        tape = record or replay
        self._orders = Orders(None if tape is None else tape.sorts, replay is not None)
        self._origins, self.ledger = origins or replay is not None, ledger
        self.cut = cut
        self.cuts: dict[str, tuple[Tensor, Any]] = {}

    # ---- the pass ----

    def __enter__(self) -> Flow:
        self._outer = getattr(_active, "flow", None)
        _active.flow = self
        self._heard = custom_functions.listen(self)
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        custom_functions.leave(self._heard)
        _active.flow = self._outer
        if error is None and self.replay is not None:
            self.replay.finish()

    def start(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """A leaf with this value, and the live copy of it that the model gets (which it may overwrite)."""
        before, self.suspended = self.suspended, True  # this is no op of the model's
        try:
            leaf = tensor.detach().clone().requires_grad_()
            handed = leaf.clone()
        finally:
            self.suspended = before
        self.mark(handed)
        if self.rows is not None:
            rows.begin(handed, self.rows)
        self.explain_from(handed)
        return leaf, handed

    def explain_from(self, handed: Tensor, ids_dim: int = 0) -> None:
        """This is an explained value, as the model gets it; or the embedding that ids of so many dimensions enter."""
        if self._origins:
            provenance.begin(handed, ids_dim)
        if self.ledger is not None:
            self.ledger.lives.append(provenance.origin_of(handed).life)

    def cut_here(self, path: str, tensor: Tensor) -> Tensor:
        """Let the graph begin anew at a module's output, which is then a leaf; what came before is let go."""
        if not self.is_live(tensor):
            return tensor
        leaf, handed = self.start(tensor)
        modality.copy(tensor, handed)
        for copy in (leaf, handed):
            rows.copy(tensor, copy)
            tokens.copy(tensor, copy)
        self.cuts[path] = (leaf, modality.stream_of(tensor))
        return handed

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
        self._marks.put(tensor)

    def is_live(self, tensor: Tensor) -> bool:
        if not self._marks.can_be_live(tensor):
            return False
        if self._marks.on(tensor):
            return True
        unseen = self._marks.unseen(tensor)
        if unseen is None:
            return False
        self.log.unseen.update((name, self._here()) for name in unseen)
        self.mark(tensor)
        return True

    # ---- the handler ----

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        spelled = spelling(func)
        cuts = (self._through or self._opening) and spelled.name in _CUTS
        if self.suspended or (spelled.metadata and not cuts):
            if spelled.lends and not self.suspended:
                observe(spelled, args, kwargs or {})
            return func(*args, **(kwargs or {}))
        if kwargs:
            args, kwargs = placed(func, args, kwargs)
        if cuts:
            return self._look_through(spelled.name, func, args)
        if self._light and self.sites.placed():
            return self._plainly(spelled, func, args, kwargs or {})
        if self.copies or checkpointing():
            self.log.plain = False
            with torch.autograd.graph.saved_tensors_hooks(torch.clone if self.copies else same, same):
                return self._handle(spelled, func, args, kwargs or {})
        return self._handle(spelled, func, args, kwargs or {})

    def _handle(self, spelled: Spelling, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        self._remember(spelled, args, kwargs)
        live: list[Tensor] = []
        loose: list[Tensor] = []
        used = tuple(self._inspect(a, live, loose) for a in args)
        named = {key: self._inspect(a, live, loose) for key, a in kwargs.items()}
        if self._expands(spelled.name, live, used, named):
            return self._expanded(spelled.name, func, used, named)
        if spelled.blind and live and self._propagates and spelled.name not in self.rules:
            raise ModelError(
                f"{self.method}: {spelled.name!r} (in {self._here() or 'the model itself'}) has no derivative, as "
                "layers in int8 have none, and nothing can be propagated through it.\n"
                "  Explain the model as it was before quantisation, or choose a method that only runs it: "
                "leave_one_out, occlusion, shapley, kernel_shap, lime."
            )
        if live and not makes_constants(spelled.name):
            result = self._live(spelled, func, used, named, live, loose)
        else:
            result = self._constant(spelled, func, used, named)
        if spelled.name in SORTS:
            self._orders.sorted(result)
        return args[0] if spelled.writes and args and result is used[0] else result  # not its stand-in

    def _plainly(self, spelled: Spelling, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """As plain autograd does it, but for parameters, and what is written to is remembered all the same."""
        self._remember(spelled, args, kwargs)
        used, named = tuple(map(self._bare, args)), {key: self._bare(a) for key, a in kwargs.items()}
        given, named = protected(spelled.name, used, named)
        result = in_rows(spelled.name, func(*given, **named))
        return args[0] if spelled.writes and args and result is used[0] else result

    def _bare(self, value: Any) -> Any:
        """What autograd may see of an argument."""
        if isinstance(value, Tensor):
            if value.is_inference() and not torch.is_inference_mode_enabled():
                return self._stand_in(value)
            return value.detach() if isinstance(value, nn.Parameter) and not self.parameters else value
        if type(value) in (list, tuple):
            return type(value)(map(self._bare, value))
        return value

    def _remember(self, spelled: Spelling, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        for written in observe(spelled, args, kwargs):
            self._stand_ins.pop(id(written), None)

    def _inspect(self, value: Any, live: list[Tensor], loose: list[Tensor]) -> Any:
        """Collect live tensors, and those that are neither live nor parameters.

        What autograd must not see is replaced by a stand-in that shares its memory.
        """
        if isinstance(value, Tensor):
            if value.is_inference() and not torch.is_inference_mode_enabled():
                return self._stand_in(value)
            if type(value) is nn.Parameter or (value.requires_grad and isinstance(value, nn.Parameter)):
                return value if self.parameters else value.detach()
            known = live if self.is_live(value) else loose
            if not any(value is other for other in known):
                known.append(value)
            return value
        if type(value) in (list, tuple):
            items = [self._inspect(item, live, loose) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else type(value)(items)
        return value

    def _stand_in(self, tensor: Tensor) -> Tensor:
        known = self._stand_ins.get(id(tensor))
        if known is None:
            known = self._stand_ins[id(tensor)] = (tensor, tensor.clone().detach())
        return known[1]

    def _look_through(self, name: str, func: Any, args: Sequence[Any]) -> Any:
        """With a reference, what a model detaches counts all the same: a copy, and gradients stay as they are."""
        if name == "_set_grad_enabled":
            return None
        if not self.is_live(args[0]):
            return func(*args)
        seen = args[0].view_as(args[0])  # shares its memory, as what it stands for does
        self.mark(seen)
        return seen

    # ---- functions of the model's own ----

    def is_on(self) -> bool:
        """Whether the model's code runs now, and not an op's."""
        return not self.suspended and self in torch.overrides._get_current_function_mode_stack()

    def custom(self, cls: Any, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """An `autograd.Function`: one op if it works entry by entry, else its forward op by op, else as it is."""
        live = [t for t in tensors_in([*args, *kwargs.values()]) if self.is_live(t)]
        tape = self.record is not None or self.replay is not None
        ruled = not self._light and (tape or self.modifies())
        if not live:
            return plain(*args, **kwargs)
        family = custom_functions.elementwise(plain, args, kwargs) if ruled else None
        if family == custom_functions.WRITES:
            self.closed.add(cls.__name__)
            return plain(*args, **kwargs)
        if family is not None:
            spelled = Spelling(cls.__name__, writes=False, inplace_at=None, metadata=False, family=family)
            with torch._C.DisableTorchFunction():  # as in the handler
                return self._handle(spelled, plain, args, kwargs)
        if ruled or self.captures.active or self._opens:
            self._opening += 1
            try:
                found = custom_functions.opened(cls, args, kwargs)
                if any(self.is_live(t) for t in tensors_in(found)):
                    return found
            except Exception:  # it needs more of its context than is here
                self.log.plain = False
            finally:
                self._opening -= 1
        self.closed.add(cls.__name__)
        return plain(*args, **kwargs)

    # ---- fused ops ----

    def _expands(self, name: str, live: list[Tensor], args: Any, kwargs: Any) -> bool:
        if name not in EXPANSIONS or name in self._expanding or not expandable(name, args, kwargs, live):
            return False
        if name == "embedding_bag":
            return bool(live) or self.sites.has_ids(args, kwargs)  # a bag is no embedding: ids enter the one inside
        odd = "odd_attention" in self.expand and name == "scaled_dot_product_attention"
        return bool(live) and (name in self.expand or (odd and odd_attention(args, kwargs, live)))

    def _expanded(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        self._expanding.append(name)
        try:
            found = self._again(lambda: EXPANSIONS[name](*args, **kwargs))
        finally:
            self._expanding.pop()
        if (
            self.captures.tell not in (None, self.ledger)
            and GROUP.get(family_of(name, args, kwargs, ())) == "attention"
        ):
            self._check_same(name, found, func, args, kwargs)
        return found

    def _check_same(self, name: str, found: Any, func: Any, args: Any, kwargs: Any) -> None:
        """Reading attention must not change it: what is written out gives what the model's own op gives."""
        with torch.no_grad():
            ours, theirs = (next(iter(tensors_in(t))).detach() for t in (found, func(*args, **kwargs)))
        apart = torch.nan_to_num(ours - theirs).abs().max() if ours.numel() else torch.zeros((), device=ours.device)
        most = 2e3 * torch.finfo(ours.dtype).eps * torch.nan_to_num(theirs).abs().max()
        if bool(apart > most) or not torch.equal(ours.isnan(), theirs.isnan()):
            raise ModelError(
                f"{name} (in {self._here() or 'the model itself'}) written out differs from the model's own by "
                f"{float(apart):.2g}: its maps would not be those that the model used.\n"
                '  Load the model with eager attention (attn_implementation="eager").'
            )

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
        found = self.sites.embedding(self, spelled, func, args, kwargs)
        if found is not None:
            return found
        result = func(*args, **kwargs)
        self.sites.follow(spelled, func, args, kwargs, result)
        return result

    def _live(
        self, spelled: Spelling, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], live: list[Tensor],
        loose: list[Tensor],
    ) -> Any:  # fmt: skip
        family = spelled.family or family_of(spelled.name, args, kwargs, live)
        if self.ledger is not None:
            self.ledger.ops += 1
        weights = None if self._visiting else self.captures.weights(family, live)
        if weights is not None:
            args, kwargs, live = self._visited(weights, args, kwargs, live)
        rule = find_rule(self.rules, family, spelled.name)
        target = target_of(args, kwargs) if spelled.writes_to_first(args, kwargs) else None
        writes = target is not None
        ruled = rule is not None and rule is not derivative and not isinstance(target, list | tuple)
        when = getattr(rule, "when", None)  # a rule for ops whose constants the data chose
        ruled = ruled and (bool(loose) if when else not self._only_views(family, func, args, kwargs, live))
        entry = self._tape.take(
            spelled.name, family, self._here(), args, kwargs, live, loose, ruled=ruled, writes=writes
        )
        order = None
        if entry is not None:
            entry, order = self._orders.entry(entry, spelled.name, family, args, live)
        call = None
        if self.record is None and (ruled or self._tape.asked()):
            call = self._call(family, spelled.name, func, args, kwargs, live, loose, entry)
            ruled = ruled and (when is None or (when(call) and not self._only_views(family, func, args, kwargs, live)))
        pairs = self._tape.pairs(live, entry) if call is not None else []
        if call is not None and self._tape.reveals(family, rule, pairs):
            result = reveal(call, live[0], pairs[0], target)
        elif call is not None and ruled:
            result = self._by_rule(call, target, live, rule if self._ahead else None)
        else:
            result = in_rows(spelled.name, func(*args, **kwargs))
            if call is not None and pairs:
                carry(call, live, pairs, result)
        self._tape.born(result)
        outputs = list(tensors_in(result))
        if order is not None:
            self._orders.follow(order, spelled.name, family, func, args, kwargs, live, outputs)
        for written in tensors_in(target):
            outputs += [t for t in (written, written._base) if t is not None]
        for tensor in outputs:
            self.mark(tensor)
        applied = rule if ruled or rule is derivative else None
        named = getattr(applied, "named", None)  # a rule that depends on the call
        title = named(call) if named is not None and call is not None else None
        step = self.log.note(spelled.name, family, self._here(), applied, outputs, title)
        if step is not None and self.ledger is not None:
            self.ledger.trace(step, outputs, call.note if call is not None else None)
        if getattr(rule, "generic", self.strict and rule is None and GROUP.get(family) not in LINEAR_GROUPS):
            self._unruled(family, outputs)
        if self.captures.tokens is not None:
            changed = list(tensors_in(target if writes else result))
            self.captures.tokens.follow(spelled.name, family, func, args, kwargs, live, changed, writes)
        self.captures.follow(family, live, outputs)
        if self._origins:
            now = 0 if self.ledger is None else self.ledger.ops
            lives = provenance.follow(family, spelled.name, args, kwargs, live, loose, outputs, now)
            if self.ledger is not None:
                self.ledger.lives += lives
        if self.rows is not None:
            rows.follow(spelled.name, family, func, args, kwargs, live, list(tensors_in(result)), writes)
            if call is not None:
                call.place = next((rows.place_of(t) for t in outputs), None)
        if call is not None and call.note is not None and outputs:
            call.note.place, call.note.life = call.place, provenance.origin_of(outputs[0]).life
        return result

    def _visited(self, weights: Tensor, args: Any, kwargs: Any, live: list[Tensor]) -> tuple[Any, Any, list[Tensor]]:
        """Show attention probabilities to the captures just before they multiply; go on with what they give."""
        self.captures.attention += 1
        if not self.captures.active:
            return args, kwargs, live
        self._visiting = True  # an edit may multiply attention too
        try:
            new = self._again(lambda: self.captures.visit("attention", self._here(), weights.view_as(weights)))
        finally:
            self._visiting = False
        swap = {id(weights): new}
        live = [t for t in (new if t is weights else t for t in live) if self.is_live(t)]
        return swapped(args, swap), swapped(kwargs, swap), live

    def _call(
        self, family: str, name: str, func: Any, args: Any, kwargs: Any, live: list[Tensor], loose: list[Tensor],
        entry: Any,
    ) -> Call:  # fmt: skip
        if self.copies:
            swap = {id(t): t.clone() for t in loose}
            args, kwargs, loose = swapped(args, swap), swapped(kwargs, swap), list(swap.values())
        call = Call(family, name, self._here(), func, args, kwargs, tuple(live), reference=entry)
        call.loose = tuple(loose)
        refused = self._no_rule(family, self._here()) if self.refuse else None
        call.copies, call.lose = self.copies, functools.partial(_lose, self.log, refused, family, self._here())
        call.places = tuple(rows.place_of(t) for t in live)
        if self._origins:
            call.origins = tuple(map(provenance.origin_of, live))
        if self.ledger is not None:
            call.note = self.ledger.op(family, self._here(), call.places, max(o.depth for o in call.origins))
        if family == "scaled_dot_product_attention" and self.captures.tell is not None:
            call.site = self.captures.arrive("attention", self._here())
            given = operands(args, kwargs)
            pair = tuple(modality.stream_of(given[name]) for name in ("query", "key"))
            followed = self.captures.tokens
            numbers = () if followed is None else followed.of_fused(args, kwargs)
            self.captures.tell.fused(call.site, pair, max(map(modality.depth_of, live)), numbers)
        return call

    def _only_views(self, family: str, func: Any, args: Any, kwargs: Any, live: list[Tensor]) -> bool:
        """Whether this op hands on its input's own memory: a node of ours would cut the tie between the two."""
        if GROUP.get(family) != "view":
            return False
        with torch.no_grad():
            found = func(*swapped(args, {id(t): t.detach() for t in live}), **kwargs) if family != "write" else None
        memory = {t.untyped_storage().data_ptr() for t in live}
        return any(t.untyped_storage().data_ptr() in memory for t in tensors_in(found))

    def _by_rule(self, call: Call, target: Tensor | None, live: list[Tensor], rule: Rule | None) -> Any:
        """x.relu_() is x.copy_(rule(x.clone())): autograd then keeps views and their bases right."""
        if target is None:
            result = run_with_rule(self._stream, call, live, rule)
            if isinstance(result, Tensor):
                store.put(result, _MAKER, call)
            return result
        copy = target.clone()
        maker: Call | None = store.get(target, _MAKER)
        if maker is not None and not maker.kept and tuple(map(version_of, maker.outputs)) == maker.made:
            maker.kept = (copy.detach(),)  # it may ask for its output when that has been overwritten
        call.args, call.kwargs = swapped(call.args, {id(target): copy}), swapped(call.kwargs, {id(target): copy})
        call.function = out_of_place(call.function)
        target.copy_(run_with_rule(self._stream, call, [copy if t is target else t for t in live], rule))
        return target

    def _unruled(self, family: str, outputs: list[Tensor]) -> None:
        if self.log.note_unruled(family, self._here(), outputs) and self.refuse:
            raise self._no_rule(family, self._here())

    def _no_rule(self, family: str, path: str) -> NoRule:
        otherwise = (
            "the local path integral" if self.replay is not None else getattr(self.rules.get("*"), "__name__", "")
        )
        otherwise = "the derivative" if otherwise in ("", "derivative") else otherwise
        return NoRule(
            f"{self.method} has no rule for {family!r} (met in {path or 'the model itself'}).\n"
            f'  Give one with rules={{"{family}": ...}}, or drop unruled="error" to take {otherwise}.'
        )

    def _here(self) -> str:
        return self.path[-1] if self.path else ""


def _lose(log: Log, refused: NoRule | None, family: str, path: str, amount: float) -> None:
    """A rule took the local path integral, and this is what that missed. (No method: a call must not hold the pass.)"""
    if refused is not None:
        raise refused
    log.lost.setdefault((family, path), []).append(amount)


_MAKER = "maker"  # on a ruled op's output: its call
_CUTS = frozenset({"detach", "data", "_set_grad_enabled"})
