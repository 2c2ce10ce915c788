"""The property table: the textbook's entries, counter-examples, broken methods, and any model without a crash."""

from __future__ import annotations

import copy
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from tests.support.models import CASES
from whence.evaluation.axioms import TOYS, properties, textbook_table
from whence.evaluation.axioms.invariance import around, equal_ways
from whence.evaluation.axioms.points import Probe, prepare
from whence.evaluation.axioms.rewrites import Rewrite, rewrites
from whence.evaluation.axioms.toys import SOURCES, STATED, USUAL, TextbookTable, along_axes

FEWER = {  # samples than by default
    "smoothgrad": {"samples": 2},
    "expected_gradients": {"samples": 5},
    "shapley": {"units": 5, "samples": 2},
    "kernel_shap": {"units": 5},
    "lime": {"units": 5},
    "context_cite": {"units": 5},
}
CHEAP = ["gradient", "guided_backprop", "deeplift", "integrated_gradients"]


@pytest.fixture(scope="module")
def seeds() -> TextbookTable:
    return textbook_table()


def net(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    made = layers or (nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    for layer in made:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    return nn.Sequential(*made).double().eval()


def rows(count: int = 3, size: int = 5) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def case(model: Any, x: Any, **options: Any) -> Probe:
    given: dict[str, Any] = {"baseline": None, "target": None, "wrt": None, "output": "logit", "seed": 0, "rows": 4}
    return prepare(model, x, **{**given, "features": 6, "equivalents": (), "chunk": 32, **options})


# ---- the textbook's table ----


@pytest.mark.slow
@pytest.mark.xdist_group("seeds")
@pytest.mark.parametrize("name", STATED)
@pytest.mark.parametrize("place", range(4), ids=CHEAP)
def test_the_seeds_entry_is_reproduced(seeds: TextbookTable, name: str, place: int) -> None:
    entry = seeds[CHEAP[place], name]
    assert entry.stated == STATED[name][place]
    assert entry.measured in ({entry.stated} if entry.stated else {"yes", "no"})
    assert (entry.measured == "no") == bool(entry.where)


@pytest.mark.xdist_group("seeds")
def test_what_the_seed_left_open_is_filled(seeds: TextbookTable) -> None:
    assert seeds["deeplift", "sensitivity_b"].measured == "yes"
    assert seeds["deeplift", "linearity"].measured == "yes"
    assert seeds["guided_backprop", "implementation_invariance"].measured == "no"
    assert {name: seeds.reference[name] for name in CHEAP} == dict(zip(CHEAP, (False, False, True, True), strict=True))


@pytest.mark.xdist_group("seeds")
def test_nothing_is_open_that_a_paper_answers(seeds: TextbookTable) -> None:
    """Sundararajan, Taly & Yan 2017 deny LRP implementation invariance and DeconvNet sensitivity."""
    for method, name in (("lrp", "implementation_invariance"), ("deconvnet", "sensitivity_a")):
        assert (seeds[method, name].stated, seeds[method, name].measured) == ("no", "no")
        assert seeds[method, name].where
    assert "(0.619, 0.6178)" in seeds["lrp", "implementation_invariance"].where
    for name, stated in STATED.items():
        assert len(stated) == len(seeds.reference)
        assert seeds["shapley", name].measured == "yes"
        assert seeds["shapley", name].stated == ("" if name in ("continuity", "implementation_invariance") else "yes")
    for method, own in SOURCES.items():
        assert all(seeds[method, name].stated and seeds[method, name].source == said for name, said in own.items())
    assert all(bool(entry.source) == bool(entry.stated) for entry in seeds.entries.values())
    beyond = [e for e in seeds.entries.values() if e.source == USUAL and e.method not in CHEAP]
    assert not beyond  # of methods that summaries do not have, every claim is a paper's
    printed = str(seeds)
    assert max(map(len, printed.splitlines())) <= 100
    assert "Bach et al. 2015, of f(x) alone: lrp (completeness)" in printed


@pytest.mark.xdist_group("seeds")
def test_only_the_straight_path_is_symmetric(seeds: TextbookTable) -> None:
    assert (seeds["integrated_gradients", "symmetry"].measured, seeds["path along the axes", "symmetry"].measured) == (
        "yes",
        "no",
    )
    others = [name for name in STATED if name != "symmetry"]
    assert {seeds["path along the axes", name].measured for name in others} == {"yes"}


@pytest.mark.xdist_group("seeds")
def test_continuity_of_path_methods_ends_at_a_tie(seeds: TextbookTable) -> None:
    for method in ("deeplift", "integrated_gradients"):
        entry = seeds[method, "continuity"]
        assert (entry.stated, entry.measured) == ("yes", "yes")
        assert "across a tie of units 0 and 1, φ moves by 2.17" in entry.against[0]
    assert not seeds["shapley", "continuity"].against


@pytest.mark.xdist_group("seeds")
def test_counter_examples_stand_beside_the_seeds_entries(seeds: TextbookTable) -> None:
    rescale = seeds["deeplift", "symmetry"]
    assert (rescale.stated, rescale.measured) == ("yes", "yes")
    assert "a − relu(a − b) at (2, 2)" in rescale.against[0]
    assert "units 0 and 1 get 2 and 0" in rescale.against[0]
    guided = seeds["guided_backprop", "linearity"]
    assert (guided.stated, guided.measured) == ("yes", "yes")
    assert guided.against[0].startswith("linearity_negative")
    assert not seeds["gradient", "linearity"].against
    assert "yes → yes 0*" in str(seeds)
    assert "a − relu(a − b)" in seeds.to_html()
    assert len(json.loads(seeds.to_json())) == len(seeds.entries) == len(seeds.to_csv().splitlines()) - 1


@pytest.mark.xdist_group("seeds")
def test_numbers_and_witnesses_on_toys(seeds: TextbookTable) -> None:
    flat, jump = seeds.tables["saturated"], seeds.tables["threshold"]
    assert flat["gradient", "sensitivity_a"].number == 1
    assert flat["gradient", "completeness"].witness.said == "the sum is 0, the score moves by 1"
    assert jump["gradient", "continuity"].witness.x == pytest.approx((10.0,), abs=0.01)
    assert jump["gradient", "continuity"].number == 1
    assert flat["gradient", "symmetry"].verdict == "–"
    assert flat["gradient", "symmetry"].note == "there is one feature only"
    pair = seeds.tables["equal networks"]["deeplift", "implementation_invariance"]
    assert pair.witness.said.startswith("written with equivalents[0]")


def test_the_pair_of_equal_networks_gives_the_values_known() -> None:
    toy = TOYS["equal networks"]
    only = ["implementation_invariance"]
    table = whence.axioms(toy, torch.tensor([[3.0, 1.0]]), methods=["deeplift"], only=only, equivalents=toy.equivalents)
    # (1.5, −0.5) and (2, −1) at (3, 1): off by 0.5 of 2
    assert table["deeplift", only[0]].number >= 0.25


# ---- methods that are broken on purpose ----


@pytest.fixture
def turned() -> Iterator[str]:
    """Integrated gradients whose values belong to the feature before."""

    @whence.method("turned", reference=True, complete=True)
    def turned(subject: Any) -> dict[str, Tensor]:
        """Each feature gets what the one before deserves."""
        found = whence.methods["integrated_gradients"].function(subject, tolerance=1e-4, max_steps=512)
        return {key: value.roll(1, -1) for key, value in found.values.items()}

    yield "turned"
    whence.methods._entries.pop("turned")


class Deaf(nn.Module):
    """A network that does not look at feature 2."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x * torch.tensor([1.0, 1, 0, 1, 1]).to(x))


def test_a_shuffled_method_fails_what_it_must_and_nothing_else(turned: str) -> None:
    found = {name: cell.verdict for name, cell in whence.axioms(Deaf(), rows(), methods=[turned])[turned].items()}
    assert found["completeness"] == "yes"  # the sum is the same
    assert found["sensitivity_a"] == found["sensitivity_b"] == found["symmetry"] == "no"
    assert found["linearity"] == found["linearity_negative"] == found["implementation_invariance"] == "yes"
    assert found["continuity"] == "yes"
    fine = whence.axioms(Deaf(), rows(), methods=["integrated_gradients"])["integrated_gradients"]
    assert {cell.verdict for cell in fine.values()} == {"yes"}


def test_a_shuffled_method_fails_on_a_network_that_hears_everything_too(turned: str) -> None:
    table = whence.axioms(net(), rows(), methods=[turned, "integrated_gradients"], only=["sensitivity_b"])
    assert table[turned, "sensitivity_b"].verdict == "no"
    assert table["integrated_gradients", "sensitivity_b"].verdict == "yes"


def test_a_feature_of_the_models_own_without_effect_is_found() -> None:
    table = whence.axioms(Deaf(), rows(), methods=["random"], only=["sensitivity_b"])
    assert table["random", "sensitivity_b"].verdict == "no"
    from whence.evaluation.axioms.sensitivity import independent

    assert independent(case(Deaf(), rows()), 0) == [2]
    assert independent(case(net(), rows()), 0) == []


def test_a_method_that_fails_gives_its_reason_and_the_rest_go_on() -> None:
    table = whence.axioms(net(), rows(), methods=["rollout", "gradient"], only=["completeness", "continuity"])
    assert {cell.verdict for cell in table["rollout"].values()} == {"–"}
    assert table["rollout", "completeness"].note.startswith("rollout reads attention, but this model has none")
    assert table["gradient", "completeness"].verdict == "no"


# ---- equal networks ----


def test_rewritings_that_apply_give_the_same_scores() -> None:
    cnn, images = CASES["residual_cnn"].make()
    found = case(cnn, images)
    ways = equal_ways(found, around(found))
    names = [way.name for way in ways]
    assert "batch-norm folded into the layer before it" in names
    assert "relu(x) as relu(relu(x))" in names
    assert "max-pool of pairs as b + relu(a − b)" not in names  # its windows are padded
    for way in ways:
        assert torch.allclose(found.f(found.rows, way.function), found.f(found.rows), rtol=1e-5), way.name


def test_a_max_pool_is_rewritten() -> None:
    model = net(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 2))
    found = case(model, torch.randn(2, 1, 8, 8).double())
    assert "max-pool of pairs as b + relu(a − b)" in [way.name for way in equal_ways(found, around(found))]


def test_a_rewriting_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Rewrite("wrong", frozenset({"relu"}), lambda plain, x, *rest, **named: torch.relu(x) + 0.01, True)
    monkeypatch.setitem(rewrites, "wrong", wrong)
    cell = whence.axioms(net(), rows(), methods=["gradient"], only=["implementation_invariance"])
    assert "wrong" not in cell["gradient", "implementation_invariance"].note


def test_where_only_linear_rewritings_apply_nothing_is_claimed() -> None:
    table = whence.axioms(net(nn.Linear(5, 3)), rows(), methods=CHEAP, only=["implementation_invariance"])
    assert {cell.verdict for cell in table.values()} == {"not refuted"}


def test_functional_relus_are_rewritten_too() -> None:
    functional, x = CASES["mlp_functional"].make()
    table = whence.axioms(functional, x, methods=["gradient", "deeplift"], only=["implementation_invariance"])
    assert table["gradient", "implementation_invariance"].verdict == "yes"
    assert table["deeplift", "implementation_invariance"].verdict == "no"


# ---- the same whatever the order and the seed ----


@pytest.mark.slow
def test_rows_in_another_order_give_the_same_table() -> None:
    one, two = (whence.axioms(net(), x, methods=CHEAP) for x in (rows(), rows().flip(0)))
    for key, cell in one.items():
        assert two[key].verdict == cell.verdict, key
        assert two[key].number == pytest.approx(cell.number, rel=1e-6, abs=1e-9), key


@pytest.mark.slow
def test_the_same_seed_gives_the_same_table_and_another_the_same_verdicts() -> None:
    methods = ["gradient", "integrated_gradients"]
    one, same, other = (whence.axioms(net(), rows(2), methods=methods, seed=s) for s in (0, 0, 5))
    assert one == same
    assert {key: cell.verdict for key, cell in one.items()} == {key: cell.verdict for key, cell in other.items()}


# ---- any model ----


@pytest.mark.slow
def test_a_transformer_gives_a_full_table() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12, vocab_size=30,
        max_position_embeddings=8, num_labels=3,
    )  # fmt: skip
    ids = torch.tensor([[2, 5, 9, 3], [2, 7, 3, 0]])
    model = BertForSequenceClassification(config).eval()
    fit = [n for n, entry in whence.methods.items() if entry.facts.get("needs") != "maps"]
    methods = {n: FEWER.get(n) for n in fit if not whence.methods[n].facts.get("permutes")}
    inputs = {"input_ids": ids, "attention_mask": (ids > 0).long()}
    table = whence.axioms(model, inputs, methods=methods, features=2)
    assert table.methods == tuple(methods)
    assert len(table) == len(methods) * len(properties)
    assert [key for key, cell in table.items() if cell.verdict == "–"] == []
    assert table["raw_attention", "implementation_invariance"].verdict == "yes"  # keys are followed into another order
    assert table["deeplift", "implementation_invariance"].verdict == "no"
    assert table["integrated_gradients", "completeness"].verdict == "yes"


@pytest.mark.slow
def test_a_convolutional_network_gives_a_full_table() -> None:
    model, images = CASES["residual_cnn"].make()
    names = {name: FEWER.get(name) for name in whence.methods}
    table = whence.axioms(model, images[:1], methods=names, features=2)
    unread = {m for (m, _), cell in table.items() if cell.verdict == "–"}
    facts = {m: whence.methods[m].facts for m in names}
    needy = {m for m in names if facts[m].get("needs") is not None or facts[m].get("permutes")}
    assert unread == needy  # attention, which there is not; or one input, beside which a feature stands idle
    assert table["gradient", "implementation_invariance"].verdict == "yes"
    assert table["deeplift", "implementation_invariance"].verdict == "no"


def test_texts_of_a_loaded_model() -> None:
    clf = whence.load("zoo:sentiment")
    table = whence.axioms(clf, ["a clever piece of cinema", "dull"], methods=["input_x_gradient", "deeplift"], rows=2)
    assert table["deeplift", "completeness"].verdict == "yes"
    assert table["deeplift", "sensitivity_a"].verdict == "yes"
    assert {cell.verdict for cell in table.values()} <= {"yes", "no", "not refuted"}
    assert table["deeplift", "continuity"].verdict == "not refuted"  # GELU and softmax have no kink


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.c(F.gelu(self.a(x) + self.b(y)))


def test_several_inputs_functions_and_target_functions() -> None:
    torch.manual_seed(0)
    table = whence.axioms(Two(), (torch.randn(2, 3), torch.randn(2, 2)), methods=["deeplift"])
    assert table["deeplift", "completeness"].verdict == "yes"
    model = net()
    table = whence.axioms(lambda x: model(x).tanh(), rows(), methods=["gradient"], target=lambda out: out.prod(1))
    assert {cell.verdict for cell in table["gradient"].values()} == {"yes", "no"}


def test_the_model_is_left_as_it_was() -> None:
    model, images = CASES["residual_cnn"].make()
    model.train()
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks), sorted(vars(m))) for m in model.modules()]
    kept = images.clone()
    whence.axioms(model, images, methods=["gradient", "deeplift"], rows=1, features=2)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert hooks == [(len(m._forward_hooks), len(m._forward_pre_hooks), sorted(vars(m))) for m in model.modules()]
    assert all(m.training for m in model.modules())
    assert [p.grad is None for p in model.parameters()] == [False, *[True] * (len(list(model.parameters())) - 1)]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(kept, images)


# ---- showing ----


def test_the_table_prints_and_writes_itself(tmp_path: Path) -> None:
    table = whence.axioms(net(), rows(), methods=["gradient", "rollout"], only=["completeness", "linearity"])
    printed = str(table)
    assert printed.splitlines()[0].split() == ["method", "reference", "complete", "linear"]
    assert "A violation up to 0.02 counts as rounding" in printed
    assert "gradient, completeness: row" in printed
    assert "rollout: rollout reads attention" in printed
    assert max(map(len, printed.splitlines())) <= 120
    page = table.to_html()
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "rollout: rollout reads attention" in page
    assert table._repr_html_().startswith("<section>")
    told = json.loads(table.to_json())
    assert told["cells"][0]["witness"]["row"] in range(3)
    lines = list(csv.reader(io.StringIO(table.to_csv())))
    assert len(lines) == 5
    assert lines[0][:4] == ["method", "reference_based", "property", "verdict"]
    assert repr(table) == "AxiomTable(2 methods, 2 properties, 1 fail)"
    for kind in ("html", "csv", "json"):
        table.save(tmp_path / f"t.{kind}")
        assert (tmp_path / f"t.{kind}").read_text() == getattr(table, f"to_{kind}")()


# ---- functions and paths as methods ----


def by_hand(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    x = inputs.clone().requires_grad_()
    twice = torch.cat([x, x])  # any number of rows may be asked
    return torch.autograd.grad(model(twice)[: len(x)].gather(1, targets[:, None]).sum(), x)[0]


def occluded(model: Any, inputs: Tensor, targets: Tensor, baseline: Tensor) -> Tensor:
    columns = []
    for i in range(inputs.shape[1]):
        without = inputs.clone()
        without[:, i] = baseline[:, i]
        columns.append(model(inputs)[:, 0] - model(without)[:, 0])
    return torch.stack(columns, 1)


def test_a_function_is_measured_as_a_method_is() -> None:
    table = whence.axioms(net(), rows(), methods={"mine": by_hand, "gradient": None, "one out": occluded})
    assert table.reference == {"mine": False, "gradient": False, "one out": True}
    for name in table.properties:
        assert table["mine", name].verdict == table["gradient", name].verdict, name
        assert table["mine", name].number == pytest.approx(table["gradient", name].number, rel=1e-6, abs=1e-12)
    single = whence.axioms(net(), rows(), methods=["leave_one_out"])
    for name in table.properties:
        assert table["one out", name].verdict == single["leave_one_out", name].verdict, name


def test_functions_of_images_and_of_several_targets() -> None:
    model = net(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(72, 2))
    images = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    table = whence.axioms(model, images, methods={"mine": by_hand, "gradient": {}}, target=[0, 1])
    for name in set(table.properties) - {"sensitivity_b", "sensitivity_b_cancelling"}:
        assert table["mine", name].number == pytest.approx(table["gradient", name].number, rel=1e-6, abs=1e-12)
    assert table["mine", "sensitivity_b"].verdict == "yes"
    assert table["mine", "sensitivity_b_cancelling"].note == (
        "it is a function of one tensor, and nothing can be put beside these"
    )


def test_functions_that_fail_give_their_reason() -> None:
    def short(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        return inputs[:, :2]

    def broken(model: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        raise ValueError("no luck")

    table = whence.axioms(net(), rows(), methods={"short": short, "broken": broken}, only=["completeness"])
    assert table["short", "completeness"].note == "it gave values of shape (1, 2) for inputs of shape (1, 5)"
    assert table["broken", "completeness"].note == "ValueError: no luck"


def test_a_path_is_a_function_of_where_it_leads() -> None:
    def square(alpha: Tensor, x: Tensor, baseline: Tensor) -> Tensor:
        return baseline + alpha**2 * (x - baseline)  # another pace on the same line

    methods = {
        "line": {"method": "path_integrated_gradients"},
        "pace": {"method": "path_integrated_gradients", "path": square},
        "axes": {"method": "path_integrated_gradients", "path": along_axes},
    }
    table = whence.axioms(TOYS["logistic"], TOYS["logistic"].inputs, methods=methods)
    assert [table[name, "symmetry"].verdict for name in methods] == ["yes", "yes", "no"]
    assert {table[name, "completeness"].verdict for name in methods} == {"yes"}
    assert {table[name, "sensitivity_b"].verdict for name in methods} == {"yes"}
    with pytest.raises(whence.ParameterError, match="Give a function of α, the input and the baseline"):
        whence.axioms(net(), rows(), methods={"path_integrated_gradients": {"path": [rows(), rows()]}})
    with pytest.raises(whence.MethodError, match='Give methods={"mine": function}'):
        whence.axioms(net(), rows(), methods=[by_hand])


# ---- mistakes ----


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"methods": ["gradeint"]}, whence.MethodError, "There is no method 'gradeint'. Did you mean 'gradient'?"),
        ({"methods": []}, whence.MethodError, "There is no method to measure."),
        (
            {"methods": {"lrp": {"gama": 1}}},
            whence.ParameterError,
            "lrp has no parameter 'gama'. Did you mean 'gamma'?",
        ),
        ({"only": ["symetry"]}, whence.MethodError, "There is no property 'symetry'. Did you mean 'symmetry'?"),
        ({"only": []}, whence.ParameterError, "only= names no property."),
        ({"tolerance": 0}, whence.ParameterError, "tolerance=0 is not allowed.\n  Give a number between 0 and 1."),
        ({"rows": 0}, whence.ParameterError, "rows=0 is not allowed.\n  Give a whole number, at least 1."),
        ({"seed": -1}, whence.ParameterError, "seed=-1 is not allowed."),
        ({"target": torch.zeros(3, 2).long()}, whence.TargetError, "Properties are measured of one score per row."),
        ({"target": 9}, whence.TargetError, "target 9 of row 0 is out of range"),
        ({"baseline": [0.0, 1.0]}, whence.BaselineError, "against one baseline, and 2 were given."),
        ({"baseline": torch.zeros(7)}, whence.BaselineError, "has the shape (7,), but the input has (3, 5)."),
        (
            {"equivalents": [nn.Linear(5, 3).double()]},
            whence.InputError,
            "equivalents[0] is not equivalent: its scores",
        ),
        ({"equivalents": [3]}, whence.ParameterError, "equivalents= holds int."),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error) as raised:
        whence.axioms(net(), rows(), **{"methods": ["gradient"], **options})
    assert said in str(raised.value)


def test_other_mistakes() -> None:
    with pytest.raises(whence.InputError, match="The input is text, but a bare model has no tokenizer"):
        whence.axioms(net(), "text")
    table = whence.axioms(net(), rows(), methods=["gradient"], only=["linearity"])
    with pytest.raises(whence.ParameterError, match="The table has no property 'lineraity'. Did you mean 'linearity'"):
        table["gradient", "lineraity"]


def test_rows_beyond_the_bound_are_left_out_with_what_goes_with_them() -> None:
    baseline, options = torch.full((3, 5), 0.1).double(), {"methods": ["deeplift"], "rows": 2}
    table = whence.axioms(net(), rows(), baseline=baseline, target=[0, 1, 2], batch_size=3, **options)
    whole = whence.axioms(net(), rows()[:2], baseline=baseline[:1], target=[0, 1], **options)
    assert table.facts["rows"] == 2
    assert {k: c.verdict for k, c in table.items()} == {k: c.verdict for k, c in whole.items()}
    assert table["deeplift", "completeness"].verdict == "yes"


def test_rounding_where_all_is_0_is_no_asymmetry() -> None:
    """At a tie this function is flat, and least squares give ±3e-33 there."""
    toy = TOYS["equal networks"]
    table = whence.axioms(toy, toy.inputs, baseline=toy.baseline, methods=["kernel_shap"], only=["symmetry"])
    assert table["kernel_shap", "symmetry"].verdict == "yes"


def test_reveal_cancel_is_symmetric_where_rescale_is_not() -> None:
    toy = TOYS["minimum"]
    found = {}
    for rule in ("rescale", "reveal_cancel"):
        methods = {"deeplift": {"rule": rule}}
        found[rule] = whence.axioms(toy, toy.inputs, baseline=toy.baseline, methods=methods, only=["symmetry"])
    assert found["rescale"]["deeplift", "symmetry"].verdict == "no"
    assert found["reveal_cancel"]["deeplift", "symmetry"].verdict == "yes"
    assert found["reveal_cancel"]["deeplift", "symmetry"].note == "the model is symmetric by itself"


def test_a_kink_at_a_row_is_not_held_against_the_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 2)).double()
    x = torch.tensor([[0.0, 0, 0, 0], [1, 0, 0, 2]]).double()
    table = whence.axioms(model, x, baseline=1.0, methods=["gradient"], only=["implementation_invariance"])
    assert table["gradient", "implementation_invariance"].verdict == "yes"
