"""Layer-wise relevance propagation: relevance starts at the score and every op hands it on to its inputs.

What a rule cannot hand on (to a bias, a stabiliser, an empty set of contributions, a constant operand) is written down:
`a.receipt["relevance"]` has it by layer and kind, and `whence.trace` by op.
"""

from __future__ import annotations

from typing import Any, Literal

from whence.methods import method
from whence.methods.answer import Answer
from whence.methods.relevance.account import account
from whence.methods.relevance.passes import Positions, relevance_pass
from whence.subject import Subject

Start = Literal["one", "logit"]


_NOTHING = (
    "All relevance was lost on the way; receipt['relevance'] shows where: under positive rules, where every "
    'contribution to the target is negative. Try composite="epsilon", which keeps both signs, or another target.'
)
_COMPOSITES = {f"lrp_{short}": {"composite": name} for short, name in {
    "eps": "epsilon", "epsilon": "epsilon", "gamma": "gamma", "alpha_beta": "alpha_beta", "z_plus": "z_plus",
}.items()}  # fmt: skip


@method(
    "lrp",
    paper="Bach et al. 2015, doi:10.1371/journal.pone.0130140; Chefer, Gur & Wolf 2021, arXiv:2012.09838",
    order=60,
    nothing=_NOTHING,
    aliases=_COMPOSITES,
)
def lrp(
    subject: Subject, *, composite: Any = "chefer", start: Start = "one", epsilon: float = 1e-6, gamma: float = 0.25,
    alpha: float = 2.0, beta: float = 1.0, low: Any = None, high: Any = None, stabilizer: float = 1e-6,
    positions: Positions = "token",
) -> Answer:  # fmt: skip
    """Relevance of each input: 1 (or the logit) at the score, handed on by one rule per op.

    `composite` says which: "chefer" (Transformer Attribution's rules), "orig" (its authors' baseline, which counts
    relevance twice), "epsilon", "gamma", "alpha_beta", "z_plus", "epsilon_plus", "epsilon_plus_flat",
    "epsilon_alpha2_beta1", "epsilon_alpha2_beta1_flat", "epsilon_gamma_box", or a table from "linear", "convolution",
    "first", "path:GLOB", "depth:A-B" and "add" to a rule's name or (name, options).

    Where ids are explained, what is added to a token's embedding at its own position (position and segment embeddings)
    gives its share to the token; `positions="drop"` loses it.
    """
    options = {"epsilon": epsilon, "gamma": gamma, "alpha": alpha, "beta": beta, "low": low, "high": high}
    done = relevance_pass(subject, composite, {**options, "stabilizer": stabilizer}, positions, ahead=True)
    scores = done.score.detach() if start == "logit" else None
    relevance = done.pull(start=scores)
    return Answer(relevance, per_row=account(subject, done.plan.ledger, done, relevance, scores))
