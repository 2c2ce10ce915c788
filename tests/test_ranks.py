"""Ranks with the sets that rows allow, and rows of the league that are made from trees."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("transformers")

from reproductions import ranks
from reproductions.league_table.fields import _review
from whence.zoo.training.data import parsed


def test_methods_that_are_far_apart_have_one_rank_each():
    noise = np.random.default_rng(0).normal(size=(40, 3))
    scores = noise * 0.1 + np.array([0.0, 10.0, 5.0])
    assert ranks.ranks(scores, np.ones(40)) == [(3, 3, 3), (1, 1, 1), (2, 2, 2)]
    assert ranks.better(scores, np.ones(40)).tolist() == [[0, 0, 0], [1, 0, 1], [1, 0, 0]]


def test_equal_methods_may_have_any_rank_among_them():
    noise = np.random.default_rng(1).normal(size=(40, 3))
    scores = noise + np.array([0.0, 0.0, -20.0])
    first, second, third = ranks.ranks(scores, np.ones(40))
    assert first[1:] == second[1:] == (1, 2)
    assert third == (3, 3, 3)


def test_few_rows_allow_every_rank():
    scores = np.array([[0.0, 1.0], [0.0, 2.0]])
    assert [found[1:] for found in ranks.ranks(scores, np.ones(2))] == [(1, 2), (1, 2)]


def test_words_that_say_what_the_sentence_says_are_marked():
    row = _review(parsed("(3 (2 a) (4 (4 warm) (2 (1 sad) (2 film))))"))
    assert row == {"text": "a warm sad film", "label": 1, "rationale": [(2, 6)]}
    assert _review(parsed("(2 (2 a) (3 good))")) is None
    assert _review(parsed("(3 (2 a) (2 film))")) is None
