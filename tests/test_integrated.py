"""What integrated gradients say of themselves: gaps, budgets, memory, rows that leave, and mistakes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.hf import FAMILIES
from tests.support.models import CASES, close


def smooth(rows: int = 4) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)).double()
    return model, torch.randn(rows, 6).double() * 2


def ig(model: Any, inputs: Any, **options: Any) -> whence.Attribution:
    return whence.explain(model, inputs, method="integrated_gradients", **options)


def family(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    return FAMILIES[name].build("sdpa"), FAMILIES[name].inputs()


def error(a: whence.Attribution, fine: whence.Attribution) -> Tensor:
    return (a.values - fine.values).flatten(1).abs().sum(1) / fine.values.flatten(1).abs().sum(1)


# ---- the answer and what it says ----


@pytest.mark.parametrize("tolerance", [0.1, 0.01, 1e-4, 1e-7])
def test_the_tolerance_is_kept_and_reported(tolerance: float) -> None:
    model, x = smooth(16)
    a, fine = ig(model, x, target=0, tolerance=tolerance), ig(model, x, target=0, steps=200)
    assert float(a.gap.max()) <= tolerance
    assert float(error(a, fine).max()) <= 1.5 * tolerance
    receipt = a.receipt
    assert receipt["scheme"] == "gradients"
    assert receipt["tolerance"] == tolerance
    assert len(receipt["gradient_evaluations"]) == len(receipt["tolerance_reached"]) == 16
    assert max(receipt["tolerance_reached"]) <= tolerance
    assert all(receipt["converged"])


def test_gap_and_residual_follow_their_definition() -> None:
    model, x = smooth()
    a = ig(model, x, target=1, rule="right", steps=3, baseline=0.3)
    rise = (model(x) - model(torch.full_like(x, 0.3)))[:, 1].detach()
    residual = a.values.sum(1) - rise
    close(a.residual, residual, 1e-12)
    scores = torch.stack([a.output_value, a.baseline_value]).abs().amax(0)
    close(a.gap, residual.abs() / torch.maximum(rise.abs(), 0.1 * scores), 1e-12)
    close(a.baseline_value, model(torch.full_like(x, 0.3))[:, 1].detach(), 1e-12)
    assert whence.explain(model, x, method="gradient", baseline=0.3).gap is None


def test_a_row_whose_score_does_not_change_can_stop() -> None:
    a = ig(lambda x: 5 + x[:, :1] - x[:, 1:], torch.tensor([[1.0, 1.0], [2.0, 2.0]]))
    assert all(a.receipt["converged"])
    close(a.values, torch.tensor([[1.0, -1.0], [2.0, -2.0]]), 1e-6)


def test_rows_leave_when_they_are_done_and_easy_rows_cost_little() -> None:
    model, x = smooth(2)
    a = ig(model, torch.cat([x * 1e-3, x * 4]), target=0, tolerance=1e-5)
    easy, hard = a.receipt["gradient_evaluations"][:2], a.receipt["gradient_evaluations"][2:]
    assert max(easy) == 17 < min(hard)


def test_rows_that_do_not_come_within_the_tolerance_are_named() -> None:
    model, x = smooth()
    hard = torch.cat([x[:1] * 1e-3, x[1:] * 10])
    with pytest.warns(whence.WhenceWarning, match=r"rows \[1, 2, 3\] did not reach the tolerance of 1e-08.*max_steps"):
        a = ig(model, hard, target=0, tolerance=1e-8, max_steps=20)
    assert a.receipt["converged"] == [True, False, False, False]
    assert max(a.receipt["gradient_evaluations"]) <= 20
    with pytest.warns(whence.WhenceWarning, match=r"rows \[1, 2, 3\]"):  # by their places in the user's batch
        split = ig(model, hard, target=0, tolerance=1e-8, max_steps=20, batch_size=4)
    close(split.values, a.values, 1e-12)


def test_kinks_are_told_by_the_models_ops() -> None:
    model, x = CASES["residual_cnn"].make()
    assert ig(model, x).receipt["scheme"] == "chords"
    assert ig(model, x, rules={"relu": whence.derivative}, tolerance=0.5).receipt["scheme"] == "jumps"


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * (x > 0)

    @staticmethod
    def backward(ctx: Any, m: Tensor) -> Tensor:
        return m * (ctx.saved_tensors[0] > 0)


@pytest.mark.parametrize(
    "relu", [lambda h: h * (h > 0), lambda h: torch.where(h > 0, h, torch.zeros_like(h)), Custom.apply]
)
def test_kinks_that_no_op_shows_are_told_by_the_gradients(relu: Any) -> None:
    torch.manual_seed(4)
    first, second, last = nn.Linear(10, 48).double(), nn.Linear(48, 32).double(), nn.Linear(32, 1).double()

    def model(x: Tensor) -> Tensor:
        return last(relu(second(relu(first(x)))))[:, 0]

    x = torch.randn(8, 10).double()
    a, fine = ig(model, x), ig(model, x, rule="midpoint", steps=4000)
    assert a.receipt["scheme"] == "jumps"
    assert float(error(a, fine).max()) <= 0.01


KINKED_OPS = {
    "relu": nn.ReLU(), "relu6": nn.ReLU6(), "leaky": nn.LeakyReLU(0.2), "prelu": nn.PReLU(), "clamp": nn.Hardtanh(),
    "selu": nn.SELU(), "hardswish": nn.Hardswish(), "max_pool": nn.MaxPool1d(3, 2, 1),
    "adaptive": nn.AdaptiveMaxPool1d(8),
}  # fmt: skip


def kinked(kind: nn.Module) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Linear(10, 32), kind, nn.LazyLinear(24), nn.Tanh(), nn.Linear(24, 24), kind, nn.LazyLinear(3)
    )
    x = torch.randn(3, 10)
    model(x)
    return model.double(), x.double() * 2


@pytest.mark.parametrize("name", KINKED_OPS)
def test_chords_are_complete_piece_by_piece_and_converge(name: str) -> None:
    model, x = kinked(KINKED_OPS[name])
    a, fine = ig(model, x, target=1, tolerance=0.003), ig(model, x, target=1, rule="midpoint", steps=6000)
    assert a.receipt["scheme"] == "chords"
    assert all(a.receipt["converged"])
    assert float(a.gap.max()) <= 1e-9
    assert float(error(a, fine).max()) <= 0.003


@pytest.mark.parametrize("name", ["relu", "max_pool"])
def test_chords_do_not_depend_on_the_pass(name: str) -> None:
    model, x = kinked(KINKED_OPS[name])
    whole = ig(model, x, target=0)
    for options in ({"batch_size": 2}, {"batch_size": 3}, {"batch_size": 64}):
        close(ig(model, x, target=0, **options).values, whole.values, 1e-9)
    counted = Counted(model)
    alone = ig(counted, x, target=0, batch_size=1)  # a chord has two ends: points alone are integrated in another way
    assert (max(SEEN), alone.receipt["scheme"]) == (1, "jumps")
    assert float(error(alone, whole).max()) <= 0.02
    close(ig(model, x[1:2], target=0).values, whole.values[1:2], 1e-9)
    counted = Counted(model)
    ig(counted, x, target=0, batch_size=5)
    assert max(SEEN) <= 5
    small = Counted(model, most=7)
    close(ig(small, x, target=0).values, whole.values, 1e-9)
    with pytest.raises(torch.OutOfMemoryError):
        ig(Counted(model, most=0), x, target=0)


def test_what_was_paid_is_counted() -> None:
    model, x = kinked(KINKED_OPS["relu"])
    for options, ends in (({}, 1), ({"batch_size": 4}, 1), ({"rule": "midpoint", "steps": 20}, 2)):
        counted = Counted(model)
        a = ig(counted, x, target=0, **options)
        outside = ends * len(x)  # the scores at the input, and at the baseline if no evaluation was there
        assert sum(SEEN) - outside == sum(a.receipt["gradient_evaluations"])


@pytest.mark.filterwarnings("ignore:.*did not reach the tolerance:whence.WhenceWarning")
@pytest.mark.parametrize("limit", [8, 11, 24, 60])
def test_no_row_takes_more_evaluations_than_it_may(limit: int) -> None:
    model, x = kinked(KINKED_OPS["relu"])
    even, y = smooth(3)
    turned = nn.Sequential(model, nn.Flatten(0), nn.ReLU(), nn.Unflatten(0, (-1, 3)))  # no chords are right here
    for size in (None, 1, 2, 3, 5):
        for some, rows in ((model, x), (even, y), (turned, x)):
            counted = Counted(some)
            a = ig(counted, rows, target=0, tolerance=1e-6, max_steps=limit, batch_size=size)
            assert max(a.receipt["gradient_evaluations"]) <= limit
            assert sum(SEEN) - 3 == sum(a.receipt["gradient_evaluations"])
    several = [0.0, 0.3, 0.7, 1.0]
    a = ig(model, x, target=0, tolerance=1e-6, max_steps=limit, baseline=several)
    assert max(a.receipt["gradient_evaluations"]) <= limit
    with pytest.raises(whence.ParameterError, match="too few for 40 paths, of which each needs two points"):
        ig(model, x, target=0, max_steps=limit, baseline=several * 10)


def test_chords_that_do_not_sum_up_are_not_used() -> None:
    """Rows on another axis, and a mask that the model makes itself: no chord is right there, and it shows."""
    torch.manual_seed(2)
    first, last = nn.Linear(6, 16).double(), nn.Linear(16, 2).double()
    x = torch.randn(4, 6).double()
    turned = ig(lambda t: last(first(t).T.relu().T), x, target=0)
    masked = ig(lambda t: last(first(t).relu() * (first(t).detach() > 0)), x, target=0)
    plain = ig(lambda t: last(first(t).relu()), x, target=0, tolerance=1e-3)
    assert turned.receipt["scheme"] == "jumps"
    assert masked.receipt["scheme"] == "jumps"
    assert float(torch.maximum(error(turned, plain), error(masked, plain)).max()) <= 0.01


@pytest.mark.filterwarnings("ignore:.*did not reach the tolerance:whence.WhenceWarning")
def test_what_a_model_detaches_gets_nothing_with_kinks_either() -> None:
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
    a = ig(lambda t: (t * t.detach()).relu().sum(1), x)
    fine = ig(lambda t: (t * t.detach()).relu().sum(1), x, rule="midpoint", steps=2000)
    close(a.values, fine.values, 0.03)
    assert not any(a.receipt["converged"])  # half of the rise went through detach()


@pytest.mark.filterwarnings("ignore:.*did not reach the tolerance:whence.WhenceWarning")
def test_a_row_does_not_depend_on_the_branches_of_others() -> None:
    torch.manual_seed(3)
    first, second = nn.Linear(4, 6).double(), nn.Linear(4, 6).double()

    def mixture(x: Tensor) -> Tensor:
        to_first = x[:, 0] > 0.5
        out = x.new_zeros(len(x), 6)
        for expert, chosen in ((first, to_first), (second, ~to_first)):
            if bool(chosen.any()):
                out = out.index_put((chosen.nonzero()[:, 0],), expert(x[chosen]).relu())
        return out.sum(1)

    x = torch.randn(4, 4).double()
    x[:, 0] = torch.tensor([2.0, -1.0, 0.3, 1.0])
    whole = ig(mixture, x)
    for row in range(4):
        close(ig(mixture, x[row : row + 1]).values, whole.values[row : row + 1], 1e-9)


SINGULAR = ("llama", "qwen3", "t5", "modernbert")
FROM_THE_MEAN = r"rows \[0, 1\].*the baseline there is the mean embedding"


def test_zero_embeddings_under_an_rms_norm_are_flagged_with_the_advice() -> None:
    model, inputs = family("llama")
    with pytest.warns(whence.WhenceWarning, match=r'the path leaves the baseline.*"pad" or "mean"'):
        a = ig(model, inputs, target=FAMILIES["llama"].target, baseline=0)
    assert not any(a.receipt["converged"])
    assert max(a.receipt["gradient_evaluations"]) < 60  # where there is no integral, none is looked for
    assert "baseline" not in a.receipt


@pytest.mark.parametrize("name", SINGULAR)
def test_the_default_is_the_mean_embedding_where_zero_has_no_integral(name: str) -> None:
    model, inputs = family(name)
    with pytest.warns(whence.WhenceWarning, match=FROM_THE_MEAN):
        a = ig(model, inputs, target=FAMILIES[name].target)
    assert all(a.receipt["converged"])
    assert a.receipt["baseline"] == ["mean", "mean"]
    assert "the mean embedding" in a.receipt["warnings"][0]
    named = ig(model, inputs, target=FAMILIES[name].target, baseline="mean")
    close(
        a.raw if isinstance(a.raw, Tensor) else a.raw["input_ids"],
        named.raw if isinstance(named.raw, Tensor) else named.raw["input_ids"],
        1e-6,
    )
    close(a.baseline_value, named.baseline_value, 1e-6)


@pytest.mark.parametrize("method", ["expected_gradients", "path_integrated_gradients"])
def test_the_default_of_other_integrals_is_the_same(method: str) -> None:
    model, inputs = family("llama")
    with pytest.warns(whence.WhenceWarning, match=FROM_THE_MEAN):
        a = whence.explain(model, inputs, method=method, target=0)
    named = whence.explain(model, inputs, method=method, target=0, baseline="mean")
    close(a.values, named.values, 1e-6)


def test_smoothed_integrals_start_where_the_clean_ones_do() -> None:
    model, inputs = family("llama")
    options: dict[str, Any] = {"method": "smoothgrad", "of": "integrated_gradients", "target": 0, "samples": 2}
    with pytest.warns(whence.WhenceWarning, match=FROM_THE_MEAN):
        a = whence.explain(model, inputs, **options)
    close(a.values, whence.explain(model, inputs, **options, baseline="mean").values, 1e-6)


class Gated(nn.Module):
    """A row whose first id is 0 has its embeddings normalised by their size, another has not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.table, self.out = nn.Embedding(9, 6).double(), nn.Linear(6, 3).double()

    def forward(self, input_ids: Tensor) -> Tensor:
        e = self.table(input_ids)
        sized = torch.where(
            (input_ids[:, :1] == 0)[..., None], e * e.square().mean(-1, keepdim=True).add(1e-12).rsqrt(), e
        )
        return self.out(sized.mean(1)).tanh()


