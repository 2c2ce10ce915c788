"""Relevance: what every LRP run keeps, spelled how a model likes, and its receipt."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.hf import FAMILIES
from tests.support.models import CASES, close
from tests.support.slow import mostly_slow
from whence.engine.captures import layers
from whence.errors import NoAttention, NoRule, ParameterError, WhenceError, WhenceWarning
from whence.zoo.training import mosaics

RULES = ("chefer", "epsilon", "gamma", "alpha_beta", "epsilon_plus", "orig")
STREAMS = ("t5", "bart", "clip", "lxmert")  # more than one: no layer of theirs is all there is


def lines(a: whence.Attribution) -> list[dict[str, Any]]:
    return a.receipt["relevance"]


def balanced(line: dict[str, Any], within: float = 1e-6) -> None:
    """Start = end + losses, and at every boundary that is a cut start = carried + losses after it."""
    size = max(abs(line["start"]), abs(line["end"]), sum(map(abs, line["lost"].values())))
    assert abs(line["start"] - line["end"] - sum(line["lost"].values())) <= within * size
    for layer in line["layers"]:
        if layer["cut"]:  # by the graph nothing goes around it
            total = layer["carried"] + sum(layer["lost"].values())
            assert abs(line["start"] - total) <= within * max(1.0, abs(layer["carried"]), size), layer
    assert line["layers"][-1]["cut"]


# ---- conservation ----


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", mostly_slow(FAMILIES))
def test_conservation_on_every_family(name: str, rules: str) -> None:
    family = FAMILIES[name]
    model = family.build(family.kinds[0])
    a = whence.explain(model, family.inputs(), method="lrp", composite=rules, target=family.target)
    assert a.receipt["unruled"] == []
    inside = layers(model)
    for line in lines(a):
        balanced(line)
        for layer in line["layers"]:
            assert layer["cut"] or layer["module"] not in inside or name in STREAMS or name == "mobilenet_v2", layer
    assert ("row_by_row" in a.receipt) == (name == "clip")  # whose scores are products of rows with each other


class Residual(nn.Module):
    """A CNN whose skip connections are functional, one of them in place."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1, bias=bias)
        self.a, self.b = (nn.Conv2d(6, 6, 3, padding=1, bias=bias) for _ in range(2))
        self.head = nn.Linear(6, 4, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + F.relu(self.a(x))
        y = F.relu(self.b(x))
        y += x
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


def made(build: Callable[[], nn.Module], seed: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().eval()


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rules", RULES)
def test_a_functional_residual_net(rules: str) -> None:
    model, x = made(Residual), noise(3, 3, 8, 8)
    a = whence.explain(model, x, method="lrp", composite=rules, target=1)
    for row, line in enumerate(lines(a)):
        balanced(line)
        alone = whence.explain(model, x[row : row + 1], method="lrp", composite=rules, target=1)
        close(a.values[row : row + 1], alone.values, 1e-9)


def test_nothing_is_lost_without_biases_where_no_set_is_empty() -> None:
    model, x = made(lambda: Residual(bias=False)), noise(3, 3, 8, 8).abs()
    for line in lines(whence.explain(model, x, method="lrp", target=1)):
        assert abs(line["lost"].get("empty", 0.0)) == 0  # else this test would show nothing
        assert abs(line["end"] - 1) < 1e-6


def test_an_empty_positive_set_loses_and_says_so() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    nn.init.constant_(model.weight, -1.0)
    a = whence.explain(model, torch.ones(1, 2).double(), method="lrp", target=0)
    assert a.values.abs().max() == 0
    assert lines(a)[0]["lost"]["empty"] == 1
    assert lines(a)[0]["where"][0] == {"module": "", "op": "linear", "kind": "empty", "amount": 1.0}


def test_what_went_to_biases_and_to_epsilon() -> None:
    model = nn.Linear(1, 1).double()
    nn.init.constant_(model.weight, 2.0)
    nn.init.constant_(model.bias, 1.0)
    a = whence.explain(model, torch.ones(1, 1).double(), method="lrp", composite="epsilon", epsilon=1.0, target=0)
    close(a.values, torch.tensor([[0.5]]).double(), 1e-12)
    assert lines(a)[0]["lost"] == {"bias": 0.25, "epsilon": 0.25}


@pytest.mark.parametrize("method", ["lrp", "attnlrp"])
def test_values_that_the_model_overwrites(method: str) -> None:
    first, last = made(lambda: nn.Linear(4, 6)), made(lambda: nn.Linear(6, 2), 4)

    def careful(x: Tensor) -> Tensor:
        h = first(x)
        return last((h + h.tanh().roll(1, 1)) + h.relu())

    def careless(x: Tensor) -> Tensor:
        h = first(x)
        y = h + h.tanh().roll(1, 1)
        return last(y + h.relu_())

    x = noise(2, 4)
    close(*(whence.explain(f, x, method=method, target=0).values for f in (careless, careful)), 1e-12)


def test_activations_in_place_cost_no_second_pass() -> None:
    def net(inplace: bool) -> nn.Module:
        layers = [nn.Conv2d(3, 4, 3), nn.ReLU(inplace), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace)]
        return made(lambda: nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 3)))

    x = noise(2, 3, 8, 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        a = net(inplace=True)
        b = net(inplace=False)
        b.load_state_dict(a.state_dict())
    for rules in RULES:
        mine, theirs = (whence.explain(m, x, method="lrp", composite=rules, target=0) for m in (a, b))
        assert mine.receipt["forward_passes"] == 1
        assert torch.equal(mine.values, theirs.values)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("method", ["lrp", "attnlrp", "cp_lrp"])
def test_recurrent_nets(kind: Any, method: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = kind(5, 6, 2, batch_first=True, bidirectional=True), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.net(x)[0][:, -1])

    model, x = made(Net), noise(3, 4, 5)
    a = whence.explain(model, x, method=method, target=0)
    assert a.receipt["unruled"] == []
    for row in range(3):
        close(a.values[row : row + 1], whence.explain(model, x[row : row + 1], method=method, target=0).values, 1e-9)
    if method == "lrp":
        for line in lines(a):
            balanced(line)


IN_PLACE: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky": lambda h: F.leaky_relu(h, inplace=True), "silu": lambda h: F.silu(h, inplace=True),
    "elu": lambda h: F.elu(h, inplace=True), "hardtanh": lambda h: F.hardtanh(h, inplace=True),
    "sigmoid": torch.sigmoid_, "scaled": lambda h: h.mul_(2.0), "summed": lambda h: h.add_(h.detach().roll(1, 1)),
    "masked": lambda h: h.masked_fill_(h > 1, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("rules", ["chefer", "epsilon", "alpha_beta"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_ops_in_place(name: str, rules: str) -> None:
    first, last, x = made(lambda: nn.Linear(5, 8)), made(lambda: nn.Linear(8, 3), 4), noise(4, 5)
    a, b = (
        whence.explain(f, x, method="lrp", composite=rules, target=1)
        for f in (lambda t: last(IN_PLACE[name](first(t))), lambda t: last(IN_PLACE[name](first(t).clone())))
    )
    close(a.values, b.values, 1e-12)
    for line in lines(a):
        assert abs(line["unaccounted"]) < 1e-9


def test_small_contributions_beside_large_ones() -> None:
    """What raises the score is summed by itself where it would drown in what lowers it."""
    for dtype in (torch.float32, torch.float64):
        model = nn.Linear(3, 2, bias=False).to(dtype)
        model.weight.data = torch.tensor([[1.0, 1, 1], [-1.3, 1e-3, 2e-3]], dtype=dtype)
        for rules in ("chefer", "z_plus"):
            a = whence.explain(model, torch.tensor([[1000.7, 1, 1]], dtype=dtype), method="lrp", target=1,
                               composite=rules)  # fmt: skip
            wanted = torch.tensor([[0.0, 1 / 3, 2 / 3]], dtype=dtype)
            assert float((a.values - wanted).abs().max()) < (1e-3 if rules == "z_plus" else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_empty_sets_are_empty_in_every_precision(dtype: torch.dtype) -> None:
    model = made(lambda: nn.Sequential(nn.Linear(64, 8, bias=False), nn.Linear(8, 2, bias=False)))
    for p in model.parameters():
        p.data.abs_().neg_()
    x = torch.rand(4, 64, generator=torch.Generator().manual_seed(1)) * torch.logspace(-2, 2, 64)
    for line in lines(whence.explain(model.to(dtype), x.to(dtype), method="lrp", target=1)):
        assert abs(line["lost"]["empty"] - 1) < 0.02


ODD: dict[str, Callable[[Tensor], Tensor]] = {
    "bilinear": lambda h: F.bilinear(h, h.tanh(), noise(4, 6, 6, seed=2), noise(4, seed=3)),
    "several matrices": lambda h: torch.linalg.multi_dot([h, noise(6, 5, seed=2), noise(5, 4, seed=3)]),
    "weights on the left": lambda h: (noise(4, 6, seed=2) @ h.t()).t(),
    "a vector": lambda h: torch.stack([h.view(-1, 3, 2) @ noise(2, seed=2), h.view(-1, 3, 2)[..., 0]], 1).flatten(1),
    "patches": lambda h: F.unfold(h.view(-1, 1, 2, 3), 2, padding=1).flatten(1) @ noise(48, 4, seed=2),
    "spectrum": lambda h: torch.fft.rfft(h).abs() @ noise(4, 4, seed=2),
    "transposed": lambda h: F.conv_transpose1d(h.view(-1, 2, 3), noise(2, 3, 2, seed=2), noise(3, seed=3)).flatten(1),
    "a square": lambda h: (h.unsqueeze(2) @ h.unsqueeze(1)).flatten(1)[:, :4] + (h * h)[:, :4],
    "a product": lambda h: torch.stack([h.prod(1), h[:, :3].prod(1)], 1),
    "baddbmm": lambda h: torch.baddbmm(noise(1, 1), h.unsqueeze(1), h.tanh().unsqueeze(2)).flatten(1).expand(-1, 2),
}  # fmt: skip


@pytest.mark.parametrize("rules", ["chefer", "epsilon", "gamma"])
@pytest.mark.parametrize("name", ODD)
def test_odd_ops_conserve(name: str, rules: str) -> None:
    first, x = made(lambda: nn.Linear(5, 6)), noise(3, 5)
    a = whence.explain(lambda t: ODD[name](first(t)), x, method="lrp", composite=rules, target=1)
    assert a.receipt["unruled"] == []
    for row, line in enumerate(lines(a)):
        size = max(1.0, sum(map(abs, line["lost"].values())))
        assert abs(line["unaccounted"]) < 1e-9 * size
        alone = whence.explain(lambda t: ODD[name](first(t)), x[row : row + 1], method="lrp", composite=rules, target=1)
        close(a.values[row : row + 1], alone.values, 1e-9)


def test_the_input_layer_behind_a_normalisation() -> None:
    model, x = made(lambda: nn.Conv2d(3, 4, 3)), noise(2, 3, 6, 6)
    a = whence.explain(
        lambda t: model((t - 0.5) / 0.2).flatten(1), x, method="lrp", composite="epsilon_plus_flat", target=1
    )
    b = whence.explain(
        lambda t: model(t).flatten(1), (x - 0.5) / 0.2, method="lrp", composite="epsilon_plus_flat", target=1
    )
    close(a.values, b.values, 1e-9)


# ---- one function, several spellings ----


def both(one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], method: str, **options: Any) -> None:
    first, last = made(lambda: nn.Linear(6, 8)), made(lambda: nn.Linear(8, 3), 4)
    x = noise(2, 6)
    a, b = (
        whence.explain(lambda t, f=f: last(f(first(t))), x, method=method, target=0, **options) for f in (one, other)
    )
    close(a.values, b.values, 1e-7)


GELU = math.sqrt(2 / math.pi)
SPELLINGS = {
    "gelu": (lambda h: F.gelu(h, approximate="tanh"),
             lambda h: 0.5 * h * (1.0 + torch.tanh(GELU * (h + 0.044715 * torch.pow(h, 3.0))))),
    "silu": (F.silu, lambda h: h * torch.sigmoid(h)),
    "rms_norm": (lambda h: F.rms_norm(h, (8,), eps=1e-6),
                 lambda h: h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)),
    "rms_norm_by_root": (lambda h: F.rms_norm(h, (8,), eps=1e-6),
                         lambda h: h / (h.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()),
    "layer_norm": (lambda h: F.layer_norm(h, (8,)),
                   lambda h: (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()),
    "normalize": (lambda h: F.normalize(h, dim=-1), lambda h: h / h.norm(dim=-1, keepdim=True)),
}  # fmt: skip


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "cp_lrp"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_spellings(name: str, method: str) -> None:
    both(*SPELLINGS[name], method)


def test_a_glu_shares_between_both_factors() -> None:
    for method in ("lrp", "attnlrp"):
        both(lambda h: F.glu(h.repeat(1, 2)), lambda h: h * torch.sigmoid(1.0 * h.repeat(1, 2)[:, 8:]), method)


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "cp_lrp", "transformer_attribution", "partial_lrp"])
@pytest.mark.parametrize("name", mostly_slow(["bert", "gpt2", "llama", "vit", "bart"], ["bert", "llama"]))
def test_fused_attention_equals_written_out(name: str, method: str) -> None:
    family = FAMILIES[name]
    found = [
        whence.explain(family.build(kind), family.inputs(), method=method, target=family.target).values
        for kind in family.kinds
    ]
    one, other = ([v] if isinstance(v, Tensor) else list(v.values()) for v in found)
    for a, b in zip(one, other, strict=True):
        close(a, b, 2e-4 if name in ("llama", "vit") else 1e-6)  # some eager softmaxes are in float32


# ---- attention ----


def test_heads() -> None:
    """A head whose values are 0 has no relevance, and the heads have all that their attention's output had."""
    family = FAMILIES["bert"]
    model = family.build("sdpa")
    attention = model.bert.encoder.layer[1].attention.self
    with torch.no_grad():
        attention.value.weight[:8], attention.value.bias[:8] = 0, 0
    a = whence.explain(model, family.inputs(), method="lrp", target=0, keep=("head_relevance", "attention_relevance"))
    found = a.kept["head_relevance"]
    assert [tuple(layer.shape) for layer in found] == [(2, 2), (2, 2)]
    assert found[1][:, 0].abs().max() == 0
    for row, line in enumerate(lines(a)):
        for number, heads in enumerate(found):
            path = f"bert.encoder.layer.{number}.attention.self"
            out = next(layer["carried"] for layer in line["layers"] if layer["module"] == path)
            assert abs(float(heads[row].sum()) - out) < 1e-6
    close(a.kept["attention_relevance"][0].sum((2, 3)) * 2, found[0], 1e-9)


def test_several_classes_share_one_forward_pass() -> None:
    family = FAMILIES["bert"]
    model, inputs = family.build("sdpa"), family.inputs()
    targets = torch.tensor([[0, 2], [0, 2]])
    for method in ("lrp", "attnlrp", "partial_lrp", "transformer_attribution"):
        a = whence.explain(model, inputs, method=method, target=targets)
        assert a.receipt["forward_passes"] == 1
        for k, target in enumerate((0, 2)):
            close(a.values[:, k], whence.explain(model, inputs, method=method, target=target).values, 1e-9)
        apart = (a.values[:, 0] - a.values[:, 1]).abs().amax(1)
        assert bool((apart > 1e-4 * a.values.abs().amax((1, 2))).all()), method
        if "relevance" in a.receipt and method != "attnlrp":
            assert [len(row) for row in lines(a)] == [2, 2]
            for row in a.receipt["relevance"]:
                for line in row:
                    balanced(line)
    one = whence.explain(model, inputs, method="rollout", target=targets).values
    assert torch.equal(one[:, 0], one[:, 1])


def test_ablations_differ() -> None:
    family = FAMILIES["vit"]
    model, inputs = family.build("sdpa"), family.inputs()
    found = [
        whence.explain(model, inputs, method="transformer_attribution", target=0, **options).values
        for options in ({}, {"weight": "attention"}, {"weight": None}, {"blocks": "last"}, {"blocks": "first"})
    ]
    for n, a in enumerate(found):
        assert not any(torch.allclose(a, b) for b in found[n + 1 :])


# ---- composites ----


def test_a_table_by_op_module_and_depth() -> None:
    model = made(lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 3)))
    x = noise(2, 5)

    def values(table: Any) -> Tensor:
        return whence.explain(model, x, method="lrp", target=0, composite=table).values

    mixed = values({"linear": "epsilon", "first": "w_square", "path:2": ("gamma", {"gamma": 0.7})})
    close(values({"depth:0": "w_square", "depth:1": ("gamma", {"gamma": 0.7}), "depth:-1": "epsilon"}), mixed, 1e-12)
    close(
        values({"depth:0": "w_square", "depth:-2--1": "z_plus"}),
        values({"first": "w_square", "linear": "z_plus"}),
        1e-12,
    )
    close(values({"depth:-3": "w_square", "depth:1-1": ("gamma", {"gamma": 0.7}), "path:4": "epsilon"}), mixed, 1e-12)
    assert not torch.allclose(values("epsilon"), mixed)


def test_a_module_that_nobody_met_is_named() -> None:
    with pytest.warns(UserWarning, match="'path:encoder.*'.*met no op"):
        whence.explain(nn.Linear(2, 2), torch.ones(1, 2), method="lrp", target=0, composite={"path:encoder.*": "gamma"})


def test_the_trace_names_the_rule_that_an_op_got() -> None:
    model = made(lambda: nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)))
    found = whence.trace(model, noise(1, 5), method="lrp", target=0, show=False,
                         composite={"linear": "epsilon", "first": "flat"})  # fmt: skip
    assert [step.rule for step in found if step.family == "linear"] == ["flat", "epsilon"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"composite": "epsilon_plas"}, "Did you mean 'epsilon_plus'"),
        ({"composite": {"linear": "gama"}}, "Did you mean 'gamma'"),
        ({"composite": {"lineer": "gamma"}}, '"path:GLOB"'),
        ({"composite": {"linear": ("gamma", {"epsilon": 1})}}, "It takes gamma"),
        ({"composite": {"add": "half"}}, '"share" or "proportional"'),
        ({"composite": "alpha_beta", "alpha": 3.0}, "beta = alpha"),
        ({"composite": 3}, "Give one of"),
        ({"composite": {3: "epsilon"}}, '"path:GLOB"'),
        ({"composite": {"depth:5-2": "epsilon"}}, "A ≤ B"),
        ({"composite": {"depth:-2-1": "epsilon"}}, "A ≤ B"),
        ({"composite": "epsilon", "epsilon": -1.0}, "at least 0"),
        ({"composite": "gamma", "gamma": -0.5}, "at least 0"),
        ({"stabilizer": -1.0}, "at least 0"),
        ({"composite": "epsilon_gamma_box", "low": 1.0, "high": 0.0}, "is above high"),
        ({"composite": "gamma", "rules": "epsilon"}, "mean the same"),
        ({"start": "zero"}, "start"),
    ],
)
def test_wrong_options(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ParameterError, match=says):
        whence.explain(nn.Linear(2, 2), torch.ones(1, 2), method="lrp", target=0, **options)


