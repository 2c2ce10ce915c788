"""The engine: families, rules, liveness, what it cannot see, and the trace."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import whence
from tests.support.models import CASES, close
from whence.engine.ops import FAMILIES, GROUP, family_of, spelling

G = torch.Generator().manual_seed(0)
W, V = torch.randn(4, 8, generator=G).double(), torch.randn(8, 3, generator=G).double()
X = torch.randn(2, 4, generator=G).double()


def guided(model: Any, x: Tensor = X, **options: Any) -> whence.Attribution:
    return whence.explain(model, x.clone(), method="guided_backprop", target=0, **options)


TRUTH = guided(lambda x: F.relu(x @ W) @ V).values
PLAIN = whence.explain(lambda x: F.relu(x @ W) @ V, X, method="gradient", target=0).values


def test_truth_and_plain_differ() -> None:
    assert not torch.allclose(TRUTH, PLAIN)


# ---- spellings and families ----


@pytest.mark.parametrize(
    ("function", "name", "writes"),
    [
        (torch.relu, "relu", False),
        (Tensor.relu_, "relu", True),
        (F.relu, "relu", False),
        (torch.ops.aten.relu_.default, "relu", True),
        (Tensor.__iadd__, "add", True),
        (Tensor.__rsub__, "sub", False),
        (Tensor.__rdiv__, "rdiv", False),
        (Tensor.__setitem__, "setitem", True),
        (Tensor.T.__get__, "T", False),
        (Tensor.float, "float", False),
        (F._threshold, "threshold", False),
    ],
)
def test_spelling(function: Any, name: str, writes: bool) -> None:
    found = spelling(function)
    assert (found.name, found.writes, found.metadata) == (name, writes, False)


@pytest.mark.parametrize("function", [Tensor.shape.__get__, Tensor.size, Tensor.__len__, Tensor.dim, Tensor.item])
def test_metadata_is_left_alone(function: Any) -> None:
    assert spelling(function).metadata


def test_family_depends_on_what_is_live() -> None:
    a, b = torch.ones(2, 2), torch.ones(2, 2)
    assert family_of("mul", (a, b), {}, [a]) == "scale"
    assert family_of("mul", (a, b), {}, [a, b]) == "multiply"
    assert family_of("mul", (a, a), {}, [a]) == "multiply"
    assert family_of("matmul", (a, b), {}, [a]) == "linear"
    assert family_of("matmul", (a, b), {}, [a, b]) == "matmul"
    assert family_of("div", (a, b), {}, [a]) == "scale"
    assert family_of("div", (a, b), {}, [b]) == "reciprocal"
    assert family_of("div", (a, b), {}, [a, b]) == "divide"
    assert family_of("rdiv", (a, 1), {}, [a]) == "reciprocal"
    assert family_of("addmm", (b, a, b), {}, [a]) == "linear"
    assert family_of("clamp", (a, 0), {}, [a]) == "relu"
    assert family_of("clamp", (a,), {"min": 0, "max": 6}, [a]) == "relu6"
    assert family_of("clamp", (a,), {"min": -1}, [a]) == "clamp"
    assert family_of("einsum", ("ij,jk->ik", a, b), {}, [a]) == "linear"
    assert family_of("something_new", (a,), {}, [a]) == "something_new"


def test_no_spelling_has_two_families() -> None:
    seen = [word for families in FAMILIES.values() for spellings in families.values() for word in spellings.split()]
    assert len(seen) == len(set(seen))
    assert all(GROUP[family] == group for group, families in FAMILIES.items() for family in families)


# ---- rules ----


def test_user_rules_are_merged_over_the_methods_own() -> None:
    def stop(call: whence.Call, m: Tensor) -> Tensor:
        return torch.zeros_like(m)

    blocked = guided(lambda x: F.relu(x @ W) @ V + 2 * x[:, :3], rules={"relu": stop}).values
    expected = torch.zeros_like(X)
    expected[:, 0] = 2
    close(blocked, expected, 1e-12)


def test_a_rule_by_group_and_by_star() -> None:
    calls = []

    def spy(call: whence.Call, m: Tensor) -> Any:
        calls.append((call.family, call.name, call.path))
        return call.vjp(m)

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    plain = whence.explain(model, X, method="gradient", target=0).values
    close(whence.explain(model, X, method="gradient", target=0, rules={"elementwise": spy}).values, plain, 1e-14)
    assert calls == [("tanh", "tanh", "1")]
    close(whence.explain(model, X, method="gradient", target=0, rules={"*": spy}).values, plain, 1e-14)
    assert {family for family, _, _ in calls} >= {"linear", "tanh"}


@pytest.mark.parametrize("name", CASES)
def test_the_derivative_as_a_rule_for_every_op_is_the_gradient(name: str) -> None:
    """Each op runs in a node of its own and is pulled back by its own vjp: nothing may change."""

    def own(call: whence.Call, m: Any) -> Any:
        return call.vjp(m)

    model, inputs = CASES[name].make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", whence.WhenceWarning)
        plain = whence.explain(model, inputs, method="gradient", target=1)
        ruled = whence.explain(model, inputs, method="gradient", target=1, rules={"*": own})
    close(ruled.raw, plain.raw, 1e-12 if CASES[name].rtol < 1e-9 else 1e-6)


def test_a_rule_of_the_wrong_shape_is_named() -> None:
    def wrong(call: whence.Call, m: Tensor) -> Tensor:
        return m[:, :1]

    with pytest.raises(whence.RuleError, match=r"'wrong' for 'relu'.*returned \[\(2, 1\)\].*\[\(2, 8\)\]"):
        guided(lambda x: F.relu(x @ W) @ V, rules={"relu": wrong})


def test_a_rule_sees_its_live_inputs_and_output() -> None:
    def halves(call: whence.Call, m: Tensor) -> Any:
        a, b = call.x
        close(call.y, a @ b, 1e-14)
        ga, gb = call.vjp(m)
        return ga / 2, gb / 2

    def model(x: Tensor) -> Tensor:
        return ((x @ W) @ (x @ W).T)[:, :1]

    plain = whence.explain(model, X[:1], method="gradient").values
    halved = whence.explain(model, X[:1], method="gradient", rules={"matmul": halves}).values
    close(halved, plain / 2, 1e-12)


def test_a_rule_can_read_an_input_that_the_model_overwrites() -> None:
    def reads(call: whence.Call, m: Tensor) -> Tensor:
        return m * call.x[0]

    def model(x: Tensor) -> Tensor:
        h = x @ W
        y = F.relu(h)
        h.zero_()
        return y @ V

    close(guided(model).values, TRUTH, 1e-12)
    found = guided(model, rules={"relu": reads}).values
    close(found, guided(lambda x: F.relu(x @ W) @ V, rules={"relu": reads}).values, 1e-12)


def test_ops_without_a_rule_are_in_the_receipt_or_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = Head()

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(x @ W))

    class Head(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.logsumexp(x @ V, 1, keepdim=True)

    a = guided(Net())
    assert a.receipt["unruled"] == [{"op": "logsumexp", "path": "head", "count": 1}]
    with pytest.raises(whence.NoRule, match=r"no rule for 'logsumexp' \(met in head\)(.|\n)*rules=\{\"logsumexp\""):
        guided(Net(), unruled="error")
    b = guided(Net(), unruled="error", rules={"logsumexp": whence.derivative})
    assert torch.equal(a.values, b.values)
    # the gradient's rule for every op is the derivative
    assert not whence.explain(Net(), X, method="gradient", unruled="error").receipt["unruled"]


# ---- in place, views, reuse ----


def test_in_place_forms_on_views_and_buffers_of_the_models_own() -> None:
    def into_a_buffer(x: Tensor) -> Tensor:
        store = torch.empty(2, 8).double()
        store.copy_(x @ W)
        store.relu_()
        return store @ V

    def by_columns(x: Tensor) -> Tensor:
        h = x @ W
        out = torch.zeros_like(h)
        out[:, :4] = h[:, :4].relu()
        out[:, 4:] = h[:, 4:].relu_()
        return out @ V

    def on_the_input(x: Tensor) -> Tensor:
        x.mul_(2)
        x /= 2
        return F.relu(x @ W) @ V

    for model in (into_a_buffer, by_columns, on_the_input):
        close(guided(model).values, TRUTH, 1e-12)


def test_models_that_overwrite_what_autograd_needs_are_explained_all_the_same() -> None:
    def model(x: Tensor) -> Tensor:
        h = torch.sigmoid(x @ W)
        h += 1  # sigmoid's backward needs its result
        return h @ V

    x = X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(model(x)[:, 0].sum(), x)
    truth = whence.explain(lambda x: (torch.sigmoid(x @ W) + 1) @ V, X, method="gradient", target=0)
    found = whence.explain(model, X, method="gradient", target=0)
    close(found.values, truth.values, 1e-12)


def test_the_callers_tensors_are_never_written_to() -> None:
    ids = torch.tensor([[1, 2, 3]])
    table = nn.Embedding(5, 4).double()

    def model(input_ids: Tensor, extra: Tensor) -> Tensor:
        input_ids[:, 0] = 4
        extra.zero_()
        return table(input_ids).sum(1)

    extra = torch.ones(1, 3, dtype=torch.float64)
    whence.explain(model, {"input_ids": ids, "extra": extra}, wrt="input_ids", method="gradient", target=0)
    assert ids.tolist() == [[1, 2, 3]]
    assert bool((extra == 1).all())


def test_buffers_attributes_and_lists_that_a_model_changes_are_put_back() -> None:
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros(1))
            self.register_buffer("memory", torch.zeros(2, 8).double())
            self.register_buffer("mean", torch.zeros(8).double())
            self.register_buffer("var", torch.ones(8).double())
            self.seen: list[Tensor] = []
            self.count = 0
            self.embed = nn.Embedding(3, 8, max_norm=0.1).double()

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            self.count += 1
            h = F.batch_norm(x @ W, self.mean, self.var, training=True)
            self.memory.copy_(h)
            self.seen.append(h)
            self.last = h
            self.embed(torch.tensor([0, 1]))
            return F.relu(self.memory) @ V

    model = Stateful()
    weight = model.embed.weight.detach().clone()
    whence.explain(model, X, method="guided_backprop")
    assert model.steps.item() == 0
    assert model.count == 0
    assert model.seen == []
    assert not hasattr(model, "last")
    assert not model.memory.requires_grad
    assert bool((model.memory == 0).all())
    assert bool((model.mean == 0).all())
    assert bool((model.var == 1).all())
    assert torch.equal(model.embed.weight, weight)


# ---- what the engine cannot see ----


class Rectify(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (ctx.saved_tensors[0] > 0)


def in_a_thread(x: Tensor) -> Tensor:
    out: list[Tensor] = []
    thread = threading.Thread(target=lambda: out.append(F.relu(x)))
    thread.start()
    thread.join()
    return out[0]


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(nn.ReLU(), torch.randn(2, 8).double())


UNSEEN = {
    "vmap": (lambda: torch.vmap(F.relu), "ReluBackward0"),
    "thread": (lambda: in_a_thread, "ReluBackward0"),
    "jit.trace": (scripted, "ReluBackward0"),
}


@pytest.mark.parametrize("kind", UNSEEN)
def test_the_audit_names_ops_that_the_mode_never_saw(kind: str) -> None:
    make, node = UNSEEN[kind]
    act = make()

    def model(x: Tensor) -> Tensor:
        return act(x @ W) @ V

    with pytest.warns(whence.WhenceWarning, match=f"could not see.*{node}"):
        a = guided(model)
    assert [item["node"] for item in a.receipt["unseen"]] == [node]
    close(a.values, PLAIN, 1e-12)
    with pytest.raises(whence.NoRule, match=node):
        guided(model, unruled="error")
    # a rectifier behind it is live all the same
    with pytest.warns(whence.WhenceWarning, match="could not see"):
        behind = guided(lambda x: F.relu(act(x @ W) @ V @ V.T) @ V)
    assert {"op": "relu", "rule": "positive_both", "count": 1} in behind.receipt["ops"]
    # for the gradient, whatever autograd does is right: nothing to warn of
    close(whence.explain(model, X, method="gradient", target=0).values, PLAIN, 1e-12)


def test_an_unseen_op_at_the_very_end_is_named_too() -> None:
    with pytest.warns(whence.WhenceWarning, match="before the output"):
        guided(lambda x: torch.vmap(torch.tanh)(F.relu(x @ W) @ V))


def test_constants_from_unseen_ops_are_not_taken_for_live() -> None:
    weight = nn.Parameter(W)
    a = guided(lambda x: F.relu(x @ Rectify.apply(weight * 1)) @ V)
    assert a.receipt["unseen"] == []
    assert {"op": "linear", "rule": "autograd", "count": 2} in a.receipt["ops"]


def test_checkpoints() -> None:
    def act(x: Tensor) -> Tensor:
        return F.relu(x @ W)

    close(guided(lambda x: checkpoint(act, x, use_reentrant=False) @ V).values, TRUTH, 1e-12)
    again = lambda x: checkpoint(act, x, use_reentrant=True) @ V  # noqa: E731
    close(guided(again).values, TRUTH, 1e-12)
    close(whence.explain(again, X, method="gradient", target=0).values, PLAIN, 1e-12)


# ---- functions of the model's own ----


class Bent(torch.autograd.Function):
    """x·σ(1.7 x) with a derivative of its own, in torch's newer form."""

    @staticmethod
    def forward(x: Tensor, by: float) -> Tensor:
        return x * torch.sigmoid(by * x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.by = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        s = torch.sigmoid(ctx.by * ctx.saved_tensors[0])
        return g * (s + ctx.by * ctx.saved_tensors[0] * s * (1 - s)), None


class Mixing(torch.autograd.Function):
    """Not entry by entry, and its derivative refuses, as that of a reversible layer in eval mode does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x.detach())
        with torch.no_grad():
            return torch.relu(x @ weight) * x.sigmoid().sum(1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        raise AssertionError("train mode only")


class Remembering(torch.autograd.Function):
    """Keeps in a cache of the caller's what it saw, as a reversible layer does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, past: list[Tensor]) -> Tensor:
        past.append(x.detach())
        ctx.save_for_backward(x)
        return torch.cat(past).relu()  # of another shape the second time

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * (ctx.saved_tensors[0] > 0), None


OF_ITS_OWN = {
    "remembering": (lambda x: Remembering.apply(x, []), F.relu),
    "rectifier": (lambda x: Rectify.apply(x), F.relu),
    "bound before": (Rectify.apply, F.relu),
    "bent": (lambda x: Bent.apply(x, 1.7), lambda x: x * torch.sigmoid(1.7 * x)),
    "mixing": (
        lambda x: Mixing.apply(x, W.T @ W),
        lambda x: torch.relu(x @ (W.T @ W)) * x.sigmoid().sum(1, keepdim=True),
    ),
}


@pytest.mark.parametrize("kind", OF_ITS_OWN)
@pytest.mark.parametrize("method", ["gradient", "integrated_gradients", "deeplift", "lrp", "guided_backprop"])
def test_functions_of_the_models_own_are_seen(kind: str, method: str) -> None:
    own, plain = (lambda x, act=act: act(x @ W) @ V for act in OF_ITS_OWN[kind])
    before = torch.autograd.Function.__dict__["apply"].__func__.__code__
    a = whence.explain(own, X, method=method, target=0)
    assert torch.autograd.Function.__dict__["apply"].__func__.__code__ is before
    assert a.receipt["unseen"] == [] or method in ("gradient", "integrated_gradients")
    assert a.gap is None or float(a.gap.max()) < (1e-2 if method == "integrated_gradients" else 1e-12)
    if kind != "bent" or method in ("gradient", "deeplift"):  # as one op, no product of two
        close(a.values, whence.explain(plain, X, method=method, target=0).values, 1e-9)


class Competing(torch.autograd.Function):
    """A softmax over the channels of images, which takes nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert x.dim() == 4
        y = x.softmax(1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(1, keepdim=True))


@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("method", ["deeplift", "lrp", "guided_backprop"])
def test_a_function_that_mixes_channels_is_no_function_of_entries(method: str, width: int) -> None:
    own, plain = (lambda x, act=act: act(x).flatten(1).square() for act in (Competing.apply, lambda x: x.softmax(1)))
    images = torch.rand(2, 4, width, width, dtype=torch.float64)
    a, b = (whence.explain(model, images, method=method, target=0) for model in (own, plain))
    close(a.values, b.values, 1e-12)


class Halves(torch.autograd.Function):
    """A rectifier of signals that takes no vectors."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert x.dim() == 2
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g * (ctx.saved_tensors[0] > 0)


def test_a_function_of_entries_need_not_take_every_shape() -> None:
    a = whence.explain(lambda x: Halves.apply(x @ W) @ V, X, method="deeplift", target=0)
    close(a.values, whence.explain(lambda x: F.relu(x @ W) @ V, X, method="deeplift", target=0).values, 1e-12)


def test_a_function_of_the_models_own_is_one_op_of_the_family_that_computes_the_same() -> None:
    ops = guided(lambda x: Rectify.apply(x @ W) @ V).receipt["ops"]
    assert {"op": "relu", "rule": "positive_both", "count": 1} in ops
    a = whence.explain(lambda x: Bent.apply(x @ W, 1.7) @ V, X, method="lrp", target=0)
    assert {"op": "custom", "rule": "identity", "count": 1} in a.receipt["ops"]


def test_functions_in_other_threads_are_left_alone() -> None:
    found: list[Tensor] = []

    def model(x: Tensor) -> Tensor:
        thread = threading.Thread(target=lambda: found.append(Rectify.apply(torch.ones(2, device="cpu"))))
        thread.start()
        thread.join()
        return F.relu(x @ W) @ V

    close(guided(model).values, TRUTH, 1e-12)
    assert len(found) >= 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_and_parallel_wrappers_are_opened() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x @ W) @ V

    close(guided(torch.compile(Net())).values, TRUTH, 1e-12)
    close(guided(nn.DataParallel(Net())).values, TRUTH, 1e-12)


