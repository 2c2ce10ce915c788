"""Faults that reviewers found, each as they found it."""

from __future__ import annotations

import functools
import gc
import threading
import warnings
import weakref
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.models import close
from whence.engine import scope

G = torch.Generator().manual_seed(0)
W, V = torch.randn(4, 8, generator=G).double(), torch.randn(8, 3, generator=G).double()
X = torch.randn(3, 4, generator=G).double()


def explain(model: Any, inputs: Any = X, method: str = "gradient", **options: Any) -> whence.Attribution:
    return whence.explain(model, inputs.clone() if isinstance(inputs, Tensor) else inputs, method=method, **options)


def own(call: Any, m: Any) -> Any:
    return call.vjp(m)


TRUTH = explain(lambda x: F.relu(x @ W) @ V, method="guided_backprop", target=0).values


# ---- what the engine cannot see ----


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x.clamp_(min=0)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (ctx.saved_tensors[0] > 0)


def test_an_unseen_op_that_writes_in_place_is_named() -> None:
    def ignores_result(x: Tensor) -> Tensor:
        h = x @ W
        InPlace.apply(h)
        return h @ V

    for model in (lambda x: InPlace.apply(x @ W) @ V, ignores_result):
        with pytest.raises(whence.NoRule, match="InPlaceBackward"):
            explain(model, method="guided_backprop", target=0, unruled="error")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_parts_are_run_as_they_were_written() -> None:
    part = torch.compile(lambda x: F.relu(x @ W), backend="eager")
    close(explain(lambda x: part(x) @ V, method="guided_backprop", target=0).values, TRUTH, 1e-12)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    plain = explain(model, method="guided_backprop", target=0).values
    model[1].compile(backend="eager")
    close(explain(model, method="guided_backprop", target=0).values, plain, 1e-12)