def test_rules_by_name_are_for_methods_that_have_some() -> None:
    model, x = nn.Linear(2, 2), torch.ones(1, 2)
    named = whence.explain(model, x, method="lrp", target=0, rules="epsilon")
    assert torch.equal(named.values, whence.explain(model, x, method="lrp", target=0, composite="epsilon").values)
    with pytest.raises(ParameterError, match="composite"):
        whence.explain(model, x, method="gradient", target=0, rules="epsilon")


def test_the_logit_as_start() -> None:
    model, x = made(Residual), noise(2, 3, 8, 8)
    one, logit = (whence.explain(model, x, method="lrp", target=1, start=start) for start in ("one", "logit"))
    close(logit.values, one.values * one.output_value.view(-1, 1, 1, 1), 1e-6)
    assert [line["start"] for line in lines(logit)] == logit.output_value.tolist()


def test_ops_without_a_rule_take_eq_1_or_refuse() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([torch.logsumexp(x, 1), x.sum(1)], 1)

    a = whence.explain(Odd(), torch.rand(2, 3).double() + 1, method="lrp", target=0)
    assert [item["op"] for item in a.receipt["unruled"]] == ["logsumexp"]
    for line in lines(a):
        assert abs(line["start"] - line["end"] - line["lost"]["unruled"]) < 1e-9
    with pytest.raises(NoRule, match="eq. 1"):
        whence.explain(Odd(), torch.rand(2, 3), method="lrp", target=0, unruled="error")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_relevance_that_goes_where_no_rule_is_gets_a_warning() -> None:
    inner = torch.jit.trace(lambda x: (x * 3).tanh(), torch.ones(2))
    model = made(lambda: nn.Linear(4, 2))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        whence.explain(lambda x: model(inner(x)), noise(2, 4), method="lrp", target=0)
    assert any("cannot be accounted for" in str(w.message) for w in told)
    assert any("could not see" in str(w.message) for w in told)


