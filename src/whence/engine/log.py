"""What the ops of one pass got, for the receipt and the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from whence.engine.call import Rule
from whence.engine.ops import GROUP
from whence.errors import ModelError, NoRule

if TYPE_CHECKING:
    from whence.engine.trackers import Op


@dataclass(frozen=True, slots=True)
class Step:
    """One live op of a traced pass."""

    op: str
    family: str
    path: str
    rule: str
    shape: tuple[int, ...]
    carried: list[float] = field(default_factory=list, compare=False)  # relevance, all rows, by target
    lost: list[Any] = field(default_factory=list, compare=False)  # the op's entry in the ledger, if it has one


@dataclass(eq=False)
class Log:
    """Counts of live ops by what they got; in a traced pass, each of them in order."""

    steps: list[Step] | None = None
    lost: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # by local path integrals, in units of score
    ops: Counter[tuple[str, str]] = field(default_factory=Counter)  # (family, rule)
    unruled: Counter[tuple[str, str]] = field(default_factory=Counter)  # (family, path)
    unseen: Counter[tuple[str, str]] = field(default_factory=Counter)  # (graph node, path where its result came back)
    ruled: set[tuple[str, str]] = field(default_factory=set)  # (family, name) of the ops that got a rule
    families: set[str] = field(default_factory=set)  # of all live ops, with a graph or without
    quantised: set[str] = field(default_factory=set)  # paths of layers that ran as the linear maps that they compute
    bytes: int = 0  # of the live ops' results
    kept: int = 0  # of those that are no views: at most what the graph holds
    plain: bool = True  # no checkpoints, no copies: autograd alone would do the same
    quiet: bool = False  # while Whence's own scoring runs: rules apply, nothing is counted

    def note(self, family: str, name: str, rule: Rule | None, title: str, outputs: Sequence[Tensor]) -> bool:
        """Take down one live op and the title of what it got; whether it counts.

        Comparisons and arg-maxima do not, whose results are constants.
        """
        self.families.add(family)
        if outputs:
            self.bytes += outputs[0].nbytes
            self.kept += 0 if GROUP.get(family) == "view" else outputs[0].nbytes
        if not any(t.requires_grad for t in outputs):
            return False
        if rule is not None:
            self.ruled.add((family, name))
        if self.quiet:
            return False
        self.ops[family, title] += 1
        return True

    def note_quantised(self, path: str) -> None:
        """Take down a layer in whose place its linear map ran."""
        self.quantised.add(path)
        self.plain = False

    def note_step(self, op: Op, title: str) -> Step:
        """Take down one live op of a traced pass, with all that is known of it."""
        first = next(t for t in op.outputs if t.requires_grad)
        step = Step(op.name, op.family, op.path, title, tuple(first.shape))
        assert self.steps is not None
        self.steps.append(step)
        return step

    def note_unruled(self, family: str, path: str, outputs: Sequence[Tensor]) -> bool:
        """Take down an op for which the table has nothing; whether it counts."""
        counts = not self.quiet and any(t.requires_grad for t in outputs)
        if counts:
            self.unruled[family, path] += 1
        return counts


def lose(log: Log, refused: NoRule | None, family: str, path: str, amount: float) -> None:
    """Record what the quadrature of a local path integral missed."""
    if refused is not None:
        raise refused
    log.lost.setdefault((family, path), []).append(amount)


def no_rule(method: str, family: str, path: str, generic: str) -> NoRule:
    """An op without a rule where none may be; `generic` is what it would take instead."""
    generic = "the derivative" if generic in ("", "derivative") else generic
    return NoRule(
        f"{method} has no rule for {family!r} (met in {path or 'the model itself'}).\n"
        f'  Give one with rules={{"{family}": ...}}, or drop unruled="error" to take {generic}.'
    )


def no_derivative(method: str, name: str, path: str) -> ModelError:
    """An op of a quantised model, through which a signal would have to go."""
    return ModelError(
        f"{method}: {name!r} (in {path or 'the model itself'}) has no derivative (layers "
        "in int8 have none), so nothing can be propagated through it.\n"
        "  Explain the model as it was before quantisation, or choose a method that only runs it: "
        "leave_one_out, occlusion, shapley, kernel_shap, lime."
    )
