"""What an explanation warns of: said once per call, kept in the receipt, and about the rows that it is about."""

import warnings

import pytest
import torch
from torch import nn

import whence
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
