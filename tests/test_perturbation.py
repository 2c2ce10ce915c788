"""Perturbation methods: units, windows, padding, passes, what is kept, and each mistake with its error."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whence
from tests.support.models import CASES, close
from whence.results.words import groups_of

METHODS = ("occlusion", "leave_one_out", "shapley", "kernel_shap", "lime")
SHARED = ("shapley", "kernel_shap")  # a unit's value is shared among its elements
EVERY = pytest.mark.parametrize("method", METHODS)

IMAGES = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(0)).double()
SIGNALS = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(1)).double()
WEIGHTS = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(2)).double()
TABLE = torch.randn(20, 3, generator=torch.Generator().manual_seed(3)).double()
IDS, MASK = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def explain(model: Any, x: Any, method: str, **options: Any) -> whence.Attribution:
    return whence.explain(model, x, method=method, **options)


def linear(x: Tensor) -> Tensor:
    return (x * WEIGHTS).sum((1, 2, 3)) + 2


def bag(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    embedded = nn.functional.embedding(input_ids, TABLE) * attention_mask[..., None]
    return torch.tanh(embedded.sum(1)).sum(1)


TERMS = IMAGES * WEIGHTS


def unit_sums(units: Tensor) -> Tensor:
    """The linear model's terms of each unit, at each of its elements; 0 where nothing is removed."""
    found, spread = torch.zeros_like(TERMS), units.expand_as(TERMS)
    for row in range(len(TERMS)):
        for unit in spread[row].unique():
            if unit >= 0:
                inside = spread[row] == unit
                found[row][inside] = TERMS[row][inside].sum()
    return found


def unit_sizes(units: Tensor) -> Tensor:
    spread = units.expand_as(TERMS)
    return torch.stack([(spread[..., None] == spread.flatten(1)[:, None, None, None]).sum(-1)])[0]


# ---- units ----

