"""SmoothGrad: a method averaged over noisy copies of the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from whence.errors import MethodError, warn
from whence.methods import method, methods
from whence.methods.answer import Answer
from whence.registry import Bounds
from whence.subject import Subject, baselines
from whence.subject.noise import deviations, gaussian
from whence.util.checks import not_allowed
from whence.util.progress import steps


@method(
    "smoothgrad",
    paper="Smilkov et al. 2017, arXiv:1706.03825",
    order=20,
    aliases=("sg", "smooth_gradient", "noise_tunnel"),
    slope=True,
)
def smoothgrad(
    subject: Subject,
    *,
    of: str = "gradient",
    of_params: Any = None,
    samples: Annotated[int, Bounds(low=1)] = 25,
    noise: Any = 0.15,
    relative: bool = True,
    kind: Literal["mean", "square", "variance"] = "mean",
) -> Answer:
    """The mean of another method over noisy copies of the input, E[φ(x+ε)], ε ~ N(0, (noise·range)²).

    The range is each row's own, over real units; `relative=False` takes `noise` as the standard deviation itself, and a
    dict or tuple has one for each input. `kind="square"` averages φ², `kind="variance"` gives the variance; `of` names
    any other method and `of_params` its parameters. The explained class is the clean input's.
    """
    of, preset = methods.resolve(of)
    inner = methods[of]
    if inner.name == "smoothgrad":
        raise MethodError("smoothgrad of smoothgrad is smoothgrad with more noise.\n  Name another method with of=.")
    if (inner.facts.get("reference") or inner.facts.get("integral")) and not subject.baselines:
        subject = replace(subject, baselines=baselines.default(subject, inner.facts)).resolved()
    pinned = subject.pinned()
    params = inner.check({**preset, **_params(of_params)})
    scale = deviations(pinned, noise, relative)
    if relative and noise:
        _warn_of_no_noise(pinned, scale, of)
    overall: dict[str, Any] = {}
    mean: dict[str, Tensor] = {}
    spread: dict[str, Tensor] = {}  # sum of squared distances from the mean
    for first, copies in steps(list(_groups(pinned, samples)), pinned.progress, "smoothgrad"):
        noisy = _noisy(pinned, scale, range(first, first + copies))
        returned = inner.function(noisy, **params)
        answer = returned if isinstance(returned, Answer) else Answer(returned)
        overall |= answer.overall
        for key, values in answer.values.items():
            each = values.unflatten(0, (copies, pinned.rows))  # (copies, rows, k, …)
            here = each.mean(0)
            difference = here - mean.get(key, here)
            mean[key] = mean.get(key, here) + difference * (copies / (first + copies))
            within = (each - here).square().sum(0)
            spread[key] = spread.get(key, 0) + within + difference.square() * (first * copies / (first + copies))
    variance = {key: value / samples for key, value in spread.items()}
    square = {key: v + mean[key].square() for key, v in variance.items()}
    statistic = {"mean": mean, "variance": variance, "square": square}[kind]
    return Answer(statistic, per_row={"noise_deviation": _deviations(scale, pinned.rows)}, overall=overall)


def _params(given: Any) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise not_allowed("of_params", given, "a dict of the inner method's parameters", "smoothgrad")
    return dict(given or {})


def _groups(subject: Subject, samples: int) -> Iterator[tuple[int, int]]:
    """Samples in groups that fit in one forward pass: (first, how many).

    Several copies of a row in one pass need everything that goes with it copied too: without a batch size that is only
    done where nothing goes with it.
    """
    alone = len(subject.inputs) == 1 and not callable(subject.target)
    most = max(1, (subject.batch_size or (max(subject.rows, 8) if alone else subject.rows)) // subject.rows)
    for first in range(0, samples, most):
        yield first, min(most, samples - first)


def _noisy(subject: Subject, scale: dict[str, Tensor], samples: range) -> Subject:
    """Copies of all rows, one after the other, each with its own noise."""
    draws = [gaussian(subject, sample) for sample in samples]
    values = {
        key: torch.cat([value + scale[key] * draw[key] for draw in draws]) for key, value in subject.values.items()
    }
    return subject.take(torch.arange(subject.rows, device="cpu").repeat(len(samples))).valued(values)


def _deviations(scale: dict[str, Tensor], rows: int) -> list[Any]:
    """Each row's standard deviation of the noise, by explained value where there are several."""
    by_key = {key: deviation.flatten().tolist() for key, deviation in scale.items()}
    if len(by_key) == 1:
        return next(iter(by_key.values()))
    return [{key: by_key[key][row] for key in by_key} for row in range(rows)]


def _warn_of_no_noise(subject: Subject, scale: dict[str, Tensor], of: str) -> None:
    """Rows whose values do not differ get no noise."""
    rows = range(subject.rows)
    for key, by_row in ((key, deviation.flatten().tolist()) for key, deviation in scale.items()):
        still = [subject.row_numbers[row] for row in rows if by_row[row] == 0]
        if still:
            warn(
                f"smoothgrad: all values of {key!r} are the same in {{rows}}, so their range is 0 and no noise was "
                f"added there: the answer is that of {of} without noise. Add noise of your own to the input, or use "
                f"{of}.",
                still,
            )
