"""The report of a comparison: shares on one scale, four methods first, agreement, and what the model itself says."""

from __future__ import annotations

import dataclasses
import json
import re
from itertools import pairwise, permutations

import pytest
import torch

import whence
from tests.support.browser import chromium, scroll_width
from tests.support.pages import HOSTILE, attribution, text_attribution
from whence.views.comparison import report
from whence.views.components import nice, signed
from whence.views.families import FAMILIES, family_of, first_of, title_of
from whence.views.maps import percent
from whence.views.shares import by_chance, common, drawn, scale_of


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.tensor([[1.0, -2.0, 3.0, 0.5], [0.0, 1.0, -1.0, 2.0]]).double()

    def forward(self, x):
        return x @ self.weight.T


ROWS = torch.tensor([[1.0, 2.0, -1.0, 3.0], [2.0, -1.0, 1.0, 0.5]]).double()


# ---- what the model says ----


def test_the_deletion_check_by_hand():
    model = Linear()
    c = whence.compare(model, ROWS, methods=["input_x_gradient", "gradient"], target=0, check=True)
    assert len(c.checks) == 2
    for row, check in enumerate(c.checks):
        x = ROWS[row]
        order = (x * model.weight[0]).argsort(descending=True)  # none are equal
        expected = []
        for count in range(5):
            left = x.clone()
            left[order[:count]] = 0
            expected.append(float(model(left[None]).softmax(1)[0, 0]))
        assert check.places == (0, 1, 2, 3, 4)
        assert check.curves["input_x_gradient"] == pytest.approx(expected, abs=1e-12)
        area = sum((a + b) / 2 for a, b in pairwise(expected)) / 4
        assert check.left("input_x_gradient") == pytest.approx(area)
        assert check.first["input_x_gradient"] == str(int(order[0]))
        whole = model(x[None]).softmax(1)[0].tolist()
        assert dict(check.classes) == pytest.approx({"class 0": whole[0], "class 1": whole[1]})
        assert (check.target, check.others, check.unit, check.how) == ("class 0", 0, "feature", "replaced by 0")
        mean, low, high = (torch.tensor(line) for line in check.random)
        assert bool((low <= mean + 1e-12).all())
        assert bool((mean <= high + 1e-12).all())
        assert [mean[0], mean[-1]] == pytest.approx([expected[0], expected[-1]])


def test_the_order_in_which_units_go_is_told():
    (check,) = whence.compare(Linear(), ROWS[:1], methods=["input_x_gradient"], target=0, check=True).checks
    assert check.order["input_x_gradient"] == tuple((ROWS[0] * Linear().weight[0]).argsort(descending=True).tolist())


def test_the_words_of_a_pair_go_one_by_one():
    pytest.importorskip("transformers")
    zoo = whence.load("zoo:sentiment")  # which numbers the words of each text from 0 on
    row = ("A dull film.", "Never funny!")
    (check,) = whence.compare(zoo, [row], methods=["integrated_gradients"], check=True).checks
    assert check.places == (0, 1, 2, 3, 4, 5, 6, 7)
    assert sorted(check.order["integrated_gradients"]) == list(range(7))


def test_random_orders_are_the_same_for_the_same_row_and_differ_among_themselves():
    first, again = (
        whence.compare(Linear(), ROWS[:1], methods=["gradient"], target=0, check=True).checks[0] for _ in range(2)
    )
    assert first == again
    assert max(b - a for a, b in zip(first.random[1], first.random[2], strict=True)) > 0.01


def test_a_words_tokens_go_together():
    pytest.importorskip("transformers")
    zoo = whence.load("zoo:sentiment")
    c = whence.compare(zoo, zoo.examples[3], methods=["integrated_gradients"], check=True)
    (check,) = c.checks
    assert check.unit == "word"
    assert check.first == {"integrated_gradients": "clumsy"}
    without = zoo.examples[3].replace("clumsy ", "")
    number = zoo.target("negative")
    ids = zoo.tokenizer(without, return_tensors="pt")
    expected = float(zoo.model(**ids).logits.detach().softmax(1)[0, number])
    assert check.curves["integrated_gradients"][1] == pytest.approx(expected, abs=1e-5)
    page = c.to_html()
    assert "Does the model bear them out?" in page
    pair = whence.compare(zoo, zoo.examples[3], methods=["integrated_gradients", "attnlrp"], check=True).to_html()
    assert f"first; without it the model says “negative” at {percent(expected)}.</p>" in pair


