"""What an explanation warns of: said once per call, kept in the receipt, and about the rows that it is about."""

import warnings

import pytest
import torch
from torch import nn

import whence
from tests.support.functions import explain
from whence.errors import gathered, warn


class Root(nn.Module):
    """f(x) = Σ √x, whose slope at 0 is infinite."""

    def forward(self, x):
        return x.sqrt().sum(1, keepdim=True)


X = torch.tensor([[1.0, 4.0], [0.0, 1.0], [2.0, 3.0], [1.0, 0.0]], dtype=torch.float64)


def told(**options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = whence.explain(Root(), X, method="gradient", target=0, **options)
    return found, [str(one.message) for one in caught]


def test_warnings_stand_in_the_receipt_as_they_were_given():
    a, said = told()
    assert len(said) == 1
    assert "not finite in rows [1, 3]" in said[0]
    assert a.receipt["warnings"] == said
    calm = whence.explain(nn.Linear(2, 1), X.float(), method="gradient", target=0)
    assert calm.receipt["warnings"] == []


def test_rows_take_the_warnings_that_are_about_them():
    a, _ = told()
    assert a[0].receipt["warnings"] == []
    assert a[2].receipt["warnings"] == []
    assert "not finite in rows [0]" in a[3].receipt["warnings"][0]  # a row by itself is row 0
    assert "not finite in rows [0, 2]" in a[1:].receipt["warnings"][0]
    assert a[1:][2].receipt["warnings"] == a[3].receipt["warnings"]


def test_parts_of_a_call_speak_once():
    whole, said = told()
    parts, again = told(batch_size=1)
    assert again == said
    assert parts.receipt["warnings"] == whole.receipt["warnings"]


def test_warnings_are_saved(tmp_path):
    a, _ = told()
    a.save(tmp_path / "a.safetensors")
    b = whence.Attribution.load(tmp_path / "a.safetensors")
    assert b.receipt["warnings"] == a.receipt["warnings"]
    assert b[0].receipt["warnings"] == []


def test_one_text_is_said_once_with_all_its_rows_and_its_largest_number():
    with gathered() as said:
        warn("{rows} miss {worst}, {count} units", [3], worst=0.25, count=7)
        warn("{rows} miss {worst}, {count} units", [1, 3], worst=0.5, count=100)
        warn("rules={relu} met nothing")
    assert [str(one) for one in said] == ["rows [1, 3] miss 0.5, 100 units", "rules={relu} met nothing"]
    with gathered() as said:
        warn("{rows}: no", range(64))
    assert str(said[0]) == "64 rows (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …): no"


def test_outside_of_an_explanation_a_warning_is_given_at_once():
    with pytest.warns(whence.WhenceWarning, match="as it is"):
        warn("as it is")


def test_an_explanation_inside_a_model_keeps_its_warnings_to_itself():
    class Curious(nn.Module):
        def forward(self, x):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                whence.explain(Root(), torch.zeros(1, 2), method="gradient", target=0)
            return x.sum(1, keepdim=True)

    assert whence.explain(Curious(), X, method="gradient", target=0).receipt["warnings"] == []


def test_trace_warns_too():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    with pytest.warns(whence.WhenceWarning, match="met no op with weights"):
        whence.trace(model, X.float(), method="lrp", composite={"path:nowhere": "epsilon"}, target=0, show=False)


# ---- what a reader should know of an answer ----


class Against(nn.Module):
    """Everything that the first class gets of x ≥ 0 speaks against it."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            self.out.weight.copy_(torch.tensor([[-1.0, -2.0], [1.0, 2.0]]))

    def forward(self, x):
        return self.out(x.relu())


def said(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = call()
    assert [str(one.message) for one in caught] == found.receipt["warnings"]
    return found, found.receipt["warnings"]


def test_rows_that_get_nothing_are_named_and_told_what_to_try():
    x = torch.tensor([[1.0, 1.0], [-1.0, 2.0], [-1.0, -1.0]])
    a, told_ = said(lambda: whence.explain(Against(), x, method="lrp", target=[0, 1, 1]))
    assert len(told_) == 1
    assert told_[0].startswith("lrp: every value of rows [0, 2] is 0. ")
    assert 'composite="epsilon"' in told_[0]
    assert a[1].receipt["warnings"] == []
    _, told_ = said(lambda: whence.explain(Against(), x[:1], method="lrp", target=0, composite="epsilon"))
    assert told_ == []
    _, told_ = said(lambda: whence.explain(Against(), x, method="gradient", target=0))
    assert "every value of rows [2] is 0. The score is flat" in told_[0]
    _, told_ = said(lambda: whence.explain(Against(), x, method="deeplift", target=0, baseline=x[1:2]))
    assert "every value of rows [1] is 0. The input may be equal to its baseline" in told_[0]
    several = torch.tensor([[0, 1]] * 3)
    _, told_ = said(lambda: whence.explain(Against(), x, method="lrp", target=several))
    assert "every value of rows [0, 1, 2] is 0" in told_[0]  # of some target


def test_attention_gradcam_that_has_nothing_to_say_says_so():
    model = whence.load("zoo:sentiment")
    a, told_ = said(lambda: whence.explain(model, list(model.examples), method="attention_gradcam"))
    empty = [row for row in range(len(a)) if not a.values[row].any()]
    assert empty
    assert len(told_) == 1
    assert f"every value of rows {empty} is 0" in told_[0]
    assert "attcat" in told_[0]


def test_parts_that_cancel_are_told():
    model, x = Against(), torch.tensor([[2.0, -1.0], [2.0, 1.001]])

    def nearly(x):
        return model(x)[:, :1] * torch.tensor([0.0]) + (x * torch.tensor([1.0, -2.0])).sum(1, keepdim=True)

    for method in ("integrated_gradients", "deeplift", "shapley"):
        a, told_ = said(lambda method=method: whence.explain(nearly, x, method=method, target=0))
        assert len(told_) == 1, method
        assert told_[0].startswith(f"{method}: the score of rows [1] is almost the same at the baseline")
        assert float(a.gap.max()) < 1e-3
    _, told_ = said(lambda: whence.explain(nearly, x, method="input_x_gradient", target=0))
    assert told_ == []  # which claims no completeness


def test_the_demos_sentence_is_told_that_its_parts_cancel_and_where_its_mass_lies():
    model = whence.load("zoo:sentiment")
    sentence = model.examples[3]
    a, told_ = said(lambda: whence.explain(model, sentence, method="integrated_gradients"))
    assert float((a.output_value - a.baseline_value).abs()) < 0.005 * float(a.values.abs().sum())
    assert any("almost the same at the baseline" in one for one in told_)
    a, told_ = said(lambda: whence.explain(model, sentence, method="transformer_attribution"))
    on_special = float(a.values[0][torch.tensor(a.special[0])].abs().sum() / a.values.abs().sum())
    assert on_special > 0.95
    assert f"up to {100 * on_special:.1f} % of the values of rows [0] lies on special tokens" in told_[0]
    for method in ("attcat", "deeplift"):
        _, told_ = said(lambda method=method: whence.explain(model, sentence, method=method))
        assert not any("special tokens" in one for one in told_)


def test_texts_of_many_lengths_are_warned_of_once_by_the_users_rows():
    model = whence.load("zoo:sentiment")
    texts = [model.examples[3], "a fine film", model.examples[3] + " , and so is the end of it", "dull"]
    a, told_ = said(lambda: whence.explain(model, texts, method="transformer_attribution", batch_size=1))
    assert len(told_) == 1
    assert "rows [0, 1, 2, 3]" in told_[0]
    assert "rows [0]" in a[2].receipt["warnings"][0]


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


def test_percentages_are_written_without_an_exponent():
    told = whence.errors.Message("{share} % and {gap}", None, {"share": 99.9, "gap": 0.0123})
    assert str(told) == "99.9 % and 0.012"
    assert str(whence.errors.Message("{share} %", None, {"share": 100.0})) == "100 %"
    assert str(whence.errors.Message("{share} %", None, {"share": 98.6})) == "99 %"