def test_the_default_baseline_is_chosen_row_by_row() -> None:
    model, ids = Gated(), torch.tensor([[0, 2, 3], [4, 2, 3], [0, 7, 8]])
    with pytest.warns(whence.WhenceWarning, match=r"rows \[0, 2\].*mean embedding"):
        whole = ig(model, {"input_ids": ids}, target=0)
    assert whole.receipt["baseline"] == ["mean", "zero", "mean"]
    with pytest.warns(whence.WhenceWarning, match=r"rows \[0, 2\].*mean embedding"):
        split = ig(model, {"input_ids": ids}, target=0, batch_size=1)
    close(split.values, whole.values, 1e-12)
    assert split.receipt["baseline"] == whole.receipt["baseline"]
    alone = ig(model, {"input_ids": ids[1:2]}, target=0)
    close(alone.values, whole.values[1:2], 1e-12)
    close(alone.values, ig(model, {"input_ids": ids[1:2]}, target=0, baseline=0).values, 1e-12)


# ---- inputs of every kind ----


def test_several_inputs_ids_and_layers() -> None:
    model, x = smooth()

    def two(a: Tensor, b: Tensor) -> Tensor:
        return model(a * b.tanh())

    both = ig(two, (x, x + 1), target=0, baseline=(0.0, 0.5))
    assert float(both.gap.max()) <= 0.01
    bert, inputs = family("bert")
    a = ig(bert, inputs, target=1)
    assert a.values.shape == inputs["input_ids"].shape
    assert float(a.gap.max()) <= 0.01
    layer = ig(bert, inputs, target=1, at="bert.encoder.layer.0")
    assert float(layer.gap.max()) <= 0.01
    close(layer.output_value, a.output_value, 1e-6)


