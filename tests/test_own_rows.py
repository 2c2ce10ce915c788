"""Models that are wrapped with a function of the user's: the names of a row's tokens, and rows that are dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import whence

TEXTS = ["a good film", "dull and far too long"]
WORDS = sorted({word for text in TEXTS for word in text.split()})


def encode(texts: list[str]) -> Tensor:
    ids = [[1 + WORDS.index(word) for word in text.split()] for text in texts]
    return torch.tensor([own + [0] * (6 - len(own)) for own in ids])


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(1 + len(WORDS), 4, padding_idx=0), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embed(tokens)).sum(1))  # type: ignore[no-any-return]


class Ticket(nn.Module):
    """A text and numbers beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.numbers = Bag(), nn.Linear(2, 2)

    def forward(self, message: Tensor, meta: Tensor) -> Tensor:
        return self.bag(message) + self.numbers(meta)  # type: ignore[no-any-return]


def read(rows: list[Mapping[str, Any]]) -> dict[str, Tensor]:
    return {"message": encode([row["text"] for row in rows]), "meta": torch.stack([row["meta"] for row in rows])}


TICKETS = [{"text": text, "meta": torch.tensor([1.0, -2.0])} for text in TEXTS]


@pytest.fixture
def bag() -> Any:
    torch.manual_seed(0)
    return whence.wrap(Bag(), encode, labels=["no", "yes"], names=str.split)


def test_tokens_are_shown_by_their_names_and_padding_is_not(bag: Any, capsys: pytest.CaptureFixture[str]) -> None:
    a = whence.explain(bag, TEXTS, method="deeplift", target="yes")
    assert a.units == [[*text.split(), *["[PAD]"] * (6 - len(text.split()))] for text in TEXTS]
    assert a.real is not None
    assert a.real.sum(1).tolist() == [3, 5]
    a.show()
    shown = capsys.readouterr().out
    assert all(word in shown for text in TEXTS for word in text.split())
    assert "[PAD]" not in shown
    assert torch.equal(a.values, whence.explain(bag.model, encode(TEXTS), method="deeplift", target=1).values)


def test_metrics_and_checks_leave_padding_alone(bag: Any) -> None:
    board = whence.evaluate(bag, TEXTS, methods=["deeplift"], metrics={"comprehensiveness": {"k": [100]}}, target=1)
    empty = bag.model(torch.zeros(1, 6, dtype=torch.long)).softmax(1)[0, 1]
    drops = bag.model(encode(TEXTS)).softmax(1)[:, 1] - empty
    assert board["deeplift", "comprehensiveness"].value == pytest.approx(float(drops.detach().mean()), abs=1e-5)
    checked = whence.compare(bag, TEXTS, methods=["deeplift"], check=True).checks
    assert checked is not None
    assert all(check.first["deeplift"] in text.split() for check, text in zip(checked, TEXTS, strict=True))


def test_a_run_keeps_the_names(bag: Any, tmp_path: Any) -> None:
    run = whence.run(bag, TEXTS, methods=["deeplift"], out=tmp_path / "run")
    assert [row.units[0] for row in run] == [text.split() for text in TEXTS]


@pytest.mark.parametrize(
    ("names", "told"),
    [(lambda row: row, "gave 'a good film' for a row"), (lambda row: ["a"] * 7, r"gave 7 names .* \(2, 6\)")],
)
def test_names_that_do_not_fit_are_refused(names: Any, told: str) -> None:
    with pytest.raises(whence.InputError, match=told):
        whence.explain(whence.wrap(Bag(), encode, names=names), TEXTS, method="gradient", target=0)


def test_names_of_several_inputs_come_by_input() -> None:
    model = Ticket()
    named = whence.wrap(model, read, names=lambda row: {"message": row["text"].split(), "meta": ["age", "size"]})
    a = whence.explain(named, TICKETS, method="deeplift", target=0)
    assert isinstance(a.units, dict)
    assert a.units["meta"] == [["age", "size"]] * 2
    assert a.units["message"][0][:3] == TEXTS[0].split()
    flat = whence.wrap(model, read, names=lambda row: row["text"].split())
    with pytest.raises(whence.InputError, match="Return a dict from some of message, meta"):
        whence.explain(flat, TICKETS, method="deeplift", target=0)


def test_rows_that_are_dicts_of_tensors_reach_the_function_as_they_are() -> None:
    torch.manual_seed(0)
    clf = whence.wrap(Ticket(), lambda rows: read([{"text": row["words"], "meta": row["meta"]} for row in rows]))
    rows = [{"words": ticket["text"], "meta": ticket["meta"]} for ticket in TICKETS]
    board = whence.evaluate(clf, rows, methods=["deeplift"], metrics=["comprehensiveness"], wrt="message")
    tensors = {"inputs": read(TICKETS)}
    plain = whence.evaluate(clf.model, tensors, methods=["deeplift"], metrics=["comprehensiveness"], wrt="message")
    assert board["deeplift", "comprehensiveness"].value == plain["deeplift", "comprehensiveness"].value


def test_checks_name_the_columns_of_a_table() -> None:
    table = pd.DataFrame([[1.0, -2.0, 0.5]], columns=["age", "dose", "height"])
    checks = whence.compare(nn.Linear(3, 2), table, methods=["deeplift", "gradient"], check=True).checks
    assert checks is not None
    assert set(checks[0].first.values()) <= set(table.columns)