def test_weights_replaced_in_forward_are_the_ones_explained_and_are_put_back() -> None:
    class MaxNorm(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=0.1)
            return super().forward(x)

    class Clamped(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
            return super().forward(x)

    for kind in (MaxNorm, Clamped):
        model = kind(4, 3).double()
        before = model.weight.detach().clone()
        a = explain(model, target=0)
        assert torch.equal(model.weight, before)
        with torch.no_grad():
            close(a.output_value, model(X)[:, 0], 1e-12)


# ---- rules ----


@pytest.mark.parametrize(
    "relu",
    [
        F.relu,
        lambda x: x.clamp(min=0),
        lambda x: x.clamp_min(0),
        lambda x: torch.maximum(x, torch.zeros_like(x)),
        lambda x: torch.maximum(input=x, other=torch.zeros_like(x)),
        lambda x: x.max(other=torch.zeros_like(x)),
        lambda x: x.clamp(min=np.float32(0)),
        lambda x: torch.relu_(input=x * 1),
        F.relu6,
        lambda x: x.clamp(0, 6),
        F.leaky_relu,
    ],
)
def test_exact_zeros_pass_nothing_in_any_spelling(relu: Any) -> None:
    x = torch.tensor([[0.0, 1.0, -1.0]]).double()
    a = explain(lambda z: relu(z).sum(1), x, method="guided_backprop", unruled="error")
    assert a.values.tolist() == [[0.0, 1.0, 0.0]]


def test_rectifiers_that_broadcast_or_whose_slope_is_live() -> None:
    wide = explain(lambda x: torch.maximum(x[:, :1], torch.zeros(3, 8).double()).sum(1), method="deconvnet")
    assert wide.values.shape == X.shape
    explain(lambda x: F.prelu(x, x.mean().reshape(1)).sum(1), method="guided_backprop")


def test_clamp_between_tensors() -> None:
    low, high = torch.zeros(8).double(), torch.ones(8).double()
    explain(lambda x: (x @ W).clamp(low, high) @ V, method="guided_backprop")


@pytest.mark.parametrize("key", ["view", "index", "cast", "*", "linear", "add", "scale"])
def test_a_rule_on_views_or_in_place_sums_keeps_memory_tied(key: str) -> None:
    def writes_to_a_slice(x: Tensor) -> Tensor:
        h = x @ W
        h[:, :4].mul_(3)
        h.T[0].mul_(5)
        y = h.view(-1, 8).contiguous()
        y.mul_(2)
        return h @ V

    def adds_itself(x: Tensor) -> Tensor:
        y = x * 1
        y += y
        y.t_()
        y.t_()
        return y

    for model in (writes_to_a_slice, adds_itself):
        plain = explain(model, target=0).values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", whence.WhenceWarning)
            close(explain(model, target=0, rules={key: own}).values, plain, 1e-12)


def test_rules_by_spelling_group_and_qualified_name() -> None:
    def stop(call: Any, m: Any) -> Any:
        return [torch.zeros_like(x) for x in call.inputs]

    conv = nn.Conv1d(1, 2, 3).double()
    assert not explain(lambda x: conv(x[:, None]).sum((1, 2)), rules={"conv1d": stop}).values.any()
    assert not explain(lambda x: (x * 2).sum(1), rules={"mul": stop}).values.any()
    a = explain(lambda x: F.relu(x @ W) @ V, method="guided_backprop", target=0, rules={"elementwise": stop})
    assert not a.values.any()
    assert not explain(lambda x: torch.linalg.norm(x, dim=1), rules={"linalg_norm": stop}).values.any()


def test_a_rule_that_meets_no_op_is_said() -> None:
    with pytest.warns(whence.WhenceWarning, match=r"'gelu'.* met no op here"):
        explain(lambda x: F.relu(x @ W) @ V, target=0, rules={"gelu": own})


@pytest.mark.parametrize("given", [None, 1.0, "no", [1.0], lambda x: [x, x, x]])
def test_what_a_rule_gives_is_checked(given: Any) -> None:
    def rule(call: Any, m: Tensor) -> Any:
        return given(m) if callable(given) else given

    with pytest.raises(whence.RuleError, match="'rule' for 'relu'"):
        explain(lambda x: F.relu(x @ W) @ V, target=0, rules={"relu": rule})


def test_constants_and_our_own_scoring_are_not_unruled() -> None:
    def model(x: Tensor) -> Tensor:
        h = F.relu(x @ W)
        h = h + torch.zeros_like(h) * (h > 0) + h.new_zeros(8)
        with torch.no_grad():
            h.logsumexp(1)
        return h @ V

    a = explain(model, method="guided_backprop", unruled="error", output="probability")
    assert a.receipt["unruled"] == []


# ---- state ----


def test_passes_of_one_explanation_do_not_see_each_others_state() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.n = nn.Linear(4, 3).double(), 0
            self.register_buffer("total", torch.zeros(1).double())

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            self.total += 1
            return self.layer(x) * self.n * self.total

    model = Counting()
    plain = explain(model, target=0).values
    close(explain(model, target=0, batch_size=1).values, plain, 1e-12)
    close(explain(model, target=0, method="smoothgrad", noise=0.0, samples=3).values, plain, 1e-12)

    def random_inside(x: Tensor) -> Tensor:
        h = torch.sigmoid(x @ W)
        h *= torch.rand(8).double()  # overwrites what sigmoid needs: the pass is run again, with the same numbers
        return h @ V

    state = torch.get_rng_state()
    a = explain(random_inside, target=0)
    torch.set_rng_state(state)
    close(a.output_value, random_inside(X)[:, 0], 1e-12)
    torch.set_rng_state(state)
    scale = torch.rand(8).double()
    close(a.values, explain(lambda x: (torch.sigmoid(x @ W) * scale) @ V, target=0).values, 1e-12)


def test_sparse_buffers_views_and_what_else_a_module_may_hold() -> None:
    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("adjacency", torch.eye(3).double().to_sparse())
            self.register_buffer("nothing", torch.full((1,), float("nan")).expand(4))
            self.register_buffer("base", torch.zeros(3, 6).double())
            self.register_buffer("part", self.base[:, :3])
            self.layer, self.drop = nn.Linear(4, 3).double(), nn.Dropout()
            self.memory, self.past, self.plain = torch.zeros(3, 3).double(), deque(maxlen=5), {"list": 1}

        def forward(self, x: Tensor) -> Tensor:
            y = torch.sparse.mm(self.adjacency, self.layer(x))
            self.memory.copy_(y)
            self.past.append(y)
            self.plain["new"] = y
            self.base.add_(1)
            return self.drop(self.memory * 2)

    model = Holder().train()
    explain(model, target=0)
    assert all(module.training for module in model.modules())
    assert not scope._held
    assert not model.memory.requires_grad
    assert not model.memory.any()
    assert not model.base.any()
    assert len(model.past) == 0
    assert model.plain == {"list": 1}


def test_a_model_inside_a_function_is_explained_in_eval_mode_and_restored() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double().train()

    class Wrapper:
        def __init__(self) -> None:
            self.inner = net

        def __call__(self, x: Tensor) -> Tensor:
            return self.inner(x)

    truth = explain(net, target=0).values
    mean = net[1].running_mean.clone()
    for model in (lambda x: net(x), Wrapper(), Wrapper().__call__, net.forward):
        close(explain(model, target=0).values, truth, 1e-12)
        assert torch.equal(net[1].running_mean, mean)
        assert net.training


def test_nested_inputs_are_copied() -> None:
    state = [torch.zeros(3, 3).double()]

    def model(x: Tensor, states: list[Tensor]) -> Tensor:
        states[0] += 1
        return x @ W[:, :3] + states[0]

    a = explain(model, {"x": X, "states": state}, target=0)
    assert not state[0].any()
    close(a.output_value, (X @ W[:, 0]) + 1, 1e-12)


def test_a_users_hook_that_raises_and_a_model_that_catches_it() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.bad(x)
            except ZeroDivisionError:
                return self.good(x)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    model = Careful()
    model.bad.register_forward_pre_hook(fail)
    close(explain(model, target=0).values, model.good.weight[0].detach().expand(3, 4), 1e-12)


def test_models_that_learn_inside_their_forward_pass() -> None:
    class Meta(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            loss = self.layer(torch.ones(1, 4).double()).square().sum()
            (step,) = torch.autograd.grad(loss, [self.layer.weight])
            return F.linear(x, self.layer.weight - 0.1 * step, self.layer.bias)

    model = Meta()
    found = explain(model, target=0).values
    x = X.clone().requires_grad_()
    close(found, torch.autograd.grad(model(x)[:, 0].sum(), x)[0], 1e-12)


# ---- ids ----


def test_more_ways_to_look_ids_up() -> None:
    table = nn.Embedding(9, 4).double()
    ids = torch.tensor([[1, 2], [3, 4], [5, 6]])
    looks = (
        lambda i: table.weight[i, :],
        lambda i: table.weight[(i,)],
        lambda i: table.weight.index_select(0, i.flatten()).view(*i.shape, 4),
    )
    for look in looks:
        assert explain(lambda i, look=look: look(i).square().sum((1, 2)), ids).values.all()
    many = torch.randint(0, 9, (40, 20), generator=G)
    truth = explain(lambda i: (table(i).square() * torch.arange(20.0)[:, None]).sum((1, 2)), many).raw
    cast = explain(lambda i: (table(i.to(torch.uint8).long()).square() * torch.arange(20.0)[:, None]).sum((1, 2)), many)
    close(cast.raw, truth, 1e-12)


def test_a_row_of_ids_that_enter_two_embeddings_can_be_taken() -> None:
    one, two = nn.Embedding(9, 4).double(), nn.Embedding(9, 2).double()
    batch = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}

    def model(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        both = torch.cat([one(input_ids), two(input_ids)], -1).square() * attention_mask[..., None]
        return both.sum((1, 2))

    rows = list(explain(model, batch))
    assert [tuple(r.values.shape) for r in rows] == [(1, 3), (1, 2)]
    assert [tuple(p.shape) for p in rows[1].raw] == [(1, 2, 4), (1, 2, 2)]


# ---- masks, targets, shapes ----


def test_the_last_position_of_a_decoder_is_not_the_encoders() -> None:
    encoder, decoder = nn.Embedding(9, 4).double(), nn.Embedding(9, 4).double()

    def model(input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        return decoder(decoder_input_ids).cumsum(1) + encoder(input_ids).sum(1, keepdim=True)

    batch = {
        "input_ids": torch.ones(2, 6).long(),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]]),
        "decoder_input_ids": torch.ones(2, 8).long(),
    }
    assert explain(model, batch, target=(-1, 2)).target == [(7, 2), (7, 2)]


