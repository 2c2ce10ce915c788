"""Linear models of the score over features: LIME with any sampling, similarity and model; KernelSHAP."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from whence.captum.base import PerturbationAttribution
from whence.captum.calls import (
    arguments,
    as_tuple,
    check,
    filled,
    like,
    more_targets,
    read_target,
    repeated,
    run,
    select,
)  # fmt: skip
from whence.captum.features import Features, Presence, by_feature


class SkLearnLinearModel:
    """A linear model of scikit-learn's, by its name, with the interface that LIME needs."""

    def __init__(self, kind: str, **options: Any) -> None:
        self.kind, self.options = kind, options
        self.fitted: Any = None

    def fit(self, train_data: Any, **kwargs: Any) -> dict[str, Any]:
        """Fit to batches of (features, scores, weights)."""
        from sklearn import linear_model

        x, y, weight = (torch.cat(parts).detach().double().cpu().numpy() for parts in zip(*train_data, strict=True))
        self.fitted = getattr(linear_model, self.kind)(**self.options).fit(x, y, sample_weight=weight)
        return {}

    def representation(self) -> Tensor:
        """The coefficients, (1, n)."""
        return torch.as_tensor(self.fitted.coef_, device="cpu").reshape(1, -1)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.fitted.predict(x.double().numpy()), device="cpu")


class SkLearnLasso(SkLearnLinearModel):
    """Least squares with an L1 penalty."""

    def __init__(self, **options: Any) -> None:
        super().__init__("Lasso", **options)


class SkLearnRidge(SkLearnLinearModel):
    """Least squares with an L2 penalty."""

    def __init__(self, **options: Any) -> None:
        super().__init__("Ridge", **options)


class SkLearnLinearRegression(SkLearnLinearModel):
    """Least squares."""

    def __init__(self, **options: Any) -> None:
        super().__init__("LinearRegression", **options)


def get_exp_kernel_similarity_function(distance_mode: str = "cosine", kernel_width: float = 1.0) -> Any:
    """The similarity exp(−d²/2w²) of an input and its perturbation, d their cosine or Euclidean distance."""

    def similarity(original_inp: Any, perturbed_inp: Any, _: Any, **kwargs: Any) -> float:
        one, other = (
            torch.cat([t.flatten().double() for t in as_tuple(some)]) for some in (original_inp, perturbed_inp)
        )
        if distance_mode == "cosine":
            distance = 1 - float(torch.cosine_similarity(one, other, dim=0))
        elif distance_mode == "euclidean":
            distance = float((one - other).norm())
        else:
            raise ValueError(f'distance_mode={distance_mode!r} is not known.\n  Give "cosine" or "euclidean".')
        return math.exp(-(distance**2) / (2 * kernel_width**2))

    return similarity


def default_perturb_func(original_inp: Any, **kwargs: Any) -> Tensor:
    """A sample in which each feature is there with probability ½, (1, n)."""
    x = as_tuple(original_inp)[0]
    return torch.bernoulli(torch.full((1, kwargs["num_interp_features"]), 0.5, device=x.device)).long()


def default_from_interp_rep_transform(curr_sample: Tensor, original_inp: Any, **kwargs: Any) -> Any:
    """The input in which the missing features have their baseline's values."""
    xs, masks = as_tuple(original_inp), kwargs["feature_mask"]
    masks = masks if isinstance(masks, tuple) else (masks,)
    made = [
        torch.where(curr_sample[0].bool()[mask.long()], x, start)
        for x, mask, start in zip(xs, masks, filled(kwargs["baselines"], xs), strict=True)
    ]
    return like(made, original_inp)