def test_layer_neuron_and_conductance() -> None:
    """Layer IG is at=; neuron IG a function of a hidden unit; conductance their sum over units, by the chain rule."""
    model, x = smooth()
    layer = ig(model, x, target=0, at="1", tolerance=1e-6)
    close(layer.values.sum(1), (model(x) - model(torch.zeros_like(x)))[:, 0].detach(), 1e-5)
    hidden = nn.Sequential(*list(model)[:2])
    neuron = ig(hidden, x, target=lambda h: h[:, 3], tolerance=1e-6)
    close(neuron.values.sum(1), (hidden(x) - hidden(torch.zeros_like(x)))[:, 3].detach(), 1e-5)


def test_conductance_as_the_readme_has_it() -> None:
    """A hidden layer's path while the input moves straight: path_integrated_gradients of the rest of the model."""
    model, x = smooth()
    hidden, rest = nn.Sequential(*list(model)[:2]), nn.Sequential(*list(model)[2:])
    a = whence.explain(
        rest,
        hidden(x).detach(),
        method="path_integrated_gradients",
        target=0,
        path=lambda alpha: hidden(alpha * x),
        tolerance=1e-6,
    )
    steps = (torch.arange(2000).double() + 0.5) / 2000
    expected = torch.zeros_like(a.values)
    for alpha in steps:
        h = hidden(alpha * x).detach().requires_grad_()
        speed = (hidden((alpha + 1e-5) * x) - hidden((alpha - 1e-5) * x)) / 2e-5
        expected += torch.autograd.grad(rest(h)[:, 0].sum(), h)[0] * speed.detach() / 2000
    close(a.values, expected, 1e-5)