def test_a_text_mask_is_no_mask_of_image_channels() -> None:
    def model(input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> Tensor:
        return table(input_ids).sum((1, 2)) + pixel_values.sum((1, 2, 3))

    table = nn.Embedding(9, 4).double()
    batch = {
        "input_ids": torch.ones(2, 3).long(),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "pixel_values": torch.ones(2, 3, 4, 4).double(),
    }
    a = explain(model, batch, method="random")
    assert a[1].values["pixel_values"].shape == (1, 3, 4, 4)
    assert a.values["pixel_values"].all()


def test_channels_can_be_chosen_again_and_know_tokens_from_images() -> None:
    image = explain(lambda x: x.square().sum((1, 2, 3)), torch.randn(2, 3, 6, 5).double())
    assert image.channels("sum").channels("max_abs").values.shape == (2, 6, 5)
    table, dense = nn.Embedding(9, 4).double(), nn.Linear(4, 5).double()

    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.dense = table, dense

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return (self.dense(self.table(input_ids)).square() * attention_mask[..., None]).sum((1, 2))

    batch = {"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    hidden = explain(Text(), batch, at="dense", channels="sum")
    assert hidden.values.shape == (2, 3)
    assert hidden[1].values.shape == (1, 2)
    several = explain(Text(), batch, at="dense", target=lambda y: y)
    assert several[1].values.shape == (1, 2, 5)


def test_baselines_and_lists_of_arrays_with_a_batch_size() -> None:
    a = explain(lambda x: x @ W[:, :3], target=0, baseline=torch.zeros(3, 4).double(), batch_size=2)
    assert a.baseline_value.tolist() == [0.0, 0.0, 0.0]
    several = explain(lambda x: x @ W[:, :3], target=[np.array([0, 1]), np.array([1, 2]), np.array([0, 2])])
    assert several.target.tolist() == [[0, 1], [1, 2], [0, 2]]


class Output(NamedTuple):
    features: Tensor
    logits: Tensor


def test_named_tuples_scalars_and_integers_as_outputs() -> None:
    a = explain(lambda x: Output(x, x @ W[:, :3]), target=2)
    close(a.values, W[:, 2].expand(3, 4), 1e-12)
    for bad in (lambda x: x.sum(), lambda x: x > 0, lambda x: x.long()):
        with pytest.raises(whence.ModelError, match="no tensor of scores"):
            explain(bad)


def test_one_dimensional_inputs_and_numpy_numbers() -> None:
    with pytest.warns(whence.WhenceWarning, match="range is 0"):  # of one number
        a = explain(
            lambda x: x * 2, X[:, 0], method="smoothgrad", samples=np.int64(3), noise=np.float32(0.1), seed=np.arange(3)
        )
    assert a.values.shape == (3,)
    assert explain(lambda x: x * 2, X, target=0, batch_size=np.int64(2), baseline=np.float32(0)).values.shape == X.shape
    explain(lambda x, temperature: x / temperature, {"x": X, "temperature": torch.tensor(2.0)}, target=0)
    explain(lambda x, edges: x, {"x": X, "edges": torch.ones(2, 9).long()}, target=0)


def test_rows_by_any_integer_and_backwards() -> None:
    a = explain(lambda x: x @ W[:, :3])
    assert a[np.int64(1)].values.shape == a[torch.tensor(1)].values.shape == (1, 4)
    assert torch.equal(a[::-1].values, a.values.flip(0))


def test_values_that_are_not_finite_are_said_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(whence.WhenceWarning, match=r"not finite in rows \[0\]"):
        a = explain(lambda x: x.sqrt().sum(1), torch.tensor([[0.0, 1.0]]), method="input_x_gradient")
    a.show()
    assert "nan" in capsys.readouterr().out
    assert a.to_html()


def test_warnings_point_at_the_users_line() -> None:
    with pytest.warns(whence.WhenceWarning) as caught:
        whence.explain(lambda x: x.sqrt().sum(1), torch.tensor([[0.0, 1.0]]), method="input_x_gradient")
    assert caught[0].filename == __file__


def test_agreement_leaves_padding_out_and_large_images_are_cheap() -> None:
    x = torch.randn(1, 3, 128, 128)
    c = whence.compare(lambda x: x.square().sum((1, 2, 3)), x, methods=["gradient", "random"])
    assert float(c.agreement()[0, 0]) == pytest.approx(1)
    assert len(c.to_html()) < 200_000
    table = nn.Embedding(60, 4).double()

    def model(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return (table(input_ids).pow(3) * attention_mask[..., None]).sum((1, 2))

    ids = torch.arange(1, 7)[None]
    short = {"input_ids": ids, "attention_mask": torch.ones(1, 6).long()}
    long = {"input_ids": F.pad(ids, (0, 20)), "attention_mask": F.pad(torch.ones(1, 6).long(), (0, 20))}
    methods = ["gradient", "input_x_gradient"]
    a, b = (whence.compare(model, batch, methods=methods).agreement() for batch in (short, long))
    close(a, b, 1e-12)


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Linear(4, 3).double()
        self.words = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x)


BAD: list[tuple[dict[str, Any], type[whence.WhenceError], str]] = [
    ({"method": ["gradient"]}, whence.MethodError, "no method"),
    ({"rules": [1]}, whence.RuleError, "rules is list"),
    ({"rules": {1: own}}, whence.RuleError, "no such op"),
    ({"at": 1}, whence.InputError, "no module path"),
    ({"at": "a@²"}, whence.InputError, "number of the call"),
    ({"target": ([0, 1], [1, 0], [0, 0])}, whence.TargetError, "tuple of lists"),
    ({"inputs": X.to_sparse()}, whence.InputError, "nothing to explain.*sparse"),
    ({"inputs": X + 1j}, whence.InputError, "complex"),
    ({"method": "smoothgrad", "noise": float("inf")}, whence.ParameterError, "noise=inf"),
    ({"baseline": float("nan")}, whence.BaselineError, "finite number"),
]


@pytest.mark.parametrize(("call", "error", "text"), BAD)
def test_more_bad_input(call: dict[str, Any], error: type[whence.WhenceError], text: str) -> None:
    options = {"inputs": X, "method": "gradient", **call}
    with pytest.raises(error, match=text):
        whence.explain(Shared(), options.pop("inputs"), **options)


def test_odd_calls_of_compare_trace_save_and_at(tmp_path: Any) -> None:
    with pytest.raises(whence.ParameterError, match="no parameter 'bogus'"):
        whence.trace(Shared(), X, method="gradient", bogus=1)
    with pytest.raises(whence.ParameterError, match=r"methods=\[...\]"):
        whence.compare(Shared(), X, methods=["gradient"], method="gradient")
    assert list(whence.compare(Shared(), X, methods="gradient")) == ["gradient"]
    with pytest.raises(whence.FileError, match="cannot write .*a.safetensors: No such"):
        explain(Shared()).save(tmp_path / "no" / "a.safetensors")
    close(explain(Shared(), at="b", target=0).values, torch.tensor([[1.0, 0, 0]]).double().expand(3, 3), 1e-12)
    with pytest.raises(whence.InputError, match="ran 0 times"):
        explain(Shared(), at="words")


# ---- a second look ----


def trained() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3)).double().train()


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, x: Tensor) -> Tensor:
        return self.inner[0](x)