def test_a_model_that_differentiates_inside_itself() -> None:
    """An energy model: its output is a derivative of its own inside."""

    def model(x: Tensor) -> Tensor:
        inner = x.detach().requires_grad_()
        (force,) = torch.autograd.grad(torch.tanh(inner @ W).sum(), inner)
        return (x * force).sum(1, keepdim=True)

    def force(x: Tensor) -> Tensor:
        return (1 - torch.tanh(x @ W) ** 2) @ W.T

    close(whence.explain(model, X, method="gradient").values, force(X), 1e-12)


def test_a_ruled_op_cannot_be_differentiated_twice_in_silence() -> None:
    def model(x: Tensor) -> Tensor:
        (g,) = torch.autograd.grad(F.relu(x @ W).square().sum(), x, create_graph=True)
        return g.sum(1, keepdim=True)

    whence.explain(model, X, method="gradient")
    with pytest.raises(whence.RuleError, match="differentiates 'relu' .* twice"):
        guided(model)


def test_a_model_that_differentiates_inside_itself_computes_what_it_always_does() -> None:
    def model(x: Tensor) -> Tensor:
        (force,) = torch.autograd.grad((F.relu(x @ W) @ V).sum(), x, retain_graph=True)
        return force + 0 * x

    x = X.clone().requires_grad_()
    close(guided(model).output_value, model(x)[:, 0].detach(), 1e-14)


