"""How: watch one forward pass of an unmodified model op by op, and pull signals back through it. Knows no method.

`Flow` is a `TorchFunctionMode`. Each call that the model makes goes through it:

    flow              the mode: name the op, expand it if it is fused, run it, hand it to the trackers
      ops             spellings as data: F.relu, Tensor.relu_ and nn.ReLU are the family "relu"
      arguments       keyword arguments where the op would have them by position
      operands        which arguments are live, which are constants, what stands in for them
      liveness        what depends on explained values; ops that the mode never saw, found in the graph
      expand/         fused ops written out in plain ones
      custom_functions  the model's own autograd functions
    call              what a rule sees of one op: inputs, output, derivative, reference
      nodes           the two autograd functions that let a rule replace an op's backward
    tape              a reference pass, recorded op by op and replayed against
    trackers/         facts about values, followed from op to op: rows, tokens, modality, provenance, ordering
    plan              what a pass can be asked for
    leaves, hooks     where explained values enter; which module runs
    captures          values that are read or replaced on the way, attention found by what it computes
    log               what the ops of a pass got, for the receipt and the trace
    scope             the model and torch as they were when an explanation closes
      snapshot, global_state, inplace    what is kept for that

A rule is a function `(call, signal) -> signals for the live inputs`; a table of rules by family is a method.
"""

from whence.engine.call import Call, Rule, derivative
from whence.engine.flow import Flow

__all__ = ["Call", "Flow", "Rule", "derivative"]
