"""Values inside of a model: what a module gives in a pass, and the score's gradient by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from whence.engine.call import derivative
from whence.engine.captures import Site
from whence.engine.places import Place, place
from whence.errors import InputError
from whence.subject.checks import independent
from whence.subject.passes import IN_PLACE, stacked

if TYPE_CHECKING:
    from whence.subject.subject import Subject


@dataclass(frozen=True, eq=False)
class Inside:
    """A module's first floating output, or input, in one call, and the score's gradient by it."""

    site: Site
    value: Tensor  # (rows, …)
    gradient: Tensor  # (rows, k, …)


def read(subject: Subject, at: str, *, copies: bool = False) -> Inside:
    """One pass over the subject's values, and back to the place `at`, everything by the derivative."""
    where = place(at)
    done = subject.run({"*": derivative}, wants=lambda s: s.kind == where.side and s.path == where.path, copies=copies)
    site = one_call(where, list(done.captured))
    if site not in done.edges or not done.score.requires_grad:
        raise independent(subject)
    try:
        columns = done.columns([done.edges[site]])
    except RuntimeError as error:
        if copies or IN_PLACE not in str(error):
            raise
        return read(subject, at, copies=True)  # written for inference
    value = done.captured[site]
    return Inside(site, value, stacked(value, [column[0] for column in columns]))


def one_call(where: Place, sites: list[Site]) -> Site:
    """The call that is meant, which has to happen, and only once if it was not said which."""
    if where.call is None and len(sites) > 1:
        raise InputError(
            f"at={str(where)!r}: this module runs {len(sites)} times in one forward pass.\n"
            f"  Say which call is meant: {where.calls(len(sites), 'at=')}."
        )
    site = next((site for site in sites if site.call == (where.call or 1)), None)
    if site is None:
        raise InputError(
            f"at={str(where)!r}: the module {where.path!r} gave a tensor {len(sites)} times in this forward pass.\n"
            "  Name a module that runs, and a call that happens (the first one is @1)."
        )
    return site
