"""Record and replay of a reference pass, and a reference method over every row of the engine's table of ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import whence
from tests.support.engine import EVERY, REFERENCE, as_inputs, gap, run, subject
from tests.support.hf import FAMILIES
from tests.support.models import CASES, close
from whence.engine.scope import scope


def g(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


X, B = g(3, 8), g(3, 8, seed=9)
W, V = g(8, 6, seed=1), g(8, 6, seed=2)


def tail(y: Tensor) -> Tensor:
    """From anything to two smooth scores per row."""
    y = y.reshape(len(y), -1)
    weights = torch.linspace(-1, 1.3, y.shape[1] * 2, dtype=y.dtype).view(y.shape[1], 2)
    return torch.tanh(y @ weights / 4) + y @ weights / 8


# ---- the table of ops: name → (function of (rows, 8), largest gap) ----

bias = g(8, seed=3)
torch.manual_seed(0)
lstm, gru = nn.LSTM(2, 4, bidirectional=True, batch_first=True).double(), nn.GRU(2, 4, 2, batch_first=True).double()
cell = nn.LSTMCell(8, 4).double()
mha = nn.MultiheadAttention(4, 2, batch_first=True).double().eval()
encoder = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), 2, enable_nested_tensor=False
).double().eval()  # fmt: skip
embed = nn.EmbeddingBag(5, 3, mode="sum").double()
with torch.inference_mode():
    BORN = g(8, 6, seed=4)


@torch.library.custom_op("whence_tests::softsign", mutates_args=())
def custom(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


custom.register_autograd(
    lambda ctx, m: m / (1 + ctx.saved_tensors[0].abs()) ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


def in_place(x: Tensor) -> Tensor:
    x = x * 1
    x[:, :4].relu_()
    x[:, 4:] *= torch.sigmoid(x[:, :4])
    x += bias
    return x


def no_grad_inside(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.square().mean(1, keepdim=True)
    return x * scale + x.detach().tanh() + torch.sigmoid(x.data)


EXACT, SMOOTH, LOOSE = 1e-9, 1e-5, 5e-2
OPS: dict[str, tuple[Any, float]] = {
    "relu": (F.relu, EXACT),
    "gelu": (F.gelu, EXACT),
    "abs, clamp, round": (lambda x: x.abs() + x.clamp(-0.3, 0.4) + x.round(), EXACT),
    "pow, exp, sqrt, log": (lambda x: x**3 + x.exp() + (x.square() + 1).sqrt() + (x.square() + 1).log(), EXACT),
    "division": (lambda x: x[:, :4] / (1 + x[:, 4:].square()), SMOOTH),
    "product of two": (lambda x: x[:, :4] * x[:, 4:], EXACT),
    "matmul of two": (lambda x: x.view(-1, 2, 4) @ x.view(-1, 4, 2), EXACT),
    "einsum of three": (lambda x: torch.einsum("bi,bj,bk->bijk", x[:, :2], x[:, 2:4], x[:, 4:6]), EXACT),
    "softmax": (lambda x: x.softmax(1), SMOOTH),
    "log_softmax": (lambda x: x.log_softmax(1), SMOOTH),
    "logsumexp": (lambda x: x.logsumexp(1, keepdim=True), SMOOTH),
    "glu": (lambda x: F.glu(x), SMOOTH),
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), SMOOTH),
    "group_norm": (lambda x: F.group_norm(x, 2), SMOOTH),
    "normalize": (lambda x: F.normalize(x), SMOOTH),
    "cosine_similarity": (lambda x: F.cosine_similarity(x[:, :4], x[:, 4:], eps=1e-3)[:, None], SMOOTH),
    "std, var": (lambda x: torch.stack([x.std(1), x.var(1)], 1), SMOOTH),
    "norm": (lambda x: x.norm(dim=1, keepdim=True), SMOOTH),
    "max(dim)": (lambda x: x.max(1).values[:, None], EXACT),
    "amax, amin": (lambda x: torch.stack([x.amax(1), x.amin(1)], 1), EXACT),
    "maximum of two": (lambda x: torch.maximum(x[:, :4], x[:, 4:]) - torch.minimum(x[:, :4], x[:, 4:]).tanh(), EXACT),
    "max_pool, overlapping": (lambda x: F.max_pool1d(x[:, None], 3, 1, 1), EXACT),
    "adaptive max_pool": (lambda x: F.adaptive_max_pool1d(x[:, None], 3), EXACT),
    "adaptive avg_pool": (lambda x: F.adaptive_avg_pool1d(x[:, None], 3), EXACT),
    "topk": (lambda x: x.topk(3, 1).values, LOOSE),
    "sort": (lambda x: x.sort(1).values, LOOSE),
    "median": (lambda x: x.median(1).values[:, None], LOOSE),
    "where": (lambda x: torch.where(x > 0.1, x * 2, x.exp() - 3), EXACT),
    "where with a constant": (lambda x: torch.where(x > 0.1, x, torch.full_like(x, -1.0)), EXACT),
    "prod": (lambda x: x.prod(1, keepdim=True), EXACT),
    "cumsum": (lambda x: x.cumsum(1), EXACT),
    "cumprod": (lambda x: x.cumprod(1), EXACT),
    "index, gather, flip": (
        lambda x: x[:, [3, 1, 1]] + x.gather(1, torch.tensor([[0, 2, 4]]).expand(len(x), 3)) + x.flip(1)[:, :3],
        EXACT,
    ),
    "scatter, index_add": (
        lambda x: (
            torch.zeros(len(x), 4).double().index_add(1, torch.tensor([0, 1, 1, 3, 2, 0, 0, 1]), x)
            + torch.zeros(len(x), 4).double().scatter_add(1, torch.tensor([[0, 3]]).expand(len(x), 2), x[:, :2])
        ),
        EXACT,
    ),
    "interpolate": (lambda x: F.interpolate(x.view(-1, 1, 2, 4), scale_factor=2, mode="bilinear"), EXACT),
    "pad, unfold, fold": (lambda x: F.fold(F.unfold(F.pad(x.view(-1, 1, 2, 4), (1, 1)), 2), (2, 6), 2), EXACT),
    "convolution": (lambda x: F.conv1d(x[:, None], W[:3, :3][:, None]), EXACT),
    "batch_norm": (lambda x: F.batch_norm(x, bias, bias.square() + 1), EXACT),
    "lstm, both ways": (lambda x: lstm(x.view(-1, 4, 2))[0], SMOOTH),
    "gru, two layers": (lambda x: gru(x.view(-1, 4, 2))[1].transpose(0, 1), SMOOTH),
    "lstm cell": (lambda x: torch.cat(cell(x), 1), SMOOTH),
    "attention": (lambda x: F.scaled_dot_product_attention(*x.view(-1, 2, 4).expand(3, -1, -1, -1)), SMOOTH),
    "multi-head attention": (lambda x: mha(*[x.view(-1, 2, 4)] * 3)[0], SMOOTH),
    "transformer encoder": (lambda x: encoder(x.view(-1, 2, 4)), 0.5),
    "in place, on views": (in_place, EXACT),
    "detach, data, no_grad inside": (no_grad_inside, EXACT),
    "weights born in inference mode": (lambda x: F.relu(x @ BORN), EXACT),
    "checkpoint": (lambda x: checkpoint(lambda z: F.relu(z @ W), x, use_reentrant=False), EXACT),
    "custom op": (custom, 1e-2),
    "torch.ops": (lambda x: torch.ops.aten.gelu(torch.ops.aten.mul(x, x)), EXACT),
    "fourier": (lambda x: torch.view_as_real(torch.fft.rfft(x)).tanh(), EXACT),
    "complex": (lambda x: (torch.fft.rfft(x) + 5).abs(), SMOOTH),
}


@pytest.mark.parametrize("name", OPS)
def test_a_reference_method_over_each_op(name: str) -> None:
    op, most = OPS[name]
    measured = gap(lambda x: tail(op(x)), X, B)
    assert measured <= most
    expanded = gap(lambda x: tail(op(x)), X, B, expand=EVERY)
    assert expanded <= most


@pytest.mark.parametrize(
    "name", ["attention", "multi-head attention", "transformer encoder", "lstm, both ways", "gru, two layers"]
)
def test_expanding_narrows_the_gap(name: str) -> None:
    op, _ = OPS[name]
    assert gap(lambda x: tail(op(x)), X, B, expand=EVERY) <= 1e-9


def test_half_precision() -> None:
    for dtype, most in ((torch.float32, 1e-4), (torch.bfloat16, 0.3), (torch.float16, 5e-2)):
        w, v = W.to(dtype), torch.ones(6, 1, dtype=dtype)
        assert gap(lambda x, w=w, v=v: F.gelu(F.relu(x @ w)) @ v, X.to(dtype), B.to(dtype)) <= most


@pytest.mark.parametrize(
    "name", ["mlp_functional", "mlp_reused", "residual_cnn", "graph", "smooth", "lstm", "multihead", "vit_sdpa"]
)
@pytest.mark.parametrize("far", [0.0, 1.0])
def test_whole_models(name: str, far: float) -> None:
    model, inputs = CASES[name].make()
    x = inputs if isinstance(inputs, Tensor) else inputs["pixel_values"]
    baseline = far * g(*x.shape, seed=5) + (0.1 if far == 0 else 0)
    wrapped = inputs if isinstance(inputs, Tensor) else {"pixel_values": x}
    assert gap(model, wrapped, baseline, expand=EVERY) <= 2e-2


def test_text_models_with_embeddings_as_reference() -> None:
    for name in ("bert", "gpt2", "bart"):
        family = FAMILIES[name]
        model, inputs = family.build("sdpa"), family.inputs()
        ids = inputs["input_ids"]
        other = {"input_ids": torch.where(ids == 0, 0, ids * 7 % 57 + 3)}  # other words, the same padding
        assert gap(model, inputs, other, target=family.target, expand=EVERY) <= 3e-2


# ---- replay ----


def replay(model: Any, x: Any, baseline: Any) -> whence.subject.passes.Pass:
    made = subject(model, x)
    with scope(made.root):
        return made.run(REFERENCE, reference=as_inputs(made, baseline))


def test_a_branch_that_flips_is_named() -> None:
    def model(x: Tensor) -> Tensor:
        return torch.tanh(x) if x.sum() > 0 else torch.sigmoid(x)

    with pytest.raises(whence.DivergedError, match=r"Op \d: the reference ran sigmoid .* the input runs tanh"):
        replay(model, X.abs(), -X.abs())


def test_more_and_fewer_ops_are_named() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3 if x.sum() > 0 else 1):
                x = self.act(x)
            return x

    with pytest.raises(whence.DivergedError, match=r"Op \d: the input runs tanh in act, but the reference ran no more"):
        replay(Deep(), X.abs(), -X.abs())
    with pytest.raises(
        whence.DivergedError, match=r"The reference ran \d more ops than the input, the first of them tanh \(in act\)"
    ):
        replay(Deep(), -X.abs(), X.abs())

    def longer(x: Tensor) -> Tensor:
        y = torch.tanh(x)
        if x.sum() > 0:
            torch.exp(y)
        return y

    with pytest.raises(whence.DivergedError, match="the reference ran exp|the first of them exp"):
        replay(longer, -X.abs(), X.abs())


def test_the_tape_is_empty_after_use() -> None:
    done = replay(CASES["mlp_functional"].make()[0], g(3, 6), g(3, 6, seed=2))
    assert done.flow.tape is not None
    assert not done.flow.tape.entries


def test_one_reference_row_serves_many_and_is_recorded_again_where_rows_are_mixed() -> None:
    def keeps_rows(x: Tensor) -> Tensor:
        return F.relu(x.unsqueeze(0).transpose(0, 1) @ W).flatten(1) @ V[:6, :2]

    def joins_rows(x: Tensor) -> Tensor:
        return F.relu(x.reshape(-1, 4) @ W[:4]).reshape(-1, 12) @ torch.cat([V, V])[:12, :2]

    row = g(1, 8, seed=7)
    for model, recordings in ((keeps_rows, 1), (joins_rows, 2)):
        made = subject(model, X)
        with scope(None):
            reference = as_inputs(made, row)
            assert reference.rows == 1
            before = made.record.forwards
            shared = made.run(REFERENCE, reference=reference).pull()["input"]
            assert made.record.forwards - before == recordings + 1
            full = made.run(REFERENCE, reference=as_inputs(made, row.expand(3, 8).clone())).pull()["input"]
        close(shared, full, 1e-12)


def test_several_references_are_a_loop() -> None:
    model, x = CASES["mlp_functional"].make()
    made = subject(model, x)
    with scope(made.root):
        each = [made.run(REFERENCE, reference=as_inputs(made, s)).pull()["input"] for s in (0, 0.5)]
    assert not torch.equal(each[0], each[1])


def test_values_overwritten_in_the_reference_are_recorded_again_with_copies() -> None:
    def model(x: Tensor) -> Tensor:
        h = x @ W
        y = F.relu(h)
        h.fill_(3.0)
        return y @ V[:6, :2]

    assert gap(model, X, B) <= EXACT


# ---- one forward pass, many propagations ----


def eq1(call: Any, r: Any) -> Any:
    """LRP's generic rule: R_j = Σ_i x_j ∂L_i/∂x_j R_i / L_i."""
    y = call.y
    safe = torch.where(y == 0, torch.zeros_like(y), r / y.masked_fill(y == 0, 1))
    return [None if m is None else x * m for x, m in zip(call.x, call.vjp(safe), strict=True)]