# ---- trace ----


def test_trace_prints_op_module_rule_and_shape(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = CASES["residual_cnn"].make()
    found = whence.trace(model, x, method="guided_backprop")
    printed = capsys.readouterr().out
    lines = {line.split()[0]: line.split() for line in printed.splitlines()}
    assert lines["op"] == ["op", "family", "module", "rule", "shape"]
    assert lines["batch_norm"][1:] == ["batch_norm", "inner", "autograd", "3×6×5×5"]
    assert lines["max_pool2d"][1:] == ["max_pool", "pool", "derivative", "3×6×5×5"]
    assert [s.path for s in found if s.family == "relu"] == ["relu", "", "relu"]
    assert str(found) in printed
    assert repr(found) == f"Trace(guided_backprop, {len(found)} ops)"


def test_trace_takes_the_methods_parameters_and_the_calls_options() -> None:
    model, x = CASES["mlp_functional"].make()
    found = whence.trace(model, x, method="gradient", relu="softplus", target=1, show=False)
    assert [s.rule for s in found if s.family == "relu"] == ["softplus", "softplus"]


# ---- laws ----


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.floats(-3, 3), st.floats(-3, 3))
def test_the_gradient_is_linear_in_the_model(seed: int, a: float, b: float) -> None:
    g = torch.Generator().manual_seed(seed)
    w, v, x = (torch.randn(s, generator=g).double() for s in ((4, 5), (4, 5), (3, 4)))

    def first(x: Tensor) -> Tensor:
        return torch.tanh(x @ w).sum(1)

    def second(x: Tensor) -> Tensor:
        return F.relu(x @ v).prod(1)

    def mixed(x: Tensor) -> Tensor:
        return a * first(x) + b * second(x)

    one, two, both = (whence.explain(f, x, method="gradient").values for f in (first, second, mixed))
    assert torch.allclose(both, a * one + b * two, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 6))