class LimeBase(PerturbationAttribution):
    """A model fitted to the scores of samples near the input, each with its similarity as weight."""

    def __init__(
        self,
        forward_func: Callable[..., Any],
        interpretable_model: Any,
        similarity_func: Callable[..., Any],
        perturb_func: Callable[..., Any],
        perturb_interpretable_space: bool,
        from_interp_rep_transform: Callable[..., Any] | None,
        to_interp_rep_transform: Callable[..., Any] | None,
    ) -> None:
        super().__init__(forward_func)
        self.interpretable_model, self.similarity_func = interpretable_model, similarity_func
        self.perturb_func, self.perturb_interpretable_space = perturb_func, perturb_interpretable_space
        self.from_interp_rep_transform = from_interp_rep_transform
        self.to_interp_rep_transform = to_interp_rep_transform
        missing = from_interp_rep_transform if perturb_interpretable_space else to_interp_rep_transform
        way = "from" if perturb_interpretable_space else "to"
        check(missing is not None, f"{way}_interp_rep_transform is needed with this perturb_interpretable_space.")

    def attribute(
        self,
        inputs: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        n_samples: int = 50,
        perturbations_per_eval: int = 1,
        show_progress: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        with torch.no_grad():
            rows, perturbed, weights = [], [], []
            for sample, x in self._samples(inputs, n_samples, kwargs):
                rows.append(sample.reshape(1, -1))
                perturbed.append(x)
                weights.append(float(self.similarity_func(inputs, x, sample, **kwargs)))
            scores = self._scores(perturbed, target, arguments(additional_forward_args), perturbations_per_eval,
                                  show_progress)  # fmt: skip
            device = as_tuple(inputs)[0].device
            data = TensorDataset(torch.cat(rows).to(torch.float), scores, torch.tensor(weights, device=device))
        self.interpretable_model.fit(DataLoader(data, batch_size=max(1, len(rows))))
        return self.interpretable_model.representation()

    def _samples(self, inputs: Any, count: int, kwargs: dict[str, Any]) -> Iterator[tuple[Tensor, Any]]:
        """Samples as features and as inputs."""
        draws = self.perturb_func(inputs, **kwargs) if inspect.isgeneratorfunction(self.perturb_func) else None
        for _ in range(count):
            if draws is None:
                drawn = self.perturb_func(inputs, **kwargs)
                if inspect.isgenerator(drawn):
                    draws, drawn = drawn, next(drawn, None)
            else:
                drawn = next(draws, None)
            if drawn is None:  # the generator has no more
                return
            if self.perturb_interpretable_space:
                assert self.from_interp_rep_transform is not None
                yield drawn, self.from_interp_rep_transform(drawn, inputs, **kwargs)
            else:
                assert self.to_interp_rep_transform is not None
                yield self.to_interp_rep_transform(drawn, inputs, **kwargs), drawn

    def _scores(self, perturbed: list[Any], target: Any, args: tuple[Any, ...], per_eval: int, show: bool) -> Tensor:
        """One score for each perturbed input."""
        check(
            isinstance(per_eval, int) and per_eval >= 1,
            f"perturbations_per_eval={per_eval!r} is not allowed.\n  Give a whole number of at least 1.",
        )
        starts: Any = range(0, len(perturbed), per_eval)
        if show:
            from tqdm import tqdm

            starts = tqdm(starts, desc=f"{self.get_name()} attribution")
        found = []
        for first in starts:
            some = [as_tuple(x) for x in perturbed[first : first + per_eval]]
            together = tuple(torch.cat(parts) for parts in zip(*some, strict=True))
            more = tuple(repeated(arg, len(some)) for arg in args)
            wanted = read_target(more_targets(target, len(some)))
            score = select(run(self.forward_func, *together, *more), wanted).reshape(-1)
            check(
                len(score) == len(some),
                f"The forward function gave {len(score)} scores for {len(some)} samples.\n"
                "  It must give one number for each row, or one for the whole batch.",
            )
            found.append(score)
        return torch.cat(found)

    @property
    def multiplies_by_inputs(self) -> bool:
        return False

    def has_convergence_delta(self) -> bool:
        return False


class Lime(LimeBase):
    """LIME over features: samples of features that are there or at their baseline, by default fitted by a Lasso."""

    def __init__(
        self,
        forward_func: Callable[..., Any],
        interpretable_model: Any = None,
        similarity_func: Callable[..., Any] | None = None,
        perturb_func: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(
            forward_func,
            interpretable_model or SkLearnLinearModel("Lasso", alpha=0.01),
            similarity_func or get_exp_kernel_similarity_function(),
            perturb_func or default_perturb_func,
            True,
            default_from_interp_rep_transform,
            None,
        )

    def attribute(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        n_samples: int = 25,
        perturbations_per_eval: int = 1,
        return_input_shape: bool = True,
        show_progress: bool = False,
    ) -> Any:
        fit = super().attribute

        def fitted(xs: Any, features: Features, starts: Any, wanted: Any, args: tuple[Any, ...]) -> Tensor:
            options = {"baselines": starts, "feature_mask": features.index, "num_interp_features": features.count}
            found = fit(xs, wanted, args or None, n_samples, perturbations_per_eval, show_progress, **options)
            return found.reshape(1, -1)

        return self._by_rows(
            inputs, baselines, target, additional_forward_args, feature_mask, return_input_shape, fitted
        )

    def _by_rows(
        self, inputs: Any, baselines: Any, target: Any, additional: Any, mask: Any, input_shape: bool, fitted: Any
    ) -> Any:
        """One model for the batch where it has one score, else one for each row."""
        xs, args = tuple(x.detach() for x in as_tuple(inputs)), arguments(additional)
        starts, features, rows = filled(baselines, xs, loose=True), Features.of(xs, mask), len(xs[0])
        output = select(run(self.forward_func, *xs, *args), read_target(target))
        check(
            output.numel() in (1, rows),
            f"The forward function gave the shape {tuple(output.shape)} for {rows} rows.\n"
            "  It must give one number for each row, or one for the whole batch.",
        )
        if output.numel() == 1 or rows == 1:
            found = fitted(like(xs, inputs), features, starts, target, args)
        else:
            read, parts = read_target(target), []
            for row in range(rows):
                some = like([x[row : row + 1] for x in xs], inputs)
                own = tuple(
                    a[row : row + 1] if isinstance(a, Tensor) and a.dim() and len(a) == rows else a for a in args
                )
                index = tuple(i[row : row + 1] if len(i) == rows else i for i in features.index)
                wanted = tuple(read[row].tolist()) if isinstance(read, Tensor) else target
                mine = Features(index, features.count)
                parts.append(fitted(some, mine, tuple(s[row : row + 1] for s in starts), wanted, own))
            found = torch.cat(parts)
        found = found.to(xs[0].device, torch.float32)
        if not input_shape:
            return found
        return like([features.spread(found, i, rows if len(found) > 1 else 1) for i in range(len(xs))], inputs)


class KernelShap(Lime):
    """`kernel_shap`: Shapley values by least squares, exact where `n_samples` reach all coalitions."""

    def __init__(self, forward_func: Callable[..., Any]) -> None:
        super().__init__(
            forward_func, SkLearnLinearModel("LinearRegression"), self.kernel_shap_similarity_kernel,
            self.kernel_shap_perturb_generator,
        )  # fmt: skip

    def attribute(
        self,
        inputs: Any,
        baselines: Any = None,
        target: Any = None,
        additional_forward_args: Any = None,
        feature_mask: Any = None,
        n_samples: int = 25,
        perturbations_per_eval: int = 1,
        return_input_shape: bool = True,
        show_progress: bool = False,
    ) -> Any:
        def fitted(xs: Any, features: Features, starts: Any, wanted: Any, args: tuple[Any, ...]) -> Tensor:
            view = Presence(self.forward_func, as_tuple(xs), starts, features, args, wanted)
            return by_feature(
                view, "kernel_shap", perturbations_per_eval,
                show=show_progress, title=self.get_name(), runs=n_samples, samples=max(4, n_samples),
            )  # fmt: skip

        return self._by_rows(
            inputs, baselines, target, additional_forward_args, feature_mask, return_input_shape, fitted
        )

    def kernel_shap_similarity_kernel(self, _: Any, __: Any, interpretable_sample: Tensor, **kwargs: Any) -> Tensor:
        """The weight of a sample that is drawn by the kernel; nobody and everybody weigh so much that they hold."""
        some, all_of_them = int(interpretable_sample.sum()), kwargs["num_interp_features"]
        return torch.tensor([1.0 if 0 < some < all_of_them else 1e6], device="cpu")

    def kernel_shap_perturb_generator(self, original_inp: Any, **kwargs: Any) -> Iterator[Tensor]:
        """Everybody, nobody, then coalitions by the kernel's distribution over their sizes."""
        n, device = kwargs["num_interp_features"], as_tuple(original_inp)[0].device
        yield torch.ones(1, n, dtype=torch.long, device=device)
        yield torch.zeros(1, n, dtype=torch.long, device=device)
        sizes = torch.arange(1, n, dtype=torch.double, device="cpu")
        kernel = (n - 1) / (sizes * (n - sizes))
        while True:
            size = 1 + int(torch.multinomial(kernel, 1))
            sample = torch.zeros(1, n, dtype=torch.long, device=device)
            sample[0, torch.randperm(n, device="cpu")[:size]] = 1
            yield sample
