"""DeepLIFT as its users need it: contributions that sum to the delta on every architecture, and what is said if not."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.hf import FAMILIES, Family, image, of, text
from tests.support.models import CASES, Mlp, ResidualCnn, close
from tests.support.slow import mostly_slow
from whence.engine.expand import EXPANSIONS
from whence.engine.scope import scope
from whence.rules import attention as attention_rule
from whence.subject import at_baseline, baselines

RULES = ("rescale", "reveal_cancel", "convolution_rescale_dense_reveal_cancel")


def g(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def random_baseline(inputs: Any) -> Any:
    """Other values for floats, other words for ids."""
    generator = torch.Generator().manual_seed(5)
    if isinstance(inputs, Tensor):
        return torch.randn(inputs.shape, generator=generator).to(inputs)
    found = {}
    for name, value in inputs.items():
        if name.endswith("input_ids"):
            found[name] = torch.randint(3, 60, value.shape, generator=generator)
        elif value.is_floating_point():
            found[name] = torch.randn(value.shape, generator=generator).to(value)
    return found


def total(values: Any) -> Tensor:
    parts = values.values() if isinstance(values, dict) else values if isinstance(values, tuple) else [values]
    return sum(part.double().flatten(1).sum(1) for part in parts)  # type: ignore[return-value]


def size(values: Any) -> Tensor:
    parts = values.values() if isinstance(values, dict) else [values]
    return sum(part.abs().double().flatten(1).sum(1) for part in parts)  # type: ignore[return-value]


# ---- the table of what a peer gets wrong (../shared/PEERS.md) ----


class Twice(nn.Module):
    """One module used twice, and an LSTM written by hand with reused sigmoids."""

    def __init__(self) -> None:
        super().__init__()
        self.act, self.gate = nn.Tanh(), nn.Sigmoid()
        self.x, self.h, self.out = nn.Linear(4, 24), nn.Linear(6, 24), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(len(x), 6)
        for step in x.unbind(1):
            i, f, o, n = (self.x(step) + self.h(h)).chunk(4, 1)
            c = self.gate(f) * c + self.gate(i) * self.act(n)
            h = self.gate(o) * self.act(c)
        return self.out(h)


class Pooled(nn.Module):
    """Overlapping max-pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(2, 5, 3), nn.Linear(5 * 25, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.max_pool2d(self.conv(x), 3, 1).flatten(1))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.softmax(self.norm(self.a(x)) * 2, -1))


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True)
    inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.out = inner, nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.inner(x)[:, 0])

    return Encoder()


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.rnn, self.out = kind(4, 6, 2, bidirectional=True, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.rnn(x)[0][:, -1])


MADE: dict[str, tuple[Any, Tensor]] = {
    "nn.ReLU": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)), g(5, 6)),
    "F.relu": (lambda: Mlp(F.relu), g(5, 6)),
    "reused modules, LSTM by hand": (Twice, g(5, 3, 4)),
    "conv-bn-relu-maxpool, residual": (ResidualCnn, g(5, 2, 9, 9)),
    "overlapping max-pool": (Pooled, g(5, 2, 9, 9)),
    "GELU": (lambda: Mlp(F.gelu), g(5, 6)),
    "SiLU": (lambda: Mlp(F.silu), g(5, 6)),
    "LayerNorm, softmax": (Normed, g(5, 6)),
    "nn.LSTM": (lambda: Recurrent(nn.LSTM), g(5, 3, 4)),
    "nn.GRU": (lambda: Recurrent(nn.GRU), g(5, 3, 4)),
    "nn.MultiheadAttention": (lambda: CASES["multihead"].make()[0], g(5, 5, 8)),
    "TransformerEncoder": (encoder, g(5, 4, 8)),
    "graph convolution": (lambda: CASES["graph"].make()[0], CASES["graph"].make()[1]),
}


