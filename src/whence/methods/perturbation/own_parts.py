"""The user's own similarity, sampling and linear model in LIME, checked."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whence.errors import ParameterError
from whence.methods.perturbation.coalitions import Coalitions, Players, listed
from whence.subject.noise import generator

_CHUNK = 64  # samples whose perturbed inputs are held at a time


@dataclass(frozen=True, eq=False)
class Own:
    """What the user gave; None where LIME's own serves."""

    similarity: Any = None
    sample: Any = None
    regressor: Any = None

    def check(self, ridge: float) -> None:
        """Raise where a part cannot be used."""
        for name in ("similarity", "sample"):
            part = getattr(self, name)
            if part is not None and not callable(part):
                raise ParameterError(f"lime: {name}={part!r} cannot be called.\n  Give a function, or leave it out.")
        if self.regressor is not None and not callable(getattr(self.regressor, "fit", None)):
            raise ParameterError(
                f"lime: regressor={self.regressor!r} cannot be fitted.\n"
                "  Give a linear regressor with fit(X, y, sample_weight=…) and coef_, such as scikit-learn's Lasso."
            )
        if self.regressor is not None and ridge:
            raise ParameterError(
                "lime: ridge= is for LIME's own regression, but regressor= is given.\n  Give one of them."
            )

    def masks(self, game: Players, n: int, row: int) -> tuple[Coalitions, Tensor]:
        """The masks of one row, (m, n)."""
        drawn = self.sample(_inputs(game, self._x(game, row)), n, generator(game.subject, row))
        z = torch.as_tensor(drawn, device="cpu")
        if z.dim() != 2 or z.shape[1] != n or len(z) < 2 or not bool(((z == 0) | (z == 1)).all()):
            raise ParameterError(
                f"lime: sample= returned the shape {tuple(z.shape)} for {n} units.\n"
                f"  It must return at least two masks of zeros and ones, (m, {n}): 1 where a unit is there."
            )
        z = z.bool()
        return listed(z), z

    def weights(self, game: Players, z: Tensor, row: int) -> Tensor:
        """The similarity of one row's samples to it, (m,)."""
        x, found = _inputs(game, self._x(game, row)), []
        for some in z.split(1 if game.subject.whole else _CHUNK):
            inside = torch.cat([some, some.new_ones(len(some), game.numbers.most + 1 - some.shape[1])], 1)
            rows = None if game.subject.whole else torch.full((len(some),), row, device="cpu")
            weight = self.similarity(x, _inputs(game, game.values(rows, inside)), some.double())
            weight = torch.as_tensor(weight, dtype=torch.float64, device="cpu").detach().flatten()
            if len(weight) != len(some) or not bool((torch.isfinite(weight) & (weight >= 0)).all()):
                raise ParameterError(
                    f"lime: similarity= returned {len(weight)} numbers for {len(some)} samples.\n"
                    "  It must return one finite weight of at least 0 for each of them."
                )
            found.append(weight)
        return torch.cat(found)

    def fitted(self, z: Tensor, v: Tensor, weights: Tensor) -> Tensor:
        """The coefficients (rows, n, k) of copies of the user's model, for scores v (rows, m, k)."""
        features, found = z.double().numpy(), z.new_empty((len(v), z.shape[1], v.shape[2]), dtype=torch.float64)
        for row in range(len(v)):
            for k in range(v.shape[2]):
                model = copy.deepcopy(self.regressor)
                model.fit(features, v[row, :, k].numpy(), sample_weight=weights[row].numpy())
                coefficients = torch.as_tensor(getattr(model, "coef_", ()), dtype=torch.float64, device="cpu").flatten()
                if len(coefficients) != z.shape[1]:
                    raise ParameterError(
                        f"lime: regressor= has {len(coefficients)} coefficients after its fit, not {z.shape[1]}.\n"
                        "  Give a linear regressor, which has one for each unit in coef_."
                    )
                found[row, :, k] = coefficients
        return found

    @staticmethod
    def _x(game: Players, row: int) -> dict[str, Tensor]:
        values = game.subject.values
        return dict(values) if game.subject.whole else {key: x[row : row + 1] for key, x in values.items()}


def _inputs(game: Players, values: dict[str, Tensor]) -> Any:
    """Explained values in the user's form: a tensor, a tuple or a dict."""
    if len(values) == 1:
        return next(iter(values.values()))
    return values if game.subject.form == "dict" else tuple(values.values())