def test_patches_of_an_image_go_together():
    pytest.importorskip("transformers")
    zoo = whence.load("zoo:fashion-cnn")
    c = whence.compare(zoo, zoo.examples[:2], methods=["gradient", "grad_cam"], check=True)
    assert len(c.checks) == 2
    assert c.checks[0].unit == "patch"
    assert c.checks[0].places[-1] == 49
    assert set(c.checks[0].curves) == {"gradient", "grad_cam"}
    assert c.checks[0].others == 5


def test_a_target_that_is_no_class_cannot_be_checked():
    with pytest.raises(whence.InputError, match="check=True follows the probability of one class a row"):
        whence.compare(Linear(), ROWS, methods=["gradient"], target=lambda y: y.sum(1), check=True)


def test_what_comes_first_is_what_goes_first_and_one_word_is_not_another():
    clf = whence.load("zoo:sentiment")
    methods = ["integrated_gradients", "attnlrp", "shapley", "transformer_attribution"]
    given = "The plot is thin, but the actors are wonderful."
    c = whence.compare(clf, given, methods=methods, target="negative", check=True)
    (check,) = c.checks
    told = re.search(r'<p class="verdict">(.*?)</p>', c.to_html())[1]
    best = max(set(check.first.values()), key=list(check.first.values()).count)
    assert f"<b>{best}</b> first" in told
    who = next(name for name, first in check.first.items() if first == best)
    assert told.endswith(f"“negative” at {percent(check.curves[who][1])}.")
    loud = whence.compare(clf, "Dull & long.", methods=methods[:2], check=True)
    assert "<b>Dull</b> first; without it the model says" in loud.to_html()  # as it is spelled there
    one = whence.compare(clf, "Dull & long.", methods=methods[:1], check=True)
    assert "The method puts <b>Dull</b> first; without it" in one.to_html()
    twice = whence.compare(clf, "wonderful and dull and wonderful", methods=methods[:1], check=True)
    check = dataclasses.replace(twice.checks[0], order={"a": (0,), "b": (4,)}, first=dict.fromkeys("ab", "wonderful"),
                                curves=dict.fromkeys("ab", twice.checks[0].curves["integrated_gradients"]))  # fmt: skip
    both = dict.fromkeys("ab", twice["integrated_gradients"])
    page = report({name: a[0] for name, a in both.items()}, check)
    assert "do not agree on what comes first" in page
    assert "<b>wonderful</b> (word 1)" in page
    assert "<b>wonderful</b> (word 5)" in page


def test_a_baseline_that_is_not_all_methods_is_not_told_as_theirs():
    model = Linear()
    c = whence.compare(
        model, ROWS[:1], methods={"integrated_gradients": {"baseline": 0.0}, "deeplift": {"baseline": 1.0}}, target=0
    )
    assert "(baseline:" not in c.to_html()
    assert "(baseline:" in whence.compare(model, ROWS[:1], methods=["integrated_gradients"], target=0).to_html()


@pytest.mark.parametrize("outputs", [1, 2])
def test_one_output_is_said_to_be_read_as_a_logit(outputs):
    model = torch.nn.Linear(4, outputs).double()
    c = whence.compare(model, ROWS[:1], methods=["gradient", "input_x_gradient"], target=0, check=True)
    assert ("one output is read as a logit" in c.to_html()) is (outputs == 1)


def test_how_often_the_model_was_asked_is_told():
    a = whence.explain(Linear(), ROWS[:1], method="shapley", target=0)
    assert (
        f"{a.receipt['evaluations'][0]} evaluations"
        in whence.compare(Linear(), ROWS[:1], methods=["shapley", "gradient"], target=0).to_html()
    )


def test_what_chance_has_in_common_is_the_mean_over_all_ways_to_deal():
    model = Linear()
    c = whence.compare(model, ROWS[:1], methods=["gradient", "input_x_gradient"], target=0)
    one, other = (drawn(name, a[0]) for name, a in c.items())
    values, others = one.shares[0].flatten(), other.shares[0].flatten()
    dealt = [1 - (values[list(order)] - others).abs().sum() / 2 for order in permutations(range(len(values)))]
    assert by_chance(one, other) == pytest.approx(float(sum(dealt) / len(dealt)))


