"""Attribution of a metric over a whole data set to its features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.captum.base import Attribution
from whence.captum.calls import check, filled, numbers
from whence.captum.features import Features


def _together(accum: Any, current_output: Any, current_inputs: Any) -> Tensor:
    """All outputs, one batch after the other."""
    output = numbers(current_output)
    return output if accum is None else torch.cat([accum, output])


class DataLoaderAttribution(Attribution):
    """A perturbation method on a metric of a whole data set: features are replaced in every batch."""

    def __init__(self, attr_method: Attribution) -> None:
        super().__init__(attr_method.forward_func)
        self.attr_method = attr_method

    def attribute(
        self,
        dataloader: Any,
        input_roles: tuple[int, ...] | None = None,
        baselines: Any = None,
        feature_mask: Any = None,
        reduce: Callable[..., Any] | None = None,
        to_metric: Callable[..., Any] | None = None,
        perturbations_per_pass: int = 1,
        show_progress: bool = False,
        return_input_shape: bool = True,
    ) -> Any:
        first = next(iter(dataloader))
        several = isinstance(first, tuple | list)
        items = tuple(first) if several else (first,)
        roles = input_roles or (0,) * len(items)
        check(len(roles) == len(items), f"There are {len(roles)} input_roles for {len(items)} items of a batch.")
        check(
            all(role in (0, 1, 2) for role in roles),
            "input_roles are 0 (explained), 1 (passed on as it is) or 2 (left out).",
        )
        check(0 in roles, "No item of a batch is explained.\n  Give one of them the role 0.")
        explained = [x for x, role in zip(items, roles, strict=True) if role == 0]
        xs = tuple(x[:1] for x in explained)
        for part in (feature_mask, baselines):
            for one in part if isinstance(part, tuple) else (part,):
                check(not isinstance(one, Tensor) or len(one) == 1, "The first dimension of masks and baselines is 1.")
        features, starts = Features.of(xs, feature_mask), filled(baselines, xs)

        def metric(present: Tensor) -> Tensor:
            rows = [self._metric(dataloader, roles, features, starts, one, reduce, to_metric) for one in present]
            return torch.stack([row.reshape(-1) for row in rows])

        plain = self.attr_method.forward_func
        self.attr_method.forward_func = metric
        try:
            shown = {"show_progress": True} if show_progress else {}
            values = self.attr_method.attribute(
                torch.ones(1, features.count, device="cpu"),
                baselines=0,
                perturbations_per_eval=perturbations_per_pass,
                **shown,
            )
        finally:
            self.attr_method.forward_func = plain
        flat = values.reshape(-1, features.count)
        if not return_input_shape:
            return flat
        formed = [features.spread(flat, i, 1) for i in range(len(xs))]
        return tuple(formed) if several else formed[0]

    def _metric(
        self, dataloader: Any, roles: Any, features: Features, starts: Any, present: Tensor, reduce: Any, to_metric: Any
    ) -> Tensor:
        """The metric of the whole data set with some of its features."""
        accum: Any = None
        for batch in dataloader:
            items = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
            given, number = [], 0
            for item, role in zip(items, roles, strict=True):
                if role == 0:
                    keep = features.there(present[None] > 0.5, number)[0]
                    given.append(torch.where(keep, item, starts[number].to(item)))
                    number += 1
                elif role == 1:
                    given.append(item)
            with torch.no_grad():
                output = self.forward_func(*given)
            accum = (reduce or _together)(accum, output, items)
        metric = accum if to_metric is None else to_metric(accum)
        check(isinstance(metric, Tensor), f"The metric is {metric!r}.\n  reduce or to_metric must give a tensor.")
        return metric
