"""The method that is taken where none is named: one table, by what a model is made of (see docs/measured.md)."""

from __future__ import annotations

from collections.abc import Callable

from whence.subject import Subject

OTHERWISE = "integrated_gradients"  # needs nothing but gradients

Choice = tuple[Callable[[Subject, bool], bool], str, str]  # whether it is one, of a pass and its attention; method; why
DEFAULTS: tuple[Choice, ...] = (
    (
        lambda subject, attends: bool(subject.record.unseen),
        OTHERWISE,
        "the model runs ops that no rule can reach, and this needs gradients only",
    ),
    (
        lambda subject, attends: "ids" in subject.input_roles.values(),
        "deeplift",
        "tokens are explained through their embedding, where it was as faithful as any and sums to the score's change",
    ),
    (
        lambda subject, attends: attends,
        "deeplift",
        "the model has attention, where it was as faithful as any and sums to the score's change",
    ),
    (
        lambda subject, attends: _has_kinks(subject),
        "deeplift",
        "the model has kinks (ReLU, max-pooling, …), where it was as faithful as an integral, exact, and far cheaper",
    ),
    (
        lambda subject, attends: True,
        OTHERWISE,
        "the model is smooth, so that its integral converges, and the receipt says how far",
    ),
)


def _has_kinks(subject: Subject) -> bool:
    from whence.methods.integrated.refinement import KINKS

    return bool(subject.record.families & KINKS)


def default(subject: Subject) -> tuple[str, str]:
    """The method for this subject, and why: one forward pass of its first row tells."""
    one = subject if callable(subject.target) or subject.rows == 1 else next(iter(subject.split(1)))
    done = one.run(attention=True)  # with a graph, which shows what the mode cannot see
    attends = done.flow.captures.attention > 0
    return next((method, why) for fits, method, why in DEFAULTS if fits(one, attends))
