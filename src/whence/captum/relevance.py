"""Layer-wise relevance propagation with Captum's rules, which are set on modules: `model.layer.rule = GammaRule()`."""

from __future__ import annotations

from collections.abc import Callable
from glob import escape
from typing import Any

from torch import Tensor, nn

from whence.captum.base import GradientAttribution, LayerAttribution, row_sums
from whence.captum.calls import Tensors, arguments, as_tuple, like, read_target, run, select
from whence.captum.views import FromLayer, Scores, explained, read_layer
from whence.util.terminal import say


class PropagationRule:
    """Which rule of Whence's a module gets, with its options."""

    STABILITY_FACTOR = 1e-9
    rule: tuple[str, dict[str, float]] | None = None


class EpsilonRule(PropagationRule):
    """LRP-ε."""

    def __init__(self, epsilon: float = 1e-9) -> None:
        self.epsilon = epsilon
        self.rule = ("epsilon", {"epsilon": epsilon})


class GammaRule(PropagationRule):
    """LRP-γ."""

    def __init__(self, gamma: float = 0.25, set_bias_to_zero: bool = False) -> None:
        self.gamma, self.set_bias_to_zero = gamma, set_bias_to_zero
        self.rule = ("gamma", {"gamma": gamma})


class Alpha1_Beta0_Rule(PropagationRule):
    """LRP-αβ with α = 1 and β = 0."""

    def __init__(self, set_bias_to_zero: bool = False) -> None:
        self.set_bias_to_zero = set_bias_to_zero
        self.rule = ("alpha_beta", {"alpha": 1.0, "beta": 0.0})


class IdentityRule(EpsilonRule):
    """Relevance passes as it is: what Whence's rules do at every elementwise function."""

    def __init__(self, epsilon: float = 1e-9) -> None:
        self.epsilon, self.rule = epsilon, None


class LRP(GradientAttribution):
    """`lrp` from the score itself, by LRP-ε unless a module has another rule; every op is followed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.model = model

    @property
    def multiplies_by_inputs(self) -> bool:
        return True

    def has_convergence_delta(self) -> bool:
        return True

    def attribute(
        self,
        inputs: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        verbose: bool = False,
    ) -> Any:
        xs, args = as_tuple(inputs), arguments(additional_forward_args)
        values = self._relevance(self.forward_func, xs, args, target)
        if verbose:
            self._say()
        if not return_convergence_delta:
            return like(values, inputs)
        return like(values, inputs), self.compute_convergence_delta(values, self._score(xs, args, target))

    def compute_convergence_delta(self, attributions: Any, output: Tensor) -> Tensor:
        """The score minus the sum of its relevance: what biases and stabilisers took."""
        return row_sums(output) - sum(row_sums(value) for value in as_tuple(attributions, "attributions"))

    def _relevance(self, function: Callable[..., Any], xs: Tensors, args: tuple[Any, ...], target: Any) -> Tensors:
        """The relevance of each input of a function: the model, or the model from a layer on."""
        own = {f"path:{escape(path)}": rule for path, rule in self._rules(Scores(function, xs, args, target))}
        table = {"linear": "epsilon", "convolution": "epsilon", "add": "proportional", **own}
        return explained(
            function, xs, args, target, "lrp", composite=table, start="logit", epsilon=1e-9, stabilizer=1e-9
        )

    def _rules(self, view: nn.Module) -> list[tuple[str, Any]]:
        """The rules that modules have, by the path that the engine will know them by."""
        found = []
        for path, module in view.named_modules():
            given = getattr(module, "rule", None)
            if given is None:
                continue
            if not hasattr(given, "rule") and not _of_captum(given):
                raise TypeError(
                    f"The rule of {path!r} is {type(given)}.\n  Give a PropagationRule, such as EpsilonRule()."
                )
            rule = given.rule if hasattr(given, "rule") else _of_captum(given)
            if rule is not None and not list(module.children()):
                found.append((path, rule))
        return found

    def _score(self, xs: Tensors, args: tuple[Any, ...], target: Any) -> Tensor:
        return select(run(self.forward_func, *xs, *args), read_target(target))

    def _say(self) -> None:
        for path, module in self.model.named_modules():
            if not list(module.children()):
                given = getattr(module, "rule", None)
                say(f"{path or 'model'} ({type(module).__name__}): {type(given or EpsilonRule()).__name__}")


def _of_captum(rule: Any) -> Any:
    """A rule object of Captum's own package, by its name."""
    known: dict[str, type[PropagationRule]] = {
        kind.__name__: kind for kind in (EpsilonRule, GammaRule, Alpha1_Beta0_Rule, IdentityRule)
    }
    if type(rule).__name__ not in known:
        return None
    names = {"epsilon": "STABILITY_FACTOR", "gamma": "gamma"}
    made = known[type(rule).__name__]()
    if made.rule is None:
        return ("epsilon", {"epsilon": 1e-9})
    name, options = made.rule
    return name, {key: getattr(rule, names.get(key, key), value) for key, value in options.items()}


class LayerLRP(LRP, LayerAttribution):
    """The relevance of a layer's values: of its output, or of its input."""

    def __init__(self, model: nn.Module, layer: Any) -> None:
        LayerAttribution.__init__(self, model, layer)
        self.model = model

    def attribute(
        self,
        inputs: Any,
        target: Any = None,
        additional_forward_args: Any = None,
        return_convergence_delta: bool = False,
        attribute_to_layer_input: bool = False,
        verbose: bool = False,
    ) -> Any:
        call = (*as_tuple(inputs), *arguments(additional_forward_args))
        several = isinstance(self.layer, list)
        found, deltas = [], []
        for module in self.layer if several else [self.layer]:
            layer = read_layer(self.forward_func, call, module, attribute_to_layer_input)
            values = self._relevance(FromLayer(self.forward_func, (layer,)), layer.values, call, target)
            found.append(layer.form(values))
            if return_convergence_delta:
                deltas.append(self.compute_convergence_delta(tuple(values), self._score(call, (), target)))
        if verbose:
            self._say()
        answer = found if several else found[0]
        if not return_convergence_delta:
            return answer
        return answer, deltas if several else deltas[0]