def test_a_model_that_mixes_rows_is_explained_row_by_row() -> None:
    model = made(lambda: nn.Linear(4, 2))

    def mixing(x: Tensor) -> Tensor:
        h = model(x).flatten()[torch.arange(2 * len(x)).flip(0)].flip(0)
        return h.view(-1, 2) + model(x).relu()

    x = noise(3, 4)
    a = whence.explain(mixing, x, method="lrp", target=0)
    for row in range(3):
        close(a.values[row], whence.explain(mixing, x[row : row + 1], method="lrp", target=0).values[0], 1e-12)


def test_a_model_that_mixes_rows_is_traced_row_by_row_too(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = made(lambda: nn.Linear(4, 2)), noise(3, 4)

    def mixing(x: Tensor) -> Tensor:
        return (torch.eye(len(x), dtype=x.dtype) @ model(x)).relu() + model(x)

    a = whence.explain(mixing, x, method="lrp", target=0)
    alone = [whence.trace(mixing, x[row : row + 1], method="lrp", target=0, show=False) for row in range(3)]
    capsys.readouterr()
    traced = whence.trace(mixing, x, method="lrp", target=0)
    assert traced.steps == tuple(step for one in alone for step in one)
    assert traced.receipt["row_by_row"] == a.receipt["row_by_row"]
    assert [line["end"] for line in traced.receipt["relevance"]] == [t.receipt["relevance"][0]["end"] for t in alone]
    assert "The rows were traced one by one" in capsys.readouterr().out


# ---- receipts ----


def test_the_trace_shows_relevance(capsys: pytest.CaptureFixture[str]) -> None:
    model, x = made(Residual), noise(2, 3, 8, 8)
    found = whence.trace(model, x, method="lrp", target=1)
    out = capsys.readouterr().out
    assert "relevance" in out
    assert "row 1: 1 at the score" in out
    convolutions = [step for step in found if step.family == "convolution"]
    assert len(convolutions) == 3
    assert all(len(step.carried) == 1 for step in convolutions)
    assert abs(sum(found.steps[-1].carried) - 2) < 1e-9  # both rows
    assert "relevance" not in str(whence.trace(model, x, method="gradient", target=1, show=False))


def test_the_plot_of_a_receipt(tmp_path: Any) -> None:
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("Agg")
    model, x = made(Residual), noise(2, 3, 8, 8)
    ax = whence.trace(model, x, method="lrp", composite="epsilon", target=1, show=False).plot(row=1)
    names = [text.get_text() for text in ax.get_xticklabels()]
    assert (names[0], names[-1]) == ("score", "input")
    assert {"carried", "lost: bias"} <= set(ax.get_legend_handles_labels()[1])
    ax.figure.savefig(tmp_path / "receipt.png")
    plt.close(ax.figure)
    with pytest.raises(WhenceError, match="no relevance to draw"):
        whence.trace(model, x, method="gradient", target=1, show=False).plot()


def test_a_row_has_its_own_line() -> None:
    a = whence.explain(made(Residual), noise(3, 3, 8, 8), method="lrp", composite="epsilon", target=1)
    assert a[2].receipt["relevance"] == [lines(a)[2]]
    assert len(lines(a)) == 3


def test_methods_with_other_units_stand_side_by_side() -> None:
    family = FAMILIES["vit"]
    found = whence.compare(family.build("sdpa"), family.inputs(), methods=["lrp", "transformer_attribution"], target=0)
    assert bool(found.agreement()[0, 1].isnan())
    assert "–" in str(found)


def test_a_receipt_survives_saving(tmp_path: Any) -> None:
    a = whence.explain(made(Residual), noise(2, 3, 8, 8), method="lrp", target=1)
    a.save(tmp_path / "a.safetensors")
    assert whence.Attribution.load(tmp_path / "a.safetensors").receipt == a.receipt


def test_attention_is_needed_where_it_is_read() -> None:
    for options in ({"method": "transformer_attribution"}, {"method": "partial_lrp"},
                    {"method": "lrp", "keep": "attention_relevance"}):  # fmt: skip
        with pytest.raises(NoAttention):
            whence.explain(made(Residual), noise(2, 3, 8, 8), target=1, **options)


@pytest.mark.parametrize(
    ("composite", "name", "value"),
    [
        ("chefer", "epsilon", 0.1), ("chefer", "stabilizer", 0.1), ("epsilon", "gamma", 1.0),
        ("gamma", "epsilon", 1e-3), ("z_plus", "alpha", 1.0), ("epsilon", "low", 0.0),
        ("epsilon_plus", "high", torch.ones(3)),
        ({"linear": ("gamma", {"gamma": 2.0}), "convolution": "flat"}, "gamma", 1.0),
    ],
)  # fmt: skip
def test_a_parameter_that_the_composite_does_not_read_is_a_mistake(composite, name, value) -> None:
    model, x = nn.Linear(3, 2), torch.ones(1, 3)
    with pytest.raises(whence.ParameterError, match=f"has no rule that reads '{name}'.\n.*Leave {name} out, or give"):
        whence.explain(model, x, method="lrp", composite=composite, target=0, **{name: value})


def test_defaults_and_parameters_that_are_read_are_none() -> None:
    model, x = nn.Linear(3, 2), torch.ones(1, 3)
    for composite, given in {
        "chefer": {"epsilon": 1e-6, "gamma": 0.25, "low": 0.0, "high": None},
        "epsilon_gamma_box": {"gamma": 1, "low": 0.0},
        "alpha_beta": {"alpha": 1.0, "beta": 0.0, "stabilizer": 0.1},
    }.items():  # fmt: skip
        whence.explain(model, x, method="lrp", composite=composite, target=0, **given)
    whence.explain(model, x, method="lrp", composite={"convolution": "flat"}, epsilon=0.1, target=0)


class MaskedWhereNeeded(nn.Module):
    """Adds a mask where it hides something, as Hugging Face's models do."""

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.out = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        scores = self.scores(x) * 1e-4  # where a division by scores + 1e-9 tells
        if not mask.all():
            scores = scores + torch.where(mask, 0.0, -1e30).double()
        return self.out(scores.softmax(-1))


@pytest.mark.parametrize("composite", ["chefer", "epsilon_plus"])
def test_a_mask_that_hides_nothing_of_a_row_changes_nothing_there(composite: str) -> None:
    torch.manual_seed(0)
    model = MaskedWhereNeeded().double()
    x, mask = torch.randn(2, 4).double(), torch.ones(2, 6, dtype=torch.bool)
    mask[1, 3:] = False
    both, alone = (
        whence.explain(model, {"x": x[:n], "mask": mask[:n]}, wrt="x", method="lrp", target=0, composite=composite)
        for n in (2, 1)
    )
    close(both.values[:1], alone.values, 1e-12)
    assert all(abs(row["unaccounted"]) < 1e-12 for row in both.receipt["relevance"])


# ---- what stands at a token's own position ----


class Placed(nn.Module):
    """Ids, a table, what `put` makes of the embedding (a position's constant among it), tokens mixed, three classes."""

    def __init__(self, put, width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.put = put
        self.table, self.place = nn.Embedding(9, 4), nn.Parameter(torch.randn(1, 5, 4))
        self.wide, self.norm = nn.Linear(4, 4, bias=False), nn.LayerNorm(4)
        self.mix, self.out = nn.Linear(width, 6, bias=False), nn.Linear(6, 3, bias=False)
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        return self.mixed(self.put(self, self.table(ids)))

    def mixed(self, h: Tensor) -> Tensor:
        return self.out(self.mix(h).relu().mean(1))


class Mixing(nn.Module):
    """The same model from where tokens mix."""

    def __init__(self, whole: Placed) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, h: Tensor) -> Tensor:
        return self.whole.mixed(h)


IDS = torch.tensor([[1, 2, 3, 4, 5], [6, 0, 2, 2, 8]])


@pytest.mark.parametrize("positions", ["token", "drop"])
@pytest.mark.parametrize("add", ["share", "proportional"])
def test_positions_by_hand(positions: str, add: str) -> None:
    """Entry by entry in loops: the token has all that its summed embedding has, or its branch's part of it."""
    model = Placed(lambda m, e: e + m.place).requires_grad_(False)
    composite = {"linear": "epsilon", "add": add}
    options = {"composite": composite, "epsilon": 0.0, "stabilizer": 0.0, "positions": positions}
    a = whence.explain(model, IDS, method="lrp", target=1, **options)
    for row in range(2):
        e = model.table.weight[IDS[row]].detach()
        p = model.place[0].detach()
        z = (e + p) @ model.mix.weight.detach().T  # (tokens, 6)
        pooled, w = z.relu().mean(0), model.out.weight[1].detach()
        of_token, own, other = torch.zeros(5).double(), torch.zeros(5).double(), torch.zeros(5).double()
        for j in range(6):
            r_pooled = pooled[j] * w[j] / float(pooled @ w)
            for i in range(5):
                r = r_pooled * float(z[i, j].relu()) / 5 / float(pooled[j]) if pooled[j] else 0.0
                for k in range(4):
                    part = r * float(model.mix.weight[j, k]) / float(z[i, j])
                    of_token[i] += part * float((e + p)[i, k])
                    own[i] += part * float(e[i, k])
                    other[i] += part * float(p[i, k])
        if positions == "token":
            close(a.values[row], of_token, 1e-9)
        elif add == "proportional":
            close(a.values[row], own, 1e-9)
        else:
            total = float(own.sum().abs() + other.sum().abs())
            close(a.values[row], own * float(own.sum().sign() * of_token.sum()) / total, 1e-9)
        line = a.receipt["relevance"][row]
        assert abs(line["start"] - line["end"] - sum(line["lost"].values())) < 1e-9


STAND = {
    "added": lambda m, e: e + m.place,
    "a number of rows": lambda m, e: e + m.place.expand(len(e), -1, -1).clone(),
    "added in place": lambda m, e: e.mul(1.0).add_(m.place),
    "the other way round": lambda m, e: m.place + e,
    "taken away": lambda m, e: e - m.place,
    "scaled before": lambda m, e: e * 4**0.5 + m.place,
    "projected before": lambda m, e: m.wide(e) + m.place,
    "before a norm": lambda m, e: m.norm(e + m.place),
    "after a norm": lambda m, e: m.norm(e) + m.place,
    "after a norm by hand": lambda m, e: e * (e.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() + m.place,
    "twice": lambda m, e: e + m.place + m.place.flip(1),
    "time first": lambda m, e: (e.transpose(0, 1) + m.place.transpose(0, 1)).transpose(0, 1),
    "flat": lambda m, e: (e.reshape(-1, 4) + m.place.repeat(len(e), 1, 1).reshape(-1, 4)).view(-1, 5, 4),
    "by heads": lambda m, e: (e.view(-1, 5, 2, 2) + m.place.view(1, 5, 2, 2)).flatten(2),
}


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "cp_lrp"])
@pytest.mark.parametrize("put", STAND)
def test_what_stands_at_a_tokens_position_gives_its_share_to_the_token(put: str, method: str) -> None:
    model = Placed(STAND[put])
    found = {p: whence.explain(model, IDS, method=method, target=1, positions=p) for p in ("token", "drop")}
    for row in range(2):
        line = {p: a.receipt["relevance"][row] for p, a in found.items()}
        if method == "lrp":
            assert abs(line["token"]["lost"].get("constants", 0.0)) < 1e-12
            assert abs(line["drop"]["lost"]["constants"]) > 1e-3
            assert abs(line["token"]["unaccounted"]) < 1e-9
            both = line["drop"]["end"] + line["drop"]["lost"]["constants"]
            assert abs(line["token"]["end"] - both) < 1e-6  # what leaf and positions had
        else:
            # x ⊙ m, where x is what stands before the tokens mix
            at = whence.explain(Mixing(model), model.put(model, model.table(IDS)).detach(), method=method, target=1)
            assert abs(line["token"]["end"] - float(at.values[row].sum())) < 1e-9
            assert abs(line["token"]["end"] - line["drop"]["end"]) > 1e-6
    alone = whence.explain(model, IDS[1:], method=method, target=1)
    close(found["token"].values[1:], alone.values, 1e-9)


