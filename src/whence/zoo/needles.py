"""The texts of zoo:needle: who was given what, among sentences about other things, and a question at the end.

One sentence of a prompt, the needle, has the answer right after the name that the question ends with. Other sentences
have the same name without an answer, the same answer without the name, or other names with answers of their own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

NAMES = """Adam Agnes Albert Alma Anna Arthur Bella Boris Carla Cecil Clara Cyrus Daisy David Dora Edgar Elsa Emil Emma
    Felix Fiona Frank Gina Greta Harry Helen Hugo Ida Igor Irma Jacob Jenny Julia Karl Laura Leo Lisa Lucas Mary Max
    Mona Nora Oscar Otto Paula Peter Rosa Simon""".split()
THINGS = """apples balloons bananas baskets beans bells biscuits blankets books boots bottles bowls bricks buttons cakes
    candles carrots cherries coins combs cups drums eggs feathers flutes gloves grapes hats kites knives ladders lamps
    lemons lilies mirrors nails nuts onions paints pears pencils pillows plates plums ribbons ropes roses
    tulips""".split()
GIVERS = "aunt baker captain cousin doctor farmer gardener miller neighbour sailor tailor teacher".split()
GAVE = "brought gave handed lent mailed offered promised sent".split()
DID = "danced listened rested sang slept stayed waited walked worked".split()
SAW = "called found greeted heard helped met saw thanked".split()
WHEN = [f"in {month}" for month in "April August July June March May".split()] + [
    f"on {day}" for day in "Friday Monday Saturday Sunday Thursday Tuesday Wednesday".split()
]
NOUNS = """bridge castle church cloud dog fence field forest garden gate hill horse house island kitchen lake market
    mill mountain orchard path river road roof school shed ship station storm street tower train tree valley village
    wagon wall window wind wood""".split()
STOOD = "appeared began disappeared ended grew lay looked remained shone stood turned vanished".split()
WHERE = "above across behind below beside near past under".split()
KINDS = "ancient bright broken cold dark distant empty famous grey large little long narrow new old quiet".split()
ASK = ("Again", ":", "they", "gave")
OTHERS = ["The", "There", "the", "were", "wanted", "."]


@dataclass(frozen=True)
class Needle:
    """One prompt, its answer, and which of its sentences says so."""

    prompt: str
    answer: str
    sentences: Sequence[str]  # of the prompt, without the question
    place: int  # of the needle among them
    decoys: Sequence[int]  # places of sentences with the name alone or the answer alone


def words() -> list[str]:
    """Every word that a text can have."""
    listed = (NAMES, THINGS, GIVERS, GAVE, DID, SAW, " ".join(WHEN).split(), NOUNS, STOOD, WHERE, KINDS, ASK, OTHERS)
    return list(dict.fromkeys(word for group in listed for word in group))


def needle(number: int, tokens: int = 500, facts: int = 8, decoys: int = 2) -> Needle:
    """A prompt of so many tokens by its number: facts, and `decoys` with the name alone and with the answer."""
    draw = random.Random(f"needle {number}")
    given = _given(draw, facts)
    name, thing = given[0]
    told = [_fact(draw, *pair) for pair in given]
    told += [_alone(draw, name) for _ in range(decoys)] + [_without(draw, thing) for _ in range(decoys)]
    order = _among_others(draw, told, tokens - len(ASK) - 1)
    sentences = [text_of(sentence) for sentence, _ in order]
    places = [number for _, number in order]
    asked = text_of([*ASK, name])
    return Needle(
        " ".join([*sentences, asked]), thing, sentences, places.index(0),
        sorted(places.index(facts + i) for i in range(2 * decoys)),
    )  # fmt: skip


def lesson(draw: random.Random, tokens: int, facts: int, questions: int) -> tuple[list[str], list[int]]:
    """A text to learn from: like a prompt, with answered questions, drawn with replacement; where the answers are."""
    given = _given(draw, facts)
    told = [_fact(draw, *pair) for pair in given]
    told += [_alone(draw, name) for name, _ in given if draw.random() < 0.6]
    told += [_without(draw, thing) for _, thing in given if draw.random() < 0.6]
    asked = [draw.choice(given) for _ in range(questions)]
    end = [word for name, thing in asked for word in (*ASK, name, thing, ".")]
    found = [word for sentence, _ in _among_others(draw, told, tokens - len(end)) for word in sentence]
    size = len(ASK) + 3
    return [*found, *end], [len(found) + size * i + len(ASK) + 1 for i in range(questions)]


def text_of(sentence: Sequence[str]) -> str:
    """Words and signs as text."""
    return " ".join(sentence).replace(" .", ".").replace(" :", ":")


def _given(draw: random.Random, facts: int) -> list[tuple[str, str]]:
    """Names and what they are given; two of them may be given the same."""
    return [(name, draw.choice(THINGS)) for name in draw.sample(NAMES, facts)]


def _fact(draw: random.Random, name: str, thing: str) -> list[str]:
    return ["The", draw.choice(GIVERS), draw.choice(GAVE), name, thing, *draw.choice(WHEN).split(), "."]


def _alone(draw: random.Random, name: str) -> list[str]:
    """A sentence with the name, but nothing that was given."""
    if draw.random() < 0.5:
        return ["The", draw.choice(GIVERS), draw.choice(SAW), name, *draw.choice(WHEN).split(), "."]
    return ["The", draw.choice(NOUNS), draw.choice(STOOD), "near", name, "."]


def _without(draw: random.Random, thing: str) -> list[str]:
    """A sentence with the thing, but nobody who was given it."""
    if draw.random() < 0.5:
        return ["There", "were", thing, draw.choice(WHERE), "the", draw.choice(NOUNS), "."]
    return ["The", draw.choice(GIVERS), "wanted", thing, *draw.choice(WHEN).split(), "."]


def _among_others(draw: random.Random, told: list[list[str]], tokens: int) -> list[tuple[list[str], int]]:
    """Sentences in a random order among others, so many tokens together; others have the number −1."""
    left, others = tokens - sum(map(len, told)), []
    while left > 0:
        size = draw.randint(4, 9) if left > 13 else left if left <= 9 else draw.randint(max(4, left - 9), left - 4)
        others.append(_other(draw, size))
        left -= size
    order = [*((sentence, number) for number, sentence in enumerate(told)), *((other, -1) for other in others)]
    draw.shuffle(order)
    return order


def _other(draw: random.Random, size: int) -> list[str]:
    """A sentence of 4 to 9 words and signs about nobody."""
    near = size >= 7
    kinds = draw.sample(KINDS, size - (7 if near else 4))
    if not near:
        return ["The", *kinds, draw.choice(NOUNS), draw.choice(STOOD), "."]
    return ["The", *kinds, draw.choice(NOUNS), draw.choice(STOOD), draw.choice(WHERE), "the", draw.choice(NOUNS), "."]
