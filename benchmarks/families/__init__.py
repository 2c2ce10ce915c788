"""`make families`: nine methods on every kind of model there is, each cell against an independent computation."""

from benchmarks.families import causal, joint, others, pairs, text, vision
from benchmarks.families.case import Case

FAMILIES: dict[str, Case] = {
    **text.CASES, **causal.CASES, **pairs.CASES, **vision.CASES, **joint.CASES, **others.CASES,
}  # fmt: skip