RELEVANCE = {"*": eq1, "view": whence.derivative}


def test_gradient_and_relevance_from_one_pass_equal_two_passes() -> None:
    for name in ("mlp_functional", "residual_cnn", "vit_sdpa"):
        model, inputs = CASES[name].make()
        both = run(model, inputs, RELEVANCE, expand=EVERY)
        relevance = both.pull(again=True)
        gradient = both.pull({}, again=True)
        once_more = both.pull()
        alone = run(model, inputs, RELEVANCE, expand=EVERY).pull()
        plain = run(model, inputs).pull()
        for key in plain:
            close(relevance[key], alone[key], 1e-12)
            close(once_more[key], alone[key], 1e-12)
            close(gradient[key], plain[key], 1e-12)
        assert both.subject.record.forwards == 1
        assert both.subject.record.backwards == 3


# ---- what a reviewer found ----


def scores(model: Any, baseline: Any = B) -> tuple[Tensor, Tensor]:
    done = replay(model, X, baseline)
    return done.score[:, 0].detach(), done.reference.score[:, 0].detach()


def test_writes_through_data_and_detach_are_the_models_own() -> None:
    def through_data(x: Tensor) -> Tensor:
        h = x @ W
        h.data.clamp_(min=0)
        return h

    def through_detach(x: Tensor) -> Tensor:
        h = x @ W
        h.detach()[:, :4] = 0.5
        return h @ V[:6]

    for model in (through_data, through_detach):
        here, before = scores(model)
        close(here, model(X.clone())[:, 0], 1e-12)
        close(before, model(B.clone())[:, 0], 1e-12)