PIXELS = torch.arange(24).view(1, 1, 4, 6)
BLOCKS = (torch.arange(4)[:, None] // 2 * 3 + torch.arange(6) // 2).view(1, 1, 4, 6)
HALVES = (torch.arange(6) < 3).long().expand(4, 6)
PER_ROW = torch.stack([HALVES, 5 * HALVES, -HALVES])  # (rows, h, w)

UNITS: list[tuple[str, Any, Tensor]] = [
    ("auto", "auto", PIXELS),
    ("pixels", "pixels", PIXELS),
    ("elements", "elements", torch.arange(48).view(1, 2, 4, 6)),
    ("grid", "grid", (torch.arange(6) // 4).view(1, 1, 1, 6)),
    ("blocks", 2, BLOCKS),
    ("one row, no channels", HALVES, HALVES),
    ("one row", HALVES.expand(2, 4, 6), HALVES),
    ("all rows, no channels", PER_ROW, PER_ROW[:, None]),
    ("all rows", PER_ROW[:, None].expand(3, 2, 4, 6), PER_ROW[:, None]),
    ("all dimensions", PER_ROW[:, None].int(), PER_ROW[:, None]),
    ("by name", {"input": HALVES}, HALVES),
]


@pytest.mark.slow
@pytest.mark.parametrize(("units", "numbers"), [case[1:] for case in UNITS], ids=[case[0] for case in UNITS])
@EVERY
def test_units_of_an_image(method: str, units: Any, numbers: Tensor) -> None:
    a = explain(linear, IMAGES, method, units=units)
    expected = unit_sums(numbers)
    if method in SHARED:
        expected = expected / unit_sizes(numbers)
    if method != "occlusion" or units != "auto":  # which slides a window there
        close(a.values, expected, 1e-9)
    split = explain(linear, IMAGES, method, units=units, batch_size=2)
    close(split.values, a.values, 1e-9)
    if method in SHARED:
        close(a.values.flatten(1).sum(1), a.output_value - a.baseline_value, 1e-9)


@EVERY
def test_units_of_signals_features_and_tokens(method: str) -> None:
    def total(x: Tensor) -> Tensor:
        return x.flatten(1).sum(1)

    share = 3 if method in SHARED else 1
    close(explain(total, SIGNALS, method).values, SIGNALS.sum(1, keepdim=True).expand(-1, 3, -1) / share, 1e-9)
    tokens = explain(total, SIGNALS, method, units="tokens").values
    close(tokens, SIGNALS.sum(2, keepdim=True).expand(-1, -1, 5) / (5 if method in SHARED else 1), 1e-9)
    embedded = {"inputs_embeds": SIGNALS, "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}

    def masked(inputs_embeds: Tensor, attention_mask: Tensor) -> Tensor:
        return (inputs_embeds * attention_mask[..., None]).sum((1, 2))

    found = explain(masked, embedded, method).values
    expected = tokens.clone()
    expected[1, 2] = 0
    close(found, expected, 1e-9)
    close(explain(total, SIGNALS[:, 0], method).values, SIGNALS[:, 0], 1e-9)
    close(explain(lambda x: x * 2, SIGNALS[:, 0, 0], method).values, SIGNALS[:, 0, 0] * 2, 1e-9)


@EVERY
def test_ids_get_one_score_per_token_and_padding_none(method: str) -> None:
    a = explain(bag, {"input_ids": IDS, "attention_mask": MASK}, method)
    assert a.values.shape == a.raw.shape == (2, 4)
    assert a.values[1, 2:].tolist() == [0.0, 0.0]
    assert a[1].values.shape == (1, 2)
    left = explain(bag, {"input_ids": IDS.flip(1), "attention_mask": MASK.flip(1)}, method)
    close(left.values.flip(1), a.values, 1e-12)
    for how in ("sum", "max_abs"):
        shown = explain(bag, {"input_ids": IDS, "attention_mask": MASK}, method, channels=how).values
        close(shown, a.values if how == "sum" else a.values.abs(), 1e-12)
    pairs = explain(bag, {"input_ids": IDS.flip(1), "attention_mask": MASK.flip(1)}, method, units=2).values
    assert pairs[1, :2].tolist() == [0.0, 0.0]
    assert pairs[1, 2] == pairs[1, 3]
    words = torch.tensor([[-1, 0, 0, -1], [-1, 4, 9, 9]])
    by_word = explain(bag, {"input_ids": IDS, "attention_mask": MASK}, method, units=words).values
    assert by_word[0, 1] == by_word[0, 2] != 0
    assert by_word[[0, 0, 1, 1, 1], [0, 3, 0, 2, 3]].tolist() == [0.0] * 5


@EVERY
def test_ids_that_enter_two_embeddings_are_removed_from_both(method: str) -> None:
    def twice(ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, TABLE).sum((1, 2)) + 2 * nn.functional.embedding(ids, TABLE[:, :2]).sum(
            (1, 2)
        )

    found = explain(twice, IDS, method).values
    close(found, TABLE[IDS].sum(2) + 2 * TABLE[IDS][..., :2].sum(2), 1e-9)


@EVERY
def test_the_units_of_several_inputs_play_together(method: str) -> None:
    a, b = SIGNALS[:, 0], SIGNALS[:, 1, :3]
    found = explain(lambda a, b: a.sum(1) + 2 * b.sum(1), {"a": a, "b": b}, method)
    close(found.values["a"], a, 1e-9)
    close(found.values["b"], 2 * b, 1e-9)
    extra = {"shapley": 2**8, "kernel_shap": 2**8, "lime": 2**8}
    assert found.receipt["evaluations"] == [extra.get(method, 9)] * 2
    if method != "occlusion":
        halves = explain(lambda a, b: a.sum(1) + 2 * b.sum(1), (a, b), method, units={"1": torch.tensor([0, 0, 1])})
        share = 2 if method in SHARED else 1
        close(halves.values[1][:, :2], 2 * b[:, :2].sum(1, keepdim=True).expand(-1, 2) / share, 1e-9)


# ---- one unit across several inputs ----


def of_two(a: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(a @ WEIGHTS[0, 0, :5]) * (b @ WEIGHTS[0, 1, :3]) + a[:, 0] * b[:, 2]


TWO = (SIGNALS[:, 0], SIGNALS[:, 1, :3])
JOINT = (torch.tensor([[0, 0, 1, 2, 2]]), torch.tensor([[2, 1, 3]]))  # unit 1 and unit 2 are in both


def together(kept: list[int]) -> Tensor:
    """f with these units in place and all others at 0.5, written out."""
    a, b = (x.clone() for x in TWO)
    for x, units in zip((a, b), JOINT, strict=True):
        for unit in range(4):
            if unit not in kept:
                x[:, units[0] == unit] = 0.5
    return of_two(a, b)


def slow_joint(method: str) -> dict[int, Tensor]:
    """Each unit's value, set by set."""
    everyone, found = [0, 1, 2, 3], {}
    for unit in everyone:
        others = [u for u in everyone if u != unit]
        if method in ("leave_one_out", "occlusion"):
            found[unit] = together(everyone) - together(others)
            continue
        total = torch.zeros(2).double()
        for size in range(4):
            for some in itertools.combinations(others, size):
                weight = math.factorial(size) * math.factorial(3 - size) / math.factorial(4)
                total += weight * (together([*some, unit]) - together(list(some)))
        found[unit] = total
    return found


@pytest.mark.parametrize("method", ["leave_one_out", "occlusion", "shapley", "kernel_shap"])
@pytest.mark.parametrize("form", ["tuple", "dict", "all rows"])
def test_the_same_number_in_two_inputs_is_one_unit(method: str, form: str) -> None:
    units: Any = {"tuple": JOINT, "dict": dict(zip("01", JOINT, strict=True))}.get(form)
    if form == "all rows":
        units = (JOINT[0].expand(2, -1), JOINT[1])
    a = explain(of_two, TWO, method, units=units, baseline=0.5)
    sizes = {0: 2, 1: 2, 2: 3, 3: 1}
    for unit, expected in slow_joint(method).items():
        for values, numbers in zip(a.values, JOINT, strict=True):
            inside = numbers[0] == unit
            if not inside.any():
                continue
            share = sizes[unit] if method in SHARED else 1
            close(values[:, inside], expected[:, None].expand(-1, int(inside.sum())) / share, 1e-9)
    if method in SHARED:
        close(sum(v.sum(1) for v in a.values), a.output_value - a.baseline_value, 1e-9)


def test_units_that_differ_from_row_to_row_across_inputs() -> None:
    units = (torch.tensor([[0, 0, 1, 1, 1], [3, -1, 3, 3, 7]]), torch.tensor([[1, 2, 2], [7, 7, -1]]))
    both = explain(of_two, TWO, "shapley", units=units)
    for row in range(2):
        alone = explain(
            of_two, tuple(x[row : row + 1] for x in TWO), "shapley", units=tuple(u[row : row + 1] for u in units)
        )
        for whole, one in zip(both.values, alone.values, strict=True):
            close(whole[row], one[0], 1e-12)
    assert both.receipt["evaluations"] == [8, 4]
    assert both.values[0][1, 1] == 0


def test_captum_agrees_about_units_across_inputs() -> None:
    from captum.attr import FeatureAblation, ShapleyValues

    ablated = FeatureAblation(of_two).attribute(TWO, baselines=(0.5, 0.5), feature_mask=JOINT)
    for ours, theirs in zip(
        explain(of_two, TWO, "leave_one_out", units=JOINT, baseline=0.5).values, ablated, strict=True
    ):
        close(ours, theirs.double(), 1e-6)
    shared = ShapleyValues(of_two).attribute(TWO, baselines=(0.5, 0.5), feature_mask=JOINT)
    sizes = torch.tensor([2.0, 2, 3, 1]).double()
    values = explain(of_two, TWO, "shapley", units=JOINT, baseline=0.5).values
    for ours, theirs, units in zip(values, shared, JOINT, strict=True):
        close(ours * sizes[units], theirs.double(), 1e-6)  # each element of a unit has its whole value there


@EVERY
def test_units_serve_whole_axes_by_broadcasting(method: str) -> None:
    lines = torch.arange(4).view(1, 1, 4, 1)
    close(
        explain(linear, IMAGES, method, units=lines).values,
        explain(linear, IMAGES, method, units=lines.expand(3, 2, 4, 6)).values,
        1e-12,
    )
    whole = explain(linear, IMAGES, method, units=torch.tensor(0))  # all of it is one unit
    close(whole.values.flatten(1).sum(1) / (1 if method in SHARED else 48), linear(IMAGES) - 2, 1e-9)


def test_what_is_never_removed_stays_in_the_baseline() -> None:
    units = torch.tensor([[0, 1, -1, -1, -1, -1]]).expand(4, 6)
    for method in SHARED:
        a = explain(linear, IMAGES, method, units=units)
        kept = IMAGES.clone()
        kept[..., :2] = 0
        close(a.baseline_value, linear(kept), 1e-12)
        close(a.values.flatten(1).sum(1), a.output_value - a.baseline_value, 1e-9)


# ---- windows ----


def test_the_default_window_of_occlusion() -> None:
    x = torch.randn(1, 1, 8, 12, generator=torch.Generator().manual_seed(4)).double()
    a = explain(lambda x: x.sum((1, 2, 3)), x, "occlusion")
    assert a.receipt["evaluations"] == [1 + 7 * 10]  # 2 × 3, by steps of 1 × 1
    close(a.values, explain(lambda x: x.sum((1, 2, 3)), x, "occlusion", window=(2, 3), stride=1).values, 1e-12)
    wide = explain(lambda x: x.sum((1, 2, 3)), torch.ones(1, 1, 32, 32), "occlusion")
    assert wide.receipt["evaluations"] == [1 + 49]


def test_windows_over_tokens_count_real_ones_only() -> None:
    a = explain(bag, {"input_ids": IDS, "attention_mask": MASK}, "occlusion", window=2, stride=1)
    assert a.receipt["evaluations"] == [4, 2]
    alone = explain(bag, {"input_ids": IDS[1:, :2], "attention_mask": MASK[1:, :2]}, "occlusion", window=2, stride=1)
    close(a[1].values, alone.values, 1e-12)


def test_windows_of_each_input() -> None:
    from captum.attr import Occlusion

    def two_images(a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(a[:, 0, :4, :5].sum((1, 2))) + (b * WEIGHTS[:1]).sum((1, 2, 3))

    pair = (IMAGES[:, :1, :, :5], IMAGES)
    theirs = Occlusion(lambda a, b: two_images(a, b)).attribute(
        pair, sliding_window_shapes=((1, 2, 3), (2, 2, 2)), strides=((1, 2, 2), (2, 1, 2)), baselines=(0.25, 0.25)
    )
    for given in (
        {"window": ((2, 3), (2, 2)), "stride": ((2, 2), (1, 2))},
        {"window": {"0": (2, 3), "1": 2}, "stride": {"0": 2, "1": (1, 2)}},
        {"window": ((2, 3), (2, 2)), "stride": (2, (1, 2))},
    ):
        ours = explain(two_images, pair, "occlusion", baseline=0.25, **given).values
        for mine, other in zip(ours, theirs, strict=True):
            close(mine, other.double(), 1e-6)
    defaults = explain(two_images, pair, "occlusion", window={"1": 3}).receipt["evaluations"]
    assert defaults == [1 + 4 * 5 + 2 * 4] * 3  # 1 × 1 over 4 × 5 of the first


@pytest.mark.parametrize(("window", "stride"), [((2, 4), (2, 3)), ((3, 5), (2, 4)), ((2, 6), (1, 1)), ((4, 5), (3, 5))])
def test_windows_that_are_cut_off_at_the_edge(window: Any, stride: Any) -> None:
    from captum.attr import Occlusion

    def curved(x: Tensor) -> Tensor:
        return torch.tanh(x * WEIGHTS).sum((1, 2, 3)) * x[:, 0, 0, 0]

    theirs = Occlusion(curved).attribute(IMAGES, sliding_window_shapes=(2, *window), strides=(2, *stride))
    ours = explain(curved, IMAGES, "occlusion", window=window, stride=stride, edge="cut")
    close(ours.values, theirs.double(), 1e-6)
    inside = explain(curved, IMAGES, "occlusion", window=window, stride=stride)
    assert inside.receipt["evaluations"] == ours.receipt["evaluations"]


# ---- passes ----


@EVERY
def test_a_target_function_may_hold_one_entry_per_row(method: str) -> None:
    classes = torch.tensor([0, 2, 1])
    model, x = CASES["mlp_functional"].make()
    held = explain(model, x, method, target=lambda y: y[torch.arange(len(classes)), classes])
    close(held.values, explain(model, x, method, target=classes).values, 1e-10)
    padded = explain(
        bag, {"input_ids": IDS, "attention_mask": MASK}, method, target=lambda y: y * torch.tensor([2.0, 3.0])
    )
    plain = explain(bag, {"input_ids": IDS, "attention_mask": MASK}, method)
    close(padded.values, plain.values * torch.tensor([[2.0], [3.0]]), 1e-10)
    assert padded.receipt["evaluations"] == plain.receipt["evaluations"]


@EVERY
def test_held_inputs_that_go_with_the_rows_in_their_own_way(method: str) -> None:
    x, state = SIGNALS[:, 0], torch.tensor([[1.0, 2.0]]).double()  # (layers, rows)
    for size in (None, 2):
        a = explain(lambda x, state: (x * state[0][:, None]).sum(1), (x, state), method, wrt="0", batch_size=size)
        close(a.values, x * state[0][:, None], 1e-9)
    listed = explain(
        lambda x, c: torch.stack([row.sum() * s for row, s in zip(x, c, strict=True)]), (x, [1.0, 2.0]), method
    )
    close(listed.values, a.values, 1e-9)


@EVERY
@pytest.mark.parametrize("size", [1, 3, 50])
def test_no_pass_is_larger_than_the_batch_size(method: str, size: int) -> None:
    seen: list[int] = []

    def model(x: Tensor) -> Tensor:
        seen.append(len(x))
        return linear(x)

    explain(model, IMAGES, method, units=2, batch_size=size)
    assert max(seen) <= size


@EVERY
def test_rules_are_refused(method: str) -> None:
    model, x = CASES["mlp_functional"].make()
    with pytest.raises(whence.ParameterError, match="does not propagate"):
        explain(model, x, method, rules={"relu": whence.derivative})


def test_a_unit_of_a_module_is_removed_from_its_output() -> None:
    model, x = CASES["mlp_functional"].make()
    found = explain(model, x, "leave_one_out", at="b", target=0).values
    hidden, without = whence.activations(model, x, at="b"), whence.activations(model, torch.zeros_like(x), at="b")
    for i in range(hidden.shape[1]):
        mixed = hidden.clone()
        mixed[:, i] = without[:, i]
        lost = model.c(torch.relu(hidden)) - model.c(torch.relu(mixed))
        close(found[:, i], lost[:, 0].detach(), 1e-12)


# ---- what is kept ----


def sampled(**options: Any) -> whence.Attribution:
    mask = torch.ones(2, 4).long()
    mask[1, 2:] = 0
    return explain(bag, {"input_ids": IDS, "attention_mask": mask}, "shapley", exact=2, samples=20, **options)


def test_the_standard_error_has_the_form_of_the_values(tmp_path: Path) -> None:
    a = sampled()
    error = a.kept["standard_error"]
    assert error.shape == a.values.shape
    assert bool((error[0] > 0).all())
    assert not error[1].any()  # two units: exact
    close(sampled(batch_size=1).kept["standard_error"], error, 1e-10)
    assert a[1].kept["standard_error"].shape == (1, 2)
    assert torch.equal(a[:1].kept["standard_error"], error[:1])
    a.save(tmp_path / "a.safetensors")
    assert torch.equal(whence.Attribution.load(tmp_path / "a.safetensors").kept["standard_error"], error)
    both = explain(lambda x: x.cumprod(1), SIGNALS[:, 0], "shapley", exact=2, target=[[3, 4], [4, 4]])
    assert both.kept["standard_error"].shape == both.values.shape == (2, 2, 5)
    pair = explain(lambda a, b: (a * b).prod(1), (SIGNALS[:, 0], SIGNALS[:, 1]), "shapley", exact=2)
    assert [tuple(e.shape) for e in pair.kept["standard_error"]] == [(2, 5), (2, 5)]
    assert [tuple(e.shape) for e in pair[0].kept["standard_error"]] == [(1, 5), (1, 5)]


def test_an_attribution_with_units_is_saved(tmp_path: Path) -> None:
    a = explain(linear, IMAGES, "shapley", units={"input": HALVES})
    a.save(tmp_path / "a.safetensors")
    assert torch.equal(whence.Attribution.load(tmp_path / "a.safetensors").params["units"]["input"], HALVES)


# ---- mistakes ----


def two(pixels: Tensor, tokens: Tensor) -> Tensor:
    return pixels.sum(1) + tokens.sum(1)


PAIR = {"pixels": SIGNALS[:, 0], "tokens": SIGNALS[:, 0]}
TEXT = {"input_ids": IDS, "attention_mask": MASK}
MISTAKES: list[tuple[str, Any, Any, dict[str, Any], type[whence.WhenceError], str]] = [
    (
        "unknown",
        linear,
        IMAGES,
        {"units": "pixel"},
        whence.ParameterError,
        r"'pixel' is not known. Did you mean 'pixels'\?",
    ),
    ("kind", linear, IMAGES, {"units": 1.5}, whence.ParameterError, "units=1.5 is not allowed(.|\n)*side of a block"),
    ("zero", linear, IMAGES, {"units": 0}, whence.ParameterError, "units=0 is not allowed"),
    ("bool", linear, IMAGES, {"units": True}, whence.ParameterError, "units=True is not allowed"),
    ("words", bag, TEXT, {"units": "words"}, whence.InputError, r"a bare model does not know(.|\n)*tensor \(2, 4\)"),
    ("pixels", bag, TEXT, {"units": "pixels"}, whence.InputError, r"needs an input \(rows, channels(.|\n)*\(2, 4\)"),
    ("tokens", linear, IMAGES, {"units": "tokens"}, whence.InputError, r"needs an input \(rows, n, hidden\)"),
    ("floats", linear, IMAGES, {"units": HALVES.double()}, whence.ParameterError, "float64(.|\n)*whole numbers"),
    ("mask", linear, IMAGES, {"units": HALVES > 0}, whence.ParameterError, "torch.bool(.|\n)*whole numbers"),
    (
        "shape",
        linear,
        IMAGES,
        {"units": HALVES.T},
        whence.InputError,
        r"\(6, 4\), but the input 'input' has \(3, 2, 4, 6\)",
    ),
    ("rows", linear, IMAGES, {"units": PER_ROW[:2, None]}, whence.InputError, r"has the shape \(2, 1, 4, 6\)"),
    ("nothing", linear, IMAGES, {"units": HALVES - 5}, whence.InputError, "numbers nothing in row 0"),
    ("one row", linear, IMAGES, {"units": PER_ROW - 5}, whence.InputError, "numbers nothing in row 0"),
    ("padding", bag, TEXT, {"units": torch.tensor([-1, -1, 0, 0])}, whence.InputError, "numbers nothing in row 1"),
    ("name", two, PAIR, {"units": {"token": 1}}, whence.ParameterError, "names 'token'.*Did you mean 'tokens'"),
    ("tensor", two, PAIR, {"units": torch.arange(5)}, whence.ParameterError, "2 inputs are explained(.|\n)*dict"),
    ("parts", two, PAIR, {"units": (1, 1, 1)}, whence.ParameterError, "3 parts, but 2 inputs are explained"),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake[0] for mistake in MISTAKES])
@EVERY
def test_wrong_units_are_named(method: str, mistake: Any) -> None:
    _, model, x, params, error, text = mistake
    with pytest.raises(error, match=text) as raised:
        explain(model, x, method, **params)
    assert str(raised.value).startswith(f"{method}: units=")


def test_an_ambiguous_tensor_is_asked_about() -> None:
    square = torch.zeros(2, 4, 6, dtype=torch.long)  # two rows, or two channels
    with pytest.raises(whence.InputError, match="can mean one row with its channels(.|\n)*all 4 dimensions"):
        explain(lambda x: x.sum((1, 2, 3)), IMAGES[:2], "shapley", units=square)
    assert explain(lambda x: x.sum((1, 2, 3)), IMAGES[:2], "shapley", units=square[None]).values.shape == (2, 2, 4, 6)


WINDOWS: list[tuple[dict[str, Any], type[whence.WhenceError], str]] = [
    ({"window": 5}, whence.InputError, "window 5 is larger than the input 'input', which has 4 positions in a row"),
    ({"window": 0}, whence.ParameterError, "window=0 is not allowed(.|\n)*tuple of 2"),
    ({"window": 1.5}, whence.ParameterError, "window=1.5 is not allowed"),
    ({"window": True}, whence.ParameterError, "window=True is not allowed"),
    ({"window": (2, None)}, whence.ParameterError, "is not allowed"),
    ({"window": ()}, whence.ParameterError, "has 0 sides(.|\n)*3 to slide along"),
    ({"window": (1, 1, 1, 1)}, whence.ParameterError, "has 4 sides(.|\n)*3 to slide along"),
    ({"window": 2, "stride": 3}, whence.ParameterError, "stride 3 is larger than the window 2"),
    ({"window": 2, "stride": 0}, whence.ParameterError, "stride=0 is not allowed"),
    ({"window": 2, "stride": (1, 1, 1)}, whence.ParameterError, r"stride=\(1, 1, 1\) is not allowed(.|\n)*tuple of 2"),
    ({"window": 2, "units": "pixels"}, whence.ParameterError, "units= and window= both say what is removed together"),
    ({"window": 5, "units": HALVES}, whence.ParameterError, "Leave one of them out"),
    ({"window": {"inputs": 2}}, whence.ParameterError, "window= names 'inputs'.*Did you mean 'input'"),
    ({"window": ((2, 2), (1, 1))}, whence.ParameterError, "has 2 parts, but 1 inputs are explained"),
    ({"window": 2, "edge": "wrap"}, whence.ParameterError, "edge='wrap' is not allowed"),
]


@pytest.mark.parametrize(("params", "error", "text"), WINDOWS, ids=[str(params) for params, _, _ in WINDOWS])
def test_wrong_windows_are_named(params: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        explain(linear, IMAGES, "occlusion", **params)


def test_wrong_numbers_are_named() -> None:
    for method, name, value, text in [
        ("shapley", "samples", 1, "at least 2"),
        ("shapley", "exact", 21, "at most 20"),
        ("kernel_shap", "samples", 0, "at least 4"),
        ("lime", "samples", 0, "at least 2"),
        ("lime", "width", 0.0, "above 0"),
        ("lime", "ridge", -1.0, "at least 0"),
    ]:
        with pytest.raises(whence.ParameterError, match=f"{method}: {name}={value}(.|\n)*{text}"):
            explain(linear, IMAGES, method, **{name: value})


def test_too_few_samples_are_warned_of() -> None:
    for method in ("kernel_shap", "lime"):
        with pytest.warns(whence.WhenceWarning, match="20 samples cannot tell 24 units apart"):
            a = explain(linear, IMAGES, method, samples=20)
        assert bool(torch.isfinite(a.values).all())
    assert explain(linear, IMAGES, "lime", samples=20, ridge=1.0).values.shape == IMAGES.shape


def test_a_picture_of_many_pixels_costs_what_it_should() -> None:
    """Coalitions are made when they are run: n² numbers would not fit."""
    x = torch.ones(1, 1, 60, 60)
    a = explain(lambda x: x.sum((1, 2, 3)), x, "leave_one_out", batch_size=600)
    assert a.receipt["evaluations"] == [3601]
    assert math.isclose(float(a.values.mean()), 1, abs_tol=1e-3)


@EVERY
def test_a_baseline_without_a_score_is_named(method: str) -> None:
    with pytest.raises(whence.ModelError, match="replaces units by the baseline(.|\n)*give another baseline="):
        explain(lambda x: x.log().sum(1), torch.ones(2, 3), method)
    assert explain(lambda x: x.log().sum(1), torch.ones(2, 3), method, baseline=0.5).values.shape == (2, 3)


PARTS: list[tuple[dict[str, Any], str]] = [
    ({"similarity": 3}, "similarity=3 cannot be called"),
    ({"sample": "all"}, "sample='all' cannot be called"),
    ({"regressor": 3}, r"regressor=3 cannot be fitted(.|\n)*sample_weight"),
    ({"regressor": nn.Linear(2, 2)}, "cannot be fitted"),
    ({"sample": lambda x, n, draw: torch.ones(3, n + 1)}, r"returned the shape \(3, 7\) for 6 units"),
    ({"sample": lambda x, n, draw: torch.rand(3, n)}, "masks of zeros and ones"),
    ({"similarity": lambda x, perturbed, z: -z[:, 0] - 1}, "weight of at least 0"),
    ({"similarity": lambda x, perturbed, z: z}, "numbers for .* samples"),
]


@pytest.mark.parametrize(("params", "text"), PARTS)
def test_wrong_parts_of_lime_are_named(params: Any, text: str) -> None:
    with pytest.raises(whence.ParameterError, match=f"lime: (.|\n)*{text}"):
        explain(lambda x: x.sum(1), IMAGES[:, 0, 0], "lime", **params)


def test_a_penalty_of_its_own_and_a_model_of_the_users_exclude_each_other() -> None:
    from sklearn.linear_model import Ridge

    with pytest.raises(whence.ParameterError, match="ridge= is for LIME's own regression"):
        explain(lambda x: x.sum(1), IMAGES[:, 0, 0], "lime", ridge=1.0, regressor=Ridge())


def test_permutations_need_other_rows() -> None:
    with pytest.raises(whence.InputError, match="there is one row(.|\n)*at least two"):
        explain(linear, IMAGES[:1], "permutation")
    with pytest.raises(whence.BaselineError, match="has no baseline"):
        explain(linear, IMAGES, "permutation", baseline=0)
    with pytest.raises(whence.ParameterError, match="function=3 cannot be called"):
        explain(linear, IMAGES, "permutation", function=3)
    with pytest.raises(whence.ParameterError, match="must return a tensor like the input"):
        explain(linear, IMAGES, "permutation", units=2, function=lambda x, mask: x[0])


def test_ids_and_whole_batches_are_permuted() -> None:
    a = explain(bag, {"input_ids": IDS, "attention_mask": torch.ones_like(MASK)}, "permutation")
    ones = torch.ones_like(MASK)
    for i in range(4):
        moved = IDS.clone()
        moved[:, i] = IDS[[1, 0], i]
        close(a.values[:, i], bag(IDS, ones) - bag(moved, ones), 1e-12)
    whole = explain(lambda x: x.mean() * x[0, 0, 0, 0], IMAGES, "permutation", units="pixels").values
    assert whole.shape == (1, 2, 4, 6)


@pytest.mark.parametrize("method", ["leave_one_out", "occlusion", "lime", "shapley"])
def test_a_word_that_was_removed_as_one_is_not_counted_once_per_token(method: str) -> None:
    """All rows in one batch, each alone, and merged into words or sentences; by hand, the word's own tokens removed."""
    model = whence.load("zoo:sentiment")
    texts = ["An unbelievably heartwarming film. Unwatchable rubbish!", "Unwatchable"]
    a = whence.explain(model, texts, method=method, target=1, units="words", **SAMPLES.get(method, {}))
    assert a.params["units"] == "words"
    for row in range(2):
        one = a[row]
        words, tokens = one.merge_words(), one.units[0]
        for word, tokens_of in zip(words.values[0].tolist(), groups_of(one, 0), strict=True):
            own = one.values[0, tokens_of]
            assert word == pytest.approx(float(own.sum() if method == "shapley" else own.mean()), abs=1e-6)
        assert len(tokens) > len(words.units[0])
        sentences = one.merge("sentences")
        assert float(sentences.values.sum()) == pytest.approx(float(words.values.sum()), abs=1e-5)
    numbers = torch.tensor([[-1, 0, 1, 1, 1, 2, 2, 2, *[-1] * (a.values.shape[1] - 8)]]).expand(2, -1)
    groups = whence.explain(model, texts[:1], method=method, target=1, units=numbers[:1, : len(a[0].units[0])],
                            **SAMPLES.get(method, {}))  # fmt: skip
    found = groups.merge("sentences").values[0].tolist()
    whole = [groups.values[0, at].item() * (1 if method != "shapley" else n) for at, n in ((1, 1), (2, 3), (5, 3))]
    assert sum(found) == pytest.approx(sum(whole), abs=1e-5)


SAMPLES = {"lime": {"samples": 64}, "shapley": {"samples": 4}}


@pytest.mark.filterwarnings("ignore:.*almost the same at the baseline")
def test_a_module_with_the_statistics_of_its_batch_is_asked_with_all_rows() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(5, track_running_stats=False)
    model = nn.Sequential(nn.Linear(3, 5), norm, nn.Tanh(), nn.Linear(5, 2)).double().eval()
    x = torch.randn(4, 3, dtype=torch.float64)

    def score(there: tuple[int, ...]) -> Tensor:
        return model(x * torch.tensor(there, dtype=torch.float64))[:, 0].detach()

    truth = torch.zeros(4, 3, dtype=torch.float64)
    for order in itertools.permutations(range(3)):
        for place, unit in enumerate(order):
            before = tuple(int(u in order[:place]) for u in range(3))
            after = tuple(int(u in order[: place + 1]) for u in range(3))
            truth[:, unit] += (score(after) - score(before)) / 6
    for method in ("shapley", "kernel_shap"):
        a = whence.explain(model, x, method=method, target=0)
        assert torch.allclose(a.values, truth, atol=1e-10)


def test_a_module_that_mixes_rows_unseen_has_a_gap_and_a_warning() -> None:
    class Mixing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + x.square().mean(0)

    with pytest.warns(whence.WhenceWarning, match="misses the delta.*beside other rows"):
        a = whence.explain(Mixing(), torch.rand(3, 4) + 1, method="shapley", target=0)
    assert a.gap is not None
    assert float(a.gap.max()) > 0.01