def test_padding_stays_where_it_is() -> None:
    bert, inputs = family("bert")
    a = ig(bert, inputs, target=0, baseline=0.7)
    padding = inputs["attention_mask"] == 0
    assert bool(padding.any())
    assert bool((a.raw[padding] == 0).all())


# ---- passes ----


SEEN: list[int] = []  # rows per pass; a model's own list would be put back as it was


class Counted(nn.Module):
    """A model that takes at most so many rows at once."""

    def __init__(self, inner: nn.Module, most: int = 10**9) -> None:
        super().__init__()
        self.inner, self.most = inner, most
        SEEN.clear()

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return self.inner(x)


@pytest.mark.parametrize("rule", ["adaptive", "gauss_legendre"])
def test_passes_are_no_larger_than_asked_for_and_halve_when_memory_runs_out(rule: str) -> None:
    model, x = smooth(3)
    plain = ig(model, x, target=0, rule=rule)
    counted = Counted(model)
    close(ig(counted, x, target=0, rule=rule, batch_size=2).values, plain.values, 1e-12)
    assert max(SEEN) <= 2
    small = Counted(model, most=5)
    close(ig(small, x, target=0, rule=rule).values, plain.values, 1e-12)
    assert max(SEEN[-3:]) <= 5
    with pytest.raises(torch.OutOfMemoryError):
        ig(Counted(model, most=0), x, target=0, rule=rule)


