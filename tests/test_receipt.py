"""A receipt is a dict to everyone who looks, and lines per row are made when they are read."""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import asdict
from pprint import pformat
from typing import Any

import pytest
import torch
from torch import nn

import whence
from whence.util.receipt import Later, Receipt, joined, waiting

LINES = [{"row": row} for row in range(3)]


def receipt(asked: list[list[int]] | None = None) -> Receipt:
    def make(rows: list[int]) -> list[Any]:
        if asked is not None:
            asked.append(rows)
        return [LINES[row] for row in rows]

    return Receipt({"passes": 1, "lines": Later.of(make, 3), "per_row": ["lines"]})


PLAIN = {"passes": 1, "lines": LINES, "per_row": ["lines"]}
LOOKS: dict[str, Callable[[Any], Any]] = {
    "spread": lambda r: {**r},
    "dict": dict,
    "update": lambda r: {"a": 0} | r,
    "or": lambda r: r | {"a": 0},
    "copy": lambda r: r.copy(),
    "copy.copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda r: pickle.loads(pickle.dumps(r)),
    "json": json.dumps,
    "json with an indent": lambda r: json.dumps(r, indent=1, sort_keys=True),
    "repr": repr,
    "pprint": pformat,
    "items": lambda r: list(r.items()),
    "values": lambda r: list(r.values()),
    "get": lambda r: (r.get("lines"), r.get("nothing", 7)),
    "pop": lambda r: (r.pop("lines"), r.pop("nothing", 7), list(r)),
    "popitem": lambda r: (r.popitem(), r.popitem(), list(r)),
    "setdefault": lambda r: (r.setdefault("lines", 7), r.setdefault("more", 7), r["more"]),
    "set and delete": lambda r: (r.__setitem__("lines", 7), r.__delitem__("passes"), dict(r)),
    "keys": lambda r: (list(r), sorted(r), len(r), "lines" in r, list(r.keys()), list(reversed(r))),
    "keyword arguments": lambda r: (lambda **given: given)(**r),
    "equality": lambda r: (r == PLAIN, dict(PLAIN) == r, r != PLAIN, dict(PLAIN) != r, r == {}, r == receipt()),
    "equality of two": lambda r: (r == receipt(), r != receipt(), receipt() == r, receipt() != r),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_it_looks_like_a_dict(look: Callable[[Any], Any]) -> None:
    assert look(receipt()) == look(dict(PLAIN))
    assert isinstance(receipt(), dict)
    with pytest.raises(TypeError, match="unhashable"):
        hash(receipt())
    with pytest.raises(KeyError):
        receipt()["nothing"]


def test_copies_are_plain() -> None:
    for copied in (copy.copy(receipt()), pickle.loads(pickle.dumps(receipt())), receipt().copy()):
        assert type(copied) is dict


def test_lines_are_made_once_when_they_are_read() -> None:
    asked: list[list[int]] = []
    r = receipt(asked)
    more = Receipt(r, {"more": 2})
    assert (r["passes"], more["more"], len(more), "lines" in more, list(more)) == (
        1, 2, 4, True, ["passes", "lines", "per_row", "more"],
    )  # fmt: skip
    assert asked == []
    assert more["lines"] is more["lines"]
    assert asked == [[0, 1, 2]]
    assert r.get("lines") == LINES


def test_rows_are_picked_and_lists_joined_before_they_are_made() -> None:
    asked: list[list[int]] = []
    one, two = waiting(receipt(asked), "lines"), waiting(receipt(asked), "lines")
    both = joined([one, ["between"], two])
    assert isinstance(both, Later)
    assert both.pick([6, 0, 3, 1]).made() == [LINES[2], LINES[0], "between", LINES[1]]
    assert sorted(asked) == [[0, 1], [2]]  # each maker once
    assert joined([[1], [2, 3]]) == [1, 2, 3]


# ---- of an explanation ----

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double().eval()
X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("method", ["lrp", "attnlrp"])
@pytest.mark.parametrize("target", [1, [[0, 2]] * 5], ids=["one target", "two targets"])
def test_rows_have_their_own_lines_however_they_are_asked_for(method: str, target: Any) -> None:
    def asked(**options: Any) -> whence.Attribution:
        return whence.explain(model, X, method=method, target=target, **options)

    whole = asked().receipt["relevance"]
    a = asked()
    assert isinstance(waiting(a.receipt, "relevance"), Later)  # nobody has read it
    assert [a[i].receipt["relevance"][0] for i in range(5)] == whole
    assert a[3:1:-1].receipt["relevance"] == [whole[3], whole[2]]
    assert a[1:][2].receipt["relevance"] == [whole[3]]
    assert isinstance(waiting(a.receipt, "relevance"), Later)
    batches = asked(batch_size=2)
    assert isinstance(waiting(batches.receipt, "relevance"), Later)
    for line, other in zip(whole, batches.receipt["relevance"], strict=True):
        own, theirs = ((one if isinstance(one, list) else [one]) for one in (line, other))
        assert [abs(a["end"] - b["end"]) < 1e-12 for a, b in zip(own, theirs, strict=True)] == [True] * len(own)
    assert asdict(a)["receipt"]["relevance"] == whole
    assert pickle.loads(pickle.dumps(asked())).receipt == a.receipt
    assert json.loads(json.dumps(asked().receipt)) == a.receipt


def test_what_the_user_does_to_the_scores_does_not_change_the_receipt() -> None:
    a, same = (whence.explain(model, X, method="attnlrp", target=1) for _ in range(2))
    a.output_value.zero_()
    a.values.zero_()
    assert a.receipt["relevance"] == same.receipt["relevance"]


def test_texts_in_batches_have_their_lines_in_the_user_s_order() -> None:
    wrapped = whence.load("zoo:sentiment")
    texts = ["a moving and funny film", "bad", "too long and not so good , i fear", "fine"]
    options = {"method": "lrp", "composite": "epsilon"}
    a = whence.explain(wrapped, texts, batch_size=2, **options)
    assert isinstance(waiting(a.receipt, "relevance"), Later)
    ends = [line["end"] for line in a.receipt["relevance"]]
    alone = [whence.explain(wrapped, [t], target=int(i), **options) for t, i in zip(texts, a.target, strict=True)]
    assert ends == pytest.approx([one.receipt["relevance"][0]["end"] for one in alone], rel=1e-3)
    assert ends == pytest.approx([float(row.values.sum()) for row in a], rel=1e-3)
    assert len({round(end, 3) for end in ends}) == len(texts)