MIXED = {
    "mixed before": lambda m, e: e + e.roll(1, 1) + m.place,
    "a mean over tokens": lambda m, e: e.mean(1, keepdim=True) + m.place,
    "attention": lambda m, e: (e @ e.mT).softmax(-1) @ e + m.place,
    "tokens and features swapped": lambda m, e: e[:, :4].transpose(1, 2) + m.place[:, :4],
    "a convolution": lambda m, e: torch.conv1d(e.mT, torch.ones(4, 4, 3).double(), padding=1).mT + m.place,
}


@pytest.mark.parametrize("put", MIXED)
def test_a_constant_that_stands_at_nobodys_position_keeps_its_share(put: str) -> None:
    model = Placed(MIXED[put])
    found = [whence.explain(model, IDS, method="lrp", target=1, positions=p) for p in ("token", "drop")]
    close(found[0].values, found[1].values, 1e-12)
    assert abs(found[0].receipt["relevance"][0]["lost"]["constants"]) > 1e-4


def test_a_class_token_in_front_takes_its_own_share_along() -> None:
    def put(m, e):
        front = m.place[:, :1].expand(len(e), -1, -1)
        return torch.cat([front, e], 1) + torch.cat([m.place, m.place[:, :1]], 1)

    token, drop = (whence.explain(Placed(put), IDS, method="lrp", target=1, positions=p) for p in ("token", "drop"))
    lost = [a.receipt["relevance"][0]["lost"]["constants"] for a in (token, drop)]
    assert 1e-3 < abs(lost[0]) < abs(lost[1])
    assert abs(token.receipt["relevance"][0]["unaccounted"]) < 1e-9