def test_large_rows_go_in_passes_of_the_users_batch() -> None:
    torch.manual_seed(0)
    model = Counted(nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.LazyLinear(2)))
    x = torch.randn(3, 3, 192, 192)
    model(x)
    SEEN.clear()
    ig(model, x, target=0)
    assert set(SEEN) <= {1, 2, 3}


def test_a_target_function_may_know_its_rows_by_their_places() -> None:
    model, x = smooth(3)
    classes = torch.tensor([0, 2, 1])
    expected = ig(model, x, target=classes)
    bound = ig(model, x, target=lambda y: y[torch.arange(3), classes])
    close(bound.values, expected.values, 1e-12)
    counted = Counted(model)
    ig(counted, x, target=lambda y: y[:, 0])
    assert max(SEEN) > 3  # this one does not, so rows are packed


def test_a_model_may_know_its_rows_by_their_places_too() -> None:
    model, x = smooth(4)
    c = torch.rand(4, 1).double() * 3 + 0.5
    expected = ig(model, x * c, target=0, steps=8).values
    for options in ({}, {"batch_size": 4}):
        close(ig(lambda t: model(t * c), x, target=0, steps=8, **options).values, expected, 1e-12)


def test_a_shared_table_as_long_as_rows_times_targets_stays_shared() -> None:
    x, table = torch.randn(1, 4).double(), torch.randn(3, 4).double()
    inputs = {"x": x, "table": table}
    a = whence.explain(
        lambda x, table: x @ table.T, inputs, wrt="x", method="integrated_gradients", target=torch.tensor([[0, 1, 2]])
    )
    close(a.values[0], x * table, 1e-12)


