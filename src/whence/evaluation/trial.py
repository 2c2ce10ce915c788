"""Every method tried on a few rows, for what it costs and whether it works, without spending more than a budget."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from torch import Tensor, nn

from whence.errors import InputError, MethodError
from whence.evaluation.answers.explanations import Explainer, Ranker, scores_or_error
from whence.evaluation.answers.logits import of_examples
from whence.evaluation.examples import Example

_ROWS = 8  # that cheap methods are tried on
_SHARE, _ONE = 0.3, 0.05  # of the budget: for all trials, and for one method's


class Clock:
    """A budget of seconds, running."""

    def __init__(self, seconds: float) -> None:
        self.start, self.seconds = time.perf_counter(), seconds

    def now(self) -> float:
        return time.perf_counter() - self.start

    def left(self) -> float:
        return max(0.0, self.seconds - self.now())


class OutOfTime(BaseException):
    """Raised by a pass that begins too late; no Exception, so that nothing takes it for a row's or a method's own."""


@contextmanager
def stopped(root: Any, after: float) -> Iterator[None]:
    """End what runs the model at the first pass that begins after so many seconds; the hook goes with the block."""
    if not isinstance(root, nn.Module):
        yield
        return
    end = time.perf_counter() + after

    def check(*_: Any) -> None:
        if time.perf_counter() > end:
            raise OutOfTime

    hook = root.register_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()


def tried(
    examples: Sequence[Example], lines: Sequence[Ranker], explainer: Explainer, clock: Clock
) -> tuple[dict[str, float], dict[str, str]]:
    """Seconds that each method takes for a row, and why some are left out."""
    scored = ((example, logits) for example in examples if (logits := _logits(example)) is not None)
    some = list(islice(scored, _ROWS))
    if not some:
        raise InputError("The model has no score for any of the rows.\n  See evaluate() for why.")
    rows, targets = [example for example, _ in some], [int(logits.argmax()) for _, logits in some]
    cost: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for line in lines:
        if cost and clock.now() > _SHARE * clock.seconds:
            left_out[line.name] = "the budget does not allow to try it"
            continue
        one = _ONE * clock.seconds if cost else clock.seconds
        try:
            with stopped(rows[0].root, one):
                cost[line.name] = _seconds(explainer, line, rows, targets, one)
        except OutOfTime:
            left_out[line.name] = f"more than {one:.3g} s for one row do not fit into the budget"
        except Exception as error:
            left_out[line.name] = str(error).split("\n")[0]
    if not cost:
        raise MethodError(f"None of the methods works here. The first: {next(iter(left_out.values()))}")
    return cost, left_out


def _seconds(explainer: Explainer, line: Ranker, rows: Sequence[Example], targets: Sequence[int], most: float) -> float:
    """Of one row: of the first one alone, and, where that was cheap, of all, because the first time is slow."""
    seconds = 0.0
    for count in (1, len(rows)):
        start = time.perf_counter()
        found = explainer.of_rows(line, rows[:count], targets[:count])
        seconds = (time.perf_counter() - start) / count
        scores = scores_or_error(rows[0], found[0])
        if isinstance(scores, Exception):
            raise scores
        if seconds * len(rows) > most / 2:
            break
    return seconds


def _logits(example: Example) -> Tensor | None:
    """A row's logits; rows without are left for `evaluate` to report."""
    try:
        return of_examples([example], None)[0]
    except Exception:
        return None