def test_a_check_is_in_the_json_file(tmp_path):
    c = whence.compare(Linear(), ROWS, methods=["gradient"], target=0, check=True)
    c.save(tmp_path / "c.json")
    told = json.loads((tmp_path / "c.json").read_text())
    assert told["checks"][1]["curves"]["gradient"] == pytest.approx(list(c.checks[1].curves["gradient"]))
    whence.compare(Linear(), ROWS, methods=["gradient"], target=0).save(tmp_path / "c.json")
    assert "checks" not in json.loads((tmp_path / "c.json").read_text())


def test_the_page_says_of_which_orders_random_ones_are_better():
    x = torch.tensor([[1.0, -2.0, -1.0, 1.0]]).double()
    c = whence.compare(Linear(), x, methods=["input_x_gradient", "gradient"], target=0, check=True)
    check = c.checks[0]
    better = {name: check.left(name) < check.left() for name in c}
    assert better == {"input_x_gradient": True, "gradient": False}  # the gradient begins with 3 · −1
    assert all(min(check.chance) <= check.left(name) + 1e-9 for name in c)  # of 24 orders ten are tried, ties are none
    told = c.to_html().partition(": some of the 10 random orders do better here")[0].rpartition("<p ")[2]
    assert re.findall(r">([A-Z])</span>", told) == ["B"]


@pytest.mark.parametrize(("how", "coarse"), [({"steps": 2, "rule": "left"}, True), ({"tolerance": 0.001}, False)])
def test_an_integral_of_few_points_is_told_above_the_picture(how, coarse):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).double().eval()
    c = whence.compare(model, 3 * ROWS[:1], methods={"integrated_gradients": how, "gradient": {}}, target=0)
    assert (float(c["integrated_gradients"].gap[0]) > 0.05) is coarse
    assert ("points are few for this integral" in c.to_html()) is coarse


def test_without_a_check_the_page_shows_no_curve():
    page = whence.compare(Linear(), ROWS, methods=["gradient", "input_x_gradient"], target=0).to_html()
    assert "Does the model bear them out?" not in page
    assert "<svg" not in page
    assert "otherwise" in page  # the probability of what is not explained


# ---- families ----


def test_every_method_has_a_family_and_four_first_are_of_different_ones():
    families = {name: family_of(name) for name in whence.methods}
    assert set(families.values()) == set(FAMILIES) - {"Others"}
    assert families["transformer_attribution"] == "Attention"
    assert family_of("the user's own") == "Others"
    first = first_of({name: name for name in whence.methods})
    assert first == ["integrated_gradients", "attnlrp", "shapley", "transformer_attribution"]
    few = {"gradient": "gradient", "random": "random", "rollout": "rollout", "my own": "mine"}
    assert first_of(few) == list(few)
    slopes = dict.fromkeys(["gradient", "smoothgrad", "guided_backprop", "deconvnet", "random", "deeplift"], "")
    chosen = first_of({name: name for name in slopes})
    assert chosen[:2] == ["deeplift", "gradient"]
    assert len(chosen) == 4
    assert "random" not in chosen


@pytest.mark.parametrize(
    ("name", "title"),
    [("integrated_gradients", "Integrated gradients"), ("attnlrp", "AttnLRP"), ("cp_lrp", "CP-LRP"),
     ("input_x_gradient", "Input × gradient"), ("grad_cam", "Grad-CAM"), ("lrp (gamma)", "lrp (gamma)"),
     ("kernel_shap", "Kernel SHAP"), ("my_own", "my_own")],
)  # fmt: skip
def test_titles(name, title):
    assert title_of(name) == title


def test_more_than_four_methods_are_folded_by_family():
    names = ["gradient", "input_x_gradient", "integrated_gradients", "deeplift", "shapley", "random"]
    page = whence.compare(Linear(), ROWS[:1], methods=names, target=0).to_html()
    first, rest = page.split("All 6 methods, by the question they ask")
    assert "Four methods that ask different questions" in first
    assert "Random" not in first
    folds = re.findall(r'<details class="fold"><summary><b>(.*?)</b>', rest)
    assert folds == ["Slopes", "Paths", "References", "Removal", "Control", "All against all"]
    assert "<details open" not in rest
    for name in names:
        assert f'code">{name}</span>' in rest
    few = whence.compare(Linear(), ROWS[:1], methods=names[:4], target=0).to_html()
    assert "by the question they ask" not in few


