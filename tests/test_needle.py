"""The needle test on a few prompts: what is certain of it, and that the prompts are what they say they are."""

from __future__ import annotations

import pytest

import whence
from reproductions.needle.run import NAMED, placed
from whence.zoo import needles


def test_prompts_have_the_needle_once_and_decoys() -> None:
    tokenizer = whence.load("zoo:needle").tokenizer
    for number in range(20):
        made = needles.needle(number)
        ids = tokenizer(made.prompt)["input_ids"]
        assert len(ids) == 500
        assert tokenizer.unk_token_id not in ids
        name = made.prompt.split()[-1]
        both = [s for s in made.sentences if f"{name} {made.answer}" in s]
        assert both == [made.sentences[made.place]]
        for place in made.decoys:
            assert (name in made.sentences[place]) != (made.answer in made.sentences[place])
        assert len(made.decoys) == 4
    assert needles.needle(3) == needles.needle(3) != needles.needle(4)


@pytest.mark.parametrize("method", NAMED)
def test_the_needle_is_first(method: str) -> None:
    lm = whence.load("zoo:needle")
    for number in range(500, 505):  # other prompts than those of the table
        made, values = placed(lm, method, number)
        assert max(range(len(made.sentences)), key=lambda sentence: values[sentence]) == made.place


def test_a_random_order_does_not_find_it() -> None:
    lm = whence.load("zoo:needle")
    found = [placed(lm, "random", number) for number in range(500, 510)]
    assert sum(max(range(len(made.sentences)), key=values.__getitem__) == made.place for made, values in found) <= 3
