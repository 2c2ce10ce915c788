"""Relevance passes: one forward pass under LRP's rules, with the ledger of what each op hands on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from whence.engine.captures import layers
from whence.rules.attnlrp import UNIFORM_EXPAND, uniform_rules
from whence.rules.composites import composite_of
from whence.rules.ledger import Ledger
from whence.rules.lrp import RELEVANCE_EXPAND, relevance_rules
from whence.subject import Subject
from whence.subject.passes import Pass

UNIFORM = {"attnlrp": False, "cp_lrp": True}  # whether attention and gates are held constant
OPTIONS = ("epsilon", "gamma", "alpha", "beta", "low", "high", "stabilizer")  # lrp's, for its composites
Positions = Literal["token", "drop"]


def is_uniform(composite: Any) -> bool:
    """Whether a composite is AttnLRP's or CP-LRP's, whose relevance is x ⊙ m."""
    return isinstance(composite, str) and composite in UNIFORM


def relevance_pass(
    subject: Subject, composite: Any, options: Mapping[str, Any], positions: Positions = "drop", **plan: Any
) -> Pass:
    """One forward pass that relevance can be sent back through, with a ledger.

    `positions`: whether what is added to a token's embedding at its own position gives its share to the token.
    """
    options, back = dict(options), positions == "token" and "ids" in subject.roles.values()
    if is_uniform(composite):
        ledger = Ledger(subject.rows, multiplies=True, only=layers(subject.root).__contains__)
        rules, expand, rows = uniform_rules(UNIFORM[composite], back), UNIFORM_EXPAND, subject.rows > 1
    else:
        chosen = composite_of(composite, options, options.pop("stabilizer", 1e-6))
        ledger, rules, expand, rows = Ledger(subject.rows), relevance_rules(chosen), RELEVANCE_EXPAND, True
        ledger.unmet, ledger.rounds = chosen.unmet, True
    ledger.gives_back = back
    done = subject.run(rules, **{"expand": expand, "rows": rows, "ledger": ledger, **plan})
    ledger.targets = done.score.shape[1]
    return done