def test_a_method_without_an_answer_is_struck_through_with_the_reason():
    a = text_attribution(["a", "b"])
    page = report({"gradient": a, "deeplift": a}, missing={"rollout": "reads <attention>"})
    assert '<span class="gone">Rollout</span> reads &lt;attention&gt;' in page


# ---- shares on one scale ----


def test_shares_leave_special_tokens_out_and_say_what_they_have():
    a = text_attribution(["[CLS]", "good", "film"], torch.tensor([[6.0, 3.0, -1.0]]))
    a = whence.Attribution(**{**vars(a), "special": [[True, False, False]]})
    d = drawn("deeplift", a)
    assert d.shares[0].tolist() == pytest.approx([0.0, 0.75, -0.25])
    assert d.aside == pytest.approx(0.6)
    page = whence.Comparison({"deeplift": a, "lrp": a}).to_html()
    assert 'class="w for much" style="--a:1" data-n="+75 % · 3"' in page
    assert 'class="w against much"' in page
    assert "60 % on [CLS]" in page
    assert "≥ +50 %" in page  # the scale ends there, and this value lies beyond


def test_one_scale_for_all_methods():
    words = ["a", "b", "c", "d"]
    even = text_attribution(words, torch.tensor([[1.0, 1.0, 1.0, -1.0]]))
    one = text_attribution(words, torch.tensor([[30.0, 10.0, 0.0, 0.0]]) / 100)
    pair = [drawn("deeplift", even, "A"), drawn("lrp", one, "B")]
    scale = scale_of(pair, pair, False)
    assert (scale.limit, scale.over) == (0.5, True)
    tame = scale_of(pair[:1], pair[:1], False)
    assert (tame.limit, tame.over) == (0.25, False)
    assert tame.ticks() == ["−25 %", "−12.5 %", "0", "+12.5 %", "+25 %"]
    page = whence.Comparison({"deeplift": even, "lrp": one}).to_html()
    assert page.count('class="scale two"') == 1
    strengths = re.findall(r'--a:([\d.]+)" data-n="([^"]*)"', page)
    assert [float(a) for a, told in strengths if told.startswith("+25 %")] == [round(0.5**0.85, 2)] * 4  # of both


def test_images_are_in_multiples_of_an_even_spread():
    image = torch.full((1, 3, 8, 8), 200, dtype=torch.uint8)
    grid = torch.zeros(1, 2, 2)
    grid[0, 0, 0], grid[0, 1, 1] = 3.0, -1.0
    a = attribution(grid, image=image, image_size=(8, 8), labels=["cat"])
    d = drawn("deeplift", a)
    assert d.shown[0].flatten().tolist() == pytest.approx([3.0, 0.0, 0.0, -1.0])
    page = whence.Comparison({"deeplift": a, "lrp": a}).to_html()
    assert "1 × is what an even spread" in page
    assert page.count("--photo:url(data:image/png;base64,") == 1  # once for all pictures
    assert "2 × 2 patches" in page


def test_values_without_a_sign_are_grey():
    a = text_attribution(["a", "b"], torch.tensor([[1.0, 2.0]]))
    attention = whence.Attribution(**{**vars(a), "method": "rollout"})
    sizes = whence.Attribution(**{**vars(a), "receipt": {"channels": "l2"}})
    page = whence.Comparison({"rollout": attention, "gradient": sizes}).to_html()
    assert 'class="w size' in page
    assert not re.search('class="w (for|against)', page)
    assert "magnitude only" in page
    mixed = whence.Comparison({"rollout": attention, "deeplift": a}).to_html()
    assert 'class="w for' in mixed
    assert "Of magnitudes, where one has no sign." in mixed