def test_tables_that_renormalise_themselves_are_left_alone_in_light_passes() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(7, 4, max_norm=0.5).double(), nn.Linear(4, 2).double()

        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            return self.out((x + self.table(ids)).tanh())

    model = Normed()
    before = model.table.weight.detach().clone()
    inputs = {"x": torch.randn(2, 4).double(), "ids": torch.tensor([1, 2])}
    for method in ("shapley", "integrated_gradients", "expected_gradients"):
        whence.explain(model, inputs, wrt="x", method=method, target=0, batch_size=4)
        assert torch.equal(model.table.weight, before)


def test_inputs_that_a_dict_of_baselines_leaves_out_start_at_0() -> None:
    a, b = torch.randn(2, 3).double(), torch.randn(2, 3).double()
    part = ig(lambda a, b: (a + b).sum(1), {"a": a, "b": b}, baseline={"a": 1.0})
    close(part.values["b"], b, 1e-12)
    close(part.values["a"], a - 1, 1e-12)


# ---- mistakes ----


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps=0 is not allowed"),
        ({"steps": 2.5}, "steps=2.5 is not allowed"),
        ({"tolerance": 0}, "tolerance=0.0 is not allowed"),
        ({"tolerance": -1}, "above 0"),
        ({"max_steps": 1}, "max_steps=1 is not allowed"),
        ({"rule": "simpson"}, "rule='simpson' is not allowed"),
        ({"baseline": torch.zeros(2, 5)}, r"shape \(2, 5\), but the input has \(4, 6\)"),
        ({"baseline": float("nan")}, "Give a finite number"),
        ({"baseline": torch.full((6,), float("nan"))}, "not finite"),
        ({"baseline": []}, "list of baselines is empty"),
        ({"baseline": "blurr"}, "Did you mean 'blur'"),
        ({"baseline": "blur"}, "needs images"),
        ({"baseline": "pad"}, "needs token ids"),
        ({"baseline": object()}, "Give a number, a tensor like the input, a name"),
    ],
)
def test_mistakes_have_named_errors(options: dict[str, Any], message: str) -> None:
    model, x = smooth()
    with pytest.raises(whence.WhenceError, match=message):
        ig(model, x, target=0, **options)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (lambda x: [torch.zeros_like(x), x + 1], "does not end at the input: 'input' is off by up to 1"),
        (lambda x: [x], "is not a path"),
        (lambda x: [torch.zeros(2, 2), x], r"Way-point 0 of the path has a tensor of shape \(2, 2\)"),
        (lambda x: [x * float("nan"), x], "not finite"),
        (lambda x: lambda alpha: x * alpha.item(), "derivative by α is 0"),
        (lambda x: lambda alpha: x * (alpha + 1), "does not end at the input"),
        (lambda x: 3, "path=3 is not a path"),
    ],
)
def test_a_bad_path_is_refused(path: Any, message: str) -> None:
    model, x = smooth()
    with pytest.raises(whence.ParameterError, match=message):
        whence.explain(model, x, method="path_integrated_gradients", target=0, path=path(x))


def test_a_path_and_a_baseline_do_not_go_together() -> None:
    model, x = smooth()
    with pytest.raises(whence.ParameterError, match="A path has its own start"):
        whence.explain(model, x, method="path_integrated_gradients", path=[x * 0, x], baseline=0)


def test_a_path_by_rows_goes_with_its_rows() -> None:
    model, x = smooth(5)
    points = [torch.randn_like(x), torch.randn_like(x), x]
    whole = whence.explain(model, x, method="path_integrated_gradients", target=0, path=points)
    split = whence.explain(model, x, method="path_integrated_gradients", target=0, path=points, batch_size=2)
    close(split.values, whole.values, 1e-12)


def test_a_kink_at_the_end_of_a_panel_is_found_there_whatever_the_rounding() -> None:
    """The maxima of windows, scaled: straight but for the tie at 0, where rounding put the kink now here, now there."""
    weight = torch.randn(8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def model(x: Tensor) -> Tensor:
        return nn.functional.unfold(x, 2, stride=2).view(len(x), 2, 4, 4).amax(2).flatten(1) @ weight

    x = torch.randn(8, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    a = whence.explain(model, x, method="integrated_gradients", target=0)
    assert a.gap is not None
    assert float(a.gap.max()) < 1e-12
    for row in range(8):
        alone = whence.explain(model, x[row : row + 1], method="integrated_gradients", target=0)
        assert torch.allclose(alone.values[0], a.values[row], rtol=0, atol=1e-12)