def made(name: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    build, x = MADE[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = build().eval()
    return model.to(dtype), x.to(dtype)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("far", ["zero", "random"])
@pytest.mark.parametrize("name", MADE)
def test_contributions_sum_to_the_delta_where_a_peer_is_off(name: str, far: str, rule: str) -> None:
    for dtype, most in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        model, x = made(name, dtype)
        baseline = 0 if far == "zero" else random_baseline(x)
        a = whence.explain(model, x, method="deeplift", target=1, baseline=baseline, rule=rule, signed=True)
        assert float(a.gap.max()) <= most
        assert not a.receipt["unruled"]
        close(a.positive + a.negative, a.values, 1e-5)


# ---- families of Hugging Face ----

TOWERS = {
    "clip text": Family(
        of("CLIPTextModelWithProjection", "CLIPTextConfig", hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
           intermediate_size=24, vocab_size=60, pad_token_id=0, bos_token_id=1, eos_token_id=2, projection_dim=8,
           max_position_embeddings=32), text, target=lambda out: out.text_embeds[:, 1],
    ),
    "clip image": Family(
        of("CLIPVisionModelWithProjection", "CLIPVisionConfig", hidden_size=16, num_hidden_layers=2,
           num_attention_heads=2, intermediate_size=24, image_size=16, patch_size=4, projection_dim=8), image,
        target=lambda out: out.image_embeds[:, 1],
    ),
}  # fmt: skip
TRANSFORMERS = {**FAMILIES, **TOWERS}
PARTLY_SINGLE = {
    "modernbert",
    "llama",
    "mistral",
    "qwen3",
    "t5",
    "vit",
    "deit",
    "swin",
    "beit",
    "clip",
    "bart",
    *TOWERS,
}


def in_dtype(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("name", mostly_slow(TRANSFORMERS))
def test_contributions_sum_to_the_delta_on_transformers(name: str) -> None:
    family = TRANSFORMERS[name]
    for kind in family.kinds:
        model = family.build(kind)
        for dtype in (torch.float64, torch.float32):
            model, inputs = model.to(dtype), in_dtype(family.inputs(), dtype)
            for baseline in (0, random_baseline(inputs)):
                a = whence.explain(model, inputs, method="deeplift", target=family.target, baseline=baseline)
                assert a.residual is not None
                assert a.receipt["unruled"] == []
                if dtype == torch.float32:
                    assert float(a.gap.max()) <= 1e-4
                elif name in PARTLY_SINGLE - {"llama", "mistral"}:
                    assert float(a.gap.max()) <= 2e-6
                elif (
                    name in PARTLY_SINGLE
                ):  # missed: 2.9e-6 where the score is 0.036, the rounding of what cancels there
                    rise = (a.output_value - a.baseline_value).abs()
                    assert float((a.residual.abs() / torch.maximum(rise, size(a.values) / 4)).max()) <= 2e-6
                    assert float(a.gap.max()) <= 1e-5
                else:
                    assert float(a.gap.max()) <= 1e-10


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "vit", "swin", "convnext", "resnet"])
def test_reveal_cancel_sums_to_the_delta_on_transformers(name: str) -> None:
    family = FAMILIES[name]
    model, inputs = family.build(family.kinds[0]), family.inputs()
    for baseline in (0, random_baseline(inputs)):
        a = whence.explain(
            model, inputs, method="deeplift", target=family.target, baseline=baseline, rule="reveal_cancel"
        )
        assert float(a.gap.max()) <= (2e-6 if name in PARTLY_SINGLE else 1e-10)
        close(total(a.positive) + total(a.negative), a.output_value - a.baseline_value, 1e-6)


def test_a_reference_of_zeros_stays_small_under_norms() -> None:
    """The midpoint would multiply by about 500 at each norm."""
    for name in ("llama", "t5", "bert"):
        family = FAMILIES[name]
        a = whence.explain(family.build("sdpa"), family.inputs(), method="deeplift", target=family.target)
        rise = (a.output_value - a.baseline_value).abs()
        assert float((size(a.values) / torch.maximum(rise, a.output_value.abs())).max()) <= 30


# ---- references ----


def test_one_for_all_one_per_row_and_several() -> None:
    model, x = made("F.relu", torch.float64)
    one, each = g(1, 6, seed=1), g(5, 6, seed=2)
    for_all = whence.explain(model, x, method="deeplift", target=0, baseline=one)
    repeated = whence.explain(model, x, method="deeplift", target=0, baseline=one.expand(5, 6).clone())
    close(for_all.values, repeated.values, 1e-12)
    close(for_all.baseline_value, repeated.baseline_value, 1e-12)
    per_row = whence.explain(model, x, method="deeplift", target=0, baseline=each)
    mean = (for_all.values + per_row.values) / 2
    both = whence.explain(model, x, method="deeplift", target=0, baseline=[one, each])
    close(both.values, mean, 1e-12)
    close(both.baseline_value, (for_all.baseline_value + per_row.baseline_value) / 2, 1e-12)
    assert float(both.gap.max()) <= 1e-10


def test_deepshap_computes_each_reference_once_for_all_rows() -> None:
    model, x = made("F.relu", torch.float64)
    background = g(7, 6, seed=4)
    a = whence.explain(model, x, method="deepshap", target=0, baseline=background)
    assert a.receipt["forward_passes"] == 14
    each = [whence.explain(model, x, method="deeplift", target=0, baseline=b).values for b in background]
    close(a.values, torch.stack(each).mean(0), 1e-12)
    listed = whence.explain(model, x, method="deepshap", target=0, baseline=list(background))
    close(listed.values, a.values, 1e-12)
    assert float(a.gap.max()) <= 1e-10


def test_two_passes_suffice() -> None:
    family = FAMILIES["bert"]
    inputs = family.inputs()
    model = family.build("sdpa")
    for baseline in (0, random_baseline(inputs), 0.3):
        a = whence.explain(model, inputs, method="deeplift", baseline=baseline)
        assert (a.receipt["forward_passes"], a.receipt["backward_passes"]) == (2, 1)


def test_what_is_put_in_place_is_the_baseline() -> None:
    """A reference that arises in its own pass is the one that is looked up beforehand."""
    family = FAMILIES["bert"]
    inputs, model = family.inputs(), family.build("sdpa")
    ids = inputs["input_ids"]
    hidden = model.config.hidden_size
    for baseline in (0.0, 0.25, ids * 7 % 57 + 3, ids[0] * 5 % 57 + 3, g(*ids.shape, hidden), g(ids.shape[1], hidden)):
        a = whence.explain(model, inputs, method="deeplift", target=0, baseline=baseline)
        b = whence.explain(model, inputs, method="integrated_gradients", target=0, baseline=baseline, steps=4)
        close(a.baseline_value, b.baseline_value, 1e-10)
        close(torch.tensor(a.receipt["baseline_probability"]), torch.tensor(b.receipt["baseline_probability"]), 1e-10)


class LastToken(nn.Module):
    """Reads where the largest id is, as CLIP does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = torch.tanh(self.embed(input_ids)).cumsum(1)
        return self.out(hidden[torch.arange(len(input_ids)), input_ids.argmax(1)])


def test_ids_that_are_used_otherwise_are_not_shared_between_rows() -> None:
    torch.manual_seed(0)
    model, ids = LastToken().double(), torch.tensor([[1, 19, 3], [19, 2, 4], [5, 6, 19]])
    a = whence.explain(model, {"input_ids": ids}, method="deeplift", target=0)
    assert float(a.gap.max()) <= 1e-10
    alone = [whence.explain(model, {"input_ids": row[None]}, method="deeplift", target=0) for row in ids]
    close(a.values, torch.cat([one.values for one in alone]), 1e-12)
    close(a.baseline_value, torch.cat([one.baseline_value for one in alone]), 1e-12)


def test_rows_alone_equal_rows_in_a_batch() -> None:
    for name in ("bert", "gpt2", "t5"):
        family = FAMILIES[name]
        inputs, model = family.inputs(), family.build("sdpa")
        baseline = random_baseline(inputs)
        a = whence.explain(model, inputs, method="deeplift", target=family.target, baseline=baseline)
        for row in range(2):
            pick = {key: value[row : row + 1] for key, value in inputs.items()}
            other = {key: value[row : row + 1] for key, value in baseline.items()}
            b = whence.explain(model, pick, method="deeplift", target=family.target, baseline=other)
            both = zip(a.values.values(), b.values.values(), strict=True) if isinstance(a.values, dict) else [(a.values, b.values)]  # fmt: skip  # noqa: E501
            for x, y in both:
                close(x[row : row + 1], y, 1e-6 if name in PARTLY_SINGLE else 1e-10)


# ---- targets, modules, kinds of model ----


def test_targets_of_every_form() -> None:
    model, x = made("F.relu", torch.float64)
    several = whence.explain(model, x, method="deeplift", target=torch.tensor([[0, 2]] * 5), rule="reveal_cancel")
    assert several.values.shape == several.positive.shape == (5, 2, 6)
    for k, target in enumerate((0, 2)):
        one = whence.explain(model, x, method="deeplift", target=target, rule="reveal_cancel")
        close(several.values[:, k], one.values, 1e-12)
        close(several.positive[:, k], one.positive, 1e-12)
    called = whence.explain(model, x, method="deeplift", target=lambda out: out[:, 1] * out[:, 0])
    assert float(called.gap.max()) <= 1e-10
    probability = whence.explain(model, x, method="deeplift", output="probability")
    assert float(probability.gap.max()) <= 1e-10
    logs = whence.explain(model, x, method="deeplift", output="log_probability")
    assert float(logs.gap.max()) <= 1e-10


def test_at_a_layer() -> None:
    family = FAMILIES["bert"]
    model, inputs = family.build("sdpa"), family.inputs()
    a = whence.explain(model, inputs, method="deeplift", target=0, at="bert.encoder.layer.0", rule="reveal_cancel")
    assert a.raw.shape == (2, 7, 16)
    assert float(a.gap.max()) <= 1e-10


def test_both_inputs_of_a_pair() -> None:
    family = FAMILIES["t5"]
    a = whence.explain(family.build("sdpa"), family.inputs(), method="deeplift", target=family.target, signed=True)
    assert set(a.values) == set(a.positive) == {"input_ids", "decoder_input_ids"}
    assert all(bool(value.abs().sum() > 0) for value in a.values.values())


def test_multipliers_are_kept_whole() -> None:
    family = FAMILIES["bert"]
    a = whence.explain(family.build("sdpa"), family.inputs(), method="deeplift", target=0, baseline=0)
    assert a.kept["multiplier"].shape == a.raw.shape == (2, 7, 16)
    embedded = family.build("sdpa").get_input_embeddings()(family.inputs()["input_ids"]).detach()
    real = family.inputs()["attention_mask"].bool()
    close((a.kept["multiplier"] * embedded)[real], a.raw[real], 1e-10)


def test_a_branch_that_flips_is_an_error_that_names_the_op() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(x) if x.sum() > 0 else torch.sigmoid(x)

    with pytest.raises(whence.DivergedError, match=r"Op 3: the reference ran sigmoid .* the input runs tanh"):
        whence.explain(Branches(), g(1, 3).abs(), method="deeplift", baseline=-1.0, target=0)


@pytest.mark.parametrize("rule", RULES)
def test_models_that_write_in_place(rule: str) -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x).relu_()
            y = F.relu(self.b(h), inplace=True)
            y += h
            y[:, :2] *= -2.0
            y[:, 5:].tanh_()
            h.fill_(3.0)
            return self.c(y)

    torch.manual_seed(1)
    model = Writes().double()
    a = whence.explain(model, g(4, 6), method="deeplift", target=0, baseline=g(4, 6, seed=3), rule=rule)
    assert float(a.gap.max()) <= 1e-10


def test_what_the_data_picks_is_shared_between_both_picks() -> None:
    def relu_by_comparison(x: Tensor) -> Tensor:
        return (x * (x > 0)).sum(1, keepdim=True)

    def masked(x: Tensor) -> Tensor:
        return x.masked_fill(x < 0.2, -1.0).sum(1, keepdim=True)

    def written(x: Tensor) -> Tensor:
        y = x * 1
        y[x < 0] = y[x < 0] * 0.1
        return y.sum(1, keepdim=True)

    def gathered(x: Tensor) -> Tensor:
        return (x * 2).gather(1, x.argsort(1)[:, :2]).tanh().sum(1, keepdim=True)

    def routed(x: Tensor) -> Tensor:
        return x @ F.one_hot(x.argmax(1), 6).to(x).T

    for model in (relu_by_comparison, masked, gathered, routed):
        for rule in RULES:
            a = whence.explain(model, g(4, 6), method="deeplift", target=0, baseline=g(4, 6, seed=3), rule=rule)
            assert float(a.gap.max()) <= 1e-10, model.__name__
    x, b = g(4, 6), g(4, 6, seed=3)
    ours = whence.explain(relu_by_comparison, x, method="deeplift", target=0, baseline=b)
    plain = whence.explain(lambda t: F.relu(t).sum(1, keepdim=True), x, method="deeplift", target=0, baseline=b)
    close(ours.values, plain.values, 1e-12)


# ---- what is said ----


def test_an_op_without_a_rule_is_named_with_the_gap_it_caused() -> None:
    def model(x: Tensor) -> Tensor:
        return (torch.fmod(5 * x, 1.0) + torch.logcumsumexp(x, 1) + x.cummax(1).values).sum(1, keepdim=True)

    with pytest.warns(
        whence.WhenceWarning, match=r"misses the delta .* rows \[0, 1, 2\].*fmod \(in the model itself\)"
    ):
        a = whence.explain(model, g(3, 6), method="deeplift", baseline=g(3, 6, seed=3), target=0)
    missed = {entry["op"]: entry["gap"] for entry in a.receipt["unruled"]}
    assert missed["fmod"] > 1  # it jumps, and no quadrature sees that
    assert missed["max"] < 0.1
    assert missed["logcumsumexp"] < 1e-9
    with pytest.raises(whence.NoRule, match="deeplift has no rule for 'logcumsumexp'"):
        whence.explain(lambda x: torch.logcumsumexp(x, 1), g(3, 6), method="deeplift", target=0, unruled="error")


def test_half_precision_is_no_finer_than_its_logits() -> None:
    for dtype, most in ((torch.bfloat16, 0.1), (torch.float16, 2e-2)):
        model, x = made("GELU", torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            a = whence.explain(model.to(dtype), x.to(dtype), method="deeplift", target=0)
        assert float(a.gap.median()) <= most


def test_rules_of_the_users_own_come_first() -> None:
    model, x = made("F.relu", torch.float64)
    for rule in RULES:
        with pytest.warns(whence.WhenceWarning, match="misses the delta"):
            a = whence.explain(model, x, method="deeplift", target=0, rules={"relu": whence.derivative}, rule=rule)
        b = whence.explain(model, x, method="input_x_gradient", target=0)
        close(a.values, b.values, 1e-12)


def test_a_model_that_differentiates_inside_itself() -> None:
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                y = torch.tanh(x).square().sum()
                (slope,) = torch.autograd.grad(y, x, retain_graph=True)
            return (x * slope.detach()).sum(1, keepdim=True)

    a = whence.explain(Inner(), g(3, 4), method="deeplift", target=0)
    assert bool(torch.isfinite(a.values).all())


def test_subjects_of_references_have_one_row_where_one_serves_all() -> None:
    from whence.adapters.tensors import adapt

    family = FAMILIES["bert"]
    inputs = family.inputs()
    whole = {**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])}
    for given, rows in ((inputs, 2), (whole, 1)):
        subject = adapt(family.build("sdpa"), given, method="deeplift")
        subject = replace(subject, baselines=baselines.parse(subject, 0.0), seeds=(0, 0))
        with scope(subject.root):
            assert at_baseline.reference(subject, subject.baselines[0]).rows == rows


# ---- what a reviewer found ----


def relative(model: Any, x: Tensor, baseline: Any, **options: Any) -> float:
    a = whence.explain(model, x, method="deeplift", target=0, baseline=baseline, **options)
    close(a.output_value, model(x).reshape(len(x), -1)[:, 0].detach(), 1e-12)
    return float(a.gap.max())


def overwritten(x: Tensor) -> Tensor:
    bound = torch.full((6,), 0.1).double()
    y = x.clamp(min=bound) + torch.maximum(2 * x, bound) * x
    bound.fill_(9.0)
    return y


LEFT = g(6, 3, seed=7)
FOUND: dict[str, Any] = {
    "index_add_ into zeros": lambda x: (
        torch.zeros(len(x), 3).double().index_add_(1, torch.tensor([0, 0, 1, 1, 2, 2]), x)
    ),
    "mul_ of ones": lambda x: torch.ones(len(x), 6).double().mul_(x),
    "a constant that is overwritten": overwritten,
    "topk": lambda x: x.topk(3).values @ LEFT[:3],
    "topk, smallest, in any order": lambda x: x.topk(3, sorted=False, largest=False).values @ LEFT[:3],
    "sort": lambda x: x.sort(1, descending=True).values @ LEFT,
    "kthvalue": lambda x: x.kthvalue(3, 1, keepdim=True).values,
    "aminmax": lambda x: torch.aminmax(x, dim=1, keepdim=True).max,
    "addmv": lambda x: torch.stack([torch.addmv(row[:2], row.view(2, 3), row[:3]) for row in x]),
    "addmm by name": lambda x: torch.addmm(input=LEFT[0], mat1=x, mat2=LEFT, alpha=-1),
    "addmm to what is live": lambda x: torch.addmm(x, x.new_ones(len(x), 3), LEFT.T),
    "norms": lambda x: torch.stack([x.norm(1, 1), x.norm(float("inf"), 1), x.norm(dim=1)], 1) @ LEFT[:3],
    "normalize by sums": lambda x: F.normalize(x, 1.0),
    "logsigmoid": lambda x: F.logsigmoid(30 * x),
    "reciprocals": lambda x: torch.tensor(1.0).double() / (x.square() + 0.1) + torch.div(1.0, x.square() + 0.2),
    "losses": lambda x: (
        F.cross_entropy(x, torch.tensor([1, 2, 3, 0]), reduction="none")
        + F.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none").sum(1)
        + F.mse_loss(x, torch.ones_like(x), reduction="none").sum(1)
        + F.l1_loss(x, torch.ones_like(x), reduction="none").sum(1)
    )[:, None],
    "a sparse matrix": lambda x: (torch.eye(6).double().to_sparse() @ x.T).T,
    "steps": lambda x: x // 0.7 + torch.heaviside(x, x.new_tensor(0.5)),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", FOUND)
def test_ops_in_odd_forms(name: str, rule: str) -> None:
    assert relative(FOUND[name], g(4, 6), g(4, 6, seed=3), rule=rule) <= 1e-10


def test_a_router_takes_the_ops_own_indices_where_values_tie() -> None:
    expert = torch.tensor([1.0, 2, 3, 4]).double()

    def router(x: Tensor) -> Tensor:
        best = (x @ g(6, 4, seed=1)).topk(2)
        return (best.values.softmax(-1) * expert[best.indices]).sum(1, keepdim=True)

    a = whence.explain(router, g(2, 6), method="deeplift", target=0)
    close(a.baseline_value, router(torch.zeros(2, 6).double())[:, 0], 1e-12)


def test_a_mask_that_picks_other_entries_is_an_error() -> None:
    def model(x: Tensor) -> Tensor:
        y = torch.zeros_like(x)
        y[x > 0] = x[x > 0].exp() - 1
        return y.sum(1, keepdim=True)

    with pytest.raises(whence.DivergedError, match="A mask in 'index' .* picks other entries"):
        whence.explain(model, g(2, 6), method="deeplift", target=0, baseline=g(2, 6, seed=3))


def test_infinities_that_come_and_go_are_said() -> None:
    def gate(x: Tensor) -> Tensor:
        values, places = x.topk(2)
        return torch.full_like(x, float("-inf")).scatter(1, places, values).softmax(-1)

    with pytest.warns(whence.WhenceWarning, match="an infinity that comes and goes"):
        a = whence.explain(gate, g(2, 6), method="deeplift", target=0, baseline=g(2, 6, seed=3))
    assert bool(torch.isfinite(a.values).all())


def test_a_mask_that_swallows_a_whole_row() -> None:
    mask = torch.zeros(3, 3).double()
    mask[1] = torch.finfo(torch.float64).min

    def model(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x[:, None], 2 * x[:, None], x[:, None].tanh(), mask).flatten(1)

    def by_hand(x: Tensor) -> Tensor:
        return ((x @ (2 * x).mT / 6**0.5 + mask).softmax(-1) @ x.tanh()).flatten(1)

    for one in (model, by_hand):
        a = whence.explain(one, g(2, 3, 6), method="deeplift", target=7, baseline=g(2, 3, 6, seed=3))
        assert float(a.gap.max()) <= 1e-10


def test_baselines_that_do_not_fit_are_said() -> None:
    with pytest.raises(whence.BaselineError, match="score at the baseline is .nan. for row 0"):
        whence.explain(lambda x: x / x.sum(1, keepdim=True), g(2, 6).abs(), method="deeplift", target=0)
    family = FAMILIES["bert"]
    with pytest.raises(whence.BaselineError, match="holds ids from 500 to 500"):
        whence.explain(
            family.build("sdpa"), family.inputs(), method="deeplift", target=0,
            baseline=torch.full_like(family.inputs()["input_ids"], 500),
        )  # fmt: skip


def test_parts_keep_the_form_of_the_values() -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(27, 2)).double(), g(2, 3, 3, 3)
    a = whence.explain(model, x, method="deeplift", target=0, channels="sum", signed=True)
    assert a.positive.shape == a.negative.shape == a.values.shape == (2, 3, 3)
    close(a.positive + a.negative, a.values, 1e-12)
    assert whence.explain(model, x, method="deeplift", target=0, channels="max_abs", signed=True).positive is None
    told = {"method": "deeplift", "target": 0, "signed": True}
    named = whence.explain(lambda t: torch.add(input=t[:, :2], other=t[:, 2:4]), g(2, 6), **told)
    plain = whence.explain(lambda t: torch.add(t[:, :2], t[:, 2:4]), g(2, 6), **told)
    close(named.positive, plain.positive, 1e-12)


def test_parts_come_where_they_are_asked_for_and_with_reveal_cancel() -> None:
    model, x = made("F.relu", torch.float64)
    told = {"method": "deeplift", "target": 1}
    without = whence.explain(model, x, **told)
    assert without.receipt["backward_passes"] == 1
    for name in ("positive", "negative"):
        with pytest.raises(whence.ParameterError, match="one more backward pass.\n  Ask for them with signed=True"):
            getattr(without[:2], name)
    asked = whence.explain(model, x, **told, signed=True)
    close(asked.values, without.values, 0)
    close(asked.positive + asked.negative, asked.values, 1e-12)
    assert whence.explain(model, x, **told, rule="reveal_cancel").positive.shape == x.shape
    with pytest.raises(whence.ParameterError, match="signed=True"):
        whence.explain(model, x, **told, rule="reveal_cancel", signed=False).positive  # noqa: B018
    assert whence.explain(model, x, method="gradient", target=1).positive is None


def attending(form: str, mask: Tensor | None) -> Callable[[Tensor], Tensor]:
    """Attention of 7 tokens of size 6, fused or written out."""

    def model(x: Tensor) -> Tensor:  # (rows, 7, 6)
        q, k, v = x.sin(), (2 * x).cos(), x.tanh()
        if form != "one head":
            q, k, v = (t.unflatten(-1, (2, 3)).transpose(1, 2) for t in (q, k, v))  # (rows, 2, 7, 3)
        if form == "shared keys":
            k, v = k[:, :1], v[:, :1]
        causal, grouped = form == "causal", form == "shared keys"
        mixed = F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=grouped, scale=0.7)
        return mixed.flatten(1)[:, :5]

    return model


MASKS = {
    "none": None,
    "hides some": torch.arange(7) < 5,
    "hides all of a query": torch.ones(7, 7, dtype=torch.bool).index_fill(0, torch.tensor([3]), False),
    "by row": torch.randn(3, 1, 7, 7, generator=torch.Generator().manual_seed(2)).double(),
    "−inf": torch.zeros(7).double().index_fill(0, torch.tensor([1, 6]), -math.inf),
}


@pytest.mark.parametrize("block", [1, 20, 60, 1 << 17])
@pytest.mark.parametrize(("form", "mask"), [("heads", mask) for mask in MASKS] + [
    ("causal", "none"), ("shared keys", "none"), ("one head", "hides some"), ("one head", "none"),
])  # fmt: skip
def test_attention_in_blocks_is_its_expansion(
    form: str, mask: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_rule, "_BLOCK", block)
    x, given = g(3, 7, 6), MASKS[mask]
    model = attending(form, given if given is None or given.dim() > 1 else given.expand(7, 7))
    for baseline in (0.3, g(3, 7, 6, seed=3)):
        told: dict[str, Any] = {"method": "deeplift", "target": 2, "baseline": baseline}
        fused = whence.explain(model, x, **told)
        with monkeypatch.context() as patch:
            patch.setattr(importlib.import_module("whence.methods.deeplift"), "DEEPLIFT_EXPAND", frozenset(EXPANSIONS))
            written = whence.explain(model, x, **told)
        ops = [{line["op"] for line in a.receipt["ops"]} for a in (fused, written)]
        assert ["softmax" in seen for seen in ops] == [False, True]
        close(fused.values, written.values, 1e-12)
        assert float(fused.gap.max()) <= 1e-12


# ---- ops that go by the numbers of rows ----

W4, V12 = g(4, 4, seed=30), g(12, 2, seed=31)


def _written(h: Tensor, at: Tensor) -> Tensor:
    h = h.clone()
    h[torch.arange(len(h)), at] = 0.5
    return h.flatten(1) @ V12


def _sorted(h: Tensor, at: Tensor, put: Any) -> Tensor:
    """Rows sorted by where they look, something done to each, and put back."""
    by = at.argsort(stable=True)
    done = torch.tanh(h[by].flatten(1) * 1.5) @ V12
    return put(torch.zeros(len(h), 2, dtype=h.dtype), by, done)


def _packed(h: Tensor, at: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(h, at.cpu() * 0 + 2, batch_first=True, enforce_sorted=False)
    return nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0].flatten(1).tanh() @ V12[:8]


PICKS: dict[str, Any] = {
    "h[arange, i]": lambda h, at: h[torch.arange(len(h)), at] @ V12[:4],
    "h[arange, 1]": lambda h, at: h[torch.arange(len(h)), torch.full_like(at, 1)] @ V12[:4],
    "index_put": lambda h, at: torch.index_put(h, (torch.arange(len(h)), at), h.new_zeros(4)).flatten(1) @ V12,
    "setitem": _written,
    "gather": lambda h, at: h.gather(1, at.view(-1, 1, 1).expand(-1, 1, 4))[:, 0] @ V12[:4],
    "gather along rows": lambda h, at: h.flatten(1).gather(0, torch.arange(len(h))[:, None].expand(-1, 12)) @ V12,
    "flat index": lambda h, at: h.reshape(-1, 4)[torch.arange(len(h)) * 3 + at] @ V12[:4],
    "index_select": lambda h, at: h.reshape(-1, 4).index_select(0, torch.arange(len(h)) * 3 + at) @ V12[:4],
    "index_add": lambda h, at: h.new_zeros(3 * len(h), 4).index_add(
        0, torch.arange(3 * len(h)) // 3 * 3 + at.repeat_interleave(3), h.reshape(-1, 4)
    ).view(-1, 12) @ V12,
    "scatter_add": lambda h, at: torch.zeros_like(h).scatter_add(1, at.view(-1, 1, 1).expand(h.shape), h).flatten(1)
    @ V12,
    "segments": lambda h, at: h.new_zeros(len(h), 4).scatter_reduce(
        0, (torch.arange(3 * len(h)) // 3)[:, None].expand(-1, 4), h.reshape(-1, 4), "mean", include_self=False
    ) @ V12[:4],
    "flip and back": lambda h, at: h.flip(0).tanh().flip(0).flatten(1) @ V12,
    "shuffle and back": lambda h, at: _sorted(h, torch.arange(len(h)).flip(0), lambda z, by, y: z.index_copy(0, by, y)),
    "sort and index_copy": lambda h, at: _sorted(h, at, lambda z, by, y: z.index_copy(0, by, y)),
    "sort and index_add": lambda h, at: _sorted(h, at, lambda z, by, y: z.index_add(0, by, y)),
    "sort and unsort": lambda h, at: _sorted(h, at, lambda z, by, y: y[by.argsort()]),
    "packed": _packed,
}  # fmt: skip


class Picking(nn.Module):
    """Where each row looks is in the data; a reference of one row looks at one place."""

    def __init__(self, pick: Any) -> None:
        super().__init__()
        self.pick = pick

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.pick(torch.tanh(x @ W4), x[:, :, 0].argmax(1))
        return found


@pytest.mark.parametrize("baseline", ["zero", "one row"])
@pytest.mark.parametrize("kind", PICKS)
def test_a_reference_of_one_row_does_not_stand_for_rows_that_are_counted(kind: str, baseline: str) -> None:
    model, x = Picking(PICKS[kind]), g(5, 3, 4, seed=32)
    before = 0.0 if baseline == "zero" else g(1, 3, 4, seed=33)
    a = whence.explain(model, x, method="deeplift", target=0, baseline=before)
    assert a.gap is not None
    assert float(a.gap.max()) < 1e-9
    for row in range(5):
        alone = whence.explain(model, x[row : row + 1], method="deeplift", target=0, baseline=before)
        close(alone.values, a.values[row : row + 1], 1e-9)


def test_rows_that_are_mixed_while_they_are_sorted_are_refused() -> None:
    def model(x: Tensor) -> Tensor:
        by = x[:, 0].argsort()
        return x[by].cumsum(0)[by.argsort()].tanh()

    with pytest.raises(whence.DivergedError, match="sorts its rows in another order"):
        whence.explain(model, g(4, 3), method="deeplift", target=0, baseline=g(4, 3, seed=1))