def test_constants_may_be_detached() -> None:
    layer, kept = nn.Linear(8, 6).double(), g(8, seed=8)
    assert gap(lambda x: F.relu(F.linear(x * kept.detach() + kept.data, layer.weight.detach())), X, B) <= EXACT


def test_shapes_that_depend_on_the_data_diverge_by_name() -> None:
    with pytest.raises(whence.DivergedError, match="other shapes"):
        gap(lambda x: F.relu(x[:, : 2 + int(x[0, 0] > 0)]).sum(1, keepdim=True), X.abs(), -B.abs())


def test_one_row_that_does_not_serve_is_expanded() -> None:
    one_by_one = lambda x: torch.stack([F.relu(row @ W) for row in x])  # noqa: E731
    fixed = lambda x: F.relu(x.view(3, 2, 4)).flatten(1)  # noqa: E731
    against_each_other = lambda x: F.relu(x @ W) @ (x @ W).T  # noqa: E731
    for model in (one_by_one, fixed):
        assert gap(model, X, 0.3) <= 1e-6
    gap(against_each_other, X, 0.3, target=2)  # rows meet here: a gap per row means nothing, but it runs


def test_both_spellings_of_where_share_alike() -> None:
    flags = torch.tensor([True, False] * 2)
    one = replay(lambda x: x[:, :4].where(flags, x[:, 4:]).sum(1, keepdim=True), X, B).pull()["input"]
    two = replay(lambda x: torch.where(flags, x[:, :4], x[:, 4:]).sum(1, keepdim=True), X, B).pull()["input"]
    three = replay(lambda x: torch.where(condition=flags, input=x[:, :4], other=x[:, 4:]).sum(1, keepdim=True), X, B)
    assert torch.equal(one, two)
    assert torch.equal(three.pull()["input"], two)


