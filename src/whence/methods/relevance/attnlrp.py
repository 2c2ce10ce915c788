"""AttnLRP and CP-LRP: relevance x ⊙ m with a multiplier that is a modified gradient, as cheap as one."""

from __future__ import annotations

from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.relevance.account import account
from whence.methods.relevance.passes import Positions, relevance_pass
from whence.subject import Subject


@method("attnlrp", paper="Achtibat et al. 2024, arXiv:2402.05602", order=70)
def attnlrp(subject: Subject, *, positions: Positions = "token") -> Answer:
    """Products share evenly, elementwise functions take y/x, norms hold their scale, softmax takes its derivative.

    `positions="drop"` loses what position and segment embeddings have, as `lrp` does.
    """
    return _relevance(subject, positions)


@method("cp_lrp", paper="Ali et al. 2022, arXiv:2202.07304", order=70)
def cp_lrp(subject: Subject, *, positions: Positions = "token") -> Answer:
    """AttnLRP with attention and gates held constant: all relevance goes through the values."""
    return _relevance(subject, positions)


def _relevance(subject: Subject, positions: Positions) -> Answer:
    done = relevance_pass(subject, subject.method, {}, positions, ahead=True)
    relevance = {key: m * done.x[key] for key, m in done.pull().items()}
    return Answer(relevance, per_row=account(subject, done.plan.ledger, done, relevance, done.score.detach()))