def test_guided_backprop_of_a_positive_net_is_the_gradient(seed: int, width: int, rows: int) -> None:
    """With no negative weight, no signal is ever negative: there is nothing to discard."""
    g = torch.Generator().manual_seed(seed)
    w, v = torch.rand(4, width, generator=g).double(), torch.rand(width, 2, generator=g).double()
    x = torch.randn(rows, 4, generator=g).double()

    def model(x: Tensor) -> Tensor:
        return F.relu(x @ w) @ v

    plain = whence.explain(model, x, method="gradient", target=0).values
    assert torch.equal(guided(model, x).values, plain)


@pytest.mark.parametrize(
    "method", ["gradient", "integrated_gradients", "deeplift", "lrp", "guided_backprop", "occlusion"]
)
def test_a_function_that_writes_into_buffers_of_its_own_is_one_op(method: str) -> None:
    """torch's own CrossMapLRN2d resizes a tensor and calls ops with out=. (In other sizes its derivative is wrong.)"""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 2, 3), nn.ReLU(), nn.CrossMapLRN2d(5, alpha=0.5), nn.Flatten(), nn.Linear(32, 3)]
    model = nn.Sequential(*layers).double().eval()
    plain = nn.Sequential(*layers[:2], nn.LocalResponseNorm(5, alpha=0.5), *layers[3:]).double().eval()
    images = torch.randn(3, 3, 6, 6, dtype=torch.float64)
    a, b = (whence.explain(m, images, method=method, target=0) for m in (model, plain))
    if method not in ("deeplift", "lrp"):  # which treat the norm's own ops
        close(a.values, b.values, 2e-3 if method == "integrated_gradients" else 1e-9)
    assert a.gap is None or float(a.gap.max()) < (1e-2 if method == "integrated_gradients" else 1e-4)
    one = whence.explain(model, images[1:2], method=method, target=0)
    close(a.values[1:2], one.values, 2e-3 if method == "integrated_gradients" else 1e-9)
    if method == "lrp":
        with pytest.raises(whence.NoRule, match="CrossMapLRN2d"):
            whence.explain(model, images, method=method, target=0, unruled="error")