def test_what_two_methods_have_in_common():
    words = ["a", "b", "c", "d"]
    x, y = (
        drawn(name, text_attribution(words, torch.tensor([values])))
        for name, values in {"deeplift": [4.0, 0.0, 0.0, 0.0], "lrp": [1.0, 1.0, -1.0, -1.0]}.items()
    )
    assert common(x, x) == pytest.approx(1)
    assert common(x, y) == pytest.approx(1 - (0.75 + 0.25 * 3) / 2)
    assert 0 <= by_chance(x, y) <= 1
    c = whence.Comparison({"x": x.a, "y": y.a})
    assert common(x, y) == pytest.approx(float(c.agreement()[0, 1]))  # without special tokens, the same
    other = drawn("z", text_attribution(["a", "b"]))
    assert str(common(x, other)) == "nan"


def test_grids_of_one_image_are_compared_on_the_coarser_one():
    image = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    coarse = torch.tensor([[[4.0, 0.0], [0.0, -4.0]]])
    fine = torch.zeros(1, 4, 4)
    fine[0, :2, :2], fine[0, 2:, 2:] = 1.0, -1.0
    a, b = (drawn("deeplift", attribution(v, image=image, image_size=(4, 4))) for v in (coarse, fine))
    assert common(a, b) == pytest.approx(1)


def test_numbers_that_read_well():
    assert [nice(x) for x in (0.123, 0.41, 7.2, 100.0, 0.0)] == pytest.approx([0.15, 0.5, 8.0, 100.0, 1.0])
    assert [signed(x) for x in (0.408, -0.027, 0.0)] == ["+41 %", "−2.7 %", "0.0 %"]


def test_features_are_bars_of_one_length_per_unit():
    names = ["age", "height", "weight", "income"]
    c = whence.compare(Linear(), ROWS[:1], methods=["input_x_gradient", "integrated_gradients"], target=0, names=names)
    page = c.to_html()
    total = (ROWS[0] * Linear().weight[0]).abs()
    widths = [float(w) for w in re.findall(r'<i class="(?:for|against)" style="left:[\d.]+%;width:([\d.]+)%', page)]
    expected = [float(v) for v in (total / total.sum()).sort(descending=True).values for _ in range(2)]
    assert widths == pytest.approx([50 * v / 0.5 for v in expected], abs=0.1)
    places = [page.index(f"<th>{name}</th>") for name in ("height", "weight", "income", "age")]  # the strongest first
    assert places == sorted(places)


# ---- in a browser ----


def test_hostile_names_of_features_classes_and_methods(tmp_path):
    found = {
        bad: attribution(torch.randn(1, 5), units=[HOSTILE], receipt={"names": True}, labels=[bad]) for bad in HOSTILE
    }
    page = tmp_path / "page.html"
    page.write_text(whence.Comparison(found).to_html(title="still"))
    dom, console, outside = chromium(page, tmp_path, "--dump-dom")
    assert "<title>still</title>" in dom
    assert "<script" not in dom
    assert "<img src=" not in dom
    assert (console, outside) == ("", [])


@pytest.mark.parametrize("kind", ["text", "image", "features", "grid"])
def test_a_report_fits_a_phone(kind, tmp_path):
    words = ["Donaudampfschifffahrtsgesellschaft" * 3, *"a film of the year".split()]
    made = {
        "text": lambda: text_attribution(words, torch.randn(1, 6), label="x" * 90),
        "image": lambda: attribution(torch.randn(1, 8, 8), image=torch.zeros(1, 3, 8, 8, dtype=torch.uint8)),
        "features": lambda: attribution(torch.randn(1, 30), units=[[f"feature {i}" for i in range(30)]],
                                        receipt={"names": True}),
        "grid": lambda: attribution(torch.randn(1, 30, 30)),
    }  # fmt: skip
    names = ["integrated_gradients", "deeplift", "shapley", "gradient", "lrp", "random"]
    page = whence.Comparison({name: made[kind]() for name in names}).to_html()
    assert scroll_width(page, 400, tmp_path) <= 400


def test_a_notebook_gets_the_same_report_with_its_style():
    c = whence.Comparison({"deeplift": text_attribution(["a", "b"]), "lrp": text_attribution(["a", "b"])})
    shown = c._repr_html_()
    assert shown.startswith('<div class="whence"><style>')
    assert "light-dark(" in shown
    assert shown.split("</style>")[1].removesuffix("</div>") in c.to_html()
