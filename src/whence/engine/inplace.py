"""Small facts about calls: what they write to, what they make, whether they draw random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from whence.util.tree import tensors_in

SILENT_WRITES = frozenset({"batch_norm", "instance_norm", "native_batch_norm"})  # to their running statistics


def in_rows(result: Any) -> Any:
    """A batch norm's output whose signal comes back in rows of memory.

    Of a single row laid out channels last, as a patch embedding's is, torch 2.13 computes another derivative.
    """
    if isinstance(result, Tensor) and result.requires_grad and len(result) == 1:
        result.register_hook(Tensor.contiguous)
    return result


LENDS = frozenset("numpy array dlpack storage untyped_storage".split())
_RANDOM = frozenset(
    """rand randn randint randperm rand_like randn_like randint_like normal uniform random exponential geometric cauchy
    log_normal bernoulli multinomial poisson binomial rrelu gumbel_softmax fractional_max_pool2d fractional_max_pool3d
    trunc_normal kaiming_uniform kaiming_normal xavier_uniform xavier_normal""".split()
)
_RECURRENT = frozenset("lstm gru rnn_tanh rnn_relu".split())
_DROPOUTS = frozenset(
    """dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout native_dropout
    scaled_dot_product_attention multi_head_attention_forward""".split()
)
MAY_DRAW = _RANDOM | _RECURRENT | _DROPOUTS


def draws(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call, which may draw numbers, draws them from torch's own generators; yes where that is unclear."""
    if name in _RANDOM:
        return kwargs.get("generator") is None
    if name in _RECURRENT:
        return any(isinstance(a, float) and a > 0 for a in args)
    chance, training = {"scaled_dot_product_attention": (4, 99), "multi_head_attention_forward": (10, 13)}.get(
        name, (1, 2)
    )
    share = kwargs.get("dropout_p", args[chance] if len(args) > chance else 0.5 * (training < 99))
    trains = kwargs.get("training", kwargs.get("train", args[training] if len(args) > training else True))
    return share != 0 and trains is not False


def written_by(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterable[Tensor]:
    """The tensors that this call may write to."""
    if name in SILENT_WRITES:
        return (t for t in tensors_in(args[1:5]) if not isinstance(t, nn.Parameter))
    return tensors_in([target_of(args, kwargs), kwargs.get("out")])


def target_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What an in-place op writes to: a tensor, or for foreach ops a list of them."""
    return args[0] if args else None


def out_of_place(function: Callable[..., Any]) -> Callable[..., Tensor]:
    def run(*args: Any, **kwargs: Any) -> Tensor:
        first = target_of(args, kwargs)
        fresh: Tensor = first.clone()
        function(fresh, *args[1:], **kwargs)  # x.mul_(x): only the target is written to
        return fresh

    return run


def same(tensor: Tensor) -> Tensor:
    return tensor


def protected(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """`F.embedding(max_norm=...)` rescales its table in place without saying so: it gets a copy."""
    if name in ("embedding", "embedding_bag") and (args[3] if len(args) > 3 else kwargs.get("max_norm")) is not None:
        args = tuple(a.clone() if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)
    return args, kwargs
