"""Modified backpropagation: the deconvolutional network and guided backpropagation.

They differ from the gradient at rectifiers only. At smooth activations (GELU, SiLU, ELU, …), which the papers do not
treat, the local derivative takes the place of the rectifier's step, and DeconvNet, which ignores the forward value,
passes the positive signal as it is.
"""

from __future__ import annotations

from torch import Tensor

from whence.engine.call import Call, Gradients, Rule, derivative
from whence.errors import warn
from whence.methods import method
from whence.subject import Subject

_SMOOTH = "elu celu selu gelu silu mish hardswish softplus".split()


def positive_signal(call: Call, m: Tensor) -> Tensor:
    """DeconvNet's rule: m⁺, whatever the forward value was."""
    return m.clamp(min=0).sum_to_size(call.inputs[0].shape)


def positive_evidence(call: Call, m: Tensor) -> Gradients:
    """Guided backprop's rule at a smooth activation: m⁺ times the local derivative."""
    return call.vjp(m.clamp(min=0))


def positive_both(call: Call, m: Tensor) -> Tensor:
    """Guided backprop's rule at a rectifier: m⁺·1[x>0] (and 0 where a capped one is full)."""
    (signal,) = call.vjp(m.clamp(min=0))
    assert signal is not None
    return signal * (call.x[0] > 0)  # exact zeros pass in some spellings of the derivative, and halve in others


def positive_part(call: Call, m: Tensor) -> Tensor:
    """Guided backprop's rule at a leaky rectifier: only its positive part counts, m⁺·1[x>0]."""
    return m.clamp(min=0) * (call.x[0] > 0)


def _table(relu: Rule, leaky: Rule, smooth: Rule) -> dict[str, Rule]:
    return {"relu": relu, "relu6": relu, "leaky_relu": leaky, **dict.fromkeys(_SMOOTH, smooth), "max": derivative}


GUIDED = _table(positive_both, positive_part, positive_evidence)
DECONVNET = _table(positive_signal, positive_signal, positive_signal)
# ops by which a rectifier is written out: where(x > 0, x, 0), (x + |x|) / 2, stack([x, 0]).amax(0)
_WRITTEN_OUT = frozenset("gt ge lt le abs sign floor max".split())


def pulled(subject: Subject, rules: dict[str, Rule]) -> dict[str, Tensor]:
    """The signal at the inputs under a table of rules; a warning where all rectifiers may be written out."""
    values, record = subject.run(rules).pull(), subject.record
    nothing = all(rules.get(family, derivative) is derivative for family, _ in record.ruled)
    if nothing and not subject.rules and record.families & _WRITTEN_OUT:
        warn(
            f"{subject.method}: met no ReLU and no smooth activation, so signals were the plain gradient's. If the "
            "model compares values with 0, as in torch.where(x > 0, x, 0), these rectifiers are not recognised: write "
            "torch.relu(x), or give a rule with rules=."
        )
    return values


@method(
    "deconvnet",
    paper="Zeiler & Fergus 2014, arXiv:1311.2901",
    order=30,
    aliases=("deconv", "deconvolution"),
    slope=True,
)
def deconvnet(subject: Subject) -> dict[str, Tensor]:
    """The gradient in which a ReLU passes every positive signal, m·1[m>0], and ignores its own forward value."""
    return pulled(subject, DECONVNET)


@method(
    "guided_backprop",
    paper="Springenberg et al. 2015, arXiv:1412.6806",
    order=30,
    aliases=("gbp", "guided_backpropagation"),
    slope=True,
)
def guided_backprop(subject: Subject) -> dict[str, Tensor]:
    """The gradient in which a ReLU passes positive signals of positive activations only, m·1[x>0]·1[m>0]."""
    return pulled(subject, GUIDED)