@pytest.mark.parametrize(
    "composite", mostly_slow(["chefer", "orig", "epsilon", "gamma", "z_plus", "epsilon_plus"], ["chefer", "epsilon"])
)
def test_positions_of_real_embeddings_go_to_their_tokens_under_every_composite(composite: str) -> None:
    """On BERT the tokens have exactly what the embeddings' output has, and `at=` is as it was."""
    model, inputs = CASES["bert_sdpa"].make()
    model = model.double()
    options = {"method": "lrp", "composite": composite, "target": 0}
    a = whence.explain(model, inputs, **options)
    path = next(name for name, m in model.named_modules() if type(m).__name__ == "BertEmbeddings")
    at = whence.explain(model, inputs, at=path, **options)
    close(a.values, at.values.sum(-1) * a.real, 1e-9)
    drop = whence.explain(model, inputs, positions="drop", **options)
    assert float((a.values - drop.values).abs().max()) > 1e-3 * float(a.values.abs().max())
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    floats = {**{k: v for k, v in inputs.items() if k != "input_ids"}, "inputs_embeds": embeds.detach()}
    close(whence.explain(model, floats, **options).values.sum(-1) * a.real, drop.values, 1e-9)


class ReadsPadding(nn.Module):
    """A score that no mask keeps from padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.out(self.words(input_ids).tanh().sum(1))


def test_relevance_that_comes_to_padding_is_a_loss() -> None:
    torch.manual_seed(0)
    given = {"input_ids": torch.randint(0, 20, (2, 3)), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    a = whence.explain(ReadsPadding().double(), given, method="lrp", target=0)
    full, padded = a.receipt["relevance"]
    assert "padding" not in full["lost"]
    assert padded["lost"]["padding"]
    for row, line in enumerate((full, padded)):
        assert abs(line["end"] - float(a.values[row].sum())) < 1e-9
        balanced(line)


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


# ---- rounding ----


class Cancelling(nn.Module):
    """Two branches that nearly cancel in each unit, as residual branches do in some."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.a(x) - self.b(x))


