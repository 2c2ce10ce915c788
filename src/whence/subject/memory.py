"""The memory that a pass may take: in one piece if it fits, else layer by layer."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from whence.engine.captures import layers
from whence.engine.layerwise import Counted, Layerwise, estimate
from whence.engine.plan import Cuts, OverBudget, Plan
from whence.errors import warn
from whence.util.checks import is_whole, not_allowed
from whence.util.frozen import changed

if TYPE_CHECKING:
    from whence.subject.passes import Pass
    from whence.subject.subject import Subject

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def read(given: Any) -> int:
    """A size as bytes: a whole number of them, or such as "512MB" and "4GB" (1 GB = 10⁹ bytes)."""
    found = _SIZE.fullmatch(given) if isinstance(given, str) else None
    if found is not None:
        return int(float(found[1]) * 1000 ** _POWERS[found[2].lower()])
    if not is_whole(given) or given < 0:
        raise not_allowed("memory", given, 'a size such as "4GB", or a number of bytes')
    return int(given)


def shown(size: int) -> str:
    """A size in words."""
    power = next(p for p in (3, 2, 1, 0) if size >= 1000**p or not p)
    return f"{size / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB')[power]}"


def most_rows(subject: Subject, most: int) -> int:
    """So many rows, or as few as a pass may take; what one row takes was counted in the first pass."""
    assert subject.memory is not None
    fit = max(1, int(subject.memory // max(subject.record.bytes_per_row, 1)))
    if subject.record.overall.get("memory") is None:
        subject.record.overall["memory"] = {"allowed": shown(subject.memory), "way": f"{min(most, fit)} rows in a pass"}
    return min(most, fit)


def without_cache(model: Any, inputs: Any, form: str) -> dict[str, Any]:
    """What lets a language model leave out its cache, which layers write to: they could not be run again."""
    known = inspect.signature(model.forward).parameters if form == "dict" and hasattr(model, "forward") else {}
    asked = "use_cache" in inputs or "past_key_values" in inputs
    return {"use_cache": False} if "use_cache" in known and not asked else {}


def check_used(subject: Subject) -> None:
    """Warn where no pass could be held to what it may take."""
    if "memory" not in subject.record.overall:
        warn(
            f"{subject.method}: memory= has no effect, because its passes are kept whole. gradient, attnlrp, lrp and "
            "generic_attention go layer by layer; batch_size= makes passes smaller."
        )


def planned(subject: Subject, plan: Plan) -> Plan:
    """The plan of a pass that may take so much and no more."""
    follows = plan.tell is None or getattr(plan.tell, "by_layer", False)
    whole = plan.reference is not None or plan.wants or plan.edit or plan.detach_at or plan.light or subject.at
    if whole or not plan.gradient or not follows or subject.record.steps is not None:
        return plan
    cuts = Cuts(_outermost(layers(subject.root)), subject.memory, subject.targets)
    return changed(plan, layers=changed(cuts, budget=None) if subject.record.by_layer else cuts)


def _outermost(paths: set[str]) -> frozenset[str]:
    """Layers that are not parts of other layers."""

    def inside(path: str) -> bool:
        parts = path.split(".")
        return any(".".join(parts[:n]) in paths for n in range(1, len(parts)))

    return frozenset(path for path in paths if not inside(path))


def by_layer(subject: Subject, plan: Plan, over: OverBudget) -> Plan:
    """The plan of a pass that would take too much in one piece."""
    assert plan.layers is not None
    subject.record.by_layer = True
    subject.record.overall["memory"] = {"allowed": shown(subject.memory or 0), "in_one_piece": shown(over.estimate)}
    return changed(plan, layers=changed(plan.layers, budget=None))


def told(done: Pass) -> Pass:
    """A pass, the way of which is in the receipt."""
    subject, cut = done.subject, done.flow.layers
    if isinstance(cut, Counted):
        cut.estimate = max(cut.estimate, estimate(done.flow, done.flow.log.kept, subject.targets))
        subject.record.overall["memory"] = {
            "allowed": shown(subject.memory or 0), "in_one_piece": shown(cut.estimate), "way": "in one piece",
        }  # fmt: skip
        if subject.memory is not None and cut.estimate > subject.memory:
            warn(
                f"{subject.method}: the pass takes about {shown(cut.estimate)}, which is more than "
                f"memory={shown(subject.memory)}, and the model has no list of layers to go through one by one."
            )
    elif isinstance(cut, Layerwise):
        inputs = sum(entry.tensor.nbytes for stretch in cut.stretches for entry in stretch.entries)
        size = estimate(done.flow, cut.largest, subject.targets) + inputs
        entry = subject.record.overall.setdefault("memory", {"allowed": shown(subject.memory or 0)})
        entry |= {"way": f"layer by layer, {len(cut.stretches)} layers", "layer_by_layer": shown(size)}
        if subject.memory is not None and size > subject.memory:
            warn(
                f"{subject.method}: layer by layer the pass takes about {shown(size)}, which is more than "
                f"memory={shown(subject.memory)}."
            )
    return done
