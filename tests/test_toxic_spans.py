"""The metrics of the benchmark against human spans, on hand-made examples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import whence
from benchmarks.toxic_spans import (
    ON_REQUEST,
    VARIANTS,
    Post,
    average_precision,
    batches,
    gold_tokens,
    interval,
    metrics,
    padded,
    runs,
    top_f1,
)


def gold(text: str) -> Tensor:
    return torch.tensor([c == "1" for c in text])


def post(marks: str, place: int = 0) -> Post:
    """A post between two special tokens."""
    ranked = torch.tensor([False, *[True] * len(marks), False])
    return Post(place, [101, *range(1000, 1000 + len(marks)), 102], ranked, gold(marks), False)


@pytest.mark.parametrize(
    ("scores", "marks", "wanted"),
    [
        ([4, 3, 2, 1], "1100", 1),
        ([4, 3, 2, 1], "0011", (1 / 3 + 2 / 4) / 2),
        ([-1, -4, -2, -3], "1010", 1),  # signs are no matter of size
        ([4, 3, 2, 1], "1001", (1 + 2 / 4) / 2),
        ([0, 0, 0, 0], "1000", 1 / 4),  # no order: the share of gold
        ([2, 2, 1, 0], "1010", (1 / 2 + 2 / 3) / 2),  # a tie is taken whole
    ],
)
def test_average_precision_by_hand(scores: list[float], marks: str, wanted: float) -> None:
    assert average_precision(torch.tensor(scores, dtype=torch.float32), gold(marks)) == pytest.approx(wanted)


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_that_of_scikit_learn(ties: bool) -> None:
    from sklearn.metrics import average_precision_score

    generator = torch.Generator().manual_seed(0)
    for length in range(2, 40):
        scores = torch.randn(length, generator=generator)
        if ties:
            scores = scores.round()
        marks = torch.rand(length, generator=generator) < 0.3
        marks[0] = True
        wanted = average_precision_score(marks.numpy(), scores.numpy())
        assert average_precision(scores, marks) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "marks", "k", "wanted"),
    [
        ([4, 3, 2, 1], "1100", 2, 1),
        ([4, 3, 2, 1], "1010", 2, 1 / 2),
        ([4, 3, 2, 1], "0011", 2, 0),
        ([4, 3, 2, 1], "1000", 3, 2 / 4),  # precision 1/3, recall 1
        ([4, 3, 2, 1], "1110", 1, 2 / 4),  # precision 1, recall 1/3
        ([1, 1, 1, 1], "1000", 1, 1 / 4),  # one in four ways to break the tie
        ([2, 1, 1, 0], "1010", 2, 3 / 4),  # the first, and one of the tied two
        ([1, 2], "11", 2, 1),
    ],
)
def test_f1_of_the_highest(scores: list[float], marks: str, k: int, wanted: float) -> None:
    assert top_f1(torch.tensor(scores, dtype=torch.float32), gold(marks), k) == pytest.approx(wanted)


def test_interval_is_seeded_and_holds_the_mean() -> None:
    values = torch.rand(400, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    low, high = interval(values)
    assert (low, high) == interval(values)
    assert (low, high) != interval(values, seed=1)
    wide = 1.96 * float(values.std()) / 20  # what the normal law says
    assert low == pytest.approx(float(values.mean()) - wide, abs=0.1 * wide)
    assert high == pytest.approx(float(values.mean()) + wide, abs=0.1 * wide)
    assert all(end != end for end in interval(torch.full((5,), 0.25, dtype=torch.float64)))  # no spread, no interval


def test_a_token_is_gold_where_it_overlaps_a_mark() -> None:
    offsets = [(0, 0), (0, 3), (3, 6), (7, 9), (9, 10), (0, 0)]  # special tokens have no characters
    assert gold_tokens(offsets, {0, 5, 6, 9}).tolist() == [False, True, True, False, True, False]


def test_posts_with_nothing_to_rank_count_for_f1_only() -> None:
    posts = [post("1000"), post("11"), post("0001")]
    scores = [torch.tensor([4.0, 3, 2, 1]), torch.tensor([2.0, 1]), torch.tensor([4.0, 3, 2, 1])]
    ap, oracle, average = metrics(posts, scores)  # half of an average post is gold: k is 2, 1, 2
    assert ap.tolist() == [1, 0.25]
    assert oracle.tolist() == [1, 1, 0]
    assert average.tolist() == pytest.approx([2 / 3, 2 / 3, 0])


def test_scores_that_are_not_finite_are_an_error() -> None:
    with pytest.raises(ValueError, match="post 3 has scores that are not finite"):
        metrics([post("10", place=3)], [torch.tensor([1.0, float("nan")])])


def test_batches_hold_every_post_once_and_similar_lengths_together() -> None:
    posts = [post("1" * n) for n in (5, 1, 4, 2, 3)]
    assert batches(posts, size=2) == [[1, 3], [4, 2], [0]]
    inputs = padded([posts[1], posts[3]])
    assert inputs["input_ids"].tolist() == [[101, 1000, 102, 0], [101, 1000, 1001, 102]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_what_runs_comes_from_the_registry_and_ends_with_random() -> None:
    assert {*VARIANTS, *ON_REQUEST} <= set(whence.methods)
    assert {name for _, name, _ in runs([])} == set(whence.methods) - set(ON_REQUEST)
    assert [title for title, _, _ in runs(["random", "lime", "deepshap"])] == [
        "lime: samples 128",
        "deepshap: baseline zero and pad",
        "random",
    ]
    titles = [title for title, _, _ in runs([])]
    assert len(set(titles)) == len(titles)
    assert titles[-1] == "random"