def test_models_are_found_wherever_a_function_holds_them() -> None:
    net = trained()
    table, helper = {"m": [net]}, lambda x: net(x)

    @functools.wraps(helper)
    def wrapped(x: Tensor) -> Tensor:
        return helper(x)

    holders = {
        "partial": functools.partial(lambda n, x: n(x), net),
        "keyword": functools.partial(lambda x, n: n(x), n=net),
        "dict": lambda x: table["m"][0](x),
        "helper": lambda x: helper(x),
        "wrapped": wrapped,
        "default": lambda x, n=net: n(x),
        "slots": Slotted([net]),
    }
    truth, mean = explain(net, target=0).values, net[1].running_mean.clone()
    for name, model in holders.items():
        close(explain(model, target=0).values, truth, 1e-12)
        assert torch.equal(net[1].running_mean, mean), name
        assert net.training, name


def test_a_targets_own_modules_are_kept_too() -> None:
    head = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1)).double().train()
    mean = head[0].running_mean.clone()
    for target in (head, lambda out: head(out)[:, 0]):
        explain(lambda x: x @ W[:, :3], target=target)
        assert torch.equal(head[0].running_mean, mean)
        assert head.training


def test_writes_through_aliases_and_inside_containers_are_undone() -> None:
    def writes(weight: nn.Parameter, how: str) -> None:
        with torch.no_grad():
            if how == "data":
                weight.data.mul_(0.5)
            elif how == "detach":
                weight.detach().mul_(0.5)
            elif how == "view":
                weight.view(-1).mul_(0.5)
            elif how == "out":
                torch.mul(weight, 0.5, out=weight)
            else:
                torch._foreach_mul_([weight], 0.5)

    class Writer(nn.Linear):
        def __init__(self, how: str) -> None:
            super().__init__(4, 3)
            self.how, self.state, self.pair = how, {"h": torch.zeros(3).double(), "n": {"count": 0}}, (torch.zeros(1),)

        def forward(self, x: Tensor) -> Tensor:
            writes(self.weight, self.how)
            self.state["h"] += 1
            self.state["n"]["count"] += 1
            self.pair[0].add_(1)
            return super().forward(x) * self.state["h"]

    for how in ("data", "detach", "view", "out", "foreach"):
        model = Writer(how).double()
        before = model.weight.detach().clone()
        whole = explain(model, target=0).values
        close(explain(model, target=0, batch_size=1).values, whole, 1e-12)
        assert torch.equal(model.weight, before), how
        assert not model.state["h"].any()
        assert model.state["n"] == {"count": 0}
        assert not model.pair[0].any()


