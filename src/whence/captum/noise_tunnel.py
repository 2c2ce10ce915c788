"""NoiseTunnel: any attribution of this package over noisy copies of the inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.captum.base import Attribution
from whence.captum.calls import as_tuple, check, like, more_targets, repeated

KINDS = ("smoothgrad", "smoothgrad_sq", "vargrad")


class NoiseTunnel(Attribution):
    """The mean of an attribution over noisy inputs, of its square, or its variance (SmoothGrad and its kin)."""

    def __init__(self, attribution_method: Attribution) -> None:
        super().__init__(attribution_method.forward_func)
        self.attribution_method = attribution_method
        self.is_delta_supported = attribution_method.has_convergence_delta()

    @property
    def multiplies_by_inputs(self) -> bool:
        return self.attribution_method.multiplies_by_inputs

    def has_convergence_delta(self) -> bool:
        return self.is_delta_supported

    def attribute(
        self,
        inputs: Any,
        nt_type: str = "smoothgrad",
        nt_samples: int = 5,
        nt_samples_batch_size: int | None = None,
        stdevs: Any = 1.0,
        draw_baseline_from_distrib: bool = False,
        **kwargs: Any,
    ) -> Any:
        check(nt_type in KINDS, f"nt_type={nt_type!r} is not known.\n  Give one of {', '.join(KINDS)}.")
        check(nt_samples >= 1, f"nt_samples={nt_samples} is not allowed.\n  Give a whole number of at least 1.")
        xs = as_tuple(inputs)
        deviations = stdevs if isinstance(stdevs, tuple) else (stdevs,) * len(xs)
        check(len(deviations) == len(xs), f"There are {len(deviations)} stdevs for {len(xs)} inputs.")
        asks_delta = bool(kwargs.get("return_convergence_delta")) and self.is_delta_supported
        at_once = min(nt_samples, nt_samples_batch_size or nt_samples)
        sums: list[Tensor] = []
        squares: list[Tensor] = []
        deltas: list[Tensor] = []
        form: Any = None
        for first in range(0, nt_samples, at_once):
            copies = min(at_once, nt_samples - first)
            noisy = tuple(_noisy(x, copies, deviation) for x, deviation in zip(xs, deviations, strict=True))
            own = _expanded(kwargs, xs, copies, draw_baseline_from_distrib)
            found = self.attribution_method.attribute(like(noisy, inputs), **own)
            if asks_delta:
                found, delta = found
                deltas.append(delta)
            form = found
            values = [v.detach().unflatten(0, (-1, copies)) for v in (found if isinstance(found, tuple) else (found,))]
            sums = [v.sum(1) + (sums[i] if first else 0) for i, v in enumerate(values)]
            squares = [v.square().sum(1) + (squares[i] if first else 0) for i, v in enumerate(values)]
        means, of_squares = ([total / nt_samples for total in some] for some in (sums, squares))
        kinds = {
            "smoothgrad": means,
            "smoothgrad_sq": of_squares,
            "vargrad": [square - mean.square() for square, mean in zip(of_squares, means, strict=True)],
        }
        answer = tuple(kinds[nt_type]) if isinstance(form, tuple) else kinds[nt_type][0]
        return (answer, torch.cat(deltas)) if asks_delta else answer


def _noisy(x: Tensor, copies: int, deviation: float) -> Tensor:
    """Each row so many times, with noise of its own."""
    several = repeated(x.detach(), copies, rows_together=True)
    return several + torch.normal(0, deviation, several.shape, device=x.device).to(several.dtype)


def _expanded(kwargs: dict[str, Any], xs: tuple[Tensor, ...], copies: int, draw: bool) -> dict[str, Any]:
    """The arguments of `attribute` for so many copies of each row."""
    rows, own = len(xs[0]), dict(kwargs)
    if own.get("additional_forward_args") is not None:
        args = own["additional_forward_args"]
        more = [repeated(a, copies, rows_together=True) for a in (args if isinstance(args, tuple) else (args,))]
        own["additional_forward_args"] = tuple(more)
    if own.get("target") is not None:
        own["target"] = more_targets(own["target"], copies, rows_together=True)
    for name in ("baselines", "feature_mask"):
        given = own.get(name)
        if given is None or callable(given):
            continue
        parts = [_with_rows(part, rows, copies, draw and name == "baselines") for part in _several(given)]
        own[name] = tuple(parts) if isinstance(given, tuple) else parts[0]
    return own


def _several(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)


def _with_rows(value: Any, rows: int, copies: int, draw: bool) -> Any:
    """A baseline or a mask for copies of rows: repeated where it has a row for each, drawn where it is to be."""
    if not isinstance(value, Tensor):
        return value
    if draw:
        return value[torch.randint(len(value), (rows * copies,), device="cpu")]
    return repeated(value, copies, rows_together=True) if len(value) == rows and rows > 1 else value
