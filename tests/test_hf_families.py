"""The gradient as a rule for every op, with everything fused written out, equals autograd on every family."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import whence
from benchmarks.families import FAMILIES as BENCHMARKED
from benchmarks.families.check import METHODS, Cell, blame, examine
from tests.support.engine import EVERY, OWN, all_equal, gradients, run
from tests.support.hf import FAMILIES
from tests.support.models import close
from tests.support.slow import mostly_slow
from whence.engine.captures import Site

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # DeBERTa's own
PAIRS = [pytest.param(name, kind, id=f"{name}-{kind}") for name, family in FAMILIES.items() for kind in family.kinds]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_rules_for_every_op_give_autograds_gradient(name: str, kind: str) -> None:
    family = FAMILIES[name]
    model, inputs = family.build(kind), family.inputs()
    plain_score, plain = gradients(model, inputs, target=family.target)
    score, ruled = gradients(model, inputs, OWN, target=family.target, expand=EVERY)
    close(score, plain_score, 1e-10)
    all_equal(ruled, plain, 1e-12)
    with torch.no_grad():
        output = model(**{key: value.clone() for key, value in inputs.items()})
    close(score[:, 0], read(output, family.target), 1e-10)


def read(output: Any, target: Any) -> Tensor:
    if callable(target):
        return target(output)
    return output.logits[(slice(None), *target)] if isinstance(target, tuple) else output.logits[:, target]


def attention(site: Site) -> bool:
    return site.kind == "attention"


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.attends])
def test_captured_attention_is_the_models_own(name: str) -> None:
    """Against what the eager model itself reports, through default attention where there is such."""
    family = FAMILIES[name]
    inputs = family.inputs()
    done = run(family.build(family.kinds[0]), inputs, target=family.target, expand=EVERY, wants=attention)
    found = [t.detach() for t in done.captured.values()]
    eager = family.build("eager")
    with torch.no_grad():
        output = eager(**{key: value.clone() for key, value in inputs.items()}, output_attentions=True)
    reported = own_attentions(output)
    assert reported
    if name not in ("swin", "lxmert"):  # these report some of their maps only
        assert len(found) == len(reported)
    for theirs in reported:
        alike = [t.reshape(theirs.shape) for t in found if t.numel() == theirs.numel()]  # DeBERTa joins rows and heads
        apart = [float((mine - theirs).abs().max()) for mine in alike]
        assert min(apart, default=1.0) <= 2e-6


def own_attentions(output: object) -> list[Tensor]:
    """Every attention map in a model's output, in whatever fields."""
    found: list[Tensor] = []
    for key, value in output.items():  # type: ignore[attr-defined]
        if "attentions" in key and value is not None:
            found += list(value) if isinstance(value, tuple) else [value]
        elif hasattr(value, "items"):
            found += own_attentions(value)
    return found


# ---- benchmarks/families: every cell of a few families, as `make families` fills it ----

OK = dict.fromkeys(METHODS, "ok")
NONE = {method: "clear error" if number > 4 else "ok" for number, method in enumerate(METHODS)}


@pytest.mark.parametrize(
    ("name", "expected"),
    mostly_slow(
        [("bert, tags", OK), ("bart", OK), ("vit", OK), ("clip", OK), ("packed lstm", NONE), ("graph net", NONE)],
        [("bert, tags", OK), ("packed lstm", NONE), ("graph net", NONE)],
    ),
)
def test_every_method_agrees_with_what_is_computed_without_whence(name: str, expected: dict[str, str]) -> None:
    cells: dict[str, Cell] = {}
    examine(BENCHMARKED[name], cells.__setitem__)
    assert {method: cell.verdict for method, cell in cells.items()} == expected, cells
    assert all(cells[method].compared for method in METHODS[:4])
    assert cells["rollout"].compared == (expected is OK)


def test_an_error_of_our_own_is_a_raw_traceback_wrapped_or_not() -> None:
    def born_here(wrapped: bool) -> BaseException:
        try:
            try:
                return whence.engine.trackers.rows.RowAxis(0, 1, 3).sums(None)  # type: ignore[arg-type, return-value]
            except Exception as cause:
                if wrapped:
                    raise whence.errors.ModelError("the model failed") from cause
                raise
        except Exception as error:
            return error

    assert blame(born_here(wrapped=False))[0] == blame(born_here(wrapped=True))[0] == "raw traceback"
    with pytest.raises(whence.errors.MethodError) as caught:
        whence.methods["no such method"]
    assert blame(caught.value)[0] == "clear error"