def test_one_explanations_end_leaves_anothers_writes_alone() -> None:
    started, go = threading.Event(), threading.Event()

    class Filling(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.fill_(0.5)
            started.set()
            go.wait(5)
            return super().forward(x)

    found = []
    thread = threading.Thread(target=lambda: found.append(explain(Filling(4, 3).double(), target=0).values))
    thread.start()
    started.wait(5)
    explain(nn.Linear(4, 3).double(), target=0)
    go.set()
    thread.join()
    assert bool((found[0] == 0.5).all())


def test_a_cache_with_gradients_is_copied() -> None:
    class Cache:
        def __init__(self) -> None:
            self.states = [torch.ones(3, 1, requires_grad=True).double() * 2]

    cache = Cache()

    def model(x: Tensor, cache: Cache) -> Tensor:
        cache.states.append(x)
        return (x * cache.states[0]).sum(1)

    explain(model, {"x": X, "cache": cache})
    assert len(cache.states) == 1


def test_inputs_get_independent_noise() -> None:
    a = explain(lambda p, q: p @ W + q @ W, (X, X + 1), method="random", target=0)
    assert not torch.equal(*a.values)


def test_receipts_say_what_was_done() -> None:
    def zero(call: Any, m: Tensor) -> Tensor:
        return torch.zeros_like(m)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a = explain(lambda x: x @ W[:, :3], output="probability", rules={"softmax": zero}, target=0)
    assert not a.values.any()
    with pytest.warns(whence.WhenceWarning, match="'gelu'"):
        explain(lambda x: F.relu(x @ W) @ V, rules={"relu": own, "gelu": own}, target=0)

    def overwrites(x: Tensor) -> Tensor:
        h = torch.sigmoid(x @ W)
        h *= 2
        return h

    assert [s.op for s in whence.trace(overwrites, X, method="gradient", target=0, show=False)] == [
        "matmul",
        "sigmoid",
        "mul",
    ]


def test_hidden_axes_are_known_without_a_mask() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.dense = nn.Embedding(9, 4).double(), nn.Linear(4, 5).double()

        def forward(self, input_ids: Tensor) -> Tensor:
            return self.dense(self.table(input_ids)).square().sum((1, 2))

    a = explain(Text(), {"input_ids": torch.ones(2, 3).long()}, at="dense", channels="sum")
    assert a.values.shape == (2, 3)


def test_ids_are_followed_through_what_copies_them() -> None:
    table = nn.Embedding(60, 4).double()
    ids = torch.randint(1, 60, (2, 5), generator=G)

    def shifted(input_ids: Tensor) -> Tensor:  # what sequence-to-sequence models do to make the decoder's input
        start = input_ids.new_zeros(input_ids.shape)
        start[:, 1:] = input_ids[:, :-1].clone()
        start[:, 0] = 2
        return table(start).square().sum((1, 2))

    fronts = torch.full((2, 1), 7)
    looks = {
        "shifted": (shifted, [True, True, True, True, False]),
        "cat": (lambda i: table(torch.cat([fronts, i], 1)).square().sum((1, 2)), [True] * 5),
        "stack": (lambda i: table(torch.stack([i, i], 1)).square().sum((1, 2, 3)), [True] * 5),
        "pad": (lambda i: table(F.pad(i, (1, 0), value=3)).square().sum((1, 2)), [True] * 5),
        "masked_fill": (
            lambda i: table(i.masked_fill(torch.arange(5) == 2, 1)).square().sum((1, 2)),
            [True, True, False, True, True],
        ),
    }
    for name, (model, expected) in looks.items():
        a = explain(model, ids)
        assert (a.raw[0].abs().sum(-1) > 0).tolist() == expected, name
        close(a.output_value, model(ids.clone()).detach(), 1e-12)
        times = 4 if name == "stack" else 2
        close(a.raw[:, 0], times * table(ids[:, 0]).detach(), 1e-12)


# ---- a third look ----


def test_writes_on_ids_are_followed_or_named() -> None:
    table = nn.Embedding(60, 4).double()
    ids = torch.randint(10, 50, (2, 6), generator=G)

    def beside_zeros(i: Tensor) -> Tensor:
        j = i.clone()
        j.zero_()
        return table(torch.cat([j, i], 1)).square().sum((1, 2))

    def filled(i: Tensor) -> Tensor:
        j = i.clone()
        j[:, 0].fill_(5)
        j[:, 1:][:, 0] = 5
        v = j[:, 2:3]
        v[:] = 5
        j.data[:, 3] = 5
        return table(j).square().sum((1, 2))

    def masked(i: Tensor) -> Tensor:
        return table(i.clone().masked_fill_(torch.arange(6) < 4, 3)).square().sum((1, 2))

    def by_keyword(i: Tensor) -> Tensor:
        return (
            table(torch.cat(tensors=[i.masked_fill(mask=torch.arange(6) < 4, value=3), i], dim=1)[:, :6])
            .square()
            .sum((1, 2))
        )

    for model in (beside_zeros, filled, masked, by_keyword):
        a = explain(model, ids)
        close(a.output_value, model(ids.clone()).detach(), 1e-12)
        held = 0 if model is beside_zeros else 4
        assert (a.raw[0].abs().sum(-1) > 0).tolist() == [False] * held + [True] * (6 - held)
    circular = explain(lambda i: table(F.pad(i, (1, 1), mode="circular")).square().sum((1, 2)), ids)
    close(circular.raw[:, 0], 4 * table(ids[:, 0]).detach(), 1e-12)


def test_parameters_that_share_one_memory_are_restored() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            flat = torch.randn(12, generator=G).double()
            self.a, self.b, self.c = (nn.Parameter(flat[i : i + 4]) for i in (0, 4, 8))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.a.mul_(2)
            return x * self.a + self.b + self.c

    model = Flat()
    before = [p.detach().clone() for p in model.parameters()]
    explain(model, target=0)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert not scope._memory


class Rude:
    __slots__ = ("u",)

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


NET = trained()


class Named:
    net = NET

    def __call__(self, x: Tensor) -> Tensor:
        return self.net(x)


def test_more_holders_and_rude_objects() -> None:
    rude, mean = Rude(), NET[1].running_mean.clone()
    truth = explain(NET, target=0).values

    def holds_rude(x: Tensor, rude: Any = rude) -> Tensor:
        return NET(x)

    holders = (holds_rude, Named(), lambda x: sum(NET(x) for _ in range(1)), lambda x: torch.cat([NET(y) for y in [x]]))
    for model in holders:
        close(explain(model, target=0).values, truth, 1e-12)
        assert torch.equal(NET[1].running_mean, mean)
    whence.trace(nn.Linear(4, 8).double(), X, method="gradient", target=lambda o: NET[1](o)[:, 0], show=False)
    assert torch.equal(NET[1].running_mean, mean)


def test_nothing_outlives_the_model() -> None:
    gc.collect()
    gc.disable()
    try:
        model = trained()
        dead = [weakref.ref(t) for t in (model, *model.parameters(), *model.buffers())]
        explain(model, target=0)
        explain(functools.partial(lambda m, x: m(x), model), target=0)
        del model
        assert not [ref for ref in dead if ref() is not None]
    finally:
        gc.enable()


def test_rules_from_the_narrowest_name_and_groups_apart_from_ops() -> None:
    def stop(call: Any, m: Any) -> Any:
        return [torch.zeros_like(x) for x in call.inputs]

    conv = nn.Conv1d(1, 2, 3).double()
    found = explain(lambda x: conv(x[:, None]).sum((1, 2)), rules={"conv1d": stop, "linear": own})
    assert not found.values.any()
    with pytest.warns(whence.WhenceWarning, match="'norm'"):  # the group of layer norms, not the length of a vector
        assert explain(lambda x: x.norm(dim=1), rules={"norm": stop}).values.all()


def test_a_number_as_baseline_of_ids_is_an_embedding_at_a_layer_too() -> None:
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.layer = nn.Embedding(9, 4).double(), nn.Linear(4, 3).double()

        def forward(self, ids: Tensor, others: Tensor) -> Tensor:
            return self.layer(self.table(ids)).square().sum((1, 2)) + others.sum(1)

    model, ids = Text(), torch.ones(2, 3).long()
    inputs = {"ids": ids, "others": ids}
    a = explain(model, inputs, at="layer", wrt="ids", baseline=0)
    close(a.baseline_value, (3 * model.layer.bias.square().sum() + 3).detach().expand(2), 1e-12)
    given = explain(model, inputs, at="layer", wrt="ids", baseline=torch.zeros(2, 3).long())
    there = model.layer(model.table(torch.tensor(0))).square().sum().detach()
    close(given.baseline_value, (3 * there + 3).expand(2), 1e-12)
    with pytest.raises(whence.BaselineError, match="Give the baseline as ids"):
        explain(model, inputs, wrt="ids", baseline={"ids": 0, "others": 0})


def test_methods_that_read_attention_take_a_baseline_to_compare_with() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = BertForSequenceClassification(BertConfig(**sizes, vocab_size=60)).eval()
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    with_one = whence.explain(model, ids, method="rollout", baseline=0.0)
    assert torch.equal(with_one.values, whence.explain(model, ids, method="rollout").values)
    assert with_one.baseline_value is not None
    with pytest.raises(whence.NoAttention):
        explain(lambda x: x @ W, method="rollout", baseline=0.0, target=0)


def test_the_relevance_of_attention_that_is_kept_is_by_the_methods_own_parameters() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    model = BertForSequenceClassification(BertConfig(**sizes, vocab_size=60)).eval()
    ids = {"input_ids": torch.tensor([[5, 6, 7]])}
    maps = [
        whence.explain(model, ids, method="lrp", composite="epsilon", epsilon=e, keep=("attention_relevance",)).kept
        for e in (1e-6, 0.5)
    ]
    first, second = (found["attention_relevance"][0] for found in maps)
    assert not torch.allclose(first, second, rtol=1e-3)


class PatchNorm(nn.Module):
    """A convolution's patches, normed, as tokens: the signal comes back to the norm channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x.relu()).flatten(2).transpose(1, 2).tanh().square().mean(1))


@pytest.mark.parametrize("method", ["gradient", "input_x_gradient", "guided_backprop", "deeplift", "attnlrp"])
def test_a_single_row_through_a_batch_norm_of_patches(method: str) -> None:
    """torch's own derivative of such a row is another one than in a batch."""
    torch.manual_seed(0)
    model = PatchNorm().double().eval()
    model.norm.running_var.uniform_(0.5, 2)
    nn.init.normal_(model.norm.weight)
    x = torch.randn(2, 4, 3, 3).double()
    both = whence.explain(model, x, method=method, target=0)
    for row in range(2):
        alone = whence.explain(model, x[row : row + 1], method=method, target=0)
        close(alone.values[0], both.values[row], 1e-12)