def cancelling(apart: float) -> nn.Module:
    torch.manual_seed(0)
    model = Cancelling().eval()
    with torch.no_grad():
        for new, old in zip(model.b.parameters(), model.a.parameters(), strict=True):
            new.copy_(old + apart * torch.randn_like(old))
    return model


def test_values_that_rounding_decides_are_named() -> None:
    x = torch.randn(3, 6)
    ask = {"method": "lrp", "composite": "epsilon", "target": torch.tensor([[0, 1]] * 3)}
    close_by, apart = cancelling(1e-6), cancelling(1.0)
    with pytest.warns(WhenceWarning, match=r"rows \[0, 1, 2\] depend on rounding.*composite=.*model\.double\(\)"):
        a = whence.explain(close_by, x, **ask)
    assert all(one["rounding"] > 0.02 for line in lines(a) for one in line)  # per target
    assert len(a.receipt["warnings"]) == 1
    for model in (apart, close_by.double()):
        exact = whence.explain(model, x.to(next(model.parameters()).dtype), **ask)
        assert exact.receipt["warnings"] == []
        assert all(0 < one["rounding"] < 1e-3 for line in lines(exact) for one in line)


@pytest.mark.parametrize(
    ("composite", "much"),
    [
        ("epsilon", 0.2),
        pytest.param("chefer", 0.1, marks=pytest.mark.slow),
        pytest.param("alpha_beta", 0.2, marks=pytest.mark.slow),
    ],
)
def test_rows_that_double_precision_explains_otherwise_are_named(composite: str, much: float) -> None:
    """A vision transformer on whose sums the last digits decide; the estimate is rough, but names these rows."""
    model, images = whence.load("zoo:mosaic-vit"), list(mosaics.shipped().images)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        a = whence.explain(model, images, method="lrp", composite=composite)
        steady = whence.explain(model, images, method="attnlrp")
        model.model.double()
        exact = whence.explain(model, images, method="lrp", composite=composite, target=a.target)
        steady_exact = whence.explain(model, images, method="attnlrp", target=a.target)
    apart = (a.values - exact.values).flatten(1).norm(dim=1) / exact.values.flatten(1).norm(dim=1)
    shares = torch.tensor([line["rounding"] for line in lines(a)])
    assert int((apart > much).sum()) >= 2  # or there would be nothing to test
    assert bool((shares[apart > much] > 3e-3).all()), (apart, shares)
    assert bool((shares < 3e-3).any())
    assert any("depend on rounding" in text for text in a.receipt["warnings"])
    assert exact.receipt["warnings"] == steady.receipt["warnings"] == []
    close(steady.values.double(), steady_exact.values, 1e-4)
    alone = whence.explain(model, images[3:4], method="lrp", composite=composite, target=a.target[3:4])
    assert alone.receipt["relevance"][0]["rounding"] == pytest.approx(lines(exact)[3]["rounding"], rel=1e-3)