def test_infinities_that_stay_are_no_change() -> None:
    hidden = torch.zeros(4).double()
    hidden[2] = float("-inf")

    def model(x: Tensor) -> Tensor:
        s = x[:, :4] + hidden
        e = (s - s.amax(1, keepdim=True)).exp()
        return e / e.sum(1, keepdim=True)

    assert gap(model, X, B) <= 1e-6


def test_in_place_with_itself() -> None:
    def model(x: Tensor) -> Tensor:
        h = x * 1
        h.mul_(h)
        return h

    assert gap(model, X, B) <= EXACT


def test_an_edit_of_attention_with_a_reference() -> None:
    half = lambda site, t: t * 0.5 if site.kind == "attention" else None  # noqa: E731
    model = lambda x: tail(mha(*[x.view(-1, 2, 4)] * 3)[0])  # noqa: E731
    assert gap(model, X, B, expand=EVERY, edit=half) <= 1e-6


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return (x * 3) - x

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Tensor:
        return m * 2


def test_ops_that_the_mode_cannot_see_do_not_diverge() -> None:
    for hidden in (Doubling.apply, torch.vmap(lambda v: v * 2)):
        assert gap(lambda x, hidden=hidden: (hidden(x @ W) @ V[:6]).tanh(), X, B) <= 1e-6


def test_a_models_own_inference_mode() -> None:
    def model(x: Tensor) -> Tensor:
        with torch.inference_mode():
            scale = torch.zeros(1).double()
            scale.add_(5)
        return x * scale.item() + x * scale

    close(run(model, X).score[:, 0].detach(), model(X)[:, 0], 1e-12)


def test_attention_as_one_rule_notices_what_is_overwritten() -> None:
    def model(x: Tensor) -> Tensor:
        q = x.view(-1, 2, 4) * 1
        y = F.scaled_dot_product_attention(q, q * 2, q * 3)
        q.zero_()
        return tail(y)

    def own(call: Any, m: Tensor) -> Any:
        return call.vjp(m)

    plain = run(lambda x: tail(F.scaled_dot_product_attention(*(x.view(-1, 2, 4) * n for n in (1, 2, 3)))), X).pull()
    close(run(model, X, {"attention": own}).pull()["input"], plain["input"], 1e-12)
